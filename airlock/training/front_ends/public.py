"""Public images for front ends: settings, where the images come from, and their features' covariance."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from airlock.config import DataConfig, Frozen
from airlock.data import Facts, Public, Records, Split, digest
from airlock.errors import ConfigError, DataError
from airlock.nets.synthetic import draw_classes
from airlock.training.front_ends.features import compute
from airlock.training.loop import Run

SPLIT, SYNTHETIC = "split", "synthetic"
_CLASSES, _EACH = 100, 200  # of synthetic images
_NAME, _DRAWN = "Synthetic images", "Synthetic images are drawn from a seed"
_OPEN = "is public: its records are not protected"


def _source(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


class FrontSettings(Frozen):
    """What public images are used for.

    Args:
        public: A named source, a path or a table as under `data`; "split" for the public part of the split, "synthetic"
            for random shapes generated from the seed.
        whitening: Whiten features by the covariance of public features around their class's mean (within), around the
            mean of all (total), or not at all (none).
        whitening_power: The covariance is raised to minus this power; 1/2 whitens fully.
        whitening_damping: Added to the covariance's eigenvalues, as a multiple of their mean.
        mirror: Average features over an image and its mirror image; by default true for trained and efficientnet-lite0.
        tune: Fine-tune efficientnet-lite0 on the public images before it is frozen; by default true if `public` is a
            data set.
        width: The width of the network for features "trained".
        epochs: Epochs of training on public images; by default 80 for trained, 6 for tuning.
        front_seed: The seed of that training; separate from `seed`, so that several releases can share one front end.
    """

    public: Annotated[DataConfig, BeforeValidator(_source)] | None = None
    whitening: Literal["within", "total", "none"] = "within"
    whitening_power: Annotated[float, Field(gt=0, le=1)] = 0.375
    whitening_damping: Annotated[float, Field(ge=0, le=100)] = 0.3
    mirror: bool | None = None
    tune: bool | None = None
    width: Literal[16, 64] = 64
    epochs: Annotated[int, Field(ge=1, le=10_000)] | None = None
    front_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


def check_public(settings: FrontSettings, features: str, facts: Facts, public_share: float) -> None:
    """Refuse settings of public images that contradict each other or the data.

    Raises:
        ConfigError: They do; the message says which.
    """
    _check_used(settings, features)
    source = settings.public.source if settings.public else None
    if source is None and features == "trained":
        raise ConfigError(
            'public images for features "trained"',
            "none",
            "A front end may only be trained on records that need no protection.",
            'Set settings.public to a public set such as "cifar100", or to "synthetic".',
        )
    if source == SPLIT and not public_share:
        raise ConfigError(
            'a public part of the split with settings.public = "split"', "none", do="Set split.public, such as 0.2."
        )
    if source == SYNTHETIC and not _images(facts.shape):
        raise ConfigError(
            'grey or colour images with settings.public = "synthetic"',
            f"records of shape {' × '.join(map(str, facts.shape))}",
            "Synthetic public records are images.",
        )


def _check_used(settings: FrontSettings, features: str) -> None:
    """Refuse settings that would be ignored, which hides mistakes."""
    tuned = features == "efficientnet-lite0"
    needs = {
        "settings.public": (settings.public is not None, ("whitening", "whitening_power", "whitening_damping", "tune")),
        'features = "efficientnet-lite0"': (tuned, ("tune",)),
        'features = "trained"': (features == "trained", ("width",)),
        'features = "trained" or "efficientnet-lite0"': (
            tuned or features == "trained",
            ("epochs", "front_seed", "mirror"),
        ),
    }
    for needed, (there, keys) in needs.items():
        for key in keys:
            if not there and key in settings.model_fields_set:
                raise ConfigError(
                    f"{needed} along with settings.{key}",
                    "none",
                    "A key that was silently ignored would hide a mistake.",
                )


def _images(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] in (1, 3)


def outside(settings: FrontSettings) -> DataConfig | None:
    """The public set that has to be read from elsewhere, if any."""
    own = settings.public is None or settings.public.source in (SPLIT, SYNTHETIC)
    return None if own else settings.public


def public_records(settings: FrontSettings, split: Split, seed: int) -> Public | None:
    """The public images of a release.

    Raises:
        DataError: There are none; the message says nothing about records that are not public.
    """
    if settings.public is None:
        return None
    found = _public_records(settings.public, split, seed)
    if not len(found.records):
        raise DataError(
            "at least one public record",
            "none",
            "The public part of a front end has nothing to learn from.",
            "Raise split.public, or use another public set.",
        )
    return found


def _public_records(public: DataConfig, split: Split, seed: int) -> Public:
    if public.source == SYNTHETIC:
        return synthetic_images(split.facts.shape, seed)
    if public.source == SPLIT:
        return Public(
            f"The public part of {split.facts.name}", split.public, len(split.facts.classes), digest(split.public)
        )
    if split.beside is None:
        raise ConfigError(
            "a public set alongside the split",
            "none",
            do="Call data.add_public(split, channel.public) before a release.",
        )
    return split.beside


def synthetic_images(shape: tuple[int, ...], seed: int, each: int | None = None) -> Public:
    """Images of random shapes in a hundred classes, `each` (200) of them or so; a function of the seed alone."""
    each = each or _EACH
    images, labels = draw_classes(_CLASSES * each, shape, _CLASSES, seed)
    records = Records(images.numpy(), labels.numpy())
    return Public(_NAME, records, _CLASSES, digest(records))


def sentence(public: Public) -> tuple[str, ...]:
    """What a reviewer has to agree to."""
    what = _DRAWN if public.name == _NAME else f"{public.name} {_OPEN}"
    return (f"{what} ({len(public.records)} records, SHA-256 {public.digest}).",)


def planned_sentence(settings: FrontSettings) -> tuple[str, ...]:
    """The same before the public images are read; a path is not repeated."""
    if settings.public is None:
        return ()
    source = settings.public.source
    names = {SYNTHETIC: _DRAWN, SPLIT: f"The public part of the split {_OPEN}"}
    name = settings.public.name or (source if source.isalnum() else "The public set")
    return (f"{names.get(source, f'{name} {_OPEN}')}.",)


def is_about_public(said: str) -> bool:
    """Whether this is one of these two sentences."""
    return _OPEN in said or _DRAWN in said


def moments(front: nn.Module, public: Public, within: bool, run: Run) -> tuple[Tensor, Tensor]:
    """Mean and covariance of public features, in float64 on the run's device; around class means if `within`.

    One pass that keeps only sums: with n_c records and sum s_c in class c, the covariance around class means is (sum of
    x x' - sum of s_c s_c' / n_c) / n.
    """
    records, classes = public.records, public.classes if within else 1
    labels = torch.from_numpy(records.y if within else np.zeros(len(records), np.int64)).to(run.device)
    counts = sums = products = torch.zeros((), dtype=torch.float64, device=run.device)
    for place, features in compute(front, records, run, "features of public images"):
        x, member = features.double(), nn.functional.one_hot(labels[place], classes).double()
        counts, sums, products = counts + member.sum(0), sums + member.T @ x, products + x.T @ x
    middle = (sums.T / counts.clamp_min(1)) @ sums
    return sums.sum(0) / len(records), (products - middle) / len(records)
