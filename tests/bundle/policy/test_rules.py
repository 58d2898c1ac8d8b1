"""Every rule of a policy: kept, violated with what was found and what is allowed, and never kept by not looking."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from airlock.accounting import Claim, PrivacyFilter
from airlock.auditing import Audit
from airlock.auditing.result import Findings
from airlock.bundle import Card, Dossier, make_card, weigh
from airlock.bundle.dossier import make as make_dossier
from airlock.bundle.policy import RULES, Evidence, Finding, Policy, judge
from airlock.bundle.schema import LifetimeBudget
from airlock.bundle.signing.envelope import Approval
from airlock.bundle.signing.signatures import Endorsement, Signatures, State
from airlock.config import ReleaseConfig, parse
from airlock.methods.contract import Release
from tests.bundle.conftest import ATTACK, AUDIT, CONFIG, FACTS, INSIDE, guarantee, make_release, noise
from tests.bundle.test_feature_card import INVERTED

HOLDER, REVIEWER, STRANGER = "a1" * 32, "b2" * 32, "c3" * 32
# Keys that are no limit: they decide what is among the cautions.
CAUTIONS = {
    "privacy_parameters.epsilon_caution",
    "algorithms_and_correctness.non_members_caution",
    "trust_models.assumptions_in_full",
}


def signatures(
    signer: str | None = HOLDER, approver: str | None = REVIEWER, decision: str = "approve", state: State = "known"
) -> Signatures:
    table = {"release_id": "0" * 32, "decision": decision, "name": "Ada", "date": "2026-03-09"}
    decided = Approval.model_validate(table | ({"conditions": "Only here."} if decision == "conditions" else {}))
    none = Endorsement("none", "Nobody.")
    return Signatures(
        none if signer is None else Endorsement(state, "Signed.", "the holder", signer, state == "known"),
        none
        if approver is None
        else Endorsement(state, "Decided.", "Ada", approver, state == "known", approval=decided),
    )


def limits(key: str, value: object) -> Policy:
    section, _, name = key.partition(".")
    return parse(Policy, {section: {name: value}})


def found(given: Evidence, policy: Policy, key: str) -> list[Finding]:
    return [one for one in judge(given, policy) if one.rule == key]


@cache
def evidence() -> Evidence:
    """A proven release, attacked, signed and approved."""
    card = made()
    return Evidence(card, make_dossier(card, make_release(guarantee()), AUDIT), signatures(), True)


@pytest.fixture
def given() -> Evidence:
    return evidence()


def made(release: Release | None = None, config: ReleaseConfig = CONFIG, **promise: Any) -> Card:
    return make_card(config, FACTS, release or make_release(guarantee(**promise)), noise())


# The rule, a value that the release keeps, one that it violates, what was found, and what is allowed.
CASES: tuple[tuple[str, Any, Any, str, str], ...] = (
    ("privacy_parameters.status", ["proven"], ["claimed"], "proven", "claimed"),
    ("privacy_parameters.epsilon", 2.4, 2.3, "2.37", "at most 2.3"),
    ("privacy_parameters.delta", 1e-4, 9e-5, "1e-4", "at most 9e-5"),
    ("privacy_parameters.delta_times_records", 0.2, 0.1, "0.18", "below 0.1"),
    ("privacy_parameters.total_epsilon", 2.4, 2.3, "2.37", "at most 2.3"),
    ("unit_of_privacy.units", ["record"], ["person"], "record", "person"),
    ("unit_of_privacy.relations", ["add-remove"], ["replace-one"], "add-remove", "replace-one"),
    ("algorithms_and_correctness.channels", ["weights"], ["answers", "twin"], "weights", "answers or twin"),
    ("algorithms_and_correctness.methods", ["weights/gaussian"], ["weights/head"], "weights/gaussian", "weights/head"),
    ("algorithms_and_correctness.auc", 0.57, 0.55, "up to 0.569", "at most 0.55"),
    ("algorithms_and_correctness.advantage", 0.08, 0.07, "up to 0.080", "at most 0.07"),
    ("algorithms_and_correctness.non_members", 1750, 1751, "1,750", "at least 1,751"),
    (
        "algorithms_and_correctness.required_attacks",
        {"network": ["membership/white-box", "loss threshold"]},
        {"network": ["membership/labels"]},
        "none",
        "membership inference by someone who sees the predicted classes alone (labels)",
    ),
    (
        "trust_models.unacceptable_assumptions",
        ["no such words"],
        ["EACH STEP DREW"],
        "'EACH STEP DREW'",
        "no such assumption",
    ),
    ("side_channels.noise_made_on", ["cpu"], ["gpu"], "cpu", "gpu"),
    ("access_control.signers", [HOLDER, STRANGER], [REVIEWER], f"the holder ({HOLDER})", REVIEWER),
    ("access_control.approvers", [REVIEWER], [HOLDER], f"Ada ({REVIEWER})", HOLDER),
    ("data_collection_exposure.records", 1797, 1798, "1,797", "at least 1,798"),
)


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_limit_is_kept_or_violated(case: tuple[str, Any, Any, str, str]) -> None:
    is_kept_or_violated(*case)


def is_kept_or_violated(key: str, kept: object, violated: object, what: str, allowed: str) -> None:
    given = evidence()
    assert found(given, limits(key, kept), key) == []
    violations = found(given, limits(key, violated), key)
    assert violations, key
    first = violations[0]
    assert (first.found, first.allowed, first.checked) == (what, allowed, True)
    weighed = weigh(given.card, (), given.dossier, given.signatures, True, policy=limits(key, violated))
    assert not weighed.open
    assert any(f"[{key}: found {what}, allowed {allowed}]" in line for line in weighed.reject)
    assert {"rule": key, "found": what, "allowed": allowed}.items() <= weighed.to_dict()["rules"][0].items()
    assert weigh(given.card, (), given.dossier, given.signatures, True, policy=limits(key, kept)).open


def every_limit_is_asked_for() -> None:
    """Without fixtures, for the table of faults."""
    for case in CASES:
        is_kept_or_violated(*case)
    test_only_a_known_key_counts(evidence().card, "unknown")
    test_what_could_not_be_checked_is_not_reported_as_kept(evidence().card)


def test_utility_and_the_worst_class_are_taken_at_the_lower_end(given: Evidence) -> None:
    assert given.card.utility is not None
    figures = given.card.utility.figures
    worst = min(one.low for one in figures.recalls)
    for key, low in (("utility.accuracy", figures.accuracy.low), ("bias.recall", worst)):
        assert found(given, limits(key, low), key) == []
        assert found(given, limits(key, min(1.0, low + 0.01)), key)[0].found == f"down to {low:.1%}"
        assert low < figures.accuracy.value


def test_a_rule_about_the_noise(given: Evidence) -> None:
    key = "side_channels.system_noise"
    seeded = Evidence(made(make_release(guarantee(), secure_noise=False)))
    assert found(given, Policy(), key) == []
    assert found(seeded, Policy(), key)[0].found == "a fixed seed"
    assert found(seeded, limits(key, False), key) == []


def test_a_rule_about_public_records(given: Evidence) -> None:
    key = "data_collection_exposure.public_share"
    some = made(config=CONFIG.model_copy(update={"split": CONFIG.split.model_copy(update={"public": 0.3})}))
    assert found(given, limits(key, 0.0), key) == []
    assert found(Evidence(some), limits(key, 0.3), key) == []
    assert found(Evidence(some), limits(key, 0.29), key)[0].found == "30.0%"


def test_a_rule_about_a_persons_promise_fits_a_card_that_makes_it(given: Evidence) -> None:
    """A promise for all records of a person is a unit of its own, and the stronger one."""
    promise = given.card.guarantee.model_copy(update={"unit": "person"})
    person = Evidence(given.card.model_copy(update={"guarantee": promise}))
    assert found(person, limits("unit_of_privacy.units", ["person"]), "unit_of_privacy.units") == []
    assert found(person, Policy(), "unit_of_privacy.units") == []
    assert found(person, limits("unit_of_privacy.units", ["record"]), "unit_of_privacy.units")[0].found == "person"


def test_a_measured_epsilon_has_a_limit_of_its_own(given: Evidence, card: Card, release: Release) -> None:
    key = "algorithms_and_correctness.measured_epsilon"
    attacks = tuple(replace(one, epsilon_lower_bound=1.2) for one in (ATTACK, INSIDE))
    shown = Evidence(card, make_dossier(card, release, Audit(attacks, ())))
    assert found(given, limits(key, 0.0), key) == []
    assert found(shown, limits(key, 1.2), key) == []
    assert found(shown, limits(key, 1.1), key)[0].found == "1.20"


def test_an_attack_that_guesses_wrong_can_be_turned_around(card: Card, release: Release) -> None:
    assert ATTACK.advantage is not None
    wrong = replace(ATTACK, low=0.3, high=0.4, advantage=replace(ATTACK.advantage, low=-0.3, high=-0.2))
    turned = Evidence(card, make_dossier(card, release, Audit((wrong,), ())))
    for key, limit, what in (
        ("algorithms_and_correctness.auc", 0.6, "up to 0.700"),
        ("algorithms_and_correctness.advantage", 0.25, "up to 0.300"),
    ):
        assert found(turned, limits(key, limit), key)[0].found == what


def test_an_advantage_that_nobody_measured_keeps_no_limit(card: Card, release: Release) -> None:
    key = "algorithms_and_correctness.advantage"
    silent = Evidence(card, make_dossier(card, release, Audit((replace(ATTACK, advantage=None),), ())))
    assert found(silent, limits(key, 0.5), key)[0].found == "none"


def test_pictures_that_come_back_have_a_limit(card: Card, release: Release) -> None:
    key = "algorithms_and_correctness.reconstructed"
    audit = Audit((), (), Findings((dataclasses.replace(INVERTED, share_low=0.01, share_high=0.04),)))
    attacked = Evidence(card, make_dossier(card, release, audit))
    assert found(attacked, limits(key, 0.04), key) == []
    assert found(attacked, limits(key, 0.03), key)[0].found == "up to 4.0%"


def test_a_dossier_may_be_required(given: Evidence, card: Card) -> None:
    key = "algorithms_and_correctness.dossier"
    assert found(given, limits(key, True), key) == []
    assert found(Evidence(card), limits(key, True), key)[0].checked
    assert not weigh(card, (), policy=limits(key, True)).open


def test_what_could_not_be_checked_is_not_reported_as_kept(card: Card) -> None:
    table = {"auc": 0.9, "advantage": 0.9, "measured_epsilon": 9.0, "reconstructed": 0.9, "non_members": 1}
    policy = parse(Policy, {"algorithms_and_correctness": table})
    unseen = [one for one in judge(Evidence(card), policy) if not one.checked]
    assert {one.rule.partition(".")[2] for one in unseen} == {*table, "required_attacks"}
    told = [line for line in weigh(card, (), policy=policy).caution if "not seen" in line]
    assert len(told) == 1
    for key in table:
        assert f"algorithms_and_correctness.{key}" in told[0]


def test_a_card_without_utility_is_judged_by_the_dossier(card: Card, dossier: Dossier) -> None:
    bare = card.model_copy(update={"utility": None})
    for key in ("utility.accuracy", "bias.recall"):
        assert not found(Evidence(bare), limits(key, 0.1), key)[0].checked
        assert found(Evidence(bare, dossier), limits(key, 0.1), key) == []
        assert found(Evidence(bare, dossier), limits(key, 1.0), key)[0].checked


def test_the_register_must_have_been_charged(given: Evidence) -> None:
    used, share = "privacy_parameters.registered", "privacy_parameters.register_share"
    assert found(given, Policy(), used) == []
    assert found(given, limits(used, True), used)[0].found == "no register"
    assert found(given, limits(share, 1.0), share)[0].found == "no register"
    budget = PrivacyFilter.make(10.0, 1e-5)
    stated = LifetimeBudget(epsilon=10.0, delta=1e-5, order=budget.order, cost=1, spent=round(0.3 * budget.units))
    charged = replace(given, card=given.card.model_copy(update={"lifetime": stated}))
    assert found(charged, limits(used, True), used) == []
    assert found(charged, limits(share, 0.301), share) == []
    assert found(charged, limits(share, 0.29), share)[0].found == "30.0%"


def test_other_releases_count_and_one_without_a_bound_violates(config: ReleaseConfig) -> None:
    key = "privacy_parameters.total_epsilon"
    several = make_card(config, FACTS, make_release(guarantee(2.0)), noise(), others=(made(),))
    assert several.total.epsilon is not None
    assert several.total.epsilon > 2.4
    assert found(Evidence(several), limits(key, several.total.epsilon), key) == []
    assert found(Evidence(several), limits(key, 2.4), key)
    without = several.model_copy(update={"total": several.total.model_copy(update={"epsilon": None})})
    assert found(Evidence(without), limits(key, 1000.0), key)[0].found == "no bound"


# Who signed and who approved.


@pytest.mark.parametrize("state", ["none", "unknown", "changed", "forged", "unreadable"])
def test_only_a_known_key_counts(card: Card, state: State) -> None:
    """An unknown signature names whatever fingerprint it likes."""
    claimed = Evidence(card, None, signatures(state=state), True)
    for key, value in (
        ("access_control.signed", True),
        ("access_control.signers", [HOLDER]),
        ("access_control.approval", "conditions"),
        ("access_control.approvers", [REVIEWER]),
        ("access_control.newest_dossier", True),
        ("access_control.second_key", True),
    ):
        assert any(one.checked for one in found(claimed, limits(key, value), key)), key
        assert any(one.checked for one in found(Evidence(card), limits(key, value), key)), key  # nobody looked
        assert found(Evidence(card, None, signatures(), True), limits(key, value), key) == [], key


@pytest.mark.parametrize(
    ("decision", "required", "kept"),
    [
        ("approve", "approve", True),
        ("approve", "conditions", True),
        ("conditions", "approve", False),
        ("conditions", "conditions", True),
        ("reject", "conditions", False),
        ("reject", "approve", False),
        ("reject", "none", True),  # a rejection closes the gate by itself
    ],
)
def test_the_decision_that_is_asked_for(card: Card, decision: str, required: str, kept: bool) -> None:
    key = "access_control.approval"
    decided = Evidence(card, None, signatures(decision=decision), True)
    assert (found(decided, limits(key, required), key) == []) == kept


def test_a_rejection_by_a_key_of_the_policy_is_no_approval(card: Card) -> None:
    rejected = Evidence(card, None, signatures(decision="reject"), True)
    for key, value in (("access_control.approvers", [REVIEWER]), ("access_control.newest_dossier", True)):
        assert found(rejected, limits(key, value), key)


@pytest.mark.parametrize("current", [False, None])
def test_the_approval_may_have_to_be_about_the_newest_dossier(card: Card, current: bool | None) -> None:
    key = "access_control.newest_dossier"
    assert found(Evidence(card, None, signatures(), current), limits(key, True), key)


def test_one_key_does_not_count_as_two(card: Card) -> None:
    key = "access_control.second_key"
    assert found(Evidence(card, None, signatures(approver=HOLDER), True), limits(key, True), key)
    assert found(Evidence(card, None, signatures(approver=None), True), limits(key, True), key)


# What a house accepts beyond the default.


def test_a_claim_is_judged_by_what_it_claims() -> None:
    claimed = Evidence(made(status="claimed", claim=Claim(4.0, 1e-5, "theorem 2")))
    policy = parse(Policy, {"privacy_parameters": {"status": ["proven", "claimed"], "epsilon": 3.0}})
    assert [one.rule for one in judge(claimed, policy) if one.checked] == ["privacy_parameters.epsilon"]
    assert [one.rule for one in judge(claimed, Policy()) if one.checked] == ["privacy_parameters.status"]
    lax = Evidence(made(status="claimed", claim=Claim(1.0, 1e-2, "theorem 2")))  # at a larger δ: no ε at the card's
    assert found(lax, policy, "privacy_parameters.epsilon")[0].found == "no bound"


def test_no_policy_opens_the_gate_for_a_defect_or_a_refuted_epsilon(card: Card, release: Release) -> None:
    everything = parse(
        Policy,
        {
            "privacy_parameters": {"status": ["proven", "claimed", "empirical"], "epsilon": 1e9,
                                   "delta_times_records": 1e9},
            "unit_of_privacy": {"units": ["person", "record", "model"]},
            "algorithms_and_correctness": {"required_attacks": {"network": [], "interface": [], "features": []}},
            "side_channels": {"system_noise": False},
        },
    )  # fmt: skip
    assert weigh(card, (), policy=everything).open
    assert not weigh(card, ("model.onnx was changed.",), policy=everything).open
    assert not weigh(None, (), policy=everything).open
    refuted = Audit(tuple(replace(one, epsilon_lower_bound=2.5) for one in (ATTACK, INSIDE)), AUDIT.not_tested)
    assert not weigh(card, (), make_dossier(card, release, refuted), policy=everything).open
    assert not weigh(card, (), None, signatures(decision="reject"), policy=everything).open
    assert not weigh(card, (), None, signatures(state="unknown"), None, "Its net is not here.", policy=everything).open


def test_every_key_has_a_rule_and_every_rule_a_key() -> None:
    assert RULES.keys() == set(ordered()) - CAUTIONS
    assert list(RULES) == [key for key in ordered() if key in RULES]


def ordered() -> list[str]:
    return [f"{name}.{key}" for name, section in Policy() for key, _ in section]
