"""The audit in the layout of SACRO-ML's report.json, so that a trusted research environment can use it.

In: a card, and the dossier with its attacks. Out: `report.json` and `target.yaml` in a new folder. Names and nesting
are those that SACRO-ML 2.0 writes and reads (`GenerateTextReport` reads both files). Figures that Airlock does not
measure are left out, and nothing claims to have been produced by SACRO-ML: `sacroml_version` is null. Two figures are
defined differently. SACRO-ML's `Advantage` is a magnitude, without sign. Its `TPR@0.1%` and `TPR@0.01%` interpolate
between two corners of the ROC curve; ours are the corners themselves.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from pathlib import Path
from typing import Any

from scipy.stats import norm

from airlock._version import VERSION
from airlock.auditing.bounds import null_variance
from airlock.auditing.result import AttackResult
from airlock.bundle.card import Card
from airlock.bundle.dossier import Dossier
from airlock.bundle.files import folder_aside, write_file
from airlock.bundle.packing import packing_of
from airlock.errors import OutputError

REPORT, TARGET = "report.json", "target.yaml"
LAYOUT = "SACRO-ML 2.0.0"
SIGNIFICANT = 0.05
_RATES = {0.0001: "TPR@0.01%", 0.001: "TPR@0.1%"}


def write_report(folder: Path, card: Card, dossier: Dossier) -> None:
    """Write the report into a folder that does not exist yet, whole or not at all.

    Raises:
        OutputError: It exists, or cannot be written.
    """
    folder = Path(folder).absolute()
    if os.path.lexists(folder):
        raise OutputError("a folder that does not exist yet", str(folder), do="Choose another one.")
    with folder_aside(folder) as aside:
        write_file(aside / REPORT, _json(report(card, dossier)))
        write_file(aside / TARGET, _json(target(card)))  # JSON is YAML


def report(card: Card, dossier: Dossier) -> dict[str, Any]:
    """report.json: one entry per attack, with SACRO-ML's names."""
    own = [attack for attack in dossier.audit.attacks if attack.aim == "membership"]
    entries = [_entry(card, attack, len(own)) for attack in own]
    return {f"{entry['metadata']['attack_name']}_{entry['log_id']}": entry for entry in entries}


def target(card: Card) -> dict[str, Any]:
    """target.yaml: what is public about the model. The number of its training records is not."""
    return {
        "dataset_name": card.data.name,
        "model_name": _model(card),
        "model_params": {},
        "train_params": dict(card.details),
        "safemodel": [],
    }


def _entry(card: Card, attack: AttackResult, tries: int) -> dict[str, Any]:
    return {
        "log_id": str(uuid.uuid5(uuid.UUID(hex=card.release_id), attack.name)),
        "log_time": card.created.strftime("%d/%m/%Y"),
        "metadata": {
            "sacroml_version": None,
            "attack_name": attack.name,
            "attack_params": {"view": attack.view, "confidence": attack.confidence, "delta": card.guarantee.delta},
            "global_metrics": _global(attack, tries),
            "target_model": _model(card),
            "target_model_params": {},
            "target_train_params": dict(card.details),
            "written_by": f"Airlock {VERSION}",
            "layout": LAYOUT,
            "release_id": card.release_id,
            "guarantee": {
                "status": card.guarantee.status,
                "epsilon": card.guarantee.epsilon,
                "delta": card.guarantee.delta,
                "epsilon_lower_bound": attack.epsilon_lower_bound,
            },
        },
        "attack_experiment_logger": {"attack_instance_logger": {"instance_0": _instance(attack)}},
    }


def _model(card: Card) -> str:
    return packing_of(card.artefact).name(f"{card.channel}/{card.method}", card.leaving)


def _global(attack: AttackResult, tries: int) -> dict[str, str]:
    """Whether an AUC is significant, among those of so many attacks (Bonferroni)."""
    if attack.score != "AUC":
        return {}
    spread = 3 * math.sqrt(null_variance(attack.members, attack.non_members))
    word = "Significant" if _p_value(attack) * tries <= SIGNIFICANT else "Not significant"
    return {
        "AUC_sig": f"{word} at p={SIGNIFICANT}",
        "null_auc_3sd_range": f"{0.5 - spread} -> {0.5 + spread}",
    }


def _instance(attack: AttackResult) -> dict[str, Any]:
    found: dict[str, Any] = {
        "n_pos_test_examples": attack.members,
        "n_neg_test_examples": attack.non_members,
    }
    if attack.score == "AUC":
        found |= {"AUC": attack.value, "P_HIGHER_AUC": _p_value(attack)}
    if gain := attack.advantage:
        true, false = gain.true_positive_rate, gain.false_positive_rate
        found |= {"TPR": true, "FPR": false, "TNR": 1 - false, "FNR": 1 - true, "Advantage": abs(gain.value)}
        if attack.members == attack.non_members:
            found["ACC"] = gain.balanced_accuracy
    for rate in attack.rates:
        if rate.value is not None and (name := _RATES.get(rate.false_positive_rate)):
            found[name] = rate.value
    if attack.curve:
        found |= {"fpr": [0.0, *(x for x, _ in attack.curve)], "tpr": [0.0, *(y for _, y in attack.curve)]}
    return found


def _p_value(attack: AttackResult) -> float:
    """The probability of an AUC at least this large for an uninformative score."""
    return float(norm.sf(attack.value, loc=0.5, scale=math.sqrt(null_variance(attack.members, attack.non_members))))


def _json(table: dict[str, Any]) -> bytes:
    return (json.dumps(table, indent=4, ensure_ascii=False, allow_nan=False) + "\n").encode()
