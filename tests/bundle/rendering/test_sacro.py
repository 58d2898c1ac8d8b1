"""The export for SACRO-ML: its names and its nesting, and no figure that was not measured."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from airlock.auditing import Audit
from airlock.bundle import Card, Dossier
from airlock.bundle.dossier import make as make_dossier
from airlock.bundle.rendering.sacro import report, target, write_report
from airlock.errors import OutputError
from airlock.methods.contract import Release
from tests.bundle.conftest import ATTACK

# Noted from SACRO-ML 2.0.0 (commit a94060ce): what `Attack._make_report`, `metrics.get_metrics` and the reports write.
TOP = {"log_id", "log_time", "metadata", "attack_experiment_logger"}
METADATA = {"sacroml_version", "attack_name", "attack_params", "global_metrics", "target_model", "target_model_params",
            "target_train_params"}  # fmt: skip
GLOBAL = {"PDIF_sig", "AUC_sig", "null_auc_3sd_range"}
INSTANCE = {"TPR", "FPR", "FAR", "TNR", "PPV", "NPV", "FNR", "ACC", "F1score", "Advantage", "AUC", "P_HIGHER_AUC",
            "FMAX01", "FMIN01", "FDIF01", "PDIF01", "FMAX02", "FMIN02", "FDIF02", "PDIF02", "FMAX001", "FMIN001",
            "FDIF001", "PDIF001", "pred_prob_var", "TPR@0.5%", "TPR@0.2%", "TPR@0.1%", "TPR@0.01%", "TPR@0.001%",
            "TPR@1e-05%", "fpr", "tpr", "roc_thresh", "n_pos_test_examples", "n_neg_test_examples"}  # fmt: skip
TARGET = {"dataset_name", "model_name", "model_params", "train_params", "safemodel"}
OURS = {"written_by", "layout", "release_id", "guarantee"}


def test_names_and_nesting_are_sacro_mls(card: Card, dossier: Dossier):
    entries = report(card, dossier)
    assert len(entries) == 2
    for name, entry in entries.items():
        assert entry.keys() == TOP
        assert name == f"{entry['metadata']['attack_name']}_{entry['log_id']}"
        assert entry["metadata"].keys() == METADATA | OURS
        assert entry["metadata"]["global_metrics"].keys() <= GLOBAL
        assert entry["attack_experiment_logger"].keys() == {"attack_instance_logger"}
        instances = entry["attack_experiment_logger"]["attack_instance_logger"]
        assert instances.keys() == {"instance_0"}
        assert instances["instance_0"].keys() <= INSTANCE
    assert target(card).keys() == TARGET


def test_figures_are_those_of_the_card_and_nobody_else_is_said_to_have_made_them(card: Card, dossier: Dossier):
    entry = next(iter(report(card, dossier).values()))
    found = entry["attack_experiment_logger"]["attack_instance_logger"]["instance_0"]
    assert entry["metadata"]["sacroml_version"] is None
    assert entry["metadata"]["written_by"].startswith("Airlock")
    assert entry["log_time"] == "09/03/2026"
    assert (found["AUC"], found["TPR@0.1%"], found["Advantage"]) == (0.5123, 0.0012, 0.01)
    assert (found["TPR"], found["FPR"], found["TNR"], found["FNR"]) == pytest.approx((0.45, 0.44, 0.56, 0.55))
    assert (found["n_pos_test_examples"], found["n_neg_test_examples"]) == (1800, 1750)
    assert (found["fpr"][0], found["tpr"][0], found["fpr"][-1], found["tpr"][-1]) == (0, 0, 1, 1)
    assert "ACC" not in found  # the sides are not of one size, and then accuracy is not balanced accuracy
    assert entry["metadata"]["global_metrics"]["AUC_sig"] == "Not significant at p=0.05"


def test_the_p_value_is_that_of_mann_and_whitney(card: Card, release: Release):
    """For equal sides of 100, the AUC of a score that knows nothing has a deviation of 0.0409."""
    sides = {"members": 100, "non_members": 100, "value": 0.6}
    audit = Audit((dataclasses.replace(ATTACK, **sides),), ())  # type: ignore[arg-type]
    entry = next(iter(report(card, make_dossier(card, release, audit)).values()))
    found = entry["attack_experiment_logger"]["attack_instance_logger"]["instance_0"]
    assert found["P_HIGHER_AUC"] == pytest.approx(0.00729, rel=0.02)
    assert found["ACC"] == 0.505
    assert entry["metadata"]["global_metrics"]["AUC_sig"] == "Significant at p=0.05"


def test_refused_figures_and_other_attacks_are_left_out(card: Card, release: Release):
    refused = dataclasses.replace(ATTACK.rates[0], value=None, low=None, high=None, refused="Too few.")
    bare = dataclasses.replace(ATTACK, rates=(refused,), advantage=None, curve=())
    other = dataclasses.replace(ATTACK, name="inversion", aim="inversion", view="features", score="SSIM")
    (entry,) = report(card, make_dossier(card, release, Audit((bare, other), ()))).values()
    found = entry["attack_experiment_logger"]["attack_instance_logger"]["instance_0"]
    assert found.keys() == {"AUC", "P_HIGHER_AUC", "n_pos_test_examples", "n_neg_test_examples"}


def test_it_is_written_whole_and_over_nothing(card: Card, dossier: Dossier, tmp_path: Path):
    write_report(tmp_path / "sacro", card, dossier)
    assert sorted(path.name for path in (tmp_path / "sacro").iterdir()) == ["report.json", "target.yaml"]
    assert json.loads((tmp_path / "sacro/report.json").read_text()) == report(card, dossier)
    with pytest.raises(OutputError, match="does not exist yet"):
        write_report(tmp_path / "sacro", card, dossier)
