"""A table's columns as features: numbers compared with cut points, categories as they are, and products of two columns.

In: an encoded record (`data.tables`), whose numbers lie in [0, 1] and whose categories are one-hot. Out: features of
norm 1 (`Steps`), on which a linear head is an additive model: one curve of steps for each number and one value for each
category. With products it is a model of pairs of columns as well.

A number becomes the signs of its comparisons with a few cut points. The inner product of two numbers' signs falls with
the number of cut points between them, so that a head which may only be small prefers curves without jumps. Cut points
are evenly spaced over the declared range unless somebody places them (`Steps.cuts`), who must then have paid for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from airlock.config import Column
from airlock.errors import NetError
from airlock.nets.frontend import Framed, Unit

CUTS = 15  # of a number
_COARSE = 3  # of these, for products with other columns
_MOST_CATEGORIES = 10  # of a column that takes part in products
_PRODUCTS = 0.6  # the norm of all products over that of all columns
_NAME = re.compile(r"steps-(\d{1,5})x(\d{1,3})-(\d{1,6})-linear")
_LARGEST = 1 << 22  # features that a name may ask for


@dataclass(frozen=True)
class ColumnLayout:
    """Which encoded features are numbers, and which products are formed.

    Features before any product are in this order: the signs of each number in turn, then everything else.

    Args:
        width: How many numbers an encoded record has.
        numbers: The positions of those that are compared with cut points.
        cuts: How many cut points each of them has.
        products: Pairs of positions among the features, each with its weight.
        columns: How many columns there are.
    """

    width: int
    numbers: tuple[int, ...]
    cuts: int
    products: tuple[tuple[int, int, float], ...]
    columns: int

    @property
    def name(self) -> str:
        """Of the network with a linear head: all sizes follow from it and the shape of a record."""
        return f"steps-{len(self.numbers)}x{self.cuts}-{len(self.products)}-linear"

    @property
    def plain(self) -> tuple[int, ...]:
        """The positions of the encoded features that stay as they are."""
        return tuple(sorted(set(range(self.width)) - set(self.numbers)))


def lay_out(columns: Sequence[Column], products: bool, cuts: int = CUTS) -> ColumnLayout:
    """The layout for these columns.

    Args:
        columns: In the order in which they are encoded.
        products: Whether pairs of columns are used too, except of categories with many values.
        cuts: How many cut points a number has.
    """
    starts = np.cumsum([0, *(column.width for column in columns)]).tolist()
    numbers = tuple(start for column, start in zip(columns, starts, strict=False) if column.categories is None)
    plain = sorted(set(range(starts[-1])) - set(numbers))
    coarse = [round((cuts - 1) * (i + 1) / (_COARSE + 1)) for i in range(_COARSE)]
    blocks = []
    for column, start in zip(columns, starts, strict=False):
        if column.categories is None:  # whether it is missing takes part in no product
            first = cuts * numbers.index(start)
            blocks.append(([first + place for place in coarse], _COARSE))
        elif column.width <= _MOST_CATEGORIES:
            first = cuts * len(numbers) + plain.index(start)
            blocks.append((list(range(first, first + column.width)), 1))
    pairs = [(a, b) for place, a in enumerate(blocks) for b in blocks[:place]] if products else []
    each = _PRODUCTS * math.sqrt(len(columns) / max(1, len(pairs)))
    weighted = tuple(
        (left, right, each / math.sqrt(ones * others))
        for (lefts, ones), (rights, others) in pairs
        for left in lefts
        for right in rights
    )
    return ColumnLayout(starts[-1], numbers, cuts, weighted, len(columns))


def count_pairs(columns: Sequence[Column]) -> int:
    """How many pairs of columns there would be products of."""
    few = sum(column.categories is None or column.width <= _MOST_CATEGORIES for column in columns)
    return few * (few - 1) // 2


class Steps(nn.Module):
    """Encoded records to features of norm 1; `Unit` behind it makes sure of that, whatever the input.

    Args:
        width: How many numbers an encoded record has.
        numbers: How many of them are compared with cut points.
        cuts: How many cut points each of these has.
        products: How many products of two features there are.
    """

    numbers: Tensor
    cuts: Tensor
    plain: Tensor
    left: Tensor
    right: Tensor
    weights: Tensor

    def __init__(self, width: int, numbers: int, cuts: int, products: int) -> None:
        super().__init__()
        signs, plain = numbers * cuts, width - numbers
        self.register_buffer("numbers", torch.zeros(numbers, dtype=torch.int64))
        self.register_buffer("cuts", torch.zeros(numbers, cuts))
        self.register_buffer("plain", torch.zeros(plain, dtype=torch.int64))
        self.register_buffer("left", torch.zeros(products, dtype=torch.int64))
        self.register_buffer("right", torch.zeros(products, dtype=torch.int64))
        self.register_buffer("weights", torch.ones(signs + plain + products))

    @property
    def features(self) -> int:
        """How many there are."""
        return self.weights.numel()

    def fill(self, layout: ColumnLayout) -> None:
        """Put a layout into the buffers, with evenly spaced cut points."""
        signs = len(layout.numbers) * layout.cuts
        even = torch.arange(1, layout.cuts + 1, dtype=torch.float32) / (layout.cuts + 1)
        with torch.no_grad():
            self.numbers.copy_(torch.tensor(layout.numbers, dtype=torch.int64))
            self.cuts.copy_(even.expand_as(self.cuts))
            self.plain.copy_(torch.tensor(layout.plain, dtype=torch.int64))
            self.left.copy_(torch.tensor([left for left, _, _ in layout.products], dtype=torch.int64))
            self.right.copy_(torch.tensor([right for _, right, _ in layout.products], dtype=torch.int64))
            self.weights[:signs] = 1.0 / math.sqrt(layout.cuts)
            self.weights[self.weights.numel() - len(layout.products) :] = torch.tensor(
                [weight for _, _, weight in layout.products]
            )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, width) to (batch, features)."""
        x = x.flatten(1)
        parts = []
        if self.numbers.numel():
            above = x.index_select(1, self.numbers).unsqueeze(2) >= self.cuts
            parts.append((2.0 * above.to(x.dtype) - 1.0).flatten(1))
        if self.plain.numel():
            parts.append(x.index_select(1, self.plain))
        found = torch.cat(parts, 1)
        if self.left.numel():
            found = torch.cat([found, found.index_select(1, self.left) * found.index_select(1, self.right)], 1)
        return found * self.weights.to(x.dtype)


def steps_linear(layout: ColumnLayout, classes: int) -> Framed:
    """The front end with a linear head, and all public tensors in place."""
    net = blank(layout.name, (layout.width,), classes)
    steps_of(net).fill(layout)
    return net


def is_steps(name: str) -> bool:
    """Whether this is the name of such a network."""
    return _NAME.fullmatch(name) is not None


def blank(name: str, shape: tuple[int, ...], classes: int) -> Framed:
    """The network of this name before anything is filled in.

    Raises:
        NetError: The name does not fit records of this shape.
    """
    found = _NAME.fullmatch(name)
    numbers, cuts, products = map(int, found.groups()) if found else (0, 0, 0)
    width, exactly = math.prod(shape), f"steps-{numbers}x{cuts}-{products}-linear"
    features = numbers * cuts + width - numbers + products
    fits = len(shape) == 1 and numbers <= width and cuts > 0 and 0 < features <= _LARGEST
    if name != exactly or not fits:
        raise NetError(
            "a net 'steps-NUMBERSxCUTS-PRODUCTS-linear' with at most as many numbers as a record has",
            f"'{name}' for records of shape {' × '.join(map(str, shape))}",
            do="Leave `net` out.",
        )
    steps = Steps(width, numbers, cuts, products)
    return Framed(nn.Sequential(steps, Unit()), steps.features, classes)


def steps_of(net: Framed) -> Steps:
    """The part of the front end that has the cut points."""
    assert isinstance(net.front, nn.Sequential)
    steps = net.front[0]
    assert isinstance(steps, Steps)
    return steps
