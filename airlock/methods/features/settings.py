"""The settings of `features`: which front end, how much of it, and how features are written."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from airlock.config import DataConfig, Frozen, Positive
from airlock.data.feature_files import Form, Precision
from airlock.methods.features.prune import LEAKIEST, LEAST_USEFUL
from airlock.training.front_ends.public import SPLIT, SYNTHETIC

# Settings that name the front end of a release: they stay in the vault where it does.
FRONT_KEYS = (
    "front", "layers", "channels", "weights", "pretrain_on", "pretrain_epochs", "prune", "inner", "pool", "psnr",
    "milliseconds", "bytes", "characterised", "leakiest", "least_useful",
)  # fmt: skip
DEFAULT_LAYERS, DEFAULT_CHANNELS = 6, 8  # the paper's favourite point


def _source(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


Count = Annotated[int, Field(ge=1, le=100_000)]
Share = Annotated[float, Field(ge=0, lt=1)]
Source = Annotated[DataConfig, BeforeValidator(_source)]


class FeatureSettings(Frozen):
    """Which front end, and how features are written.

    Args:
        front: vgg16, vgg19, resnet18, efficientnet-lite0, residual, or your own as `package.module:function`.
        layers: m, how many of its layers, or the name of the last one.
        channels: D', how many of its maps leave.
        weights: A file with its weights (.safetensors, or .pth without code).
        pretrain_on: A public set to train it on instead, such as cifar100; kept in the cache.
        pretrain_epochs: Of that training.
        prune: Which maps do not leave: any by chance (random), the least useful by Fisher's criterion on the private
            records (lda), or the leakiest and least useful that `characterised` names (characterised).
        leakiest: The share of maps that pruning takes out for leaking, where `characterised` names them; the paper's.
        least_useful: The share that it takes out for being of little use; the paper's.
        characterised: What `airlock features characterise` wrote.
        psnr: The most dB that the reconstruction net may reach.
        milliseconds: The most time a record may take.
        bytes: The most the front end may take on disk.
        inner: How many channels each layer before the last keeps.
        pool: Further front ends, one of which is drawn in secret.
        format: Of the files.
        precision: Of the numbers.
        epochs: Of the classifier that measures how useful the features are.
    """

    front: str = "residual"
    layers: Count | str | None = None
    channels: Count | None = None
    weights: str | None = None
    pretrain_on: Source | None = None
    pretrain_epochs: Annotated[int, Field(ge=1, le=10_000)] = 40
    prune: Literal["random", "lda", "characterised"] = "random"
    leakiest: Share = LEAKIEST
    least_useful: Share = LEAST_USEFUL
    characterised: str | None = None
    psnr: Positive | None = None
    milliseconds: Positive | None = None
    bytes: Count | None = None
    inner: tuple[Count, ...] = ()
    pool: tuple[str, ...] = ()
    format: Form = "parquet"
    precision: Precision = "float16"
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 20


class Wanted(Frozen):
    """A wanted bound on reconstruction.

    Args:
        psnr: How good a picture would have to be, in dB.
        probability: How often anyone may give one back that good, at most.
        blind: How often a guess without the release is that good, at most; checked with the public pictures.
    """

    psnr: Positive
    probability: Annotated[float, Field(gt=0, lt=1)]
    blind: Annotated[float, Field(gt=0, lt=1)] = 0.01


class NoisedSettings(FeatureSettings):
    """The same with noise.

    Args:
        public: What the projection, the clip norm and the blind guess are learnt on, if not on `pretrain_on`: a public
            set, "split" for the public part of the split, or "synthetic" for random shapes.
        project: How many numbers of a record leave: its maps are averaged and projected to so many directions.
        clip: R itself; by a rule from public records if left out.
        reconstruction: A wanted bound; the noise is the larger of what it and ε need.
        label_epsilon: The part of ε that randomised response on the labels takes; left out, labels leave as they are.
    """

    public: Source | None = None
    project: Annotated[int, Field(ge=1, le=4096)] = 16
    clip: Positive | None = None
    reconstruction: Wanted | None = None
    label_epsilon: Positive | None = None


OWN = (SPLIT, SYNTHETIC)
