"""A released network, ready to be asked with raw rows: `airlock.load`.

In: a bundle that verifies, signed by whom the user requires. Out: a `ReleasedModel`, which encodes rows by the declared
schema and answers them by the bundle's own model.onnx in ONNX Runtime: what is used is what was verified, byte by byte.
Answers cost nothing: the network has already left.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from airlock.bundle import export
from airlock.bundle.bundle import Bundle
from airlock.bundle.card import Card
from airlock.bundle.contents import CONFIG, ONNX, TOKENIZER
from airlock.bundle.packing import packing_of
from airlock.bundle.receiving import language
from airlock.bundle.receiving import rows as raw
from airlock.bundle.receiving.input_schema import InputSchema, declared_schema
from airlock.bundle.receiving.rows import EncodedRows, RowNote
from airlock.bundle.signing.approval import refuse_rejected
from airlock.bundle.signing.keys import PublicKey
from airlock.bundle.vault import Vault
from airlock.bundle.verify import read_verified
from airlock.config import TargetRange, parse_toml
from airlock.data.text import Tokenizer, parse_tokenizer
from airlock.errors import AirlockWarning, DataError, Refused

OVERFLOW = "a number so far from what the network was trained on that its outputs overflow"


@dataclass(frozen=True)
class Predictions:
    """What a model says about rows, one entry for each.

    Args:
        labels: The place of the predicted class; −1 where the row was refused, and 0 elsewhere where there is a number.
        probabilities: Of each class, one row each; NaN where the row was refused.
        classes: The class names.
        numbers: What is predicted where that is a number, in its declared unit; of a language model, the perplexity of
            each text; NaN where the row was refused.
        refused: Which rows were refused, and why.
        clamped: Which rows have a value that counts as the nearest end of its declared range.
    """

    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    classes: tuple[str, ...]
    refused: tuple[RowNote, ...] = ()
    clamped: tuple[RowNote, ...] = ()
    numbers: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> list[str | None]:
        """The predicted class of each row, or the number as text; None where it was refused."""
        if self.numbers is not None:
            return [None if np.isnan(one) else f"{one:.7g}" for one in self.numbers.tolist()]
        return [self.classes[label] if label >= 0 else None for label in self.labels.tolist()]


@dataclass(frozen=True)
class ReleasedModel:
    """A released network that takes raw rows.

    Rows of a table are a pandas or polars frame, a list of dicts, a dict of columns, or an array with the columns in
    their declared order; other columns are not used. Images are an array of whole numbers from 0 to 255 or of fractions
    from 0 to 1. Texts are a list of them, or any of the former with their column. All may be the path of a file: CSV or
    Parquet, .npy, and for texts also .tsv, .jsonl, or .txt with one in each line.

    Args:
        card: The bundle's card.
        schema: What a row is, as declared.
        onnx: The bundle's model.onnx, as it was verified.
        tokenizer: The bundle's tokenizer.json, for texts.
    """

    card: Card
    schema: InputSchema
    onnx: bytes
    tokenizer: bytes | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_session", export.open_onnx(self.onnx))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_session"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    def __repr__(self) -> str:
        return f"ReleasedModel({self.card.channel}/{self.card.method} on {self.card.data.name}: {self.card.headline})"

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of the columns of `predict_proba`."""
        return self.schema.classes

    def predict(self, rows: object) -> NDArray[np.str_] | NDArray[np.float64]:
        """The name of each row's class, the number that is predicted for it in its unit, or a text's perplexity.

        Raises:
            DataError: A row does not fit the schema; all that do not are named.
        """
        found = self._all(rows)
        return np.array(self.classes)[found.labels] if found.numbers is None else found.numbers

    def predict_proba(self, rows: object) -> NDArray[np.float64]:
        """The probability of each class, one row each, in the order of `classes`.

        Raises:
            DataError: A row does not fit the schema; all that do not are named.
            Refused: The model predicts a number.
        """
        if not self.classes:
            language = self.schema.language
            raise Refused(
                "a model that tells classes apart",
                "a language model" if language else "one that predicts a number",
                "It has no probabilities of classes.",
                "Call predict for the perplexity of texts, or generate."
                if language
                else "Call predict; the card says how far off predictions usually are.",
            )
        return self._all(rows).probabilities

    def generate(self, text: str, tokens: int = 20, temperature: float = 0.0, seed: int | None = None) -> str:
        """How a language model goes on after a text, which is not repeated.

        Args:
            text: What is there already; what does not fit into the declared number of tokens is not read.
            tokens: How many tokens to add at most; fewer where the declared number is reached, or the text ends.
            temperature: 0 takes the likeliest token each time; above, tokens are drawn.
            seed: Of these draws.

        Raises:
            Refused: It is no language model.
            DataError: The text has no token that the tokenizer can encode.
        """
        reader = self._reader
        if not self.schema.language or reader is None:
            raise Refused("a language model", f"one that gives {self.schema.gives}", do="Call predict.")
        found = language.continued(self._session, reader, text, tokens, temperature, seed)  # type: ignore[attr-defined]
        if found is None:
            raise DataError("a text that the tokenizer can encode", "one without tokens", do="Begin it with a word.")
        return found

    def answer(self, rows: object) -> Predictions:
        """The same and what is to be said of single rows; a row that does not fit the schema gets no answer."""
        return joined(self.answer_blocks(self.encoded(rows)), self.classes)

    def encoded(self, rows: object) -> Iterator[EncodedRows]:
        """Rows as the network takes them, block by block; or those of a file, given its path."""
        return raw.encode(self.schema, rows, self._reader)

    def encoded_stream(self, stream: IO[bytes], name: str) -> Iterator[EncodedRows]:
        """The same for lines of CSV or of text, which `name` stands for in errors."""
        return raw.read_stream(self.schema, stream, name, self._reader)

    @property
    def _reader(self) -> Tokenizer | None:
        text = self.schema.text
        return None if text is None or self.tokenizer is None else parse_tokenizer(self.tokenizer, text.tokens)

    def answer_blocks(self, blocks: Iterable[EncodedRows]) -> Iterator[Predictions]:
        """Answers to rows that are encoded already, block by block (`rows.read` reads a file's)."""
        first = 0
        for block in blocks:
            yield self._answered(block, first)
            first += len(block.x)

    def _all(self, rows: object) -> Predictions:
        found = self.answer(rows)
        if found.refused:
            raise DataError(
                "rows that fit the model's schema",
                "; ".join(map(str, found.refused)),
                "A row that does not fit has no answer.",
                "Correct or remove them, or call `answer`, which answers all others.",
            )
        for note in found.clamped:
            said = f"{note}: it counts as the nearest end of the range."
            warnings.warn(said, AirlockWarning, stacklevel=_level_of_the_caller())
        return found

    def _answered(self, block: EncodedRows, first: int) -> Predictions:
        count = len(block.x)
        labels, chances = np.full(count, -1, np.int64), np.full((count, len(self.classes)), np.nan)
        refused = block.refused
        if not self.classes:
            return self._numbers(block, first, self.schema.target)
        if block.kept.any():
            logits = np.asarray(self._session.run(["logits"], {"input": block.x[block.kept]})[0], np.float64)  # type: ignore[attr-defined]
            whole = np.isfinite(logits).all(axis=1)
            places = np.flatnonzero(block.kept)
            labels[places[whole]] = logits[whole].argmax(axis=1)
            chances[places[whole]] = _softmax(logits[whole])
            if not whole.all():
                refused += (RowNote(OVERFLOW, tuple(first + one + 1 for one in places[~whole].tolist())),)
        return Predictions(labels, chances, self.classes, refused, block.clamped)

    def _numbers(self, block: EncodedRows, first: int, target: TargetRange | None) -> Predictions:
        """The same where a number is predicted, or a text has a perplexity."""
        count, refused, kept = len(block.x), block.refused, block.kept
        labels, numbers = np.full(count, -1, np.int64), np.full(count, np.nan)
        if target is None and (short := kept & (block.x[:, 1] == 0)).any():
            refused += (
                RowNote(language.NOTHING_NEXT, tuple(first + one + 1 for one in np.flatnonzero(short).tolist())),
            )
            kept = kept & ~short
        if kept.any():
            own: Any = self._session  # type: ignore[attr-defined]
            rows = block.x[kept]
            found = language.perplexities(own, rows) if target is None else export.predicted(own, rows, target)
            whole, places = np.isfinite(found), np.flatnonzero(kept)
            labels[places[whole]], numbers[places[whole]] = 0, found[whole]
            if not whole.all():
                refused += (RowNote(OVERFLOW, tuple(first + one + 1 for one in places[~whole].tolist())),)
        return Predictions(labels, np.empty((count, 0)), (), refused, block.clamped, numbers)


def _level_of_the_caller() -> int:
    """How far above `_all` the code of whoever asks is: a warning names that line, not one of this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("airlock."):
        frame, level = frame.f_back, level + 1
    return level


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def joined(parts: Iterable[Predictions], classes: tuple[str, ...]) -> Predictions:
    """All blocks as one."""
    found = list(parts)
    numbers = [part.numbers for part in found if part.numbers is not None]
    return Predictions(
        np.concatenate([np.empty(0, np.int64), *(part.labels for part in found)]),
        np.concatenate([np.empty((0, len(classes))), *(part.probabilities for part in found)]),
        classes,
        raw.merged(note for part in found for note in part.refused),
        raw.merged(note for part in found for note in part.clamped),
        np.concatenate(numbers) if numbers else None,
    )


def load(
    folder: Path,
    vault: Vault | None = None,
    *,
    signers: Sequence[PublicKey] = (),
    approvers: Sequence[PublicKey] = (),
) -> ReleasedModel:
    """The network of a bundle that verifies.

    Args:
        folder: The bundle.
        vault: The vault whose files must not be in it; the user's default vault if omitted.
        signers: If given, one of these keys must have signed it.
        approvers: If given, a reviewer must have approved it with one of these keys.

    Raises:
        Refused: The bundle does not verify, lacks a required signature, was rejected, or holds no network.
    """
    found = read_verified(folder, vault, signers=signers, approvers=approvers)
    refuse_rejected(found.files)
    if found.card.network is None:
        raise Refused(
            "a bundle with a network",
            f"one of {packing_of(found.card.artefact).noun}",
            "There is no model in it that could be asked.",
            "Ask the holder's service for answers; `airlock features train` trains a classifier on features.",
        )
    return ReleasedModel(found.card, schema_of(found), found.files.read(ONNX), tokenizer_of(found))


def tokenizer_of(bundle: Bundle) -> bytes | None:
    """The tokenizer.json of a verified bundle; None where records are no texts."""
    return bundle.files.read(TOKENIZER) if TOKENIZER in bundle.files.names else None


def schema_of(bundle: Bundle) -> InputSchema:
    """What a row of a verified bundle is, by its card or, where that is older, by its config."""
    card = bundle.card
    if card.inputs is not None:
        return card.inputs
    table = parse_toml(bundle.files.read(CONFIG).decode("utf-8"), CONFIG)
    return declared_schema(table.get("data"), card.data.shape, card.data.classes)
