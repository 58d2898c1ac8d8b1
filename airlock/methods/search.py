"""A search over declared settings that is paid for: the best of a secret random number of runs leaves.

In: a config with a `[tune]` table, whose candidates are public. Out: the release of one candidate, whose guarantee
covers the whole search. A search is a method like any other: planned before a record is read, made through the same
pipeline, verified by planning it again.

One run. Draw a candidate θ uniformly; make the release M_θ of the private part, planned with ε = `run_epsilon`; count
the test records that it classifies correctly, with noise for ε = `score_epsilon` (`mechanisms.counts`). The search
repeats that K times with independent randomness and keeps the run with the best score
(`mechanisms.repeat_and_select`). What leaves is θ and M_θ's release, never K, a score or another run.

Guarantee: for every record of the file, whichever part it is in, what leaves has at most the stated (ε, δ).

Proof. Let Q be one run with output (θ, M_θ's release, score). A record is in one part (`data.split.divide`).

(1) A private record. Given θ and M_θ's release, the score depends on test records and fresh noise alone, so it is
post-processing. θ reads no record, so at every Rényi order Q's divergence is at most the largest of those of all M_θ
(`accounting.renyi`): the event `choose(…)` of their planned events, each of which its method checks against what it has
executed. The theorem of `repeat_and_select` bounds the best of K runs: the event on the card.

(2) A test record. θ and M_θ's release do not depend on it. Given them, the count moves by at most one, so the score is
`score_epsilon`-DP, and so is Q. The theorem bounds the best of K runs again, with this event. The counts on the card
are made after it from the winner's outcomes: both are composed (`bundle.card`), and the total is at most the stated ε
at the same δ, or the release is refused before a record is read.

(3) A holdout record affects only paid attack figures on the winner, if any, which are composed as in every release. ∎

Candidates of several methods and channels. The proof asks of M_θ that a network leaves, that its guarantee is proven
for the search's unit under add-remove, and that its events have Rényi divergences; not that all M_θ are alike. θ leaves
with the release, so Q's outputs are the disjoint union of theirs, ordered by the score alone. What is made of the
winner for its bundle (files, sizes, how much smaller a student is) is a function of θ, its release and public records.
The tables on the card cost a test record the same whichever θ has won: their ε follows from the search's events and
from whether there are scores, and every candidate's outcomes have them (`_made`).

What the search assumes is what all of its candidates assume: one that has lost was in the choice, and if its public
records are not public after all, (1) does not bound what its score has done. So the card says it for all of them.

People. Where the unit is a person, read "person" for "record": M_θ's guarantee is for a person, and the test part holds
one record of each test person (`data.split.divide`), so that one person moves the count by at most one.

The bound is one conversion to (ε, δ) of the Rényi divergences of the whole; `run_epsilon` is only the number that the
candidates' noise is calibrated with, at the same δ, so that this conversion is at most the requested ε.

Killed and resumed. All randomness follows from one key, K included. It is drawn when the search begins and kept in the
vault with the scores so far until the bundle is written, so a resumed search ends in the release that it would have
ended in: interrupting it chooses nothing. Runs that are finished are not made again, except the winner, from the same
randomness, which gives the same bits on the same machine. A new search of the same config, which spends again, has to
be asked for (`--again`). With a fresh key for each attempt, whoever stops a search that goes badly would choose among
restarts, which nothing would pay for.

What shows K: how long a search takes, and how often the progress bar fills up. Both are for the holder's eyes only.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load

from airlock.accounting import Guarantee, choose, compute_epsilon, pure, repeat
from airlock.accounting.terms import Status
from airlock.config import ReleaseConfig, TuneBase, TuneConfig, merge, parse
from airlock.data import Facts, Split
from airlock.errors import AccountingError, AirlockError, ConfigError, Refused, TrainingError
from airlock.mechanisms import NoisyCounts, Randomness, RepeatAndSelect, Stream
from airlock.mechanisms.discrete import Coins
from airlock.methods.contract import Channel, Plan, Release
from airlock.training import Run, checkpoint

SEARCHED = (
    "The settings that were searched, and how many runs to expect, were chosen without looking at the private records; "
    "nobody outside knows how many runs there were, how long they took or what they scored."
)
FILE = "search.safetensors"  # of an unfinished search: its key, and the scores so far
_CLOSE = 0.995  # of the requested ε: a search for `run_epsilon` may end from here on
_DIGITS = 4  # of the ε that are found
MOST_SCORE = 100.0  # of the ε of a score: with more there is effectively no noise
Make = Callable[[ReleaseConfig, Facts], Channel]
Made = Callable[[], tuple[int, Release, list[warnings.WarningMessage]]]


@dataclass(frozen=True)
class SearchFigures:
    """What a search is run with, fixed before any record is read; but for the candidate that won, which leaves.

    Args:
        mean: The expected number of runs.
        shape: Of their distribution.
        run_epsilon: What each candidate is planned with.
        score_epsilon: Of one score.
        candidates: The values of each, by dotted key.
        won: The place of the one that leaves; in a plan, of the one that the config names, else the first.
        costs: The ε of the search as it is paid for ("search"), and in other ways of counting, for a plan: if the mean
            number of runs were declared and each of them paid for ("every run"), and what a card would say that counts
            the winner alone, which is false ("unpaid").
    """

    mean: float
    shape: float
    run_epsilon: float
    score_epsilon: float
    candidates: tuple[Mapping[str, Any], ...]
    won: int
    costs: Mapping[str, float]


class Search(Channel[SearchFigures]):
    """The search of a config with `[tune]`; status proven, unit that of the facts, relation add-remove.

    Args:
        config: With the search; its ε is that of the whole.
        facts: What is public about the data.
        make: Builds the method of a config without one (`methods.build`).
    """

    channel: ClassVar[str] = "tune"  # the court's name of it; that of an object is what its candidates release
    method: ClassVar[str] = "models"
    leaves: ClassVar[str] = "The best of a secret number of runs."
    status: ClassVar[Status] = "proven"
    title: ClassVar[str] = "the best of a secret number of runs"
    weighs_classes: ClassVar[bool] = True  # if its candidates do: each of them is asked

    def __init__(self, config: ReleaseConfig, facts: Facts, make: Make) -> None:
        super().__init__(config, facts)
        if config.tune is None:
            raise ConfigError("a [tune] table", "none", "It says what to search.", "Add one: see docs/tune.md.")
        self.asked: TuneConfig = config.tune
        self._make = make
        self.candidates = self.asked.candidates
        check_config(config)
        built = [self._build(place, config.epsilon) for place in range(len(self.candidates))]
        self._check_candidates(built)
        self.own = self.asked.won or 0  # a bundle's config names the one that won
        mine = self._build(self.own, config.epsilon)
        self._check_winner(mine)
        vars(self).update(channel=mine.channel, method=mine.method, leaves=mine.leaves)
        vars(self).update(reads_files=all(one.reads_files for one in built))

    # Planning.

    def at(self, place: int, epsilon: float) -> ReleaseConfig:
        """The config of one run of a candidate."""
        base = {} if self.asked.base is None else self.asked.base.model_dump()
        if base and base["channel"] is None:
            del base["channel"]
        table = merge({**self.config.model_dump(exclude={"tune"}), **base}, self.candidates[place])
        alone = {"epsilon": epsilon, "accountant": "rdp", "attack_share": 0.0, "tuning_runs": 1}
        return parse(ReleaseConfig, {**table, **alone})

    def _build(self, place: int, epsilon: float) -> Channel:
        return self._make(self.at(place, epsilon), self.facts)

    def _check_candidates(self, built: list[Channel]) -> None:
        """Refuse what the proof does not cover.

        Raises:
            ConfigError: A candidate is not proven, something other than a network leaves, or two need different
                public sets.
        """
        for one in built:
            if one.status != "proven" or one.artefact != "network" or one.withheld:
                raise ConfigError(
                    "proven methods that release a network, in [tune]",
                    f"{one.channel}/{one.method}",
                    "Runs are compared by how many test records their network gets right, and only a proven guarantee "
                    "of each bounds what the comparison reveals.",
                    "Leave the method out of [tune.search].",
                )
        wanted = [one.public for one in built if one.public is not None]
        if any(one != wanted[0] for one in wanted[1:]):
            raise ConfigError(
                "one public data set for all candidates", "several", "All runs see the same records.", "Name one."
            )
        self.public = wanted[0] if wanted else None

    def _check_winner(self, mine: Channel) -> None:
        """Refuse a bundle's config whose own settings are not those of the candidate that it says has won."""
        said, is_mine = self.config, (mine.channel, mine.method, mine.config.settings)
        if self.asked.won is not None and (said.channel, said.method, said.settings) != is_mine:
            raise ConfigError(
                "the settings of the candidate that won", "others", "The config is not that of what was released."
            )

    @cached_property
    def chosen(self) -> RepeatAndSelect:
        """The distribution of the number of runs, and the selection."""
        return RepeatAndSelect(self.asked.mean, self.asked.shape)

    def run_event(self, epsilon: float) -> dpa.DpEvent:
        """What one run costs a private record, if each candidate is planned with this ε."""
        try:
            with warnings.catch_warnings():  # what is found in the end says what it has to once (`channels`)
                warnings.simplefilter("ignore")
                return choose([_promised(one).events for one in self._planned_with(epsilon)])
        except AccountingError as error:
            raise ConfigError(
                "candidates whose events have a Rényi divergence",
                f"one without ({error.found})",
                "A search is accounted for by RDP alone.",
                "Leave the method out of [tune.search], or ask for a larger ε.",
            ) from error

    def _planned_with(self, epsilon: float) -> list[Channel]:
        return [self._build(place, epsilon) for place in range(len(self.candidates))]

    def cost(self, run_epsilon: float) -> float:
        """The ε of the whole search, by RDP."""
        return compute_epsilon(self.chosen.event(self.run_event(run_epsilon)), self.config.delta).epsilon

    @cached_property
    def run_epsilon(self) -> float:
        """The largest, to about 0.5%, with which the whole costs no more than requested; or the one that is given."""
        given, epsilon = self.asked.run_epsilon, self.config.epsilon
        if given is None:
            return largest(self.cost, epsilon, epsilon / 2.5, "run_epsilon")
        return _within("run_epsilon", given, self.cost(given), epsilon)

    @cached_property
    def score_epsilon(self) -> float:
        """The same for scores and their share of what the test part may pay."""
        given, allowed = self.asked.score_epsilon, self.asked.score_share * self.promised.epsilon

        def cost(epsilon: float) -> float:
            return compute_epsilon(self.chosen.event(pure(epsilon)), self.config.delta).epsilon

        if given is None:
            return min(MOST_SCORE, largest(cost, allowed, allowed / (2.0 + self.asked.shape), "score_epsilon"))
        return _within("score_epsilon", given, cost(given), self.promised.epsilon)

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """The methods of all candidates, as they are run."""
        return tuple(self._planned_with(self.run_epsilon))

    @cached_property
    def promised(self) -> Guarantee:
        """What the whole search guarantees."""
        return self.promise(self.chosen.event(self.run_event(self.run_epsilon)), self._assumed(self.own))

    def _assumed(self, place: int, executed: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """What has to be true for the guarantee of a search that this candidate wins: what any candidate assumes.

        Args:
            place: Of the winner.
            executed: What it assumes as it was executed, in place of what it planned.
        """
        planned = [one.planned.guarantee.assumptions for one in self.channels]
        others = [line for lines in planned for line in lines if line not in planned[place]]
        return tuple(dict.fromkeys((*(planned[place] if executed is None else executed), *others, SEARCHED)))

    @cached_property
    def costs(self) -> dict[str, float]:
        """What the same runs cost in other ways of counting."""
        run, delta = self.run_event(self.run_epsilon), self.config.delta
        counted = {"every run": repeat(run, math.ceil(self.asked.mean)), "unpaid": run}
        others = {name: compute_epsilon(event, delta).epsilon for name, event in counted.items()}
        return {"search": self.promised.epsilon, **others}

    def plan(self) -> Plan[SearchFigures]:
        """Fix the noise of every candidate; touches no record."""
        return self.plan_of(self.own)

    def plan_of(self, place: int) -> Plan[SearchFigures]:
        """The plan of a search that this candidate wins."""
        mine = self.channels[place].planned
        figures = SearchFigures(
            self.asked.mean, self.asked.shape, self.run_epsilon, self.score_epsilon, self.candidates, place, self.costs
        )
        promise = replace(self.promised, assumptions=self._assumed(place))
        return Plan(mine.channel, mine.method, mine.leaves, promise, mine.details, None, figures)

    def tried(self, config: ReleaseConfig) -> tuple[ReleaseConfig, ...]:
        """One run of each candidate, once for all that differ in neither channel, method nor network."""
        found: dict[str, ReleaseConfig] = {}
        for place in range(len(self.candidates)):
            run = self.at(place, self.run_epsilon)
            named = [
                run.channel,
                run.method,
                run.net,
                *(run.settings.get(key) for key in ("teacher", "features", "front")),
            ]
            found.setdefault(repr(named), run)
        return tuple(found.values())

    def settled(self, config: ReleaseConfig, release: Release) -> ReleaseConfig:
        """The config with the values of the candidate that won, and the ε that were found."""
        figures: SearchFigures = release.plan.figures
        base = TuneBase(channel=config.channel, method=config.method, net=config.net, settings=config.settings)
        found = {"run_epsilon": figures.run_epsilon, "score_epsilon": figures.score_epsilon, "won": figures.won}
        tune = self.asked.model_copy(update={"base": self.asked.base or base, **found})
        run = self.at(figures.won, config.epsilon)
        won = {"channel": release.plan.channel, "method": release.plan.method, "net": run.net, "settings": run.settings}
        return config.model_copy(update={**won, "tune": tune})

    # Running.

    def release(self, split: Split, randomness: Randomness, run: Run) -> Release:
        """The release of the run that won, with the guarantee of the whole search."""
        kept = _Kept.begin(run, randomness.privacy)
        self.plan()  # before any run, all that can be refused has been

        def once(number: int, stream: Stream) -> tuple[int, Made]:
            place = int(Coins(stream.child("candidate")).below(len(self.candidates), 1)[0])
            # Of its own: where the noise of other runs was computed is not on the winner's card.
            noise = Stream(stream.child("release").take_key(), stream.secure)
            mine = Randomness(randomness.seed, noise)
            if number < len(kept.scores):
                return kept.scores[number], lambda: self._made(place, split, mine, kept.run(run, number))
            made = self._made(place, split, mine, kept.run(run, number))
            score = scored(made[1].utility.correct, self.score_epsilon, stream.child("score"))
            kept.note(score)
            return score, lambda: made

        place, made, told = self.chosen.select(once, kept.stream)()
        for one in told:
            with contextlib.suppress(Warning):  # a filter that makes errors of them decides about no release
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        plan = replace(self.plan_of(place), details=made.plan.details)
        promise = replace(plan.guarantee, assumptions=self._assumed(place, made.guarantee.assumptions))
        return replace(made, plan=plan, guarantee=promise)

    def _made(
        self, place: int, split: Split, randomness: Randomness, run: Run
    ) -> tuple[int, Release, list[warnings.WarningMessage]]:
        """One run, and what it warned about: shown if it wins, since warnings of every run would tell their number."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            made = self.channels[place].release(split, randomness, run)
        if made.utility.scores is None:
            raise Refused(
                "scores from a method whose network leaves",
                f"labels alone from {made.plan.channel}/{made.plan.method}",
                "What the card says of test records would cost them more or less with the candidate that wins.",
                "This is a defect in the method: leave it out of the search.",
            )
        return place, made, told


def _promised(one: Channel) -> Guarantee:
    """What a candidate guarantees, if it is about a unit that is added or removed, as the search's guarantee is."""
    promise, unit = one.planned.guarantee, one.facts.unit
    if (promise.unit, promise.relation) != (unit, "add-remove"):
        raise ConfigError(
            f"candidates that protect a {unit} that is added or removed",
            f"{one.channel}/{one.method} ({promise.unit}, {promise.relation})",
            "The search states that.",
            "Leave the method out of [tune.search].",
        )
    return promise


def scored(correct: int, epsilon: float, stream: Stream) -> int:
    """The number of test records that are classified correctly, with noise: ε-DP for each of them."""
    return int(NoisyCounts(epsilon).add(np.array([correct], np.int64), stream)[0])


def as_run(table: Mapping[str, Any], run_epsilon: float) -> dict[str, Any]:
    """The table of the config that the winner was run with, from that of its bundle: without the other candidates."""
    alone = {"epsilon": run_epsilon, "accountant": "rdp", "attack_share": 0.0, "tuning_runs": 1}
    return {**{key: value for key, value in table.items() if key != "tune"}, **alone}


def largest(cost: Callable[[float], float], target: float, start: float, what: str) -> float:
    """The largest number of four digits whose cost is at most the target and, if possible, close to it.

    Args:
        cost: Grows with its argument, about as a power of it.
        target: Never exceeded by the cost of what is returned.
        start: A first guess.
        what: For the error.

    Raises:
        ConfigError: Even a thousandth of the target costs more.
    """
    low, high, guess = (0.0, 0.0), (math.inf, math.inf), start
    for _ in range(40):
        guess = float(f"{guess:.{_DIGITS}g}")
        if not low[0] < guess < high[0]:
            break
        spent = cost(guess)
        low, high = ((guess, spent), high) if spent <= target else (low, (guess, spent))
        if _CLOSE * target <= low[1]:
            break
        guess = _between(low, high, target)
        if guess < 1e-3 * target:
            break
    if not low[0]:
        raise ConfigError(f"an ε that leaves something for [tune] {what}", f"{target:.3g}", "", "Ask for a larger ε.")
    return low[0]


def _between(low: tuple[float, float], high: tuple[float, float], target: float) -> float:
    """Where a power law through both ends reaches almost the target; outwards where there is one end yet."""
    aim = (1.0 + _CLOSE) / 2.0 * target
    if math.isinf(high[0]):
        return low[0] * min(4.0, max(1.02, aim / max(low[1], 1e-9)))
    if not low[0]:
        return high[0] * min(0.98, max(0.1, aim / high[1]))
    if not (math.isfinite(high[1]) and low[1] < high[1]):
        return math.sqrt(low[0] * high[0])
    share = math.log(aim / low[1]) / math.log(high[1] / low[1])
    return float(low[0] * (high[0] / low[0]) ** min(0.9, max(0.1, share)))


def _within(name: str, given: float, spent: float, allowed: float) -> float:
    if spent <= allowed * (1 + 1e-9):
        return given
    raise ConfigError(
        f"tune.{name} with which the search costs ε = {allowed:.6g} at most",
        f"{given:g}, with which it costs {spent:.6g}",
        "The stated ε would not cover the search.",
        "Leave it out: the largest that fits is found.",
    )


def check_config(config: ReleaseConfig) -> None:
    """Refuse what no search can have, whatever its candidates.

    Raises:
        ConfigError: Another way of paying for several runs, or an accountant that does not bound a search.
    """
    if config.tuning_runs > 1:
        raise ConfigError(
            "either [tune] or tuning_runs", "both", "[tune] draws the number of runs.", "Leave tuning_runs out."
        )
    if config.accountant not in ("auto", "rdp"):
        raise ConfigError(
            'accountant = "auto" or "rdp" with [tune]', f"'{config.accountant}'", "Only RDP bounds a search."
        )


@dataclass
class _Kept:
    """What an unfinished search needs to go on: in its folder in the vault, if it has one.

    Args:
        folder: Of its checkpoints.
        key: Of all its randomness.
        secure: Whether the key is the operating system's.
        scores: Of the runs that are finished.
    """

    folder: Path | None
    key: bytes
    secure: bool
    scores: list[int]

    @classmethod
    def begin(cls, run: Run, privacy: Stream) -> _Kept:
        """What an interrupted search left, if this one resumes it; else a new key.

        Raises:
            TrainingError: What it left cannot be read.
        """
        folder = run.checkpoint
        if run.resume and folder is not None and (folder / FILE).exists():
            try:
                found = load((folder / FILE).read_bytes())
                key, scores = bytes(found["key"].tolist()), [int(score) for score in found["scores"].tolist()]
                return cls(folder, key, privacy.secure, scores)
            except (OSError, SafetensorError, KeyError, ValueError, AirlockError) as error:
                raise TrainingError(
                    "what an interrupted search left in the vault",
                    f"something else ({type(error).__name__})",
                    "Without its randomness it cannot go on.",
                    "Begin anew: --again. That is a new search, which spends again.",
                ) from error
        kept = cls(folder, privacy.child("search").take_key(), privacy.secure, [])
        kept._write()
        return kept

    @property
    def stream(self) -> Stream:
        """All randomness of the search."""
        return Stream(self.key, self.secure)

    def run(self, whole: Run, number: int) -> Run:
        """One run, with a folder of its own, and a progress bar that does not count runs."""
        own = None
        if self.folder is not None:
            own = self.folder / f"run-{number}"
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
        return replace(whole, checkpoint=own, progress=_uncounted(whole))

    def note(self, score: int) -> None:
        """A run is finished."""
        self.scores.append(score)
        self._write()

    def _write(self) -> None:
        if self.folder is not None:
            key, scores = torch.tensor(list(self.key), dtype=torch.uint8), torch.tensor(self.scores, dtype=torch.int64)
            checkpoint.write(self.folder / FILE, {"key": key, "scores": scores}, {})


def _uncounted(run: Run) -> Callable[[str, int, int], None] | None:
    """Progress of whichever run it is, in percent: neither its number nor its candidate."""
    report = run.progress
    if report is None:
        return None
    return lambda label, done, total: report("searching", round(100 * done / max(1, total)), 100)
