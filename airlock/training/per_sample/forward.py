"""A network's output for every record independently: for features that leave and for statistics of outputs.

Noise for one record covers one record's features, and one count of a table. That holds only if a record's output
depends on that record alone. As in training, batches have one size, for which it is shown on made-up records that
records are kept apart (`record_axis`) and get the same bits at every position; if this cannot be shown, the network is
run on one record at a time.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from airlock.errors import AirlockWarning, NetError
from airlock.nets import bert
from airlock.nets.domain import by_length
from airlock.training.per_sample import self_check
from airlock.training.per_sample.one_by_one import FAILURES
from airlock.training.per_sample.operator_rules import Axis, Unshown
from airlock.training.per_sample.record_axis import RecordAxis
from airlock.training.per_sample.sealed import USES, Sealed, Uses
from airlock.training.per_sample.sums import MULTIPLE

SIZE = {"cpu": 256, "cuda": 1024}


class Forward:
    """A network in its current mode, applied to records of one shape."""

    def __init__(self, net: nn.Module, like: Tensor, size: int) -> None:
        self.net, self.size = net, size
        self.sealed, self.care, self.reason = Sealed(net), 0, ""
        self.filling = self_check.made_up(net, like, self.size, 1, 3)
        self.steady = self_check.is_steady(net)
        self.decisions: tuple[bool, ...] | None = None
        with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []), self_check.still():
            self.by_one = not self._shown()
        if self.by_one:
            warnings.warn(
                f"The network is run on one record at a time, which is slow: {self.reason}. Its output is the same.",
                AirlockWarning,
                stacklevel=4,
            )

    def __call__(self, x: Tensor) -> Tensor:
        """One output for each row, in order."""
        step = 1 if self.by_one else self.size
        parts = [self._batch(x[start : start + step]) for start in range(0, len(x), step)]
        return torch.cat(parts) if parts else self._batch(self.filling[:1])[:0]

    @torch.no_grad()
    def _batch(self, x: Tensor) -> Tensor:
        """The outputs of at most one batch; a record on which the network fails gets zeros."""
        try:
            return self._asked(x)
        except Unshown as reason:  # it behaves differently than on made-up records
            self.by_one, self.reason = True, str(reason)
            return torch.cat([self._batch(row[None]) for row in x])
        except FAILURES:
            fit = torch.tensor([self._works(row[None]) for row in x], device=x.device)
            found = self._asked(torch.where(fit.view(-1, *[1] * (x.dim() - 1)), x, self.filling[: len(x)]))
            return torch.where(fit.view(-1, *[1] * (found.dim() - 1)), found, torch.zeros_like(found))
        finally:
            if not self.steady:
                self.sealed.restore()

    def _asked(self, x: Tensor) -> Tensor:
        count = len(x)
        if self.by_one:
            return self._checked(self.net(x.clone()), 1)
        if count < self.size or x.stride() != self.filling.stride():
            whole = self.filling.clone(memory_format=torch.preserve_format)
            whole[:count] = x
            x = whole
        with self_check.carefully(self.care):
            plain = self.steady and not self.decisions
            return self._checked(self.net(x) if plain else self._followed(x), self.size)[:count]

    def _works(self, x: Tensor) -> bool:
        try:
            self.net(x.clone())
        except FAILURES:
            return False
        return True

    def _followed(self, x: Tensor) -> Tensor:
        """The outputs, if they are shown to belong to one record each.

        Raises:
            Unshown: They are not.
        """
        constants = [*self.net.parameters(), *self.net.buffers(), *self.sealed.constants]
        watch = RecordAxis(len(x), constants, self.decisions)
        watch.note(x, Axis(0))
        with watch:
            out = self.net(x)
        if self.decisions is None:
            self.decisions = tuple(watch.decided)
        if watch.axis(out, "an output") != Axis(0):
            raise Unshown("outputs do not belong to one record each")
        return self._checked(out, len(x))

    def _fix_decisions(self, x: Tensor, again: Tensor) -> None:
        """Fix decisions to those on made-up records, which must be the same for all of them."""
        self.decisions = None
        self._followed(x)
        first, self.decisions = self.decisions, None
        self._followed(again)
        if self.decisions != first:
            raise Unshown("what the network computes depends on the values of its records")

    def _shown(self) -> bool:
        """Whether batches may be trusted."""
        x, again = (self_check.made_up(self.net, self.filling, self.size, 1, seed) for seed in (1, 2))
        for care in self_check.CARE:
            try:
                with torch.no_grad(), self_check.carefully(care):
                    self._fix_decisions(x, again)
                    first, moved = self._followed(x), self._followed(x.roll(1, 0))
                if torch.equal(first.roll(1, 0), moved):
                    self.care = care
                    return True
                self.reason = self_check.PLACE
            except Unshown as reason:
                self.reason = str(reason)
                return False
            except FAILURES as error:
                self.reason = f"{type(error).__name__} from torch"
                return False
            finally:
                self.sealed.restore()
        return False

    def _checked(self, out: object, rows: int) -> Tensor:
        if isinstance(out, Tensor) and len(out) == rows:
            return out
        raise NetError("one output per record from the network", "something else")


def outputs(net: nn.Module, x: Tensor, at_once: int | None = None) -> Tensor:
    """A network's output for every row of `x` independently, in its current mode; without gradients.

    Args:
        net: The network.
        x: One row per record.
        at_once: How many rows it can process at once, if that is limited; a public figure.
    """
    at_once = at_once or bert.at_once(net)
    parts = [(rows, _outputs(net, part, at_once)) for rows, part in by_length(net, x)]
    if not parts or parts[0][0] is None:
        return parts[0][1] if parts else _outputs(net, x, at_once)
    found = parts[0][1].new_empty(len(x), *parts[0][1].shape[1:])
    for rows, part in parts:
        found[rows] = part
    return found


def _outputs(net: nn.Module, x: Tensor, at_once: int | None) -> Tensor:
    """The same for rows of one length."""
    size = min(SIZE[x.device.type], -(-(at_once or SIZE[x.device.type]) // MULTIPLE) * MULTIPLE)
    modes = tuple(module.training for module in net.modules())
    key = ("forward", size, modes, x.shape[1:], x.dtype, x.device, x.stride()[1:], self_check.precision(x.device))
    uses: Uses = vars(net).setdefault(USES, Uses())
    found = uses.get(key)
    if not isinstance(found, Forward):
        found = uses[key] = Forward(net, x if len(x) else x.new_zeros(1, *x.shape[1:]), size)
    found.sealed.accept()
    return found(x)
