"""Columns that are withheld: what a model remembers of a row is told apart from what any other rows teach."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from airlock.auditing import Audit, AuditSettings, required_attacks
from airlock.auditing.attacks.attribute_of_model import _told, imputation, infer, infer_share, withheld
from airlock.auditing.members import AttackSet
from airlock.auditing.one_run_audit import Game
from airlock.auditing.run import OF_GROUPS
from airlock.auditing.target import Target
from airlock.bundle.rendering.text import write_on_columns
from airlock.config import Column, SplitConfig
from airlock.data import Facts, Records, Split, joined
from airlock.errors import ConfigError, DataError
from airlock.nets import create
from airlock.training import PlainGradients, Recipe, Resident, Run, Shuffled, fit

COLUMNS = (
    ("age", Column(min=0, max=100)),
    ("blood", Column(categories=("a", "b", "c"))),
    ("smokes", Column(categories=("no", "yes"))),
    *((f"test {i}", Column(min=0, max=1)) for i in range(12)),
)
FACTS = Facts("ward", (18,), ("well", "ill"), 1000, None, "made up", columns=COLUMNS)
CPU = torch.device("cpu")


def rows(count: int, seed: int, depends: float = 0.0) -> Records:
    """Random rows with random labels; `smokes` follows the age in this share of them."""
    chance = np.random.default_rng(seed)
    age, blood = chance.random(count), chance.integers(0, 3, count)
    smokes = np.where(chance.random(count) < depends, age > 0.5, chance.random(count) < 0.5).astype(int)
    x = np.concatenate([age[:, None], np.eye(3)[blood], np.eye(2)[smokes], chance.random((count, 12))], 1)
    return Records(x.astype(np.float32), chance.integers(0, 2, count))


def game(members: Records, others: Records) -> AttackSet:
    return AttackSet(members, others, members, np.empty(0, np.int64), Game.of_nobody(len(members), len(others)))


def trained(records: Records, epochs: int) -> Target:
    net = create("mlp", (18,), 2, 0)
    recipe = Recipe(steps=max(1, epochs * len(records) // 32), optimiser="adam", learning_rate=2e-3)
    fit(net, Resident(records, CPU), Shuffled(32, 0), PlainGradients(), recipe, 0, Run(CPU))
    return Target(net.eval(), lambda i: create("mlp", (18,), 2, i), FACTS.classes, 1e-5)


def test_a_column_is_found_where_it_is_encoded_and_its_values_are_told() -> None:
    known = rows(200, 0)
    blood, age = withheld("blood", FACTS, known), withheld("age", FACTS, known)
    assert blood.places.tolist() == [1, 2, 3]
    assert (blood.of(known.x) == known.x[:, 1:4].argmax(1)).all()
    assert age.cut == pytest.approx(np.median(known.x[:, 0]))
    assert abs(age.of(known.x).mean() - 0.5) < 0.01
    filled = blood.filled(known, 2)
    assert (blood.of(filled.x) == 2).all()
    assert (blood.without(filled.x) == blood.without(known.x)).all()
    assert blood.without(known.x).shape == (200, 15)
    bare = replace(FACTS, columns=())
    assert withheld("column 4", bare, known).values.tolist() == [[0.0], [1.0]]
    assert withheld("column 0", bare, known).cut is not None
    for name in ("height", "column 18", "column x"):
        with pytest.raises(ConfigError, match="a column of the table"):
            withheld(name, FACTS, known)


def test_the_imputation_learns_what_columns_say_about_each_other() -> None:
    known, fresh = rows(600, 1, depends=0.9), rows(400, 2, depends=0.9)
    column = withheld("smokes", FACTS, known)
    guess = imputation(column, known, 2, 0)(column.without(fresh.x), fresh.y).argmax(1)
    assert (guess == column.of(fresh.x)).mean() > 0.85


class ByHeart(nn.Module):
    """Certain of the label of rows that it knows, and of nothing else."""

    def __init__(self, members: Records) -> None:
        super().__init__()
        self.own, self.labels = torch.from_numpy(members.x), torch.from_numpy(members.y)
        self.never_used = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        apart, place = torch.cdist(x, self.own).min(1)
        sure = 9.0 * (apart < 0.1).float()
        return sure[:, None] * nn.functional.one_hot(self.labels[place], 2)


def test_a_model_that_knows_its_rows_by_heart_tells_of_members_alone() -> None:
    members, others, known = rows(150, 3), rows(150, 4), rows(200, 5)
    column = withheld("smokes", FACTS, known)
    target = Target(ByHeart(members), lambda i: create("linear", (18,), 2, i), FACTS.classes, 1e-5)
    found = infer(target, column, game(members, others), known, 2, 0, Run(CPU))
    assert found.value > 0.8 > 0.65 > found.others
    assert found.gain_low > 0
    assert abs(found.blind - 0.5) < 0.15
    assert found.apart_low > 0
    assert found.low <= found.value <= found.high


def test_a_model_of_other_rows_tells_nothing_and_what_columns_say_is_no_gain() -> None:
    members, others, known = (rows(300, seed, depends=0.9) for seed in (6, 7, 8))
    column = withheld("smokes", FACTS, known)
    found = infer(trained(rows(300, 9, depends=0.9), 20), column, game(members, others), known, 20, 0, Run(CPU))
    assert found.blind > 0.85
    assert found.gain_low <= 0
    assert found.apart_low <= 0 <= found.apart_high


def test_a_column_of_one_value_is_not_guessed() -> None:
    same = Records(np.ones((60, 18), np.float32), np.arange(60) % 2)
    column = withheld("column 3", replace(FACTS, columns=()), same)
    target = Target(nn.Identity(), lambda i: create("linear", (18,), 2, i), FACTS.classes, 1e-5)
    with pytest.raises(DataError, match="two values in 'column 3'"):
        infer(target, column, game(same, same), same, 1, 0, Run(CPU))


def test_what_is_for_networks_is_refused_elsewhere() -> None:
    split = Split(FACTS, *[rows(3, 0)] * 4)
    method = required_attacks.methods.named("answers/votes")
    for settings in (AuditSettings(attributes=("age",)), AuditSettings(worst_case=8)):
        given = required_attacks.Situation(method, lambda: {}, 1e-5, split, SplitConfig(), 0, settings)
        with pytest.raises(ConfigError, match="a bundle of a network"):
            required_attacks.attack_artefact(SimpleNamespace(kind="interface"), given)  # type: ignore[arg-type]


def test_people_count_once() -> None:
    members, others, known = rows(120, 3), rows(120, 4), rows(100, 5)
    by_person = [Records(side.x, side.y, np.arange(120) // 3) for side in (members, others)]
    found = infer(trained(members, 1), withheld("smokes", FACTS, known), game(*by_person), known, 1, 0, Run(CPU))
    assert found.records == 40


def test_a_share_shows_where_the_label_depends_on_the_value_and_else_hardly() -> None:
    known = rows(400, 10)
    column = withheld("smokes", FACTS, known)
    tells = Records(known.x, column.of(known.x) ^ (np.random.default_rng(0).random(400) < 0.1).astype(np.int64))
    target = Target(nn.Identity(), lambda i: create("linear", (18,), 2, i), FACTS.classes, 1e-5)
    found = infer_share(target, column, tells, 32, 20, 0, Run(CPU))
    assert found.models == 16
    assert found.value > 0.85
    assert found.low > 0.5
    few = Records(known.x[:20], known.y[:20])
    with pytest.raises(DataError, match="at least 40 test records"):
        infer_share(target, column, few, 32, 1, 0, Run(CPU))


def test_two_worlds_without_a_difference_are_told_apart_by_chance() -> None:
    chance, world = np.random.default_rng(1), np.arange(400) % 2
    right = _told(chance.normal(size=(400, 6)), world, chance.normal(size=(400, 6))) == world
    assert abs(right.mean() - 0.5) < 0.1


def test_an_audit_says_it_in_sentences_and_refuses_what_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    every = rows(900, 11, depends=0.5)
    parts = [every.take(np.arange(i, 900, 3)) for i in range(3)]
    facts = replace(FACTS, records=900)
    split = Split(facts, parts[0], every.take(np.arange(0)), parts[1], parts[2])
    target = trained(parts[0], 3)
    settings = AuditSettings(attributes=("smokes", "blood"), epochs=2, shadows=8)
    given = required_attacks.Situation(
        required_attacks.methods.named("weights/gaussian"), lambda: {}, 1e-5, split,
        SplitConfig(test=0.33, holdout=0.33), 0, settings, Run(CPU),
    )  # fmt: skip
    monkeypatch.setattr(
        required_attacks, "_network_attacks", lambda network, given: (Audit((), (OF_GROUPS, "more")), {})
    )
    network = SimpleNamespace(net=target.net, net_name="mlp", input_shape=(18,), classes=facts.classes, outputs=2)
    audit, _ = required_attacks._attack_network(network, given)  # type: ignore[arg-type]
    assert [one.attribute for one in audit.attributes] == ["smokes", "blood"]
    assert [one.attribute for one in audit.properties] == ["smokes", "blood"]
    lines = write_on_columns(audit)
    assert len(lines) == 4
    assert audit.not_tested == ("more",)
    assert "by imputation from 300 other rows" in lines[0]
    assert set(audit.to_dict()) >= {"attributes", "properties"}
    few = replace(given, split=replace(split, test=joined(parts[1].take(np.arange(10)), parts[1].take(np.arange(5)))))
    audit, _ = required_attacks._attack_network(network, few)  # type: ignore[arg-type]
    assert not audit.attributes
    assert audit.not_tested[:2] == (OF_GROUPS, "more")
    assert "40 test records" in audit.not_tested[2]
    pictures = replace(given, split=replace(split, facts=replace(facts, shape=(1, 3, 6), columns=())))
    with pytest.raises(ConfigError, match="a classifier of rows"):
        required_attacks._attack_network(network, pictures)  # type: ignore[arg-type]
