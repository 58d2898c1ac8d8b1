"""What the recipient of a bundle of features does with it: train a classifier from the bundle alone.

In: the bundle. Out: `model.safetensors`, `model.onnx` and `report.json` in a folder. Some of the features are held out
for testing; where features have noise, so has the test, and the classifier does better on records without noise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from airlock.bundle import bundle, export
from airlock.bundle.files import folder_aside, parse_json, write_file
from airlock.bundle.signing.keys import PublicKey
from airlock.bundle.verify import read_verified
from airlock.data import Records
from airlock.data.feature_files import MANIFEST, load, parse_manifest
from airlock.errors import ConfigError, Refused
from airlock.methods.contract import NetworkArtefact
from airlock.training import Run
from airlock.training.devices import choose_device
from airlock.training.front_ends.downstream_classifier import learn
from airlock.training.loop import Progress
from airlock.training.outcomes import count_correct

REPORT = "report.json"


@dataclass(frozen=True)
class Trained:
    """The test result of a classifier.

    Args:
        release_id: The release id of the bundle.
        records: How many records it was trained on.
        tested: How many records it was tested on.
        accuracy: Its accuracy on these, as they were released.
        net: The name of its network.
        noisy: Whether the features that it was tested on have noise.
    """

    release_id: str
    records: int
    tested: int
    accuracy: float
    net: str
    noisy: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json` and report.json."""
        return asdict(self)


def train_on(
    folder: Path,
    out: Path | None,
    net: str = "",
    epochs: int = 20,
    holdout: float = 0.1,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
    *,
    signers: Sequence[PublicKey] = (),
) -> Trained:
    """Train a classifier on a bundle of features, test it, and write it.

    Args:
        folder: The bundle; it must verify.
        out: Where the classifier is written; nothing is written if omitted.
        net: The user's own network, `package.module:function`; it is imported.
        epochs: Passes over the training rows.
        holdout: The fraction of rows held out for testing.
        seed: The seed for training and for the split.
        device: Where to compute.
        progress: Called with a label, the number of steps done and the total number of steps.
        signers: If given, one of these keys must have signed the bundle.

    Raises:
        Refused: The bundle does not verify, lacks a required signature, or holds no features.
        OutputError: `out` cannot be used.
    """
    if not 0 < holdout < 1:
        raise ConfigError("a --holdout between 0 and 1", f"{holdout:g}")
    if out is not None:
        bundle.check_output(out)
    found = read_verified(folder, signers=signers)
    card = found.card
    if card.features is None:
        raise Refused("a bundle of features", f"one of {card.channel}", do="Use its contents directly.")
    made = parse_manifest(parse_json(found.files.read(MANIFEST)))
    rows, classes = load(found.folder, made), made.classes
    learnt, tested = _apart(rows, holdout, seed)
    run = Run(device=choose_device(device), progress=progress)
    model = learn(learnt, len(classes), made.noise, epochs, seed, run, net)
    name = net or ("nearest-mean" if len(made.shape) == 1 else "icn")
    right = count_correct(model, tested)
    report = Trained(card.release_id, len(learnt), len(tested), right / len(tested), name, made.noise is not None)
    if out is not None:
        artefact = NetworkArtefact(model, name, made.shape, classes)
        text = json.dumps(report.to_dict() | {"classes": list(classes)}, indent=2, ensure_ascii=False) + "\n"
        with folder_aside(Path(out).absolute()) as aside:
            write_file(aside / bundle.SAFETENSORS, export.to_safetensors(artefact))
            write_file(aside / bundle.ONNX, export.to_onnx(artefact))
            write_file(aside / REPORT, text.encode())
    return report


def _apart(rows: Records, holdout: float, seed: int) -> tuple[Records, Records]:
    place = np.random.default_rng(seed).permutation(len(rows))
    count = round(holdout * len(rows))
    if not 0 < count < len(rows):
        raise ConfigError("enough rows for training and for a test", f"{len(rows)}", do="Change --holdout.")
    return rows.take(place[count:]), rows.take(place[:count])
