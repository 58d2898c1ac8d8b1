"""The Python API for scripts and notebooks: a function for every command of which a script has use.

Before a release `plan`, `advise` and `court`, which read no record; `release`, `tune`, `compare`; of what was released
`show`, `verify`, `gate`, `audit` and `load`.

A config may be a file, a mapping or keyword arguments, with the same keys as on the command line. Results display
themselves: in a notebook as the card or the page, elsewhere as one line.

>>> import airlock
>>> airlock.release(data="digits", epsilon=3.0, delta=1e-4)
Traceback (most recent call last):
airlock.errors.ConfigError: Expected 'channel' in the config, found none. Add a line 'channel = ...'.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

from airlock import auditing, methods, nets, pipeline
from airlock import config as configs
from airlock.auditing import AuditSettings, OneRunVerdict, Verdict
from airlock.auditing.audit_game import CONFIDENCE, PAIRS, SECONDS, check_claim
from airlock.auditing.one_run_audit import check_count
from airlock.bundle import Bundle, Card, Dossier, Policy, Vault, Verification, Weighing, bundle, load_policy
from airlock.bundle import dossier as dossiers
from airlock.bundle.files import replace_file
from airlock.bundle.receiving.model import ReleasedModel
from airlock.bundle.receiving.model import load as load_model
from airlock.bundle.rendering import page
from airlock.bundle.signing.keys import PublicKey, read_public
from airlock.bundle.verify import verify as verify_bundle
from airlock.bundle.verify import weigh_folder
from airlock.comparison import Advice, Comparison, settings
from airlock.comparison.advise import advise as choose
from airlock.comparison.advise import as_toml, release_for
from airlock.comparison.paid import as_search
from airlock.comparison.run import Moment
from airlock.comparison.run import compare as run_comparison
from airlock.comparison.settings import CompareConfig
from airlock.config import ReleaseConfig, parse
from airlock.data import memory
from airlock.errors import ConfigError, OutputError, visible
from airlock.mechanisms import Randomness
from airlock.methods import Plan
from airlock.nets import MEMORY, create
from airlock.pipeline import Audited, Outcome

if TYPE_CHECKING:
    from airlock.bundle.platforms.hub import Hub
    from airlock.bundle.schema import NetworkSummary
    from airlock.config import Frozen

Place = Path | str
Files = dict[str, bytes]  # of a bundle, by name
Released = Outcome | Audited | Bundle | Place
M = TypeVar("M", bound="Frozen")


def plan(
    config: ReleaseConfig | Mapping[str, object] | Place | None = None, *, data_dir: Place | None = None, **keys: object
) -> Plan:
    """What would be released and what it costs, before any record is read. The same as `airlock plan`.

    >>> import airlock
    >>> planned = airlock.plan(channel="weights", data="digits", epsilon=1.0, delta=1e-4)
    >>> planned.guarantee.status, planned.guarantee.epsilon <= 1.0
    ('proven', True)

    Args:
        config: A TOML file, a mapping or a config; may be left out if `keys` are complete.
        data_dir: Where named data sets are stored.
        keys: Keys of the config, which replace those of `config`; records in memory as for `release`.

    Raises:
        ConfigError: The config cannot be used, or no noise meets (ε, δ).
    """
    keys, records = _taken(config, keys)
    with records:
        made = _config(ReleaseConfig, config, keys, configs.load, configs.from_table)
        return pipeline.plan_release(made, _path(data_dir))


def advise(
    config: CompareConfig | Mapping[str, object] | Place | None = None,
    *,
    data_dir: Place | None = None,
    write: Place | None = None,
    force: bool = False,
    **keys: object,
) -> Advice:
    """Rank all methods for a need, before any record is read. The same as `airlock advise`.

    >>> import airlock
    >>> found = airlock.advise(data="digits", epsilon=1.0, receives="white-box", write="advised.toml")
    >>> found.method == found.ranking[0].method, found.measured
    (True, False)
    >>> airlock.plan("advised.toml").guarantee.epsilon <= 1.0
    True

    Args:
        config: As for `compare`; may be left out if `keys` are complete.
        data_dir: Where named data sets are stored.
        write: A new file for the config of the first choice.
        force: Replace an existing file.
        keys: Keys of the config, `epsilon` (1 if left out) and `delta` (1e-5), and what the release is for:
            `receives="white-box"`, `runs_on="phone"`, `queries=1000`, `public=True`. `data` may be records in memory.

    Raises:
        ConfigError: Too little is declared about the data.
        Refused: A config should be written, and no method is recommended.
    """
    keys, records = _taken(config, keys)
    needed = {f"need.{key}": keys.pop(key) for key in ("receives", "runs_on", "queries", "public") if key in keys}
    if "epsilon" in keys:
        keys["epsilons"] = [keys.pop("epsilon")]
    if not isinstance(config, (str, Path, CompareConfig)):
        keys = {"epsilons": [1.0], "delta": 1e-5, **(config or {}), **keys}
        config = None
    with records:
        asked = _config(CompareConfig, config, {**keys, **needed}, settings.load, settings.from_table)
        if write is not None and Path(write).exists() and not force:
            raise OutputError(
                "a new file for the config", f"{write}, which exists", do="Name another, or pass force=True."
            )
        found = choose(asked, _path(data_dir))
        if write is not None:
            replace_file(Path(write), as_toml(release_for(asked, found, _path(data_dir)), found.sentence))
        return found


@overload
def court(name: str, *, one_run: Literal[True], **how: Any) -> OneRunVerdict: ...
@overload
def court(name: str | None = None, *, config: Any = None, one_run: Literal[False] = False, **how: Any) -> Verdict: ...
def court(
    name: str | None = None,
    *,
    config: ReleaseConfig | Mapping[str, object] | Place | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    data_dir: Place | None = None,
    pairs: int = PAIRS,
    confidence: float = CONFIDENCE,
    seconds: float = SECONDS,
    one_run: bool = False,
    people: bool = False,
    canaries: int = 1000,
    seed: int | None = None,
    **keys: object,
) -> Verdict | OneRunVerdict:
    """Try to refute a method's claim, or that of one configuration. The same as `airlock court`; reads no record.

    >>> import airlock
    >>> verdict = airlock.court("weights/gaussian", pairs=200, seconds=60)
    >>> verdict.refuted, verdict.pairs
    (False, 200)

    Args:
        name: The method, as CHANNEL/METHOD.
        config: Instead of a method, exactly this configuration, with its network, on made-up records.
        epsilon: The claimed ε, 1 by default; with `config`, in place of its own.
        delta: The claimed δ, 1e-5 by default; with `config`, in place of its own.
        data_dir: Where named data sets are stored.
        pairs: How many pairs of runs at most.
        confidence: Of the verdict.
        seconds: How long to run pairs at most.
        one_run: One whole release with many canaries instead of many short runs; weaker.
        people: Add or remove people with many records instead of single records.
        canaries: With `one_run`: how many, each included or not by a coin flip.
        seed: Seeds all randomness, for a reproducible verdict.
        keys: Keys of the configuration, which replace those of `config`.

    Raises:
        ConfigError: Neither a method nor a configuration is named, or both are.
        Refused: The method has no case for the court.
    """
    configured = config is not None or bool(keys)
    if configured == (name is not None) or (configured and (one_run or people)):
        raise ConfigError(
            "a method's name, or a configuration alone",
            "neither" if not configured and name is None else "both, or one_run or people beside a configuration",
            "A configuration names its method, and whom it protects.",
        )
    stream = Randomness.make(0, insecure_seed=seed).privacy
    with _bar() as progress:
        if name is None:
            claimed = {"epsilon": epsilon, "delta": delta}
            keys |= {key: value for key, value in claimed.items() if value is not None}
            keys, records = _taken(config, keys)
            with records:
                made = _config(ReleaseConfig, config, keys, configs.load, configs.from_table)
                return pipeline.try_config(made, stream, pairs, confidence, seconds, _path(data_dir), progress)[1]
        name = methods.current_name(name)
        epsilon, delta = 1.0 if epsilon is None else epsilon, 1e-5 if delta is None else delta
        check_claim(epsilon, delta)
        if one_run:
            check_count(canaries)
            made_up = methods.open_canaries(name, epsilon, delta, canaries, people)
            return auditing.judge_one_run(made_up, stream, confidence, progress)
        case = methods.open_case(name, epsilon, delta, people)
        return auditing.judge(case, stream, pairs, confidence, seconds, progress)


def release(
    config: ReleaseConfig | Mapping[str, object] | Place | None = None,
    out: Place = "bundle",
    *,
    data_dir: Place | None = None,
    accept_unproven: bool = False,
    force: bool = False,
    resume: bool = False,
    again: bool = False,
    composes_with: Sequence[Place] = (),
    insecure_seed: int | None = None,
    vault: Place | None = None,
    court_seconds: float = pipeline.COURT_SECONDS,
    **keys: object,
) -> Outcome:
    """Make a release and write its bundle: train, attack, pack. The same as `airlock release`.

    >>> import airlock
    >>> made = airlock.release(
    ...     channel="weights", data="digits", epsilon=3.0, delta=1e-4, net="linear", settings={"steps": 2}, out="one"
    ... )
    >>> made.bundle.card.verdict, made.bundle.card.guarantee.epsilon <= 3.0
    ('proven', True)
    >>> made  # doctest: +ELLIPSIS
    weights/gaussian on digits: Proven, but weak: ... are right. In .../one.
    >>> model = airlock.load("one")
    >>> model.schema.kind, model.schema.shape
    ('image', (1, 8, 8))
    >>> import numpy as np
    >>> blank = np.zeros((2, 8, 8), np.uint8)
    >>> len(model.predict(blank)), model.predict_proba(blank).shape
    (2, (2, 10))

    Args:
        config: A TOML file, a mapping or a config; may be left out if `keys` are complete.
        out: The folder that becomes the bundle.
        data_dir: Where named data sets are stored.
        accept_unproven: Release by a method whose privacy is not proven.
        force: Replace an existing bundle.
        resume: Continue from the checkpoint of an interrupted run of the same config.
        again: Begin anew although there is an unfinished run of the same config, which spends again.
        composes_with: Bundles of earlier releases from the same data; the card gives the total.
        insecure_seed: Seed the privacy noise; for tests only, and the card says so.
        vault: Where what must not leave is kept.
        court_seconds: The longest time the court tests a network of your own, before a record is read.
        keys: Keys of the config, which replace those of `config`: `epsilon=1.0`, `settings={"steps": 50}`. `data` may
            be a frame (pandas, polars, Arrow) or arrays (x, y) or (x, y, person); keys of the table [data] may then
            stand beside it: `data=frame, label="ill", classes=["no", "yes"], records=2000, columns={...}`.

    Raises:
        Refused: The method is not proven and `accept_unproven` is false.
    """
    keys, records = _taken(config, keys)
    with records, _bar() as progress:
        made = _config(ReleaseConfig, config, keys, configs.load, configs.from_table)
        return pipeline.make_release(
            made,
            Path(out),
            data_dir=_path(data_dir),
            accept_unproven=accept_unproven,
            force=force,
            resume=resume,
            again=again,
            composes_with=[Path(place) for place in composes_with],
            insecure_seed=insecure_seed,
            vault=_path(vault),
            court_seconds=court_seconds,
            progress=progress,
        )


_ARGUMENTS = frozenset({"channel", "method", "epsilon", "delta", "net", "settings"})
_OF_DATA_BESIDE = frozenset({"name", "records_per_person"})


def further(config: Mapping[str, object] | None) -> tuple[dict[str, object], dict[str, object]]:
    """Keys of a config beside those that a front door has arguments for, and such keys of [data].

    Raises:
        ConfigError: One of them is an argument, so that there would be two answers.
    """
    table = dict(config or {})
    beside = table.pop("data", {})
    if not isinstance(beside, Mapping):
        raise ConfigError("a table as config['data']", type(beside).__name__, do="The records are an argument.")
    twice = [*sorted(_ARGUMENTS & table.keys()), *(f"data.{key}" for key in beside if key not in _OF_DATA_BESIDE)]
    if twice:
        raise ConfigError(
            "no key in `config` that has an argument of its own",
            f"'{twice[0]}'",
            "There would be two answers.",
            "Pass the argument instead.",
        )
    return table, dict(beside)


@contextlib.contextmanager
def made_aside(table: Mapping[str, object], out: Place | None = None, **how: Any) -> Iterator[tuple[Outcome, Files]]:
    """Make a release whose bundle stays in memory until somebody puts it at its place (`bundle.write_files`).

    Args:
        table: Its config.
        out: A folder for the bundle all the same; a temporary one, which goes when the block ends, if omitted.
        how: As for `release`.
    """
    with tempfile.TemporaryDirectory() as aside:
        made = release(table, Path(aside) / "bundle" if out is None else out, **how)
        yield made, {file.name: file.read_bytes() for file in sorted(made.bundle.folder.iterdir())}


def tune(
    config: ReleaseConfig | Mapping[str, object] | Place | None = None,
    out: Place = "bundle",
    *,
    data_dir: Place | None = None,
    force: bool = False,
    resume: bool = False,
    again: bool = False,
    composes_with: Sequence[Place] = (),
    insecure_seed: int | None = None,
    vault: Place | None = None,
    **keys: object,
) -> Outcome:
    """Search declared settings and release the best of a secret number of runs. The same as `airlock tune`.

    ε covers the search: `tune={"mean": 10, "search": {"settings.learning_rate": [0.5, 1.0, 2.0]}}`.

    Args:
        config: A TOML file, a mapping or a config; may be left out if `keys` are complete.
        out: The folder that becomes the bundle.
        data_dir: Where named data sets are stored.
        force: Replace an existing bundle.
        resume: Continue an interrupted search of the same config.
        again: Begin anew although there is an unfinished search of the same config, which spends again.
        composes_with: Bundles of earlier releases from the same data; the card gives the total.
        insecure_seed: Seed the privacy noise; for tests only, and the card says so.
        vault: Where what must not leave is kept.
        keys: Keys of the config, which replace those of `config`.

    Raises:
        ConfigError: The config has no search, or one that (ε, δ) cannot pay for.
    """
    keys, records = _taken(config, keys)
    with records, _bar() as progress:
        made = _config(ReleaseConfig, config, keys, configs.load, configs.from_table)
        return pipeline.tune_release(
            made,
            Path(out),
            data_dir=_path(data_dir),
            force=force,
            resume=resume,
            again=again,
            composes_with=[Path(place) for place in composes_with],
            insecure_seed=insecure_seed,
            vault=_path(vault),
            progress=progress,
        )


@dataclass(frozen=True, repr=False)
class ShownBundle:
    """A bundle's card, and the dossier if it was asked for: a notebook shows the page of the latter, else the card's.

    Args:
        folder: The bundle.
        card: Which may leave.
        dossier: Which stays inside; None if it was not asked for.
    """

    folder: Path
    card: Card
    dossier: Dossier | None = None

    def __repr__(self) -> str:
        return page.summary(self.card, self.folder)

    def _repr_html_(self) -> str:
        whole = page.render_html(self.card) if self.dossier is None else page.render_dossier(self.dossier)
        return page.in_notebook(page.summary(self.card, self.folder), whole)


def show(released: Released, *, dossier: bool = False, vault: Place | None = None) -> ShownBundle:
    """Read a bundle's card, or its dossier, which stays inside. The same as `airlock show`.

    Whether a card can be believed is another question: `verify`.

    >>> import airlock
    >>> airlock.show("one")  # doctest: +ELLIPSIS
    weights/gaussian on digits: Proven, but weak: ... are right. In .../one.
    >>> airlock.show("one", dossier=True).dossier.utility.correct > 0
    True

    Args:
        released: What was released, or its folder.
        dossier: The dossier too, from the vault.
        vault: Where it is kept.

    Raises:
        FormatError: There is no card of this format, or the vault has no dossier of it.
    """
    found = bundle.read(_folder(released))
    inside = dossiers.read(Vault.open(_path(vault)), found.card.release_id) if dossier else None
    return ShownBundle(found.folder, found.card, inside)


def verify(
    released: Released,
    *,
    net: str | nn.Module | None = None,
    gated: bool = False,
    given: Mapping[str, object] | None = None,
    signers: Sequence[PublicKey | Place] = (),
    approvers: Sequence[PublicKey | Place] = (),
    policy: Policy | Place | None = None,
    vault: Place | None = None,
) -> Verification:
    """Check a bundle: who signed it, files, card, ε, plan and models. The same as `airlock verify`.

    >>> import airlock
    >>> found = airlock.verify("one")
    >>> found.ok, [check.name for check in found.checks if check.outcome == "failed"]
    (True, [])

    Args:
        released: What was released, or its folder.
        net: The network, if it is your own: `package.module:function`, which is imported, or the network itself.
        gated: Also fail if an attack refutes the stated ε, or a required attack was not made.
        given: Further names of code from elsewhere that the config leads to, by dotted key; they are imported.
        signers: If given, one of these public keys, or of those in these files (PEM), must have signed the bundle.
        approvers: If given, a reviewer must have approved it with one of these.
        policy: If given, the bundle must keep its rules.
        vault: The vault whose files must not be in it.

    Raises:
        FormatError: There is no such folder; any other problem is a failed check.
    """
    named = {} if net is None else {"net": MEMORY if isinstance(net, nn.Module) else net}

    def make(network: NetworkSummary) -> nn.Module:
        return create(named["net"], network.input_shape, network.outputs, seed=0)

    with _held(net):
        return verify_bundle(
            _folder(released),
            Vault.open(_path(vault)),
            make if named else None,
            gated=gated,
            given={**(given or {}), **named},
            signers=_public(signers),
            approvers=_public(approvers),
            policy=_policy(policy),
        )


def gate(
    released: Released,
    *,
    signers: Sequence[PublicKey | Place] = (),
    approvers: Sequence[PublicKey | Place] = (),
    policy: Policy | Place | None = None,
    vault: Place | None = None,
) -> Weighing:
    """Weigh a release: reasons to reject it, for caution, and to release it. The same as `airlock gate`.

    >>> import airlock
    >>> found = airlock.gate("one")
    >>> found.open == (not found.reject)
    True
    >>> "The bundle verifies: its files, its card and its ε agree." in found.release
    True

    Args:
        released: What was released, or its folder.
        signers: If given, one of these public keys, or of those in these files (PEM), must have signed the bundle.
        approvers: If given, a reviewer must have approved it with one of these.
        policy: What your house lets out; the default policy if left out.
        vault: Where the dossier is kept.
    """
    found, _, _ = weigh_folder(
        _folder(released),
        Vault.open(_path(vault)),
        signers=_public(signers),
        approvers=_public(approvers),
        policy=_policy(policy),
    )
    return found


def audit(
    bundle: Outcome | Audited | Bundle | Place,
    *,
    data: object = None,
    person: str | None = None,
    data_dir: Place | None = None,
    net: str | nn.Module | None = None,
    seed: int = 0,
    device: str = "auto",
    resume: bool = False,
    signers: Sequence[PublicKey | Place] = (),
    vault: Place | None = None,
    **how: object,
) -> Audited:
    """Run every applicable attack on a bundle. The same as `airlock audit`.

    The findings are in the dossier, which stays in the vault; the bundle is unchanged.

    Args:
        bundle: What was released, or its folder.
        data: The records that it came from, if they are your own or another package's source: a bundle never says where
            they are stored. A path, a name, or the frame or arrays in memory.
        person: The column that says whose they are, if it is a release for people: a bundle never names that either.
        data_dir: Where named data sets are stored.
        net: The network's `package.module:function` if it is your own, or its name if it is another package's; it is
            imported. Or the network itself, with its initial weights, if it was in memory.
        seed: Of the attacks.
        device: Where to compute.
        resume: Continue an interrupted audit.
        signers: If given, one of these public keys, or of those in these files (PEM), must have signed the bundle.
        vault: Where the dossier, the scores of single records and unfinished work are kept.
        how: How hard to attack, as in `AuditSettings`: `shadows=8`, `epochs=5`, `attacks=["NAME"]`.

    Raises:
        Refused: The bundle does not verify, or lacks a required signature.
    """
    inside = memory.is_records(data)
    with memory.held(data) if inside else contextlib.nullcontext(), _held(net), _bar() as progress:
        return pipeline.audit_bundle(
            _folder(bundle),
            parse(AuditSettings, how, "audit"),
            overrides={
                **({} if data is None else {"data.source": memory.SOURCE if inside else _placed(str(data))}),
                **({} if person is None else {"data.person": person}),
            },
            data_dir=_path(data_dir),
            net=MEMORY if isinstance(net, nn.Module) else net,
            seed=seed,
            device=device,
            resume=resume,
            signers=_public(signers),
            vault=_path(vault),
            progress=progress,
        )


def load(
    bundle: Outcome | Audited | Bundle | Place,
    *,
    signers: Sequence[PublicKey | Place] = (),
    approvers: Sequence[PublicKey | Place] = (),
    vault: Place | None = None,
) -> ReleasedModel:
    """Open a bundle with a network and ask it with raw rows. The same as `airlock predict`.

    The bundle is verified first, and what is used is what was verified. Rows of a table are a frame, a list of dicts or
    an array with the columns in their declared order; they are encoded as `model.schema` says.

    Args:
        bundle: What was released, or its folder.
        signers: If given, one of these public keys, or of those in these files (PEM), must have signed the bundle.
        approvers: If given, a reviewer must have approved it with one of these.
        vault: The vault whose files must not be in it; your default vault if left out.

    Raises:
        Refused: The bundle does not verify, lacks a required signature, was rejected, or holds no network.
    """
    return load_model(
        _folder(bundle),
        None if vault is None else Vault.open(Path(vault)),
        signers=_public(signers),
        approvers=_public(approvers),
    )


def push_to_hub(
    bundle: Outcome | Audited | Bundle | Place,
    repo: str,
    *,
    license: str = "other",
    license_name: str | None = None,
    license_link: str | None = None,
    private: bool = True,
    message: str | None = None,
    signers: Sequence[PublicKey | Place] = (),
    approvers: Sequence[PublicKey | Place] = (),
    vault: Place | None = None,
    api: Hub | None = None,
) -> str:
    """Upload a bundle with a network to the Hugging Face Hub; returns the address of the commit.

    The same as `airlock export --as hub --push`. The bundle is verified first, and what is uploaded is what was
    verified: a model card, the weights as safetensors, and the bundle, unchanged. Nothing of the vault is.

    Args:
        bundle: What was released, or its folder.
        repo: OWNER/NAME; made if it is not there.
        license: An identifier of the Hub, such as "apache-2.0".
        license_name: The name of another license, with "other".
        license_link: Where that one is.
        private: Whether a new repository is private.
        message: Of the commit.
        signers: If given, one of these public keys, or of those in these files (PEM), must have signed the bundle.
        approvers: If given, a reviewer must have approved it with one of these.
        vault: The vault whose files must not be in it; your default vault if left out.
        api: A `huggingface_hub.HfApi` with a token or an address of its own; your login if left out.

    Raises:
        Refused: The bundle does not verify, lacks a signature, was rejected or refuted, or holds no network.
        OutputError: The Hub did not take it.
    """
    from airlock.bundle.platforms import hub, open_for_others

    said = {"license": license, "license_name": license_name, "license_link": license_link}
    found = open_for_others(
        _folder(bundle),
        None if vault is None else Vault.open(Path(vault)),
        signers=_public(signers),
        approvers=_public(approvers),
    )
    known = {key: value for key, value in said.items() if value is not None}
    return hub.push(found, repo, known, private=private, message=message, api=api)


def compare(
    config: CompareConfig | Mapping[str, object] | Place | None = None,
    out: Place = "comparison",
    *,
    data_dir: Place | None = None,
    quick: bool = False,
    jobs: int = 1,
    minutes: float | None = None,
    engine: Literal["local", "ray"] = "local",
    gpus: float | None = None,
    **keys: object,
) -> Comparison:
    """Run every applicable method on the same records and recommend one. The same as `airlock compare`.

    The result is computed from the records and not covered by any ε: keep it inside. A second call with the same
    settings reuses what the first has finished. `compare_paid` chooses, and pays for it.

    Args:
        config: A TOML file, a mapping or a config; may be left out if `keys` are complete.
        out: Where finished cells, results and the page are kept.
        data_dir: Where named data sets are stored.
        quick: One seed and a short court.
        jobs: How many cells to run at once; above 1, each in its own process.
        minutes: Time limit; the cells last in line are dropped and listed.
        engine: Where cells run: "local", or "ray" for the workers of a Ray cluster.
        gpus: GPUs of a cell on a Ray cluster, possibly a fraction.
        keys: Keys of the config: `data="digits"`, `epsilons=[1.0, 3.0]`, `delta=1e-4`, `methods=["weights"]`.
    """
    asked = _config(CompareConfig, config, keys, settings.load, settings.from_table)
    with _bar() as progress:

        def say(moment: Moment) -> None:
            if progress:
                progress("cells", moment.done, moment.total)

        return run_comparison(
            asked, Path(out), data_dir=_path(data_dir), quick=quick, jobs=jobs, minutes=minutes, engine=engine,
            gpus=gpus, say=say,
        )  # fmt: skip


def compare_paid(
    config: CompareConfig | Mapping[str, object] | Place | None = None,
    out: Place = "bundle",
    *,
    data_dir: Place | None = None,
    force: bool = False,
    resume: bool = False,
    again: bool = False,
    composes_with: Sequence[Place] = (),
    insecure_seed: int | None = None,
    vault: Place | None = None,
    **keys: object,
) -> Outcome:
    """Choose between the methods of a comparison, and release the best. The same as `airlock compare --pay`.

    ε covers the choice: it is a search over the methods (`tune`), of which one model leaves. Which methods take part,
    and why others do not: `comparison.paid.as_search`.

    Args:
        config: Of a comparison: a TOML file, a mapping or a config; may be left out if `keys` are complete.
        out: The folder that becomes the bundle.
        data_dir: Where named data sets are stored.
        force: Replace an existing bundle.
        resume: Continue an interrupted search of the same config.
        again: Begin anew although there is an unfinished search of the same config, which spends again.
        composes_with: Bundles of earlier releases from the same data; the card gives the total.
        insecure_seed: Seed the privacy noise; for tests only, and the card says so.
        vault: Where what must not leave is kept.
        keys: Keys of the config, which replace those of `config`.

    Raises:
        ConfigError: There is more than one ε.
        Refused: Fewer than two methods can take part.
    """
    asked = _config(CompareConfig, config, keys, settings.load, settings.from_table)
    search = as_search(asked, _path(data_dir)).config
    return tune(
        search,
        out,
        data_dir=data_dir,
        force=force,
        resume=resume,
        again=again,
        composes_with=composes_with,
        insecure_seed=insecure_seed,
        vault=vault,
    )


def _config(
    kind: type[M],
    given: M | Mapping[str, object] | Place | None,
    keys: Mapping[str, object],
    load: Callable[[Path, Mapping[str, object]], M],
    from_table: Callable[[Mapping[str, object], Mapping[str, object]], M],
) -> M:
    """A config from any accepted form; keyword arguments replace its keys."""
    if isinstance(given, kind):
        return from_table(given.model_dump(exclude_none=True), keys) if keys else given
    if isinstance(given, (str, Path)):
        return load(Path(given), keys)
    return from_table(given if isinstance(given, Mapping) else {}, keys)


_OF_DATA = frozenset(configs.DataConfig.model_fields)


def _taken(
    config: object, keys: Mapping[str, object]
) -> tuple[dict[str, object], contextlib.AbstractContextManager[None]]:
    """The keys with what stands for records in memory, and a block within which those are held.

    The records may be `data` itself or its `source`, in the keys or in the config. They never enter a config.
    """
    given = keys.get("data", config.get("data") if isinstance(config, Mapping) else None)
    table = given if isinstance(given, Mapping) else {"source": given}
    records = table.get("source")
    if not memory.is_records(records):
        return dict(keys), contextlib.nullcontext()
    beside = {key: value for key, value in keys.items() if key in _OF_DATA and key not in ReleaseConfig.model_fields}
    rest = {key: value for key, value in keys.items() if key not in beside}
    if isinstance(config, (str, Path, ReleaseConfig)) and not isinstance(given, Mapping):
        where = {f"data.{key}": value for key, value in {**beside, "source": memory.SOURCE}.items()}
        return {**{key: value for key, value in rest.items() if key != "data"}, **where}, memory.held(records)
    declared = config.get("data") if isinstance(config, Mapping) else None
    own = declared if isinstance(declared, Mapping) and not isinstance(given, Mapping) else {}  # as of a TOML file
    return {**rest, "data": {**own, **table, **beside, "source": memory.SOURCE}}, memory.held(records)


def _folder(bundle: Outcome | Audited | Bundle | Place) -> Path:
    if isinstance(bundle, (Outcome, Audited)):
        return bundle.bundle.folder
    return bundle.folder if isinstance(bundle, Bundle) else Path(bundle)


def _held(net: object) -> contextlib.AbstractContextManager[None]:
    """A block within which a network in memory is found."""
    return nets.held(net) if isinstance(net, nn.Module) else contextlib.nullcontext()


def _policy(given: Policy | Place | None) -> Policy | None:
    return given if given is None or isinstance(given, Policy) else load_policy(Path(given))


def _public(keys: Sequence[PublicKey | Place]) -> list[PublicKey]:
    return [key if isinstance(key, PublicKey) else read_public(Path(key)) for key in keys]


def _placed(data: Place) -> str:
    """An existing path made absolute; the name of a source unchanged."""
    return str(Path(data).absolute() if Path(data).exists() else data)


def _path(place: Place | None) -> Path | None:
    return None if place is None else Path(place)


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """A progress bar in a notebook or on a terminal; otherwise none."""
    console = Console(stderr=True)
    if not (console.is_jupyter or console.is_terminal):
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        row = bar.add_task("", total=None)
        yield lambda label, done, total: bar.update(row, description=visible(label), completed=done, total=total)
