"""Which attacks are required on what leaves, and how they are run: one entry per kind of artefact.

Someone who holds the weights can do more than query predictions, so a network must be attacked both white-box and
black-box. Answers come through a noisy interface with a budget, and attacks may use nothing but that interface.
Features are attacked by reconstructing records from them, with and without the front end, and by looking records up
among them. An audit without one of the required attacks gives false comfort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from airlock import methods, nets
from airlock.auditing.attacks import worst_case
from airlock.auditing.attacks.attribute_of_model import Withheld, infer, infer_share, withheld
from airlock.auditing.features.attack import FeatureAttackSettings
from airlock.auditing.features.release import attack_features
from airlock.auditing.members import draw
from airlock.auditing.result import Aim, AttackResult, Audit, ReconstructionResult, View
from airlock.auditing.run import OF_GROUPS, AuditSettings, attack, attack_answers, attack_quickly
from airlock.auditing.target import Target
from airlock.config import SplitConfig
from airlock.data import Split
from airlock.errors import ConfigError, DataError
from airlock.methods import Artefact, Channel, FeatureSet, Interface, NetworkArtefact, Release
from airlock.methods.contract import ArtefactKind, Secrets
from airlock.methods.search import SearchFigures
from airlock.training import Run
from airlock.training.losses import loss_for

Kind = tuple[Aim, View]
Found = tuple[Audit, Secrets]  # the audit, and the scores of single records, which belong in the vault

IN_WORDS: Mapping[Kind, str] = {
    ("membership", "white-box"): "membership inference by someone who holds the weights (white-box)",
    ("membership", "black-box"): "membership inference by someone who sees the model's outputs (black-box)",
    ("membership", "labels"): "membership inference by someone who sees the predicted classes alone (labels)",
    ("membership", "interface"): "membership inference through the noisy interface, within its budget",
    ("membership", "front"): "membership inference by someone who has the front end and looks features up",
    ("inversion", "features"): "reconstruction by someone who holds features and knows some records with theirs",
    ("inversion", "front"): "inversion by someone who holds features and the front end",
}


@dataclass(frozen=True)
class Situation:
    """Everything that the attacks need to know about a release.

    Args:
        method: What made the release.
        kept: Loads what the release left in the vault.
        delta: At which its ε is stated.
        split: The records that it came from.
        fractions: Of the split.
        seed: Of the attacks.
        settings: How hard to attack; by default, only what takes seconds.
        run: Device, progress, checkpoints.
        channel: The method as it was configured, for shadow models that are trained like the release.
        made_with: The seed of the release, if it differs.
        searched: Whether a search chose it among several runs (`methods.search`).
    """

    method: type[Channel]
    kept: Callable[[], Secrets]
    delta: float
    split: Split
    fractions: SplitConfig
    seed: int
    settings: AuditSettings | None = None
    run: Run | None = None
    channel: Channel | None = None
    made_with: int | None = None
    searched: bool = False


CHOICE = (
    "What the search's choice adds to what the winner reveals: shadow models repeat the winner's run, not the search "
    "(--like search does)."
)
CHOSEN_BY = (
    "Whether a record was among the test records that the search chose by: the attacks here are on private records."
)


def _attack_network(network: NetworkArtefact, given: Situation) -> Found:
    trainings = given.settings.worst_case if given.settings else 0
    if trainings:
        worst_case.require(None if given.searched else given.channel)
    columns = _columns(given)
    audit, scores = _network_attacks(network, given)
    repeated = given.settings is not None and given.settings.like == "search"
    untested = (*(() if repeated else (CHOICE,)), CHOSEN_BY) if given.searched else ()
    audit = replace(audit, not_tested=(*audit.not_tested, *untested))
    audit = _with_attributes(audit, network, given, columns)
    return _with_worst_case(audit, scores, given, trainings) if trainings else (audit, scores)


def _columns(given: Situation) -> tuple[Withheld, ...]:
    """The columns that are to be guessed.

    Raises:
        ConfigError: One is none of this table, or the records are no rows with classes.
    """
    asked, facts = given.settings.attributes if given.settings else (), given.split.facts
    if asked and (facts.task != "classification" or len(facts.shape) != 1 or facts.vocabulary is not None):
        raise ConfigError(
            "a classifier of rows for --attribute",
            f"records of shape {facts.shape}, {facts.task}",
            "What is guessed is a column of a table, from the others and the label.",
            "Leave --attribute out.",
        )
    return tuple(withheld(name, facts, given.split.test) for name in asked)


def _with_attributes(audit: Audit, network: NetworkArtefact, given: Situation, columns: tuple[Withheld, ...]) -> Audit:
    """What the model tells about columns of single rows, and about their shares among all of them."""
    settings = given.settings
    if not columns or settings is None:
        return audit
    target, run = _target(network, given), given.run or Run()
    attack_set = draw(given.split, given.fractions, given.seed, settings.most)
    known, attributes, properties, untested = given.split.test, [], [], []
    for column in columns:
        try:
            if attack_set is None:
                raise DataError("more records in the private part and the holdout", "fewer")
            attributes.append(infer(target, column, attack_set, known, settings.epochs, given.seed, run))
            properties.append(infer_share(target, column, known, settings.shadows, settings.epochs, given.seed, run))
        except DataError as error:
            untested.append(f"All or some of what the model tells about '{column.name}': it needs {error.expected}.")
    return replace(
        audit,
        attributes=tuple(attributes),
        properties=tuple(properties),
        not_tested=(*(line for line in audit.not_tested if line != OF_GROUPS or not properties), *untested),
    )


def _with_worst_case(audit: Audit, scores: Secrets, given: Situation, trainings: int) -> Found:
    """How tight the promise is, on test records: all that the attackers know, and no private record."""
    run = given.run or Run()
    folder = run.checkpoint
    if folder is not None:
        (folder / "worst-case").mkdir(exist_ok=True, mode=0o700)
        run = replace(run, checkpoint=folder / "worst-case")
    try:
        found, kept = worst_case.worst_case(given.channel, given.split.test, trainings, given.seed, run)
    except DataError as error:
        return replace(audit, not_tested=(*audit.not_tested, f"The worst case: it needs {error.expected}.")), scores
    return replace(audit, worst_case=found), {**scores, "worst-case": kept}


def _network_attacks(network: NetworkArtefact, given: Situation) -> Found:
    if given.settings is None:
        return attack_quickly(network.net, network.classes, given.delta, given.split, given.fractions, given.seed)
    target, run = _target(network, given), given.run or Run()
    return attack(target, given.split, given.fractions, given.seed, given.settings, run, given.channel)


def _target(network: NetworkArtefact, given: Situation) -> Target:
    opened, loss = network.net.to((given.run or Run()).device), loss_for(given.split.facts)
    return Target(opened, _fresh(network, given), network.classes, given.delta, loss)


def _fresh(network: NetworkArtefact, given: Situation) -> Callable[[int], nn.Module]:
    """Makes untrained networks like the one that leaves; of one that was fine-tuned, with as little of it to train."""
    fresh: Callable[[int], nn.Module] | None = getattr(given.channel, "fresh", None)
    if fresh is not None and given.method.fine_tunes:
        return fresh
    return lambda model: nets.create(network.net_name, network.input_shape, network.outputs, model)


def _attack_interface(interface: Interface, given: Situation) -> Found:
    answerer = given.method.answerer(interface, given.kept())
    return attack_answers(
        answerer, given.delta, given.split, given.fractions, given.seed, given.settings, given.run
    )  # fmt: skip


def _attack_features(features: FeatureSet, given: Situation) -> Found:
    asked, front = given.settings, given.method.kept_front_end(given.kept())
    how = FeatureAttackSettings(images=min(asked.most, FeatureAttackSettings().images)) if asked else None
    return attack_features(
        features, front, given.delta, given.split, given.fractions, given.seed, how, given.run, given.made_with
    )


@dataclass(frozen=True)
class Attacks:
    """The attacks on artefacts of one kind.

    Args:
        required: Attacks without which the release gate stays closed.
        make: Runs these and further attacks.
    """

    required: tuple[Kind, ...]
    make: Callable[[Any, Situation], Found]


ATTACKS: Mapping[ArtefactKind, Attacks] = {
    "network": Attacks((("membership", "white-box"), ("membership", "black-box")), _attack_network),
    "interface": Attacks((("membership", "interface"),), _attack_interface),
    "features": Attacks((("inversion", "features"), ("inversion", "front"), ("membership", "front")), _attack_features),
}


def attack_artefact(artefact: Artefact, given: Situation) -> Found:
    """Attack what leaves, whatever it is.

    Raises:
        ConfigError: An attack is asked for that is made on networks alone.
    """
    asked = given.settings
    if artefact.kind != "network" and asked and (asked.worst_case or asked.attributes):
        raise ConfigError(
            "a bundle of a network for --worst-case and --attribute",
            f"one of {'answers' if artefact.kind == 'interface' else artefact.kind}",
            "They train networks like the one that leaves, or ask it.",
            "Leave both out.",
        )
    return ATTACKS[artefact.kind].make(artefact, given)


def run(release: Release, split: Split, fractions: SplitConfig, seed: int, how: Run | None = None) -> Found:
    """Run the attacks that take seconds on a release.

    Args:
        release: What leaves.
        split: The records that it came from.
        fractions: Of the split.
        seed: Of the attacks; where features leave, that of the release.
        how: Device and progress of attacks on features.

    Returns:
        The audit, and the scores of single records, which belong in the vault.
    """
    method, delta = methods.named(f"{release.plan.channel}/{release.plan.method}"), release.guarantee.delta
    searched = isinstance(release.plan.figures, SearchFigures)
    given = Situation(method, lambda: release.secrets, delta, split, fractions, seed, run=how, searched=searched)
    return attack_artefact(release.artefact, given)


def in_words(name: str) -> str:
    """What a required attack is, in words: one of a kind, "AIM/VIEW", or one by its own name.

    Raises:
        ValueError: There is no such kind.
    """
    if "/" not in name:
        return f"the attack '{name}'"
    words = {"/".join(kind): said for kind, said in IN_WORDS.items()}
    if name not in words:
        raise ValueError(f"Known kinds of attack: {', '.join(words)}")
    return words[name]


def required(leaves: ArtefactKind) -> tuple[str, ...]:
    """The names of the kinds of attack that are required on this kind of artefact."""
    return tuple("/".join(kind) for kind in ATTACKS[leaves].required)


def missing(
    leaves: ArtefactKind,
    attacks: Iterable[AttackResult | ReconstructionResult],
    wanted: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """The required attacks on this kind of artefact that were not run, in words.

    Args:
        leaves: The kind.
        attacks: Those that were run.
        wanted: The required ones, by kind or by name; if omitted, those of `ATTACKS`.
    """
    run = tuple(attacks)
    made = {f"{attack.aim}/{attack.view}" for attack in run}
    made |= {attack.name for attack in run if "/" not in attack.name}  # a name passes for no kind
    return tuple(in_words(name) for name in (required(leaves) if wanted is None else wanted) if name not in made)
