"""How tight is the promise? Attackers who may choose what real ones could only hope for, on trainings under noise.

In: a method that trains under noise, as a release was configured, and records that its guarantee does not cover. Out:
for each attacker a lower bound on ε, to stand beside the proven one. The guarantee holds whoever the other records are,
wherever training starts and whatever the one record is; so all of this is chosen by the attacker, who then has to tell
trainings with the record from trainings without it. Each runs through the code that releases, with the lots, the
clipping and the noise of the plan:

* "every step" (white-box, gradient canary; Nasr et al. 2021, 2023): sees the noisy gradient of each step, knows all
  other records and takes their part off, and has the network stay where the record's gradient is at the clip norm and
  always the same. That is the case that accounting bounds: in each step the gradient, in units of the clip norm, has
  the mean 1 or 0 in one known direction, with the planned noise, and the record is drawn with the planned probability.
  The score is the log-likelihood ratio of all steps.
* "final weights" (white-box): sees the weights that leave and knows where training began; the score is how far they
  have moved against the record's gradient at the start.
* "final answers" (black-box; Annamalai and De Cristofaro 2024): asks the final network about the record; the score is
  minus its loss. Training begins at weights that were trained on other records of the same kind until these fit, so
  that other records hardly move anything any more, and the record is a blank one under the label that is least likely
  there.

Two bounds for each. One assumes nothing (`dp_audit.fixed`, Clopper and Pearson); n runs show no ε above about
log(n/11), however good the attack. The other assumes that the mechanism is what was accounted for, with noise of
unknown size (`dp_audit.fixed_in_family`; for Gaussian noise on all records this is the bound by μ-GDP of Nasr et al.
2023, in general that of the sampled and composed noise): with it a few hundred runs come near the proven ε.

Guarantee: if the training is (ε, δ)-private for every pair of neighbouring data sets, all bounds of the first kind are
at most ε, and, if its trade-off function is also at least that of the planned events at some size of the noise, those
of the second kind are at most their ε at that size, all together with probability at least `CONFIDENCE`: each attacker
and each kind gets an equal share of the error. The number of runs follows from settings and the clock, never from
scores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from airlock import accounting
from airlock.auditing.bounds import Floats
from airlock.auditing.dp_audit import fixed, fixed_in_family
from airlock.auditing.result import WorstCaseResult
from airlock.data import Records, Split
from airlock.errors import ConfigError, DataError
from airlock.mechanisms import Randomness, Stream
from airlock.methods import Channel
from airlock.methods.case import less_noise, scaled
from airlock.methods.dp_sgd import DpSgdFigures, NoisyTraining
from airlock.methods.dp_sgd_case import Projection
from airlock.training import PlainGradients, Poisson, Recipe, Resident, Run, Shuffled, checkpoint, fit
from airlock.training.ensembles.chunks import read
from airlock.training.gradients import GradientsOfPeople
from airlock.training.loop import interruption, mix, watch_interrupt

CONFIDENCE = 0.95
FEWEST = 8  # records on either side, and runs
OTHERS = 1000  # records beside the crafted one, at most
EVERY_STEP, WEIGHTS, ANSWERS = "every step", "final weights", "final answers"
ASSUMES = {
    EVERY_STEP: "sees every step, knows all other records and lets each step begin at the same weights",
    WEIGHTS: "has the final weights and chose the record, all others and where training began",
    ANSWERS: "asks the final network about the record, and chose it, all others and where training began",
}
_EPOCHS, _RATE, _BATCH = 60, 1e-3, 64  # of training a start until it fits
_SHARES = 2 * len(ASSUMES)  # of the error


@dataclass(frozen=True)
class Crafted:
    """What the attacker chose.

    Args:
        channel: The method, as it was configured.
        net: The network, on the device, at the weights that training begins with.
        others: The other records.
        canary: The one record.
        reach: The norm of its clipped gradient over the clip norm; 1 unless its whole gradient is shorter.
    """

    channel: NoisyTraining
    net: nn.Module
    others: Records
    canary: Records
    reach: float

    def split(self, with_record: bool, others: bool = True) -> Split:
        """The private records, with the one or without it."""
        private = self.others if others else self.others.take(np.arange(0))
        private = _with(private, self.canary) if with_record else private
        nobody = self.others.take(np.arange(0))
        return Split(self.channel.facts, private, nobody, self.canary, nobody)


def require(channel: Channel | None) -> NoisyTraining:
    """The method, if it can be tried: one that trains a network of classes under noise of a known kind.

    Raises:
        ConfigError: It is another one.
    """
    if (
        not isinstance(channel, NoisyTraining)
        or channel.channel != "weights"
        or channel.status != "proven"
        or channel.facts.task != "classification"
    ):
        what = "none" if channel is None else f"{channel.channel}/{channel.method}, {channel.facts.task}"
        raise ConfigError(
            "for --worst-case one training of a classifier under noise, such as weights/gaussian",
            what,
            "The attackers choose records and initial weights of a training whose every step is accounted for.",
            "Leave --worst-case out.",
        )
    return channel


def craft(channel: NoisyTraining, known: Records, seed: int, run: Run) -> Crafted:
    """Choose the start, the other records and the one record.

    Args:
        channel: The method.
        known: Records that the attacker has, of the same kind: half are trained on, half are the other records.
        seed: Of the halves and of training.
        run: Device and progress.
    """
    if len(known) < 2 * FEWEST:
        raise DataError(
            f"at least {2 * FEWEST} records that no guarantee covers", "fewer", do="Declare more records for `test`."
        )
    order = np.random.default_rng(seed).permutation(len(known))
    half = len(known) // 2
    net = started(channel, known.take(order[:half]), seed, run)
    return crafted(channel, net, known.take(np.sort(order[half:][:OTHERS])), run)


def started(
    channel: NoisyTraining,
    public: Records | None,
    seed: int,
    run: Run,
    recipe: Recipe | None = None,
    batch_size: int = _BATCH,
) -> nn.Module:
    """The network where training begins: fitted to these records, or where the release began (the average case).

    Args:
        channel: The method.
        public: What to fit; None for where the release began.
        seed: Of the batches.
        run: Device and progress.
        recipe: How to fit.
        batch_size: Of a step.
    """
    net = channel.net().to(run.device)
    if public is not None:
        steps = _EPOCHS * max(1, len(public) // batch_size)
        chosen = recipe or Recipe(steps=steps, optimiser="adam", learning_rate=_RATE, precision="fp32")
        sampler, data = Shuffled(batch_size, seed), Resident(public, run.device)
        alone = Run(run.device, run.progress)
        fit(net, data, sampler, PlainGradients(), chosen, seed, alone, label="worst case: the start")
    return net.eval()


def crafted(channel: NoisyTraining, net: nn.Module, others: Records, run: Run) -> Crafted:
    """The one record for this start and these others."""
    canary, reach = _canary(channel, net, others, run.device)
    return Crafted(channel, net, others, canary, reach)


def _canary(channel: NoisyTraining, net: nn.Module, others: Records, device: torch.device) -> tuple[Records, float]:
    """The blank record, a full one or one of the others, each under the label that is least likely at the start.

    The first whose gradient reaches the clip norm, or else the one whose clipped gradient is longest.
    """
    largest = np.maximum(others.x.max(initial=0), 1).astype(others.x.dtype)
    blank = np.zeros_like(others.x[:1])
    inputs = np.concatenate([blank, np.full_like(blank, largest), others.x[: FEWEST - 2]])
    tried = Records(inputs, np.zeros(len(inputs), np.int64))
    data = Resident(tried, device)
    with torch.no_grad():
        labels = net(data.batch(np.arange(len(tried)))[0]).argmin(1).cpu().numpy().astype(np.int64)
    best, longest = tried.take(np.arange(1)), -1.0
    for place, label in enumerate(labels):
        record = Records(inputs[place : place + 1], labels[place : place + 1], _nobody_else(others))
        reach = _projection(channel, net, record, device).reach * _weight(channel, int(label), device)
        if reach > longest * (1 + 1e-6):
            best, longest = record, reach
        if longest >= 1 - 1e-3:
            break
    return best, longest


def _weight(channel: NoisyTraining, label: int, device: torch.device) -> float:
    weights = channel.class_weights
    return 1.0 if weights is None else float(weights.of(torch.tensor([label], device=device)))


def _nobody_else(others: Records) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    if others.person is None:
        return None
    return np.array([int(others.person.max(initial=-1)) + 1], np.int64)


def _with(private: Records, canary: Records) -> Records:
    person = None
    if private.person is not None and canary.person is not None:
        person = np.concatenate([private.person, canary.person])
    return Records(np.concatenate([private.x, canary.x]), np.concatenate([private.y, canary.y]), person)


def _projection(channel: NoisyTraining, net: nn.Module, canary: Records, device: torch.device) -> Projection:
    """On the direction of the record's clipped gradient where the network is now."""
    data = channel.resident(canary, device)
    nobody = canary.take(np.arange(0))
    split = Split(channel.facts, canary, nobody, canary, nobody)
    source = channel.source(net, split, data, channel.planned.figures, Randomness(0, Stream.from_seed(0)))
    x, y = data.batch(np.arange(1))
    return Projection(net, source.clip, x, y)  # type: ignore[attr-defined]


def of_steps(made: Crafted, stream: Stream, run: Run) -> Iterator[tuple[float, float]]:
    """Log-likelihood ratios of whole runs that are seen step by step, with the record and without it, without end."""
    channel, net, device = made.channel, made.net, run.device
    figures = channel.planned.figures
    projection = _projection(channel, net, made.canary, device)
    sides = [
        (split, channel.resident(split.private, device)) for split in (made.split(s, False) for s in (True, False))
    ]

    def seen(side: int, place: int) -> float:
        split, data = sides[side]
        randomness = Randomness(0, stream.child(place, side))
        source = channel.source(net, split, data, figures, randomness)
        sampler = Poisson(figures.sampling_probability, randomness.privacy.child("sampling"))
        found = np.empty(figures.steps)
        for step in range(figures.steps):
            chance = randomness.privacy.child("records", step).uniform
            x, y, owners = data.lot(sampler.draw(step, data.units), chance)
            bound: float = source.clip.norm  # type: ignore[attr-defined]
            if owners is None:
                source(net, x, y, step)
            else:
                cast(GradientsOfPeople, source)(net, x, y, step, owners)
            found[step] = projection.along(net) * figures.expected_lot / bound
        return _log_likelihood(found, made.reach, figures)

    place = 0
    while True:
        yield seen(0, place), seen(1, place)
        place += 1


def _log_likelihood(found: Floats, reach: float, figures: DpSgdFigures) -> float:
    """Of the record's presence, over its absence: a sampled shift by `reach` under the planned noise, in every step."""
    exponent = (reach * found - reach**2 / 2) / figures.gradient_noise_multiplier**2
    if figures.sampling_probability >= 1:
        return float(exponent.sum())
    q = figures.sampling_probability
    return float(np.logaddexp(math.log1p(-q), math.log(q) + exponent).sum())


def of_trainings(made: Crafted, seed: int, stream: Stream, run: Run) -> Iterator[tuple[Floats, Floats]]:
    """Whole trainings with the record and without it, without end: the scores of final weights and of final answers."""
    channel, net, device = made.channel, made.net, run.device
    start = {name: value.clone() for name, value in net.state_dict().items()}
    projection = _projection(channel, net, made.canary, device)
    x, y = Resident(made.canary, device).batch(np.arange(1))
    splits = made.split(True), made.split(False)

    def final(side: int, place: int) -> Floats:
        randomness = Randomness(seed, stream.child(place, side))
        channel.train(net, splits[side], channel.planned.figures, randomness, Run(device))
        with torch.no_grad():
            net.eval()
            loss = float(torch.nn.functional.cross_entropy(net(x).double(), y))
        now = net.state_dict()
        moved = projection.of_change({name: now[name] - before for name, before in start.items()})
        net.load_state_dict(start)
        return np.array([-moved, -loss])

    place = 0
    try:
        while True:
            yield final(0, place), final(1, place)
            place += 1
    finally:
        net.load_state_dict(start)


def gather(
    pairs: Iterator[tuple[Floats, Floats] | tuple[float, float]],
    count: int,
    label: str,
    run: Run,
    seconds: float = math.inf,
    seed: int = 0,
) -> tuple[Floats, Floats]:
    """The scores of so many pairs, or of as many as fit into the time; kept in the checkpoint's folder on the way.

    Args:
        pairs: Gives the next run with the record and the next one without it.
        count: How many at most.
        label: For the progress bar and the file.
        run: Progress, and the folder for a checkpoint.
        seconds: After which no further pair is begun, if there are the fewest that are of use.
        seed: Of what the attacker chose: scores of another choice are not continued.

    Raises:
        Interrupted: Ctrl-C; with a checkpoint folder, the same call continues from there if `run.resume`.
    """
    kept: list[tuple[Floats, Floats]] = []
    file = run.checkpoint / f"{label.replace(' ', '-')}.safetensors" if run.checkpoint else None
    mark = {"mark": f"worst case, {label}, seed {seed}"}
    if file and run.resume and file.exists():
        before = read(file, mark["mark"])
        kept = list(zip(before["one"].numpy(), before["other"].numpy(), strict=True))
    begin = saved = time.monotonic()
    with watch_interrupt() as interrupted:
        while len(kept) < count and (time.monotonic() - begin < seconds or len(kept) < FEWEST):
            one, other = next(pairs)
            kept.append((np.atleast_1d(np.asarray(one, float)), np.atleast_1d(np.asarray(other, float))))
            if run.progress:
                run.progress(f"worst case: {label}", len(kept), count)
            stop = interrupted() and len(kept) < count
            if file and (stop or time.monotonic() - saved > run.checkpoint_seconds or len(kept) == count):
                checkpoint.write(file, _stacked(kept), mark)
                saved = time.monotonic()
            if stop:
                raise interruption(len(kept), count, kept=file is not None)
    found = _stacked(kept)
    return found["one"].numpy(), found["other"].numpy()


def _stacked(kept: Sequence[tuple[Floats, Floats]]) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(np.stack([pair[side] for pair in kept])) for side, name in enumerate(("one", "other"))
    }


def measured(
    channel: NoisyTraining, name: str, one: Floats, other: Floats, confidence: float = CONFIDENCE, shares: int = _SHARES
) -> WorstCaseResult:
    """Both bounds from scores of runs with the record and without it.

    Args:
        channel: The method.
        name: Which attacker.
        one: Scores with the record.
        other: Scores without it.
        confidence: Of all bounds together.
        shares: How many bounds share the error.
    """
    promise, each = channel.planned.guarantee, 1.0 - (1.0 - confidence) / shares
    family = less_noise(promise.events, promise.delta)
    of_noise = 0.0
    if family is not None:
        divisor = fixed_in_family(one, other, lambda member: family.at(member).chances, each)
        if divisor:
            of_noise = accounting.compute_epsilon(scaled(promise.events, 1.0 / divisor), promise.delta).epsilon
    return WorstCaseResult(
        name=name,
        attacker=ASSUMES[name],
        runs=len(one),
        epsilon=promise.epsilon,
        epsilon_lower_bound=fixed(one, other, promise.delta, each),
        epsilon_lower_bound_of_noise=None if family is None else min(of_noise, accounting.LARGEST),
        confidence=confidence,
    )


def worst_case(
    channel: Channel | None, known: Records, count: int, seed: int, run: Run, seconds: float = math.inf
) -> tuple[tuple[WorstCaseResult, ...], dict[str, Floats]]:
    """Try all attackers on a method as it was configured: what each shows, and all scores.

    Args:
        channel: The method.
        known: Records that no guarantee covers.
        count: How many runs with the record, and as many without.
        seed: Of what the attacker chooses; the noise comes from the operating system.
        run: Device, progress, checkpoints.
        seconds: After which no further training is begun; half of it for runs seen step by step.
    """
    made = craft(require(channel), known, mix(seed, 3), run)
    stream = Stream.from_system()
    steps = gather(of_steps(made, stream.child("steps"), run), count, EVERY_STEP, run, seconds / 2, seed)
    pairs = of_trainings(made, seed, stream.child("trainings"), run)
    finals = gather(pairs, count, "trainings", run, seconds / 2, seed)
    found = {EVERY_STEP: steps} | {
        name: (finals[0][:, column], finals[1][:, column]) for column, name in enumerate((WEIGHTS, ANSWERS))
    }
    results = tuple(measured(made.channel, name, *sides) for name, sides in found.items())
    scores = {
        f"{name.replace(' ', '-')}-{side}": np.asarray(values)
        for name, sides in found.items()
        for side, values in zip(("with", "without"), sides, strict=True)
    }
    return results, scores
