"""Is this bundle what its card says? Every check by name, every defect in one sentence.

In: a folder, and the vault. Out: a `Verification`. Nothing found in a bundle is executed or imported, and a broken file
never raises: its check fails. All of it is done in a child process with limits on memory and time (`isolation`): one
that exceeds them is a failed check, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import jsonschema
from pydantic import ValidationError
from torch import nn

from airlock import isolation
from airlock.auditing import perplexity, regression_errors
from airlock.auditing.evaluation import far
from airlock.bundle import bundle, consistency, dossier, gate, models, older, replan
from airlock.bundle.card import OLDEST, Card, older_note, schema
from airlock.bundle.contents import SIGNATURES, Contents, Defects, Skip, limit_of
from airlock.bundle.files import parse_json
from airlock.bundle.packing import packing_in, packing_of
from airlock.bundle.policy import RULES, Evidence, Policy, judge
from airlock.bundle.receiving import table_onnx
from airlock.bundle.register import counting
from airlock.bundle.rendering import page
from airlock.bundle.schema import NetworkSummary
from airlock.bundle.signing.keys import PublicKey
from airlock.bundle.signing.signatures import Signatures, covers_newest_dossier, examine
from airlock.bundle.vault import MARKER, Vault
from airlock.config import TargetRange
from airlock.errors import AirlockError, FormatError, Refused
from airlock.training.outcomes import Outcomes

OUTCOMES = "outcomes"  # the outcome on every test record, among the arrays in the vault
IMPROBABLE = 1e-9  # counts are rejected if noise of the stated size deviates this far with a smaller probability

Outcome = Literal["ok", "failed", "skipped"]
MakeNet = Callable[[NetworkSummary], nn.Module]


@dataclass(frozen=True)
class Check:
    """One question and its answer."""

    name: str
    outcome: Outcome
    says: str


@dataclass(frozen=True)
class Verification:
    """All checks of one bundle.

    Args:
        folder: The bundle.
        checks: All checks with their outcomes.
        signatures: Who signed it, and who approved it.
        note: For a bundle of an earlier format, what must be known before anything else; otherwise None.
        digests: The SHA-256 of every file that was checked: whoever goes on to use one must find it the same.
    """

    folder: Path
    checks: tuple[Check, ...]
    signatures: Signatures
    note: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """Whether no check failed; a skipped check says why it was skipped."""
        return all(check.outcome != "failed" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        first = {} if self.note is None else {"note": self.note}
        return {**first, "ok": self.ok, **self.signatures.to_dict(), "checks": [vars(check) for check in self.checks]}


def verify(
    folder: Path,
    vault: Vault | None = None,
    net: nn.Module | MakeNet | None = None,
    *,
    gated: bool = False,
    given: Mapping[str, object] | None = None,
    signers: Sequence[PublicKey] = (),
    approvers: Sequence[PublicKey] = (),
    policy: Policy | None = None,
) -> Verification:
    """Check a bundle.

    Args:
        folder: The bundle.
        vault: The vault whose files must not be in it; the user's default vault if omitted.
        net: The user's own network, if the bundle holds one, to compare its outputs with the ONNX file's; or what makes
            it for the network on the card, which is called once the files have passed all they can without it.
        given: Names that the user gives for what the config leads to outside Airlock, by dotted key such as "net"; they
            are imported, so that the release can be planned again.
        gated: Also fail if, according to the dossier, an attack refutes the stated ε or a required attack was not run.
        signers: If given, also fail unless one of these keys signed the release.
        approvers: If given, also fail unless a reviewer approved it with one of these keys.
        policy: If given, also fail where it violates a rule of this policy: one check for each of its sections.

    Raises:
        FormatError: There is no such folder; any other problem is a failed check.
    """
    folder = Path(folder).absolute()
    if folder.is_symlink() or not folder.is_dir():
        raise FormatError("a bundle's folder", f"{folder}, which is none", do="Check the path.")
    safe = vault or Vault.open()
    files = Contents(folder)
    signed = examine(files, safe, signers, approvers)
    checks, note, digests = _checked_in_child(files, safe, gated, policy)
    first = (_run(name, says, test) for name, says, test in signed.tests())
    found = Verification(folder, (*first, *checks), signed, note, digests)
    found = found if net is None and not given else _with_own(found, net, given)
    return found if policy is None else _by_policy(found, safe, policy)


def _checked_in_child(
    files: Contents, vault: Vault, gated: bool, policy: Policy | None
) -> tuple[list[Check], str | None, Mapping[str, str]]:
    """All checks but those of signatures and policy, a note about the format, and the digests of what was checked.

    They are those that the signatures were compared with. A child that was stopped failed its check.
    """
    folder = files.folder
    limits = policy.model_dump(mode="json") if policy and gated else {}
    request = {"folder": str(folder), "vault": str(vault.root), "gated": gated, "policy": limits}
    request["digests"] = files.digests
    checks: list[Check] = []
    note, current, digests = None, "files", files.digests
    try:
        for said in isolation.run(f"{__name__}:in_child", request, _limits(folder), partial(_graph, folder)):
            if "says" in said:
                checks.append(Check(**said))
            current, note = said.get("begins", current), said.get("note", note)
            digests = said.get("digests", digests)
    except isolation.Stopped as reason:
        checks.append(Check(current, "failed", str(reason)))
    return checks, note, digests


def _by_policy(found: Verification, vault: Vault, policy: Policy) -> Verification:
    """Hold what was found against a policy: one check for each of its sections."""
    if found.note is not None or any(one.name == "card" and one.outcome != "ok" for one in found.checks):
        why = "No policy lets out a bundle without a card of this format."
        return replace(found, checks=(*found.checks, Check("policy", "failed", why)))

    @cache
    def evidence() -> Evidence:
        card = bundle.read(found.folder, found.digests).card
        current = covers_newest_dossier(vault, card.release_id)
        return Evidence(card, dossier.find(vault, card.release_id), found.signatures, current)

    checks = tuple(
        _run(
            f"policy.{name}",
            f"It keeps the rules about {name.replace('_', ' ')}.",
            partial(_kept, name, evidence, policy),
        )
        for name in Policy.model_fields
    )
    return replace(found, checks=(*found.checks, *checks))


def _kept(section: str, evidence: Callable[[], Evidence], policy: Policy) -> Defects:
    """The violated rules of one section; it is skipped if a rule could not be checked and none is violated."""
    rules = {key: rule for key, rule in RULES.items() if key.startswith(f"{section}.")}
    findings = judge(evidence(), policy, rules)
    violated = [one.sentence for one in findings if one.checked]
    if findings and not violated:
        raise Skip(" ".join(one.sentence for one in findings))
    return violated


def _with_own(found: Verification, net: nn.Module | MakeNet | None, given: Mapping[str, object] | None) -> Verification:
    """Check with what is the user's own, which is imported in this process, once the files have passed all they can."""
    if any(one.outcome == "failed" for one in found.checks if one.name in ("card", "weights", "onnx")):
        return found
    files, card = Contents(found.folder, found.digests), bundle.read(found.folder, found.digests).card
    names = {key: name for key, name in (given or {}).items() if key != "net" or card.network is not None}
    tests = replan.tests(files, card, names) if names else []
    if net is not None and card.network is not None:
        module = net if isinstance(net, nn.Module) else net(card.network)
        tests += models.tests(files, card.network, module)
    again = {name: (says, test) for name, says, test in tests}
    checks = tuple(_run(one.name, *again[one.name]) if one.name in again else one for one in found.checks)
    return replace(found, checks=checks)


def _limits(folder: Path) -> isolation.Allowance:
    """What a bundle may use: more for a large one, by the space that it takes up on the disk."""
    size = 0
    with contextlib.suppress(OSError):  # a folder that cannot be read fails its checks
        size = sum(place.lstat().st_blocks * 512 for place in folder.iterdir())
    return isolation.Allowance(
        isolation.setting(isolation.BYTES_VARIABLE, (4 << 30) + 8 * size),
        isolation.setting(isolation.SECONDS_VARIABLE, 60 + 30 * (size >> 30)),
    )


def _graph(folder: Path, asked: Mapping[str, Any]) -> bytes:
    """The graph of a built-in network for a child: making it takes seconds, and this process remembers it.

    Only of a network whose weights the bundle can hold, so that no card makes this process build a huge one.
    """
    name, shape, classes = str(asked["name"]), tuple(asked["shape"]), int(asked["classes"])
    try:
        if models.size(name, shape, classes) > (folder / bundle.SAFETENSORS).lstat().st_size:
            return b""
        declared = asked.get("target")
        target = None if declared is None else TargetRange.model_validate(declared)
        return models.graph(name, shape, classes, target)
    except Exception:  # noqa: BLE001  a card may name anything; without a graph the check fails
        return b""


def in_child(parent: isolation.Parent, request: Mapping[str, Any]) -> None:
    """Check a bundle, and tell the parent about every check."""
    global _watch
    before = _watch, models.ask_for_graph
    _watch = parent.say
    models.ask_for_graph = lambda name, shape, classes, target: parent.ask(
        {
            "name": name,
            "shape": shape,
            "classes": classes,
            "target": None if target is None else target.model_dump(),
        }
    )
    try:
        files, policy = Contents(Path(request["folder"]), request["digests"]), Policy.model_validate(request["policy"])
        _, note = inspect(files, Vault(Path(request["vault"])), gated=request["gated"], policy=policy)
        parent.say({"note": note, "digests": files.digests})
    finally:
        _watch, models.ask_for_graph = before


def _nobody(said: dict[str, Any]) -> None:
    """Nobody watches the checks of this process."""


_watch: Callable[[dict[str, Any]], None] = _nobody


def warm_up() -> None:
    """Make what every verification needs: a server does it once for all its children."""
    for escaped in (True, False):
        templates = page.environment(escaped)
        for name in templates.list_templates():
            templates.get_template(name)
    jsonschema.Draft202012Validator(schema())
    models.size("linear", (1,), 2)


def inspect(
    files: Contents, safe: Vault, *, gated: bool = False, policy: Policy | None = None
) -> tuple[tuple[Check, ...], str | None]:
    """Check all but the signatures, in this process and without limits; returns a note about the format, too."""
    version = older.format_of(files)
    if version is not None:
        return _inspect_older(files, safe, gated), older_note(version)
    read: list[Card] = []
    checks = [
        _run("files", "All files are there and nothing else.", lambda: _files(files)),
        _run("checksums", "Every file has its recorded SHA-256.", lambda: _checksums(files)),
        _run("vault", "It holds no file of the vault.", lambda: _vault(files, safe)),
        _run("card", "The card follows its published schema.", lambda: _schema(files, read)),
    ]
    card = read[0] if read else None
    checks.append(_run("record", "It is, file by file, what this vault released.", lambda: _record(files, card, safe)))
    tests = consistency.tests(files, card) + replan.tests(files, card, None)
    packing = packing_of(card.artefact if card else "network")
    tests += packing.model_tests(files, card.leaving if card else None, None)
    if card is not None and card.compression is not None:
        smaller = bundle.smaller_of(card)
        tests += models.size_tests(files, card.network, smaller, card.compression, card.data.vocabulary)
    if card is not None and card.hashes is not None and card.hashes.model_table_onnx is not None:
        says = "model.table.onnx is model.onnx with the declared encoding before it."
        tests.append(("table", says, lambda: _table(files, card)))
    tests.append(("counts", "The noisy counts lie around the exact ones in the vault.", lambda: _counts(card, safe)))
    if gated:
        tests += gate.tests(card, lambda made: dossier.find(safe, made.release_id), policy or Policy())
    return (*checks, *(_run(name, says, test) for name, says, test in tests)), None


def _inspect_older(files: Contents, vault: Vault, gated: bool) -> tuple[Check, ...]:
    """Check the files, checksums and ε of a bundle of an earlier format; it never passes the gate."""
    tests = [
        ("files", "All files are there and nothing else.", lambda: _files(files, older.FILES)),
        ("checksums", "Every file has its recorded SHA-256.", lambda: _checksums(files)),
        ("vault", "It holds no file of the vault.", lambda: _vault(files, vault)),
        *older.tests(files),
    ]
    if gated:
        tests.append(("gate", "", lambda: [f"No gate weighs a bundle from before format {OLDEST}: make it again."]))
    return tuple(_run(name, says, test) for name, says, test in tests)


def read_verified(
    folder: Path,
    vault: Vault | None = None,
    *,
    signers: Sequence[PublicKey] = (),
    approvers: Sequence[PublicKey] = (),
) -> bundle.Bundle:
    """Read a bundle that passes verification, with these keys where any are required.

    Its `files` are read as they were verified, or not at all: whoever can write the folder cannot swap one meanwhile.

    Raises:
        Refused: It does not verify; the first defect is named.
        FormatError: A file was changed after it was verified.
    """
    found = verify(folder, vault, signers=signers, approvers=approvers)
    for check in found.checks:
        if check.outcome == "failed":
            raise Refused(
                f"a bundle that verifies in {folder}",
                f"a defect: {check.says.rstrip('.')}",
                do="`airlock verify` lists all of them.",
            )
    return bundle.read(found.folder, found.digests)


def weigh_folder(
    folder: Path,
    vault: Vault | None = None,
    *,
    signers: Sequence[PublicKey] = (),
    approvers: Sequence[PublicKey] = (),
    policy: Policy | None = None,
) -> tuple[gate.Weighing, Verification, Card | None]:
    """Verify a bundle and weigh it, with what the vault and the register of its data know of it.

    Args:
        folder: The bundle.
        vault: Where its dossier is; the user's default vault if omitted.
        signers: If given, one of these keys must have signed the release.
        approvers: If given, a reviewer must have approved it with one of these keys.
        policy: What the house lets out; the default policy if omitted.

    Returns:
        The reasons, what was verified, and the card, if it can be read and the bundle is of this format.
    """
    safe = vault or Vault.open()
    found = verify(folder, safe, signers=signers, approvers=approvers)
    outcomes = {check.name: check for check in found.checks}
    readable = found.note is None and ("card" not in outcomes or outcomes["card"].outcome != "failed")
    card = bundle.read(found.folder, found.digests).card if readable else None
    weighing = gate.weigh(
        card,
        [check.says for check in found.checks if check.outcome == "failed"],
        dossier.find(safe, card.release_id) if card else None,
        found.signatures,
        covers_newest_dossier(safe, card.release_id) if card else None,
        outcomes["plan"].says if "plan" in outcomes and outcomes["plan"].outcome == "skipped" else None,
        "record" in outcomes and outcomes["record"].outcome == "ok",
        policy,
        counting(card.data.name, card.release_id, safe) if card else None,
        found.note,
    )
    return weighing, found, card


def _run(name: str, says: str, test: Callable[[], Defects]) -> Check:
    """Run one check; any exception that a broken file causes in a library is a failed check."""
    _watch({"begins": name})
    found = _tried(name, says, test)
    _watch(vars(found))
    return found


def _tried(name: str, says: str, test: Callable[[], Defects]) -> Check:
    try:
        defects = test()
    except Skip as reason:
        return Check(name, "skipped", str(reason))
    except AirlockError as error:
        return Check(name, "failed", str(error))
    except Exception as error:  # noqa: BLE001  a hostile file may make any library raise anything
        if isinstance(error, MemoryError) or "alloc" in str(error):  # as ONNX Runtime and torch put it
            return Check(name, "failed", "It needed more memory than is allowed: AIRLOCK_CHECK_BYTES allows more.")
        return Check(name, "failed", f"It could not be checked: {type(error).__name__} in reading it.")
    return Check(name, "failed", " ".join(defects)) if defects else Check(name, "ok", says)


def _files(files: Contents, more: Sequence[str] = ()) -> Defects:
    packing = packing_in(files)
    listed = packing.listed(files)
    missing = [f"{name} is missing." for name in (*packing.required_files, *listed) if name not in files.names]
    links = [f"{name} is a symbolic link." for name in files.links]
    odd = [f"{name} is a folder or another thing that is no plain file." for name in files.odd]
    known = (*packing.required_files, *listed, *packing.optional_files, *SIGNATURES, *more)
    extra = [f"{name} does not belong to a bundle." for name in files.names if name not in known]
    large = [f"{name} has more than the {limit_of(name):,} bytes that are read." for name in files.too_large]
    return missing + links + odd + extra + large


def _checksums(files: Contents) -> Defects:
    recorded, defects = files.sums()
    for name in files.names:
        if name not in (bundle.SUMS, *SIGNATURES, *recorded):
            defects.append(f"{name} is not in {bundle.SUMS}.")
    for name, sha in recorded.items():
        if name not in files.names:
            defects.append(f"{name} is in {bundle.SUMS} and not there.")
        elif name in files.plain and name not in files.too_large and files.digest(name) != sha:
            defects.append(f"{name} was changed: its SHA-256 is not the recorded one.")
    return defects


def _vault(files: Contents, vault: Vault) -> Defects:
    kept = vault.hashes(files.sizes())
    defects = []
    for name in files.plain:
        if name in files.too_large:
            continue
        if name == MARKER:
            defects.append(f"{name} marks a vault: nothing in this folder may leave.")
        elif files.digest(name) in kept:
            defects.append(f"{name} is {kept[files.digest(name)]} of the vault and must never leave.")
    return defects


def _table(files: Contents, card: Card) -> Defects:
    """Whether the file that takes raw columns is the one that model.onnx and the declared columns lead to."""
    if card.inputs is None or not card.inputs.columns or card.inputs.target or bundle.ONNX not in files.names:
        return ["The card names a file for raw columns, and neither columns nor a network with classes for it."]
    made = table_onnx.with_encoding(files.read(bundle.ONNX), card.inputs.columns, card.inputs.classes)
    if made == files.read(bundle.TABLE_ONNX):
        return []
    return [
        "model.table.onnx is not what model.onnx and the declared columns lead to: it was edited, or by another onnx."
    ]


def _record(files: Contents, card: Card | None, vault: Vault) -> Defects:
    """Whether the files are those that the vault wrote down when this release was made."""
    made = vault.recorded(card.release_id) if card is not None else None
    if made is None:
        raise Skip("This vault has no record of this release: only the bundle itself says what it is.")
    changed = made.changed(lambda name: files.digest(name) if name in files.names else "")
    return [f"Not as this vault released it under this id: {', '.join(changed)}."] if changed else []


def _counts(card: Card | None, vault: Vault) -> Defects:
    """Whether the card's counts are those of the release in the vault plus noise of the stated size."""
    if card is None or card.measured is None:
        raise Skip("The card has no counts of test records.")
    try:
        kept = vault.load(card.release_id).get(OUTCOMES)
    except FormatError as error:
        raise Skip("This vault does not hold this release, or not as it was: its counts cannot be compared.") from error
    if kept is None:
        raise Skip("The vault does not hold what became of the test records.")
    outcomes = Outcomes.of_arrays(kept)
    if card.errors is not None:
        probability = regression_errors.far(card.errors.counts, outcomes)
    elif card.language is not None:
        probability = perplexity.far(card.language.counts, outcomes)
    else:
        assert card.utility is not None
        probability = far(card.utility.counts, outcomes)
    if probability >= IMPROBABLE:
        return []
    return ["The counts on the card are not those of the vault with noise of the stated size."]


def _schema(files: Contents, read: list[Card]) -> Defects:
    """Whether there is a card that follows its schema; it is added to `read`, so that every check is of this one."""
    try:
        table = parse_json(files.read(bundle.CARD))
    except ValueError as error:
        return [f"card.json is not strict JSON: {error}."]
    validator = jsonschema.Draft202012Validator(schema())
    found = sorted(validator.iter_errors(table), key=lambda error: list(map(str, error.absolute_path)))
    defects = [_defect(error.absolute_path, _brief(error)) for error in found[:10]]
    if not defects:
        try:
            read.append(Card.model_validate(table))
        except ValidationError as error:  # what JSON Schema does not check, such as valid dates
            defects = [_defect(e["loc"], e["type"].replace("_", " ")) for e in error.errors(include_url=False)[:10]]
    return defects


def _defect(where: Iterable[str | int], what: str) -> str:
    return f"card.json, {'.'.join(map(str, where)) or 'as a whole'}: {what}."


def _brief(error: jsonschema.ValidationError) -> str:
    """What the schema requires there; the offending value may be megabytes long and is not repeated."""
    wanted = {"required": "a field is missing", "additionalProperties": "a field is unknown"}
    return wanted.get(str(error.validator), f"expected {error.validator} {str(error.validator_value)[:60]}")
