"""Both databases, each real: SQLite in a file, and a PostgreSQL that the tests start for themselves."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from airlock.ledger import Ledger, Terms, tables
from tests.waiting import LONG, wait_until

_count = itertools.count()
# Where there is room in memory tests need not wait for a disk: a killed process leaves the same there.
_shared = Path("/dev/shm")
MEMORY = _shared if _shared.is_dir() and shutil.disk_usage(_shared).free > 1 << 30 else None


def programs() -> Path | None:
    """Where initdb and postgres are: in the wheel `pgserver`, on the path, or where Debian puts them."""
    spec = importlib.util.find_spec("pgserver")
    folders = [Path(spec.origin).parent / "pginstall" / "bin"] if spec and spec.origin else []
    folders += [Path(found).parent for found in [shutil.which("initdb")] if found]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


class Server:
    """A PostgreSQL that listens on a socket in its own folder; as root it runs as `nobody`, since it refuses root."""

    def __init__(self, binaries: Path) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="airlock-pg-", dir=MEMORY))
        self._binaries = binaries
        self._who = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        if self._who:
            shutil.chown(self.home, "nobody", "nogroup")
        init = ["initdb", "-D", self.home / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"]
        command = [binaries / init[0], *init[1:], "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, cwd=self.home, **self._who)
        self.start()

    def start(self) -> None:
        command = [self._binaries / "postgres", "-D", self.home / "data", "-k", self.home, "-h", ""]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, cwd=self.home, start_new_session=True, **quiet, **self._who)

    def kill(self) -> None:
        """End it and all its children at once, as when its machine loses power but keeps its disk."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(LONG)
        for lock in (self.home / "data" / "postmaster.pid", self.home / ".s.PGSQL.5432.lock"):
            lock.unlink(missing_ok=True)  # its number may be another's by now

    def end(self) -> None:
        self._process.send_signal(signal.SIGQUIT)  # at once: nobody reads these databases again
        try:
            self._process.wait(LONG)
        except subprocess.TimeoutExpired:
            self._process.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def place(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.home}"


def wait_for(home: Path) -> psycopg.Connection:
    def connected() -> psycopg.Connection | None:
        with contextlib.suppress(psycopg.OperationalError):
            return psycopg.connect(host=str(home), user="postgres", dbname="postgres", autocommit=True)
        return None

    return wait_until(connected, "a PostgreSQL that answers", every=0.1)


@contextlib.contextmanager
def forging(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction of someone who owns the database and takes the triggers off first."""
    on = {"sqlite": ("no_update", "no_delete"), "postgresql": ("append_only ON airlock_log",)}[engine.dialect.name]
    with tables.writing(engine) as connection:
        for name in on:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS airlock_log_{name}")
        yield connection


@pytest.fixture(scope="session", autouse=True)
def _patient_locks() -> Iterator[None]:
    """A busy machine may hold a lock for long; only a hang holds it for ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "LOCK_SECONDS", int(LONG))
        yield


@pytest.fixture(scope="session")
def new_database() -> Iterator[Callable[[], str]]:
    """Makes an empty schema, which is as good as a database of its own and much cheaper, and gives its address."""
    with Server(_binaries()) as server, contextlib.closing(wait_for(server.home)) as connection:

        def make() -> str:
            name = f"ledger_{next(_count)}"
            connection.execute(f"CREATE SCHEMA {name}")
            return f"{server.place}&options=-csearch_path%3D{name}"

        yield make


@pytest.fixture
def server() -> Iterator[Server]:
    """A PostgreSQL of the test's own, to be killed."""
    with Server(_binaries()) as made:
        wait_for(made.home).close()
        yield made


def _binaries() -> Path:
    binaries = programs()
    if binaries is None:
        if os.environ.get("CI"):
            pytest.fail("no PostgreSQL found")
        pytest.skip("no PostgreSQL: install the wheel pgserver, or your system's package")
    return binaries


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is quick to write to."""
    with tempfile.TemporaryDirectory(prefix="airlock-ledger-", dir=MEMORY) as name:
        yield Path(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, folder: Path) -> str:
    """Where a new ledger can be, on either database."""
    if request.param == "sqlite":
        return str(folder / "ledger.db")
    address: str = request.getfixturevalue("new_database")()
    return address


@pytest.fixture
def mark(folder: Path) -> Path:
    return folder / "elsewhere" / "mark.json"


@pytest.fixture
def ledger(place: str, mark: Path) -> Iterator[Ledger]:
    """A ledger of 100 units, with the clients ann (no quota) and bob (10 units)."""
    with Ledger.open(place, mark, Terms("a-release", 100, "0.01 rho")) as opened:
        opened.set_quota("ann", None)
        opened.set_quota("bob", 10)
        yield opened
