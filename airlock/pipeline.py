"""The whole pipeline: `plan_release` before any record is read, `make_release` from config to bundle.

The command line and notebooks call the same functions; each step passes one value to the next package.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from airlock import auditing, data, methods, nets, plugins
from airlock._version import VERSION
from airlock.auditing import paid_attacks
from airlock.auditing.audit_game import CONFIDENCE, PAIRS, SECONDS
from airlock.bundle import Bundle, Card, Dossier, Vault, booking, bundle, card, compression, dossier, export
from airlock.bundle.answering import recorded
from airlock.bundle.contents import TOKENIZER
from airlock.bundle.files import sweep
from airlock.bundle.packing import packing_of
from airlock.bundle.rendering import page, text
from airlock.bundle.replan import as_asked
from airlock.bundle.signing.keys import PublicKey, obtain_vault_key
from airlock.bundle.vault import ReleaseRecord
from airlock.bundle.verify import OUTCOMES, read_verified
from airlock.config import MINILM, TRANSFORMERS, ReleaseConfig, from_table, parse_toml
from airlock.data import Facts, Records, Split
from airlock.data.limits import MEMORY, Storage, check_room, memory_bytes
from airlock.errors import AirlockError, AirlockWarning, ConfigError, FormatError, Interrupted, Refused
from airlock.mechanisms import Randomness, Stream
from airlock.methods import Channel, Plan, Release
from airlock.methods.config_case import of_config
from airlock.methods.contract import TEACHER, NetworkArtefact
from airlock.methods.search import as_run
from airlock.training import PlainGradients, Recipe, Resident, Run, Shuffled, fit, outcomes_of
from airlock.training.devices import choose_device
from airlock.training.distributed import ALONE, Group
from airlock.training.front_ends.features import compute
from airlock.training.front_ends.front import front_end
from airlock.training.front_ends.public import FrontSettings
from airlock.training.loop import Progress
from airlock.training.outcomes import Outcomes

CARD, ATTACKS = "card", "attacks"  # streams of the noise on the card's figures
COURT_SECONDS = 10.0  # of the short court trial before every release with a user-supplied network
_SHORT_PAIRS, _SHORT_CONFIDENCE = 200, 0.999  # a true guarantee is refused at most once in a thousand releases
NOT_ATTACKED = "All attacks: they could not be made here."


@dataclass(frozen=True, repr=False)
class Outcome:
    """A finished release: the bundle on disk, which may leave, and what stays inside.

    Args:
        bundle: With its card.
        release: The values it was made from.
        dossier: What the reviewer inside reads.
        dossier_page: The path of its page in the vault.
        fingerprint: Of the vault's key, which signed the bundle.
        new_key: Whether that key was made for this release.
    """

    bundle: Bundle
    release: Release
    dossier: Dossier
    dossier_page: Path
    fingerprint: str
    new_key: bool

    def __repr__(self) -> str:
        return page.summary(self.bundle.card, self.bundle.folder)

    def _repr_html_(self) -> str:
        return page.in_notebook(page.summary(self.bundle.card, self.bundle.folder), page.render_html(self.bundle.card))


@dataclass(frozen=True)
class Preview:
    """A trial release, with the card and the dossier that it would have."""

    card: Card
    dossier: Dossier
    release: Release


def plan_release(config: ReleaseConfig, data_dir: Path | None = None) -> Plan:
    """What would be released and what it costs; reads no record."""
    channel, facts = _open(config, data_dir)
    return paid_attacks.planned(config, facts, channel.planned)


def plan_in_register(
    config: ReleaseConfig, data_dir: Path | None = None, vault: Path | None = None
) -> tuple[Plan, booking.Outlook | None]:
    """The plan, and what it would leave in the register of its data set, if there is one; reads no record."""
    channel, facts = _open(config, data_dir)
    plan = paid_attacks.planned(config, facts, channel.planned)
    return plan, booking.outlook(config, channel, plan, Vault.open(vault), _run_key(config, None))


def try_config(
    config: ReleaseConfig,
    stream: Stream,
    pairs: int = PAIRS,
    confidence: float = CONFIDENCE,
    seconds: float = SECONDS,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> tuple[str, auditing.Verdict]:
    """Try to refute this configuration's guarantee on synthetic records of the declared shape; reads no record.

    Args:
        config: What would be released.
        stream: The randomness of all runs.
        pairs: How many pairs of runs at most.
        confidence: Of the verdict.
        seconds: How long to run pairs at most.
        data_dir: Where named data sets are stored.
        progress: Called with a label, the pairs done and the pairs in all.

    Returns:
        CHANNEL/METHOD, and the verdict.

    Raises:
        Refused: Releases of this method cannot be made small enough for the court.
    """
    channel, facts = _open(config, data_dir)
    if methods.is_free(config):
        config = config.model_copy(update={"method": channel.method})
    return _named(channel), _judged(config, facts, stream, pairs, confidence, seconds, progress)


def _named(channel: Channel) -> str:
    return f"{channel.channel}/{channel.method}"


def _judged(
    config: ReleaseConfig, facts: Facts, stream: Stream, pairs: int, confidence: float, seconds: float,
    progress: Progress | None,
) -> auditing.Verdict:  # fmt: skip
    device = Run(device=choose_device(config.device))
    case = of_config(methods.build, paid_attacks.for_method(config), facts, device)
    return auditing.judge(case, stream, pairs, confidence, seconds, progress)


def _short_courts(
    config: ReleaseConfig, channel: Channel, facts: Facts, stream: Stream, seconds: float, progress: Progress | None
) -> tuple[dossier.CourtFinding, ...]:
    """A short trial of the configuration, or of each that a search leads to."""
    trials = (
        _short_court(one, facts, stream.child("court", place), seconds, progress)
        for place, one in enumerate(channel.tried(config))
    )
    return tuple(found for trial in trials for found in trial)


def _short_court(
    config: ReleaseConfig, facts: Facts, stream: Stream, seconds: float, progress: Progress | None
) -> tuple[dossier.CourtFinding, ...]:
    """A short trial of a configuration with a user-supplied network, before a record is read; none for built-in ones.

    Raises:
        Refused: The court refutes the configuration's guarantee.
    """
    if not (own_networks(config) and seconds > 0):
        return ()
    channel = methods.build(paid_attacks.for_method(config), facts)
    name, promised = _named(channel), channel.planned.guarantee
    try:
        found = _judged(config, facts, stream, _SHORT_PAIRS, _SHORT_CONFIDENCE, seconds, progress)
    except Interrupted:
        raise
    except (AirlockError, ValueError, ArithmeticError, LookupError, RuntimeError) as error:
        sentence = "Not tried: no release of this configuration could be made small enough for the court."
        return (dossier.no_court_finding(name, promised, sentence, str(error)),)
    if found.refuted:
        raise Refused(
            "a configuration that stands in court",
            found.sentence(name).rstrip("."),
            "One synthetic record shows more than the guarantee allows, so no bundle may state it. No record was read.",
            "Check what your network does outside its layers; for details run: airlock court --config FILE",
        )
    return (dossier.court_finding(name, found),)


def own_networks(config: ReleaseConfig) -> tuple[str, ...]:
    """The networks named by a configuration that are not built in: the user's own, and other packages'."""
    named = [config.net, *(config.settings.get(key) for key in ("teacher", "features", "front"))]
    return tuple(str(name) for name in named if nets.is_foreign(name))


def make_release(
    config: ReleaseConfig,
    out: Path,
    *,
    data_dir: Path | None = None,
    accept_unproven: bool = False,
    force: bool = False,
    resume: bool = False,
    again: bool = False,
    composes_with: Sequence[Path] = (),
    insecure_seed: int | None = None,
    vault: Path | None = None,
    followed: str = "",
    court_seconds: float = COURT_SECONDS,
    progress: Progress | None = None,
    group: Group = ALONE,
    workers: int = 0,
    engine: Literal["local", "ray"] = "local",
) -> Outcome:
    """Plan, load, release, audit, and write the bundle.

    Of several processes that train together, only the lead calls this; the others call `assist_release`.

    Args:
        config: What to release.
        out: The folder that becomes the bundle.
        data_dir: Where named data sets are stored.
        accept_unproven: Release by a method whose privacy is not proven.
        force: Replace an existing bundle.
        resume: Continue from the checkpoint of an interrupted run of the same config.
        again: Begin anew although there is an unfinished run of the same config, which spends again.
        composes_with: Bundles of earlier releases from the same data; the card gives the total.
        insecure_seed: Seed the privacy noise; for tests only, and the card says so.
        vault: Where what must not leave is kept.
        followed: What the release follows from, such as a comparison; for the dossier.
        court_seconds: Time limit of the court trial of a configuration with a user-supplied network; 0 skips it, and
            the dossier shows no trial.
        progress: Called with a label, the steps done and the steps in all.
        group: The processes that train together, from `training.distributed.joined`.
        workers: Processes that compute features, where features leave; 0 computes them in this one.
        engine: Where features are computed: on this machine, or on a Ray cluster.

    Raises:
        Refused: The method is not proven and `accept_unproven` is false; or the court refutes the configuration; or an
            unfinished run of the same config is in the vault, and neither `resume` nor `again` says what to do.
    """
    _require_lead(group)
    sweep(out)
    bundle.check_output(out, force=force)
    safe = Vault.open(vault)
    _check_unfinished(safe, _run_key(config, insecure_seed), resume=resume, again=again)
    others = tuple(read_verified(folder, safe).card for folder in composes_with)
    channel, facts = _open(config, data_dir)
    _require_proof(channel, accept_unproven)
    _require_one_process(channel, group)
    plan = paid_attacks.planned(config, facts, channel.planned)
    card.check_budget(config, plan)
    _require_export(channel)
    storage = _storage(channel, safe)
    with booking.book(
        config, channel, plan, safe, _run_key(config, insecure_seed),
        resume=resume, insecure=insecure_seed is not None, composes=bool(others),
    ) as booked:  # fmt: skip
        randomness = booked.randomness(config.seed, insecure_seed)
        trials = _short_courts(config, channel, facts, randomness.privacy, court_seconds, progress)
        signer = obtain_vault_key(safe)
        booked.start()
    group.send(b"started")  # nobody reads before the charge is on disk
    split = _load(config, channel, data_dir, storage, booked)
    run = Run(
        device=group.device or choose_device(config.device),
        progress=progress,
        checkpoint=safe.begin(_run_key(config, insecure_seed), partial(_keyed, split), resume=resume),
        resume=resume,
        group=group,
        workers=workers,
        engine=engine,
    )
    release, attacked = _attacked(config, channel, split, randomness, run, insecure_seed)
    run_key, config = _run_key(config, insecure_seed), channel.settled(config, release)
    release, paid = paid_attacks.attack(config, release, split, randomness.privacy.child(ATTACKS))
    small = compression.compress(release, split, str(config.settings.get("teacher", "auto")))
    report, forms, on_test = small or (None, {}, ())
    made = card.make(
        config, facts, release, randomness.privacy.child(CARD), attacks=paid, compression=report, others=others,
        register=booked.on_card(),
    )  # fmt: skip
    safe.store(made.release_id, {**release.secrets, OUTCOMES: release.utility.arrays()}, split.remarks)
    inside = dossier.make(made, release, attacked, smaller=on_test, remarks=split.remarks, followed=followed)
    inside = dossier.with_court(inside, trials)
    page_inside = page.keep_dossier(safe, inside)

    def leaves(files: Mapping[str, str]) -> None:
        booked.release(made)
        safe.record(_record(made, files))

    written = bundle.write(
        out, config, release, made, smaller=forms, signer=signer, force=force,
        record=leaves,
    )  # fmt: skip
    booked.forget()
    release.artefact.forget()
    whole = release.artefact.made_once or config.tune is not None
    forget = safe.forget_checkpoint if whole else safe.forget_records
    forget(run_key)
    return Outcome(written, release, inside, page_inside, signer.public.fingerprint, signer.new)


def tune_release(config: ReleaseConfig, out: Path, **how: Any) -> Outcome:
    """Search the settings in `[tune]` and release the best of a secret number of runs, which ε covers.

    Args:
        config: With a search.
        out: The folder that becomes the bundle.
        how: As for `make_release`, which makes such a search too.

    Raises:
        ConfigError: The config has no `[tune]`.
    """
    if config.tune is None:
        raise ConfigError(
            "a [tune] table in the config",
            "none",
            "It says which settings to search.",
            'For example: [tune.search] "settings.learning_rate" = [0.5, 1.0, 2.0]; or use airlock release.',
        )
    return make_release(config, out, **how)


def _record(made: Card, files: Mapping[str, str]) -> ReleaseRecord:
    """What the vault remembers of a release: a bundle that says otherwise is not this one."""
    return ReleaseRecord(
        release_id=made.release_id,
        channel=made.channel,
        method=made.method,
        interface=made.interface,
        files=dict(files),
    )


def preview(
    config: ReleaseConfig, vault: Path, data_dir: Path | None = None, progress: Progress | None = None
) -> Preview:
    """Make and attack a release for the data holder only, proven or not; nothing leaves, so no bundle is written.

    Args:
        config: What to preview.
        vault: A temporary folder, which the caller removes.
        data_dir: Where named data sets are stored.
        progress: Called with a label, the steps done and the steps in all.
    """
    channel, facts = _open(config, data_dir)
    card.check_budget(config, paid_attacks.planned(config, facts, channel.planned))
    split = _load(config, channel, data_dir, _storage(channel, Vault.open(vault)))
    folder = Vault.open(vault).checkpoint_folder(_run_key(config, None))
    run = Run(device=choose_device(config.device), progress=progress, checkpoint=folder)
    randomness = Randomness.make(config.seed)
    release, attacked = _attacked(config, channel, split, randomness, run)
    config = channel.settled(config, release)
    release, paid = paid_attacks.attack(config, release, split, randomness.privacy.child(ATTACKS))
    made = card.make(config, facts, release, randomness.privacy.child(CARD), attacks=paid)
    return Preview(made, dossier.make(made, release, attacked, remarks=split.remarks), release)


def _attacked(
    config: ReleaseConfig,
    channel: Channel,
    split: Split,
    randomness: Randomness,
    run: Run,
    insecure_seed: int | None = None,
) -> tuple[Release, auditing.Audit]:
    """A release, its secrets including the attack scores for the vault, and the findings of the attacks.

    Attacks depend on single records, so a failing attack must not decide whether there is a release.
    """
    release = _train(config, channel, split, randomness, run, insecure_seed)
    try:
        attacked, scores = auditing.run(release, split, config.split, config.seed, run)
    except Interrupted:
        raise
    except (AirlockError, ValueError, ArithmeticError, LookupError, RuntimeError) as error:
        tell_holder([f"The attacks could not be made: {error}"])
        attacked, scores = auditing.Audit((), (NOT_ATTACKED,)), {}
    return replace(release, secrets={**release.secrets, **scores}), attacked


@dataclass(frozen=True, repr=False)
class Audited:
    """A bundle after an audit, which does not change it.

    Args:
        bundle: As it leaves.
        dossier: With what was found; it stays inside.
        dossier_page: The path of its page in the vault.
    """

    bundle: Bundle
    dossier: Dossier
    dossier_page: Path

    def __repr__(self) -> str:
        return page.summary(self.bundle.card, self.bundle.folder)

    def _repr_html_(self) -> str:
        return page.in_notebook(page.summary(self.bundle.card, self.bundle.folder), page.render_html(self.bundle.card))

    @property
    def stated(self) -> float | None:
        """The guaranteed ε, or else the claimed one."""
        promise = self.bundle.card.guarantee
        if promise.epsilon is not None:
            return promise.epsilon
        return promise.claim.epsilon if promise.claim else None

    @property
    def refuted(self) -> bool:
        """Whether an attack shows more than the stated ε."""
        found = self.dossier.audit
        return self.stated is not None and (text.measured(found) > self.stated or found.worst_case_refutes)


def audit_bundle(
    folder: Path,
    settings: auditing.AuditSettings | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    data_dir: Path | None = None,
    net: str | None = None,
    seed: int = 0,
    device: str = "auto",
    resume: bool = False,
    signers: Sequence[PublicKey] = (),
    vault: Path | None = None,
    progress: Progress | None = None,
) -> Audited:
    """Run every applicable attack on a bundle; the vault gets a new dossier, the bundle is unchanged.

    Args:
        folder: The bundle; it must verify.
        settings: How hard to attack.
        overrides: Replace keys of the bundle's config, such as `data.source` where the records are the user's own.
        data_dir: Where named data sets are stored.
        net: The network's `package.module:function` if it is the user's own, or its name if it is another package's; it
            is imported.
        seed: Of the attacks.
        device: Where to compute.
        resume: Continue an interrupted audit.
        signers: If given, one of these keys must have signed the bundle.
        vault: Where the dossier, the scores of single records and unfinished work are kept.
        progress: Called with a label, the steps done and the steps in all.

    Raises:
        Refused: The bundle does not verify or lacks a required signature, or its config leads to code from elsewhere
            that the user does not name.
    """
    chosen, safe = settings or auditing.AuditSettings(), Vault.open(vault)
    auditing.open_attacks(chosen.attacks)  # an unknown one is reported before any work is done
    before = read_verified(folder, safe, signers=signers)
    card_before = before.card
    _require_network(card_before, chosen.attacks)
    whole, own = _repeats_search(card_before, chosen), _own_net(card_before, net)
    config = _config_of(before, {**(overrides or {}), **own}, named=net, whole=whole)
    packing, method = packing_of(card_before.artefact), methods.find(config)
    stayed = packing.kept_settings(method, lambda: safe.load(card_before.release_id))
    config = config if stayed is None else config.model_copy(update={"settings": stayed})
    channel, _ = _open(config, data_dir)
    _tell_of_memory(channel, "shadow models")
    split = _load(config, channel, data_dir)
    _require_same_data(card_before, split)
    run = Run(
        device=choose_device(device),
        progress=progress,
        checkpoint=safe.begin(f"{card_before.release_id}-audit", partial(_keyed, split), resume=resume),
        resume=resume,
    )
    leaving = card_before.leaving if card_before.interface is None else recorded(card_before, safe)[1]
    # Where the search is repeated, the user's network may be that of a candidate that lost.
    artefact = packing.reopen(before.files, leaving, card_before.details, None if whole and not own else net)
    given = auditing.Situation(
        method, lambda: safe.load(card_before.release_id), card_before.guarantee.delta, split, config.split, seed,
        chosen, run, channel, config.seed, card_before.tuning.search is not None,
    )  # fmt: skip
    found, scores = auditing.attack_artefact(artefact, given)
    teacher = _teacher(card_before, safe)
    beside, more = auditing.attack_quickly(*teacher, split, config.split, seed) if teacher else (None, {})
    scores = {**scores, **{f"{TEACHER}-{name}": value for name, value in more.items()}}
    safe.store(f"{card_before.release_id}-audit-{secrets.token_hex(4)}", scores)
    earlier = dossier.find(safe, card_before.release_id) or _new_dossier(card_before, safe, split)
    inside = dossier.with_audit(earlier, found, beside)
    page_inside = page.keep_dossier(safe, inside)
    safe.forget_checkpoint(f"{card_before.release_id}-audit")
    return Audited(before, inside, page_inside)


def _require_network(made: Card, attacks: Sequence[str]) -> None:
    if attacks and made.network is None:
        raise ConfigError(
            "a bundle of a network, for attacks of other packages",
            "one of answers" if made.interface else "one of features",
            "They score records with a released network.",
            "Leave --attack out.",
        )


def _new_dossier(made: Card, safe: Vault, split: Split) -> Dossier:
    """A dossier for a release whose vault is elsewhere or was emptied: without the figures that only the vault had."""
    try:
        kept_there = safe.load(made.release_id).get(OUTCOMES)
    except FormatError:
        kept_there = None
    nobody = np.empty(0, np.int64)
    found = Outcomes(nobody, nobody) if kept_there is None else Outcomes.of_arrays(kept_there)
    return dossier.of_card(made, found, remarks=split.remarks)


def _teacher(made: card.Card, safe: Vault) -> tuple[nn.Module, tuple[str, ...], float] | None:
    """A student's teacher from the vault, with its classes and δ; only networks that come with Airlock are made."""
    name = str(made.details.get(TEACHER, ""))
    if made.network is None or not (nets.is_built_in(name) or name == TRANSFORMERS + MINILM):
        return None
    try:
        kept_there = safe.load(made.release_id).get(TEACHER)
    except FormatError:  # it is another vault
        return None
    if kept_there is None:
        return None
    net = nets.create(name, made.network.input_shape, made.network.outputs, seed=0)
    net.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in kept_there.items()})
    return net.eval(), made.network.classes, made.guarantee.delta


def _own_net(made: Card, net: str | None) -> dict[str, object]:
    """The network that the user names, where the bundle's is not built in; shadow models, too, use it."""
    foreign = net is not None and made.network is not None and nets.is_foreign(made.network.name)
    return {"net": net} if foreign else {}


def _repeats_search(made: Card, chosen: auditing.AuditSettings) -> bool:
    """Whether shadow models repeat the search that a bundle came from.

    Raises:
        ConfigError: They should, and it came from none.
    """
    if chosen.like == "search" and made.tuning.search is None:
        raise ConfigError(
            "a bundle that came from a search, for --like search",
            "one of a single run",
            "There is no search to repeat.",
            "Use --like release.",
        )
    return chosen.like == "search"


def _config_of(made: Bundle, overrides: Mapping[str, object], *, named: str | None, whole: bool) -> ReleaseConfig:
    """The config that a bundle states, with what the user gives; it leads to no other code from elsewhere.

    Of a bundle that came from a search, the config of the run that won; with `whole`, that of the search, in which
    `named` may be the network of any candidate.
    """
    given = {"accountant": "auto", **overrides}
    table = parse_toml(made.files.read(bundle.CONFIG).decode("utf-8"), bundle.CONFIG)
    searched = made.card.tuning.search
    if searched is not None and not whole:
        table, given = as_run(table, searched.run_epsilon), {**given, "accountant": "rdp"}
    plugins.refuse_strangers(table, given if named is None else {**given, "net": named})
    try:
        found = as_asked(from_table(table, given), made.card)
        if found.data.person is not None and "data.person" not in overrides:
            raise ConfigError(
                "the column that says whose each record is",
                "no name of it in the bundle",
                "The release is for people, and a bundle never names their identifiers' column.",
                "Give it with --set data.person=COLUMN.",
            )
        if TOKENIZER in made.files.names and "data.tokenizer" not in overrides:
            found = found.model_copy(
                update={"data": found.data.model_copy(update={"tokenizer": str(made.folder / TOKENIZER)})}
            )
        return found
    except ConfigError as error:
        if "data.source" in str(error) and "data.source" not in overrides:
            raise ConfigError(
                "the records that this release came from",
                "no path to them in the bundle",
                "A bundle never says where private records are stored.",
                "Give it with --data.",
            ) from error
        raise


def _require_same_data(made: card.Card, split: Split) -> None:
    facts = split.facts
    said = made.data
    same = (said.shape, said.classes, said.records, said.people, said.target) == (
        facts.shape, facts.classes, facts.records, facts.people, facts.target,
    )  # fmt: skip
    if said.tokenizer != facts.tokenizer:
        raise ConfigError(
            "the tokenizer that the release was made with, as the card says",
            "another one",
            "Records would be others than those that were trained on.",
            "Leave data.tokenizer out: the bundle has its own.",
        )
    if (said.people is None, said.grouped) != (facts.people is None, facts.grouped):
        raise ConfigError(
            "people or records as the protected unit, as the card says",
            f"{facts.counted}",
            "They were put into parts, and membership is theirs.",
            "Name the column of the people's identifiers with data.person, and leave unit as it is.",
        )
    if not same and (made.data.shape, made.data.classes) == (facts.shape, facts.classes):
        raise ConfigError(
            f"data of {made.data.records:,} records, as the card says",
            f"{facts.records:,} declared or published",
            "Sizes are declared, not counted, and a subset of a named source has to declare its own.",
            f"If the records are the same, add --set data.records={made.data.records}.",
        )
    if not same:
        raise ConfigError(
            "the records that this release came from",
            "records of another shape or with other classes",
            "Membership could not be determined.",
            "Check --data and --data-dir.",
        )


def assist_release(
    config: ReleaseConfig,
    group: Group,
    *,
    data_dir: Path | None = None,
    accept_unproven: bool = False,
    insecure_seed: int | None = None,
    vault: Path | None = None,
) -> None:
    """Train together with the lead, which makes the release from the same arguments; leaves nothing behind."""
    channel, _ = _open(config, data_dir)
    _require_proof(channel, accept_unproven)
    _require_one_process(channel, group)
    storage = _storage(channel, Vault.open(vault))
    group.send(None)
    split = _load(config, channel, data_dir, storage)
    run = Run(device=group.device or choose_device(config.device), group=group)
    _train(config, channel, split, Randomness.make(config.seed, insecure_seed), run, insecure_seed)


def _storage(channel: Channel, safe: Vault) -> Storage:
    """Where the records of a release are held: by public figures, before one is read.

    Raises:
        OutputError: They do not fit into memory, nor on the disk of the vault.
    """
    if channel.facts.encoded_bytes <= memory_bytes():
        return MEMORY
    if not channel.reads_files:
        _tell_of_memory(channel, _named(channel))
        return MEMORY
    folder = safe.records_folder()
    check_room(folder, channel.facts.encoded_bytes)
    return Storage(folder)


def _tell_of_memory(channel: Channel, who: str) -> None:
    """Say that everything will be in memory, where that is a lot."""
    size = channel.facts.encoded_bytes
    if size > memory_bytes():
        warnings.warn(
            f"All records will be held in memory at once, by the declared figures {size / 1e9:,.1f} GB: {who} cannot "
            "train on a part of them at a time, as weights/gaussian does. Use a machine with more memory, or records "
            "in a smaller shape.",
            AirlockWarning,
            stacklevel=3,
        )


def _load(
    config: ReleaseConfig,
    channel: Channel,
    data_dir: Path | None,
    storage: Storage = MEMORY,
    booked: booking.Booking | None = None,
) -> Split:
    """The records, plus a public set if the channel asks for one; remarks about them are shown to the data holder."""
    split = data.load(config, data_dir, storage)
    split = split if booked is None else booked.guarded(config, split)
    split = data.add_public(split, channel.public, data_dir) if channel.public else split
    tell_holder(split.remarks)
    return split


def tell_holder(remarks: Sequence[str]) -> None:
    """Show remarks about the records to the data holder as warnings: on this terminal, and nowhere that leaves.

    A filter that turns warnings into errors is bypassed: otherwise the records would decide whether there is a release.
    """
    for remark in remarks:
        try:
            warnings.warn(remark, AirlockWarning, stacklevel=3)
        except AirlockWarning:
            with warnings.catch_warnings():
                warnings.simplefilter("always", AirlockWarning)
                warnings.warn(remark, AirlockWarning, stacklevel=3)


def _train(
    config: ReleaseConfig,
    channel: Channel,
    split: Split,
    randomness: Randomness,
    run: Run,
    insecure_seed: int | None = None,
) -> Release:
    """The release of one process, or of several after checking that they have the same task and the same records."""
    group = run.group
    task = config.model_dump(mode="json", exclude={"data": {"source", "test"}})
    group.require_same(
        "config and version",
        lambda: json.dumps([task, insecure_seed, VERSION, torch.__version__], sort_keys=True).encode(),
        "They would not train one network.",
    )
    group.require_same(
        "private records",
        lambda: _fingerprint(split),
        "A record at a different position in another process could enter a step twice.",
    )
    release = channel.release(split, randomness, run)
    group.leave()
    if group.world == 1:
        return release
    assumptions = (*release.guarantee.assumptions, group.assumption)
    return replace(release, guarantee=replace(release.guarantee, assumptions=assumptions))


def _fingerprint(split: Split) -> bytes:
    """A hash of the private records, in order; for comparing processes, never stored."""
    total = hashlib.sha256()
    _feed(total.update, split.private)
    return total.digest()


def _keyed(split: Split, key: bytes) -> str:
    """A keyed hash of all records, in order: a lot is drawn by places, so another order is another run."""
    total = hmac.new(key, digestmod="sha256")
    beside = [] if split.beside is None else [split.beside.records]
    for part in (split.private, split.public, split.test, split.holdout, *beside):
        _feed(total.update, part)
    return total.hexdigest()


def _feed(update: Callable[[Any], object], records: Records) -> None:
    x, y = np.ascontiguousarray(records.x), np.ascontiguousarray(records.y)
    update(repr((x.shape, x.dtype.str, y.dtype.str, records.person is not None)).encode())
    for array in (x, y) if records.person is None else (x, y, np.ascontiguousarray(records.person)):
        update(array.view(np.uint8).data if array.size else b"")


@dataclass(frozen=True)
class Open:
    """Results of a model trained without privacy: for comparison, never for release.

    Args:
        utility: Measured on the test records.
        audit: What the attacks of every release found.
        parameters: Of the network.
    """

    utility: Outcomes
    audit: auditing.Audit
    parameters: int

    @property
    def accuracy(self) -> float:
        """On the test records."""
        return self.utility.accuracy

    @property
    def auc(self) -> float:
        """Of the loss-threshold attack; one half where there are too few records for it."""
        return self.audit.attacks[0].value if self.audit.attacks else 0.5


OPENLY = Recipe(steps=600, optimiser="adam", learning_rate=2e-3)


def train_openly(
    config: ReleaseConfig,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    *,
    recipe: Recipe = OPENLY,
    batch_size: int = 64,
    part: Literal["private", "public"] = "private",
) -> Open:
    """Train the configured network on the private records without any privacy, and attack it.

    The result reveals information about the private records and is for the data holder only. With `part = "public"` the
    network learns from the public records alone, and is not attacked: it has seen no private record.
    """
    facts = data.describe(config, data_dir)
    if facts.task != "classification":
        raise ConfigError(
            "classes, for a model without privacy",
            "a number to predict" if facts.task == "regression" else "the next token to predict",
            "It is there to be compared with, and comparisons are of classes.",
        )
    split = data.load(config, data_dir)
    run = Run(device=choose_device(config.device), progress=progress)
    batches = Shuffled(batch_size, config.seed)
    records = split.private if part == "private" else split.public
    net: nn.Module
    if facts.vocabulary is not None and config.net == "auto":  # what is trained of texts is a head on public features
        net = front_end("auto", facts, config.seed, FrontSettings()).ready(None, run)
        learnt: nn.Module = nn.Sequential(net.centre, net.head)
        records = Records(_features(net.front, records, run), records.y, records.person)
    else:
        name = nets.default_name(facts.shape, facts.vocabulary) if config.net == "auto" else config.net
        learnt = net = nets.create(name, facts.shape, len(facts.classes), config.seed)
    fit(learnt, Resident(records, run.device), batches, PlainGradients(), recipe, config.seed, run,
        label=f"training on {part} records without noise")  # fmt: skip
    net = net.cpu().eval()
    found = auditing.Audit((), ())
    if part == "private":
        found, _ = auditing.attack_quickly(net, facts.classes, config.delta, split, config.split, config.seed)
    return Open(outcomes_of(net, split.test), found, sum(p.numel() for p in net.parameters()))


def _features(front: nn.Module, records: Records, run: Run) -> NDArray[np.float32]:
    blocks = [block.float().cpu().numpy() for _, block in compute(front, records, run, "features")]
    return np.concatenate(blocks)


def _open(config: ReleaseConfig, data_dir: Path | None) -> tuple[Channel, Facts]:
    methods.find(config)  # an unknown channel is reported before the data is looked for
    methods.current_name(f"{config.channel}/{config.method}")
    facts = data.describe(config, data_dir)
    if config.delta * facts.expected("private", config.split) >= 1:
        warnings.warn(
            f"delta = {config.delta:g} is not smaller than one over the number of private {facts.counted}: a mechanism "
            f"that publishes one {facts.unit} outright would pass. Take a smaller delta.",
            AirlockWarning,
            stacklevel=3,
        )
    channel = methods.build(paid_attacks.for_method(config), facts)
    if channel.public:
        data.describe_public(channel.public, config, facts, data_dir)
    return channel, facts


def _require_proof(channel: Channel, accepted: bool) -> None:
    if channel.status == "proven" or accepted:
        return
    raise Refused(
        f"a proven guarantee, or --accept-unproven, for {channel.channel}/{channel.method}",
        f"status '{channel.status}'",
        channel.unproven,
        f'Take method = "{channel.sound_method}", which is proven.' if channel.sound_method else "",
    )


def _check_unfinished(safe: Vault, run_key: str, *, resume: bool, again: bool) -> None:
    """Ask, before anything is paid, what becomes of an unfinished run of the same config; looks at no record.

    Raises:
        ConfigError: Both answers are given.
        Refused: There is such a run, and none is.
    """
    if resume and again:
        raise ConfigError("either --resume or --again", "both", "One goes on, the other begins anew.", "Name one.")
    if not (resume or again) and safe.is_unfinished(run_key):
        raise Refused(
            "no unfinished run of the same config in the vault",
            "one that was interrupted, or is still running",
            "A new run spends again: a register charges both, and without one nothing counts the first. Whoever begins "
            "anew until a run pleases makes a choice that nothing pays for.",
            "Continue it: --resume, in Python resume=True. Or begin anew: --again, in Python again=True.",
        )


def _require_lead(group: Group) -> None:
    if not group.lead:
        raise ConfigError(
            "the lead of the processes to make the release",
            f"process {group.rank}",
            "Only one may write the bundle.",
            "Call assist_release in all others.",
        )


def _require_export(channel: Channel) -> None:
    """Write a network of the user's own once before anything is spent: one that cannot be would be trained for nothing.

    Raises:
        NetError: It cannot be exported.
    """
    name, make = getattr(channel, "net_name", None), getattr(channel, "net", None)
    if channel.channel == "weights" and nets.is_foreign(name) and callable(make):
        export.to_onnx(NetworkArtefact.leaving(make(), str(name), channel.facts))


def _require_one_process(channel: Channel, group: Group) -> None:
    if group.world > 1 and not channel.distributed:
        raise ConfigError(
            f"one process for {channel.channel}/{channel.method}",
            f"{group.world}",
            "This method cannot be distributed over several processes.",
            "Start it without torchrun, or take another method.",
        )


def _run_key(config: ReleaseConfig, insecure_seed: int | None) -> str:
    """Identifies a run for its checkpoint: the same config finds it again, whoever receives it."""
    table = config.model_dump(mode="json", exclude={*bundle.NEVER_IN_A_BUNDLE, "about"})
    if config.net == nets.MEMORY:
        table["net"] = nets.held_mark()
    if config.task == "classification":
        del table["task"], table["data"]["target"]  # an unfinished run from before there were targets is found again
    if methods.is_free(config):
        table["method"] = "chosen"  # a run from before there was a choice is another one
    asked = json.dumps([table, insecure_seed], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()[:24]
