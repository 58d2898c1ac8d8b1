"""Which attacks are made on what, with whom, and what is said about those that are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from airlock import methods
from airlock.auditing import AuditSettings, Scores, Target, attack, required_attacks
from airlock.auditing.run import UNLIKE, _kinds, _mark, _plain, _try, draw
from airlock.config import SplitConfig, from_table, parse
from airlock.data import Records, Split, describe, load
from airlock.errors import ConfigError, DataError, Interrupted
from airlock.nets import create
from airlock.nets.frontend import pixels_linear
from airlock.training import PlainGradients, Recipe, Resident, Run, Shuffled, fit
from airlock.training.ensembles.ray_engine import Ray

HALF = SplitConfig(test=0.2, holdout=0.4)
SMALL = AuditSettings(shadows=4, epochs=3, queries=2)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def split() -> Split:
    return load(
        from_table({"channel": "weights", "data": "digits", "epsilon": 3.0, "delta": 1e-4, "split": vars(HALF)})
    )


def target(split: Split, epochs: int = 1) -> Target:
    """An MLP on flat digits without privacy."""
    net = create("mlp", split.facts.shape, 10, 0)
    steps = epochs * len(split.private) // 32
    recipe = Recipe(steps=steps, optimiser="adam", learning_rate=2e-3)
    fit(net, Resident(split.private, CPU), Shuffled(32, 0), PlainGradients(), recipe, 0, Run(CPU))
    return Target(net.eval(), lambda i: create("mlp", split.facts.shape, 10, i), split.facts.classes, 1e-5)


def few(split: Split, private: int) -> Split:
    """A small private part, which is easy to learn by heart."""
    facts = replace(split.facts, records=round(private / 0.4))
    return replace(split, facts=facts, private=split.private.take(np.arange(private)))


@pytest.fixture(scope="module")
def learned(split: Split) -> tuple[Target, Split]:
    """A network that knows its few records by heart, under random labels."""
    own = few(split, 220)
    labels = np.random.default_rng(0).integers(0, 10, len(own.private)).astype(np.int64)
    own = replace(own, private=Records(own.private.x, labels))
    return target(own, 150), own


def test_members_and_others_are_as_many_and_the_number_is_public(split: Split) -> None:
    attack_set = draw(split, HALF, 0, 10_000)
    assert attack_set is not None
    assert len(attack_set.members) == len(attack_set.others)
    fewer = draw(replace(split, private=split.private.take(np.arange(len(split.private) - 1))), HALF, 0, 10_000)
    assert fewer is not None
    assert len(fewer.members) == len(attack_set.members)
    assert len(attack_set.members) + len(attack_set.rest) == len(split.private)


def test_a_class_that_is_never_public_is_not_taken_for_membership(split: Split) -> None:
    """The private part has three times as many of it as the fractions say; members have not."""
    masked = SplitConfig(public=0.4, test=0.2, holdout=0.2, public_without=("6", "9"))
    table = {"channel": "student", "data": "digits", "epsilon": 3.0, "delta": 1e-4, "split": vars(masked)}
    own = load(from_table(table))
    attack_set = draw(own, masked, 0, 10_000)
    assert attack_set is not None
    private, members, others = (
        np.isin(part.y, (6, 9)).mean() for part in (own.private, attack_set.members, attack_set.others)
    )
    assert private > 0.38
    assert abs(members - others) < 0.08
    assert len(attack_set.members) + len(attack_set.rest) == len(own.private)


def test_a_holdout_that_is_too_small_is_said(split: Split) -> None:
    none = replace(split, holdout=split.holdout.take(np.arange(10)))
    audit, secrets = attack(target(split), none, HALF, 0, SMALL, Run(CPU))
    assert not audit.attacks
    assert "too small" in audit.not_tested[0]
    assert not secrets


def test_every_kind_of_attack_that_fits_weights_is_made(split: Split) -> None:
    audit, secrets = attack(target(split), split, HALF, 0, SMALL, Run(CPU))
    names = {result.name for result in audit.attacks}
    assert {"loss threshold", "gradient norm", "LiRA, online", "RMIA, offline", "shadow models"} <= names
    assert required_attacks.missing("network", audit.attacks) == ()
    assert UNLIKE in audit.not_tested
    count = len(draw(split, HALF, 0, 10_000).members)  # type: ignore[union-attr]
    assert {len(array) for array in secrets["attack-scores"].values()} == {count}


def test_what_a_network_knows_by_heart_is_found(learned: tuple[Target, Split]) -> None:
    audit, _ = attack(learned[0], learned[1], HALF, 0, SMALL.model_copy(update={"shadows": 8, "epochs": 60}), Run(CPU))
    found = {result.name: result for result in audit.attacks}
    for name in ("loss threshold", "gradient norm", "LiRA, online", "RMIA, online"):
        assert found[name].low > 0.7, name


def test_a_head_on_a_public_front_end_has_heads_for_shadows(split: Split) -> None:
    net = pixels_linear(split.facts.shape, 10)
    with torch.no_grad():
        net.head.weight.normal_(0, 0.1)
    made = Target(net.eval(), lambda i: net, split.facts.classes, 1e-5)
    sizes = {tuple(p.shape) for p in made.make(0).parameters()}
    assert sizes == {tuple(net.head.weight.shape)}
    assert made.embed(split.test).x.shape == (len(split.test), net.head.in_features)
    assert {name for name, p in made.trained.named_parameters() if p.requires_grad} == {"head.weight"}
    audit, _ = attack(made, split, HALF, 0, SMALL, Run(CPU))
    assert required_attacks.missing("network", audit.attacks) == ()


def test_an_attack_that_the_records_do_not_allow_is_told(split: Split) -> None:
    classless = replace(split, test=split.test.take(np.flatnonzero(split.test.y < 5)))
    audit, _ = attack(target(split), classless, HALF, 0, SMALL, Run(CPU))
    assert "shadow models" not in {result.name for result in audit.attacks}
    assert any("could not be made" in line and "class" in line for line in audit.not_tested)


def test_an_attack_that_is_not_made_tells_nothing_about_the_records() -> None:
    def work() -> list[Scores]:
        raise DataError("records of another kind", "17 of them with a secret")

    untested: list[str] = []
    _try(work, [], untested)
    assert untested == ["An attack that could not be made here: it needs records of another kind."]


def test_how_records_are_altered_follows_from_the_others_alone(split: Split) -> None:
    bits = Records(np.zeros((60, 5), np.float32), np.zeros(60, np.int64))
    assert _kinds(bits) == ("flip",)
    assert _kinds(Records(bits.x + 0.5, bits.y)) == ("noise",)
    assert _kinds(split.holdout) == ("shift", "noise")


def test_shadows_by_the_method_itself(split: Split) -> None:
    table: dict[str, Any] = {"channel": "weights", "data": "digits", "epsilon": 3.0, "delta": 1e-4}
    config = from_table({**table, "split": vars(HALF), "settings": {"steps": 2}})
    channel = methods.build(config, describe(config))
    audit, _ = attack(target(split), split, HALF, 0, SMALL.model_copy(update={"like": "release"}), Run(CPU), channel)
    assert "LiRA, online" in {result.name for result in audit.attacks}
    assert UNLIKE not in audit.not_tested


def test_an_interrupted_audit_goes_on_where_it_was(split: Split, tmp_path: Path) -> None:
    own, calls = target(split), {"shadow": 0}

    def stop(label: str, done: int, steps: int) -> None:
        if label == "training attack models":
            raise Interrupted("to finish", "Ctrl-C")
        calls["shadow"] += label == "training shadow models"

    with pytest.raises(Interrupted):
        attack(own, split, HALF, 0, SMALL, Run(CPU, stop, tmp_path))
    assert calls["shadow"] > 0
    seen: list[str] = []
    again = Run(CPU, lambda label, done, steps: seen.append(label), tmp_path, resume=True)
    resumed, _ = attack(own, split, HALF, 0, SMALL, again)
    assert "training shadow models" not in seen
    whole, _ = attack(own, split, HALF, 0, SMALL, Run(CPU))
    assert resumed == whole


@pytest.mark.parametrize(("key", "value"), [("shadows", 5), ("shadows", 2), ("like", "noise"), ("engine", "dask")])
def test_bad_settings_are_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError):
        parse(AuditSettings, {key: value})


def test_shadow_models_may_share_a_gpu_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they are does not change with it: an audit that was interrupted goes on."""
    seen: list[object] = []
    monkeypatch.setitem(_plain.__globals__, "train_shadows", lambda *told, engine, **how: seen.append(engine))
    one: Any = SimpleNamespace(make=None, learning_rate=0.1, loss=None)
    pool = Records(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))
    inside, shared = np.ones((4, 4), bool), AuditSettings(engine="ray", gpus=0.25)
    _plain(one, pool, inside, shared, 0, Run())
    assert seen == [Ray(gpus=0.25)]
    alone = AuditSettings()
    assert _mark(shared, 0, pool, inside) == _mark(alone, 0, pool, inside)
    with pytest.raises(ValidationError, match='engine = "ray"'):
        AuditSettings(gpus=0.25)
