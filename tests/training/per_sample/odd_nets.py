"""Networks as users bring them: each takes records of its own shape and gives logits for three classes.

Many of them handle records in ways that a look at shapes misunderstands; some mix records, some only now and then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 3


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def vectors(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 6, generator=torch.Generator().manual_seed(seed))


def tokens(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 20, (count, 5), generator=torch.Generator().manual_seed(seed))


class MultiCrop(nn.Module):
    """Eight shifted views of a record while training; their logits are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        views = [torch.roll(x, (i, j), (2, 3)) for i in range(2) for j in range(4)] if self.training else [x]
        h = self.head(F.relu(self.conv(torch.cat(views))).flatten(1))
        return h.view(len(views), len(x), -1).mean(0)


class Merged(nn.Module):
    """Batch and places in one dimension; logits are averaged over places later."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.one, self.two = nn.Embedding(20, 8), nn.Linear(8, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x).reshape(-1, 8)
        return self.two(F.relu(self.one(h))).reshape(len(x), -1, CLASSES).mean(1)


class TimeFirst(nn.Module):
    """(T, B, E), as recurrent networks had it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix, self.norm = nn.Embedding(20, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x.t())
        return self.head(self.norm(F.gelu(self.mix(h))).mean(0))


class OwnAttention(nn.Module):
    """Attention from bare parameters, with a T × T mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.block, self.head = Masked(), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1).to(x.device)
        return self.head(self.block(self.table(x), mask).mean(1))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(8, 8) / 3) for _ in range(3))

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        scores = (h @ self.q) @ (h @ self.k).transpose(1, 2) / 3 + mask
        return h + scores.softmax(-1) @ (h @ self.v)


class Capacity(nn.Module):
    """Two experts with room for four records each: whoever comes later goes to the other one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 2), nn.ModuleList(nn.Linear(6, CLASSES) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.gate(x).argmax(1)
        first = (chosen == 0).long().cumsum(0)
        chosen = torch.where((chosen == 0) & (first > 4), 1, chosen)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return outputs[torch.arange(len(x), device=x.device), chosen]


class Experts(nn.Module):
    """A mixture of experts, softly, record by record."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 3), nn.ModuleList(nn.Linear(6, CLASSES) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.gate(x).softmax(-1)
        return (torch.stack([expert(x) for expert in self.experts], -1) * weight[:, None]).sum(-1)


class WritesFrozen(nn.Module):
    """Keeps the mean of what it saw in a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(6), requires_grad=False)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.data.add_(x.detach().mean(0))
        return self.head(x)


class Remembers(nn.Module):
    """Adds what the batch before looked like; kept in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.bank = nn.Linear(6, CLASSES), []

    def forward(self, x: Tensor) -> Tensor:
        past = sum(self.bank, torch.zeros(6, device=x.device))
        self.bank.append(x.detach().mean(0))
        return self.head(x + past)


class Twice(nn.Module):
    """One layer used twice, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(torch.tanh(self.first(self.inner(torch.tanh(self.inner(x)))))))


class InPlace(nn.Module):
    """Writes into its own activations."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        padded = h.new_zeros(len(x), 8)
        padded[:, :4] = h[:, :4].relu()
        padded[:, 4:] = h[:, 4:].tanh()
        return self.two(padded)


class Patches(nn.Module):
    """Pictures cut into patches that join the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Linear(4 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        cut = x.unfold(2, 4, 4).unfold(3, 4, 4)  # (B, 1, 2, 2, 4, 4)
        batch = cut.permute(0, 2, 3, 1, 4, 5).reshape(-1, 1, 4, 4)
        h = F.relu(self.norm(self.conv(batch))).flatten(1)
        return self.head(h).view(len(x), 4, -1).mean(1)


class Recurrent(nn.Module):
    """PyTorch's own LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(20, 6), nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.table(x))[0][:, -1])


class ByBatchSize(nn.Module):
    """What it computes depends on how many records there are."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * (3.0 if len(x) % 2 else -1.0)


class ByPlace(nn.Module):
    """Every other place of the batch is treated differently."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        sign = torch.where(torch.arange(len(x), device=x.device) % 2 == 0, 1.0, -2.0)
        return self.head(x) * sign[:, None]


class Decides(nn.Module):
    """Takes another way when one of the records is large."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if x.abs().max() < 50 else self.two(x)


class TakesOut(nn.Module):
    """Carries a mean over the batch through numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        centre = torch.tensor(x.detach().cpu().numpy().mean(0), device=x.device)
        return self.head(x - centre)


class CountsShapes(nn.Module):
    """How many numbers are large, told by a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * (1 + (x > 0.5).nonzero().shape[0] % 3)


class MixUp(nn.Module):
    """Blends every record with another one, half of the time."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and random.random() < 0.5:
            x = 0.5 * x + 0.5 * x[torch.randperm(len(x), device=x.device)]
        return self.head(x)


class BackwardMixes(nn.Module):
    """An honest forward pass, and a backward pass that averages over the batch."""

    class Mean(torch.autograd.Function):
        """The identity, but for its gradient."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient + gradient.mean(0, keepdim=True)

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(BackwardMixes.Mean.apply(torch.tanh(self.one(x))))


class Cancelling(nn.Module):
    """Places whose gradients cancel out, with huge inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 64, bias=False), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        big = 1e6 * x.repeat(1, 11)[:, :64]
        h = self.one(torch.stack([big, big + x.repeat(1, 11)[:, :64]], 1))
        return self.two((h[:, 0] - h[:, 1]).tanh())


class Attends(nn.Module):
    """nn.TransformerEncoderLayer, with learnt positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(20, 8), nn.Embedding(5, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.table(x) + self.places(torch.arange(x.shape[1], device=x.device))).mean(1))


class Dropped(nn.Module):
    """Dropout by layer, by function, and a whole branch at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(6, 8), nn.Linear(8, CLASSES), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(torch.tanh(self.one(x)))
        if self.training:
            h = h * h.new_empty(len(x), 1).bernoulli_(0.8) / 0.8
        return self.two(F.dropout(h, 0.2, self.training))


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, num_labels=CLASSES, pad_token_id=0,
    )  # fmt: skip
    return _Ids(BertForSequenceClassification(config), masked=True)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, num_labels=CLASSES, pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return _Ids(GPT2ForSequenceClassification(config), masked=False)


class _Ids(nn.Module):
    """A model of transformers for records that are token ids; 0 fills up."""

    def __init__(self, model: nn.Module, masked: bool) -> None:
        super().__init__()
        self.model, self.masked = model, masked

    def forward(self, x: Tensor) -> Tensor:
        more = {"attention_mask": (x != 0).long()} if self.masked else {}
        return self.model(input_ids=x, **more).logits


@dataclass(frozen=True)
class Odd:
    """A network, what goes into it, and who is expected to compute its gradients."""

    make: Callable[[], nn.Module]
    draw: Callable[..., Tensor]
    by: str  # "book" keeping, "functional", or "one" by one


ODD: dict[str, Odd] = {
    "multi-crop": Odd(MultiCrop, images, "book"),
    "batch and places merged": Odd(Merged, tokens, "book"),
    "time first": Odd(TimeFirst, tokens, "book"),
    "own attention with a mask": Odd(OwnAttention, tokens, "book"),
    "experts with capacity": Odd(Capacity, vectors, "functional"),
    "mixture of experts": Odd(Experts, vectors, "book"),
    "writes a frozen parameter": Odd(WritesFrozen, vectors, "one"),
    "remembers": Odd(Remembers, vectors, "one"),
    "used twice and tied": Odd(Twice, vectors, "book"),
    "writes in place": Odd(InPlace, vectors, "functional"),
    "patches in the batch": Odd(Patches, images, "book"),
    "LSTM": Odd(Recurrent, tokens, "functional"),
    "by batch size": Odd(ByBatchSize, vectors, "functional"),
    "by place": Odd(ByPlace, vectors, "functional"),
    "decides": Odd(Decides, vectors, "book"),
    "through numpy": Odd(TakesOut, vectors, "one"),
    "counts by shape": Odd(CountsShapes, vectors, "one"),
    "mix-up now and then": Odd(MixUp, vectors, "functional"),
    "backward mixes": Odd(BackwardMixes, vectors, "one"),
    "cancelling places": Odd(Cancelling, vectors, "one"),
    "transformer layer": Odd(Attends, tokens, "book"),
    "dropout of all kinds": Odd(Dropped, vectors, "book"),
    "BERT": Odd(bert, tokens, "book"),
    "GPT-2": Odd(gpt2, tokens, "book"),
}
