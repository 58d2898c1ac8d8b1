"""Membership attacks, on equal numbers of members and non-members.

`attack_quickly` runs the two that take seconds, at every release: one that sees outputs, one that holds the weights.
`attack` adds those that train shadow models; `attack_answers` goes through an interface. The number of records used is
public: it is derived from the public number of records and the fractions of the split, never from the actual sizes.

Which records are used for what: attacks are scored on members (from the private part) and on the holdout, which nothing
was trained on. LiRA and RMIA train shadow models on random halves of these same records, which is their design and
tells them nothing about the attacked model; the rest of the private part is in every shadow model, as for an attacker
who knows all other records. The shadow-model attack and quantile regression learn from the test records
alone, which also serve as RMIA's population.

Where the unit is a person, members and others are people: all of a person's records are in a shadow model or none, and
the scores of a person's records are averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal, Self

import numpy as np
import torch
from pydantic import AfterValidator, Field, model_validator
from torch import nn

from airlock.auditing import query_attack
from airlock.auditing.attacks import (
    AnsweredRecords,
    LabelSettings,
    Shadows,
    ShadowSettings,
    balanced,
    bavaria,
    exposure,
    external,
    gradient_norm,
    label_only,
    lira,
    loss_threshold,
    quantile_regression,
    rmia,
    shadow_attack,
    train_shadows,
)
from airlock.auditing.attacks.label_only import Kind, labels_of
from airlock.auditing.attacks.shadows import Logits, release_shadows
from airlock.auditing.attacks.signals import Mask
from airlock.auditing.attacks.worst_case import FEWEST as FEWEST_RUNS
from airlock.auditing.bounds import Floats
from airlock.auditing.members import FEWEST, AttackSet, draw, left_out, too_few, units_of
from airlock.auditing.metrics import measure_all
from airlock.auditing.result import Audit, Scores
from airlock.auditing.target import Target
from airlock.config import Frozen, SplitConfig
from airlock.data import Records, Split, joined
from airlock.errors import AirlockError, ConfigError, Interrupted
from airlock.mechanisms import Stream
from airlock.methods import Answerer, Channel
from airlock.methods.contract import Secrets
from airlock.training import Ensemble, Recipe, Resident, Run, checkpoint
from airlock.training.distributed import digest
from airlock.training.ensembles.chunks import read
from airlock.training.ensembles.ensemble import EngineName
from airlock.training.ensembles.ray_engine import Ray
from airlock.training.loop import mix
from airlock.training.losses import loss_for

_MOST = 10_000
_LESSONS = 5000  # the most answers that the attack network of a class learns from

FEWER = "Membership inference: the holdout or the private part is too small, as there are fewer records than declared."
NO_SHADOWS = "Attacks with shadow models (LiRA, RMIA), which find more than these: `airlock audit` makes them."
CLASSES_ALONE = (
    "Attacks with shadow models (LiRA, RMIA, shadow-model attack) and those that see labels alone: they are for models "
    "that predict classes, and this one predicts a number."
)
LABELS_ALONE = (
    "Attacks that see labels alone, and the shadow-model attack, which learns from probabilities of classes: a "
    "language model has none."
)
NO_CANARIES = (
    "How much of a sentence that is rare in the records can be read off the model (exposure of canaries): "
    "`airlock audit --canaries 64` trains once more to measure it."
)
UNLIKE = "Shadow models trained under the same noise as what leaves; those that were used know none (--like release)."
QUANTILES_OF_TEXT = "Quantile regression: it takes a record for a point in space, which a text is not."
NAMES = {"classification": "classifier", "regression": "regression", "language": "language model"}
OF_GROUPS = "Attacks on what the model says about groups or attributes rather than about one person's presence."
NOT_TESTED = (
    OF_GROUPS,
    "Whether the training data can be reconstructed from the weights.",
)


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even: every record is in exactly half of the shadow models")
    return value


class AuditSettings(Frozen):
    """How hard to attack.

    Args:
        shadows: How many shadow models, an even number.
        like: How they are trained: "plain", without privacy and all at once; "release", one after another by the method
            that made the release, with its noise; or "search", each by the whole search that chose the release.
        epochs: Of plain training.
        batch_size: Of plain training.
        most: Records of each side at most.
        queries: Of the label-only attack, per record.
        engine: Where plain shadow models are trained: "local" or "ray".
        gpus: With "ray": GPUs of a chunk of them, possibly a fraction; 1 if left out and a GPU is used.
        attacks: Names of other packages' attacks to run as well; on networks that leave, and for the dossier only.
        canaries: Of a language model: how many made-up sentences are added to the records of one more training, whose
            exposure is measured; none if 0. What leaves never saw them.
        copies: How often each of them is among those records.
        fillings: How many others each of them is ranked among.
        worst_case: How many trainings with a crafted record, and as many without, attackers are given who choose the
            worst case (`attacks.worst_case`); none if 0. What leaves plays no part in it.
        attributes: Columns of a table that are withheld and guessed with the model that leaves, and whose shares among
            all records are.
    """

    shadows: Annotated[int, Field(ge=4, le=10_000), AfterValidator(_even)] = 32
    like: Literal["plain", "release", "search"] = "plain"
    epochs: Annotated[int, Field(ge=1)] = 20
    batch_size: Annotated[int, Field(ge=1)] = 64
    most: Annotated[int, Field(ge=FEWEST)] = _MOST
    queries: Annotated[int, Field(ge=1)] = 16
    engine: EngineName = "local"
    gpus: Annotated[float, Field(gt=0, le=64)] | None = None
    attacks: tuple[str, ...] = ()
    canaries: Annotated[int, Field(ge=0, le=10_000)] = 0
    copies: Annotated[int, Field(ge=1, le=1000)] = 1
    fillings: Annotated[int, Field(ge=10, le=1_000_000)] = 1000
    worst_case: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    attributes: Annotated[tuple[str, ...], Field(max_length=64)] = ()

    @model_validator(mode="after")
    def _enough_canaries(self) -> Self:
        if self.canaries == 1:
            raise ValueError("canaries must be none or at least 2: of one there is no interval")
        return self

    @model_validator(mode="after")
    def _enough_trainings(self) -> Self:
        if 0 < self.worst_case < FEWEST_RUNS:
            raise ValueError(f"worst_case must be none or at least {FEWEST_RUNS}: fewer trainings show nothing")
        return self

    @model_validator(mode="after")
    def _needs_a_cluster(self) -> AuditSettings:
        if self.gpus is not None and self.engine != "ray":
            raise ValueError('gpus are for engine = "ray"')
        return self


def attack_quickly(
    net: nn.Module, classes: tuple[str, ...], delta: float, split: Split, fractions: SplitConfig, seed: int
) -> tuple[Audit, Secrets]:
    """Run the attacks that take seconds on a network; also used for a teacher that stays inside.

    Args:
        net: In evaluation mode.
        classes: The public names.
        delta: At which an ε is stated.
        split: The records that it came from.
        fractions: Of the split.
        seed: Of the attacks.

    Returns:
        The audit, and the scores of single records, which belong in the vault.
    """
    attack_set = draw(split, fractions, seed, _MOST)
    if attack_set is None:
        return Audit((), (_why_none(split, fractions), *_no_shadows(split), *NOT_TESTED)), {}
    target = Target(net, lambda model: net, classes, delta, loss_for(split.facts))
    untested = (*left_out(split), *_no_shadows(split), *NOT_TESTED)
    return _measured(target, _quick(target, attack_set), untested, attack_set)


def attack(
    target: Target,
    split: Split,
    fractions: SplitConfig,
    seed: int,
    settings: AuditSettings,
    run: Run,
    channel: Channel | None = None,
) -> tuple[Audit, Secrets]:
    """Attack with everything that fits a network that leaves.

    Args:
        target: What leaves.
        split: The records that it came from.
        fractions: Of the split.
        seed: Of the attacks.
        settings: How hard to attack.
        run: Device, progress, checkpoints.
        channel: What made it, alone or as a search; needed unless `like = "plain"`.

    Returns:
        The audit, and the scores of single records, which belong in the vault.
    """
    task, attack_set = split.facts.task, draw(split, fractions, seed, settings.most)
    if task != "classification" and settings.attacks:
        raise ConfigError(
            f"no attacks of other packages on a {NAMES[task]}",
            f"'{settings.attacks[0]}'",
            "They score classes.",
            "Leave --attack out.",
        )
    if task != "language" and settings.canaries:
        raise ConfigError(
            "a language model for --canaries",
            f"a {NAMES[task]}",
            "A canary is a sentence, and its exposure is measured by what follows what.",
            "Leave --canaries out.",
        )
    if task == "language":
        return _of_language(target, attack_set, split, fractions, seed, settings, run, channel)
    if attack_set is None:
        return Audit((), (_why_none(split, fractions), *NOT_TESTED)), {}
    if task == "regression":
        untold = (*_no_shadows(split), *left_out(split), *NOT_TESTED)
        return _measured(target, _quick(target, attack_set), untold, attack_set)
    found, untested = list(_quick(target, attack_set)), [UNLIKE] if settings.like == "plain" else []
    works: list[Callable[[], list[Scores]]] = [
        lambda: _labels(target, attack_set, settings, seed, run, split.facts.vocabulary is not None),
        lambda: _shadowed(target, attack_set, split, settings, seed, run, channel),
        lambda: [_learned(target, attack_set, split.test, settings, seed, run)],
        lambda: [_quantiles(target, attack_set, split.test, seed, run)],
    ]
    if split.facts.vocabulary is not None:  # a text is no point in space
        untested, works = [*untested, QUANTILES_OF_TEXT], works[:-1]
    works += [partial(_external, name, target, attack_set, split.test, seed) for name in settings.attacks]
    for work in works:
        _try(work, found, untested)
    return _measured(target, found, (*untested, *left_out(split), *NOT_TESTED), attack_set)


def _of_language(
    target: Target,
    attack_set: AttackSet | None,
    split: Split,
    fractions: SplitConfig,
    seed: int,
    settings: AuditSettings,
    run: Run,
    channel: Channel | None,
) -> tuple[Audit, Secrets]:
    """Attack a language model: whether a text was among its records, and, if asked for, the exposure of canaries."""
    untested = [LABELS_ALONE, *([UNLIKE] if settings.like == "plain" else [])]
    kept: Secrets = {}
    if attack_set is None:
        audit = Audit((), (_why_none(split, fractions), *NOT_TESTED))
    else:
        known, found = attack_set, list(_quick(target, attack_set))
        _try(lambda: _shadowed(target, known, split, settings, seed, run, channel), found, untested)
        audit, kept = _measured(target, found, (*untested, *left_out(split), *NOT_TESTED), attack_set)
    if not settings.canaries or channel is None:
        return replace(audit, not_tested=(*audit.not_tested, NO_CANARIES)), kept
    exposed, ranks = exposure(channel, split, settings.canaries, settings.copies, settings.fillings, mix(seed, 2), run)
    return replace(audit, exposure=exposed), {**kept, "canary-ranks": {"ranks": ranks}}


def attack_answers(
    answerer: Answerer,
    delta: float,
    split: Split,
    fractions: SplitConfig,
    seed: int,
    settings: AuditSettings | None = None,
    run: Run | None = None,
) -> tuple[Audit, Secrets]:
    """Attack answers through their interface, with fresh noise: what a client could do.

    Args:
        answerer: Answers the queries.
        delta: At which its ε is stated.
        split: The records that it came from.
        fractions: Of the split.
        seed: Of the attacks.
        settings: How hard to attack; by default, only what takes seconds.
        run: Progress.

    Returns:
        The audit, and the scores of single records, which belong in the vault.
    """
    attack_set = draw(split, fractions, seed, settings.most if settings else query_attack.MOST)
    most = max(query_attack.ASKED, settings.queries + 1 if settings else 0)
    each = query_attack.records_asked(answerer, split.facts.records_per_person)
    untested = query_attack.untested(answerer, most, each)
    if attack_set is None:
        return Audit((), (_why_none(split, fractions), *untested)), {}
    attack_set, stream = attack_set.limited(each, seed), Stream.from_system()
    found = [query_attack.repeated(answerer, attack_set.members, attack_set.others, stream.child("again"), each)]
    if settings:
        kinds, own = _kinds(attack_set.others, split.facts.vocabulary is not None), stream.child("altered")
        found += query_attack.altered(
            answerer, attack_set.members, attack_set.others, kinds, settings.queries, seed, own, run or Run(), each
        )
    return _scored(found, delta, answerer.interface.classes, (*untested, *left_out(split)), attack_set)


def _no_shadows(split: Split) -> tuple[str, ...]:
    task = split.facts.task
    if task == "regression":
        return (CLASSES_ALONE,)
    return (NO_SHADOWS, NO_CANARIES) if task == "language" else (NO_SHADOWS,)


def _why_none(split: Split, fractions: SplitConfig) -> str:
    """Why no attack was made; for the dossier, as it may be that there are fewer records than declared."""
    return too_few(split.facts, fractions) or FEWER


def _measured(
    target: Target, found: Sequence[Scores], untested: tuple[str, ...], attack_set: AttackSet
) -> tuple[Audit, Secrets]:
    return _scored(found, target.delta, target.classes, untested, attack_set)


def _scored(
    found: Sequence[Scores], delta: float, classes: tuple[str, ...], untested: tuple[str, ...], attack_set: AttackSet
) -> tuple[Audit, Secrets]:
    found = [attack_set.pooled(scores) for scores in found]
    results = measure_all(found, delta, classes=classes, game=attack_set.game)
    arrays: dict[str, Floats] = {}
    for scores in found:
        name = scores.name.replace(",", "").replace(" ", "-").lower()
        arrays |= {f"{name}-members": np.asarray(scores.members), f"{name}-others": np.asarray(scores.others)}
    return Audit(results, untested), {"attack-scores": arrays}


def _try(work: Callable[[], list[Scores]], found: list[Scores], untested: list[str]) -> None:
    """Run an attack; if these records do not allow it, report it as not tested, with the reason."""
    try:
        found += work()
    except Interrupted:
        raise
    except AirlockError as error:
        # Not what was found instead: that could reveal something about the records.
        untested.append(f"An attack that could not be made here: it needs {error.expected}.")


def _quick(target: Target, attack_set: AttackSet) -> list[Scores]:
    losses = [target.losses(side) for side in (attack_set.members, attack_set.others)]
    return [
        loss_threshold(losses[0], losses[1], attack_set.members.y, attack_set.others.y),
        gradient_norm(target.trained, attack_set.members, attack_set.others, loss=target.loss),
    ]


def _external(name: str, target: Target, attack_set: AttackSet, test: Records, seed: int) -> list[Scores]:
    return [external.score(name, target, attack_set, test, seed)]


def _labels(
    target: Target, attack_set: AttackSet, settings: AuditSettings, seed: int, run: Run, texts: bool
) -> list[Scores]:
    device = next(target.net.parameters()).device
    answer = labels_of(target.net)
    return [
        label_only(answer, attack_set.members, attack_set.others, chosen, seed, device, run.progress)
        for chosen in (LabelSettings(kind=kind, queries=settings.queries) for kind in _kinds(attack_set.others, texts))
    ]


def _kinds(records: Records, texts: bool = False) -> tuple[Kind, ...]:
    """How records are altered; decided on records that no guarantee covers, and by whether they are texts."""
    if texts:
        return ("drop",)
    if records.x.ndim == 4:
        return "shift", "noise"
    return ("flip",) if np.isin(records.x[:1000], (0, 1)).all() else ("noise",)


def _shadowed(
    target: Target,
    attack_set: AttackSet,
    split: Split,
    settings: AuditSettings,
    seed: int,
    run: Run,
    channel: Channel | None,
) -> list[Scores]:
    """LiRA, BaVarIA and RMIA, from shadow models trained on halves of the pool and all of the rest.

    BaVarIA online alone: offline, LiRA with one variance for all finds more (docs/results/audit.md).
    """
    pool, member = attack_set.pool, attack_set.member
    inside = balanced(settings.shadows, pool.units, seed)[:, units_of(pool)]
    beside = split.test.take(np.arange(min(len(split.test), settings.most)))

    def work(inner: Run) -> tuple[Logits, Logits]:
        if settings.like != "plain" and channel is not None:
            return release_shadows(channel, split, pool, inside, attack_set.rest, beside, seed, inner)
        return _trained(target, pool, inside, attack_set.rest, beside, settings, seed, inner)

    outputs = _kept(run, "shadows", _mark(settings, seed, pool, inside), work)
    logits, population = (target.as_logits(own) for own in outputs)
    shadows = Shadows(inside, logits, pool.y)
    never = Shadows(np.zeros((len(inside), len(beside)), bool), population, beside.y)
    says, beside_says = target.answers(pool), target.answers(beside)
    kinds: tuple[Literal["online", "offline"], ...] = ("online", "offline")
    found = [*(lira(kind, says, member, shadows) for kind in kinds), bavaria("online", says, member, shadows)]
    return found + [rmia(kind, says, member, shadows, never, beside_says) for kind in kinds]


def _trained(
    target: Target,
    pool: Records,
    inside: Mask,
    rest: Records,
    beside: Records,
    settings: AuditSettings,
    seed: int,
    run: Run,
) -> tuple[Logits, Logits]:
    """Plain shadow models' logits on `pool` and `beside`."""
    whole = np.concatenate([inside, np.ones((len(inside), len(rest)), bool)], 1)
    shadows, models = _plain(target, target.embed(joined(pool, rest)), whole, settings, seed, run)
    return shadows.logits[:, : len(pool)], models.logits(Resident(target.embed(beside), run.device)).numpy()


def _plain(
    target: Target, known: Records, inside: Mask, settings: AuditSettings, seed: int, run: Run
) -> tuple[Shadows, Ensemble]:
    steps = settings.epochs * max(1, round(float(inside.sum(1).mean()) / settings.batch_size))
    recipe = Recipe(steps=steps, optimiser="adam", learning_rate=target.learning_rate, precision="fp32")
    size, engine = settings.batch_size, settings.engine if settings.gpus is None else Ray(gpus=settings.gpus)
    return train_shadows(
        target.make, known, inside, recipe, seed, run, batch_size=size, engine=engine, loss=target.loss
    )


def _learned(
    target: Target, attack_set: AttackSet, test: Records, settings: AuditSettings, seed: int, run: Run
) -> Scores:
    """The shadow-model attack; its shadows are trained on test records alone."""
    own = mix(seed, 1)
    inside = balanced(settings.shadows, len(test), own)

    def work(inner: Run) -> tuple[Logits, Logits]:
        logits = _plain(target, target.embed(test), inside, settings, own, inner)[0].logits
        return logits, logits[:0]

    logits, _ = _kept(run, "lessons", _mark(settings, own, test, inside), work)
    members, others = (AnsweredRecords(side, target.answers(side)) for side in (attack_set.members, attack_set.others))
    inner = replace(run, checkpoint=None)
    shadows = Shadows(inside, logits, test.y)
    return shadow_attack(shadows, members, others, own, inner, ShadowSettings(most=_LESSONS))


def _quantiles(target: Target, attack_set: AttackSet, test: Records, seed: int, run: Run) -> Scores:
    """Quantile regression, learnt from test records alone, as the trained part of the network sees them."""
    known, members, others = (
        AnsweredRecords(target.embed(side), target.answers(side))
        for side in (test, attack_set.members, attack_set.others)
    )
    return quantile_regression(known, members, others, mix(seed, 5), run)


def _kept(run: Run, name: str, mark: str, work: Callable[[Run], tuple[Logits, Logits]]) -> tuple[Logits, Logits]:
    """The shadow models' logits, from the checkpoint folder if an interrupted run had finished them."""
    folder = run.checkpoint
    if folder is None:
        return work(run)
    file = folder / f"{name}.safetensors"
    if run.resume and file.exists():
        values = read(file, mark)
        return values["first"].numpy(), values["second"].numpy()
    (folder / name).mkdir(exist_ok=True, mode=0o700)
    first, second = work(replace(run, checkpoint=folder / name))
    checkpoint.write(file, {"first": torch.from_numpy(first), "second": torch.from_numpy(second)}, {"mark": mark})
    return first, second


def _mark(settings: AuditSettings, seed: int, pool: Records, inside: Mask) -> str:
    """What shadow models depend on, as far as it can differ between two audits of one release."""
    arrays = [torch.from_numpy(np.ascontiguousarray(array)) for array in (pool.x, pool.y, inside)]
    beside = {"engine", "gpus", "queries", "attacks", "canaries", "copies", "fillings", "worst_case", "attributes"}
    return f"{settings.model_dump_json(exclude=beside)} {seed} {digest(arrays).hex()}"
