"""A release in the register of its data set: charged before a record is read, and told on the card.

In: a config, its plan and the vault. Out: a `Booking`, which is charged before the first record is read, given back if
none was read, and closed when the bundle gets its name. Without a register nothing is charged, and the card says what
was declared with `--composes-with`.

Guarantee: everything that was released under a register, adaptively and together, is (ε, δ)-DP for every record that
was ever under its name. Proof. (1) A release costs at least its Rényi divergence (`parts_of`): its executed events are
the planned ones (`contract.check_executed`), and what its card says about test records and attacks is compared with
what was charged before it leaves (`Booking.release`). (2) It is charged before it reads, and what is charged never
exceeds the filter's cap (`ledger.reservations`). (3) One release leaves for each charge. So `accounting.privacy_filter`
applies. ∎

A run that is resumed. A killed run may be started again where it was, and must not pay twice, nor draw twice for one
charge: whoever could kill and resume until they like what they see would choose among many draws. So with a register
the key of the noise is kept in the vault beside the reservation, from before the first record is read until the bundle
is written. A resumed run of the same config and version draws from the same stream: a step's noise follows from its
number, and the records are those that it began with (`Vault.begin`), so it is the same run, with the same noise, and
goes on with the same reservation. Where the key is gone, or the reservation is not open, it is charged again, and its
noise is new. Either way one reservation pays for one draw, and one bundle leaves.

Nothing is counted for what does not leave: comparisons, previews, audits and the court. Served answers are paid for
when their interface is released, all of them at once (`methods.interface`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dp_accounting as dpa

from airlock._version import VERSION
from airlock.accounting import PrivacyFilter, from_json, to_json
from airlock.accounting.guarantee import Guarantee
from airlock.auditing import evaluation, paid_attacks, paid_auc
from airlock.bundle.card import Card, evaluation_epsilon, paid_by_scores, tuning_of
from airlock.bundle.files import parse_json, read_file, replace_file
from airlock.bundle.packing import packing_of
from airlock.bundle.register import RegisterPlace, filter_of, find, guarded, open_at
from airlock.bundle.rendering.formatting import cost_up, left_down
from airlock.bundle.schema import LifetimeBudget
from airlock.bundle.vault import Vault
from airlock.config import Frozen, ReleaseConfig
from airlock.data import Split
from airlock.errors import AirlockError, ConfigError, Exhausted, FormatError, Refused
from airlock.mechanisms import Randomness, Stream
from airlock.methods.contract import Channel, Plan

if TYPE_CHECKING:
    from airlock.ledger import Held, Register

PAID_ALREADY = "an unfinished run of this config is charged already: --resume goes on with it at no cost. A new one"
_LIMIT = 1 << 16

# What a release costs.


def parts_of(config: ReleaseConfig, channel: Channel, plan: Plan, order: int) -> dict[str, dpa.DpEvent]:
    """What each part of the records pays for a release, before any is read.

    Args:
        config: With the share of ε for attacks.
        channel: The method.
        plan: Its plan, with the attacks that are paid for.
        order: The Rényi order of the register's filter.
    """
    parts = {"private": plan.guarantee.events}
    if packing_of(channel.artefact).states_utility:
        tuning = tuning_of(config, plan)
        for name, scores in (("test", True), ("test, labels alone", False)):  # which one, the method knows later
            each = evaluation_epsilon(config, plan.guarantee, tuning, scores, order)
            parts[name] = evaluation.event(each, scores, tuning.runs, paid_by_scores(tuning))
    if config.attack_share:
        own = paid_attacks.each(config, channel.planned.guarantee)
        parts["holdout"] = paid_auc.events(own, config.tuning_runs)
    return parts


def check_counted(register: Register, promise: Guarantee, name: str) -> None:
    """Refuse what the register cannot count.

    Raises:
        Refused: It is not proven, or for another unit or relation.
        ConfigError: It is from another data set.
    """
    terms = register.terms
    if name != terms.register:
        raise ConfigError(
            f"data named '{terms.register}', which the register is about",
            f"'{name}'",
            "Each data set has its own budget.",
            "Name the register of these data, or correct data.name.",
        )
    found = (promise.status, promise.unit, promise.relation)
    if found != ("proven", terms.protects, "add-remove"):
        raise Refused(
            f"a proven guarantee for one {terms.protects} that is added or removed",
            " ".join(found),
            "The register could not say any more what everything together reveals.",
            "Take a proven method; what is not to be counted is released without a register.",
        )


@dataclass(frozen=True)
class Outlook:
    """What a release would leave in its register, on the scale on which the whole budget is ε.

    Args:
        place: Which register, and who says so.
        data: The name of the data set.
        epsilon: The whole budget.
        delta: The δ of the whole budget.
        cost: What the release costs.
        left: What is left before it.
        still_fits: The ε of the Gaussian mechanism that what is left would pay for, at the release's δ.
        resumes: Whether an unfinished run of the same config is charged already: going on with it costs nothing.
    """

    place: str
    data: str
    epsilon: float
    delta: float
    cost: float
    left: float
    still_fits: float
    resumes: bool = False

    @property
    def fits(self) -> bool:
        """Whether the release fits."""
        return self.cost <= self.left

    def sentence(self) -> str:
        """In words."""
        told = f"Register {self.place}: {PAID_ALREADY if self.resumes else 'this'} would cost {cost_up(self.cost)}"
        if self.fits:
            return f"{told} and leave {left_down(self.left - self.cost)} of {self.epsilon:g}."
        return f"{told}, and only {left_down(self.left)} of {self.epsilon:g} is left."

    def refusal(self) -> Refused:
        """Why it is refused, and what would fit."""
        return Refused(
            f"a release that costs at most {left_down(self.left)}, what is left of {self.epsilon:g} for '{self.data}'",
            f"one that costs {cost_up(self.cost)}",
            "Nothing was charged, and no record was read.",
            f"What is left would pay for Gaussian noise of about ε = {left_down(self.still_fits)}: ask for less.",
        )


def outlook(config: ReleaseConfig, channel: Channel, plan: Plan, vault: Vault, run_key: str) -> Outlook | None:
    """What a release would leave in its register; None without one. Nothing is charged.

    Args:
        config: The release.
        channel: Its method.
        plan: Its plan, with the attacks that are paid for.
        vault: Where the register's mark and the key of the noise are kept.
        run_key: Of the run, by which one that is not finished finds its reservation.

    Raises:
        Refused: The register cannot count it.
        AccountingError: Its events have no cost.
    """
    found = find(config)
    if found is None:
        return None
    with open_at(found, vault) as register:
        check_counted(register, plan.guarantee, channel.facts.name)
        parts = parts_of(config, channel, plan, register.terms.order)
        cost = filter_of(register).cost(list(parts.values()))
        resumes = _kept(vault, run_key, register, cost) is not None
        return replace(_outlook(found, register, cost, config.delta), resumes=resumes)


def _outlook(found: RegisterPlace, register: Register, cost: int, delta: float) -> Outlook:
    budget, left = filter_of(register), register.balance().left
    return Outlook(
        place=str(found),
        data=register.terms.register,
        epsilon=budget.epsilon,
        delta=budget.delta,
        cost=budget.share(cost),
        left=budget.share(left),
        still_fits=budget.gaussian_epsilon(left, delta),
    )


# One release.


class KeptReservation(Frozen):
    """What the vault keeps of a run that is charged, until its bundle is written.

    Args:
        ledger: The identity of the register.
        entry: The number of the reservation.
        units: What it charged.
        token: Its token.
        spent: What was spent in all when it was made.
        key: The key of the noise.
        version: Of Airlock: another one may draw in another order.
    """

    ledger: str
    entry: int
    units: int
    token: str
    spent: int
    key: str
    version: str


@dataclass(frozen=True)
class _Charged:
    """Where a release is charged, and its reservation."""

    found: RegisterPlace
    held: Held
    budget: PrivacyFilter
    ledger: str


class Booking:
    """A release in its register, or nothing where there is none.

    As a context it ends before the first record is read: an error within gives the charge back. `start` is the last
    thing in it.
    """

    def __init__(self, vault: Vault, run_key: str, charged: _Charged | None = None, key: bytes | None = None) -> None:
        self._vault, self._run_key, self._charged, self._key = vault, run_key, charged, key
        self._started = False

    def __enter__(self) -> Booking:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or self._charged is None or self._started:
            return
        # A charge that cannot be given back stays: the error that led here is the one to tell.
        with contextlib.suppress(AirlockError), open_at(self._charged.found, self._vault) as register:
            register.give_back(self._charged.held)
            self.forget()

    def randomness(self, seed: int, insecure_seed: int | None) -> Randomness:
        """The randomness of the run; with a register from the key that a resumed run finds again."""
        if self._key is None:
            return Randomness.make(seed, insecure_seed)
        return Randomness(seed, Stream(self._key, secure=True))

    def start(self) -> None:
        """Write down that records are read from here on; on disk when this returns."""
        if self._charged is not None:
            with open_at(self._charged.found, self._vault) as register:
                register.start(self._charged.held)
        self._started = True

    def guarded(self, config: ReleaseConfig, split: Split) -> Split:
        """The records, with what the holder should know about them and the registers that the vault knows."""
        return guarded(self._vault, None if self._charged is None else self._charged.ledger, config, split)

    def on_card(self) -> LifetimeBudget | None:
        """What the card says of it."""
        if self._charged is None:
            return None
        budget, held = self._charged.budget, self._charged.held
        return LifetimeBudget(
            epsilon=budget.epsilon, delta=budget.delta, order=budget.order, cost=held.units, spent=held.spent
        )

    def release(self, card: Card) -> None:
        """Write down that this leaves, before it does; on disk when this returns.

        Raises:
            Refused: It costs more than was charged, or its reservation has released something else.
        """
        if self._charged is None:
            return
        paid = card.guarantee.parts
        events = [from_json(part.events) for part in (paid.private, paid.test, paid.holdout)]
        if self._charged.budget.cost(events) > self._charged.held.units:
            raise Refused(
                "a release that costs what was charged",
                "one that costs more",
                "The register would count less than was revealed.",
                "This is a defect in the method: do not release its result.",
            )
        with open_at(self._charged.found, self._vault) as register:
            register.release(self._charged.held, card.release_id)

    def forget(self) -> None:
        """Remove the key of the noise: the run is finished, or never began."""
        self._vault.reservation_file(self._run_key).unlink(missing_ok=True)


def book(
    config: ReleaseConfig,
    channel: Channel,
    plan: Plan,
    vault: Vault,
    run_key: str,
    *,
    resume: bool = False,
    insecure: bool = False,
    composes: bool = False,
) -> Booking:
    """Charge a release, before any record is read; a resumed run goes on with its own charge.

    Args:
        config: The release.
        channel: Its method.
        plan: Its plan, with the attacks that are paid for.
        vault: Where the register's mark and the key of the noise are kept.
        run_key: Of the run, by which a resumed one finds its reservation.
        resume: Whether the run goes on from its checkpoint.
        insecure: Whether the noise comes from a seed.
        composes: Whether other releases are declared.

    Raises:
        Refused: It does not fit, or cannot be counted.
        ConfigError: It is from other data, or declares other releases, which the register counts.
    """
    found = find(config)
    if found is None:
        return Booking(vault, run_key)
    _check_asked(found, insecure, composes)
    with open_at(found, vault) as register:
        check_counted(register, plan.guarantee, channel.facts.name)
        budget, parts = filter_of(register), parts_of(config, channel, plan, register.terms.order)
        cost = budget.cost(list(parts.values()))
        kept = _kept(vault, run_key, register, cost) if resume else None
        if kept is None:
            held = _reserved(found, register, cost, config.delta, _about(config, plan, parts))
            kept = KeptReservation(ledger=register.ledger.id, key=os.urandom(32).hex(), version=VERSION, **vars(held))
            _keep(vault, run_key, kept, register)
        charged = _Charged(found, _held(kept), budget, kept.ledger)
    return Booking(vault, run_key, charged, bytes.fromhex(kept.key))


def _keep(vault: Vault, run_key: str, kept: KeptReservation, register: Register) -> None:
    """Keep the reservation and the key of its noise; where that fails, nothing was begun, and it is given back."""
    try:
        replace_file(vault.reservation_file(run_key), kept.model_dump_json())
    except AirlockError:
        register.give_back(_held(kept))
        raise


def _check_asked(found: RegisterPlace, insecure: bool, composes: bool) -> None:
    if composes:
        raise ConfigError(
            "no --composes-with where there is a register",
            f"one, and {found}",
            "The register counts what left, and the card's total comes from it.",
            "Leave it out; for a bundle that the register does not know: airlock register add.",
        )
    if insecure:
        raise Refused(
            "secret noise where there is a register",
            "--insecure-seed",
            "Whoever knows the seed can remove the noise, and no cost bounds that.",
            "Leave the seed out, or make the release without a register.",
        )


def _reserved(found: RegisterPlace, register: Register, cost: int, delta: float, about: Mapping[str, Any]) -> Held:
    told = _outlook(found, register, cost, delta)
    if not told.fits:
        raise told.refusal()
    try:
        return register.reserve(cost, about)
    except Exhausted as error:  # another process was faster
        raise _outlook(found, register, cost, delta).refusal() from error


def _about(config: ReleaseConfig, plan: Plan, parts: Mapping[str, dpa.DpEvent]) -> dict[str, Any]:
    """What the register says of a release: public facts, and to whom it goes.

    Of a search it says which channels its candidates release; which of them won is on the card alone.
    """
    searched = [] if config.tune is None else [one.get("channel", config.channel) for one in config.tune.candidates]
    return {
        "channel": ", ".join(sorted(set(searched))) or plan.channel,
        "method": "search" if searched else plan.method,
        "recipient": config.receiver,
        "epsilon": plan.guarantee.epsilon,
        "delta": plan.guarantee.delta,
        "parts": {name: to_json(events) for name, events in parts.items()},
        "version": VERSION,
    }


def _kept(vault: Vault, run_key: str, register: Register, cost: int) -> KeptReservation | None:
    """What an interrupted run of this key left, if its reservation is open and its noise can be drawn again."""
    file = vault.reservation_file(run_key)
    if not file.exists():
        return None
    try:
        kept = KeptReservation.model_validate(parse_json(read_file(file, _LIMIT)))
    except ValueError as error:
        raise FormatError(f"a reservation in the vault's {file.name}", "something else", do="Restore it.") from error
    same = (kept.ledger, kept.units, kept.version) == (register.ledger.id, cost, VERSION)
    return kept if same and register.is_open(_held(kept)) else None


def _held(kept: KeptReservation) -> Held:
    from airlock.ledger import Held

    return Held(kept.entry, kept.units, kept.token, kept.spent)


def add(found: RegisterPlace, vault: Vault, card: Card, recipient: str = "") -> float:
    """Count a bundle that left without the register; what it costs, on the scale on which the whole budget is ε.

    Args:
        found: The register.
        vault: Where its mark is.
        card: Of a bundle that was verified.
        recipient: To whom it went; whom the card names, if left out.

    Raises:
        Refused: It does not fit, or cannot be counted: then the register bounds nothing about these data.
    """
    promise = card.guarantee
    with open_at(found, vault) as register:
        if any(one.release == card.release_id for one in register.history()):
            raise Refused("a release that is not counted yet", f"{card.release_id[:8]}, which is", "Nothing was done.")
        if not card.secure_noise:
            raise Refused("secret noise", "a release with --insecure-seed", "No cost bounds it.", "Do not count on it.")
        stated = Guarantee(promise.unit, promise.relation, from_json(promise.events), promise.delta, promise.status, ())
        check_counted(register, stated, card.data.name)
        parts = {name: from_json(getattr(promise.parts, name).events) for name in ("private", "test", "holdout")}
        budget = filter_of(register)
        cost = budget.cost(list(parts.values()))
        about = {
            "channel": card.channel,
            "method": card.method,
            "recipient": recipient or card.about.recipient,
            "epsilon": promise.epsilon,
            "delta": promise.delta,
            "parts": {name: to_json(events) for name, events in parts.items()},
            "version": card.airlock_version,
        }
        held = _reserved(found, register, cost, promise.delta, about)
        register.start(held)
        register.release(held, card.release_id)
        return budget.share(cost)
