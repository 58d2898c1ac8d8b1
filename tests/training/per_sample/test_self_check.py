"""Which engine is taken: right in plain float32 on every record, and in the precision in use on most."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from airlock.mechanisms import Clip
from airlock.nets import create
from airlock.training.gradients import Named
from airlock.training.per_sample import clipped_sum, self_check, use_of
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.one_by_one import OneByOne

Patch = pytest.MonkeyPatch
LIKE = torch.zeros(1, 1, 8, 8)


def chosen(bf16: bool, size: int = 8) -> tuple[str, str]:
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
        engine, reason, _ = self_check.choose(create("mlp", (1, 8, 8), 3, 0), LIKE, 1, size)
    return type(engine).__name__, reason


@pytest.mark.parametrize("bf16", [False, True])
def test_book_keeping_takes_an_ordinary_network(bf16: bool) -> None:
    assert chosen(bf16) == ("BookKeeper", "")


@pytest.mark.parametrize("bf16", [False, True])
def test_what_bf16_would_hide_is_found_in_plain_float32(bf16: bool, monkeypatch: Patch) -> None:
    """Norms that are all 5% too large: within what bf16 may be off, not within what float32 may."""
    squares = BookKeeper.squares

    def larger(self: BookKeeper, x: Tensor, y: Tensor, **more: Any) -> Named:
        return {name: 1.05**2 * s for name, s in squares(self, x, y, **more).items()}

    monkeypatch.setattr(BookKeeper, "squares", larger)
    engine, reason = chosen(bf16)
    assert engine != "BookKeeper"
    assert "not that of an ordinary backward pass" in reason


def tip(records: set[int], monkeypatch: Patch) -> None:
    """In autocast the ordinary gradient of some records is another one, as where rounding tips a ReLU over."""
    gradient, x = OneByOne.gradient, self_check.made_up(nn.Identity(), LIKE, 8, 1, 1)

    def tipped(self: OneByOne, row: Tensor, label: Tensor) -> Named | None:
        found = gradient(self, row, label)
        here = next(i for i in range(8) if torch.equal(x[i : i + 1], row))
        if found is None or here not in records or not torch.is_autocast_enabled("cpu"):
            return found
        return {name: g.flip(0) for name, g in found.items()}

    monkeypatch.setattr(OneByOne, "gradient", tipped)


@pytest.mark.parametrize(("records", "engine"), [({0}, "BookKeeper"), ({0, 7}, "BookKeeper"), ({0, 2, 7}, "OneByOne")])
def test_one_tipped_record_is_rounding_and_most_of_them_are_a_fault(
    records: set[int], engine: str, monkeypatch: Patch
) -> None:
    tip(records, monkeypatch)
    assert chosen(bf16=True)[0] == engine


def test_plain_means_no_autocast_and_no_tf32_and_both_come_back() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    try:
        with torch.autocast("cpu", torch.bfloat16):
            with self_check.plainly(torch.device("cpu")):
                assert not torch.is_autocast_enabled("cpu")
                assert not torch.backends.cuda.matmul.allow_tf32
                assert not torch.backends.cudnn.allow_tf32
            assert torch.is_autocast_enabled("cpu")
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def only_steps() -> bool:
    """Whether attention is computed in several steps alone."""
    cuda = torch.backends.cuda
    return cuda.math_sdp_enabled() and not (cuda.mem_efficient_sdp_enabled() or cuda.flash_sdp_enabled())


def care_is_taken_where_positions_matter() -> None:
    """A kernel that adds up differently at some positions, unless attention is computed in several steps."""
    traces, masked_sum, seen = BookKeeper.traces, BookKeeper.masked_sum, list[bool]()

    def uneven(self: BookKeeper, x: Tensor, y: Tensor) -> list[Tensor]:
        found = traces(self, x, y)
        if not only_steps():
            found[0] = found[0] + 1e-9 * torch.arange(len(y))[:, None]
        return found

    def noted(self: BookKeeper, *given: Any, **more: Any) -> Any:
        seen.append(only_steps())
        return masked_sum(self, *given, **more)

    assert not only_steps()
    net, x, y = create("mlp", (1, 8, 8), 3, 0), torch.rand(8, 1, 8, 8), torch.arange(8) % 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BookKeeper, "traces", uneven)
        patch.setattr(BookKeeper, "masked_sum", noted)
        use = use_of(net, x, 1, 8.0)
        assert (type(use.engine), use.reason, use.care) == (BookKeeper, "", 2)
        seen.clear()
        clipped_sum(net, x, y, Clip(1.0), 8.0)
    assert seen
    assert all(seen)
    assert not only_steps()  # as before


def test_more_care_is_taken_where_positions_matter_before_records_are_taken_one_by_one() -> None:
    care_is_taken_where_positions_matter()


class Hungry(nn.Module):
    """Has memory for so many records at once; mixes none."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.head = room, nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        out: Tensor = self.head(x.flatten(1))
        return out


@pytest.mark.parametrize(("room", "size"), [(100, 96), (40, 32), (5, 4), (2, 2)])
def test_a_chunk_that_does_not_fit_is_made_smaller(room: int, size: int) -> None:
    use = use_of(Hungry(room), LIKE, 1, 120.0)
    assert isinstance(use.engine, BookKeeper)
    assert use.size == size


def test_too_little_memory_is_called_that() -> None:
    """It says nothing about whether records are kept apart."""
    with pytest.raises(self_check.OutOfMemory, match="too little for 2 at once"):
        self_check.choose(Hungry(1), LIKE, 1, 2)


def test_sums_in_smaller_chunks_are_the_same() -> None:
    x, y = torch.rand(50, 1, 8, 8), torch.arange(50) % 3
    torch.manual_seed(0)
    large = Hungry(1000)
    small = Hungry(9)
    small.load_state_dict(large.state_dict())
    found, wanted = (clipped_sum(net, x, y, Clip(0.1), 50.0)[0] for net in (small, large))
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)
