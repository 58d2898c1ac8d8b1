"""From config to verified bundle, and everything that must stop on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import airlock
from airlock import methods
from airlock.auditing import AuditSettings
from airlock.bundle import Vault, bundle, dossier
from airlock.bundle.rendering import page
from airlock.bundle.schema import Decision
from airlock.bundle.verify import verify
from airlock.config import from_table
from airlock.data import Records, Split
from airlock.errors import AirlockWarning, ConfigError, DataError, Interrupted, OutputError, Refused, TrainingError
from airlock.methods.weights.gaussian import Gaussian
from airlock.pipeline import audit_bundle, make_release, plan_release, tell_holder, train_openly
from tests.faults.plants import noise_over


def config(**changes: Any) -> airlock.ReleaseConfig:
    table = {"channel": "weights", "data": "digits", "epsilon": 3.0, "delta": 1e-4, "settings": {"steps": 3}}
    return from_table({**table, **changes})


class Unproven(Gaussian):
    """The same training under a name whose proof is missing."""

    method = "unproven"
    status = "claimed"
    unproven = "Its noise has no proof."
    sound_method = "gaussian"


@pytest.fixture
def unproven_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods.METHODS["weights"], "unproven", "tests.test_pipeline:Unproven")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One bundle; who changes it works on a copy."""
    folder = tmp_path_factory.mktemp("released")
    make_release(config(), folder / "bundle", insecure_seed=1, vault=folder / "vault")
    return folder / "bundle"


@pytest.fixture
def made(released: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released, tmp_path / "made"))


def test_three_lines_of_python_make_a_verified_bundle(tmp_path: Path) -> None:
    outcome = airlock.make_release(config(), tmp_path / "bundle", insecure_seed=1)
    verdict = airlock.verify_bundle(tmp_path / "bundle")
    assert verdict.ok, verdict
    assert outcome.bundle.card.guarantee.epsilon == outcome.release.guarantee.epsilon <= 3.0
    assert outcome.bundle.card.noise_made_on == outcome.release.noise_made_on == ("cpu",)


def test_the_same_seeds_give_the_same_weights(made: Path, tmp_path: Path) -> None:
    make_release(config(), tmp_path / "again", insecure_seed=1)
    assert (made / "model.safetensors").read_bytes() == (tmp_path / "again/model.safetensors").read_bytes()


def test_per_record_scores_go_to_the_vault_and_not_into_the_bundle(made: Path, released: Path) -> None:
    vault = released.with_name("vault")
    stored = list((vault / bundle.read(made).card.release_id).glob("attack-scores*"))
    assert len(stored) == 1
    (made / "harmless.bin").write_bytes(stored[0].read_bytes())
    verdict = verify(made, vault=Vault.open(vault))
    assert not verdict.ok
    assert any("vault" in check.says and check.outcome == "failed" for check in verdict.checks)


def test_an_unproven_method_is_refused_without_acceptance(tmp_path: Path, unproven_method: None) -> None:
    with pytest.raises(Refused, match=r"Its noise has no proof.*gaussian"):
        make_release(config(method="unproven"), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_an_accepted_unproven_release_says_so_first(tmp_path: Path, unproven_method: None) -> None:
    outcome = make_release(config(method="unproven"), tmp_path / "bundle", accept_unproven=True)
    assert "not proven" in outcome.bundle.card.headline.lower()
    assert verify(tmp_path / "bundle").ok


def test_other_releases_from_the_same_data_add_up(made: Path, tmp_path: Path) -> None:
    second = make_release(config(), tmp_path / "second", composes_with=[made])
    total = second.bundle.card.total
    assert len(total.releases) == 1
    assert total.epsilon is not None
    assert 3.0 < total.epsilon < 6.0
    assert verify(tmp_path / "second").ok


def test_a_tampered_earlier_bundle_is_not_composed_with(made: Path, tmp_path: Path) -> None:
    card = json.loads((made / "card.json").read_text())
    card["guarantee"]["epsilon"] = 0.1
    (made / "card.json").write_text(json.dumps(card))
    with pytest.raises(airlock.AirlockError):
        make_release(config(), tmp_path / "second", composes_with=[made])


def test_an_existing_folder_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/thesis.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(OutputError):
            make_release(config(settings={"steps": 10**6}), tmp_path / "bundle", force=force)
    assert (tmp_path / "bundle/thesis.txt").read_text() == "mine"


def test_a_large_delta_is_warned_about(tmp_path: Path) -> None:
    with pytest.warns(AirlockWarning, match="delta"):
        plan_release(config(delta=0.01))


def test_ctrl_c_leaves_a_checkpoint_and_resume_ends_in_the_same_bits(tmp_path: Path) -> None:
    import os
    import signal

    def press(label: str, done: int, total: int) -> None:
        if done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    asked = config(settings={"steps": 4})
    make_release(asked, tmp_path / "whole", insecure_seed=5)
    with pytest.raises(Interrupted, match="--resume"):
        make_release(asked, tmp_path / "bundle", insecure_seed=5, progress=press)
    assert not (tmp_path / "bundle").exists()
    steps: list[int] = []
    make_release(
        asked, tmp_path / "bundle", insecure_seed=5, resume=True, progress=lambda _, done, total: steps.append(done)
    )
    assert steps == [3, 4]
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "bundle/model.safetensors").read_bytes()


def without_half(records: Records) -> Records:
    return records.take(np.arange(len(records) // 2))


CHANGES: dict[str, Callable[[Split], Split]] = {
    "half of the private records": lambda split: replace(split, private=without_half(split.private)),
    "one record more": lambda split: replace(
        split, private=Records(*(np.concatenate([a, a[:1]]) for a in (split.private.x, split.private.y)))
    ),
    "another order": lambda split: replace(split, private=split.private.take(np.arange(len(split.private))[::-1])),
    "another label": lambda split: replace(split, test=Records(split.test.x, (split.test.y + 1) % 10)),
    "half of the holdout": lambda split: replace(split, holdout=without_half(split.holdout)),
}


def press(label: str, done: int, total: int) -> None:
    """Ctrl-C at the second step."""
    if done == 2:
        os.kill(os.getpid(), signal.SIGINT)


def test_a_run_goes_on_with_its_own_records_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As found: interrupted, half of the records removed, and `--resume` made a sound bundle."""

    def never(label: str, done: int, total: int) -> None:
        raise AssertionError("a step was made")

    asked, whole, loads = config(settings={"steps": 4}), tmp_path / "bundle", airlock.pipeline._load
    with pytest.raises(Interrupted):
        make_release(asked, whole, insecure_seed=5, progress=press)
    for change in CHANGES.values():
        with monkeypatch.context() as patch:
            patch.setattr("airlock.pipeline._load", lambda *told, change=change: change(loads(*told)))
            with pytest.raises(TrainingError, match="the records that this run began with, found others"):
                make_release(asked, whole, insecure_seed=5, resume=True, progress=never)
    checkpoints = Vault.open().root / "checkpoints"
    (file,) = checkpoints.glob("*.records")
    assert {path.stat().st_mode & 0o777 for path in (file, Vault.open().root / "records.key")} == {0o600}
    kept = file.read_text()
    file.unlink()  # as an earlier version left it
    with pytest.raises(TrainingError, match="without a fingerprint"):
        make_release(asked, whole, insecure_seed=5, resume=True, progress=never)
    file.write_text(kept)
    make_release(asked, whole, insecure_seed=5, resume=True)
    assert not list(checkpoints.iterdir())
    make_release(asked, tmp_path / "again", insecure_seed=5, resume=True)  # there is nothing to go on from
    assert (whole / "model.safetensors").read_bytes() == (tmp_path / "again/model.safetensors").read_bytes()


def test_a_new_start_leaves_nothing_of_other_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As found: a checkpoint of all records, a start with half of them that was killed, and `--resume` went on."""
    asked, loads = config(settings={"steps": 4}), airlock.pipeline._load
    with pytest.raises(Interrupted):
        make_release(asked, tmp_path / "all", insecure_seed=5, progress=press)
    half = CHANGES["half of the private records"]
    monkeypatch.setattr("airlock.pipeline._load", lambda *told: half(loads(*told)))
    with monkeypatch.context() as patch:
        patch.setattr("airlock.pipeline._attacked", None)  # as if it were killed there: nothing is tidied up
        with pytest.raises(TypeError):
            make_release(asked, tmp_path / "half", insecure_seed=5, again=True)
    resumed, fresh = tmp_path / "resumed", tmp_path / "fresh"
    make_release(asked, resumed, insecure_seed=5, resume=True)
    make_release(asked, fresh, insecure_seed=5)
    assert (resumed / "model.safetensors").read_bytes() == (fresh / "model.safetensors").read_bytes()


def test_an_interrupted_run_is_neither_lost_nor_repeated_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = config(settings={"steps": 4})
    with pytest.raises(Interrupted):
        make_release(asked, tmp_path / "first", insecure_seed=5, progress=press)
    with monkeypatch.context() as patch:
        patch.setattr("airlock.data.load", None)
        with pytest.raises(Refused, match="unfinished run of the same config") as told:
            make_release(asked, tmp_path / "first", insecure_seed=5)
        assert "4" not in str(told.value), "it says neither how far it came nor with what"
        with pytest.raises(ConfigError, match="either --resume or --again"):
            make_release(asked, tmp_path / "first", insecure_seed=5, resume=True, again=True)
    make_release(asked, tmp_path / "first", insecure_seed=5, resume=True)
    make_release(asked, tmp_path / "second", insecure_seed=5)


def test_earlier_releases_are_checked_against_the_vault_that_is_given(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def refuse(folder: Path, vault: Vault) -> None:
        asked.append(vault.root)
        raise Refused("a bundle that verifies", "another")

    monkeypatch.setattr("airlock.pipeline.read_verified", refuse)
    with pytest.raises(Refused):
        make_release(config(), tmp_path / "second", composes_with=[made], vault=tmp_path / "vault")
    assert asked == [tmp_path / "vault"]


def test_training_openly_is_better_and_stays_here() -> None:
    result = train_openly(config())
    assert result.accuracy > 0.95
    assert 0 <= result.auc <= 1


def test_onnx_and_torch_agree_on_real_records(tmp_path: Path) -> None:
    import onnxruntime

    outcome = make_release(config(settings={"steps": 10}), tmp_path / "bundle")
    session = onnxruntime.InferenceSession(tmp_path / "bundle/model.onnx", providers=["CPUExecutionProvider"])
    records: Records = airlock.pipeline.data.load(config()).test  # type: ignore[attr-defined]
    got = session.run(None, {"input": records.x})[0]
    expected = outcome.release.network.net(torch.from_numpy(records.x)).numpy()
    assert np.abs(got - expected).max() < 1e-4


FEW = AuditSettings(shadows=4, epochs=1, queries=1)


def test_an_audit_writes_a_dossier_and_leaves_the_bundle_as_it_was(tmp_path: Path) -> None:
    folder, vault = tmp_path / "bundle", tmp_path / "vault"
    made = make_release(config(), folder, vault=vault, followed="a comparison")
    signed = made.dossier.model_copy(update={"decision": Decision(decision="approve", name="A")})
    page.keep_dossier(Vault.open(vault), signed)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = audit_bundle(folder, FEW, vault=vault)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    after = done.dossier
    assert after == dossier.read(Vault.open(vault), made.dossier.release_id)
    assert len(after.audit.attacks) > len(made.dossier.audit.attacks)
    assert after.decision.decision is None
    same = {"release_id", "guarantee", "utility", "says", "remarks", "inside", "followed"}
    assert {key: getattr(after, key) for key in same} == {key: getattr(made.dossier, key) for key in same}
    assert len(list(done.dossier_page.parent.glob("dossier-*.json"))) == 2
    assert verify(folder, Vault.open(vault), gated=True).ok
    stored = list(vault.glob(f"{after.release_id}-audit-*/attack-scores.safetensors"))
    assert len(stored) == 1
    assert not list((vault / "checkpoints").glob("*audit*"))
    assert not done.refuted


def test_with_an_emptied_vault_an_audit_starts_a_dossier_without_exact_figures(made: Path, tmp_path: Path) -> None:
    done = audit_bundle(made, FEW, vault=tmp_path / "other")
    assert done.dossier.utility.records == 0
    assert done.dossier.audit.attacks
    assert done.dossier.says == done.bundle.card.headline


def test_a_bundle_that_was_changed_is_not_audited(made: Path) -> None:
    (made / "README.md").write_text("other words")
    with pytest.raises(Refused):
        audit_bundle(made, FEW)


def test_an_audit_wants_the_very_records(made: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "other.npz", x=rng.random((300, 5), np.float32), y=rng.integers(0, 2, 300))
    with pytest.raises(ConfigError, match="records that this release came from"):
        audit_bundle(
            made,
            FEW,
            overrides={"data.source": str(tmp_path / "other.npz"), "data.classes": 2, "data.records": 300},
        )


@pytest.mark.parametrize(("channel", "method", "few"), [("weights", "head", {"steps": 5}), ("twin", "sharded", {})])
def test_a_head_on_a_front_end_is_audited_as_what_it_is(
    channel: str, method: str, few: dict[str, int], tmp_path: Path
) -> None:
    made = config(channel=channel, method=method, epsilon=8.0, settings={"features": "pixels", **few})
    make_release(made, tmp_path / "bundle", vault=tmp_path / "vault")
    done = audit_bundle(tmp_path / "bundle", FEW.model_copy(update={"like": "release"}), vault=tmp_path / "vault")
    assert {"LiRA, online", "gradient norm"} <= {attack.name for attack in done.dossier.audit.attacks}


def own_data(folder: Path, rows: int = 300) -> dict[str, Any]:
    """Digits as a file of one's own, with a declared class that no record has and a record with NaN."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    x[7, 0] = np.nan
    np.savez(folder / "own.npz", x=x[:rows], y=y[:rows])
    return {"source": str(folder / "own.npz"), "classes": [*"0123456789", "none"], "records": rows}


def test_what_the_holder_should_know_is_on_the_terminal_and_in_the_vault_alone(tmp_path: Path) -> None:
    with pytest.warns(AirlockWarning) as warned:
        made = make_release(config(data=own_data(tmp_path)), tmp_path / "out", vault=tmp_path / "vault")
    told = [str(warning.message) for warning in warned if warning.category is AirlockWarning]
    assert any("1 record of" in remark and "(row 8)" in remark for remark in told)
    assert any("No private record of 'none'" in remark for remark in told)
    [kept] = (tmp_path / "vault").glob("*/remarks.json")
    assert json.loads(kept.read_text()) == told
    for file in (tmp_path / "out").rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert not [remark for remark in (*told, "(row 8)", "No private record") if remark.encode() in content], file
    assert "(row 8)" not in repr(made)
    assert verify(tmp_path / "out").ok


def test_remarks_never_become_errors() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        tell_holder(["row 3"])
    assert [str(warning.message) for warning in shown] == ["row 3"]
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("ignore")
        tell_holder(["row 3"])
    assert not shown


@pytest.mark.filterwarnings("ignore:There are")
def test_an_older_bundle_of_a_subset_says_what_to_declare(made: Path) -> None:
    """Sizes used to be counted: a bundle of then has a card with another number than is published."""
    with pytest.raises(ConfigError, match=r"1,797 records, as the card says.*1,000 .*--set data\.records=1797"):
        audit_bundle(made, overrides={"data.records": 1000})


@pytest.mark.parametrize("error", [DataError("scores that are numbers", "NaN"), ZeroDivisionError("division by zero")])
def test_an_attack_that_cannot_be_made_ends_no_release(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attacks look at single records: whether there is a release may not hang on them."""

    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr("airlock.auditing.run", fail)
    with pytest.warns(AirlockWarning, match="The attacks could not be made"):
        make_release(config(), tmp_path / "bundle", vault=tmp_path / "vault")
    assert verify(tmp_path / "bundle").ok
    assert "NaN" not in (tmp_path / "bundle" / "card.json").read_text()


def plain_net(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))


def test_a_network_of_the_users_own_is_tried_in_court_before_a_record_is_read(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = config(net=f"{__name__}:plain_net")
    outcome = make_release(own, tmp_path / "b", insecure_seed=1, vault=tmp_path / "v", court_seconds=1e9)
    (trial,) = outcome.dossier.court
    assert not trial.refuted
    assert trial.error is None
    assert trial.pairs == 200
    assert "made-up records" in trial.what
    kept = Vault.open(released.with_name("vault"))
    assert not dossier.read(kept, bundle.read(released).card.release_id).court  # a network of the house is not tried

    noise_over(20.0)(monkeypatch)
    monkeypatch.setattr("airlock.pipeline._load", None)  # whoever reads a record fails
    with pytest.raises(Refused, match="stands in court.*No record was read"):
        make_release(own, tmp_path / "d", insecure_seed=1, vault=tmp_path / "v", court_seconds=1e9)
    assert not (tmp_path / "d").exists()


def test_a_bundle_of_an_earlier_format_is_replaced_if_asked(made: Path, tmp_path: Path) -> None:
    card = json.loads((made / "card.json").read_text())
    (made / "card.json").write_text(json.dumps({**card, "schema_version": 5}))
    (made / "audit.json").write_text("{}")
    bundle.check_output(made, force=True)
    (made / "notes.txt").write_text("mine")
    with pytest.raises(OutputError):
        bundle.check_output(made, force=True)
