"""Training a trunk on public images, once: the result is cached in the user's cache folder by all that determines it.

In: a function that makes the trunk, a public set, a recipe. Out: the trunk, trained as part of a classifier of the
public set's own classes that is then dropped (with a hidden layer in it, the features before it transfer better to
other classes). No private record is involved: the only cost is time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from airlock.config import Fraction, Frozen, Positive
from airlock.data import Public
from airlock.errors import OutputError
from airlock.nets.prefix import open_prefix, trunk, usual_state
from airlock.nets.registry import seed_torch
from airlock.training.augment import cutout, flip, shift
from airlock.training.devices import Resident
from airlock.training.gradients import PlainGradients
from airlock.training.loop import Recipe, Run, fit, mix
from airlock.training.sampling import Shuffled

LABEL = "pre-training on public images"
_VERSION = 1  # of trunk and training: a change to either must change the cache key


class Pretraining(Frozen):
    """How a trunk is trained on public images.

    Args:
        epochs: Passes over the public images.
        batch_size: Images per step.
        learning_rate: The peak learning rate, after a warm-up over the first tenth; then a cosine decay to zero.
        head_rate: How many times faster the classifier, which is dropped at the end, learns.
        projector: Whether the classifier has a hidden layer.
        weight_decay: L2 penalty.
        mixing: The fraction of steps in which a part of every image comes from another (CutMix).
        mirror: Whether images are mirrored at random.
    """

    epochs: Annotated[int, Field(ge=1, le=10_000)] = 80
    batch_size: Annotated[int, Field(ge=2)] = 256
    learning_rate: Positive = 0.2
    head_rate: Positive = 1.0
    projector: bool = True
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    mixing: Fraction = 0.5
    mirror: bool = True


FROM_SCRATCH = Pretraining()
TRAIN_ON = Pretraining(
    epochs=6, batch_size=128, learning_rate=0.01, head_rate=10.0, projector=False, weight_decay=1e-4, mixing=0.0
)


FRONT = Pretraining(epochs=40)  # for front ends that use only the first layers of a network


class _Classifier(nn.Module):
    """What the loop trains: a trunk with a classifier of the public set's classes."""

    def __init__(self, trunk: nn.Module, classes: int, how: Pretraining) -> None:
        super().__init__()
        self.trunk = trunk
        self.learnt: int = trunk.learnt  # type: ignore[assignment]
        self.gain = how.head_rate**0.5  # a weight scaled by a factor g learns g² times as fast
        wide = 2 * self.learnt
        hidden = [nn.Linear(self.learnt, wide), nn.BatchNorm1d(wide), nn.ReLU()] if how.projector else []
        last = nn.Linear(wide if how.projector else self.learnt, classes)
        self.head = nn.Sequential(*hidden, last)
        with torch.no_grad():
            last.weight /= self.gain

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.trunk(x)[:, : self.learnt]) * self.gain
        return logits


def pretrained(
    name: str, make: Callable[[], nn.Module], public: Public, how: Pretraining, seed: int, run: Run
) -> nn.Module:
    """A trunk trained on public images; from the cache if the same one was trained before.

    Args:
        name: Identifies the architecture; together with `public`, `how` and `seed` it determines the result.
        make: Returns a new trunk, initialised from torch's generator; a classifier sees the first `learnt` of its
            features.
        public: The set that it learns to classify.
        how: The recipe.
        seed: The seed of initial weights, order and augmentation.
        run: An unfinished run is saved in the folder `public` of its checkpoints.
    """
    key = json.dumps([_VERSION, name, public.digest, public.classes, how.model_dump(), seed], sort_keys=True)
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        trunk = make()
        net = _Classifier(trunk, public.classes, how)
    remembered = recall(key, trunk.state_dict())
    if remembered is not None:
        trunk.load_state_dict(remembered)
        return trunk
    _train(net, public, how, seed, run)
    trunk.cpu()
    remember(key, trunk.state_dict())
    return trunk


def front_weights(
    front: str, public: Public, how: Pretraining, seed: int, run: Run, layers: int | None = None
) -> dict[str, Tensor]:
    """A front end trained on public images, as the state dict that `nets.prefix.open_prefix` accepts.

    A VGG is trained with BatchNorm, which is folded into its convolutions afterwards: the layout is the usual one.

    Args:
        front: vgg16, vgg19, resnet18 or residual.
        public: The set that it learns to classify.
        how: The recipe; `FRONT` is enough for the first ten layers.
        seed: The seed of initial weights, order and augmentation.
        run: Where to compute; an unfinished run is saved in its checkpoints, or in the cache, and resumed
            automatically.
        layers: How many layers of a VGG to train; all when left out.

    Raises:
        NetError: The front end cannot be trained here, or does not accept these images.
    """
    shape = public.records.x.shape[1:]
    open_prefix(front, layers or 1, shape)
    name = front if layers is None else f"{front}-{layers}"
    if run.checkpoint is None:
        unfinished = _file(json.dumps(["unfinished", name, public.digest, how.model_dump(), seed])).with_suffix("")
        run = replace(run, checkpoint=unfinished, resume=True)
    return usual_state(pretrained(name, lambda: trunk(front, shape, layers), public, how, seed, run))


def _train(net: nn.Module, public: Public, how: Pretraining, seed: int, run: Run) -> None:
    batch = min(how.batch_size, len(public.records))
    recipe = Recipe(
        steps=max(1, how.epochs * (len(public.records) // batch)),
        learning_rate=how.learning_rate,
        weight_decay=how.weight_decay,
        schedule="cosine",
        warmup=0.1,
        precision="bf16",
        channels_last=True,
    )
    gradients = PublicGradients(public, how, seed)
    data = Resident(public.records, run.device)
    own = replace(run, checkpoint=run.checkpoint / "public" if run.checkpoint else None)
    fit(net, data, Shuffled(batch, seed, whole=True), gradients, recipe, seed, own, _augment(how.mirror), LABEL)


def _augment(mirror: bool) -> Callable[[Tensor, torch.Generator], Tensor]:
    def augment(x: Tensor, generator: torch.Generator) -> Tensor:
        x = shift(flip(x, generator) if mirror else x, generator)
        return cutout(x, generator)

    return augment


@dataclass(frozen=True)
class PublicGradients(PlainGradients):
    """The gradient of the mean loss on public images, with images mixed in some of the steps; no privacy mechanism."""

    public: Public
    how: Pretraining
    seed: int

    @property
    def mark(self) -> dict[str, object]:
        """The images and the recipe."""
        return {"gradients": "public", "digest": self.public.digest, "how": self.how.model_dump()}

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """Backward through the mean cross-entropy; if images are mixed, so are their labels."""
        net.zero_grad(set_to_none=True)
        chance = torch.Generator().manual_seed(mix(self.seed, step) ^ 2)
        targets = F.one_hot(y, self.public.classes).float()
        if float(torch.rand((), generator=chance)) < self.how.mixing:
            x, targets = cut_and_mix(x, targets, chance)
        F.cross_entropy(net(x).float(), targets).backward()  # type: ignore[no-untyped-call]


def cut_and_mix(x: Tensor, targets: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Replace one rectangle of every image by that of the next image, and mix the labels by area (Yun et al. 2019)."""
    height, width = x.shape[2:]
    side, above, left = torch.rand(3, generator=chance).tolist()
    rows, columns = round(height * side**0.5), round(width * side**0.5)
    top, start = int(above * (height - rows + 1)), int(left * (width - columns + 1))
    inside = torch.zeros(height, width, dtype=torch.bool, device=x.device)
    inside[top : top + rows, start : start + columns] = True
    share = rows * columns / (height * width)
    return torch.where(inside, x.roll(1, 0), x), torch.lerp(targets, targets.roll(1, 0), share)


def _file(key: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "airlock" / "fronts" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"


def recall(key: str, like: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """What is cached under this key, if it is complete and fits."""
    try:
        with safe_open(_file(key), "pt", device="cpu") as file:
            if (file.metadata() or {}).get("key") != key:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError):
        return None
    fits = tensors.keys() == like.keys() and all(tensors[name].shape == like[name].shape for name in like)
    return tensors if fits and all(torch.isfinite(t).all() for t in tensors.values()) else None


def remember(key: str, tensors: Mapping[str, Tensor]) -> None:
    """Best effort: a cache that cannot be written only costs time."""
    with contextlib.suppress(OSError, RuntimeError, SafetensorError):
        target = _file(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=target.parent)
        os.close(handle)
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, aside, {"key": key})
        os.replace(aside, target)


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a state dict as .safetensors atomically, and return the file's SHA-256.

    Raises:
        OutputError: The name has another ending, or the file cannot be written.
    """
    if path.suffix != ".safetensors":
        raise OutputError("a file whose name ends in .safetensors", f"'{path.name}'")
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, aside)
        found = hashlib.sha256(aside.read_bytes()).hexdigest()
        os.replace(aside, path)
    except (OSError, SafetensorError) as error:
        aside.unlink(missing_ok=True)
        raise OutputError(
            f"a place to write {path.name}", "none", do="Check the folder and its permissions."
        ) from error
    return found
