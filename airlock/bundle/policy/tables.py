"""A policy: which releases a house lets out, as TOML.

Its sections are the components of the differential privacy pyramid of NIST SP 800-226 (March 2025), from the top down:
ε and the other privacy parameters, and the unit of privacy; algorithms and correctness, utility, bias; trust models,
side channels, access control, data collection exposure. Each component can protect only as far as those below it do.

A key that a file leaves out has its default, and the default policy is what `airlock gate` applies where no file is
given. Nothing in a policy switches a check off: a bundle that does not verify, an ε that an attack or the court
refutes, and a reviewer's rejection close the gate under every policy.

A limit on a measured figure is compared with the end of its interval that speaks against the release: too few records
to tell are no reason to let it out. The one exception is `utility.gain`, an estimate: a release that few test records
cannot tell from blind guessing is a reason for caution, not for a closed gate.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.fields import FieldInfo

from airlock.accounting.terms import Relation, Status
from airlock.auditing.metrics import FEWEST_NON_MEMBERS
from airlock.auditing.required_attacks import in_words, required
from airlock.auditing.usefulness import LEAST_GAIN
from airlock.bundle.rendering.strength import CAUTION_EPSILON, LARGEST_EPSILON, Level
from airlock.config import Delta, Epsilon, Frozen, Positive, Proportion, described, parse, read_toml
from airlock.mechanisms import Place

_WIDTH = 100  # of a comment in the printed policy

PromisedUnit = Literal["person", "record", "model"]
Text = Annotated[str, Field(min_length=1, max_length=200)]
Texts = Annotated[tuple[Text, ...], Field(max_length=1000)]
Fingerprint = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Fingerprints = Annotated[tuple[Fingerprint, ...], Field(max_length=1000)]
MethodName = Annotated[str, Field(pattern=r"^[\w-]+/[\w-]+$")]
AtLeastOne = Field(min_length=1)


def _known(name: str) -> str:
    if "/" in name:
        in_words(name)
    return name


AttackName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_known)]


class ParameterRules(Frozen):
    """ε and the other privacy parameters.

    Args:
        status: The accepted kinds of promise: "proven", "claimed" (a paper says so) or "empirical" (nothing is
            promised, and neither ε nor a unit is asked for).
        epsilon: The largest ε. That of a claim is the paper's.
        epsilon_caution: Above this ε, the gate's list of cautions says what it means.
        strength: The weakest accepted strength of a proven guarantee, by how often the best possible guess about one
            record is right: "strong" (75%), "moderate" (90%), "weak" (99%) or "very-weak".
        delta: The largest δ.
        delta_times_records: δ times the number of records must be below this: at 1, publishing one whole record would
            meet δ.
        total_epsilon: The largest total ε of this release and all others from the same data that its card declares.
        registered: Whether the release must have been charged to the data set's register, its lifetime budget.
        register_share: The largest share of the register's budget that may be spent, this release included.
    """

    status: Annotated[tuple[Status, ...], AtLeastOne] = ("proven",)
    epsilon: Positive = LARGEST_EPSILON
    epsilon_caution: Positive = CAUTION_EPSILON
    strength: Annotated[Level | None, Field(examples=["moderate"])] = None
    delta: Annotated[Delta | None, Field(examples=[1e-5])] = None
    delta_times_records: Positive = 1.0
    total_epsilon: Annotated[Positive | None, Field(examples=[10.0])] = None
    registered: bool = False
    register_share: Annotated[Proportion | None, Field(examples=[0.5])] = None


class UnitRules(Frozen):
    """The unit of privacy.

    Args:
        units: Whose presence the promise must hide, any of these: "person" (all records of one), "record", "model" (one
            trained model among others, which says nothing about a record).
        relations: What neighbouring data may differ by: "add-remove" (NIST: unbounded) or "replace-one" (bounded).
    """

    units: Annotated[tuple[PromisedUnit, ...], AtLeastOne] = ("person", "record")
    relations: Annotated[tuple[Relation, ...], AtLeastOne] = ("add-remove", "replace-one")


class RequiredAttacks(Frozen):
    """The attacks that must be in the dossier, by what leaves.

    An entry is a kind of attack, "AIM/VIEW", or the name of one attack as the dossier has it, such as "LiRA, online".

    Args:
        network: Where a network leaves.
        interface: Where answers leave.
        features: Where features leave.
    """

    network: tuple[AttackName, ...] = required("network")
    interface: tuple[AttackName, ...] = required("interface")
    features: tuple[AttackName, ...] = required("features")


class AlgorithmRules(Frozen):
    """Algorithms and correctness: how it was made, and what attacks measured.

    Args:
        channels: The accepted channels.
        methods: The accepted methods, as "weights/gaussian".
        dossier: Whether the dossier, which alone has what attacks found, must be at hand. Where it is not, the rules
            below cannot be checked, and the gate's cautions say so.
        measured_epsilon: The largest lower bound on ε that an attack may have shown. The stated ε is the limit in any
            case.
        auc: The largest AUC of an attack on membership, by the upper end of its interval, in either direction.
        advantage: The largest advantage of an attack on membership, likewise.
        reconstructed: The largest share of pictures that an attacker rebuilds from features, by the upper end of its
            interval.
        non_members: The fewest non-members that every attack on membership must have been measured with.
        non_members_caution: Below this number the gate's list of cautions says so.
        required_attacks: The attacks that must be in the dossier, by what leaves.
    """

    channels: Annotated[Annotated[Texts, AtLeastOne] | None, Field(examples=[["weights", "answers"]])] = None
    methods: Annotated[
        Annotated[tuple[MethodName, ...], AtLeastOne] | None, Field(examples=[["weights/gaussian", "answers/head"]])
    ] = None
    dossier: bool = False
    measured_epsilon: Annotated[Epsilon | None, Field(examples=[1.0])] = None
    auc: Annotated[Proportion | None, Field(examples=[0.6])] = None
    advantage: Annotated[Proportion | None, Field(examples=[0.1])] = None
    reconstructed: Annotated[Proportion | None, Field(examples=[0.01])] = None
    non_members: Annotated[Annotated[int, Field(ge=1)] | None, Field(examples=[1000])] = None
    non_members_caution: Annotated[int, Field(ge=0)] = FEWEST_NON_MEMBERS
    required_attacks: RequiredAttacks = RequiredAttacks()


class UtilityRules(Frozen):
    """Utility: a release that is of no use spends the budget for nothing.

    Args:
        gain: The smallest share of the way from blind guessing to no error that accuracy must come, an estimate; less
            is accepted only where mean recall or AUC comes as far and is clearly above chance.
        accuracy: The smallest accuracy on test records, by the lower end of its interval.
    """

    gain: Proportion = LEAST_GAIN
    accuracy: Annotated[Proportion | None, Field(examples=[0.8])] = None


class BiasRules(Frozen):
    """Bias: noise weighs more on small groups.

    Args:
        recall: The smallest recall of any class on test records, by the lower end of its interval.
    """

    recall: Annotated[Proportion | None, Field(examples=[0.5])] = None


class TrustRules(Frozen):
    """Trust models: what has to be taken on trust.

    Args:
        unacceptable_assumptions: No assumption on the card may contain one of these texts, in whatever case.
        assumptions_in_full: Assumptions that contain one of these texts are quoted in full in the gate's list of
            cautions: data called public may contain private records.
    """

    unacceptable_assumptions: Texts = ()
    assumptions_in_full: Texts = ("public",)


class SideChannelRules(Frozen):
    """Side channels: where the noise comes from.

    Args:
        system_noise: Whether the key of the noise must have come from the operating system.
        noise_made_on: Where noise may have been computed: "cpu", "gpu".
    """

    system_noise: bool = True
    noise_made_on: tuple[Place, ...] = ("cpu", "gpu")


class AccessRules(Frozen):
    """Access control: who made the release, and who approved it.

    A key is named by its fingerprint, which `airlock keys signing` prints. It counts only if it is known here:
    this vault's own, one added by `airlock keys trust`, or one given with `--signer` or `--require-approval`.

    Args:
        signed: Whether a known key must have signed the release.
        signers: The fingerprints of the keys, one of which must have signed it; empty for any known key.
        approval: The decision that a reviewer must have signed with a known key: "none", "conditions" (approved, also
            on conditions) or "approve" (without any).
        approvers: The fingerprints of the keys, one of which must have approved it; empty for any known key.
        newest_dossier: Whether the approval must be about the newest dossier.
        second_key: Whether the approval must be by another key than the one that signed the release.
    """

    signed: bool = False
    signers: Fingerprints = ()
    approval: Literal["none", "conditions", "approve"] = "none"
    approvers: Fingerprints = ()
    newest_dossier: bool = False
    second_key: bool = False


class CollectionRules(Frozen):
    """Data collection exposure: the records behind it.

    Args:
        public_share: The largest share of the records that the holder may have declared public; nothing covers those.
        records: The fewest records, by the public number on the card.
        declared: What must be declared about the data (`[about]` in a config): "whose", "fields", "purpose",
            "controller", "recipient" or "retention".
    """

    public_share: Annotated[Proportion | None, Field(examples=[0.2])] = None
    records: Annotated[Annotated[int, Field(ge=1)] | None, Field(examples=[1000])] = None
    declared: tuple[Literal["whose", "fields", "purpose", "controller", "recipient", "retention"], ...] = ()


class Policy(Frozen):
    """What a house lets out; `Policy()` is what the gate applies by default.

    Args:
        privacy_parameters: ε and the other privacy parameters.
        unit_of_privacy: The unit of privacy.
        algorithms_and_correctness: How it was made, and what attacks measured.
        utility: How useful it must be.
        bias: How useful it must be for every class.
        trust_models: What has to be taken on trust.
        side_channels: Where the noise comes from.
        access_control: Who made it, and who approved it.
        data_collection_exposure: The records behind it.
    """

    privacy_parameters: ParameterRules = ParameterRules()
    unit_of_privacy: UnitRules = UnitRules()
    algorithms_and_correctness: AlgorithmRules = AlgorithmRules()
    utility: UtilityRules = UtilityRules()
    bias: BiasRules = BiasRules()
    trust_models: TrustRules = TrustRules()
    side_channels: SideChannelRules = SideChannelRules()
    access_control: AccessRules = AccessRules()
    data_collection_exposure: CollectionRules = CollectionRules()


def load(path: Path) -> Policy:
    """Read a policy from a TOML file.

    Raises:
        ConfigError: There is none, or a key or a value in it is not known.
    """
    return parse(Policy, read_toml(Path(path)))


def changes(policy: Policy) -> dict[str, Any]:
    """The values that differ from the default policy, by dotted key."""
    found: dict[str, Any] = {}
    _differ("", policy.model_dump(mode="json"), Policy().model_dump(mode="json"), found)
    return found


def _differ(where: str, mine: Any, default: Any, found: dict[str, Any]) -> None:
    if isinstance(mine, dict):
        for key, value in mine.items():
            _differ(f"{where}.{key}" if where else key, value, default[key], found)
    elif mine != default:
        found[where] = mine


def to_toml(policy: Policy) -> str:
    """A policy as TOML: every key below a comment; one without a limit is commented out, with an example."""
    lines = [
        "# Which releases this house lets out: airlock gate BUNDLE --policy FILE.",
        "# A key that is left out has its default.",
        "# The sections are the components of the differential privacy pyramid of NIST SP 800-226, from the top down.",
    ]
    for name in Policy.model_fields:
        lines += _section(name, getattr(policy, name))
    return "\n".join(lines) + "\n"


def _section(name: str, table: Frozen) -> list[str]:
    """One table, and after its own keys the tables in it."""
    says = described(type(table))
    lines, below = ["", *_comment((type(table).__doc__ or "").partition("\n")[0]), f"[{name}]"], []
    for key, info in type(table).model_fields.items():
        value = getattr(table, key)
        if isinstance(value, Frozen):
            below += _section(f"{name}.{key}", value)
        else:
            lines += [*_comment(says.get(key, "")), _line(key, value, info)]
    return lines + below


def _line(key: str, value: Any, info: FieldInfo) -> str:
    if value is None:
        return f"# {key} = {json.dumps((info.examples or [None])[0])}"
    return f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", r"\u007f")  # which JSON lets stand


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]
