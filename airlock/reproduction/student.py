"""Wang et al. 2019, RONA: its tables and figures, and sound students at the same ε.

The networks are those of `nets.compact`, whose sizes are the paper's; SVHN is the subset that is here (20,000 training
and 5,000 test images of 73,257 and 26,032). What the paper leaves open: how its teachers were trained (Adam with a
cosine, on shifted images, mirrored for CIFAR-10), changes to the student's public images (the same), and what its ε is
made of (Theorem 2 with c2 = 1/2, which gives the ε stated for CIFAR-10; `papers.student.published`).

ε is moved by the number of queries, that is by R, with σ near 10: by σ nothing changes, as Figure 2 (d) shows. A
student *by itself* learns from public labels alone, for as many steps as all its learning takes. Digits are the 8 × 8
ones of scikit-learn; they are not in the paper, cost seconds, and are run on five seeds, because one seed's figures
depend on how a processor rounds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from torch import nn

from airlock import data, methods, nets
from airlock.auditing.attacks import gradient_norm, loss_threshold
from airlock.auditing.attacks.signals import ask, loss
from airlock.auditing.audit_game import judge
from airlock.auditing.members import draw
from airlock.auditing.metrics import measure_all
from airlock.auditing.one_run_audit import judge_one_run
from airlock.bundle import export
from airlock.bundle.compression import milliseconds, multiply_adds
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Split
from airlock.errors import AirlockWarning
from airlock.mechanisms import Randomness, Stream
from airlock.methods.contract import NetworkArtefact
from airlock.papers.student.published import Published, Teachers
from airlock.reproduction.paper import (
    NOT_RUN,
    Figures,
    Found,
    Item,
    ItemResult,
    Paper,
    Setting,
    Spread,
    Status,
    Trial,
    Workplace,
    compared,
    fewer,
)
from airlock.training import Recipe, Shuffled, predict
from airlock.training.augment import named
from airlock.training.distillation.distil import Stage, at_places, learn_labels
from airlock.training.stages import Stages

SEEDS, DIGITS_SEEDS = (0, 1, 2), (0, 1, 2, 3, 4)
SOUND_EPSILONS = (1.0, 3.0)  # beside the paper's


@dataclass(frozen=True)
class Printed:
    """How the paper uses a data set, and what it prints about it.

    Args:
        words: Its name.
        source: As in a config.
        delta: The paper's δ.
        public: Share of public records in the section on privacy; it is 0.8 for compression.
        family: Of the networks.
        privacy: Accuracy and ε in the section on privacy, in percent.
        compressed: Teacher, S1 and S2 in Table 2, in percent.
        claimed: ε of Table 2.
        sizes: Parameters of teacher, S1 and S2 in Table 2.
        seconds: For 100 images on a phone.
    """

    words: str
    source: str | dict[str, object]
    delta: float
    public: float
    family: str
    privacy: tuple[float, float]
    compressed: tuple[float, float, float]
    claimed: float
    sizes: tuple[float, float, float]
    seconds: tuple[float, float, float]


DATA = {
    "mnist": Printed(
        "MNIST", "mnist", 1e-5, 0.4, "mnist", (98.64, 7.68), (99.48, 98.94, 99.28), 9.60,
        (155_210, 4_970, 9_880), (0.76, 0.03, 0.07),
    ),
    "svhn": Printed(
        "SVHN", {"source": "svhn", "records": 20_000, "test_records": 5_000}, 1e-6, 0.4, "svhn", (92.90, 7.03),
        (96.36, 94.49, 95.39), 9.83, (1_410_000, 40_000, 70_000), (7.34, 0.29, 0.39),
    ),
    "cifar10": Printed(
        "CIFAR-10", "cifar10", 1e-5, 0.8, "cifar", (81.69, 8.87), (86.35, 82.14, 84.57), 9.59,
        (3_120_000, 150_000, 520_000), (13.92, 0.93, 3.10),
    ),
}  # fmt: skip
# Table 1, MNIST with all 6s and 9s private, in percent: all digits, and the unseen ones; and how many rounds and epochs
# make queries of about that ε.
MASKED_BASE = (79.87, 0.0)
MASKED: dict[float, tuple[float, float, dict[str, Setting]]] = {
    5.2: (80.93, 9.59, {"rounds": 1}),
    8.7: (88.48, 46.75, {"rounds": 5}),
    29.8: (90.35, 53.43, {"rounds": 5, "distil_epochs": 126}),
}

# How students learn, by data set, and by what the experiment is about.
_TEACHERS: dict[str, dict[str, Setting]] = {
    "mnist": {"teacher": "rona-mnist-teacher", "teacher_epochs": 30, "teacher_batch": 256, "teacher_augment": "shift",
              "student_augment": "shift", "precision": "bf16"},
    "svhn": {"teacher": "rona-svhn-teacher", "teacher_epochs": 60, "teacher_batch": 256, "teacher_augment": "shift",
             "student_augment": "shift", "precision": "bf16"},
    "cifar10": {"teacher": "rona-cifar-teacher", "teacher_epochs": 50, "teacher_batch": 256,
                "teacher_augment": "shift+flip", "student_augment": "shift+flip", "precision": "bf16"},
}  # fmt: skip
# Of the authors' public code, where the paper is silent; the learning rate is 0.001 and τ = 3.
_OF_THE_CODE: dict[str, Setting] = {"hint_epochs": 40, "rounds": 5, "self_epochs": 8, "distil_epochs": 8}
_QUERIED: dict[str, Setting] = {"select_rate": 0.5, "query_batch": 512, "self_batch": 128, "temperature": 3.0}
_PUBLISHED: dict[str, dict[str, Setting]] = {
    "table-2": {**_OF_THE_CODE, **_QUERIED},
    "privacy": {**_OF_THE_CODE, **_QUERIED, "hint_epochs": 10},
    "masked": {**_OF_THE_CODE, **_QUERIED, "hint_epochs": 10},
    "figure-2": {**_QUERIED, "hint_epochs": 10, "rounds": 5, "self_epochs": 2, "distil_epochs": 4, "noise_scale": 10.0,
                 "select_rate": 0.2},
    "digits": {"teacher": "rona-digits-teacher", "hint_epochs": 10, "rounds": 3, "self_epochs": 4, "distil_epochs": 4},
}  # fmt: skip
_MNIST_SOUND: dict[str, Any] = {
    "teacher": "rona-mnist-teacher", "hint_epochs": 10, "rounds": 5, "self_epochs": 4, "query_batch": 128,
    "self_batch": 128, "learning_rate": 0.003, "schedule": "cosine",
    "private": {"steps": 300, "lot_size": 4096, "learning_rate": 1.0, "clip_norm": 0.1, "ema": 0.95},
}  # fmt: skip
_LARGE_SOUND: dict[str, Any] = {
    "hint_epochs": 20, "rounds": 5, "self_epochs": 8, "distil_epochs": 8, "query_batch": 256, "self_batch": 128,
    "learning_rate": 0.001, "schedule": "cosine", "private_layers": 2,
    "private": {"steps": 200, "lot_size": 4096, "learning_rate": 0.5, "clip_norm": 0.1, "ema": 0.95},
}  # fmt: skip
_SOUND: dict[tuple[str, str], dict[str, Any]] = {
    ("mnist", "privacy"): {**_MNIST_SOUND, "distil_epochs": 8, "teacher_epochs": 40, "teacher_augment": "shift",
                           "student_augment": "shift"},
    ("mnist", "masked"): {**_MNIST_SOUND, "distil_epochs": 4, "teacher_epochs": 20},
    ("svhn", "privacy"): {**_TEACHERS["svhn"], **_LARGE_SOUND},
    ("cifar10", "privacy"): {**_TEACHERS["cifar10"], **_LARGE_SOUND},
    ("digits", "digits"): {},
    ("digits", "masked"): {},
}  # fmt: skip
_ENSEMBLE: dict[str, dict[str, Any]] = {"digits": {}, "few": {"hint_epochs": 100, "rounds": 30}, "mnist": {}}
_ANY_CLAIM = 1e9
_RESERVED = ("data", "layout", "net", "epsilon", "small")
# The quick version: few records, the networks for digits on any images, an epoch of everything.
SMALL_RECORDS = 400
_SMALL: dict[str, Any] = {
    "teacher": "rona-digits-teacher", "teacher_epochs": 2, "teacher_batch": 64, "hint_epochs": 1, "rounds": 1,
    "self_epochs": 1, "distil_epochs": 1, "query_batch": 64, "self_batch": 64, "precision": "fp32",
}  # fmt: skip
_SMALL_PRIVATE = {"steps": 4, "lot_size": 4096, "learning_rate": 0.1, "clip_norm": 0.1}
_SMALL_ENSEMBLE = {"teachers": 4, "queries": 40, "bound": 4.0, "shard_epochs": 1}


# Experiments.


def published(trial: Trial, place: Workplace) -> Figures:
    """RONA: accuracy of student and teachers, the claim, and how many batches were clipped."""
    channel, split = _channel(trial, place)
    assert isinstance(channel, Published)
    stages = Stages(place.run, {})
    net, changes = channel.student(split, _teachers(trial, channel, split, place), _drawn(trial), stages)
    clipped = {f"clipped_{name}": change.share_clipped for name, change in changes.items()}
    teacher, auxiliary = _teachers(trial, channel, split, place)
    return {
        **_accuracies("student", net, split, channel.facts.without(channel.config.split)),
        **_accuracies("teacher", teacher, split, ()),
        **_accuracies("public_teacher", auxiliary, split, ()),
        **{name: share for name, share in clipped.items() if share is not None},
        "claimed_epsilon": channel.claimed_epsilon,
    }


def alone(trial: Trial, place: Workplace) -> Figures:
    """The same student by itself."""
    channel, split = _channel(trial, place)
    assert isinstance(channel, Published)
    s, net = channel.settings, channel.nets(trial.seed)[1]
    queries = -(-min(channel.queries, len(split.public)) // s.query_batch)
    steps = (s.hint_epochs + s.rounds * s.distil_epochs) * queries
    steps += s.rounds * s.self_epochs * -(-len(split.public) // s.self_batch)
    recipe = Recipe(steps=steps, optimiser="adam", learning_rate=s.learning_rate, schedule=s.schedule,
                    precision=s.precision, channels_last=True)  # fmt: skip
    inputs = at_places(split.public.x, place.run.device)
    how = Stage(Shuffled(s.self_batch, trial.seed), recipe, trial.seed, place.run, named(s.student_augment))
    learn_labels(net, inputs, split.public.y, how)
    return _accuracies("student", net, split, channel.facts.without(channel.config.split))


def noise(trial: Trial, place: Workplace) -> Figures:
    """How far other noise, and far more of it, moves a weight of the student."""
    channel, split = _channel(trial, place)
    assert isinstance(channel, Published)
    loud, teachers = _with(channel, noise_scale=1e6), _teachers(trial, channel, split, place)
    pair = (
        own.student(split, teachers, Randomness.make(trial.seed, number), Stages(place.run, {}))[0]
        for number, own in ((1, channel), (2, loud))
    )
    both = zip(*(net.parameters() for net in pair), strict=True)
    return {"difference": max(float((a - b).detach().abs().max()) for a, b in both)}


def private_teacher(trial: Trial, place: Workplace) -> Figures:
    """A sound student of a teacher under DP-SGD, and the same student without it."""
    channel, split = _channel(trial, place)
    made, base = channel.release(split, _drawn(trial), place.run), channel.alone(split.public, place.run)
    inside = {key: float(made.inside[key]) for key in ("teacher_accuracy", "public_teacher_accuracy")}
    return {
        "epsilon": made.guarantee.epsilon,
        **_accuracies("student", made.network.net, split, channel.unseen),
        **_accuracies("alone", base, split, channel.unseen),
        **{key.removesuffix("_accuracy"): value for key, value in inside.items()},
        "noise_multiplier": float(made.plan.details["noise_multiplier"]),
        "private_learning_rate": float(made.plan.details["private_learning_rate"]),
    }


def ensemble(trial: Trial, place: Workplace) -> Figures:
    """A sound student of teachers on disjoint shards, and the same if they say nothing."""
    channel, split = _channel(trial, place)
    silent = _with(channel, bound=1e-9, teachers=2, shard_epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AirlockWarning)
        made, told_nothing = (one.release(split, _drawn(trial), place.run) for one in (channel, silent))
    known = {**made.plan.details, **made.inside}
    shown = ("teachers", "queries", "noise_multiplier", "bound", "noise_over_bound", "public_teacher_accuracy")
    figures = {name: float(known[name]) for name in shown if name in known}
    return {"student": made.utility.accuracy, "alone": told_nothing.utility.accuracy, **figures}


def membership(trial: Trial, place: Workplace) -> Figures:
    """Two quick attacks on the student, and on its teacher, which stays: AUC and its interval."""
    channel, split = _channel(trial, place)
    assert isinstance(channel, Published)
    teachers = _teachers(trial, channel, split, place)
    net, _ = channel.student(split, teachers, _drawn(trial), Stages(place.run, {}))
    attacked = draw(split, channel.config.split, trial.seed, 10_000)
    assert attacked is not None
    figures: dict[str, float] = {"members": float(len(attacked.members))}
    for whose, own in (("student", net), ("teacher", teachers[0])):
        own = own.cpu()
        losses = [loss(ask(own, side), side.y) for side in (attacked.members, attacked.others)]
        scores = [
            loss_threshold(losses[0], losses[1], attacked.members.y, attacked.others.y),
            gradient_norm(own.requires_grad_(True), attacked.members, attacked.others),
        ]
        for name, result in zip(
            ("loss", "gradient"), measure_all(scores, channel.config.delta, classes=channel.facts.classes), strict=True
        ):
            figures |= {f"{whose}_{name}": result.value}
            figures |= {f"{whose}_{name}_low": result.low, f"{whose}_{name}_high": result.high}
        own.to(place.run.device)
    return figures


def compression(trial: Trial, place: Workplace) -> Figures:
    """Size and work of the networks of a family, and the time of ONNX Runtime on one thread of this CPU."""
    known = DATA[trial["family"]]
    shape, classes = (1, 28, 28) if trial["family"] == "mnist" else (3, 32, 32), tuple("0123456789")
    sizes = ("teacher", "s1", "s2")
    made = {size: nets.create(f"rona-{known.family}-{size}", shape, 10, 0).eval() for size in sizes}
    files = {size: export.to_onnx(NetworkArtefact(net, size, shape, classes)) for size, net in made.items()}
    spent = milliseconds([export.open_onnx(file) for file in files.values()], shape, trial["rounds"])
    figures: dict[str, float] = {}
    for (size, net), took in zip(made.items(), spent, strict=True):
        figures |= {f"{size}_parameters": float(sum(p.numel() for p in net.parameters())), f"{size}_ms": took}
        figures |= {f"{size}_multiply_adds": float(multiply_adds(net, shape)), f"{size}_bytes": float(len(files[size]))}
    return figures


def court(trial: Trial, place: Workplace) -> Figures:
    """Whether the claim is refuted, after how many pairs of releases, and the bound on ε."""
    changes = {key: value for key, value in trial.settings if key in ("losses", "noise_scale")}
    found = judge(Published.case(1.0, 1e-5, **changes), Stream.from_seed(trial.seed), seconds=600.0)
    return {"refuted": float(found.refuted), "pairs": float(found.pairs), "at_least": found.epsilon_lower_bound}


def one_run(trial: Trial, place: Workplace) -> Figures:
    """One release with canaries, each in it or not by a coin flip: right guesses."""
    found = judge_one_run(Published.canaries(1.0, 1e-5, trial["canaries"]), Stream.from_seed(trial.seed))
    return {"refuted": float(found.refuted), "guesses": float(found.best.guesses), "correct": float(found.best.correct)}


def _config(trial: Trial) -> ReleaseConfig:
    """The release that a trial is about: its layout's settings, the quick version's over them, then its own."""
    given = dict(trial.settings)
    name, layout = str(given["data"]), str(given["layout"])
    own = {key: value for key, value in given.items() if key not in _RESERVED}
    known, digits = DATA.get(name), name == "digits"
    if trial.experiment == "private-teacher":
        settings: dict[str, Any] = dict(_SOUND[name, layout])
    elif trial.experiment == "ensemble":
        settings = dict(_ENSEMBLE[layout])
    else:
        settings = {**_TEACHERS.get(name, {}), **_PUBLISHED[layout]}
    if "small" in given:
        settings |= _SMALL
        settings |= {"private": _SMALL_PRIVATE} if trial.experiment == "private-teacher" else {}
        settings |= _SMALL_ENSEMBLE if trial.experiment == "ensemble" else {}
    settings |= own
    epsilon = given.get("epsilon", 9.6 if known is None else known.claimed)
    public = 0.05 if layout == "few" else 0.4 if known is None else known.public if layout == "privacy" else 0.8
    public = 0.4 if (name, trial.experiment) == ("mnist", "ensemble") else public
    split: dict[str, Any] = {"public": public, "holdout": 0.1 if digits else 0.02}
    split |= {} if digits else {"test": 0.0}  # the official test set is kept
    split |= {"public_without": ["6", "9"]} if layout == "masked" else {}
    net = str(given.get("net", "s2"))
    table = {
        "channel": "student",
        "method": trial.experiment if trial.experiment in ("private-teacher", "ensemble") else "published",
        "data": "digits" if known is None else known.source,
        "net": "rona-digits-student" if digits or "small" in given else f"rona-{known.family if known else ''}-{net}",
        "epsilon": epsilon,
        "delta": 1e-4 if known is None else known.delta,
        "seed": trial.seed,
        "split": split,
        "settings": settings,
    }
    config = from_table(table)
    # With a noise scale the claim follows from the settings; it may be any.
    return config.model_copy(update={"epsilon": _ANY_CLAIM}) if "noise_scale" in settings else config


def _channel(trial: Trial, place: Workplace) -> tuple[Any, Split]:
    """The method, and the records."""
    config = _config(trial)

    def load() -> tuple[Facts, Split]:
        split = data.load(config, place.data_dir)
        small = fewer(split, SMALL_RECORDS) if "small" in dict(trial.settings) else split
        return data.describe(config, place.data_dir), small

    key = (str(config.data), config.seed, str(config.split))
    facts, split = place.once(f"records of {trial['data']}", key, load)
    return methods.build(config, facts), split


def _with(channel: methods.Channel, **changes: float) -> Any:
    """The same method with other settings."""
    epsilon = _ANY_CLAIM if "noise_scale" in changes else channel.config.epsilon
    update = {"epsilon": epsilon, "settings": {**channel.config.settings, **changes}}
    return type(channel)(channel.config.model_copy(update=update), channel.facts)


def _teachers(trial: Trial, channel: Published, split: Split, place: Workplace) -> Teachers:
    """Teacher and public teacher, the same for all students of a data set, split and seed."""
    known = {key: value for key, value in channel.settings.model_dump().items() if key.startswith("teacher")}
    key = (trial.seed, str(channel.config.split), str(known), channel.settings.precision)
    stages = Stages(place.run, {})
    return place.once(f"teachers of {trial['data']}", key, lambda: channel.teachers(split, trial.seed, stages))


def _drawn(trial: Trial) -> Randomness:
    return Randomness.make(trial.seed, 1)


def _accuracies(name: str, net: nn.Module, split: Split, unseen: Sequence[int]) -> dict[str, float]:
    """On test records, and on those of classes without public records where there are any."""
    right = predict(net, split.test).argmax(1).numpy() == split.test.y
    theirs = np.isin(split.test.y, list(unseen))
    return {name: float(right.mean())} | ({f"{name}_unseen": float(right[theirs].mean())} if theirs.any() else {})


# Items.


def _trials(experiment: str, name: str, layout: str, quick: bool, **settings: Setting) -> Iterator[Trial]:
    """Five seeds for digits, three for the others, one for the quick version."""
    seeds = (0,) if quick else DIGITS_SEEDS if name == "digits" else SEEDS
    more = {"small": True} if quick else {}
    for seed in seeds:
        yield Trial.of(experiment, seed, data=name, layout=layout, **settings, **more)


def _figure(found: Found, experiment: str, figure: str, name: str, layout: str, **settings: Setting) -> Spread | None:
    """In percent, over the seeds."""
    small = {"small": True} if found.quick else {}
    spread = found.figure(experiment, figure, data=name, layout=layout, **settings, **small)
    return None if spread is None else Spread(tuple(100 * value for value in spread.values))


def _text(spread: Spread | None, digits: int = 2) -> str:
    return NOT_RUN if spread is None else spread.text(digits)


# Figure 2: CIFAR-10, S1, one setting at a time.

Change = dict[str, Setting]


@dataclass(frozen=True)
class Panel:
    """One panel of Figure 2.

    Args:
        letter: Of the panel.
        title: What is varied.
        says: What the paper reads from it.
        lines: By name, changes to the middle and what they are called; the paper's figure shows curves alone.
        holds: Whether what the paper says is so, from the means of every line; in percent.
        quick: The lines of the quick version.
    """

    letter: str
    title: str
    says: str
    lines: dict[str, list[tuple[str, Change]]]
    holds: Callable[[dict[str, list[float]]], bool]
    quick: dict[str, list[tuple[str, Change]]]

    @property
    def name(self) -> str:
        """As an item."""
        return f"figure-2{self.letter}"


def _axis(key: str, values: Sequence[Setting], middle: Setting) -> list[tuple[str, Change]]:
    return [(f"{value:,g}", {} if value == middle else {key: value}) for value in values]


def _rises(values: Sequence[float], by: float = 1.0) -> bool:
    """From first to last by more than a point, and nowhere down by more."""
    return values[-1] - values[0] > by and all(b > a - by for a, b in pairwise(values))


SELECTIONS = ("k-centre", "random", "margin", "diverse")
_BOUNDS: dict[str, Change] = {"adaptive": {}, "B = 0.1": {"bound": 0.1}, "B = 1": {"bound": 1.0}}
_BOUNDS["B = 10"] = {"bound": 10.0}


def _selected(rates: Sequence[float], names: Sequence[str]) -> dict[str, list[tuple[str, Change]]]:
    def change(name: str, rate: float) -> Change:
        return ({} if name == "k-centre" and rate != 0.05 else {"select": name}) | (
            {} if rate == 0.2 else {"select_rate": rate}
        )

    return {name: [(f"{100 * rate:g}%", change(name, rate)) for rate in rates] for name in names}


def _rounds(values: Sequence[int], names: Sequence[str]) -> dict[str, list[tuple[str, Change]]]:
    return {
        name: [(f"R = {rounds}", _BOUNDS[name] | ({} if rounds == 5 else {"rounds": rounds})) for rounds in values]
        for name in names
    }


def _by_total() -> dict[str, list[tuple[str, Change]]]:
    fixed = [("R · T_d = 5", 1), ("10", 2), ("20", 4), ("40", 8)]
    return {
        "R = 5": [
            (words, {} if epochs == 4 else {"rounds": 5, "distil_epochs": epochs}) for words, epochs in fixed
        ],
        "R · T_d = 20": [
            ("R = 2", {"rounds": 2, "distil_epochs": 10}), ("R = 5", {}), ("R = 10", {"rounds": 10, "distil_epochs": 2})
        ],
    }  # fmt: skip


PANELS = (
    Panel("a", "hint epochs", "more is better, less and less so",
          {"student": _axis("hint_epochs", (0, 5, 10, 20, 40), 10)}, lambda v: _rises(v["student"]),
          {"student": _axis("hint_epochs", (0, 10), 1)}),
    Panel("b", "epochs of distillation", "more is better; with R · T_d fixed a moderate R", _by_total(),
          lambda v: _rises(v["R = 5"]) and v["R · T_d = 20"][1] > max(v["R · T_d = 20"][0], v["R · T_d = 20"][2]),
          {"student": [("T_d = 1", {}), ("T_d = 4", {"distil_epochs": 4})]}),
    Panel("c", "query batch", "smaller is better",
          {"student": _axis("query_batch", (128, 256, 512, 1024), 512)}, lambda v: _rises(v["student"][::-1]),
          {"student": _axis("query_batch", (32, 64), 64)}),
    Panel("d", "noise scale σ", "moderate noise helps, σ = 20 costs less than a point",
          {"student": _axis("noise_scale", (1.0, 10.0, 20.0, 1e6), 10.0)},
          lambda v: v["student"][1] > v["student"][0],
          {"student": _axis("noise_scale", (10.0, 1e6), 10.0)}),
    Panel("e", "query samples and how they are chosen", "more is better; k-centre is best",
          _selected((0.05, 0.2, 0.5), SELECTIONS[:1]) | _selected((0.05, 0.2), SELECTIONS[1:]),
          lambda v: _rises(v["k-centre"]) and all(v["k-centre"][1] > v[name][1] for name in SELECTIONS[1:]),
          _selected((0.2,), SELECTIONS)),
    Panel("f", "adaptive bound, over the rounds", "adaptive is much better than preset, and faster",
          _rounds((1, 2, 3, 5), ("adaptive", "B = 10")) | _rounds((5,), ("B = 0.1", "B = 1")),
          lambda v: all(v["adaptive"][-1] - v[name][-1] > 1 for name in ("B = 0.1", "B = 1", "B = 10")),
          {name: [("R = 1", _BOUNDS[name])] for name in ("adaptive", "B = 0.1")}),
)  # fmt: skip


def _panel_trials(panel: Panel, quick: bool) -> list[Trial]:
    lines = panel.quick if quick else panel.lines
    changes = [change for line in lines.values() for _, change in line]
    found = [
        one for change in changes for one in _trials("published", "cifar10", "figure-2", quick, net="s1", **change)
    ]
    return sorted(found, key=lambda trial: trial.seed)


def _show_panel(found: Found, panel: Panel) -> ItemResult:
    lines, values, rows, missing = panel.quick if found.quick else panel.lines, {}, [], 0
    seeds = len(SEEDS)
    for name, line in lines.items():
        spreads = [
            _figure(found, "published", "student", "cifar10", "figure-2", net="s1", **change) for _, change in line
        ]
        missing += sum(spread is None for spread in spreads)
        seeds = min([seeds, *(len(spread.values) for spread in spreads if spread)])
        values[name] = [spread.mean if spread else float("nan") for spread in spreads]
        cells = (f"{words}: {_text(spread)}" for (words, _), spread in zip(line, spreads, strict=True))
        rows.append((name, "; ".join(cells)))
    count = sum(len(line) for line in lines.values())
    if missing == count:
        return ItemResult("not run")
    columns, told = ("", "accuracy in percent"), f"; {seeds} of {len(SEEDS)} seeds" if seeds < len(SEEDS) else ""
    if missing or found.quick:
        return ItemResult("in part", f"{count - missing} of {count} points", columns, tuple(rows))
    if panel.letter == "d" and len({round(value, 2) for value in values["student"]}) == 1:
        return ItemResult("differs", f"the noise does nothing at all: the same student{told}", columns, tuple(rows))
    status: Status = "reproduced" if panel.holds(values) else "differs"
    words = "as the paper says" if status == "reproduced" else "the means here do not show it"
    return ItemResult(status, words + told, columns, tuple(rows))


# Figure 3: accuracy against the claimed ε, by R at σ = 10.

_R = (1, 2, 4, 8, 16)


def _figure_3(quick: bool) -> list[Trial]:
    found: list[Trial] = []
    for name in DATA:
        for rounds in _R[:1] if quick else _R:
            more = {"rounds": rounds, "noise_scale": 10.0}
            found += _trials("published", name, "privacy", quick, **more)
    return sorted(found, key=lambda trial: (list(DATA).index(trial["data"]), trial.seed))


def _show_figure_3(found: Found) -> ItemResult:
    rows, there, rounds = [], 0, _R[:1] if found.quick else _R
    rising: list[bool] = []
    for name, known in DATA.items():
        cells, means = [], []
        for r in rounds:
            at = {"rounds": r, "noise_scale": 10.0}
            ours = _figure(found, "published", "student", name, "privacy", **at)
            spent = _figure(found, "published", "claimed_epsilon", name, "privacy", **at)
            there += ours is not None
            means += [ours.mean] if ours else []
            cells.append(NOT_RUN if ours is None or spent is None else f"{_text(ours)} at {spent.mean / 100:.2f}")
        rising += [_rises(means, 0.2)] if len(means) == len(rounds) else []
        rows.append((known.words, *cells))
    columns = ("data", *(f"R = {r}" for r in rounds))
    if not there:
        return ItemResult("not run")
    wanted = len(DATA) * len(rounds)
    if there < wanted or found.quick:
        return ItemResult("in part", f"{there} of {wanted} points", columns, tuple(rows))
    words = f"accuracy rises with the claimed ε on {sum(rising)} of {len(DATA)} data sets"
    return ItemResult("reproduced" if all(rising) else "differs", words, columns, tuple(rows))


# Table 1: digits 6 and 9 are private only.


def _table_1(quick: bool) -> list[Trial]:
    found = list(_trials("alone", "mnist", "masked", quick))
    for epsilon, (_, _, asked) in list(MASKED.items())[: 1 if quick else None]:
        found += _trials("published", "mnist", "masked", quick, epsilon=epsilon, **asked)
    for epsilon in (8.7,) if quick else (1.0, *list(MASKED)[:2]):
        found += _trials("private-teacher", "mnist", "masked", quick, epsilon=epsilon)
    return sorted(found, key=lambda trial: trial.seed)


def _show_table_1(found: Found) -> ItemResult:
    rows: list[tuple[str, ...]] = []
    pairs: list[tuple[str, float, Spread | None]] = []

    def line(words: str, printed: tuple[float, float] | None, ours: tuple[Spread | None, Spread | None]) -> None:
        if printed is not None:
            labels = (f"{words}, all digits", f"{words}, 6 and 9")
            pairs.extend(zip(labels, printed, ours, strict=True))
        cells = [f"{printed[i]:.2f} · {_text(ours[i])}" if printed else _text(ours[i]) for i in (0, 1)]
        rows.append((words, *cells))

    def both(experiment: str, figure: str, **settings: Setting) -> tuple[Spread | None, Spread | None]:
        one, other = (
            _figure(found, experiment, f, "mnist", "masked", **settings) for f in (figure, f"{figure}_unseen")
        )
        return one, other

    line("base: by itself", MASKED_BASE, both("alone", "student"))
    for epsilon, (overall, unseen, asked) in MASKED.items():
        own = both("published", "student", epsilon=epsilon, **asked)
        line(f"published, claimed ε = {epsilon:g}", (overall, unseen), own)
    for epsilon in (1.0, *list(MASKED)[:2]):
        line(f"`private-teacher`, proven ε = {epsilon:g}", None, both("private-teacher", "student", epsilon=epsilon))
    status, words = compared(pairs, 2.0)
    columns = ("student", "all digits", "6 and 9, unseen")
    there = any(cell != NOT_RUN for _, *cells in rows[4:] for cell in cells)
    if status == "not run" and there:
        status, words = "in part", "the sound students alone"
    return ItemResult(status, words, columns, tuple(rows))


# Table 2: compression.


def _table_2(quick: bool) -> list[Trial]:
    found: list[Trial] = []
    for name in DATA:
        for net in ("s2",) if quick else ("s1", "s2"):
            found += _trials("published", name, "table-2", quick, net=net)
    return sorted(found, key=lambda trial: (list(DATA).index(trial["data"]), trial.seed))


def _show_table_2(found: Found) -> ItemResult:
    rows, pairs = [], []
    for name, known in DATA.items():
        teacher, s1, s2 = known.compressed
        cells = []
        for words, printed, figure, net in (("T", teacher, "teacher", "s2"), ("S1", s1, "student", "s1"),
                                            ("S2", s2, "student", "s2")):  # fmt: skip
            ours = _figure(found, "published", figure, name, "table-2", net=net)
            pairs.append((f"{known.words} {words}", printed, ours))
            cells.append(f"{printed:.2f} · {_text(ours)}")
        public = _figure(found, "published", "public_teacher", name, "table-2", net="s2")
        clipped = _figure(found, "published", "clipped_rounds", name, "table-2", net="s2")
        rows.append((known.words, f"{known.claimed:g}", *cells, _text(public), _text(clipped, 0)))
    status, words = compared(pairs, 1.0)
    columns = ("data", "claimed ε", "teacher", "S1", "S2", "public teacher", "batches clipped for S2, %")
    return ItemResult(status, words, columns, tuple(rows))


def _sizes(quick: bool) -> list[Trial]:
    families = ("mnist",) if quick else tuple(DATA)
    return [Trial.of("compression", 0, family=name, rounds=3 if quick else 15) for name in families]


def _show_sizes(found: Found) -> ItemResult:
    rows, pairs = [], []
    for name, known in DATA.items():
        for place, size in enumerate(("teacher", "s1", "s2")):

            def ours(figure: str, size: str = size, name: str = name) -> float | None:
                own = found.figure("compression", f"{size}_{figure}", family=name, rounds=3 if found.quick else 15)
                return own.mean if own else None

            def whole(figure: str, name: str = name) -> float:
                own = found.figure("compression", f"teacher_{figure}", family=name, rounds=3 if found.quick else 15)
                return own.mean if own else float("nan")

            count, work, took = (ours(figure) for figure in ("parameters", "multiply_adds", "ms"))
            if count is None or work is None or took is None:
                continue
            smaller, faster = known.sizes[0] / known.sizes[place], known.seconds[0] / known.seconds[place]
            pairs.append((f"{known.words} {size}", known.sizes[place] / 1000, Spread((count / 1000,))))
            rows.append((
                f"{known.words} {size}", f"{known.sizes[place]:,.0f} · {count:,.0f}",
                f"{smaller:.1f} × · {whole('parameters') / count:.1f} ×", f"{whole('multiply_adds') / work:.1f} ×",
                f"{faster:.1f} × · {whole('ms') / took:.1f} ×",
            ))  # fmt: skip
    if not rows:
        return ItemResult("not run")
    apart = max(abs(own.mean - printed) / printed for _, printed, own in pairs)
    words = f"parameters within {100 * apart:.0f}%; the paper's times are of a phone, these of one thread of a CPU"
    columns = ("network", "parameters", "smaller", "less work", "faster")
    complete = len(rows) == 9
    return ItemResult("reproduced" if complete else "in part", words, columns, tuple(rows))


# The section on privacy: published at its claimed ε, and sound students at the same one.


def _privacy(quick: bool) -> list[Trial]:
    found: list[Trial] = []
    for name, known in DATA.items():
        epsilon = known.privacy[1]
        found += _trials("published", name, "privacy", quick, epsilon=epsilon)
        found += [] if quick else _trials("alone", name, "privacy", quick)
        sound = (*SOUND_EPSILONS, epsilon) if not quick else (epsilon,) if name == "mnist" else ()
        for own in sound:
            found += _trials("private-teacher", name, "privacy", quick, epsilon=own)
    return sorted(found, key=lambda trial: (list(DATA).index(trial["data"]), trial.seed))


def _show_privacy(found: Found) -> ItemResult:
    rows: list[tuple[str, ...]] = []
    pairs = []
    for name, known in DATA.items():
        printed, epsilon = known.privacy
        ours = _figure(found, "published", "student", name, "privacy", epsilon=epsilon)
        teacher, public = (
            _figure(found, "published", figure, name, "privacy", epsilon=epsilon)
            for figure in ("teacher", "public_teacher")
        )
        base = _figure(found, "alone", "student", name, "privacy")
        pairs.append((known.words, printed, ours))
        cells = (f"{printed:.2f} · {_text(ours)}", _text(base), _text(teacher), _text(public))
        rows.append((known.words, f"published, claimed {epsilon:g}", *cells))
        for own in (*SOUND_EPSILONS, epsilon):
            figures = [
                _figure(found, "private-teacher", figure, name, "privacy", epsilon=own)
                for figure in ("student", "alone", "teacher", "public_teacher")
            ]
            if any(figures):
                rows.append((known.words, f"`private-teacher`, proven {own:g}", *map(_text, figures)))
    status, words = compared(pairs, 1.0)
    columns = ("data", "ε", "student", "by itself", "teacher", "public teacher")
    if status == "not run" and any("proven" in row[1] for row in rows):
        status, words = "in part", "sound students alone"
    return ItemResult(status, words, columns, tuple(rows))


# Algorithm 2, both readings, on digits; and other things beside the paper.

READINGS: dict[str, Change] = {
    "the batch's loss, a number": {},
    "records' losses, a vector": {"losses": "records"},
    "a vector, B = 1": {"losses": "records", "bound": 1.0},
    "a vector, B so large that nothing is clipped": {"losses": "records", "bound": 1e4},
}


def _algorithm_2(quick: bool) -> list[Trial]:
    found = [one for change in READINGS.values() for one in _trials("published", "digits", "digits", quick, **change)]
    found += [*_trials("alone", "digits", "digits", quick), *_trials("noise", "digits", "digits", quick)]
    found += _trials("noise", "digits", "digits", quick, losses="records")
    return sorted(found, key=lambda trial: trial.seed)


def _show_algorithm_2(found: Found) -> ItemResult:
    rows = []
    for words, change in READINGS.items():
        figures = [
            _figure(found, "published", figure, "digits", "digits", **change)
            for figure in ("student", "clipped_hints", "clipped_rounds", "claimed_epsilon")
        ]
        small = {"small": True} if found.quick else {}
        moved = found.figure("noise", "difference", data="digits", layout="digits", **change, **small)
        if figures[0] is not None:
            cells = (_text(figures[0]), *(_text(one, 0) for one in figures[1:3]))
            rows.append((words, *cells, "" if moved is None else f"{max(moved.values):g}"))
    if not rows:
        return ItemResult("not run")
    base = _figure(found, "alone", "student", "digits", "digits")
    teachers = (_figure(found, "published", name, "digits", "digits") for name in ("teacher", "public_teacher"))
    rows += [("*by itself*", _text(base), "", "", "")]
    rows += [(f"*{words}*", _text(own), "", "", "") for words, own in zip(("its teacher", "public teacher"), teachers,
                                                                          strict=True)]  # fmt: skip
    columns = ("what is clipped", "student", "hint batches clipped, %", "distillation batches clipped, %",
               "largest difference of a weight by other noise, and 10⁶ σ")  # fmt: skip
    several = len(base.values) if base else 0
    return ItemResult("beside it", f"both readings on digits, {several} seeds", columns, tuple(rows))


CASES: dict[str, Change] = {
    "one number": {},
    "one number, σ = 10⁶": {"noise_scale": 1e6},
    "a vector": {"losses": "records"},
    "a vector, σ = 10⁶": {"losses": "records", "noise_scale": 1e6},
}


def _court(quick: bool) -> list[Trial]:
    cases = [CASES["one number"], CASES["a vector"]] if quick else list(CASES.values())
    seeds = (0,) if quick else SEEDS
    found = [Trial.of("court", seed, **change) for change in cases for seed in seeds]
    return [*found, *(Trial.of("one-run", seed, canaries=100 if quick else 1000) for seed in seeds[:1])]


def _show_court(found: Found) -> ItemResult:
    rows, told = [], list[float]()
    for words, change in CASES.items():
        refuted, pairs, least = (found.figure("court", name, **change) for name in ("refuted", "pairs", "at_least"))
        if refuted is None or pairs is None or least is None:
            continue
        told += refuted.values
        counts = ", ".join(f"{value:,.0f}" for value in pairs.values)
        says = "refuted" if all(refuted.values) else f"refuted in {sum(refuted.values):.0f} of {len(refuted.values)}"
        rows.append((words, says, counts, f"{least.mean:.2f}"))
    guesses, correct = (
        found.figure("one-run", name, canaries=100 if found.quick else 1000) for name in ("guesses", "correct")
    )
    notes: tuple[str, ...] = ()
    if guesses and correct:
        notes = (
            f"Of one release with canaries, {correct.mean:.0f} of {guesses.mean:.0f} guesses about who is in it are "
            "right (`airlock court student/published --one-run`).",
        )
    if not rows:
        return ItemResult("not run")
    words = f"{sum(told):.0f} of {len(told)} trials refute the claim"
    columns = ("Algorithm 2 as", "claim (1, 1e-5)", "pairs of releases", "ε is above, in the mean")
    return ItemResult("beside it", words, columns, tuple(rows), notes)


_SHARDS = (("digits", "digits", (1.0, 3.0, 8.0)), ("digits", "few", (8.0,)), ("mnist", "mnist", (7.68,)))


def _ensemble(quick: bool) -> list[Trial]:
    found: list[Trial] = []
    for name, layout, epsilons in _SHARDS[:1] if quick else _SHARDS:
        for epsilon in epsilons[-1:] if quick else epsilons:
            found += _trials("ensemble", name, layout, quick, epsilon=epsilon)
    return found


def _show_ensemble(found: Found) -> ItemResult:
    rows, wanted = [], 0
    public = {"digits": "40%", "few": "5%", "mnist": "40%"}
    for name, layout, epsilons in _SHARDS:
        for epsilon in epsilons:
            wanted += 1
            student, base, auxiliary = (
                _figure(found, "ensemble", figure, name, layout, epsilon=epsilon)
                for figure in ("student", "alone", "public_teacher_accuracy")
            )
            if student is None:
                continue
            more = (
                _figure(found, "ensemble", f, name, layout, epsilon=epsilon) for f in ("teachers", "noise_over_bound")
            )
            teachers, size = ("" if one is None else f"{one.mean / 100:.3g}" for one in more)
            cells = (_text(student), _text(base), _text(auxiliary))
            rows.append((f"{name}, {public[layout]} public", f"{epsilon:g}", teachers, size, *cells))
    if not rows:
        return ItemResult("not run")
    columns = ("data", "proven ε", "teachers", "noise / B", "student", "the same, teachers silent", "public teacher")
    return ItemResult("beside it", f"{len(rows)} of {wanted} lines", columns, tuple(rows))


_SOUND_DIGITS = (1.0, 3.0, 8.0)


def _sound_digits(quick: bool) -> list[Trial]:
    found: list[Trial] = []
    for layout in ("digits",) if quick else ("digits", "masked"):
        for epsilon in _SOUND_DIGITS[-1:] if quick else _SOUND_DIGITS:
            found += _trials("private-teacher", "digits", layout, quick, epsilon=epsilon)
    return found


def _show_sound_digits(found: Found) -> ItemResult:
    rows = []
    for layout, words in (("digits", "all classes public"), ("masked", "6 and 9 private only")):
        for epsilon in _SOUND_DIGITS:
            names = ("student", "student_unseen", "alone", "teacher", "public_teacher")
            figures = [_figure(found, "private-teacher", figure, "digits", layout, epsilon=epsilon) for figure in names]
            if figures[0] is not None:
                cells = ("" if one is None else _text(one) for one in figures)
                rows.append((words, f"{epsilon:g}", *cells))
    if not rows:
        return ItemResult("not run")
    columns = ("", "proven ε", "student", "on 6 and 9", "by itself", "its teacher", "public teacher")
    return ItemResult("beside it", f"{len(rows)} of 6 lines", columns, tuple(rows))


def _membership(quick: bool) -> list[Trial]:
    return list(_trials("membership", "digits", "digits", quick))


def _show_membership(found: Found) -> ItemResult:
    small = {"small": True} if found.quick else {}
    rows, beyond, count = [], 0, 0
    for whose in ("student", "teacher"):
        for name, words in (("loss", "loss threshold"), ("gradient", "gradient norm")):
            auc, low, high = (
                found.figure("membership", f"{whose}_{name}{end}", data="digits", layout="digits", **small)
                for end in ("", "_low", "_high")
            )
            if auc is None or low is None or high is None:
                return ItemResult("not run")
            beyond += sum(not a <= 0.5 <= b for a, b in zip(low.values, high.values, strict=True))
            count += len(auc.values)
            rows.append((f"{whose}{', which stays' if whose == 'teacher' else ''}", words, auc.text(2)))
    words = f"{beyond} of {count} intervals do not hold 0.5"
    return ItemResult("beside it", words, ("network", "attack", "AUC over the seeds"), tuple(rows))


def _together(trial: Trial) -> object:
    """The teachers of a student."""
    asked = dict(trial.settings)
    taught = trial.experiment in ("published", "noise", "membership")
    return (asked["data"], asked["layout"], trial.seed, "small" in asked) if taught else None


PAPER = Paper(
    "student",
    "Wang et al. 2019, RONA: private model compression via knowledge distillation",
    {
        "published": published,
        "alone": alone,
        "noise": noise,
        "private-teacher": private_teacher,
        "ensemble": ensemble,
        "membership": membership,
        "compression": compression,
        "court": court,
        "one-run": one_run,
    },
    (
        *(Item(panel.name, f"CIFAR-10, S1: {panel.title}", f"curves: {panel.says}", partial(_panel_trials, panel),
               partial(_show_panel, panel=panel)) for panel in PANELS),
        Item("figure-3", "accuracy against ε", "curves: accuracy rises with ε", _figure_3, _show_figure_3),
        Item("privacy", "the section on privacy, and sound students at its ε", "98.64, 92.90 and 81.69", _privacy,
             _show_privacy),
        Item("table-1", "MNIST, 6 and 9 private only, and sound students", "8 figures", _table_1, _show_table_1),
        Item("table-2", "accuracy of compressed networks", "9 figures", _table_2, _show_table_2),
        Item("table-2-sizes", "parameters and speed", "9 networks", _sizes, _show_sizes),
        Item("algorithm-2", "its two readings, on digits", "none", _algorithm_2, _show_algorithm_2),
        Item("court", "the claim in court", "claims its ε", _court, _show_court),
        Item("ensemble", "sound: teachers on shards", "none", _ensemble, _show_ensemble),
        Item("sound-digits", "sound: a teacher under DP-SGD, on digits", "none", _sound_digits, _show_sound_digits),
        Item("membership", "membership inference on digits", "none", _membership, _show_membership),
    ),
    ("digits", *DATA),
    together=_together,
)  # fmt: skip
