"""A release of features by the channel itself: attacked with what it keeps, and its front end opened again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from airlock import auditing, data, methods
from airlock.auditing import required_attacks
from airlock.auditing.attacks.invert import InvertSettings
from airlock.auditing.features.attack import NO_POOL, QUICK
from airlock.auditing.features.release import attack_features
from airlock.bundle.verify import verify
from airlock.config import ReleaseConfig, from_table
from airlock.data import Split
from airlock.errors import FormatError
from airlock.mechanisms import Randomness
from airlock.methods import FeatureSet, Release
from airlock.methods.features.extracting import Extracting
from airlock.pipeline import audit_bundle, make_release
from airlock.training import Run
from airlock.training.outcomes import Outcomes

SETTINGS = {
    "published": {"layers": 2, "channels": 4, "format": "npz"},
    "noised": {"layers": 1, "project": 8, "format": "npz"},
}
FAST = QUICK.model_copy(
    update={
        "known": 100,
        "images": 50,
        "attribute_steps": 5,
        "invert": InvertSettings(steps=3, variation=(0.01,), restarts=0),
    }
)


def asked(method: str) -> ReleaseConfig:
    return from_table(
        {
            "channel": "features", "method": method, "data": "digits", "epsilon": 8.0, "delta": 1e-4,
            "settings": {"front": "residual"} | SETTINGS[method], "split": {"test": 0.2, "holdout": 0.2},
        }
    )  # fmt: skip


@pytest.fixture(scope="module", params=SETTINGS)
def released(request: pytest.FixtureRequest) -> tuple[ReleaseConfig, Release, Split]:
    config = asked(request.param)
    split = data.load(config)
    channel = methods.build(config, data.describe(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Extracting, "usefulness", lambda *_: Outcomes(np.array([0, 1]), np.array([0, 0])))
        return config, channel.release(split, Randomness.make(0, 1), Run()), split


def test_every_fitting_attack_is_made_at_a_release(
    released: tuple[ReleaseConfig, Release, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, release, split = released
    monkeypatch.setattr("airlock.auditing.features.release.QUICK", FAST)
    found, secrets = auditing.run(release, split, config.split, 0)
    assert found.features is not None
    made = (*found.attacks, *found.features.reconstructions)
    assert required_attacks.missing("features", made) == ()
    assert set(secrets) == {"attack-scores", "contact-sheet"}
    published = config.method == "published"
    assert found.features.found_by_lookup == published
    assert (found.attacks[0].value > 0.9) == published
    assert (found.features.identification is not None) == published
    assert (NO_POOL in found.not_tested) != published
    if found.features.identification is not None:
        assert found.features.identification.candidates > 1
        assert found.features.identification.net_right[-1]


def test_the_vault_is_enough_to_open_the_front_end_again(released: tuple[ReleaseConfig, Release, Split]) -> None:
    config, release, split = released
    features = release.artefact
    assert isinstance(features, FeatureSet)
    assert features.front is not None
    kept = methods.find(config).kept_front_end(release.secrets)
    again = kept.reopened(split.facts)
    x = torch.rand(3, *split.facts.shape)
    assert torch.allclose(again(x), features.front(x), atol=1e-6)
    assert kept.projects == (config.method == "noised")  # type: ignore[attr-defined]
    bare = replace(features, front=None)
    first, second = (attack_features(one, kept, 1e-4, split, config.split, 0, FAST)[0] for one in (features, bare))
    assert first.attacks[0].value == pytest.approx(second.attacks[0].value, abs=1e-3)


def test_a_bundle_is_released_audited_and_still_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_VAULT", str(tmp_path / "vault"))
    monkeypatch.setattr(Extracting, "usefulness", lambda *_: Outcomes(np.array([0, 1]), np.array([0, 0])))
    monkeypatch.setattr("airlock.auditing.features.release.QUICK", FAST)
    monkeypatch.setattr(
        "airlock.auditing.required_attacks.FeatureAttackSettings", lambda **_: FAST.model_copy(update={"shown": 2})
    )
    made = make_release(asked("published"), tmp_path / "bundle", accept_unproven=True, insecure_seed=1)
    card = made.bundle.card
    assert "nothing hides that a record was used" in " ".join(made.dossier.on_features)
    assert "residual" not in card.to_json()  # the front end's name stays inside, whatever the attacks found
    assert required_attacks.missing("features", made.dossier.audit.made) == ()
    before = {path.name: path.read_bytes() for path in (tmp_path / "bundle").iterdir()}
    again = audit_bundle(tmp_path / "bundle").dossier
    assert {path.name: path.read_bytes() for path in (tmp_path / "bundle").iterdir()} == before
    assert again.audit.features is not None
    assert again.audit.features.identification is not None
    assert again.audit.attacks[0].value > 0.99
    assert again.sheet != made.dossier.sheet
    assert [check.says for check in verify(tmp_path / "bundle").checks if check.outcome == "failed"] == []


def test_other_arrays_are_refused(released: tuple[ReleaseConfig, Release, Split]) -> None:
    config, release, split = released
    method = methods.find(config)
    with pytest.raises(FormatError, match="keeps in the vault"):
        method.kept_front_end({"teachers": {}})
    wrong = {**release.secrets, "front": {k: v[..., :1] for k, v in release.secrets["front"].items() if v.ndim}}
    with pytest.raises(FormatError):
        method.kept_front_end(wrong).reopened(split.facts)
    broken = {**release.secrets, "choices": {**release.secrets["choices"], "settings": np.zeros(3, np.uint8)}}
    with pytest.raises(FormatError, match="keeps in the vault"):
        method.kept_front_end(broken)
