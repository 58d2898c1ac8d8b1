"""Is the card consistent with itself, and are the other files consistent with the card?

Everything that can be recomputed is recomputed: ε and the total from the recorded events, figures from noisy counts,
every sentence from the figures, the page and the model card from the card. So an edited ε is detected wherever it was
edited, even if the checksums were rewritten too.

An ε that a plugin's accountant raised is checked without that plugin: dp-accounting's ε must not be larger.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable

from airlock import accounting
from airlock._version import VERSION
from airlock.accounting.terms import PROTECTED, Relation
from airlock.auditing import perplexity, regression_errors
from airlock.auditing.evaluation import figures
from airlock.bundle import bundle
from airlock.bundle.card import (
    Card,
    headline,
    paid_by_holdout,
    paid_by_test,
    sentences,
    total_epsilon,
)
from airlock.bundle.contents import Contents, Defects, Skip, Test
from airlock.bundle.packing import PACKINGS, packing_of
from airlock.bundle.receiving.input_schema import declared_schema
from airlock.bundle.rendering import page
from airlock.bundle.schema import LifetimeBudget, OlderGuarantee, OtherRelease, StatedGuarantee
from airlock.config import TuneConfig, parse, parse_toml
from airlock.data import memory
from airlock.data.sources import SOURCES
from airlock.data.text import parse_tokenizer
from airlock.errors import AirlockError, ConfigError

# By how much, relatively, a stated ε may be off from the recomputed one. It is lower only by rounding, whichever
# version is named (dp-accounting 0.5 and 0.6 agree to the last bit); another version may have stated more.
ROUNDING, OTHER_VERSION = 1e-6, 1e-2
_SELECTED = "repeat-and-select"


def tests(files: Contents, card: Card | None) -> list[Test]:
    """The checks against the card, by name; without a card each of them is skipped."""

    def on(test: Callable[[Card], Defects]) -> Callable[[], Defects]:
        return lambda: test(card) if card is not None else _skip()

    first: list[Test] = []
    if card is not None:
        first = packing_of(card.artefact).tests(files, card.leaving, card.guarantee, card.tuning.runs)
    return [
        *first,
        ("epsilon", _gives(card), on(_epsilon)),
        ("parts", "No part of the records pays more than the stated ε.", on(_parts)),
        ("total", "The events of all declared releases give the stated total.", on(_total)),
        ("words", "Headline and sentences follow from the figures.", on(_words)),
        (
            "page",
            "The page card.html is what the card renders to.",
            on(lambda card: _rendered(files, card, bundle.HTML, page.render_html)),
        ),
        (
            "readme",
            "The model card README.md is what the card renders to.",
            on(lambda card: _rendered(files, card, bundle.README, page.render_readme)),
        ),
        *_of_rows(files, card),
        ("utility", "Accuracy and the like follow from the noisy counts.", on(_utility)),
        ("hashes", "The hashes on the card are those of the files.", on(lambda card: _hashes(files, card))),
        ("config", "The config agrees with the card and names no path.", on(lambda card: _config(files, card))),
    ]


def _of_rows(files: Contents, card: Card | None) -> list[Test]:
    """The check of schema.json, where what leaves is asked with rows."""
    if card is None or not packing_of(card.artefact).takes_rows:
        return []
    return [("schema", "What schema.json says of a row is what the config declares.", lambda: _schema(files, card))]


def _skip() -> Defects:
    raise Skip("There is no usable card.json to check it against.")


def _gives(card: Card | None) -> str:
    """What the check of ε shows; if a plugin's accountant raised it, with dp-accounting's own figure."""
    whose = None if card is None else accounting.raised_by(card.guarantee.accountant_version)[1]
    if card is None or whose is None:
        return "The recorded events give the stated ε."
    try:
        found = f"ε = {_exact(_recompute(card.guarantee, card.guarantee.relation)[0])}"
    except Exception:  # noqa: BLE001  the check itself reports what is wrong with the card
        found = "an ε"
    return (
        f"The recorded events give {found} by dp-accounting, and no less is stated. The {whose} raised it, and was not "
        "asked again."
    )


def epsilon_defects(promise: StatedGuarantee | OlderGuarantee, asked: float) -> list[str]:
    """Defects if the events do not give the stated ε, or a proven ε exceeds the requested one.

    An ε that a plugin's accountant raised may be larger than dp-accounting's, but never smaller.
    """
    recomputed, version = _recompute(promise, promise.relation)
    plain, whose = accounting.raised_by(promise.accountant_version)
    larger = promise.epsilon is None or (recomputed is not None and promise.epsilon > recomputed)
    defects = [] if whose and larger else list(_differs("ε", promise.epsilon, recomputed, version == plain))
    if promise.status == "proven" and (promise.epsilon is None or promise.epsilon > asked * (1 + 1e-9)):
        defects.append(f"The proven ε is above the {page.figure(asked)} that was asked for.")
    return defects


def _epsilon(card: Card) -> Defects:
    promise = card.guarantee
    defects = epsilon_defects(promise, card.target.epsilon)
    if promise.status == "proven" and promise.epsilon and not card.noise_made_on:
        defects.append("A proven ε takes noise, and the card says that none was drawn.")
    return defects


def _parts(card: Card) -> Defects:
    """Each part's ε follows from its events, its events from the card, and no part pays more than the stated ε."""
    promise, parts = card.guarantee, card.guarantee.parts
    defects: list[str] = []
    if (parts.private.events, parts.private.epsilon) != (promise.events, promise.epsilon):
        defects.append("What the private part pays is not the guarantee.")
    if bool(card.audit.attacks) != (card.audit.share > 0):
        defects.append("A share of ε is set aside for attack figures exactly if there are some.")
    holdout = paid_by_holdout(card.audit, card.tuning.runs)
    if card.audit.attacks:
        if len({one.epsilon for one in card.audit.attacks}) > 1:
            defects.append("Attack figures have one ε each, and it is the same.")
        if (promise.events.get("events") or [None])[-1] != accounting.to_json(holdout):
            defects.append("The private part does not pay for the attack figures on the card.")
    defects += _search(card)
    wanted = {"test": paid_by_test(card.measured, card.tuning), "holdout": holdout}
    for name, events in wanted.items():
        part = getattr(parts, name)
        if part.events != accounting.to_json(events):
            defects.append(f"The events of the {name} part are not those of what the card says about it.")
            continue
        spent = accounting.compute_epsilon(
            events, promise.delta, promise.relation, "pld" if part.accountant == "PLD" else "rdp"
        )
        same = spent.version == accounting.raised_by(promise.accountant_version)[0]
        defects += _differs(f"ε of the {name} part", part.epsilon, spent.epsilon, same)
        protects = promise.status == "proven" and promise.unit in PROTECTED
        most = promise.epsilon if protects else card.target.epsilon
        if most is not None and spent.epsilon > most + ROUNDING * max(1.0, most):
            defects.append(f"The {name} part pays {_exact(spent.epsilon)}, more than the stated {_exact(most)}.")
    return defects


def _search(card: Card) -> Defects:
    """Whether the guarantee is that of the search on the card, or of none where the card names none."""
    own, paid = card.tuning.search, card.guarantee.events
    paid = paid["events"][0] if card.audit.attacks and paid.get("events") else paid
    if own is None:
        return ["The card names no search, and its events are those of one."] if paid.get("type") == _SELECTED else []
    same = (paid.get("type"), paid.get("mean"), paid.get("shape")) == (_SELECTED, own.mean, own.shape)
    return [] if same and card.tuning.runs == 1 else ["The events do not pay for the search on the card."]


def _total(card: Card) -> Defects:
    if card.lifetime is not None:
        return _lifetime(card, card.lifetime)
    defects: list[str] = []
    same_version = False
    for other in card.total.releases:
        recomputed, version = _recompute(other, card.guarantee.relation)
        same_version = version == accounting.raised_by(card.guarantee.accountant_version)[0]
        defects += _differs(f"ε of release {other.release_id[:8]}", other.epsilon, recomputed, False)
    total = card.guarantee.epsilon
    if card.total.releases:
        total = total_epsilon(card.guarantee, card.total.releases)[0]
    return [*defects, *_differs("The total ε", card.total.epsilon, total, same_version)]


def _lifetime(card: Card, register: LifetimeBudget) -> Defects:
    """With a register: the cost covers what each part pays, and the total follows from what is spent."""
    if card.total.releases:
        return ["With a register, no other releases are declared."]
    try:
        budget = accounting.PrivacyFilter(register.epsilon, register.delta, register.order)
        parts = card.guarantee.parts
        cost = budget.cost([accounting.from_json(part.events) for part in (parts.private, parts.test, parts.holdout)])
    except AirlockError as error:
        return [f"The register could not have counted this release: {error}"]
    defects = []
    if not cost <= register.cost <= register.spent <= budget.units:
        defects.append("What was charged in the register does not cover what the parts pay, or is more than it has.")
    if card.guarantee.status != "proven" or not card.secure_noise:
        defects.append("A register counts proven releases with secret noise alone.")
    if (register.delta, "RDP") != (card.total.delta, card.total.accountant):
        defects.append("The total is not the register's.")
    return [*defects, *_differs("The total ε", card.total.epsilon, budget.so_far(register.spent), True)]


def _recompute(
    promise: StatedGuarantee | OlderGuarantee | OtherRelease, relation: Relation
) -> tuple[float | None, str]:
    """The ε of the recorded events under the recorded accountant (None if unbounded), and the version used."""
    spent = accounting.compute_epsilon(
        accounting.from_json(promise.events), promise.delta, relation, "pld" if promise.accountant == "PLD" else "rdp"
    )
    return (None if promise.unit == "none" or math.isinf(spent.epsilon) else spent.epsilon), spent.version


def _differs(what: str, recorded: float | None, recomputed: float | None, same_version: bool) -> Defects:
    more = ROUNDING if same_version else OTHER_VERSION
    if recorded is None or recomputed is None:
        same = recorded == recomputed
    else:
        same = -ROUNDING <= (recorded - recomputed) / max(1.0, recomputed) <= more
    if same:
        return []
    return [f"{what} is recorded as {_exact(recorded)}; the recorded events give {_exact(recomputed)}."]


def _exact(value: float | None) -> str:
    return "no bound" if value is None else f"{value:.6g}"


def _words(card: Card) -> Defects:
    written = sentences(card)
    defects = [
        f"The sentences about '{name}' are not those that follow from the figures."
        for name in type(written).model_fields
        if getattr(written, name) != getattr(card.words, name)
    ]
    if card.headline != headline(card):
        defects.insert(0, "The headline is not the one that follows from the figures.")
    return _with_version(defects, card)


def _rendered(files: Contents, card: Card, name: str, render: Callable[[Card], str]) -> Defects:
    if files.read(name) == render(card).encode():
        return []
    return _with_version([f"{name} is not what card.json renders to: one of them was edited."], card)


def _with_version(defects: list[str], card: Card) -> Defects:
    if defects and card.airlock_version != VERSION:
        defects.append(f"The card was written by Airlock {card.airlock_version}; compare with that version.")
    return defects


def _utility(card: Card) -> Defects:
    stated = packing_of(card.artefact).states_utility
    if card.errors is not None and card.data.target is not None:
        if not stated:
            return ["The counts are not those of what leaves."]
        same = regression_errors.figures(card.errors.counts, card.data.target) == card.errors.figures
        return [] if same else ["How far predictions are off does not follow from the counts."]
    if card.language is not None:
        if not stated:
            return ["The counts are not those of what leaves."]
        same = perplexity.figures(card.language.counts, card.data.vocabulary or 0) == card.language.figures
        return [] if same else ["The perplexity does not follow from the counts."]
    if card.utility is None:
        return ["The card does not say how useful what leaves is."] if stated else []
    counts = card.utility.counts
    if not stated or counts.classes != len(card.data.classes):
        return ["The counts are not those of what leaves."]
    return [] if figures(counts) == card.utility.figures else ["Accuracy and the like do not follow from the counts."]


def _hashes(files: Contents, card: Card) -> Defects:
    if card.hashes is None:
        return ["The card has no hashes."]
    recorded = {
        bundle.SAFETENSORS: card.hashes.model_safetensors,
        bundle.ONNX: card.hashes.model_onnx,
        bundle.MANIFEST: card.hashes.features_json,
        bundle.CONFIG: card.hashes.config_toml,
    }
    for kind, packing in PACKINGS.items():
        others = [name for name in packing.own_files if name in recorded and kind != card.artefact]
        if any(recorded.pop(name) for name in others):
            return [packing.not_there]
    recorded |= bundle.smaller_of(card)
    if card.hashes.model_table_onnx is not None:
        recorded[bundle.TABLE_ONNX] = card.hashes.model_table_onnx
    if card.hashes.tokenizer_json is not None:
        recorded[bundle.TOKENIZER] = card.hashes.tokenizer_json
    wrong = [name for name, sha in recorded.items() if name not in files.names or files.digest(name) != sha]
    more = [
        name
        for name in (*bundle.SMALLER, bundle.TABLE_ONNX, bundle.TOKENIZER)
        if name in files.names and name not in recorded
    ]
    return [
        *(f"{name} is not the file that the card names." for name in wrong),
        *(f"{name} is there, and the card does not name it." for name in more),
    ]


def _schema(files: Contents, card: Card) -> Defects:
    """Whether schema.json is the card's, and the card's is what the config declares."""
    if card.inputs is None:
        if bundle.SCHEMA in files.names:
            return ["schema.json is there, and the card does not say what a row is."]
        raise Skip("The card is from before there was a schema.json.")
    if bundle.SCHEMA not in files.names:
        return ["schema.json is missing."]
    if files.read(bundle.SCHEMA) != card.inputs.to_json().encode():
        return _with_version(["schema.json is not what the card says of a row."], card)
    table = parse_toml(files.read(bundle.CONFIG).decode("utf-8"), bundle.CONFIG)
    said = card.data
    if card.inputs != declared_schema(table.get("data"), said.shape, said.classes, said.vocabulary, said.tokenizer):
        return ["What the card says of a row is not what the config declares."]
    return _tokenizer(files, card)


def _tokenizer(files: Contents, card: Card) -> Defects:
    """Whether tokenizer.json is the one that the card names, and gives the numbers that the model knows."""
    text = None if card.inputs is None else card.inputs.text
    if text is None:
        return ["tokenizer.json is there, and records are no texts."] if bundle.TOKENIZER in files.names else []
    if bundle.TOKENIZER not in files.names or files.digest(bundle.TOKENIZER) != text.tokenizer:
        return ["tokenizer.json is not the tokenizer that the card names."]
    if text.tokens != card.data.shape[0] or card.data.shape != (text.tokens,):
        return ["Texts have not as many tokens as the card says."]
    if importlib.util.find_spec("tokenizers") is None:
        return []  # its bytes are those that the card names; whoever uses it needs the library
    known = parse_tokenizer(files.read(bundle.TOKENIZER), text.tokens)
    return [] if known.vocabulary == text.vocabulary else ["tokenizer.json has not as many tokens as the card says."]


def _config(files: Contents, card: Card) -> Defects:
    try:
        table = parse_toml(files.read(bundle.CONFIG).decode("utf-8"), bundle.CONFIG)
    except ConfigError as error:
        return [f"config.toml is not TOML: {error.found}."]
    wanted: dict[str, object] = {
        "channel": card.channel,
        "method": card.method,
        "epsilon": card.target.epsilon,
        "delta": card.target.delta,
        "tuning_runs": card.tuning.runs,
        "attack_share": card.audit.share,
    }
    wanted |= packing_of(card.artefact).config_keys(card.leaving)
    defects = [f"{key} in config.toml is not the one on the card." for key, v in wanted.items() if table.get(key) != v]
    defects += _searched(table.get("tune"), card)
    data = table.get("data")
    if isinstance(data, dict) and (data.get("source", "digits") not in (*SOURCES, memory.SOURCE) or "test" in data):
        defects.append("config.toml says where the data lie.")
    settings = table.get("settings", {})
    sets = [data, *(settings.values() if isinstance(settings, dict) else ())]
    if any(isinstance(one, dict) and one.get("person", bundle.PERSON) != bundle.PERSON for one in sets):
        defects.append("config.toml says which column holds the people's identifiers.")
    if (card.guarantee.unit == "person") != (card.data.people is not None) or (card.data.people and card.data.grouped):
        defects.append("The card's people are not those that its guarantee is about.")
    if table.get("about", {}) != {key: text for key, text in card.about.model_dump().items() if text}:
        defects.append("[about] in config.toml is not what the card says.")
    if any(key in table for key in bundle.NEVER_IN_A_BUNDLE):
        defects.append("config.toml says where the register is, or who receives what.")
    if bundle.without_paths(table.get("settings", {})) != table.get("settings", {}):
        defects.append("config.toml names a path in its settings.")
    if card.guarantee.delta != card.target.delta:
        defects.append("δ of the guarantee is not the one that was asked for.")
    return defects


def _searched(tune: object, card: Card) -> Defects:
    """Whether the config's [tune] is the search on the card."""
    own = card.tuning.search
    if own is None or not isinstance(tune, dict):
        return [] if (own is None) == (tune is None) else ["[tune] in config.toml is not the search on the card."]
    try:
        asked = parse(TuneConfig, tune, "tune")
    except ConfigError as error:
        return [f"[tune] in config.toml is not valid: {error.found}."]
    if bundle.without_paths(tune) != tune:
        return ["config.toml names a path in [tune]."]
    keys = ("mean", "shape", "run_epsilon", "score_epsilon", "won")
    same = all(getattr(asked, key) == getattr(own, key) for key in keys)
    if same and list(asked.candidates) == list(own.candidates):
        return []
    return ["[tune] in config.toml is not the search on the card."]
