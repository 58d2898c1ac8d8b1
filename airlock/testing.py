"""The contract that every method must satisfy, as tests for the methods here and for those of other packages.

The shortest test of a method in another package:

    from airlock.testing import check_method
    from class_means import ClassMeans

    def test_it_keeps_the_contract():
        check_method(ClassMeans)

To run every requirement as a separate test, inherit from `MethodContract` instead, or from `ClaimContract` if nothing
is proven. Both need pytest. They make a few releases of handwritten digits: choose `settings` that make this quick.

`check_attack`, `check_accountant`, `check_source` and `check_net` do the same for the other kinds of plugins. Each
reports all violations at once.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from numpy.typing import NDArray
from torch import nn

from airlock import data, methods, nets
from airlock.accounting import compose, compute_epsilon, from_json, pure, repeat, to_json
from airlock.accounting import epsilon as accountants
from airlock.accounting.epsilon import Epsilon
from airlock.auditing import Scores, Target, measure
from airlock.auditing.attacks import Attack, external
from airlock.auditing.members import draw
from airlock.bundle import export
from airlock.config import ReleaseConfig, SplitConfig, from_table
from airlock.data import Records, Source, Split, sources
from airlock.data.feature_files import load
from airlock.data.loading import read_all
from airlock.data.validate import check_records
from airlock.errors import AccountingError, ConfigError, Refused
from airlock.mechanisms import Randomness, Stream
from airlock.methods import Channel, FeatureSet, Interface, NetworkArtefact, Plan, Release, contract
from airlock.methods.contract import NOTHING_ELSE_LEAVES, ONE_RECORD, ArtefactKind
from airlock.methods.interface import as_queries, ask
from airlock.nets import registry as net_registry
from airlock.plugins import Registry
from airlock.training import Run


def _answers(release: Release, split: Split, seed: int) -> list[NDArray[np.generic]]:
    """An interface's answers about test records."""
    method = methods.named(f"{release.plan.channel}/{release.plan.method}")
    interface: Any = release.artefact
    found = ask(method.answerer(interface, release.secrets), as_queries(split.test), Stream.from_seed(seed))
    return [found.labels if found.values is None else found.values]


def _rows(release: Release, split: Split, seed: int) -> list[NDArray[np.generic]]:
    features: Any = release.artefact
    return [load(features.folder, features.manifest).x]


def _weights(release: Release, split: Split, seed: int) -> list[NDArray[np.generic]]:
    return [value.numpy() for value in release.network.net.state_dict().values()]


def _is_frozen(released: Release, split: Split) -> None:
    net = released.network.net
    assert released.utility.records == len(split.test)
    assert not net.training
    assert all(not parameter.requires_grad for parameter in net.parameters())


def _takes_records(released: Release, split: Split) -> None:
    interface: Any = released.artefact
    assert interface.input_shape == split.facts.shape


def _has_labels(released: Release, split: Split) -> None:
    assert released.utility.records == len(split.test)
    assert released.artefact.classes == split.facts.classes


# By kind of artefact: what an observer sees of it, and what must hold for it.
SEEN: Mapping[ArtefactKind, Callable[[Release, Split, int], list[NDArray[np.generic]]]] = {
    "network": _weights,
    "interface": _answers,
    "features": _rows,
}
CHECKED: Mapping[ArtefactKind, Callable[[Release, Split], None]] = {
    "network": _is_frozen,
    "interface": _takes_records,
    "features": _has_labels,
}


class MethodContract:
    """Set `channel`, `method` and quick `settings`; the data set is digits unless `source` says otherwise."""

    channel: str
    method: str
    settings: ClassVar[Mapping[str, Any]] = {}
    source: str = "digits"
    shares: ClassVar[Mapping[str, float]] = {"test": 0.1, "holdout": 0.7}  # a fifth is private, which suffices here
    epsilon, delta = 2.0, 1e-4

    @classmethod
    def config(cls, **changes: Any) -> ReleaseConfig:
        table = {"channel": cls.channel, "method": cls.method, "data": cls.source, "settings": cls.settings}
        budget = {"epsilon": cls.epsilon, "delta": cls.delta}
        return from_table({**table, **budget, "split": cls.shares, **changes})

    @classmethod
    def build(cls, **changes: Any) -> Channel:
        config = cls.config(**changes)
        return methods.build(config, data.describe(config))

    @pytest.fixture(scope="class")
    @classmethod
    def split(cls) -> Split:
        return data.load(cls.config())

    @pytest.fixture(scope="class")
    @classmethod
    def released(cls, split: Split) -> Release:
        return cls.release(split)

    @pytest.fixture(scope="class")
    @classmethod
    def of_half(cls, split: Split) -> Release:
        return cls.release_half(split)

    @classmethod
    def release_half(cls, split: Split) -> Release:
        """Half of the private records, the same declared facts; noise keyed by the system, as in production."""
        half = replace(split, private=split.private.take(np.arange(0, len(split.private), 2)))
        return cls.build().release(half, Randomness.make(0), Run())

    @classmethod
    def release(cls, split: Split, seed: int = 1, **changes: Any) -> Release:
        return cls.build(**changes).release(split, Randomness.make(0, insecure_seed=seed), Run())

    @classmethod
    def seen(cls, release: Release, split: Split, seed: int) -> list[NDArray[np.generic]]:
        """What an observer sees of the artefact: weights, answers about test records, or rows."""
        return SEEN[release.artefact.kind](release, split, seed)

    def test_it_is_in_the_table_and_named_alike(self) -> None:
        found = methods.find(self.config())
        assert (found.channel, found.method) == (self.channel, self.method)
        assert found.leaves.endswith(".")
        assert found.title

    def test_a_method_that_is_not_proven_says_so_and_names_a_sound_one(self) -> None:
        found = methods.find(self.config())
        if found.status != "proven":
            assert found.unproven.endswith(".")
            sound = methods.find(self.config(method=found.sound_method, settings={}))
            assert sound.status == "proven"

    def test_planning_reads_no_record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*args: object, **kwargs: object) -> None:
            raise AssertionError("plan read a record")

        monkeypatch.setattr("airlock.data.load", refuse)
        monkeypatch.setattr("sklearn.datasets.load_digits", refuse)
        assert isinstance(self.build().plan(), Plan)

    def test_the_plan_is_the_same_every_time(self) -> None:
        assert self.build().plan() == self.build().plan()

    def test_the_planned_epsilon_is_within_the_target(self) -> None:
        promise = self.build().plan().guarantee
        if promise.status == "proven":
            assert 0.5 * self.epsilon < promise.epsilon <= self.epsilon
        assert promise.delta == self.delta
        assert promise.assumptions

    def test_people_are_protected_or_refused(self) -> None:
        """Where the data say whose a record is, the guarantee is about people, or there is no plan."""
        config = self.config()
        facts = data.describe(config)
        facts = replace(facts, people=facts.records, records=2 * facts.records, records_per_person=4)
        if "person" not in methods.find(config).units:
            with pytest.raises(ConfigError, match="protects a person"):
                methods.build(config, facts)
            return
        promise = methods.build(config, facts).plan().guarantee
        assert promise.unit == "person"
        assert ONE_RECORD not in promise.assumptions

    def test_a_smaller_epsilon_means_a_smaller_epsilon(self) -> None:
        assert self.build(epsilon=0.5).plan().guarantee.epsilon <= 0.5

    def test_repeated_runs_are_paid_for(self) -> None:
        once, often = self.build(), self.build(tuning_runs=5)
        assert often.plan().guarantee.epsilon <= self.epsilon
        assert often.plan().guarantee.events != once.plan().guarantee.events
        noise = [channel.plan().details.get("noise_multiplier") for channel in (once, often)]
        assert noise[0] is None or float(noise[1] or 0) > float(noise[0])

    def test_the_curve_of_epsilon_ends_at_the_planned_one(self) -> None:
        plan = self.build().plan()
        curve = plan.curve()
        if math.isinf(plan.guarantee.epsilon):
            assert curve is None
        elif curve is not None:
            assert curve.points[-1].epsilon == plan.guarantee.epsilon
            assert all(a.epsilon <= b.epsilon for a, b in zip(curve.points, curve.points[1:], strict=False))
            assert curve.status == plan.guarantee.status

    def test_what_leaves_is_of_the_kind_that_the_method_names(self, released: Release) -> None:
        kinds: dict[type[object], ArtefactKind] = {
            NetworkArtefact: "network",
            Interface: "interface",
            FeatureSet: "features",
        }
        assert kinds[type(released.artefact)] == methods.find(self.config()).artefact

    def test_executed_events_equal_planned_ones(self, released: Release) -> None:
        assert to_json(released.guarantee.events) == to_json(self.build().plan().guarantee.events)
        assert released.guarantee.epsilon == released.plan.guarantee.epsilon

    def test_epsilon_follows_from_the_recorded_events(self, released: Release) -> None:
        plain = released.guarantee.to_dict()
        assert (
            compute_epsilon(from_json(plain["events"]), plain["delta"], plain["relation"]).epsilon == plain["epsilon"]
        )

    def test_what_leaves_works_on_test_records(self, released: Release, split: Split) -> None:
        assert 0 < released.utility.records <= len(split.test)
        assert 0 <= released.utility.accuracy <= 1
        assert "array" not in repr(released.utility)
        assert not set(released.inside) & set(released.plan.details)
        assert not [key for key in released.plan.details if "accuracy" in key]  # test records pay for no detail
        CHECKED[released.artefact.kind](released, split)

    def test_that_the_dossier_stays_is_assumed(self, released: Release) -> None:
        assert NOTHING_ELSE_LEAVES in released.guarantee.assumptions

    def test_the_seed_of_the_noise_changes_what_leaves(self, released: Release, split: Split) -> None:
        other = self.release(split, seed=2)
        same = self.release(split, seed=1)
        first, second, third = (self.seen(r, split, seed) for r, seed in ((released, 1), (other, 2), (same, 1)))
        assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(first, third, strict=True))

    def test_the_plan_does_not_depend_on_the_records(self, released: Release, of_half: Release) -> None:
        """With half of the private records and the same declared facts, plan and events are the same."""
        assert of_half.guarantee == released.guarantee

    def test_nobody_has_to_be_there(self, released: Release, split: Split) -> None:
        """A release that fails without some record reveals that it is missing; not required where nothing is proven."""
        if released.guarantee.status != "proven":
            return
        for kept in (np.arange(0), np.flatnonzero(split.private.y != split.private.y[0])):
            made = self.release(replace(split, private=split.private.take(kept)))
            assert made.guarantee == released.guarantee

    def test_insecure_noise_is_recorded(self, released: Release, of_half: Release) -> None:
        assert not released.secure_noise
        assert of_half.secure_noise

    def test_where_the_noise_was_made_is_recorded(self, released: Release) -> None:
        assert released.noise_made_on == ("cpu",)

    def test_an_unknown_setting_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"settings\.stepz"):
            self.build(settings={"stepz": 3})

    def test_spending_something_else_is_refused(self, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
        from airlock.methods import contract

        plan = self.build().plan()
        wrong = self.build(epsilon=0.5).plan().guarantee.events
        with pytest.raises(Refused, match="executed events"):
            contract.check_executed(plan, wrong)


class ClaimContract(MethodContract):
    """For a method with only a paper's claim: nothing is guaranteed, so the guarantee's ε must be infinite."""

    def test_epsilon_follows_from_the_recorded_events(self, released: Release) -> None:
        plain = released.guarantee.to_dict()
        assert math.isinf(compute_epsilon(from_json(plain["events"]), plain["delta"], plain["relation"]).epsilon)
        assert plain["epsilon"] is None

    def test_spending_something_else_is_refused(self, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
        wrong = self.build(tuning_runs=2).plan().guarantee.events
        with pytest.raises(Refused, match="executed events"):
            contract.check_executed(self.build().plan(), wrong)


def check_method(method: type[Channel], settings: Mapping[str, Any] | None = None, **changes: Any) -> None:
    """Check that a method satisfies the contract; it is registered in this process if no entry point did so.

    Args:
        method: The class.
        settings: Ones that make a release quick.
        changes: Other keys of the config: `split`, `epsilon`, `net`, …

    Raises:
        AssertionError: It does not; all violations are listed.
    """
    if method.method not in methods.METHODS.get(method.channel, {}):
        methods.register(method)
    base = MethodContract if method.status == "proven" else ClaimContract

    class Own(base):  # type: ignore[misc, valid-type]
        @classmethod
        def config(cls, **more: Any) -> ReleaseConfig:
            return base.config.__func__(cls, **{**changes, **more})  # type: ignore[attr-defined, no-any-return]

    Own.channel, Own.method, Own.settings = method.channel, method.method, dict(settings or {})
    split = data.load(Own.config())
    there = {"split": split, "released": Own.release(split), "of_half": Own.release_half(split)}
    broken = []
    for name, test in inspect.getmembers(Own, inspect.isfunction):
        if name.startswith("test_"):
            with pytest.MonkeyPatch.context() as patch:
                given = {**there, "monkeypatch": patch}
                try:
                    test(Own(), **{key: given[key] for key in list(inspect.signature(test).parameters)[1:]})
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  whatever goes wrong
                    broken.append(f"{name[5:].replace('_', ' ')}: {type(error).__name__} {error}")
    _tell(f"{method.channel}/{method.method}", broken)


# The other kinds of plugins.

_SPLIT = {"test": 0.2, "holdout": 0.4}
_BELOW = 0.99  # of dp-accounting's ε, which lies within 1% of the true one for the events below


def check_attack(attack: type[Attack]) -> None:
    """Check that an attack scores records as it should, on an untrained network for handwritten digits.

    Args:
        attack: The class.

    Raises:
        AssertionError: It does not; all violations are listed.
    """
    _make_known(external.OTHERS, attack.name, attack)
    split = data.load(_digits(split=_SPLIT))
    sides = draw(split, SplitConfig(test=0.2, holdout=0.4), seed=0, most=400)
    assert sides is not None
    make = partial(nets.create, "linear", split.facts.shape, len(split.facts.classes))
    target = Target(make(0).eval(), make, split.facts.classes, 1e-4)

    def made() -> Scores:
        return external.score(attack.name, target, sides, split.test, seed=1)

    def every_record_has_one_finite_score() -> None:
        made()

    def the_same_seed_gives_the_same_scores() -> None:
        first, second = made(), made()
        assert np.array_equal(first.members, second.members)
        assert np.array_equal(first.others, second.others)

    def it_leaves_network_and_records_as_they_were() -> None:
        net, records, known = copy.deepcopy(target.net), copy.deepcopy(sides.pool), copy.deepcopy(split.test)
        attack().score(replace(target, net=net), records, known, 1)
        assert all(a.equal(b) for a, b in zip(net.parameters(), target.net.parameters(), strict=True))
        assert np.array_equal(records.x, sides.pool.x)
        assert np.array_equal(known.x, split.test.x)

    def it_finds_nobody_where_nobody_was_trained_on() -> None:
        found = measure(made(), 1e-4)
        assert abs(found.value - 0.5) < 0.12, f"an AUC of {found.value:.3f} on a network that has met no record"

    _keep(
        attack.name,
        every_record_has_one_finite_score,
        the_same_seed_gives_the_same_scores,
        it_leaves_network_and_records_as_they_were,
        it_finds_nobody_where_nobody_was_trained_on,
    )


def check_accountant(epsilon: Epsilon) -> None:
    """Check that an accountant bounds ε correctly; it must refuse unsupported events with an `AccountingError`.

    Args:
        epsilon: The function of an event and δ.

    Raises:
        AssertionError: It does not; all violations are listed.
    """
    name = _name_of(accountants.OTHERS, epsilon)
    gauss, sampled = GaussianDpEvent(2.0), repeat(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.0)), 100)
    events = [gauss, LaplaceDpEvent(2.0), sampled, compose([gauss, pure(0.5)])]

    def bounds(delta: float = 1e-5) -> dict[int, float]:
        """By the event's position, for the events it supports."""
        found = {}
        for place, event in enumerate(events):
            with contextlib.suppress(AccountingError):
                found[place] = float(epsilon(event, delta))
        return found

    def it_takes_gaussian_noise() -> None:
        assert epsilon(gauss, 1e-5) >= 0

    def it_says_the_same_every_time() -> None:
        assert bounds() == bounds()

    def it_is_not_below_what_is_needed() -> None:
        for place, found in bounds().items():
            needed = compute_epsilon(events[place], 1e-5).epsilon
            assert found >= _BELOW * needed, f"{found:.4g} where {needed:.4g} is needed; Airlock would not state it"

    def more_noise_costs_no_more() -> None:
        assert epsilon(GaussianDpEvent(4.0), 1e-5) <= epsilon(gauss, 1e-5)

    def more_steps_cost_no_less() -> None:
        assert epsilon(repeat(gauss, 3), 1e-5) >= epsilon(gauss, 1e-5)

    def a_smaller_delta_costs_no_less() -> None:
        assert all(found >= bounds(1e-4)[place] for place, found in bounds(1e-6).items())

    def what_is_stated_is_not_below_dp_accounting() -> None:
        for place in bounds():
            stated = compute_epsilon(events[place], 1e-5, accountant=name).epsilon
            assert stated >= compute_epsilon(events[place], 1e-5).epsilon

    _keep(
        name,
        it_takes_gaussian_noise,
        it_says_the_same_every_time,
        it_is_not_below_what_is_needed,
        more_noise_costs_no_more,
        more_steps_cost_no_less,
        a_smaller_delta_costs_no_less,
        what_is_stated_is_not_below_dp_accounting,
    )


def check_source(source: Source, data_dir: Path | None = None) -> None:
    """Check that a source states what is public before it is read, and then provides records that match.

    Args:
        source: The value.
        data_dir: Where its files are; by default $AIRLOCK_DATA, else ./data.

    Raises:
        AssertionError: It does not; all violations are listed.
    """
    _make_known(sources.OTHERS, source.name, source)
    config = _digits(data=source.name)

    def read() -> tuple[Records, tuple[str, ...], list[bytes]]:
        facts, pool, test = read_all(config, data_dir)
        checked = [check_records(facts, raw, source.name) for raw in (pool, test) if raw is not None]
        told = tuple(remark for _, remarks in checked for remark in remarks)
        return checked[0][0], told, [one for records, _ in checked for one in data.content_digests(records, b"")]

    def its_facts_are_known_before_it_is_looked_for() -> None:
        def refuse(folder: Path) -> None:
            raise AssertionError("it was looked for")

        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sources.OTHERS._loaded, source.name, replace(source, find=refuse))
            facts = data.describe(config, data_dir)
        assert (facts.shape, facts.classes, facts.records) == (source.shape, source.classes, source.records)

    def its_records_fit_what_it_says() -> None:
        pool, told, _ = read()
        assert not told, told[0]
        assert abs(len(pool) - source.records) <= 0.1 * source.records + 4 * math.sqrt(source.records)

    def it_reads_the_same_every_time() -> None:
        assert read()[2] == read()[2]

    def it_counts_what_it_reads() -> None:
        place = sources.OTHERS.get(source.name).find(sources.data_folder(data_dir))
        assert place is not None
        assert sum(size or 0 for size in place.sizes()) == len(read()[2])

    def it_can_be_divided() -> None:
        assert len(data.load(config, data_dir).private)

    _keep(
        source.name,
        its_facts_are_known_before_it_is_looked_for,
        its_records_fit_what_it_says,
        it_reads_the_same_every_time,
        it_counts_what_it_reads,
        it_can_be_divided,
    )


def check_net(make: Callable[..., nn.Module], shape: tuple[int, ...] = (1, 8, 8), classes: int = 10) -> None:
    """Check that a network can be trained with DP-SGD and exported, on synthetic records.

    Args:
        make: The function of `shape` and `classes`.
        shape: Of one record.
        classes: How many.

    Raises:
        AssertionError: It cannot; all violations are listed.
    """
    name = _name_of(net_registry.OTHERS, make)
    names = tuple(map(str, range(classes)))
    config = _digits(net=name, epsilon=10.0, settings={"steps": 2, "lot_size": 16})
    facts = data.Facts("made-up", shape, names, 100, None, "Made up.")
    chance = np.random.default_rng(0)
    records = Records(chance.random((100, *shape), np.float32), np.arange(100, dtype=np.int64) % classes)
    split = data.divide(facts, records, None, config.split, seed=0)

    def released() -> Release:
        return methods.build(config, facts).release(split, Randomness.make(0, insecure_seed=1), Run())

    def it_keeps_records_apart() -> None:
        nets.check(nets.create(name, shape, classes, seed=0), name, shape, classes)

    def the_same_seed_gives_the_same_network() -> None:
        first, second = (nets.create(name, shape, classes, seed=3).state_dict() for _ in range(2))
        assert all(first[key].equal(second[key]) for key in first)

    def it_is_trained_under_noise() -> None:
        before, after = nets.create(name, shape, classes, seed=config.seed), released().network.net
        assert any(not a.equal(b) for a, b in zip(before.parameters(), after.parameters(), strict=True))

    def it_leaves_as_onnx_that_computes_the_same() -> None:
        made = released().network
        assert export.largest_difference(export.open_onnx(export.to_onnx(made)), made.net, shape) <= export.TOLERANCE

    _keep(
        name,
        it_keeps_records_apart,
        the_same_seed_gives_the_same_network,
        it_is_trained_under_noise,
        it_leaves_as_onnx_that_computes_the_same,
    )


def _digits(**changes: Any) -> ReleaseConfig:
    return from_table({"channel": "weights", "data": "digits", "epsilon": 2.0, "delta": 1e-4, **changes})


def _make_known(registry: Registry[Any], name: str, thing: object) -> None:
    if name not in registry:
        registry.register(name, thing)


def _name_of(registry: Registry[Any], function: Any) -> str:
    """The name that it is registered under; derived from its own name if no entry point has it."""
    where = f"{function.__module__}:{function.__qualname__}"
    known = [name for name in registry.names() if registry.where(name) == where]
    if not known:
        known = [re.sub("[^a-z0-9]+", "-", function.__qualname__.lower()).strip("-")]
        registry.register(known[0], function)
    return known[0]


def _keep(whose: str, *promises: Callable[[], None]) -> None:
    """Try every requirement; its function name says what it is."""
    broken = []
    for promise in promises:
        try:
            promise()
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  whatever goes wrong
            broken.append(f"{promise.__name__.replace('_', ' ')}: {type(error).__name__} {error}")
    _tell(whose, broken)


def _tell(whose: str, broken: Sequence[str]) -> None:
    if broken:
        raise AssertionError("\n  ".join([f"{whose} breaks {len(broken)} promises:", *broken]))
