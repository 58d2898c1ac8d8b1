"""The faults themselves: each patches the code that a release or a service runs, and nothing that tests it.

By room: mechanisms, the engine and training, accounting, searches, records, channels, the handler of answers, bundles.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock import plugins, private_training
from airlock.accounting import BudgetSchedule, PrivacyFilter, events
from airlock.accounting.privacy_filter import UNIT, divergence
from airlock.accounting.renyi import RenyiAccountant
from airlock.auditing import evaluation, perplexity, regression_errors, two_tables
from airlock.bundle import Vault, answering, bundle, card, models, replan, vault
from airlock.bundle.booking import Booking
from airlock.bundle.contents import Contents
from airlock.bundle.policy import RULES, Evidence, Finding, rules
from airlock.bundle.signing import signatures
from airlock.bundle.signing.envelope import Envelope
from airlock.bundle.signing.keys import Keyring, PublicKey
from airlock.config import STEPS, Column
from airlock.data import Records, Split, memory
from airlock.data import people as data_people
from airlock.data import split as data_split
from airlock.data import tables as tables_of_files
from airlock.data import text as data_text
from airlock.data.limits import Storage
from airlock.data.remarks import Fault
from airlock.errors import DataError
from airlock.ledger import Key, Ledger, tables
from airlock.ledger.chain import RETURNED, Seal
from airlock.ledger.mark import HighWaterMark
from airlock.ledger.reservations import FOLLOWING
from airlock.ledger.state import keys_in
from airlock.ledger.transaction import Charge, Replay, Spend, Transaction
from airlock.mechanisms import (
    Clip,
    ExponentialMechanism,
    GaussianNoise,
    GridNoise,
    LocalGaussian,
    NoisyCounts,
    QuantileBound,
    RandomisedResponse,
    Randomness,
    RepeatAndSelect,
    ShardDensity,
    Stream,
    aggregate,
    clipping,
    discrete,
)
from airlock.mechanisms.clipping import row_squares
from airlock.methods import dp_sgd, rows, search
from airlock.methods.answers import neighbours as near
from airlock.methods.answers import votes
from airlock.methods.answers.answerer import PaidAnswerer
from airlock.methods.answers.neighbours import Neighbours, NeighbourVotes
from airlock.methods.answers.per_query import NoisyLogits
from airlock.methods.answers.votes import NoisyVotes
from airlock.methods.features.noised import Noised
from airlock.methods.floor import Floor
from airlock.methods.interface import Answers, Reservation
from airlock.methods.student import ensemble, teachers
from airlock.methods.student import neighbours as taught_by_near
from airlock.methods.twin import sharded, sharded_case
from airlock.methods.weights import head as weights_head
from airlock.methods.weights import head_first
from airlock.methods.weights.head import Head, HeadFigures
from airlock.nets import domain, hugging_face
from airlock.nets.wide_resnet import StandardisedConv2d
from airlock.serve import answer_handler
from airlock.serve.answer_handler import Batcher
from airlock.training import (
    ClassWeights,
    Poisson,
    PrivateGradients,
    Resident,
    convex,
    devices,
    loop,
    neighbours,
    private,
)
from airlock.training.convex import LogisticHead
from airlock.training.distributed import Group
from airlock.training.front_ends.extract import NOBODY
from airlock.training.gradients import Named
from airlock.training.per_sample import clipped_sum, engine, layers, self_check, sums
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.graphs import _Graph
from airlock.training.per_sample.people import FixedPeople, People
from airlock.training.per_sample.sealed import Sealed
from airlock.training.sharding import Piece, ShardedParameters
from tests.faults.fault import Patch, Plant

epsilon_module: Any = importlib.import_module("airlock.accounting.epsilon")
Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


def everywhere(patch: Patch, function: Callable[..., Any], instead: Callable[..., Any]) -> None:
    """In every module that has taken the function by its name."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("airlock.", "tests.")) and not name.startswith("tests.faults"):
            for attribute, value in list(vars(module).items()):
                if value is function:
                    patch.setattr(module, attribute, instead)


# Mechanisms


def noise_over(divisor: float) -> Plant:
    def plant(patch: Patch) -> None:
        scale = GaussianNoise.scale
        patch.setattr(GaussianNoise, "scale", lambda self, dimension: scale(self, dimension) / divisor)

    return plant


def no_noise(patch: Patch) -> None:
    def exact(self: GaussianNoise, total: Tensor, divisor: float, *_: object) -> Tensor:
        return total / divisor

    patch.setattr(GaussianNoise, "add_and_divide", exact)
    patch.setattr(GaussianNoise, "add", lambda self, total, *_: total)


def grid_noise_over(divisor: int) -> Plant:
    def plant(patch: Patch) -> None:
        for mechanism in (GridNoise, ExponentialMechanism):
            scale = mechanism.scale.fget  # type: ignore[attr-defined]
            patch.setattr(mechanism, "scale", property(lambda self, scale=scale: max(1, scale(self) // divisor)))

    return plant


def noise_off_the_grid(patch: Patch) -> None:
    """Floating point, whose low bits tell where the value lay."""

    def plain(self: GaussianNoise, room: Tensor, value: Tensor, unit: float, blocks: Any, shape: Any) -> None:
        for start, noise in blocks:
            where = slice(start, start + len(noise))
            room[where] = (noise.float() * self.grid + value[where].float()) * (unit / self.grid)

    patch.setattr(GaussianNoise, "_fill", plain)


def noise_on_one_side(patch: Patch) -> None:
    attempt = discrete._attempt
    patch.setattr(discrete, "_attempt", lambda *arguments: np.abs(attempt(*arguments)))


def half_the_spread(patch: Patch) -> None:
    """The exponential mechanism weighs scores as if one record moved them half as far."""
    scale = ExponentialMechanism.scale.fget  # type: ignore[attr-defined]
    patch.setattr(ExponentialMechanism, "scale", property(lambda self: scale(self) // 2))


def one_noise_for_all_rows(patch: Patch) -> None:
    noisy = GridNoise._noisy

    def repeated(self: GridNoise, value: Floats, stream: Stream) -> Floats:
        if value.ndim < 2:
            return noisy(self, value, stream)
        return value + noisy(self, np.zeros_like(value[:1]), stream)

    patch.setattr(GridNoise, "_noisy", repeated)


def no_noise_on_the_count(patch: Patch) -> None:
    """The clip norm follows the records themselves."""
    patch.setattr(QuantileBound, "share", lambda self, balance, lot, stream: balance / lot + 0.5)


def labels_stay_twice_as_surely(patch: Patch) -> None:
    kept = RandomisedResponse.kept.fget  # type: ignore[attr-defined]
    twice = property(lambda self: kept(replace(self, epsilon=2 * self.epsilon)))
    patch.setattr(RandomisedResponse, "kept", twice)


def vectors_not_clipped(patch: Patch) -> None:
    patch.setattr(aggregate, "bounded", lambda vectors, radius: vectors.double())


def published_sensitivity(patch: Patch) -> None:
    patch.setattr(ShardDensity, "sensitivity", property(lambda self: 1.0 / (self.shards * (self.shards - 1))))


def no_chance_in_every_other_coordinate(patch: Patch) -> None:
    """The likeliest point of the grid, always."""
    sample = ShardDensity.sample

    def drawn(self: ShardDensity, log_probabilities: Tensor, stream: Stream) -> Floats:
        found = sample(self, log_probabilities, stream)
        found[::2] = self.grid[log_probabilities[::2].argmax(1).cpu()].numpy()
        return found

    patch.setattr(ShardDensity, "sample", drawn)


def votes_without_noise(patch: Patch) -> None:
    def exact(self: aggregate.ShardVotes, votes: Tensor, stream: Stream) -> Floats:
        return np.asarray(torch.bincount(votes.clamp(0, self.classes - 1), minlength=self.classes).double().numpy())

    patch.setattr(aggregate.ShardVotes, "release", exact)


def a_look_without_noise(patch: Patch) -> None:
    def release(self: aggregate.SureVotes, votes: Tensor, stream: Stream) -> Floats:
        most = int(torch.bincount(votes.clamp(0, self.classes - 1), minlength=self.classes).max())
        counts = aggregate.ShardVotes(self.classes, self.noise_multiplier).release(votes, stream.child("votes"))
        return counts if most >= self.threshold else np.full(self.classes, np.nan)

    patch.setattr(aggregate.SureVotes, "release", release)


# Secret randomness


def _of_seed(seed: int, *more: object) -> Stream:
    return Stream(hashlib.sha256(repr((seed, *more)).encode()).digest(), secure=True)


def the_key_follows_from_the_public_seed(patch: Patch) -> None:
    """And the stream still says that it is secure."""
    patch.setattr(Randomness, "make", classmethod(lambda cls, seed, insecure_seed=None: cls(seed, _of_seed(seed))))


def the_key_is_the_public_seed_and_a_counter(patch: Patch) -> None:
    """Two releases of one process differ; whoever starts another process has the first one's noise again."""
    count = itertools.count()

    def make(cls: type[Randomness], seed: int, insecure_seed: int | None = None) -> Randomness:
        return cls(seed, _of_seed(seed, next(count)))

    patch.setattr(Randomness, "make", classmethod(make))


def the_systems_key_is_a_constant(patch: Patch) -> None:
    patch.setattr(Stream, "from_system", classmethod(lambda cls: _of_seed(0)))


def gradients_take_their_noise_from_the_seed(patch: Patch) -> None:
    """Lots stay secret, and the release says of its noise that it is."""

    def make(*arguments: Any, **more: Any) -> PrivateGradients:
        clip, noise, lot, stream, *rest = arguments
        stream.note_drawn("cpu")
        return PrivateGradients(clip, noise, lot, Stream.from_seed(0), *rest, **more)

    patch.setattr(dp_sgd, "PrivateGradients", make)


def lots_are_drawn_by_the_seed(patch: Patch) -> None:
    """Whoever knows who was drawn has none of the amplification that is accounted for."""
    init = Poisson.__init__
    patch.setattr(Poisson, "__init__", lambda self, q, stream: init(self, q, Stream.from_seed(0)))


def every_child_is_the_same(patch: Patch) -> None:
    patch.setattr(Stream, "child", lambda self, *label: Stream(self._key, self.secure, self._drawn))


def noise_may_be_read_twice(patch: Patch) -> None:
    patch.setattr(Stream, "_spend", lambda self: None)


# The engine and training


def _changed_factors(change: Callable[[str, Tensor, Tensor], Tensor]) -> Plant:
    def plant(patch: Patch) -> None:
        factors = Clip.factors

        def changed(self: Clip, squares: Mapping[str, Tensor], norm: Tensor | None = None) -> dict[str, Tensor]:
            found = factors(self, squares, norm)
            return {name: change(name, value.clone(), torch.ones_like(value)) for name, value in found.items()}

        patch.setattr(Clip, "factors", changed)

    return plant


def _one_at(place: int) -> Callable[[str, Tensor, Tensor], Tensor]:
    def change(name: str, found: Tensor, ones: Tensor) -> Tensor:
        if len(found) > abs(place):
            found[place] = 1.0
        return found

    return change


no_clipping = _changed_factors(lambda name, found, ones: ones)
biases_not_clipped = _changed_factors(lambda name, found, ones: ones if name.endswith("bias") else found)
the_last_row_of_a_block_not_clipped = _changed_factors(_one_at(-1))
one_record_not_clipped = _changed_factors(_one_at(1))


adapters_not_clipped = _changed_factors(lambda name, found, ones: ones if "lora_" in name else found)


def the_last_layer_alone_gets_half_the_noise(patch: Patch) -> None:
    real = PrivateGradients.__call__

    def halved(self: PrivateGradients, *args: Any, **kwargs: Any) -> Any:
        self.noise = replace(self.noise, noise_multiplier=self.noise_multiplier / 2)
        return real(self, *args, **kwargs)

    patch.setattr(head_first.PrivateGradients, "__call__", halved)


def the_last_layer_alone_is_clipped_at_twice_its_bound(patch: Patch) -> None:
    patch.setattr(head_first, "CLIP", 2 * head_first.CLIP)


def ties_between_cells_go_by_a_records_place(patch: Patch) -> None:
    real = neighbours.PublicGraph.cells

    def placed(self: neighbours.PublicGraph, features: Tensor) -> NDArray[np.int64]:
        cells, points = real(self, features), self.points.numpy()
        _, first, same = np.unique(points.round(9), axis=0, return_index=True, return_inverse=True)
        odd = np.arange(len(cells)) % 2 == 1
        return np.where(odd, first[same.ravel()[cells]], cells)

    patch.setattr(neighbours.PublicGraph, "cells", placed)


def half_the_norm_of_gpt2s_layers(patch: Patch) -> None:
    squares = layers.TransposedRule.squares

    def half(self: layers.TransposedRule, *given: Any, **more: Any) -> Named | None:
        found = squares(self, *given, **more)
        return None if found is None else {name: value / 4 for name, value in found.items()}

    patch.setattr(layers.TransposedRule, "ghost", lambda self, call: True)
    patch.setattr(layers.TransposedRule, "squares", half)


def made_up_texts_are_empty(patch: Patch) -> None:
    """Numbers from 0 to 1, which a network for text takes for no token at all."""
    patch.setattr(domain, "vocabulary_of", lambda net: None)


def a_card_names_the_folder(patch: Patch) -> None:
    everywhere(patch, hugging_face.public_name, lambda name: name)


def the_largest_tensor_for_the_norm(patch: Patch) -> None:
    """The largest of the tensors' norms in place of the L2 norm of all together."""
    patch.setattr(clipping, "_together", lambda squares: torch.stack(list(squares.values())).amax(0).sqrt())


def norms_without_cross_terms(patch: Patch) -> None:
    def squares(a: Tensor, b: Tensor, *_: object) -> Tensor:
        return (a.double().square().sum(2) * b.double().square().sum(2)).sum(1)

    patch.setattr(layers, "product_squares", squares)


def copies_counted_as_records(patch: Patch) -> None:
    """Each copy that augmentation makes of a record is clipped by itself."""
    right = clipped_sum

    def apart(net: Any, x: Tensor, y: Tensor, *more: Any) -> Any:
        return right(net, x, y.repeat_interleave(max(1, len(x) // max(1, len(y)))), *more)

    everywhere(patch, right, apart)


def records_of_a_person_clipped_one_by_one(patch: Patch) -> None:
    """And added up: whoever has fifty moves the sum by fifty bounds."""
    right = clipped_sum

    def apart(net: Any, x: Tensor, y: Tensor, clip: Clip, lot: Any = None, sampled: bool = True, *more: Any) -> Any:
        return right(net, x, y, clip, lot, sampled)

    everywhere(patch, right, apart)


def a_person_in_two_chunks(patch: Patch) -> None:
    """Cut where the next thirty rows begin, each piece is clipped by itself."""
    right = engine.sizes_of

    def cut(owners: Tensor, labels: int, most: int | None) -> Whole:
        sizes = right(owners, labels, most)
        edges = np.union1d(np.cumsum(sizes), np.arange(30, labels, 30))
        return np.diff(edges, prepend=0).astype(np.int64)

    patch.setattr(engine, "sizes_of", cut)


def rows_of_a_person_without_cross_terms(patch: Patch) -> None:
    patch.setattr(People, "cross_terms", lambda self, sides, products: torch.zeros(self.rows, dtype=torch.float64))


def the_last_row_in_fixed_shapes_is_left_out(patch: Patch) -> None:
    cross_terms = FixedPeople.cross_terms

    def short(self: FixedPeople, sides: Any, products: Any) -> Tensor:
        self.longest -= 1
        try:
            return cross_terms(self, sides, products)
        finally:
            self.longest += 1

    patch.setattr(FixedPeople, "cross_terms", short)


def squares_vanish_in_float32(patch: Patch) -> None:
    right = sums._squares_and_sizes

    def narrow(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        if a.shape[1] > 1:
            return right(a, b)
        own = row_squares(a) * row_squares(b)
        return own, own

    patch.setattr(sums, "_squares_and_sizes", narrow)


def no_margin_for_rows_that_cancel(patch: Patch) -> None:
    squares = People.squares

    def bare(self: People, own: Tensor, sizes: Tensor, cross_terms: Any, floor: float, alone: bool) -> Tensor:
        return squares(self, own, sizes, cross_terms, 0.0, alone)

    patch.setattr(People, "squares", bare)


def all_records_of_a_person(patch: Patch) -> None:
    """However many she has, whatever bound is declared."""
    right = devices.chosen_rows
    patch.setattr(devices, "chosen_rows", lambda groups, drawn, most, chance: right(groups, drawn, 10**9, chance))


def the_first_records_of_a_person(patch: Patch) -> None:
    """The same ones in every step."""
    right = devices.chosen_rows
    patch.setattr(devices, "chosen_rows", lambda groups, drawn, most, chance: right(groups, drawn, most, np.arange))


def choice_by_the_public_seed(patch: Patch) -> None:
    def choice(self: Any, step: int, count: int) -> Floats:
        return np.random.default_rng([self.seed, step]).random(count)

    patch.setattr(loop._Session, "_choice", choice)


def records_are_drawn_for_people(patch: Patch) -> None:
    """Whoever has many records is drawn more often than is accounted for."""
    patch.setattr(Resident, "units", property(len))

    def lot(self: Resident, drawn: Whole, chance: Any) -> Any:
        groups = self.groups
        assert groups is not None
        whose = np.repeat(np.arange(len(groups.starts) - 1), np.diff(groups.starts))
        rows, owners = devices.chosen_rows(groups, np.unique(whose[drawn]), self.most, chance)
        return *self.batch(rows), torch.from_numpy(owners)

    patch.setattr(Resident, "lot", lot)


def nothing_is_put_back(patch: Patch) -> None:
    """What a network remembers of a record stays in buffers, frozen parameters and attributes."""
    patch.setattr(Sealed, "restore", lambda self, tensors=True: None)


def a_graph_replays_its_first_lot(patch: Patch) -> None:
    def replay(self: _Graph, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, people: Any = None, *_: Any) -> Any:
        self.norm.fill_(clip.norm)
        self.graph.replay()
        return self.total, self.finite

    patch.setattr(_Graph, "replay", replay)


def a_graph_keeps_its_first_bound(patch: Patch) -> None:
    def replay(self: _Graph, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, people: Any = None, *_: Any) -> Any:
        self.x.copy_(x)
        self.y.copy_(y)
        self.mask.copy_(mask)
        self.graph.replay()
        return self.total, self.finite

    patch.setattr(_Graph, "replay", replay)


def noise_missing_on(first: int, last: int) -> Plant:
    """On some coordinates: those of a tensor, or of a class."""

    def plant(patch: Patch) -> None:
        noisy = PrivateGradients._noisy

        def forgetful(self: PrivateGradients, total: Tensor, step: int) -> Tensor:
            exact = total[first:last] / self.expected_lot
            made = noisy(self, total, step)
            made[first:last] = exact
            return made

        patch.setattr(PrivateGradients, "_noisy", forgetful)

    return plant


def tensors_share_their_noise(patch: Patch) -> None:
    """The second half of the coordinates gets that of the first."""
    noisy = PrivateGradients._noisy

    def shared(self: PrivateGradients, total: Tensor, step: int) -> Tensor:
        half = len(total) // 2
        noise = noisy(self, torch.zeros_like(total), step)
        noise[half : 2 * half] = noise[:half]
        return total.to(noise.dtype) / self.expected_lot + noise

    patch.setattr(PrivateGradients, "_noisy", shared)


def steps_share_their_noise(patch: Patch) -> None:
    """Every other step gets the noise of the one before."""
    noisy, kept = PrivateGradients._noisy, {}

    def again(self: PrivateGradients, total: Tensor, step: int) -> Tensor:
        if step % 2 == 0 or id(self) not in kept:
            kept[id(self)] = noisy(self, torch.zeros_like(total), step)
        return total.to(torch.float32) / self.expected_lot + kept[id(self)]

    patch.setattr(PrivateGradients, "_noisy", again)


def a_resumed_run_begins_with_the_first_noise(patch: Patch) -> None:
    """Noise goes by how many steps this process has made, not by the step's number."""
    noisy = PrivateGradients._noisy

    def counted(self: PrivateGradients, total: Tensor, step: int) -> Tensor:
        made = vars(self)["made"] = vars(self).get("made", -1) + 1
        return noisy(self, total, made)

    patch.setattr(PrivateGradients, "_noisy", counted)


def _by_the_lot(change: Callable[[PrivateGradients, int], None]) -> Plant:
    def plant(patch: Patch) -> None:
        call = PrivateGradients.__call__

        def changed(self: PrivateGradients, net: Any, x: Tensor, y: Tensor, step: int) -> None:
            change(self, len(y))
            call(self, net, x, y, step)

        patch.setattr(PrivateGradients, "__call__", changed)

    return plant


def _divide_all(self: PrivateGradients, lot: int) -> None:
    self.expected_lot = max(1, lot)


a_noisy_sum_over_the_lot_that_was_drawn = _by_the_lot(_divide_all)


def a_mean_over_the_lot_that_was_drawn(patch: Patch) -> None:
    """The clipped mean of the lot, times the expected one: a record counts for more in a small lot."""
    right = private.clipped_sum

    def mean(net: Any, x: Tensor, y: Tensor, clip: Clip, lot: float, *more: Any) -> Any:
        total, dropped = right(net, x, y, clip, lot, *more)
        return {name: value * (lot / max(1, len(y))) for name, value in total.items()}, dropped

    patch.setattr(private, "clipped_sum", mean)


def isotropic_clipping(patch: Patch) -> None:
    """The noise keeps its shape, the clipping does not follow it."""
    patch.setattr(private, "clipped_sum", lambda net, x, y, clip, *more: clipped_sum(net, x, y, Clip(0.5), *more))


def twice_the_sampling_rate(patch: Patch) -> None:
    draw = Poisson.draw
    patch.setattr(
        Poisson, "draw", lambda self, step, n: draw(Poisson(2 * self.sampling_probability, self.stream), step, n)
    )


def lots_of_fixed_size(patch: Patch) -> None:
    """Accounted as Poisson lots."""

    def draw(self: Poisson, step: int, records: int) -> Whole:
        chance = self.stream.child("lot", step).uniform(records)
        return np.sort(np.argsort(chance)[: round(self.sampling_probability * records)]).astype(np.int64)

    patch.setattr(Poisson, "draw", draw)


def one_step_more(patch: Patch) -> None:
    finish = loop._Session.finish

    def once_more(self: loop._Session) -> None:
        self.advance(self.recipe.steps)
        finish(self)

    patch.setattr(loop._Session, "finish", once_more)


def half_of_the_planned_noise(patch: Patch) -> None:
    """What is executed says so itself."""
    init = PrivateGradients.__init__
    patch.setattr(
        PrivateGradients,
        "__init__",
        lambda self, clip, noise, *more, **named: init(self, clip, noise / 2, *more, **named),
    )


def chance_by_the_public_seed(patch: Patch) -> None:
    """Dropout and augmentation, which tell who is in a lot."""
    patch.setattr(loop._Session, "_chance", lambda self, step: loop.mix(self.seed, step))


def no_process_adds_the_noise(patch: Patch) -> None:
    """In a group each takes another for the one that does."""
    once = Group.once

    def forgotten(self: Group, values: Tensor, dropped: int, mechanism: Any) -> tuple[Tensor, int]:
        return once(self, values, dropped, mechanism if self.world == 1 else lambda whole: whole)

    patch.setattr(Group, "once", forgotten)


def shards_get_the_mean(patch: Patch) -> None:
    """What FSDP does with gradients."""
    reduce = ShardedParameters.reduce

    def mean(self: ShardedParameters, name: str, value: Tensor) -> Tensor:
        return reduce(self, name, value) / self.group.world

    patch.setattr(ShardedParameters, "reduce", mean)


def each_process_adds_noise_to_all_rows(patch: Patch) -> None:
    """Before the rows go to their owners, who add theirs."""
    reduce = ShardedParameters.reduce

    def noisy(self: ShardedParameters, name: str, value: Tensor) -> Tensor:
        return reduce(self, name, value + torch.randn_like(value))

    patch.setattr(ShardedParameters, "reduce", noisy)


def shards_share_their_noise(patch: Patch) -> None:
    """A shard's noise begins where that of its parameter does."""
    patch.setattr(Piece, "offset", property(lambda self: 0))


def every_process_has_streams_of_its_own(patch: Patch) -> None:
    """And so draws its own lots."""
    patch.setattr(Group, "share", lambda self, stream: stream)


def a_record_counts_in_every_process(patch: Patch) -> None:
    patch.setattr(Group, "part", lambda self, lot: lot)


# Accounting


def epsilon_at_a_hundred_times_delta(patch: Patch) -> None:
    bounded = epsilon_module._bounded
    patch.setattr(epsilon_module, "_bounded", lambda content, delta, how: bounded(content, 100 * delta, how))


def a_foreign_accountant_has_the_last_word(patch: Patch) -> None:
    told = epsilon_module.EpsilonBound
    patch.setattr(epsilon_module, "_raised", lambda own, theirs, name: told(theirs, own.accountant, own.version))


def tuning_runs_are_free(patch: Patch) -> None:
    events_of = BudgetSchedule.events
    patch.setattr(BudgetSchedule, "events", lambda self: events_of(replace(self, runs=1)))


def the_last_step_is_free(patch: Patch) -> None:
    repeat = events.repeat
    everywhere(patch, repeat, lambda event, count: repeat(event, max(1, count - 1)))


def only_the_first_event_is_composed(patch: Patch) -> None:
    compose = events.compose
    everywhere(patch, compose, lambda all_of_them: compose(list(all_of_them)[:1]))


def renyi_without_delta(patch: Patch) -> None:
    """The divergence of the best order, without what δ costs at that order."""

    def epsilon(event: dpa.DpEvent, delta: float, orders: Sequence[int] | None = None) -> float:
        with epsilon_module.quiet():
            accountant = epsilon_module.rdp.RdpAccountant(orders)
            accountant.compose(event)
            return float(np.min(accountant._rdp[1:] if len(accountant._rdp) > 1 else accountant._rdp))

    patch.setattr(epsilon_module, "_rdp_epsilon", epsilon)


def sampling_under_replace_one(patch: Patch) -> None:
    """A replaced record is accounted for as one more or less."""
    everywhere(patch, events.contains_sampling, lambda event: False)


def failures_cost_nothing(patch: Patch) -> None:
    right = events.without_failure
    everywhere(patch, right, lambda event: (right(event)[0], 0.0))


# Searches


def as_many_runs(number: int) -> Plant:
    """The number of runs is fixed, and nobody is told."""
    return lambda patch: patch.setattr(RepeatAndSelect, "draw", lambda self, stream: number)


def scores_without_noise(patch: Patch) -> None:
    everywhere(patch, search.scored, lambda correct, epsilon, stream: correct)


def the_winner_is_paid_for_as_if_alone(patch: Patch) -> None:
    patch.setattr(RepeatAndSelect, "event", lambda self, run: run)


def the_first_candidate_stands_for_all(patch: Patch) -> None:
    everywhere(patch, events.choose, lambda events: events[0])


def the_last_of_several_for_the_largest(patch: Patch) -> None:
    def composed(self: RenyiAccountant, event: Any, count: int, do_compose: bool) -> Any:
        return self._maybe_compose(event.events[-1], count, do_compose)

    patch.setattr(RenyiAccountant, "_compose_largest", composed)


def scores_cost_nothing(patch: Patch) -> None:
    patch.setattr(card, "paid_by_scores", lambda tuning: None)


def only_the_winner_assumes(patch: Patch) -> None:
    def own(self: search.Search, place: int, executed: tuple[str, ...] | None = None) -> tuple[str, ...]:
        return (*(executed or self.channels[place].planned.guarantee.assumptions), search.SEARCHED)

    patch.setattr(search.Search, "_assumed", own)


def a_resumed_search_draws_anew(patch: Patch) -> None:
    begin = search._Kept.begin.__func__  # type: ignore[attr-defined]
    patch.setattr(
        search._Kept, "begin", classmethod(lambda cls, run, privacy: begin(cls, replace(run, resume=False), privacy))
    )


# Records


def _by_place(records: Records, seed: int, purpose: bytes = b"") -> tuple[Floats, data_split.Digests]:
    places = np.arange(len(records))
    return places / max(1, len(records)), np.stack([np.zeros_like(places), places], axis=1).astype(np.uint64)


def _positions_where(patch: Patch, is_wrong: Callable[[bytes], bool]) -> None:
    right = data_split.positions

    def positions(records: Records, seed: int, purpose: bytes = b"") -> tuple[Floats, data_split.Digests]:
        return (_by_place if is_wrong(purpose) else right)(records, seed, purpose)

    patch.setattr(data_split, "positions", positions)


def shards_by_position(patch: Patch) -> None:
    _positions_where(patch, lambda purpose: purpose == data_split._SHARDS)


def parts_by_position(patch: Patch) -> None:
    _positions_where(patch, lambda purpose: purpose != data_split._SHARDS)


def equal_records_share_a_part(patch: Patch) -> None:
    patch.setattr(data_split, "_numbered", lambda digests, key, purpose: digests)


def parts_in_the_order_of_the_file(patch: Patch) -> None:
    """Which of several equal records is whose shows in the order: one more of them moves another."""
    patch.setattr(data_split, "in_order", lambda digests: np.arange(len(digests)))


def records_lie_in_a_file_with_a_name(patch: Patch) -> None:
    patch.setattr(Storage, "_file", lambda self: tempfile.NamedTemporaryFile(dir=self.folder, delete=False))  # noqa: SIM115


def a_person_in_two_parts(patch: Patch) -> None:
    """The records of a test person that are not tested on are trained on."""
    divide = data_split.divide

    def more(facts: Any, pool: Records, *arguments: Any) -> Split:
        found = divide(facts, pool, *arguments)
        if pool.person is None or found.test.person is None:
            return found
        there = [set(map(bytes, part.x)) for part in (found.private, found.public, found.test, found.holdout)]
        left = [i for i, row in enumerate(pool.x) if not any(bytes(row) in part for part in there)]
        return replace(found, private=data_split.joined(found.private, pool.take(np.array(left, np.int64))))

    everywhere(patch, divide, more)


def _by_content(patch: Patch, is_wrong: Callable[[bytes], bool]) -> None:
    right = data_split.positions

    def positions(records: Records, seed: int, purpose: bytes = b"") -> tuple[Floats, data_split.Digests]:
        return right(replace(records, person=None) if is_wrong(purpose) else records, seed, purpose)

    patch.setattr(data_split, "positions", positions)


def people_are_split_by_content(patch: Patch) -> None:
    _by_content(patch, lambda purpose: purpose != data_split._SHARDS)


def people_are_sharded_by_content(patch: Patch) -> None:
    _by_content(patch, lambda purpose: purpose == data_split._SHARDS)


def every_record_of_a_test_person_counts(patch: Patch) -> None:
    patch.setattr(data_split, "at_most", lambda records, *how: records)


def people_numbered_by_position(patch: Patch) -> None:
    """In the order of appearance, as one would: whoever comes first moves everybody."""

    def number(ids: Sequence[str | None]) -> Whole:
        known = {one: place for place, one in enumerate(dict.fromkeys(ids))}
        return np.array([known[one] for one in ids], np.int64)

    patch.setattr(data_people, "number", number)


def texts_cut_to_the_shortest_of_their_block(patch: Patch) -> None:
    """As one would to save memory: whoever has a short text changes everybody's."""
    encode = data_text.Tokenizer.encode

    def cut(self: data_text.Tokenizer, name: str, cells: Sequence[str | None], *more: Any) -> Any:
        block = encode(self, name, cells, *more)
        block[:, max(1, int((block > 0).sum(1).min())) :] = 0
        return block

    patch.setattr(data_text.Tokenizer, "encode", cut)


def a_text_that_cannot_be_encoded_stops_the_load(patch: Patch) -> None:
    numbers = data_text.Tokenizer.numbers

    def refusing(self: data_text.Tokenizer, text: str) -> list[int]:
        found = numbers(self, text)
        if isinstance(found, Fault):
            raise DataError("texts that the tokenizer can encode", "another")
        return found

    patch.setattr(data_text.Tokenizer, "numbers", refusing)


def tokenizers_may_draw_random_numbers(patch: Patch) -> None:
    patch.setattr(data_text, "_RANDOM", ())


def rows_of_text_cut_to_the_shortest(patch: Patch) -> None:
    """A batch at one length: what is left of a text then hangs on who else is there."""

    def by_length(net: nn.Module, x: Tensor) -> Iterator[tuple[Tensor | None, Tensor]]:
        shortest = int((x >= 1).sum(1).min().clamp(min=1))
        yield torch.arange(len(x)), x[:, :shortest].contiguous()

    everywhere(patch, domain.by_length, by_length)


def networks_tried_in_the_lengths_that_occur(patch: Patch) -> None:
    """A network that fails on short texts is then refused if one is there, and not if none is."""
    patch.setattr(
        engine, "groups_of", lambda net, x, alone: domain.by_length(net, x) if alone and len(x) else iter([(None, x)])
    )


def positions_not_looked_at(patch: Patch) -> None:
    patch.setattr(self_check, "_check_places", lambda *given: None)


def half_the_noise_on_the_floor(patch: Patch) -> None:
    patch.setattr(Floor, "noise", property(lambda self: GaussianNoise(0.5, self.noise_multiplier)))


def every_record_of_a_person_counts_for_the_floor(patch: Patch) -> None:
    patch.setattr(Records, "weights", property(lambda self: np.ones(len(self))))


def filters_not_mapped_back(patch: Patch) -> None:
    """Clipped is then the gradient of the standardised filter, and not that of the one that leaves."""
    patch.setattr(StandardisedConv2d, "pull_back", lambda self, gradients, weight: gradients)


def tried_with_care_and_summed_without(patch: Patch) -> None:
    def careless(self: engine.Use, x: Tensor, y: Tensor, mask: Tensor, clip: Clip, people: Any = None) -> Any:
        return self.engine.masked_sum(x, y, mask, clip, people=people)

    patch.setattr(engine.Use, "_sum", careless)


def identifiers_as_numpy_has_them(patch: Patch) -> None:
    """Fractions where one is missing: two people with long identifiers are one."""
    patch.setattr(memory, "values_of", np.asarray)


def class_weights_above_one(patch: Patch) -> None:
    """Relative to the smallest: after clipping, or in a sensitivity that forgets the largest, that is too much."""
    least = lambda self: np.asarray(self.relative) / min(self.relative)  # noqa: E731
    patch.setattr(convex, "LARGEST_WEIGHT", math.inf)
    patch.setattr(ClassWeights, "of_array", lambda self, labels: least(self)[labels])
    patch.setattr(ClassWeights, "of", lambda self, labels: torch.from_numpy(least(self))[labels])


def records_weigh_one_each(patch: Patch) -> None:
    patch.setattr(Records, "weights", property(lambda self: np.ones(len(self))))


def holdout_records_are_private_too(patch: Patch) -> None:
    """They are trained on, and attacked as if they were not."""
    divide = data_split.divide

    def joined(*arguments: Any) -> Split:
        found = divide(*arguments)
        both = (found.private, found.holdout)
        return replace(found, private=Records(np.concatenate([r.x for r in both]), np.concatenate([r.y for r in both])))

    everywhere(patch, divide, joined)


def _with_the_next(own: Sequence[Whole]) -> list[Whole]:
    return [np.concatenate([own[i], own[(i + 1) % len(own)]]) for i in range(len(own))]


def shards_hold_the_next_one_too(patch: Patch) -> None:
    shard = data_split.shard
    everywhere(patch, shard, lambda records, count, seed: _with_the_next(shard(records, count, seed)))


def every_teacher_sees_the_next_shard(patch: Patch) -> None:
    ask = teachers.ask_shards

    def asked(start: Any, records: Records, shards: Sequence[Whole], *more: Any) -> Tensor:
        return ask(start, records, _with_the_next(shards), *more)

    everywhere(patch, ask, asked)


def _doubled_in(module: Any, with_it: int) -> Plant:
    """The record that differs, wherever it is, enters the next shard as well."""

    def plant(patch: Patch) -> None:
        divide = module.shard

        def doubled(records: Records, count: int, seed: int) -> list[Whole]:
            own: list[Whole] = divide(records, count, seed)
            if len(records) == with_it:
                own[1] = np.append(own[1], with_it - 1)
            return own

        patch.setattr(module, "shard", doubled)

    return plant


def a_record_in_two_shards(patch: Patch) -> None:
    _doubled_in(sharded, len(sharded_case.neighbours(0)[0]))(patch)


def a_record_with_two_teachers(patch: Patch) -> None:
    _doubled_in(ensemble, len(ensemble.neighbours(0)[0]))(patch)


def a_vote_in_two_shards(patch: Patch) -> None:
    """The record that differs, which has a shard of its own, enters another empty one as well."""
    divide = votes.shard

    def doubled(records: Records, count: int, seed: int) -> list[Whole]:
        own, last = divide(records, count, seed), len(records) - 1
        if any(list(places) == [last] for places in own) and len(records) % votes.PER_HEAD == 1:
            own[[len(places) for places in own].index(0)] = np.array([last])
        return own

    patch.setattr(votes, "shard", doubled)


def _votes_twice(module: ModuleType) -> Plant:
    """Every record votes in the next cell too."""
    count = module.tally

    def twice(cells: Whole, *arguments: Any) -> Whole:
        found: Whole = count(cells, *arguments)
        return np.asarray(found + np.roll(found, 1, 0))

    return lambda patch: patch.setattr(module, "tally", twice)


a_record_votes_in_two_cells, a_record_labels_two_cells = _votes_twice(near), _votes_twice(taught_by_near)


def every_record_of_a_person_votes(patch: Patch) -> None:
    patch.setattr(Neighbours, "weights_of", lambda self, records: torch.ones(len(records), dtype=torch.float64))


def every_record_of_a_person_labels(patch: Patch) -> None:
    patch.setattr(Records, "weights", property(lambda self: np.ones(len(self))))


# Channels


def the_first_release_has_no_noise(patch: Patch) -> None:
    """Of `weights`/`head`; its steps have theirs, and the mean or the counts are accounted for."""

    def first(self: Head, data: Any, figures: HeadFigures, stream: Stream, run: Any) -> list[dpa.DpEvent]:
        assert figures.first_noise is not None
        data.improve(np.asarray(data.total()), figures.first_noise, self.records)
        return [figures.first_noise.event]

    patch.setattr(Head, "_first", first)


def the_mean_is_not_counted(patch: Patch) -> None:
    """Neither in the plan nor in what was executed, so that the two agree."""
    first, schedule = Head._first, Head._schedule
    patch.setattr(Head, "_first", lambda self, *more: first(self, *more) and [])
    patch.setattr(Head, "_schedule", lambda self, noise: replace(schedule(self, noise), before=None))


def counts_as_if_of_one_number(patch: Patch) -> None:
    """Noise for one number's counts on those of all of them."""
    patch.setattr(weights_head, "sensitivity", lambda numbers: 1.0)


def longer_features(patch: Patch) -> None:
    """Features of norm 3 where 1 is accounted for."""
    patch.setattr(LogisticHead, "bounded", lambda self, features: 3 * features.double())


def mean_over_the_real_number(patch: Patch) -> None:
    """The objective divides by the records that are there, not by the public figure."""

    def gradient(self: convex._Heads, heads: Tensor) -> Tensor:
        residual = (torch.softmax(self.x @ heads.mT, 2) - self.target).mul_(self.weight)
        return (residual.mT @ self.x) / self.longest + self.objective.regularisation * heads

    patch.setattr(convex._Heads, "gradient", gradient)


def rows_not_clipped(patch: Patch) -> None:
    patch.setattr(LocalGaussian, "clip", lambda self, rows: rows.flatten(1).float())


def records_taken_for_half_as_far_apart(patch: Patch) -> None:
    """Noise for a distance of R, as from the centre, where two records are 2R apart."""
    patch.setattr(LocalGaussian, "noise", property(lambda self: GaussianNoise(self.clip_norm, self.noise_multiplier)))


def one_row_of_a_person_is_hidden(patch: Patch) -> None:
    """Noise for a distance of 2R, where K rows of a person are 2R√K apart."""
    noise = property(lambda self: GaussianNoise(2 * self.clip_norm, self.noise_multiplier))
    patch.setattr(LocalGaussian, "noise", noise)


def every_record_of_a_person_takes_a_row(patch: Patch) -> None:
    """However many she has, whatever bound is declared."""
    patch.setattr(rows, "limited", lambda records, most, seed: np.arange(len(records)))


def which_rows_are_hers_follows_from_the_others(patch: Patch) -> None:
    """The records that take part of whoever has too many are those at the front of the file, of all together."""
    patch.setattr(rows, "limited", lambda records, most, seed: np.arange(min(len(records), most * records.units)))


def labels_of_a_person_cost_as_one(patch: Patch) -> None:
    """Each of K labels is answered with the whole ε of labels, and one of them is counted."""

    def one(self: Noised, numbers: dpa.DpEvent) -> dpa.DpEvent:
        assert self.response is not None
        return events.repeat(events.compose([numbers, self.response.event]), self.config.tuning_runs)

    share = property(lambda self: RandomisedResponse(len(self.facts.classes), self.settings.label_epsilon))
    patch.setattr(Noised, "response", share)
    patch.setattr(Noised, "_with_labels", one)


def rows_share_their_noise(patch: Patch) -> None:
    def add(self: LocalGaussian, found: Tensor, stream: Stream) -> Floats:
        clipped = self.clip(found).cpu().numpy()
        return np.asarray(clipped + self.noise.add(np.zeros_like(clipped[:1]), stream))

    patch.setattr(LocalGaussian, "add", add)


def _rows_drawn(instead: Callable[[Records, int, Stream], Whole]) -> Plant:
    def plant(patch: Patch) -> None:
        everywhere(patch, rows.draw_rows, lambda records, count, choices, *more: instead(records, count, choices))

    return plant


def _as_there_are(records: Records, count: int, choices: Stream) -> Whole:
    return rows.permutation(len(records), choices.child("order"))


def _in_the_order_of_the_file(records: Records, count: int, choices: Stream) -> Whole:
    kept = rows.keep(records, count, choices.child("kept").take_key())
    return np.append(np.sort(kept), np.full(count - len(kept), NOBODY, np.int64))


def _anybody_left_out(records: Records, count: int, choices: Stream) -> Whole:
    """Who is left out is drawn anew for every set: one record more may change all rows."""
    drawn = rows.permutation(len(records), choices.child("order"))[:count]
    return np.append(drawn, np.full(count - len(drawn), NOBODY, np.int64))


as_many_rows_as_records = _rows_drawn(_as_there_are)
rows_in_the_order_of_the_file = _rows_drawn(_in_the_order_of_the_file)
anybody_is_left_out = _rows_drawn(_anybody_left_out)


# The handler of answers


def _free(answerer: type[NoisyLogits | NoisyVotes | NeighbourVotes]) -> Plant:
    """Its reservations cost nothing."""

    def free(self: PaidAnswerer, rows: int) -> Reservation:
        made = Reservation(rows, 0)
        self._open[id(made)] = made
        return made

    return lambda patch: patch.setattr(answerer, "reserve", free)


votes_never_charges = _free(NoisyVotes)
neighbours_never_charge = _free(NeighbourVotes)
per_query_never_charges = _free(NoisyLogits)


def a_request_is_charged_as_one_row(patch: Patch) -> None:
    def spend(client: str, reservation: Reservation, query: Any, key: str | None) -> Spend:
        return Spend(client, 1, query.digest, 1, key)

    patch.setattr(answer_handler, "_spend", spend)


def charged_after_the_answer(patch: Patch) -> None:
    async def handle(
        self: answer_handler.AnswerHandler, client: str, query: Any, key: str | None
    ) -> answer_handler.PaidAnswer:
        reservation = self._answerer.reserve(len(query.x))
        outputs = await self._answer(query, reservation)
        outcome = await self._pay(client, reservation, query, key)
        assert isinstance(outcome, Charge)
        return answer_handler.PaidAnswer(outputs, outcome.units, outcome.left)

    patch.setattr(answer_handler.AnswerHandler, "handle", handle)


def an_answer_serves_every_client(patch: Patch) -> None:
    """What somebody has paid for is kept for whoever asks the same: the charge is missing, the noise is another's."""
    right, kept = answer_handler.AnswerHandler.handle, {}

    async def handle(
        self: answer_handler.AnswerHandler, client: str, query: Any, key: str | None
    ) -> answer_handler.PaidAnswer:
        if query.digest not in kept:
            kept[query.digest] = await right(self, client, query, key)
        return kept[query.digest]

    patch.setattr(answer_handler.AnswerHandler, "handle", handle)


def a_walk_skips_the_totals(patch: Patch) -> None:
    patch.setattr("airlock.ledger.verify.differs", lambda connection, state: None)


def the_hashes_have_no_key(patch: Patch) -> None:
    patch.setattr(HighWaterMark, "seal", lambda self, ledger: Seal(bytes(32)))


def the_table_of_keys_lets_in(patch: Patch) -> None:
    def found(self: Ledger, name: str) -> tuple[Key, str] | None:
        with tables.reading(self.engine) as connection:
            return keys_in(connection).get(name)

    patch.setattr(Ledger, "find_key", found)


def the_clock_goes_back(patch: Patch) -> None:
    patch.setattr(Ledger, "now", lambda self: int(self._clock() * 1000))


def an_uncertain_charge_is_handed_out_twice(patch: Patch) -> None:
    unanswered = Transaction._unanswered

    def again(self: Transaction, spend: Spend, held: object, total: int) -> Charge | None:
        found = unanswered(self, spend, held, total)  # type: ignore[arg-type]
        self.taken.clear()
        return found

    patch.setattr(Transaction, "_unanswered", again)


def the_budget_has_no_end(patch: Patch) -> None:
    charge = Transaction.charge

    def charged(self: Transaction, spend: Spend) -> Charge | Replay:
        cap, self.cap = self.cap, 10**9
        try:
            return charge(self, spend)
        finally:
            self.cap = cap

    patch.setattr(Transaction, "charge", charged)


def charged_after_reading(patch: Patch) -> None:
    """The charge is marked as started only when the records have been read."""
    start, guarded = Booking.start, Booking.guarded

    def late(self: Booking, config: Any, split: Any) -> Any:
        start(self)
        return guarded(self, config, split)

    patch.setattr(Booking, "start", lambda self: None)
    patch.setattr(Booking, "guarded", late)


def a_cost_is_rounded_down(patch: Patch) -> None:
    def cost(self: PrivacyFilter, parts: Sequence[dpa.DpEvent]) -> int:
        return max(1, math.floor(max(divergence(event, self.order) for event in parts) / UNIT))

    patch.setattr(PrivacyFilter, "cost", cost)


def a_run_that_reads_is_given_back(patch: Patch) -> None:
    patch.setitem(FOLLOWING, RETURNED, (False, True))


def a_resumed_run_draws_anew_for_nothing(patch: Patch) -> None:
    patch.setattr(Booking, "randomness", lambda self, seed, insecure: Randomness.make(seed, insecure))


def a_reservation_can_be_answered_again(patch: Patch) -> None:
    for answerer in (NoisyLogits, NoisyVotes):
        patch.setattr(answerer, "_close", lambda self, reservation: None)


def all_requests_share_their_noise(patch: Patch) -> None:
    """One stream for the whole session of a service."""

    def one(self: Batcher, x: NDArray[np.float32], reservation: Reservation) -> Answers | Exception:
        return self._answerer.answer(x, reservation, _of_seed(1))

    patch.setattr(Batcher, "_one", one)


def half_the_noise_on_counts(patch: Patch) -> None:
    """A card says more of test records than it states."""
    noise = NoisyCounts._noise
    patch.setattr(NoisyCounts, "_noise", lambda self, cells, stream: noise(self, cells, stream) // 2)


def no_noise_on_counts(patch: Patch) -> None:
    """A card says of test records what is true."""
    patch.setattr(NoisyCounts, "_noise", lambda self, cells, stream: np.zeros(cells, np.int64))


def tables_cost_twice_what_is_stated(patch: Patch) -> None:
    """The shares of a card's tables add up to two."""
    patch.setattr(evaluation, "SHARES", (1.0, 0.5, 0.5))


def _views_alone(net: nn.Module, x: Tensor, y: Tensor, clip: Clip, *_: object) -> tuple[Named, int]:
    """Each view of a record is clipped as if it were a record."""
    views = torch.cat([torch.roll(x, (i, j), (2, 3)) for i in range(2) for j in range(4)])
    was = net.training
    net.eval()
    found = clipped_sum(net, views, y.repeat(8), clip, 200.0)
    net.train(was)
    return found


def _in_the_batch(net: nn.Module, x: Tensor, y: Tensor, clip: Clip, *_: object) -> tuple[Named, int]:
    """A record's gradient is taken among the others, so that they matter to it."""
    parameters = dict(net.named_parameters())
    losses = nn.functional.cross_entropy(net(x), y, reduction="none")
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    for loss in losses:
        found = dict(
            zip(parameters, torch.autograd.grad(loss, list(parameters.values()), retain_graph=True), strict=True)
        )
        whole = torch.stack([g.norm() for g in found.values()]).norm()
        for name, g in found.items():
            total[name] += g.double() * min(1.0, clip.norm / float(whole))
    return total, 0


def views_are_clipped_alone(patch: Patch) -> None:
    """What a network makes of one record is clipped piece by piece."""
    patch.setattr(private, "clipped_sum", _views_alone)


def records_meet_in_a_batch(patch: Patch) -> None:
    """A record's gradient is taken among the others."""
    patch.setattr(private, "clipped_sum", _in_the_batch)


# Bundles: what whoever checks, opens or resumes one no longer looks at.


def a_plan_is_not_compared(patch: Patch) -> None:
    patch.setattr(replan, "_compare", lambda *told: [])


def the_figures_of_a_plan_are_not_compared(patch: Patch) -> None:
    patch.setattr(replan, "_of_plan", lambda plan, card: iter(()))


def the_data_of_a_plan_are_not_compared(patch: Patch) -> None:
    patch.setattr(replan, "_of_data", lambda facts, config, card: iter(()))


def a_required_signature_is_not_required(patch: Patch) -> None:
    right = Keyring.of

    def of(vault: Vault | None, required: Iterable[PublicKey] = ()) -> Keyring:
        return replace(right(vault, required), required=())

    patch.setattr(Keyring, "of", of)


def any_known_key_will_do(patch: Patch) -> None:
    patch.setattr(Keyring, "accepts", lambda self, key: True)


def a_signature_is_not_checked(patch: Patch) -> None:
    patch.setattr(Envelope, "is_by", lambda self, key: True)


def signed_files_are_not_compared(patch: Patch) -> None:
    patch.setattr(signatures, "_differences", lambda listed, files: [])


def a_rejection_is_passed_over(patch: Patch) -> None:
    patch.setattr(answering, "refuse_rejected", lambda *told: None)


def a_bundle_is_opened_unverified(patch: Patch) -> None:
    patch.setattr(answering, "read_verified", lambda folder, *told, **more: bundle.read(folder))


def the_interface_is_the_bundles(patch: Patch) -> None:
    patch.setattr(answering, "recorded", lambda card, vault: (f"{card.channel}/{card.method}", card.interface))


def the_vaults_record_is_passed_over(patch: Patch) -> None:
    patch.setattr(sys.modules["airlock.bundle.verify"], "_record", lambda files, card, vault: [])


def records_are_not_compared_on_resume(patch: Patch) -> None:
    patch.setattr(vault, "hmac", SimpleNamespace(compare_digest=lambda one, other: True))


def a_checkpoint_is_not_emptied(patch: Patch) -> None:
    patch.setattr(vault, "shutil", SimpleNamespace(rmtree=lambda folder, **more: None))


def an_onnx_file_is_not_compared(patch: Patch) -> None:
    """It is what it should be, whatever it is."""
    patch.setattr(models.Pair, "expected", property(lambda self: self.content))


def a_file_may_change_after_its_verification(patch: Patch) -> None:
    patch.setattr(Contents, "expect", lambda self, digests: None)


def what_a_bundle_names_is_imported(patch: Patch) -> None:
    patch.setattr(plugins, "refuse_strangers", lambda config, given=None: None)


# The policy of a house.


def a_rule_is_skipped(key: str) -> Plant:
    """A limit of the policy that nobody looks at."""

    def plant(patch: Patch) -> None:
        patch.setitem(RULES, key, lambda given, limit: iter(()))

    return plant


def what_was_not_seen_is_kept(patch: Patch) -> None:
    """Without the dossier every limit on attacks is taken as kept."""
    for key, rule in list(RULES.items()):

        def seen(given: Evidence, limit: Any, rule: rules.Rule = rule) -> Iterator[Finding]:
            return (one for one in rule(given, limit) if one.checked)

        patch.setitem(RULES, key, seen)


def a_fingerprint_is_taken_at_its_word(patch: Patch) -> None:
    """A signature counts by the key that it names, whoever made it."""
    patch.setattr(rules, "_by_one_of", lambda found, accepted: found is not None and found.fingerprint in accepted)
    patch.setattr(rules, "_approves", lambda found: found is not None and found.approval is not None)


# Regression.


def a_target_is_not_clamped(patch: Patch) -> None:
    """A target outside its declared range stays where it is."""

    def unclamped(name: str, cells: Any, target: Any, faults: Any, first: int = 0) -> Any:
        values, _ = tables_of_files._filled(name, cells, Column(min=target.min, max=target.max), faults, first)
        return np.rint(STEPS * (values - target.min) / target.span).astype(np.int64)

    patch.setattr(tables_of_files, "targets", unclamped)


def an_error_is_not_bounded(patch: Patch) -> None:
    """A record with a large error adds more than its unit to the counts."""

    def unbounded(deviations: Any) -> Any:
        found = np.zeros(len(regression_errors.KNOTS), np.int64)
        found[-1] = np.rint(two_tables.UNIT * (deviations / regression_errors.CAP) ** 2).sum()
        return found

    patch.setattr(regression_errors, "_table", unbounded)


def half_the_noise_on_two_tables(patch: Patch) -> None:
    """Each table is noised as if it had twice its share of ε."""
    noises = two_tables.noises
    patch.setattr(two_tables, "noises", lambda epsilon: noises(2 * epsilon))


def a_residual_is_not_clamped(patch: Patch) -> None:
    """The gradient of a certified regression grows with the distance from the target."""
    patch.setattr(convex.HuberHead, "residual", lambda self, outputs, targets: outputs - targets)


# Records in memory.


def cells_of_a_list_take_one_type(patch: Patch) -> None:
    """As numpy makes them: one cell of text makes text of all numbers."""
    patch.setattr(memory, "as_array", np.asarray)


def numbers_in_a_column_of_dates_are_days(patch: Patch) -> None:
    """Unless one cell of the column is none."""
    cells_of = memory.cells_of

    def by_type(values: Any, column: Column | None) -> Any:
        date = column is not None and column.sort == "date" and values.dtype.kind in "if"
        return values.astype(np.float64) if date else cells_of(values, column)

    patch.setattr(memory, "cells_of", by_type)


def identifiers_are_rounded(patch: Patch) -> None:
    """Where one is missing, two people of nearly the same number become one."""
    patch.setattr(memory, "_inexact", lambda values: np.empty(0, np.int64))


def items_share_their_chance(patch: Patch) -> None:
    """A random transform does something else to every item behind one that is added."""
    patch.setattr(private_training, "_same_chance", lambda: contextlib.nullcontext(lambda: None))


# Language models.


def a_shared_table_is_clipped_use_by_use(patch: Patch) -> None:
    """The gradients of a table that two layers use are not added up before their norm is taken."""
    patch.setattr(BookKeeper, "_shared", lambda self, calls: set())


def texts_are_weighed_by_the_tokens_of_their_batch(patch: Patch) -> None:
    """The loss of a text is divided by the number of tokens in its batch."""
    forward = hugging_face.LanguageModel.forward
    patch.setattr(hugging_face.LanguageModel, "forward", lambda self, x: forward(self, x) / (x > 0).sum())


def a_loss_is_not_bounded(patch: Patch) -> None:
    """A text with a large loss adds more than its unit to the counts."""

    def unbounded(steps: Any) -> Any:
        found = np.zeros(len(perplexity.KNOTS), np.int64)
        found[-1] = np.rint(two_tables.UNIT * steps / STEPS).sum()
        return found

    patch.setattr(perplexity, "_table", unbounded)
