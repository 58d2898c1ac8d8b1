"""An attack of another package scores records without knowing who is a member; what it finds stays in the dossier."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from airlock.auditing import AuditSettings, Target, attack
from airlock.auditing.attacks import Attack, external, register
from airlock.auditing.attacks.external import OTHERS
from airlock.auditing.bounds import Floats
from airlock.auditing.members import AttackSet, draw
from airlock.auditing.paid_auc import ATTACKS
from airlock.config import SplitConfig, from_table
from airlock.data import Records, Split, load
from airlock.errors import ConfigError
from airlock.nets import create
from airlock.training import Run
from tests.conftest import Plug

HALF = SplitConfig(test=0.2, holdout=0.4)


class Sure(Attack):
    """Whoever the network is sure about was in."""

    name: ClassVar[str] = "sure"

    def score(self, target: Target, records: Records, known: Records, seed: int) -> Floats:
        return target.answers(records).max(1)


@pytest.fixture(scope="module")
def split() -> Split:
    asked = {"channel": "weights", "data": "digits", "epsilon": 3.0, "delta": 1e-4, "split": vars(HALF)}
    return load(from_table(asked))


@pytest.fixture(scope="module")
def attack_set(split: Split) -> AttackSet:
    found = draw(split, HALF, 0, 100)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def target(split: Split) -> Target:
    net = create("linear", split.facts.shape, 10, 0).eval()
    return Target(net, lambda i: create("linear", split.facts.shape, 10, i), split.facts.classes, 1e-5)


def test_scores_come_back_to_the_records_they_belong_to(
    plug: Plug, target: Target, attack_set: AttackSet, split: Split
) -> None:
    plug(OTHERS, "sure", Sure)
    found = external.score("sure", target, attack_set, split.test, 5)
    assert found.members == pytest.approx(target.answers(attack_set.members).max(1), rel=1e-5)
    assert found.others == pytest.approx(target.answers(attack_set.others).max(1), rel=1e-5)
    assert found.name == "sure (other-package 1.0)"


def test_it_is_not_told_who_is_a_member_and_cannot_change_what_it_attacks(
    plug: Plug, target: Target, attack_set: AttackSet, split: Split
) -> None:
    seen = []

    class Greedy(Sure):
        name: ClassVar[str] = "greedy"

        def score(self, target: Target, records: Records, known: Records, seed: int) -> Floats:
            seen.append(records.y.copy())
            records.x[:] = 0
            known.x[:] = 0
            for parameter in target.net.parameters():
                parameter.data.zero_()
            return np.arange(len(records), dtype=np.float64)

    plug(OTHERS, "greedy", Greedy)
    before = target.answers(attack_set.members)
    found = external.score("greedy", target, attack_set, split.test, 5)
    assert (target.answers(attack_set.members) == before).all()
    assert attack_set.pool.x.any()
    assert split.test.x.any()
    assert not (seen[0] == attack_set.pool.y).all()
    place = np.concatenate([found.members, found.others])
    assert (seen[0][place.astype(int)] == attack_set.pool.y).all()


@pytest.mark.parametrize("wrong", [np.zeros(3), np.full(200, np.nan), np.full(200, np.inf), "text", None])
def test_anything_but_a_score_a_record_is_refused(
    plug: Plug, target: Target, attack_set: AttackSet, split: Split, wrong: object
) -> None:
    class Wrong(Sure):
        name: ClassVar[str] = "wrong"

        def score(self, *args: object) -> Floats:
            return wrong  # type: ignore[return-value]

    plug(OTHERS, "wrong", Wrong)
    with pytest.raises(ConfigError, match="attack 'wrong' of other-package 1.0"):
        external.score("wrong", target, attack_set, split.test, 5)


def test_what_it_says_when_it_fails_is_not_repeated(
    plug: Plug, target: Target, attack_set: AttackSet, split: Split
) -> None:
    class Telling(Sure):
        name: ClassVar[str] = "telling"

        def score(self, target: Target, records: Records, known: Records, seed: int) -> Floats:
            raise ValueError(f"the record {records.x[0]} is strange")

    plug(OTHERS, "telling", Telling)
    with pytest.raises(ConfigError, match="found an error in its code .ValueError.") as error:
        external.score("telling", target, attack_set, split.test, 5)
    assert "strange" not in str(error.value)


def test_an_audit_has_it_next_to_the_others_and_says_when_it_could_not_be_made(
    plug: Plug, target: Target, split: Split
) -> None:
    class Failing(Sure):
        name: ClassVar[str] = "failing"

        def score(self, *args: object) -> Floats:
            raise RuntimeError

    plug(OTHERS, "sure", Sure)
    plug(OTHERS, "failing", Failing)
    small = AuditSettings(shadows=4, epochs=1, queries=1, most=100, attacks=("sure", "failing"))
    found, _ = attack(target, split, HALF, 0, small, Run())
    names = [one.name for one in found.attacks]
    assert names[:2] == ["loss threshold", "gradient norm"]
    assert names[-1] == "sure (other-package 1.0)"
    assert any("attack 'failing' of other-package 1.0" in line for line in found.not_tested)
    plain, _ = attack(target, split, HALF, 0, small.model_copy(update={"attacks": ()}), Run())
    assert [one.name for one in plain.attacks] == names[:-1]


def test_no_name_of_another_package_is_paid_for() -> None:
    assert ATTACKS == ("loss threshold", "gradient norm")


def test_what_is_no_attack_is_refused(plug: Plug) -> None:
    with pytest.raises(ConfigError, match="a subclass of airlock.auditing.attacks.Attack named 'sure'"):
        plug(OTHERS, "sure", object)
    with pytest.raises(ConfigError, match="a subclass of airlock.auditing.attacks.Attack named 'other'"):
        plug(OTHERS, "other", Sure)

    class Inside(Sure):
        view: ClassVar = "interface"

    with pytest.raises(ConfigError, match="white-box, black-box, labels"):
        plug(OTHERS, "sure", Inside)


def test_an_unknown_one_may_be_in_a_package_that_is_not_installed() -> None:
    with pytest.raises(ConfigError, match="found 'nothing'.*nstall the package that brings it"):
        external.open_attacks(["nothing"])


def test_a_class_is_registered_under_its_own_name(plug: Plug) -> None:
    plug(OTHERS, "sure", Sure)

    class Again(Sure):
        pass

    with pytest.raises(ConfigError, match="no other attack has"):
        register(Again)
    assert external.others() == ("sure",)
