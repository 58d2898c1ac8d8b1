"""A private training step versus an ordinary one and versus Opacus, in the same process on the same networks.

Every row is one network on one device: the median time of a private step (clipping and noise included) relative to an
ordinary step, timed in turns; the same for Opacus's per-sample hooks and its ghost clipping if Opacus is installed
(extra `bench`) and supports the network; a private step that protects people with 1 to 5 rows each, relative to the
one that protects records, on the same rows; peak memory as a ratio on a GPU; and whether the clipped sums agree with
ordinary backward passes, one a record, to 1e-4, both in plain float32. On a CPU everything has one thread: on shared
cores, threads that wait for each other are timed instead of the work.

Networks of transformers are made from their configs, at the size of MiniLM-L6, GPT-2 small and ViT-S, with random
weights; they are timed on a GPU alone. An ordinary step with adapters trains the same parameters as the private one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.config import TRANSFORMERS
from airlock.mechanisms import Clip, Stream
from airlock.nets import build, hugging_face
from airlock.threads import one_thread
from airlock.training import PlainGradients, PrivateGradients
from airlock.training.per_sample import clipped_sum
from airlock.training.per_sample.self_check import plainly

ROUNDS = {"cpu": 5, "cuda": 30}
CLIP = 1.0
MOST, SHARES = 5, (0.3, 0.2, 0.25, 0.15, 0.1)  # how many people have 1, 2, 3, 4 and 5 rows: 2.55 on average

Step = Callable[[], object]


class Block(nn.Module):
    """A residual block with GroupNorm."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two = nn.GroupNorm(8, out), nn.GroupNorm(8, out)
        self.skip = nn.Conv2d(into, out, 1, stride, bias=False) if stride > 1 or into != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions and a skip connection."""
        h = F.relu(self.norm_one(self.one(x)))
        return F.relu(self.norm_two(self.two(h)) + self.skip(x))


def resnet() -> nn.Module:
    """A small residual network for 32 × 32 colour images."""
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(8, 16), nn.ReLU(), *blocks, *tail)


class Layer(nn.Module):
    """A transformer layer with attention built from nn.Linear."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then two dense layers."""
        q, k, v = self.qkv(self.norm_one(x)).chunk(3, -1)
        shape = (*q.shape[:2], self.heads, -1)
        heads = [part.reshape(shape).transpose(1, 2) for part in (q, k, v)]
        mixed = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        y: Tensor = x + self.down(F.gelu(self.up(self.norm_two(x))))
        return y


class Transformer(nn.Module):
    """Four layers on 32 tokens."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, width)
        self.layers = nn.Sequential(*(Layer(width, 4) for _ in range(4)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Classify by the mean over positions."""
        y: Tensor = self.head(self.layers(self.table(x)).mean(1))
        return y


def mlp() -> nn.Module:
    """784-512-512-10."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def pretrained(kind: str, tune: hugging_face.Tune, shape: tuple[int, ...], **config: Any) -> nn.Module:
    """A network of the package transformers of this size, with what is trained of it."""
    transformers = importlib.import_module("transformers")
    with tempfile.TemporaryDirectory() as folder:
        transformers.AutoConfig.for_model(kind, **config).save_pretrained(folder)
        net = hugging_face.open_net(f"{TRANSFORMERS}{folder}", shape, 10)
    return hugging_face.tuned(net, tune, 16)


_MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
_SMALL_VIT = {**_MINILM, "num_hidden_layers": 12, "num_attention_heads": 6}


def texts(records: int, tokens: int, vocabulary: int) -> Tensor:
    """Made-up texts; half of them fill all places."""
    ids = torch.randint(1, vocabulary, (records, tokens))
    lengths = torch.randint(4, 2 * tokens, (records, 1))
    return torch.where(torch.arange(tokens) < lengths, ids, 0)


Draw = Callable[[int], Tensor]
NETS: dict[str, tuple[Callable[[], nn.Module], Draw]] = {
    "mlp 784-512-512-10": (mlp, lambda n: torch.rand(n, 784)),
    "mnist-net": (lambda: build("mnist-net", (1, 28, 28), 10), lambda n: torch.rand(n, 1, 28, 28)),
    "cifar-net": (lambda: build("cifar-net", (3, 32, 32), 10), lambda n: torch.rand(n, 3, 32, 32)),
    "groupnorm resnet": (resnet, lambda n: torch.rand(n, 3, 32, 32)),
    "transformer, 4 layers": (Transformer, lambda n: torch.randint(0, 1000, (n, 32))),
}
# Name: the network, its records, and how many are in a batch.
LARGE: dict[str, tuple[Callable[[], nn.Module], Draw, int]] = {
    "MiniLM-L6, all weights": (
        lambda: pretrained("bert", "full", (48,), **_MINILM),
        lambda n: texts(n, 48, 30_000),
        1024,
    ),
    "MiniLM-L6, adapters": (
        lambda: pretrained("bert", "lora", (48,), **_MINILM),
        lambda n: texts(n, 48, 30_000),
        1024,
    ),
    "GPT-2 small, all weights": (
        lambda: pretrained("gpt2", "full", (128,)),
        lambda n: texts(n, 128, 50_000),
        64,
    ),
    "ViT-S/16, all weights": (
        lambda: pretrained("vit", "full", (3, 224, 224), **_SMALL_VIT),
        lambda n: torch.rand(n, 3, 224, 224),
        128,
    ),
}


def run() -> list[dict[str, Any]]:
    """One row per network on the GPU if there is one, where time is dear, and one on the CPU."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    rows = [measure(*NETS[name], 1024, name, "cuda") for name in NETS] if torch.cuda.is_available() else []
    if rows and importlib.util.find_spec("transformers") is not None:
        rows += [measure(make, draw, batch, name, "cuda") for name, (make, draw, batch) in LARGE.items()]
    return [*rows, *(measure(*NETS[name], 1024, name, "cpu") for name in NETS)]


def measure(make: Callable[[], nn.Module], draw: Draw, batch: int, name: str, kind: str) -> dict[str, Any]:
    """The row of one network on one device."""
    device = torch.device(kind)
    with one_thread() if device.type == "cpu" else contextlib.nullcontext():
        return _measured(make, draw, batch, name, device)


def _measured(make: Callable[[], nn.Module], draw: Draw, batch: int, name: str, device: torch.device) -> dict[str, Any]:
    x, y = draw(batch).to(device), torch.randint(0, 10, (batch,), device=device)
    if device.type == "cuda" and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    private = {"private": _private(make, x, y)}
    if name in NETS:
        private["people"] = _private(make, x, y, _owners(batch))
    steps = {"plain": _plain(make, x, y), **private, **_opacus(make, x, y)}
    times = _times(steps, device)
    memory = {key: _memory(step, device) for key, step in steps.items()}
    row: dict[str, Any] = {"net": name, "device": device.type, "batch": batch, "agrees": _agrees(make, x[:8], y[:8])}
    for key in ("private", "opacus hooks", "opacus ghost"):
        row[key] = round(times[key] / times["plain"], 2) if key in times else "-"
    row["people / records"] = round(times["people"] / times["private"], 2) if "people" in times else "-"
    row["memory"] = round(memory["private"] / memory["plain"], 2) if device.type == "cuda" else "-"
    row["plain ms"] = round(1000 * times["plain"], 2)
    return row


def _net(make: Callable[[], nn.Module], x: Tensor) -> nn.Module:
    torch.manual_seed(0)
    net = make().to(x.device).train()
    return net.to(memory_format=torch.channels_last) if x.is_cuda and x.dim() == 4 else net  # type: ignore[call-overload]


def _plain(make: Callable[[], nn.Module], x: Tensor, y: Tensor) -> Step:
    net, gradients = _net(make, x), PlainGradients()
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01)

    def step() -> None:
        gradients(net, x, y, 0)
        optimiser.step()

    return step


def _owners(rows: int) -> Tensor:
    """Whose the rows are."""
    chance = np.random.default_rng(0)
    owners = np.repeat(np.arange(rows), chance.choice(np.arange(1, MOST + 1), rows, p=SHARES))
    return torch.from_numpy(owners[:rows])


def _private(make: Callable[[], nn.Module], x: Tensor, y: Tensor, owners: Tensor | None = None) -> Step:
    net, stream, rows = _net(make, x), Stream.from_system(), float(len(y))
    if owners is None:
        gradients = PrivateGradients(CLIP, 1.0, rows, stream, sampled=False)
    else:
        people = float(owners[-1] + 1)
        gradients = PrivateGradients(
            CLIP, 1.0, people, stream, sampled=False, records_per_person=MOST, expected_rows=rows
        )
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01)
    count = iter(range(10**9))

    def step() -> None:
        gradients(net, x, y, next(count), owners)
        optimiser.step()

    return step


def _opacus(make: Callable[[], nn.Module], x: Tensor, y: Tensor) -> dict[str, Step]:
    if importlib.util.find_spec("opacus") is None:
        return {}
    found = {}
    for key, mode in (("opacus hooks", "hooks"), ("opacus ghost", "ghost")):
        try:
            step = _opacus_step(_net(make, x), x, y, mode)
            step()
        except (RuntimeError, ValueError, NotImplementedError, AttributeError, TypeError):
            continue
        found[key] = step
    return found


def _opacus_step(net: nn.Module, x: Tensor, y: Tensor, mode: str) -> Step:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import opacus

        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=len(y))
        net, optimiser, *rest = opacus.PrivacyEngine(accountant="rdp").make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.01),
            data_loader=data,
            noise_multiplier=1.0,
            max_grad_norm=CLIP,
            criterion=nn.CrossEntropyLoss(),
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
    criterion = rest[0] if mode == "ghost" else nn.CrossEntropyLoss()

    def step() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimiser.zero_grad()
            criterion(net(x), y).backward()
            optimiser.step()

    return step


def _times(steps: dict[str, Step], device: torch.device) -> dict[str, float]:
    """Medians over rounds in which every contestant has one turn; the first round warms up."""
    seconds: dict[str, list[float]] = {key: [] for key in steps}
    for turn in range(ROUNDS[device.type] + 1):
        for key, step in steps.items():
            _wait(device)
            start = time.perf_counter()
            step()
            _wait(device)
            if turn:
                seconds[key].append(time.perf_counter() - start)
    return {key: statistics.median(values) for key, values in seconds.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _memory(step: Step, device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def _agrees(make: Callable[[], nn.Module], x: Tensor, y: Tensor) -> bool:
    """Whether the clipped sum of a few records is that of ordinary backward passes, one a record."""
    with plainly(x.device):
        return _agrees_plainly(make, x, y)


def _agrees_plainly(make: Callable[[], nn.Module], x: Tensor, y: Tensor) -> bool:
    net, clip = _net(make, x).eval(), Clip(0.1)
    got, _ = clipped_sum(net, x, y, clip)
    trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
    wanted = {name: torch.zeros_like(p) for name, p in trained.items()}
    for i in range(len(y)):
        loss = F.cross_entropy(net(x[i : i + 1]), y[i : i + 1])
        rows = dict(zip(trained, torch.autograd.grad(loss, list(trained.values()), allow_unused=True), strict=True))
        found = {name: g for name, g in rows.items() if g is not None}
        factors = clip.factors({name: clip.squares(name, g[None]) for name, g in found.items()})
        for name, g in found.items():
            wanted[name] += g * factors[name]
    size = float(torch.stack([g.norm() for g in wanted.values()]).norm())
    return all(float((got[name] - g).norm()) <= 1e-4 * size for name, g in wanted.items())
