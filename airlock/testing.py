"""What every method of every channel must keep, for the methods here and for those of other packages.

The shortest test of a method in a package of its own:

    from airlock.testing import check_method
    from class_means import ClassMeans

    def test_it_keeps_the_contract():
        check_method(ClassMeans)

To see every promise as a test of its own, inherit from `MethodContract` instead, or from `ClaimContract` where nothing
is proven. Both need pytest. They release handwritten digits a few times: let `settings` make that quick.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from airlock import data, methods
from airlock.accounting import compute_epsilon, from_json, to_json
from airlock.config import ReleaseConfig, from_table
from airlock.data import Split
from airlock.data.feature_files import load
from airlock.errors import ConfigError, Refused
from airlock.mechanisms import Randomness, Stream
from airlock.methods import Channel, FeatureSet, Interface, NetworkArtefact, Plan, Release, contract
from airlock.methods.contract import NOTHING_ELSE_LEAVES, ArtefactKind
from airlock.methods.interface import as_queries, ask
from airlock.training import Run


def _answers(release: Release, split: Split, seed: int) -> list[NDArray[np.generic]]:
    """What an interface says about test records."""
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


# By what leaves: what is seen of it, and what must be true of it.
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
    """Set `channel`, `method` and quick `settings`; digits is the data unless `source` says otherwise."""

    channel: str
    method: str
    settings: ClassVar[Mapping[str, Any]] = {}
    source: str = "digits"
    epsilon, delta = 2.0, 1e-4

    @classmethod
    def config(cls, **changes: Any) -> ReleaseConfig:
        table = {"channel": cls.channel, "method": cls.method, "data": cls.source, "settings": cls.settings}
        return from_table({**table, "epsilon": cls.epsilon, "delta": cls.delta, **changes})

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

    @classmethod
    def release(cls, split: Split, seed: int = 1, **changes: Any) -> Release:
        return cls.build(**changes).release(split, Randomness.make(0, insecure_seed=seed), Run())

    @classmethod
    def seen(cls, release: Release, split: Split, seed: int) -> list[NDArray[np.generic]]:
        """What somebody sees of what left: weights, answers about test records, or rows."""
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

    def test_the_plan_does_not_depend_on_the_records(self, released: Release, split: Split) -> None:
        """Half the private records, the same declared facts: the same plan, the same events."""
        half = replace(split, private=split.private.take(np.arange(0, len(split.private), 2)))
        assert self.release(half).guarantee == released.guarantee

    def test_nobody_has_to_be_there(self, released: Release, split: Split) -> None:
        """A release that fails without some record tells that the record is missing; a claim promises nothing."""
        if released.guarantee.status != "proven":
            return
        for kept in (np.arange(0), np.flatnonzero(split.private.y != split.private.y[0])):
            made = self.release(replace(split, private=split.private.take(kept)))
            assert made.guarantee == released.guarantee

    def test_insecure_noise_is_recorded(self, released: Release, split: Split) -> None:
        assert not released.secure_noise
        secure = self.build().release(split, Randomness.make(0), Run())
        assert secure.secure_noise

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
    """For a paper's claim: nothing is promised, so the tests of ε are kept for the claim and against the promise."""

    def test_epsilon_follows_from_the_recorded_events(self, released: Release) -> None:
        plain = released.guarantee.to_dict()
        assert math.isinf(compute_epsilon(from_json(plain["events"]), plain["delta"], plain["relation"]).epsilon)
        assert plain["epsilon"] is None

    def test_spending_something_else_is_refused(self, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
        wrong = self.build(tuning_runs=2).plan().guarantee.events
        with pytest.raises(Refused, match="executed events"):
            contract.check_executed(self.build().plan(), wrong)


def check_method(method: type[Channel], settings: Mapping[str, Any] | None = None, **changes: Any) -> None:
    """Whether a method keeps the contract; it is made known to this process if no entry point did.

    Args:
        method: The class.
        settings: That make a release quick.
        changes: Other keys of the config: `split`, `epsilon`, `net`, …

    Raises:
        AssertionError: It does not; all broken promises are named.
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
    there = {"split": split, "released": Own.release(split)}
    broken = []
    for name, test in inspect.getmembers(Own, inspect.isfunction):
        if name.startswith("test_"):
            with pytest.MonkeyPatch.context() as patch:
                given = {**there, "monkeypatch": patch}
                try:
                    test(Own(), **{key: given[key] for key in list(inspect.signature(test).parameters)[1:]})
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  whatever goes wrong
                    broken.append(f"{name[5:].replace('_', ' ')}: {type(error).__name__} {error}")
    if broken:
        raise AssertionError("\n  ".join([f"{method.channel}/{method.method} breaks {len(broken)} promises:", *broken]))
