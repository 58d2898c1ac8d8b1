"""Lu et al. 2021, the convexified loss: its tables and figures.

On the paper's numbers of records: about 1,200 of Location-30, about 10,000 of the others. The attacker's shadow models
are trained on records that the attacked network never saw, as many as it was trained on, with the same loss; one attack
network for all classes learns from them and is asked about every answer: without noise, with Algorithm 1's noise, and
about DP-SGD's networks. Leakage is TPR − FPR of what it says.

DP-SGD has the same network, Adam's learning rate, epochs and L2, cross-entropy, lots of 100 on average (Poisson, which
the RDP figure assumes), and a clip norm of 1, which the paper does not state. Its noise is what the paper's four
compositions ask for at (ε, 1/(10 n)).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from scipy.stats import kendalltau, pearsonr, spearmanr
from torch import nn

from airlock.auditing.attacks import AnsweredRecords, Shadows, ShadowSettings, shadow_attack, subsets
from airlock.auditing.attacks.shadows import train_attack
from airlock.data import Facts, Records, Split, joined
from airlock.data.benchmarks import ADULT_COLUMNS
from airlock.mechanisms import Stream
from airlock.papers.answers.formulas import (
    Sensitivities,
    advanced_noise,
    naive_noise,
    rdp_noise,
    zcdp_noise,
)
from airlock.papers.answers.neuron import Floats, NeuronAnswerer, keep
from airlock.papers.answers.published import Published, case_of_answer
from airlock.reproduction.noise_levels import train_at_noise_levels
from airlock.reproduction.paper import (
    NOT_RUN,
    Figures,
    Found,
    Item,
    ItemResult,
    Paper,
    Setting,
    Spread,
    Trial,
    Workplace,
    World,
    absent,
    accuracy,
    beside,
    compared,
    fewer,
    in_court,
    is_small,
    opened,
    released,
    show_court,
)
from airlock.training import (
    Ensemble,
    Resident,
    predict,
    train_together,
)
from airlock.training.devices import to_input
from airlock.training.ensembles.ensemble import model_seed
from airlock.training.gradients import start_as_keras

SEEDS = (0, 1, 2, 3, 4)
EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0)
QUICK_EPSILONS = (0.1, 10.0)
COMPOSITIONS = ("naive", "advanced", "zcdp", "rdp")
NOISES = ("laplace", "gaussian")
CLIP_NORM = 1.0
ROUNDS = 5  # answers to every record, of which the mean is taken


@dataclass(frozen=True)
class DataSet:
    """How the paper uses a data set, and what it prints about it.

    Args:
        words: Its name.
        split: What makes about as many private records as the paper has.
        records: The paper's number of records, n.
        inputs: m.
        classes: C.
        shadows: Its Table 3's number of shadow models.
        original: Accuracy with the original loss, on own records and others (Table 5).
        convexified: The same with the convexified loss.
        leakage: Without noise.
        stability: The bound on on-average-remove-one stability.
        sensitivities: ρ, Δω, Δz, and e^(2Δz) − 1 (Table 6).
    """

    words: str
    split: dict[str, float]
    records: int
    inputs: int
    classes: int
    shadows: int
    original: tuple[float, float]
    convexified: tuple[float, float]
    leakage: float
    stability: float
    sensitivities: tuple[float, float, float, float]


DATA = {
    "location30": DataSet(
        "Location", {"public": 0.2815, "test": 0.2395, "holdout": 0.2395}, 1200, 446, 30, 30,
        (1.0000, 0.6068), (0.9916, 0.6484), 0.3600, 10.8532, (1.8044, 0.0244, 3.1190, 510.8338),
    ),
    "mnist": DataSet(
        "MNIST", {"public": 0.7333, "test": 0.0, "holdout": 0.1}, 10_000, 784, 10, 50,
        (0.9863, 0.9528), (0.9494, 0.9297), 0.0035, 1.9845, (2.2274, 0.0028, 0.3577, 1.0450),
    ),
    "adult": DataSet(
        "US Adult", {"public": 0.5929, "test": 0.0, "holdout": 0.1}, 10_000, 14, 2, 20,
        (0.8310, 0.8300), (0.8260, 0.8262), 0.0023, 0.0109, (0.1654, 0.0015, 0.1871, 0.4538),
    ),
    "cifar10": DataSet(
        "CIFAR-10", {"public": 0.7, "test": 0.0, "holdout": 0.1}, 10_000, 3072, 10, 100,
        (0.6198, 0.4453), (0.5731, 0.4236), 0.0111, 7.7760, (4.4091, 0.0028, 0.3594, 1.0520),
    ),
    "cifar100": DataSet(
        "CIFAR-100", {"public": 0.4, "test": 0.0, "holdout": 0.1}, 10_000, 3072, 100, 100,
        (0.3224, 0.1677), (0.2026, 0.1389), 0.0099, 9.4090, (4.8500, 0.0030, 0.3897, 1.1802),
    ),
}  # fmt: skip
# Data that cannot be had offline; Table 6 needs their sizes alone. Purchase's features are 594 in truth, 600 in print.
ELSEWHERE = {
    "Purchase-2": (594, 2, (1.0771, 0.0016, 0.2000, 0.4918)),
    "Purchase-10": (594, 10, (1.9388, 0.0028, 0.3570, 1.0421)),
    "Purchase-20": (594, 20, (2.0465, 0.0029, 0.3738, 1.1119)),
    "Purchase-50": (594, 50, (2.1111, 0.0029, 0.3765, 1.1234)),
    "Purchase-100": (594, 100, (2.1327, 0.0029, 0.3664, 1.0809)),
    "Texas Hospital": (6169, 100, (6.8729, 0.0031, 0.3928, 1.1937)),
}
# What its Figure 3 (a) shows, read off the curves, at these ε.
FIGURE_3 = {
    "laplace": {0.01: 0.50, 0.1: 0.49, 1.0: 0.48, 10.0: 0.41, 100.0: 0.10},
    "gaussian": {0.01: 0.48, 0.1: 0.47, 1.0: 0.43, 10.0: 0.16, 100.0: 0.01},
}
NOT_HERE = "the data are not to be had offline"
NO_ATTACK = ("cifar100",)  # 20,000 of its 50,000 records are here: too few for shadow models of 10,000
SMALL = {"records": 600, "epochs": 10, "shadows": 4}  # what the quick version has at most


# Experiments.


def network(trial: Trial, place: Workplace) -> Figures:
    """Accuracy of the network without noise, on its own records and on others."""
    world = _world(trial, place)
    net = world.network(trial["loss"], dict(trial.settings).get("learning_rate"))
    return {"own": accuracy(net, world.split.private), "others": accuracy(net, world.split.test)}


def leakage(trial: Trial, place: Workplace) -> Figures:
    """TPR − FPR on the network without noise."""
    world = _world(trial, place)
    net = world.network("elements")
    return {"leakage": world.leakage([predict(net, part).numpy() for part in (world.members, world.others)])}


def noise(trial: Trial, place: Workplace) -> Figures:
    """What Algorithm 1's noise costs, and what it leaves to the attack: one answer per record."""
    world = _world(trial, place)
    channel = world.channel(epsilon=trial["epsilon"], noise=trial["noise"])
    inside = NeuronAnswerer(channel.interface(), keep(world.network("elements")))
    stream = Stream.from_seed(trial.seed).child(trial["noise"], trial["epsilon"])

    def answers(records: Records, *path: str | int) -> Floats:
        x = to_input(torch.from_numpy(np.ascontiguousarray(records.x))).numpy()
        return channel.noise.perturb(inside.logits(x), stream.child(*path))

    there = [float((answers(world.split.test, "all", i).argmax(1) == world.split.test.y).mean()) for i in range(ROUNDS)]
    figures = {"others": float(np.mean(there)), "loss": 1 - float(np.mean(there)) / world.baseline}
    if world.attacked:
        sides = (world.members, world.others)
        noisy = ([answers(part, side, i) for side, part in enumerate(sides)] for i in range(ROUNDS))
        logs = ([np.log(np.maximum(found, 1e-30)) for found in pair] for pair in noisy)
        figures["leakage"] = float(np.mean([world.leakage(pair) for pair in logs]))
    return figures


def dp_sgd(trial: Trial, place: Workplace) -> Figures:
    """DP-SGD's accuracy loss and leakage, at the noise that a composition asks for."""
    world = _world(trial, place)
    multiplier, net = world.noisy_network(trial["composition"], trial["epsilon"])
    there = accuracy(net, world.split.test)
    figures = {"noise_multiplier": multiplier, "others": there, "loss": 1 - there / world.baseline}
    if world.attacked:
        figures["leakage"] = world.leakage([predict(net, part).numpy() for part in (world.members, world.others)])
    return figures


def noise_of(composition: str, epochs: int, epsilon: float, records: int, batch_size: int) -> float:
    """The noise multiplier that a composition asks for at (ε, 1/(10 n)) in all."""
    delta = 1 / (10 * records)
    if composition == "rdp":
        return rdp_noise(epochs, epsilon, delta, records, batch_size)
    return {"naive": naive_noise, "advanced": advanced_noise, "zcdp": zcdp_noise}[composition](epochs, epsilon, delta)


def noisy_points(quick: bool) -> list[tuple[str, float]]:
    """The compositions and ε at which DP-SGD is run."""
    compositions, epsilons = (COMPOSITIONS[3:], QUICK_EPSILONS) if quick else (COMPOSITIONS, EPSILONS)
    return [(composition, epsilon) for epsilon in epsilons for composition in compositions]


def court(trial: Trial, place: Workplace) -> Figures:
    """Whether one answer's claim is refuted, and after how many pairs of runs (batches of 1,000, 10,000 records)."""
    key = (trial["classes"], trial["noise"])
    case = place.once("case", key, lambda: case_of_answer(Published, 1.0, 1e-5, trial["classes"], noise=trial["noise"]))
    return in_court(trial, case)


def sound(trial: Trial, place: Workplace) -> Figures:
    """A sound method that answers so many questions at a proven ε, with the features that are its default."""
    own = {key: value for key, value in trial.settings if key in ("queries", "gives")}
    table = {"channel": "answers", "method": trial["method"], "data": trial["data"], "epsilon": trial["epsilon"]}
    table |= {"delta": 1e-4 if trial["data"] == "digits" else 1e-5, "settings": own}
    return released(trial, place, table, SMALL["records"] if is_small(trial) else None)


class AnswersWorld(World):
    """One division of a data set, the networks trained on it, and the attacker's models."""

    def __init__(self, name: str, seed: int, small: bool, place: Workplace) -> None:
        super().__init__(name, seed, small, place)
        self.known = DATA[name]
        table = {"channel": "answers", "method": "published", "data": name, "epsilon": 1.0, "seed": seed}
        table |= {"delta": 1 / (10 * self.known.records), "split": self.known.split}
        if small:
            table["settings"] = {"epochs": SMALL["epochs"]}
        self.config, facts, split = opened(table, place)
        if name == "adult":
            facts, split = with_codes(facts, split)
        self.facts, self.split = facts, fewer(split, SMALL["records"]) if small else split

    def channel(self, **changes: Setting) -> Published:
        """The method at other settings; ε is its own, all else belongs to its table of settings."""
        settings = {**self.config.settings, **{key: value for key, value in changes.items() if key != "epsilon"}}
        update = {"epsilon": changes.get("epsilon", self.config.epsilon), "settings": settings}
        return Published(self.config.model_copy(update=update), self.facts)

    def network(self, loss: str, learning_rate: Setting | None = None) -> nn.Module:
        """The network without noise, trained with this loss."""
        changes = {} if learning_rate is None else {"learning_rate": learning_rate}

        def make() -> nn.Module:
            channel = self.channel(loss=loss, **changes)
            assert channel.alpha != "search"
            return channel.train(self.split.private, channel.objective(channel.alpha), self.place.run)

        return self.place.once(f"network {loss}", (self.name, self.seed, self.small, learning_rate), make)

    def noisy_network(self, composition: str, epsilon: float) -> tuple[float, nn.Module]:
        """The noise multiplier, and the network under DP-SGD; those of all ε and compositions are trained at once."""
        made = self.place.once("dp-sgd", (self.name, self.seed, self.small), self._noisy_networks)
        return made[composition, epsilon]

    def _noisy_networks(self) -> dict[tuple[str, float], tuple[float, nn.Module]]:
        channel, n = self.channel(), len(self.split.private)
        s, asked = channel.settings, noisy_points(self.small)
        multipliers = [noise_of(composition, s.epochs, epsilon, n, s.batch_size) for composition, epsilon in asked]
        nets = train_at_noise_levels(
            channel.start(), Resident(self.split.private, self.place.run.device), multipliers, self.place.run,
            steps=s.epochs * math.ceil(n / s.batch_size), lot=s.batch_size, clip_norm=CLIP_NORM,
            learning_rate=s.learning_rate, weight_decay=2 * s.l2, seed=model_seed(self.seed, 0),
        )  # fmt: skip
        return dict(zip(asked, zip(multipliers, nets, strict=True), strict=True))

    @property
    def baseline(self) -> float:
        """Accuracy on others of the network that Algorithm 1 perturbs."""
        return max(accuracy(self.network("elements"), self.split.test), 1e-9)

    @property
    def attacked(self) -> bool:
        """Whether there are records enough for shadow models."""
        return self.name not in NO_ATTACK

    @property
    def members(self) -> Records:
        """Records of the network that the attack is asked about: as many as others."""
        return self.split.private.take(np.arange(min(len(self.split.private), len(self.split.test))))

    @property
    def others(self) -> Records:
        """Records that no network saw."""
        return self.split.test.take(np.arange(len(self.members)))

    def leakage(self, logits: Sequence[Floats]) -> float:
        """TPR − FPR of the attack on these answers about members and others."""
        shadows, nets = self.place.once("attack", (self.name, self.seed, self.small), self._attack)
        sides = [AnsweredRecords(part, found) for part, found in zip((self.members, self.others), logits, strict=True)]
        scores = shadow_attack(shadows, sides[0], sides[1], self.seed, self.place.run, _HOW, nets)
        return float((scores.members > 0).mean() - (scores.others > 0).mean())

    def _attack(self) -> tuple[Shadows, Ensemble]:
        """The attacker's shadow models, on records that are nobody else's, and the attack network."""
        rest = joined(self.split.public, self.split.holdout)
        scored = {row.tobytes() for part in (self.split.private, self.split.test) for row in part.x}
        rest = rest.take(np.flatnonzero([row.tobytes() not in scored for row in rest.x]))  # Adult has equal records
        channel = self.channel(loss="elements")
        assert channel.alpha != "search"
        size, count = min(len(self.split.private), len(rest) * 9 // 10), self.known.shadows
        count = min(count, SMALL["shadows"]) if self.small else count

        def make(model: int) -> nn.Module:
            fresh = channel.start()
            start_as_keras(fresh, model_seed(self.seed, model))
            return fresh

        resident, inside = Resident(rest, self.place.run.device), subsets(count, len(rest), size, self.seed)
        models = train_together(
            make, count, resident, inside, channel.recipe, self.seed, self.place.run, label="training shadow models",
            batch_size=channel.settings.batch_size, objective=channel.objective(channel.alpha),
        )  # fmt: skip
        shadows = Shadows(inside, models.logits(resident).numpy(), rest.y)
        return shadows, train_attack(shadows, self.seed, self.place.run, _HOW)


_HOW = ShadowSettings(repeats=1, by_class=False)


def _world(trial: Trial, place: Workplace) -> AnswersWorld:
    small = is_small(trial)
    key = (trial["data"], trial.seed, small)
    return place.once("world", key, lambda: AnswersWorld(*key, place))


def with_codes(facts: Facts, split: Split) -> tuple[Facts, Split]:
    """Adult as the paper had it, 14 numbers: a category's place in the public schema, scaled to [0, 1]."""

    def coded(records: Records) -> Records:
        columns, place = [], 0
        for column in ADULT_COLUMNS.values():
            width = len(column.categories or (None,))
            block = records.x[:, place : place + width]
            columns.append(block.argmax(1) / (width - 1) if column.categories else block[:, 0])
            place += width
        return Records(np.stack(columns, 1).astype(np.float32), records.y)

    facts = replace(facts, shape=(len(ADULT_COLUMNS),))
    private, public, test, holdout = map(coded, (split.private, split.public, split.test, split.holdout))
    return facts, Split(facts, private, public, test, holdout)


# Items.


def _seeds(name: str, quick: bool) -> tuple[int, ...]:
    """Five where a run takes seconds, three where it takes minutes."""
    return SEEDS[:1] if quick else SEEDS if name in ("location30", "adult") else SEEDS[:3]


def _trials(experiment: str, name: str, quick: bool, **settings: Setting) -> Iterator[Trial]:
    more = {"small": True} if quick else {}
    for seed in _seeds(name, quick):
        yield Trial.of(experiment, seed, data=name, **settings, **more)


def _table_5(quick: bool) -> list[Trial]:
    found: list[Trial] = []
    for name in DATA:
        for loss in ("elements", "mean"):
            found += _trials("network", name, quick, loss=loss)
        if name not in NO_ATTACK:
            found += _trials("leakage", name, quick)
    return sorted(found, key=lambda trial: (list(DATA).index(trial["data"]), trial.seed))


def _show_table_5(found: Found) -> ItemResult:
    small = {"small": True} if found.quick else {}
    rows, pairs = [], []
    for name, known in DATA.items():
        cells = [known.words]
        for loss, printed in (("mean", known.original), ("elements", known.convexified)):
            for figure, paper in zip(("own", "others"), printed, strict=True):
                ours = found.figure("network", figure, data=name, loss=loss, **small)
                words = "original" if loss == "mean" else "convexified"
                pairs.append((f"{known.words}, {words}, {figure}", paper, ours))
                cells.append(beside(paper, ours))
        leak = None if name in NO_ATTACK else found.figure("leakage", "leakage", data=name, **small)
        if name not in NO_ATTACK:
            pairs.append((f"{known.words}, leakage", known.leakage, leak))
        rows.append((*cells, beside(known.leakage, leak)))
    columns = ("data", "original loss: own", "others", "convexified: own", "others", "leakage")
    status, words = compared(pairs, 0.02)
    return ItemResult(status, words, columns, tuple(rows))


def _show_table_6(found: Found) -> ItemResult:
    sizes = {known.words: (known.inputs, known.classes, known.records, known.sensitivities) for known in DATA.values()}
    sizes |= {name: (inputs, classes, 10_000, there) for name, (inputs, classes, there) in ELSEWHERE.items()}
    rows, pairs = [], []
    for name, (inputs, classes, records, printed) in sizes.items():
        here = Sensitivities(inputs, classes, records)
        raw = math.expm1(2 * here.of_a_logit)
        ours = (here.lipschitz, here.of_one_weight, here.of_a_logit, raw)
        labels = ("ρ", "Δω", "Δz", "e^(2Δz) − 1")
        for label, paper, own in zip(labels, printed, ours, strict=True):
            # A printed figure is known to half of its last place; e^(2Δz) − 1 to what that makes of Δz.
            known = 5e-5 * (2 * math.exp(2 * printed[2]) if label.startswith("e") else 1)
            pairs.append((f"{name}, {label}", 0.0, Spread((max(0.0, abs(paper - own) - known),))))
        rows.append((name, *(f"{paper:.4f} · {own:.4f}" for paper, own in zip(printed, ours, strict=True))))
    status, words = compared(pairs, 1e-4)
    words = words if status != "reproduced" else "to the last printed place"
    return ItemResult(status, words, ("data", "ρ", "Δω", "Δz", "e^(2Δz) − 1"), tuple(rows))


def _show_figure_2(found: Found) -> ItemResult:
    """Stability against the gap and the leakage, over the data sets that there are."""
    small = {"small": True} if found.quick else {}
    points: list[tuple[str, float, float, float]] = []
    for name, known in DATA.items():
        own, others = (found.figure("network", f, data=name, loss="elements", **small) for f in ("own", "others"))
        leak = found.figure("leakage", "leakage", data=name, **small) if name not in NO_ATTACK else None
        if own and others and leak:
            bound = Sensitivities(known.inputs, known.classes, known.records).stability
            points.append((known.words, bound, own.mean - others.mean, leak.mean))
    if len(points) < 3:
        return ItemResult("not run", f"{len(points)} data sets have rows; a correlation needs three")
    rows = tuple((name, f"{s:.3f}", f"{gap:.3f}", f"{leak:.3f}") for name, s, gap, leak in points)
    stability, gaps, leaks = np.array([point[1:] for point in points]).T
    notes = [f"Over these {len(points)} data sets:"]
    for words, a, b in (
        ("stability and gap", stability, gaps),
        ("stability and leakage", stability, leaks),
        ("leakage and gap", leaks, gaps),
    ):
        notes.append(
            f"{words}: Pearson {pearsonr(a, b).statistic:.2f}, Spearman {spearmanr(a, b).statistic:.2f}, "
            f"Kendall {kendalltau(a, b).statistic:.2f}."
        )
    words = f"{len(points)} of the paper's 11 data sets, too few for its correlations over nine"
    return ItemResult("in part", words, ("data", "stability 2ρ²/(λn)", "gap", "leakage"), rows, (" ".join(notes),))


def _figure(name: str, number: int) -> Item:
    """Accuracy loss and leakage by ε, of one data set: Figures 3 and 10 to 13."""
    known = DATA[name]

    def trials(quick: bool) -> list[Trial]:
        found, epsilons = list(_trials("network", name, quick, loss="elements")), QUICK_EPSILONS if quick else EPSILONS
        for epsilon in epsilons:
            for kind in NOISES:
                found += _trials("noise", name, quick, noise=kind, epsilon=epsilon)
        for composition, epsilon in noisy_points(quick):
            found += _trials("dp-sgd", name, quick, composition=composition, epsilon=epsilon)
        return sorted(found, key=lambda trial: trial.seed)

    return Item(f"figure-{number}", f"{known.words}: accuracy loss and leakage by ε", "curves", trials,
                partial(_show_figure, name=name))  # fmt: skip


def _show_figure(found: Found, name: str) -> ItemResult:
    small = {"small": True} if found.quick else {}
    epsilons = QUICK_EPSILONS if found.quick else EPSILONS
    compositions = COMPOSITIONS[3:] if found.quick else COMPOSITIONS
    lines = [
        *((f"Algorithm 1, {kind}", "noise", {"noise": kind}) for kind in NOISES),
        *((f"DP-SGD, {each}", "dp-sgd", {"composition": each}) for each in compositions),
    ]
    rows, pairs, there, wanted, seeds = [], [], 0, 0, len(_seeds(name, found.quick))
    for figure, words in (("loss", "accuracy loss"), ("leakage", "leakage")):
        if figure == "leakage" and name in NO_ATTACK:
            continue
        for label, experiment, settings in lines:
            cells = []
            for epsilon in epsilons:
                ours = found.figure(experiment, figure, data=name, epsilon=epsilon, **settings, **small)
                wanted, there = wanted + 1, there + (ours is not None)
                seeds = min(seeds, len(ours.values)) if ours else seeds
                cells.append(NOT_RUN if ours is None else f"{ours.mean:.3f}")
                printed = FIGURE_3.get(str(settings.get("noise")), {}).get(epsilon)
                if name == "location30" and figure == "loss" and printed is not None:
                    pairs.append((f"{label} at {epsilon:g}", printed, ours))
            rows.append((words, label, *cells))
            if name == "location30" and figure == "loss" and experiment == "noise":
                read_off = FIGURE_3[str(settings["noise"])]
                rows.append((words, f"*{label}, the paper's figure*", *(_printed(read_off.get(e)) for e in epsilons)))
    columns = ("", "", *(f"ε = {epsilon:g}" for epsilon in epsilons))
    if there == 0:
        return ItemResult("not run")
    many = len(_seeds(name, found.quick))
    told = "" if seeds == many else f"; {seeds} of {many} seeds"
    if there < wanted:
        return ItemResult("in part", f"{there} of {wanted} points{told}", columns, tuple(rows))
    if not pairs:
        return ItemResult(
            "in part", f"the paper prints curves without numbers; all points are here{told}", columns, tuple(rows)
        )
    status, words = compared(pairs, 0.03)
    return ItemResult(
        status, f"{words} (Algorithm 1's accuracy loss, read off the paper's curves){told}", columns, tuple(rows)
    )


# What is not in the paper, and stands beside it.

RATES = (0.001, 0.0005, 0.0003)
CASES = ((3, "laplace"), (10, "laplace"), (2, "laplace"), (3, "gaussian"), (2, "gaussian"))


def _rates(quick: bool) -> list[Trial]:
    losses = ("elements", "mean")
    found = [one for loss in losses for one in _trials("network", "cifar10", quick, loss=loss)]
    for rate in RATES[1:]:
        for loss in losses:
            found += _trials("network", "cifar10", quick, loss=loss, learning_rate=rate)
    return found


def _show_rates(found: Found) -> ItemResult:
    small: dict[str, Setting] = {"small": True} if found.quick else {}
    rows, count = [], 0
    for rate in RATES:
        other: dict[str, Setting] = {} if rate == RATES[0] else {"learning_rate": rate}
        cells = []
        for loss in ("elements", "mean"):
            for figure in ("own", "others"):
                ours = found.figure("network", figure, data="cifar10", loss=loss, **other, **small)
                count += ours is not None
                cells.append(NOT_RUN if ours is None else ours.text())
        rows.append((f"{rate:g}", *cells))
    printed = (*DATA["cifar10"].convexified, *DATA["cifar10"].original)
    rows.append(("*the paper, which states 0.001*", *(f"{value:.3f}" for value in printed)))
    if not count:
        return ItemResult("not run")
    columns = ("learning rate", "convexified: own", "others", "original loss: own", "others")
    return ItemResult("beside it", f"{count} of {4 * len(RATES)} figures", columns, tuple(rows))


def _court(quick: bool) -> list[Trial]:
    cases, seeds = (CASES[:1], (0,)) if quick else (CASES, (0, 1, 2))
    return [Trial.of("court", seed, classes=classes, noise=kind) for classes, kind in cases for seed in seeds]


def _show_court(found: Found) -> ItemResult:
    cases: dict[str, dict[str, Setting]] = {
        f"{classes} classes, {kind}": {"classes": classes, "noise": kind} for classes, kind in CASES
    }
    return show_court(found, cases, "one answer")


SOUND: dict[str, dict[str, Setting]] = {
    "`head`": {"method": "head"},
    "`per-query`, logits": {"method": "per-query", "gives": "logits"},
    "`per-query`, label": {"method": "per-query", "gives": "label"},
    "`votes`": {"method": "votes"},
}
QUESTIONS = (10, 100, 1000)
_SOUND_DATA = ("digits", "adult", "mnist")


def _sound_trials(quick: bool) -> list[Trial]:
    found: list[Trial] = []
    for name in _SOUND_DATA[:1] if quick else _SOUND_DATA:
        for own in SOUND.values():
            asked = [{}] if own["method"] == "head" else [{"queries": count} for count in QUESTIONS]
            for count in asked[-1:] if quick else asked:
                more: dict[str, Setting] = {**own, **count, **({"small": True} if quick else {})}
                found += [
                    Trial.of("sound", seed, data=name, epsilon=1.0, **more)
                    for seed in SEEDS[: _sound_seeds(name, quick)]
                ]
    return sorted(found, key=lambda trial: (trial["data"], trial.seed))


def _sound_seeds(name: str, quick: bool) -> int:
    return 1 if quick else 3 if name == "mnist" else 5


def _show_sound(found: Found) -> ItemResult:
    """Accuracy by how many questions are answered in all; one head answers any number of them."""
    small: dict[str, Setting] = {"small": True} if found.quick else {}
    rows, there, wanted = [], 0, 0
    for name in _SOUND_DATA[:1] if found.quick else _SOUND_DATA:
        for words, own in SOUND.items():
            cells = []
            for count in QUESTIONS[-1:] if found.quick else QUESTIONS:
                asked = {} if own["method"] == "head" else {"queries": count}
                ours = found.figure("sound", "others", data=name, epsilon=1.0, **own, **asked, **small)
                wanted, there = wanted + 1, there + (ours is not None)
                cells.append(NOT_RUN if ours is None else ours.text())
            rows.append((name, words, *cells))
    if not there:
        return ItemResult("not run")
    columns = ("data", "method", *(f"{count:,} questions" for count in (QUESTIONS[-1:] if found.quick else QUESTIONS)))
    return ItemResult("beside it", f"{there} of {wanted} figures", columns, tuple(rows))


def _show_noise(found: Found) -> ItemResult:
    rows = []
    for records in (1200, 10_000):
        for composition in COMPOSITIONS:
            cells = [f"{noise_of(composition, 100, epsilon, records, 100):.4g}" for epsilon in (0.01, 0.1, 1, 10, 100)]
            rows.append((f"n = {records:,}", composition, *cells))
    columns = ("records", "composition", *(f"ε = {epsilon:g}" for epsilon in (0.01, 0.1, 1, 10, 100)))
    return ItemResult("beside it", "by the formulas", columns, tuple(rows))


def _printed(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _together(trial: Trial) -> object:
    """The networks and the attacker's models of one division of the records."""
    asked = dict(trial.settings)
    own = trial.experiment in ("court", "sound")
    return None if own else (asked["data"], trial.seed, is_small(trial))


PAPER = Paper(
    "answers",
    "Lu et al. 2021, the convexified loss",
    {"network": network, "leakage": leakage, "noise": noise, "dp-sgd": dp_sgd, "court": court, "sound": sound},
    (
        Item("table-5", "accuracy and leakage without noise", "25 figures of five data sets", _table_5, _show_table_5),
        Item("table-6", "sensitivities", "44 figures of eleven data sets", lambda quick: (), _show_table_6),
        Item("figure-2", "stability, gap and leakage", "Pearson 0.83, 0.74, 0.96", _table_5, _show_figure_2),
        _figure("location30", 3),
        *(absent(f"figure-{n}", f"{words}: accuracy loss and leakage by ε", NOT_HERE)
          for n, words in ((4, "Texas Hospital"), (5, "Purchase-100"), (6, "Purchase-50"), (7, "Purchase-20"),
                           (8, "Purchase-10"), (9, "Purchase-2"))),
        _figure("mnist", 10),
        _figure("adult", 11),
        _figure("cifar10", 12),
        _figure("cifar100", 13),
        Item("dp-sgd-noise", "noise multipliers of the four compositions", "none", lambda quick: (), _show_noise),
        Item("learning-rate", "CIFAR-10 at smaller learning rates", "none", _rates, _show_rates),
        Item("court", "one answer in court", "claims ε = 1", _court, _show_court),
        Item("sound", "the sound methods by how many questions they answer", "none", _sound_trials, _show_sound),
    ),
    (*DATA, "digits"),
    together=_together,
)  # fmt: skip
