"""Every error a user can meet.

    AirlockError                 something the user can act on; the command line prints it and exits with `exit_code`
    ├── ConfigError        2     the configuration cannot be used
    ├── DataError          2     the data cannot be used
    │   └── FormatError    2     a file is not what its name or its header says
    ├── NetError           2     the network cannot be trained or released as asked
    ├── AccountingError    2     no accountant can bound what was asked for
    ├── OutputError        2     a folder or a file cannot be written or read
    ├── TrainingError      2     training cannot continue or be resumed
    ├── LedgerError        2     the ledger of a service cannot do what was asked
    │   ├── LedgerUnavailable    its database or disk fails, or it is too busy: retry later
    │   └── LedgerBroken         it was tampered with, rewound or replaced: refused until somebody has investigated
    ├── Refused            1     the request was understood and is refused
    │   ├── Exhausted            the budget or a client's quota does not cover the request
    │   ├── UnknownKey           no such client, or a key that is unknown or revoked
    │   ├── ExpiredKey           a key that has expired
    │   └── KeyReused            an idempotency key was used for another request, or its request is in progress
    └── Interrupted        130   Ctrl-C; what was done so far is in a checkpoint

A message has four parts, in this order: what was expected, what was found, why it matters, what to do. Nothing that
depends on a private record's value is put into a message: it may name a file, a column, a declared class or a row
number, never the value itself. What is quoted from a file may be anything, so a message is always one line of
characters that are seen (`visible`).
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # control, direction, surrogates, separators of lines


def visible(text: str, breaks: bool = False) -> str:
    r"""Text with every character written out that a terminal or a page would act on, or would not show.

    Names in files of others may hold escape sequences, which change what is on the screen, and characters that turn the
    direction of writing around. They come out as Python writes them: `\x1b`, `\u202e`.

    Args:
        text: The text.
        breaks: Whether line breaks and tabs stay: only for text of our own, which has lines.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if breaks else ""
    return "".join(c if c in kept or unicodedata.category(c) not in _UNSEEN else ascii(c)[1:-1] for c in text)


def install_hint(extra: str) -> str:
    """How to install an extra: in the checkout where this is one, else by the name of the package."""
    if (Path(__file__).resolve().parents[1] / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]' in the checkout of Airlock"
    return f"pip install 'airlock-ml[{extra}]'"


class AirlockError(Exception):
    """An error with a remedy.

    Args:
        expected: What should have been there, as the object of "Expected".
        found: What was there instead, as the object of "found".
        why: One sentence: why it matters.
        do: One sentence: what to do.
    """

    exit_code = 2

    def __init__(self, expected: str, found: str, why: str = "", do: str = "") -> None:
        self.expected, self.found, self.why, self.do = expected, found, why, do
        super().__init__(visible(" ".join(part for part in (f"Expected {expected}, found {found}.", why, do) if part)))

    def __reduce__(self) -> tuple[Any, ...]:
        """For a pool of processes, which sends an error to whoever waits for it."""
        return _again, (type(self), self.args, dict(vars(self)))


def _again(kind: type[AirlockError], args: tuple[str, ...], state: dict[str, Any]) -> AirlockError:
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


class ConfigError(AirlockError):
    """The configuration cannot be used."""


class DataError(AirlockError):
    """The data cannot be used."""


class FormatError(DataError):
    """A file is not what its name or its header says."""


class NetError(AirlockError):
    """The network cannot be trained or released as asked."""


class AccountingError(AirlockError):
    """No accountant can bound what was asked for."""


class OutputError(AirlockError):
    """A folder or a file cannot be written or read."""


class TrainingError(AirlockError):
    """Training cannot continue or be resumed."""


class LedgerError(AirlockError):
    """The ledger of a service cannot do what was asked; nothing was answered."""


class LedgerUnavailable(LedgerError):
    """The ledger's database or disk fails, or the ledger is too busy; nothing was answered.

    Args:
        expected: As in `AirlockError`.
        found: As in `AirlockError`.
        why: As in `AirlockError`.
        do: As in `AirlockError`.
        uncertain: Whether a charge may have been made nevertheless.
    """

    def __init__(self, expected: str, found: str, why: str = "", do: str = "", uncertain: bool = False) -> None:
        super().__init__(expected, found, why, do)
        self.uncertain = uncertain


class LedgerBroken(LedgerError):
    """The ledger was tampered with, rewound or replaced."""


class Refused(AirlockError):
    """The request was understood and is refused."""

    exit_code = 1


class Exhausted(Refused):
    """The budget does not cover the request; nothing was charged.

    Args:
        asked: Units that were requested.
        left: Units that remain.
        whose: Which limit it is, such as "the budget".
    """

    def __init__(self, asked: int, left: int, whose: str) -> None:
        self.asked, self.left = asked, left
        super().__init__(f"at most {left:,} units, what is left of {whose}", f"{asked:,}", "Nothing was charged.")


class UnknownKey(Refused):
    """No such client, or a key that is unknown or revoked."""


class ExpiredKey(Refused):
    """A key that has expired."""


class KeyReused(Refused):
    """An idempotency key was used for another request, or its request is in progress."""


class Interrupted(AirlockError):
    """The user pressed Ctrl-C."""

    exit_code = 130


class AirlockWarning(UserWarning):
    """Something the user should know about but may ignore."""
