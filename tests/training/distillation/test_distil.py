"""Distillation: the losses, the stages on targets as arrays, rounds, and resuming."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.errors import Interrupted, TrainingError
from airlock.mechanisms import Stream
from airlock.nets import create
from airlock.nets.hints import guided
from airlock.training import Recipe, Run, Shuffled, fit
from airlock.training.distillation.distil import (
    Asked,
    Cached,
    LabelLoss,
    MatchLoss,
    SoftLoss,
    SquaredLoss,
    Stage,
    answers,
    at_places,
    learn,
    learn_hints,
    learn_labels,
)
from airlock.training.distillation.rounds import RandomQueries, Rounds, Timetable, outputs
from airlock.training.distillation.selection import select
from airlock.training.distillation.variations import Balanced, vary
from airlock.training.stages import Stages

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)
X = np.random.default_rng(0).random((60, *SHAPE), np.float32)
TEACHER = create("rona-digits-teacher", SHAPE, 4, 7).eval()
PLACES = torch.arange(60)


def student(seed: int = 0) -> nn.Module:
    return create("rona-digits-student", SHAPE, 4, seed)


def stage(steps: int = 30, run: Run | None = None) -> Stage:
    recipe = Recipe(steps=steps, optimiser="adam", learning_rate=3e-3)
    return Stage(Shuffled(20, 0), recipe, 0, run or Run())


def distil(net: nn.Module, targets: Asked | Tensor | np.ndarray, how: Stage) -> None:
    inputs = at_places(X, CPU)
    learn(net, inputs, SoftLoss(answers(targets, inputs), 3.0), how, "distilling")


def test_the_losses_are_the_papers() -> None:
    torch.manual_seed(0)
    out, z, y = torch.randn(5, 4), torch.randn(9, 4), torch.randint(4, (9,))
    place = torch.tensor([8, 0, 3, 3, 1])
    x = torch.zeros(5, 1)
    one = [0.5 * float((out[i] - z[p]).square().sum()) for i, p in enumerate(place)]
    assert float(SquaredLoss(Cached(z))(out, x, place)) == pytest.approx(sum(one) / 5)
    soft = [-float((F.softmax(z[p] / 3, 0) * F.log_softmax(out[i] / 3, 0)).sum()) for i, p in enumerate(place)]
    assert float(SoftLoss(Cached(z), 3.0)(out, x, place)) == pytest.approx(sum(soft) / 5)
    assert float(LabelLoss(Cached(y))(out, x, place)) == pytest.approx(float(F.cross_entropy(out, y[place])))


class Constant:
    """A change after which nothing is left of the loss, from a step on."""

    by_record = False

    def __init__(self, since: int) -> None:
        self.since, self.stream = since, Stream.from_seed(0)

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        pass

    def __call__(self, loss: Tensor, outputs: Tensor, x: Tensor, place: Tensor, step: int) -> Tensor:
        return loss if step < self.since else loss.detach()


def test_a_loss_that_the_student_cannot_change_leaves_it_where_it_is() -> None:
    """With Adam's momentum too, which would go on by itself where a gradient is 0."""
    found = []
    for steps in (5, 9):
        net, how = student(), replace(stage(steps), change=Constant(5))
        distil(net, Asked(TEACHER), how)
        found.append(nn.utils.parameters_to_vector(net.parameters()).detach())
    assert not torch.equal(found[0], nn.utils.parameters_to_vector(student().parameters()))
    assert torch.equal(*found)


def test_matching_logits_does_not_see_what_a_softmax_does_not_see() -> None:
    torch.manual_seed(0)
    out, z, place = torch.randn(5, 4), torch.randn(9, 4), torch.tensor([8, 0, 3, 3, 1])
    loss = MatchLoss(Cached(z))
    apart = [(out[i] - out[i].mean()) - (z[p] - z[p].mean()) for i, p in enumerate(place)]
    assert float(loss(out, out, place)) == pytest.approx(sum(float(a.square().sum()) for a in apart) / 40)
    assert float(loss(out + 3.0, out, place)) == pytest.approx(float(loss(out, out, place)), rel=1e-4)


def test_variations_leave_a_quarter_as_it_is_and_follow_from_their_seed() -> None:
    x = torch.from_numpy(X[:40])
    once, again, other = (vary(x, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(once, again)
    assert torch.equal(once[::4], x[::4])
    same = (once == x).flatten(1).all(1)
    assert int(same.sum()) == 10
    assert not torch.equal(once[1::4], other[1::4])
    assert once.shape == x.shape
    assert 0 <= float(once.min()) <= float(once.max()) <= 1 + 1e-5


def test_balanced_variations_name_rare_classes_more_often() -> None:
    """A teacher that names the second class for one variation in ten or so."""

    class Rare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            mean = x.flatten(1).mean(1)
            return torch.stack([torch.zeros_like(mean), mean.quantile(0.1) - mean], 1)

    rare = Rare()
    x = torch.from_numpy(X)
    drawn = Balanced(rare)(x, torch.Generator().manual_seed(0))
    assert drawn.shape == x.shape
    found = vary(x.repeat(4, 1, 1, 1), torch.Generator().manual_seed(0))
    edge = found.flatten(1).mean(1).quantile(0.1)
    assert float((drawn.flatten(1).mean(1) < edge).float().mean()) > 0.25


def test_rounds_vary_inputs_of_answers_and_never_those_of_labels() -> None:
    seen: list[int] = []

    def note(x: Tensor, generator: torch.Generator) -> Tensor:
        seen.append(len(x))
        return x

    labels, answers = LabelLoss(Cached(torch.zeros(60, dtype=torch.int64))), MatchLoss(Asked(TEACHER))
    for alone, count in ((labels, 1), (answers, 2)):
        seen.clear()
        net = student()
        table = Timetable(1, 1, 1, 60, 20, 60, 20)
        rounds = Rounds(net, table, lambda own, epoch: np.arange(20), alone, answers, seed=3, vary=note)
        fit(net, at_places(X, CPU), rounds, rounds, Recipe(steps=table.steps, learning_rate=0.01), 0, Run())
        assert len(seen) == count


def test_a_teacher_that_is_asked_and_its_cached_answers_teach_the_same() -> None:
    with torch.no_grad():
        rows = TEACHER(torch.from_numpy(X))
    nets = [student() for _ in range(3)]
    distil(nets[0], Asked(TEACHER), stage())
    distil(nets[1], rows, stage())
    distil(nets[2], rows.numpy(), stage())
    for a, b, c in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
        assert torch.equal(b, c)


def test_hints_teach_the_layers_below_the_guide_alone() -> None:
    inputs, net = at_places(X, CPU), student()
    before = copy.deepcopy(net.state_dict())
    pupil = guided(net, "leaky6", TEACHER, "pool1", SHAPE, 0)
    loss = SquaredLoss(Asked(TEACHER, "pool1"))
    first = float(loss(pupil(inputs.x), inputs.x, PLACES).detach())
    learn_hints(pupil, inputs, Asked(TEACHER, "pool1"), stage(60))
    assert float(loss(pupil(inputs.x), inputs.x, PLACES).detach()) < 0.5 * first
    moved = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {f"conv{i}.{part}" for i in range(1, 7) for part in ("weight", "bias")}


def test_labels_are_learnt() -> None:
    inputs, net = at_places(X, CPU), student()
    labels = (X.mean((1, 2, 3)) > np.median(X.mean((1, 2, 3)))).astype(np.int64)
    learn_labels(net, inputs, labels, stage(150))
    assert float((outputs(net, inputs).argmax(1).numpy() == labels).mean()) > 0.75
    assert net.training


def test_another_number_of_targets_is_refused() -> None:
    with pytest.raises(TrainingError, match="each of 60 public inputs, found 59"):
        distil(student(), np.zeros((59, 4), np.float32), stage())


TABLE = Timetable(rounds=2, self_epochs=1, distil_epochs=2, inputs=60, queries=25, self_batch=30, query_batch=10)


def test_the_timetable_is_algorithm_1() -> None:
    assert (TABLE.self_batches, TABLE.query_batches, TABLE.steps) == (2, 3, 2 * (2 + 2 * 3))
    kinds = [TABLE.at(step) for step in range(TABLE.steps)]
    one_round = [(False, 0, 0), (False, 0, 1), *((True, e, b) for e in (0, 1) for b in range(3))]
    assert kinds[:8] == one_round
    assert kinds[8:] == [(asks, epoch + (2 if asks else 1), batch) for asks, epoch, batch in one_round]


def rounds(net: nn.Module, choose: Callable[[nn.Module, int], np.ndarray]) -> Rounds:
    labels, answers = Cached(np.arange(60) % 4), Cached(torch.randn(60, 4, generator=torch.Generator().manual_seed(1)))
    return Rounds(net, TABLE, choose, LabelLoss(labels), SoftLoss(answers, 3.0), seed=3)


def test_an_epoch_by_itself_sees_all_inputs_and_an_epoch_of_queries_the_chosen_ones() -> None:
    asked: list[int] = []

    def choose(net: nn.Module, epoch: int) -> np.ndarray:
        asked.append(epoch)
        return np.arange(epoch, epoch + 25)

    made = rounds(student(), choose)
    drawn = [made.draw(step, 60) for step in range(TABLE.steps)]
    assert sorted(np.concatenate(drawn[:2])) == list(range(60))
    assert sorted(np.concatenate(drawn[2:5])) == list(range(25))
    assert sorted(np.concatenate(drawn[13:])) == list(range(3, 28))
    assert asked == [0, 1, 2, 3]


def test_random_queries_are_others_in_every_epoch() -> None:
    sampler = RandomQueries(25, 10, seed=0)
    one, two = (np.concatenate([sampler.draw(3 * epoch + b, 60) for b in range(3)]) for epoch in (0, 1))
    assert len(set(one)) == len(set(two)) == 25
    assert set(one) != set(two)


def test_rounds_resume_in_the_middle_of_an_epoch_of_queries_to_the_same_student(tmp_path: Path) -> None:
    def train(net: nn.Module, run: Run) -> dict[str, Tensor]:
        inputs = at_places(X, CPU)
        made = rounds(net, lambda own, epoch: select("k-centre", outputs(own, inputs), 25, epoch))
        recipe = Recipe(steps=TABLE.steps, optimiser="adam", learning_rate=3e-3)
        fit(net, inputs, made, made, recipe, 0, run)
        return net.state_dict()

    def press(label: str, done: int, total: int) -> None:
        if done == 12:  # the second epoch of queries of the second round has begun
            os.kill(os.getpid(), signal.SIGINT)

    whole = train(student(), Run())
    with pytest.raises(Interrupted):
        train(student(), Run(checkpoint=tmp_path, progress=press))
    resumed = train(student(9), Run(checkpoint=tmp_path, resume=True))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_finished_trainings_are_found_again_and_others_refused(tmp_path: Path) -> None:
    inputs = at_places(X, CPU)
    labels = np.arange(60) % 4
    trained: list[str] = []

    def both(run: Run, settings: dict[str, object], stop: bool = False) -> list[Tensor]:
        stages, nets = Stages(run, settings), [student(), student(1)]
        for name, net in zip(("one", "two"), nets, strict=True):
            if stop and name == "two":
                raise KeyboardInterrupt

            def train(own: Run, name: str = name, net: nn.Module = net) -> None:
                trained.append(name)
                learn_labels(net, inputs, labels, stage(3, own))

            stages.train(name, net, [inputs.x], train)
        stages.forget("one", "two")
        return [*nets[0].parameters(), *nets[1].parameters()]

    whole = both(Run(), {})
    with pytest.raises(KeyboardInterrupt):
        both(Run(checkpoint=tmp_path / "c"), {"a": 1}, stop=True)
    assert (tmp_path / "c/one.safetensors").stat().st_mode & 0o777 == 0o600
    with pytest.raises(TrainingError, match="this very run"):
        both(Run(checkpoint=tmp_path / "c", resume=True), {"a": 2})
    trained.clear()
    resumed = both(Run(checkpoint=tmp_path / "c", resume=True), {"a": 1})
    assert trained == ["two"]
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))
    assert not (tmp_path / "c").exists()
