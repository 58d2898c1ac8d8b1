"""A front end characterised on public data and profiled on this machine: measured from a config, kept as one JSON file.

Public throughout: the front end's weights come from a file or from public images, and it is characterised on the public
part of the split or, where there is none, on the public set that it was trained on. No private record is looked at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from airlock import data
from airlock.config import DataConfig, ReleaseConfig
from airlock.data import Public, Records
from airlock.errors import ConfigError, DataError, NetError, OutputError
from airlock.nets.prefix import Prefix, layer_count, open_prefix
from airlock.training import Run
from airlock.training.front_ends.characterise import Characterisation, Effort, characterise, grid, singles
from airlock.training.front_ends.choose import Limits, Option, options
from airlock.training.front_ends.pretrain import FRONT, front_weights
from airlock.training.front_ends.profiling import Profile, profile_all

FORMAT = 1
_FRONT = "residual"  # where settings name none
_DEEPEST = 10  # layers, where none are asked for


@dataclass(frozen=True)
class Characterised:
    """What was measured, and what it costs here."""

    found: Characterisation
    profiles: tuple[Profile, ...] = ()

    @property
    def options(self) -> tuple[Option, ...]:
        """Points to choose from; channels alone are for pruning."""
        return tuple(option for option in options(self.found, self.profiles) if option.channels > 1)

    def write(self, path: Path) -> None:
        """As JSON, whole or not at all.

        Raises:
            OutputError: It cannot be written.
        """
        table = {"format": FORMAT, **self.found.to_dict(), "profiles": [p.to_dict() for p in self.profiles]}
        aside = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            aside.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
            os.replace(aside, path)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise OutputError(f"a place to write {path.name}", "none", do="Check the folder and its rights.") from error

    @classmethod
    def read(cls, path: Path) -> Characterised:
        """What `write` wrote.

        Raises:
            DataError: There is no such file, or it is another.
        """
        wanted = "a file that `airlock features characterise` wrote"
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(wanted, f"'{path.name}', which cannot be read as one") from error
        if not isinstance(table, dict) or table.get("format") != FORMAT:
            raise DataError(f"{wanted}, of format {FORMAT}", f"'{path.name}'")
        try:
            profiles = tuple(Profile(**own) for own in table["profiles"])
        except (KeyError, TypeError) as error:
            raise DataError(wanted, f"'{path.name}' without profiles") from error
        return cls(Characterisation.from_dict(table), profiles)


def limits(settings: Mapping[str, Any]) -> Limits:
    """The limits among the settings of a release."""
    return Limits(*(settings.get(name) for name in ("psnr", "milliseconds", "bytes")))


def measure(
    config: ReleaseConfig,
    run: Run,
    effort: Effort,
    depths: Sequence[int],
    layers: Sequence[int] = (),
    seeds: int = 1,
    single: int | None = None,
    onnx: bool = True,
    data_dir: Path | None = None,
) -> Characterised:
    """Characterise and profile the front end of a config.

    Args:
        config: Of a release of features.
        run: Where.
        effort: How carefully.
        depths: Numbers of channels.
        layers: Numbers of layers; 1 to 10, or as many as there are and the images allow, when left out.
        seeds: Draws of channels for each point.
        single: After how many layers to measure every channel alone; None for none.
        onnx: Whether to time ONNX Runtime too.
        data_dir: Where named sources lie.

    Raises:
        ConfigError: There are no public records, or the front end has no weights.
    """
    shape = data.describe(config, data_dir).shape
    learnt = _learnt(config.settings, shape, data_dir)
    records, classes, name = _public(config, learnt, data_dir)
    weights = _weights(config, learnt, run)
    front = str(config.settings.get("front", _FRONT))
    wanted = sorted({*layers, *([single] if single else [])}) if layers else _possible(front, shape, single)
    fronts = {m: open_prefix(front, m, shape, weights) for m in wanted}
    points = grid({m: fronts[m].channels for m in (layers or wanted)}, depths, seeds)
    points += singles(single, fronts[single].channels) if single else ()
    if not points:
        raise ConfigError("a number of channels that some layer has", f"{', '.join(map(str, depths))}")
    found = characterise(fronts, records, classes, points, run, effort, name=name)
    own = {m: prefix for m, prefix in fronts.items() if m in (layers or wanted)}
    return Characterised(found, profile_all(own, depths, onnx=onnx))


def _possible(front: str, shape: tuple[int, ...], single: int | None) -> list[int]:
    """The numbers of layers that images of this shape allow."""
    most = min(layer_count(front) or 1, _DEEPEST)
    found = [m for m in range(1, most + 1) if _opens(front, m, shape)]
    return sorted({*found, *([single] if single else [])}) or [1]


def _opens(front: str, m: int, shape: tuple[int, ...]) -> Prefix | None:
    try:
        return open_prefix(front, m, shape)
    except NetError:
        if m == 1:
            raise
        return None


def _learnt(settings: Mapping[str, Any], shape: tuple[int, ...], data_dir: Path | None) -> Public | None:
    """The public set that the front end is trained on."""
    source = settings.get("pretrain_on")
    if source is None:
        return None
    own = DataConfig(source=source) if isinstance(source, str) else DataConfig(**source)
    return data.open_public(own, data_dir, shape)


def _public(config: ReleaseConfig, learnt: Public | None, data_dir: Path | None) -> tuple[Records, int, str]:
    """Where the front end is characterised: the public part of the split, or else what it was trained on."""
    if config.split.public:
        split = data.load(config, data_dir)
        return split.public, len(split.facts.classes), f"the public part of {split.facts.name}"
    if learnt is not None:
        return learnt.records, learnt.classes, learnt.name
    raise ConfigError(
        "public records to characterise a front end on",
        "none",
        "Private records may not choose it.",
        "Set split.public, such as 0.2, or settings.pretrain_on to a public set.",
    )


def _weights(config: ReleaseConfig, learnt: Public | None, run: Run) -> Mapping[str, Tensor] | Path | None:
    settings = config.settings
    if settings.get("weights") is not None:
        return Path(str(settings["weights"])).expanduser()
    if learnt is None:
        return None
    how = FRONT.model_copy(update={"epochs": int(settings.get("pretrain_epochs", FRONT.epochs))})
    return front_weights(str(settings.get("front", _FRONT)), learnt, how, config.seed, run)
