"""The gate: what closes it, what calls for care, and what speaks for a release."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import dp_accounting as dpa
import numpy as np
import pytest

from airlock.accounting import Claim
from airlock.auditing import Audit
from airlock.auditing.required_attacks import ATTACKS, missing
from airlock.bundle import Bundle, Card, Dossier, Vault, Weighing, make_card, verify, weigh
from airlock.bundle.dossier import make as make_dossier
from airlock.bundle.dossier import with_court
from airlock.bundle.rendering.page import keep_dossier
from airlock.bundle.signing.signatures import Endorsement, Signatures, State
from airlock.config import ReleaseConfig
from airlock.mechanisms import Stream
from airlock.methods.contract import KINDS, Release
from airlock.training.outcomes import Outcomes
from tests.bundle.conftest import ATTACK, AUDIT, FACTS, INSIDE, guarantee, make_release, noise, outcomes
from tests.bundle.test_dossier import TRIAL


def card(config: ReleaseConfig, secure_noise: bool = True, **promise: object) -> Card:
    return make_card(config, FACTS, make_release(guarantee(**promise), secure_noise=secure_noise), noise())  # type: ignore[arg-type]


def judged(config: ReleaseConfig, audit: Audit = AUDIT, secure_noise: bool = True, **promise: object) -> Weighing:
    made = card(config, secure_noise, **promise)
    return weigh(made, (), make_dossier(made, make_release(guarantee()), audit))


def attacks(**changes: object) -> Audit:
    return Audit(tuple(dataclasses.replace(one, **changes) for one in (ATTACK, INSIDE)), AUDIT.not_tested)  # type: ignore[arg-type]


def says(lines: tuple[str, ...], words: str) -> bool:
    return any(words in line for line in lines)


def test_a_proven_release_with_fitting_attacks_passes(config: ReleaseConfig):
    found = judged(config)
    assert found.open
    assert found.reject == ()
    assert says(found.release, "Proven: ε = 2.37")
    assert says(found.release, "it names the used one 51.2% of the time (45.6% to 56.9%; AUC); from 56.0% on it would")
    assert says(found.release, "could have refuted ε = 2.37 and did not")
    assert says(found.release, "The noise is secret")
    assert says(found.release, "The bundle verifies")
    assert found.to_dict()["open"] is True


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "claimed", "claim": Claim(1.0, 1e-5, "theorem 2")}, "weights/gaussian is claimed, not proven"),
        ({"status": "empirical"}, "is empirical, not proven"),
        ({"unit": "model"}, "Nothing is promised for any one record"),
        ({"noise": 0.3}, "by itself that is weak or no protection"),
        ({"delta": 1e-3}, "δ is 0.001, not below 1 / 1,797 records"),
        ({"secure_noise": False}, "fixed seed"),
        ({"audit": Audit((), ())}, "not attacked by membership inference by someone who holds the weights"),
        ({"audit": Audit((ATTACK,), ())}, "(white-box)"),
        ({"audit": Audit((INSIDE,), ())}, "(black-box)"),
        ({"audit": attacks(epsilon_lower_bound=2.5)}, "ε is at least 2.50, and the card states 2.37"),
    ],
)
def test_reasons_to_reject(config: ReleaseConfig, changes: dict[str, object], words: str):
    found = judged(config, **changes)  # type: ignore[arg-type]
    assert says(found.reject, words), found.reject
    assert not found.open


def test_a_papers_claim_is_what_an_attack_has_to_exceed(config: ReleaseConfig):
    claimed = {"status": "claimed", "claim": Claim(1.0, 1e-5, "theorem 2")}
    assert says(judged(config, attacks(epsilon_lower_bound=1.2), **claimed).reject, "the card states 1.00")
    assert not says(judged(config, attacks(epsilon_lower_bound=0.9), **claimed).reject, "at least")
    lax = {"status": "claimed", "claim": Claim(1.0, 1e-2, "theorem 2")}  # at a larger δ this ε may be true
    assert not says(judged(config, attacks(epsilon_lower_bound=1.2), **lax).reject, "at least")


def test_a_defect_and_a_card_that_cannot_be_read_close_the_gate(config: ReleaseConfig):
    made = card(config)
    found = weigh(made, ("model.onnx was changed.",), make_dossier(made, make_release(guarantee()), AUDIT))
    assert found.reject == ("The bundle does not verify: model.onnx was changed.",)
    assert not says(found.release, "The bundle verifies")
    assert weigh(None, ("card.json is missing.",)).reject[-1] == "There is no card that can be read."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "ε is 2.37: the protection is weak, a guess about one record may be right up to 91.5%"),
        ({}, "One run was declared"),
        ({}, "not tried, named in the dossier: 2"),
        ({}, "a person has to check: 4"),
        ({"assumptions": ("The front end is public.",)}, "Check that this is true: The front end is public."),
        (
            {"audit": attacks(value=0.55, low=0.52)},
            "names the used one 55.0% of the time (52.0% to 56.9%; AUC); 6 tries",
        ),
        ({"audit": attacks(non_members=400)}, "400 non-members took part"),
        ({"audit": attacks(could_refute=1.9)}, "could not have refuted ε = 2.37: they show 1.90 at most"),
    ],
)
def test_reasons_for_caution(config: ReleaseConfig, changes: dict[str, object], words: str):
    found = judged(config, **changes)  # type: ignore[arg-type]
    assert found.open
    assert says(found.caution, words), found.caution


def test_rare_finds_are_named_only_where_they_are_no_luck(config: ReleaseConfig):
    sure = dataclasses.replace(ATTACK.rates[1], value=0.08, low=0.0674, high=0.09)
    assert says(judged(config, attacks(rates=(sure,))).caution, "finds 8.00% of the members (at least 6.74%)")
    assert not says(judged(config).caution, "of the members")


def test_several_attacks_are_several_tries(config: ReleaseConfig):
    """An AUC that one attack alone would call better than chance is none among six tries; no two lists disagree."""
    luck = attacks(value=0.54, low=0.505, high=0.575)
    assert luck.attacks[0].beats_chance()
    found = judged(config, luck)
    assert not says(found.caution, "better than chance")
    assert says(found.release, "no better than chance: of two records, one used and one not, it names the used one 54")
    sure = judged(config, attacks(value=0.6, low=0.57, high=0.63))
    assert says(sure.caution, "does better than chance")
    assert not says(sure.release, "no better than chance")
    rates = dataclasses.replace(ATTACK.rates[1], value=0.0242, low=0.0176, high=0.032)
    assert rates.beats_chance(1800, 1750, 0.95)
    assert not says(judged(config, attacks(rates=(ATTACK.rates[0], rates))).caution, "of the members")


def test_a_release_that_is_no_better_than_blind_guessing_does_not_pass(config: ReleaseConfig):
    for right in (36, 51):  # 10.0% and 14.2% of ten classes
        made = dataclasses.replace(make_release(guarantee()), utility=outcomes(right, 360))
        bad = make_card(config, FACTS, made, noise())
        found = weigh(bad, (), make_dossier(bad, made, AUDIT))
        assert not found.open
        assert says(found.reject, "better than blind guessing: right ")
        assert says(found.reject, "[utility.gain: found")
    assert says(judged(config).release, "It does better than blind guessing: right 9")


def test_where_noise_leaves_it_open_the_exact_counts_inside_close_the_gate(config: ReleaseConfig):
    """A class has 97% of the records and the model names no other: by noisy counts it may be better, or not."""
    labels = np.where(np.arange(360) % 36 == 0, np.arange(360) // 36 % 10, 0)
    never = Outcomes(labels, np.zeros_like(labels), np.full(360, 0.9))
    made = dataclasses.replace(make_release(guarantee()), utility=never)
    seen = make_card(config.model_copy(update={"epsilon": 0.3}), FACTS, made, Stream.from_seed(1))
    found = weigh(seen, (), make_dossier(seen, made, AUDIT))
    assert not found.open
    assert says(found.reject, "no better than blind guessing")
    assert says(found.reject, "always naming the largest class")
    assert not says(weigh(seen, ()).release, "better than blind guessing")


def test_a_strong_guarantee_is_no_reason_for_caution(config: ReleaseConfig):
    found = judged(config, noise=5.0)
    assert not says(found.caution, "a guess about")
    assert says(found.release, "Proven: ε = 0.")


def test_other_releases_and_paid_runs_are_weighed(config: ReleaseConfig):
    others = (card(config),)
    several = make_card(config, FACTS, make_release(guarantee(2.0)), noise(), others=others)
    assert says(weigh(several, ()).caution, "from the same data (1) the total is ε = ")
    bare = card(config, unit="none", status="empirical", events=dpa.NonPrivateDpEvent())
    without = make_card(config, FACTS, make_release(guarantee()), noise(), others=(bare,))
    assert says(weigh(without, ()).caution, "there is no total ε")
    paid = make_card(config.model_copy(update={"tuning_runs": 5}), FACTS, make_release(guarantee()), noise())
    assert says(weigh(paid, ()).release, "5 runs were declared")
    assert not says(weigh(paid, ()).caution, "One run")


def test_every_kind_of_artefact_has_its_attacks():
    assert set(ATTACKS) == set(KINDS)
    assert missing("network", (ATTACK, INSIDE)) == ()
    assert len(missing("network", (ATTACK,))) == 1
    assert missing("interface", (ATTACK, INSIDE)) == (
        "membership inference through the noisy interface, within its budget",
    )
    assert missing("interface", (dataclasses.replace(ATTACK, view="interface"),)) == ()
    assert len(missing("features", (ATTACK,))) == 3
    disguised = dataclasses.replace(ATTACK, name="membership/white-box")
    assert len(missing("network", (disguised,))) == 1


def test_without_the_dossier_the_gate_says_that_attacks_were_not_seen(config: ReleaseConfig):
    found = weigh(card(config), ())
    assert found.open
    assert says(found.caution, "in the holder's dossier, which is not in this vault")
    assert not says(found.release, "attack")
    assert not says(judged(config).caution, "was not seen")


@pytest.mark.parametrize("state", ["none", "unknown", "known"])
@pytest.mark.parametrize("recorded", [True, False])
def test_what_was_not_planned_again_needs_a_known_key_or_a_record(config: ReleaseConfig, state: State, recorded: bool):
    signed = Signatures(Endorsement(state, "By whom.", accepted=state == "known"), Endorsement("none", "Nobody."))
    found = weigh(card(config), (), None, signed, None, "Its net is not here.", recorded)
    assert says(found.caution, "Not planned again: Its net is not here.")
    assert says(found.reject, "Nothing vouches") == (state != "known" and not recorded)
    assert found.open == (state == "known" or recorded)
    assert weigh(card(config), (), None, signed).open


def test_what_the_court_refutes_closes_the_gate(config: ReleaseConfig):
    made = card(config)
    inside = with_court(make_dossier(made, make_release(guarantee()), AUDIT), [TRIAL])
    assert says(weigh(made, (), inside).reject, "The court refutes what was claimed: Refuted: ε is above 3.10.")


def test_remarks_about_the_records_call_for_care(config: ReleaseConfig):
    made = card(config)
    inside = make_dossier(made, make_release(guarantee()), AUDIT, remarks=("Row 7 was left out.",))
    assert says(weigh(made, (), inside).caution, "Remarks about the records, in the dossier: 1")


def gated(folder: Path, outcome: str = "failed") -> dict[str, str]:
    checks = verify(folder, gated=True).checks
    assert [check.name for check in checks][-2:] == ["measured", "attacks"]
    return {check.name: check.says for check in checks if check.outcome == outcome}


def test_verify_passes_the_gate(original: Bundle, dossier: Dossier, vault: Vault):
    keep_dossier(vault, dossier)
    assert gated(original.folder) == {}
    assert "measured" not in gated(original.folder, "skipped")
    assert "measured" not in {check.name for check in verify(original.folder).checks}


@pytest.mark.parametrize(
    ("audit", "check"),
    [(attacks(epsilon_lower_bound=2.5), "measured"), (Audit((ATTACK,), ()), "attacks"), (Audit((), ()), "attacks")],
)
def test_verify_fails_at_the_gate_and_not_without_it(
    original: Bundle, release: Release, vault: Vault, audit: Audit, check: str
):
    keep_dossier(vault, make_dossier(original.card, release, audit))
    assert verify(original.folder).ok
    assert gated(original.folder).keys() == {check}


def test_without_the_dossier_both_checks_of_the_gate_are_skipped(original: Bundle):
    assert gated(original.folder) == {}
    assert {"measured", "attacks"} <= gated(original.folder, "skipped").keys()


def test_without_a_card_the_gate_is_skipped_and_the_bundle_fails_anyway(folder: Path):
    (folder / "card.json").write_text("{")
    found = verify(folder, gated=True)
    assert not found.ok
    assert [check.outcome for check in found.checks[-2:]] == ["skipped", "skipped"]


def test_too_few_records_for_an_attack_are_no_reason_to_send_anyone_to_the_audit(config: ReleaseConfig):
    told = "Membership inference: it takes 50 records. Make the release with split.holdout = 0.14."
    found = judged(config, Audit((), (told,)))
    assert says(found.reject, f"It cannot be done: {told}")
    assert not says(found.reject, "`airlock audit` does it")
    assert says(judged(config, Audit((), ())).reject, "`airlock audit` does it")
