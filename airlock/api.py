"""The Python API for scripts and notebooks: `airlock.release`, `airlock.audit`, `airlock.load`, `airlock.compare`.

A config may be a file, a mapping or keyword arguments, with the same keys as on the command line. Results display
themselves: in a notebook as the card or the page, elsewhere as one line.

>>> import airlock
>>> airlock.release(data="digits", epsilon=3.0, delta=1e-4)
Traceback (most recent call last):
airlock.errors.ConfigError: Expected 'channel' in the config, found none. Add a line 'channel = ...'.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from airlock import config as configs
from airlock import pipeline
from airlock.auditing import AuditSettings
from airlock.bundle import Bundle, Vault
from airlock.bundle.receiving.model import ReleasedModel
from airlock.bundle.receiving.model import load as load_model
from airlock.bundle.signing.keys import PublicKey, read_public
from airlock.comparison import Comparison, settings
from airlock.comparison.paid import as_search
from airlock.comparison.run import Moment
from airlock.comparison.run import compare as run_comparison
from airlock.comparison.settings import CompareConfig
from airlock.config import ReleaseConfig, parse
from airlock.data import memory
from airlock.errors import visible
from airlock.pipeline import Audited, Outcome

if TYPE_CHECKING:
    from airlock.bundle.platforms.hub import Hub
    from airlock.config import Frozen

Place = Path | str
M = TypeVar("M", bound="Frozen")


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
            progress=progress,
        )


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


def audit(
    bundle: Outcome | Audited | Bundle | Place,
    *,
    data: object = None,
    person: str | None = None,
    data_dir: Place | None = None,
    net: str | None = None,
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
            imported.
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
    with memory.held(data) if inside else contextlib.nullcontext(), _bar() as progress:
        return pipeline.audit_bundle(
            _folder(bundle),
            parse(AuditSettings, how, "audit"),
            overrides={
                **({} if data is None else {"data.source": memory.SOURCE if inside else _placed(str(data))}),
                **({} if person is None else {"data.person": person}),
            },
            data_dir=_path(data_dir),
            net=net,
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
        keys: Keys of the config: `data="digits"`, `epsilons=[1.0, 3.0]`, `delta=1e-4`, `methods=["weights"]`.
    """
    asked = _config(CompareConfig, config, keys, settings.load, settings.from_table)
    with _bar() as progress:

        def say(moment: Moment) -> None:
            if progress:
                progress("cells", moment.done, moment.total)

        return run_comparison(
            asked, Path(out), data_dir=_path(data_dir), quick=quick, jobs=jobs, minutes=minutes, say=say
        )


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
    return {**rest, "data": {**table, **beside, "source": memory.SOURCE}}, memory.held(records)


def _folder(bundle: Outcome | Audited | Bundle | Place) -> Path:
    if isinstance(bundle, (Outcome, Audited)):
        return bundle.bundle.folder
    return bundle.folder if isinstance(bundle, Bundle) else Path(bundle)


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
