"""The ledger's tables, and how SQLite and PostgreSQL are made durable and serial.

Both: a writer holds one lock from its first read to its commit (`BEGIN IMMEDIATE`, or the one row of `ledger` for
update), and a commit returns once the data is on disk (`synchronous=FULL`; `fsync` and `synchronous_commit`). Limits
are CHECK constraints too, so that a mistake in the calling code cannot overdraw the budget. Triggers protect the log
against accidental changes; the hashes and the mark detect deliberate ones. Totals, clients and keys are a cache of the
log, for whoever reads the database: nothing is decided by them (`state`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from airlock.errors import ConfigError, LedgerBroken, LedgerError, LedgerUnavailable
from airlock.ledger.mark import make_folder, open_private

LOCK_SECONDS = 30
_meta = sa.MetaData()
_hash = sa.String(64)

ledger = sa.Table(
    "airlock_ledger",
    _meta,
    sa.Column("one", sa.Integer, primary_key=True),
    sa.Column("id", sa.String(32), nullable=False),
    sa.Column("terms", sa.Text, nullable=False),
    sa.Column("cap", sa.BigInteger, nullable=False),
    sa.Column("spent", sa.BigInteger, nullable=False),
    sa.Column("entries", sa.BigInteger, nullable=False),
    sa.Column("head", _hash, nullable=False),
    sa.CheckConstraint("one = 1"),
    sa.CheckConstraint("spent >= 0 AND spent <= cap"),
)
log = sa.Table(
    "airlock_log",
    _meta,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("client", sa.String(128), nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("units", sa.BigInteger, nullable=False),
    sa.Column("request", _hash, nullable=False),
    sa.Column("key", _hash, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("previous", _hash, nullable=False),
    sa.Column("hash", _hash, nullable=False),
)
clients = sa.Table(
    "airlock_clients",
    _meta,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("quota", sa.BigInteger),
    sa.Column("spent", sa.BigInteger, nullable=False),
    sa.CheckConstraint("spent >= 0 AND (quota IS NULL OR spent <= quota)"),
)
answers = sa.Table(
    "airlock_answers",
    _meta,
    sa.Column("client", sa.String(128), primary_key=True),
    sa.Column("key", _hash, primary_key=True),
    sa.Column("request", _hash, nullable=False),
    sa.Column("entry", sa.BigInteger, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("body", sa.LargeBinary),
)
keys = sa.Table(
    "airlock_keys",
    _meta,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("hash", _hash, nullable=False),
    sa.Column("client", sa.String(128), nullable=False),
    sa.Column("admin", sa.Boolean, nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("expires", sa.BigInteger),
    sa.Column("revoked", sa.BigInteger),
)

_ONLY_APPENDED = {
    "sqlite": [
        f"CREATE TRIGGER airlock_log_no_{what} BEFORE {what} ON airlock_log "
        "BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END"
        for what in ("update", "delete")
    ],
    "postgresql": [
        "CREATE FUNCTION airlock_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'the log is append-only' USING ERRCODE = 'integrity_constraint_violation'; END $$",
        "CREATE TRIGGER airlock_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON airlock_log "
        "FOR EACH STATEMENT EXECUTE FUNCTION airlock_log_is_append_only()",
    ],
}


@sa.event.listens_for(log, "after_create")
def _append_only(_: sa.Table, connection: sa.Connection, **__: object) -> None:
    for statement in _ONLY_APPENDED.get(connection.dialect.name, []):
        connection.exec_driver_sql(statement)


def connect(place: str, create: bool = False) -> sa.Engine:
    """An engine for a SQLite file (a path or sqlite:///…), created if `create` is set, or for postgresql://….

    Raises:
        ConfigError: It is neither, or there is no such file.
        LedgerUnavailable: The file's folder cannot be written to, or the server cannot be reached.
        LedgerError: The server does not wait for its disk (fsync is off).
    """
    if place.startswith(("postgresql://", "postgres://")):
        return _postgresql(place)
    if "://" in place and not place.startswith("sqlite:///"):
        raise ConfigError("a file, sqlite:///… or postgresql://… as ledger", f"'{place.split('://')[0]}://…'")
    return _sqlite(Path(place.removeprefix("sqlite:///")).expanduser().absolute(), create)


def create_tables(connection: sa.Connection) -> None:
    """Create the missing tables; several processes may try at once."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(7031847201)"))
    _meta.create_all(connection)


def has_ledger(engine: sa.Engine) -> bool:
    """Whether the tables exist and hold a ledger."""
    with reading(engine) as connection:
        if not sa.inspect(connection).has_table(ledger.name):
            return False
        return connection.execute(sa.select(sa.func.count()).select_from(ledger)).scalar_one() > 0


@contextlib.contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that may write; committed to disk when the block ends without an error.

    Raises:
        LedgerError: The database failed; `uncertain` is set if the commit may or may not have succeeded.
    """
    committing = False
    try:
        options = {"airlock_writes": True}
        with engine.connect().execution_options(**options) as connection, connection.begin() as transaction:
            yield connection
            committing = True
            transaction.commit()
    except exc.SQLAlchemyError as error:
        raise translated(error, committing) from error


@contextlib.contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that reads one consistent state of the database."""
    level = {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {}
    try:
        with engine.connect().execution_options(**level) as connection:
            yield connection
    except exc.SQLAlchemyError as error:
        raise translated(error) from error


def translated(error: exc.SQLAlchemyError, committing: bool = False) -> LedgerError:
    """A database error as one of ours; it names neither the statement nor values.

    A database that reports an error did not commit. If the connection breaks during a commit, the outcome is unknown.
    """
    original = getattr(error, "orig", None)
    code, state = getattr(original, "sqlite_errorcode", None), getattr(original, "sqlstate", None) or ""
    kind = None if code is None else code & 0xFF
    nothing = "Nothing was charged or answered."
    if isinstance(error, exc.IntegrityError):
        return LedgerBroken("rows that agree", "some that do not", nothing, "Run airlock ledger verify.")
    if kind == sqlite3.SQLITE_FULL or state.startswith("53"):
        return LedgerUnavailable("space for the ledger", "none left", nothing, "Free some, then retry.")
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or state.startswith("55"):
        return LedgerUnavailable("the ledger's lock", "that others held it for too long", nothing, "Retry.")
    if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return LedgerBroken(
            "a SQLite database", "a damaged file", nothing, "Restore it; never continue without its log."
        )
    if not isinstance(error, exc.OperationalError | exc.InterfaceError | exc.InternalError | exc.TimeoutError):
        return LedgerError("the database to accept it", f"a failure ({type(error).__name__})", nothing)
    open_end = "The charge may have been made; nothing was answered." if committing else nothing
    return LedgerUnavailable("a database that answers", "one that fails", open_end, "Check it, then retry.", committing)


def _sqlite(path: Path, create: bool) -> sa.Engine:
    """A file readable by its owner alone; SQLite gives its journal the same mode."""
    if not create and not path.is_file():
        raise ConfigError("a ledger in this place", "none", do="A service creates it with the terms of its release.")
    try:
        make_folder(path.parent)
        os.close(open_private(path, os.O_RDWR))
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise LedgerUnavailable(f"to open {path}", reason, do="Choose another place.") from error
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": LOCK_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def _set_up(raw: Any, _: Any) -> None:
        raw.isolation_level = None  # transactions begin below, and nowhere else
        for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={LOCK_SECONDS * 1000}"):
            raw.execute(f"PRAGMA {pragma}").close()

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("airlock_writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql(place: str) -> sa.Engine:
    url = sa.make_url(place).set(drivername="postgresql+psycopg")
    options = {
        "connect_timeout": 10,
        "keepalives_idle": 10,
        "tcp_user_timeout": LOCK_SECONDS * 1000,
    }
    engine = sa.create_engine(url, connect_args=options, pool_pre_ping=True)

    @sa.event.listens_for(engine, "connect")
    def _set_up(raw: Any, _: Any) -> None:
        with raw.cursor() as cursor:
            if cursor.execute("SHOW synchronous_commit").fetchone()[0] == "off":
                cursor.execute("SET synchronous_commit = on")
            cursor.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
            cursor.execute("SET idle_in_transaction_session_timeout = '60s'")
        raw.commit()

    try:
        with reading(engine) as connection:
            waits = connection.execute(sa.text("SHOW fsync")).scalar_one() == "on"
        if not waits:
            raise LedgerError(
                "a PostgreSQL with fsync = on", "fsync = off", "A power failure could lose a charge.", "Turn it on."
            )
    except BaseException:
        engine.dispose()
        raise
    return engine
