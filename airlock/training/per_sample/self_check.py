"""Which engine can be trusted with a network: shown and tested on made-up records, before any record is seen.

For one network in one mode and precision, on one device and for chunks of one size, an engine is used if

1. records are *shown* to be kept apart: by `RecordAxis` for book-keeping, by vmap's semantics for `functional`;
2. a record's gradient has the same bits *at every position* and whichever records are next to it. Chunks have one size,
and the order of a kernel's operations depends on shapes and not on numbers; so a batch of random records that is
shifted by one position must give the same bits shifted by one position, or the order depends on the position;
3. gradients are *correct*: squared norms, parameter by parameter, and clipped gradients of some records are compared
with ordinary backward passes over single records, in exactly the mode, precision, device and size that will be used,
and again in plain float32; and the norm of what is summed for a record is within its measured bound. If people with
several records are protected, this is done for made-up people. Where parameters are in shards, each process compares
the rows that it holds, and all of them reach the same conclusion.

The first two carry the guarantee; the third detects a network, or a rule, that was misunderstood. Dropout and other
random numbers are held fixed for the second and third. If no engine passes, `one_by_one` is used, which needs no check.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from airlock.errors import AirlockWarning, TrainingError
from airlock.mechanisms.clipping import SLACK, Clip
from airlock.nets import domain
from airlock.threads import one_thread
from airlock.training.devices import forget_workspaces
from airlock.training.gradients import Named
from airlock.training.losses import CROSS_ENTROPY, Loss
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.functional import FunctionalGradients
from airlock.training.per_sample.one_by_one import FAILURES, OneByOne, OneByOneInShards
from airlock.training.per_sample.operator_rules import Unshown
from airlock.training.per_sample.people import People, people_of
from airlock.training.per_sample.sealed import Sealed
from airlock.training.sharding import OtherPlan, ShardedParameters

PLACE = "a record's gradient changes with its position in the batch"
_TRIED = 4  # records that are compared with ordinary backward passes
# How far a gradient may be from the ordinary one, as a fraction of its norm: kernels differ between batch sizes, and
# for one batch size a GPU may use a kernel that rounds its factors and for another one that does not. In plain float32
# every record must agree; in a coarser precision half of them, because rounding that flips one ReLU or one maximum can
# move a gradient by any amount (0.09 was seen with MNIST-Net in TF32).
_AGREE = {"fp32": 1e-3, "tf32": 2e-2, "bf16": 1e-1}
_TRIED_PLAIN = 64  # the most records in the batch that is tested in plain float32, which may need more memory


class Engine(Protocol):
    """Computes clipped sums of per-record gradients."""

    bytes_per_record: int
    places: int

    def masked_sum(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor,
        clip: Clip,
        norm: Tensor | None = None,
        people: People | None = None,
    ) -> tuple[Named, Tensor]:
        """The sum over the records, each by its mask, in float64, and which are usable; by person with `people`."""
        ...

    def squares(self, x: Tensor, y: Tensor, exact: bool = True) -> Named:
        """The squared norm of every record's gradient in float64, by parameter name."""
        ...


def choose(
    net: nn.Module,
    like: Tensor,
    copies: int,
    size: int,
    most: int = 1,
    loss: Loss = CROSS_ENTROPY,
    shards: ShardedParameters | None = None,
) -> tuple[Engine, str, int]:
    """The fastest engine that passes, why faster ones did not, and how `carefully` it has to be run.

    Args:
        net: The network, in the mode, on the device and within the autocast in which it will be used.
        like: One or more rows of its input; only shape, type and device are used.
        copies: Rows per record.
        size: Records in a chunk.
        most: The most records of one person.
        loss: Of one record.
        shards: The network's parameters, if they are in shards.

    Raises:
        Unshown: No engine passes, and the parameters are in shards.
        OutOfMemory: A chunk of this size does not fit into memory, which says nothing about the network.
    """
    sealed = Sealed(net, parameters=shards is None)
    reference = OneByOne(net, sealed, loss) if shards is None else OneByOneInShards(net, sealed, loss, shards)
    reasons: list[str] = []
    makers: tuple[Callable[[], BookKeeper | FunctionalGradients], ...] = (
        lambda: BookKeeper(net, sealed.constants, is_steady(net), loss, shards),
        lambda: FunctionalGradients(net, loss),
    )
    makers = makers if shards is None else makers[:1]
    for make in makers:
        for care in CARE:
            try:
                engine = make()
                with carefully(care):
                    if precision(like.device) != "fp32" and not care:
                        with plainly(like.device), still():
                            batch = _batch(net, like, copies, min(size, _TRIED_PLAIN), loss.other)
                            _check_right(make(), reference, *batch, most)
                    _try(engine, reference, like, copies, size, most)
                return engine, "; ".join(reasons), care
            except (Unshown, OtherPlan) as reason:
                if str(reason) != PLACE or care == CARE[-1]:
                    reasons.append(str(reason))
                    break
            except FAILURES as error:
                if shards is None and _ran_out(error):
                    raise OutOfMemory(
                        "memory for a chunk of made-up records",
                        f"too little for {size} at once",
                        "Nothing can be shown of a network that cannot be tried.",
                        'Free memory on the device, or set device = "cpu".',
                    ) from None
                reasons.append(f"{type(error).__name__} from torch: {(str(error).splitlines() or [''])[0][:120]}")
                break
            finally:
                sealed.restore()
    if shards is not None:
        raise Unshown("; ".join(reasons))
    return reference, "; ".join(reasons), 0


class OutOfMemory(TrainingError):
    """There is too little memory to try a network on a chunk of made-up records."""


_ALLOCATION = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")


def _ran_out(error: Exception) -> bool:
    """Whether memory could not be allocated; a CPU and the libraries of a GPU say so in words alone."""
    return isinstance(error, torch.OutOfMemoryError) or any(said in str(error) for said in _ALLOCATION)


def is_steady(net: nn.Module) -> bool:
    """Whether a network performs the same operations on every batch of one size and mode, so tracking one is enough.

    Python code may branch on random numbers, the clock or a counter; then one pass says little about the next. Layers
    of torch and of this package do not, and neither does a network made of them alone.
    """
    known = ("torch.nn.modules.", "airlock.")
    return all(
        type(module).__module__.startswith(known)
        and "forward" not in vars(module)
        and not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
        for module in net.modules()
    )


CARE = (0, 1, 2)  # how carefully to compute, the quickest first


@contextmanager
def carefully(care: int = 1) -> Iterator[None]:
    """Compute so that a record's position matters less.

    How a CPU divides its work among threads, how cuDNN adds up in some convolutions, and how cuBLAS divides long sums
    of products among the parts of a GPU may treat positions differently; with care, one thread is used, no atomic
    additions, and so little working memory that such sums are not divided. Attention in one kernel may do so, too; with
    care 2, it is computed in several steps.
    """
    before = torch.backends.cudnn.deterministic
    with contextlib.ExitStack() as stack:
        if care:
            stack.enter_context(one_thread())
            stack.enter_context(_little_workspace())
        if care > 1:
            stack.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
        torch.backends.cudnn.deterministic = before or care > 0
        try:
            yield
        finally:
            torch.backends.cudnn.deterministic = before


_WORKSPACE, _LITTLE = "CUBLAS_WORKSPACE_CONFIG", ":16:8"  # KiB and how many; a setting that cuBLAS knows


@contextmanager
def _little_workspace() -> Iterator[None]:
    """Little working memory for cuBLAS; torch reads this setting when it next needs a workspace."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield
        return
    before = os.environ.get(_WORKSPACE)
    if before == _LITTLE:
        yield
        return
    os.environ[_WORKSPACE] = _LITTLE
    forget_workspaces()
    try:
        yield
    finally:
        os.environ.pop(_WORKSPACE)
        if before is not None:
            os.environ[_WORKSPACE] = before
        forget_workspaces()


@contextmanager
def plainly(device: torch.device) -> Iterator[None]:
    """Compute in float32 throughout: no autocast, no TF32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def measure(
    net: nn.Module,
    like: Tensor,
    copies: int,
    most: int = 1,
    loss: Loss = CROSS_ENTROPY,
    shards: ShardedParameters | None = None,
) -> tuple[int, int]:
    """Roughly how many bytes and positions a record needs; measured on two made-up records, by an engine that works."""
    sealed = Sealed(net, parameters=shards is None)
    x, y = made_up(net, like, 2, copies, 0), torch.zeros(2, dtype=torch.int64, device=like.device)
    keeper = BookKeeper(net, sealed.constants, loss=loss, shards=shards)
    engines = (keeper, FunctionalGradients(net, loss)) if shards is None else (keeper,)
    for engine in engines:
        try:
            engine.squares(x, y, people=_people(y, most))
            return engine.bytes_per_record + _beside(net), engine.places
        except (Unshown, OtherPlan, *FAILURES):
            continue
        finally:
            sealed.restore()
    return 1, 1


def _beside(net: nn.Module) -> int:
    """The bytes that a network says a record takes beside its layers (`nets.hugging_face.LanguageModel`)."""
    found = [getattr(module, "bytes_beside", 0) for module in net.modules()]
    return sum(one for one in found if isinstance(one, int))


def made_up(net: nn.Module, like: Tensor, records: int, copies: int, seed: int) -> Tensor:
    """Random records such as this network takes (`nets.domain`), in the type, layout and place of `like`."""
    chance, whole = np.random.default_rng(seed), not like.is_floating_point()
    numbers = domain.numbers(records * copies, like.shape[1:], domain.vocabulary_of(net), chance, whole=whole)
    x = torch.from_numpy(numbers).to(like.device, like.dtype)
    last = like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last) and not like.is_contiguous()
    return x.contiguous(memory_format=torch.channels_last) if last else x


def _people(y: Tensor, most: int) -> People | None:
    """Made-up people with three, two and one records, as far as there is room; None if everybody has one."""
    sizes: list[int] = []
    for size in (min(3, most), 2):
        sizes += [size] if 1 < size <= len(y) - sum(sizes) else []
    return people_of(sizes, len(y), most, y.device) if most > 1 else None


def _try(
    engine: BookKeeper | FunctionalGradients, reference: OneByOne, like: Tensor, copies: int, size: int, most: int
) -> None:
    """Raise if anything rules out this engine."""
    x, y = _batch(engine.net, like, copies, size, engine.loss.other)
    again = made_up(engine.net, like, size, copies, 2)
    if isinstance(engine, BookKeeper):
        _fix_decisions(engine, x, again, y)
    with still():
        if size > 1:
            _check_places(engine, x, y, copies)
        _check_right(engine, reference, x, y, most)


def _batch(net: nn.Module, like: Tensor, copies: int, size: int, other: int) -> tuple[Tensor, Tensor]:
    y = torch.zeros(size, dtype=torch.int64, device=like.device)
    y[1::2] = other
    return made_up(net, like, size, copies, 1), y


def _fix_decisions(engine: BookKeeper, x: Tensor, again: Tensor, y: Tensor) -> None:
    """Fix decisions to those on made-up records, which must be the same for all of them."""
    engine.squares(x, y)
    first = engine.forget()
    engine.squares(again, y)
    if engine.decisions != first:
        raise Unshown("what the network computes depends on the values of its records")


def _check_places(engine: BookKeeper | FunctionalGradients, x: Tensor, y: Tensor, copies: int) -> None:
    moved = engine.traces(x.roll(copies, 0), y.roll(1, 0))
    for one, other in zip(engine.traces(x, y), moved, strict=True):
        if not torch.equal(one.roll(1, 0), other):
            raise Unshown(PLACE)


def _check_right(
    engine: BookKeeper | FunctionalGradients, reference: OneByOne, x: Tensor, y: Tensor, most: int
) -> None:
    people, used = _people(y, most), precision(x.device)
    owners = torch.arange(len(y), device=x.device) if people is None else people.head
    squares = engine.squares(x, y, people=people)
    if people is not None:
        squares = {name: (square * people.share.square())[people.head] for name, square in squares.items()}
    total = torch.stack(list(squares.values())).sum(0)
    places = {round(i * (len(y) - 1) / (_TRIED - 1)) for i in range(_TRIED)}
    places |= set(range(0 if people is None else min(len(y), 2 * _TRIED)))  # everybody who has several
    tried = sorted({int(owners[place]) for place in places})
    clip = Clip(max(2.0**-40, 0.5 * float(total.sqrt().min())))  # below the smallest norm: every record is clipped
    against = []
    for i in tried:
        mask = (owners == i).to(torch.float32)
        wanted = reference.mean(x, y, mask.nonzero()[:, 0].tolist())
        if wanted is None:
            raise Unshown("the network fails on a single record")
        got, _ = engine.masked_sum(x, y, mask * reference.counts, clip, people=people)
        if not _together(reference.lengths(got)) <= (1.0 - SLACK) * clip.norm:
            raise Unshown("a clipped gradient exceeds its bound")
        norms = {name: squares[name][i].sqrt() for name in wanted}
        against += _disagreement(wanted, norms, got, clip.norm, _AGREE[used], reference)
    if against and (used == "fp32" or 2 * len(against) > len(tried)):
        raise Unshown(against[0])


def _disagreement(wanted: Named, norms: Named, got: Named, bound: float, near: float, reference: OneByOne) -> list[str]:
    """A reason against the norms and the clipped gradient of a record, compared with its ordinary gradient, if any."""
    lengths = reference.lengths(wanted)
    whole = _together(lengths)
    factor = min(1.0, bound / max(whole, 1e-30))
    off = _together(reference.lengths({name: got[name] - g.double() * factor for name, g in wanted.items()}))
    for name, length in lengths.items():
        if not abs(float(norms[name] - length)) <= near * whole:
            return [f"the gradient of '{name}' is not that of an ordinary backward pass"]
    clipped = "a clipped gradient is not that of an ordinary backward pass"
    return [] if off <= 2 * near * bound else [clipped]


def _together(lengths: Named) -> float:
    """The norm of all parameters' values together."""
    return float(torch.stack(list(lengths.values())).norm())


def precision(device: torch.device) -> str:
    """The precision that torch currently computes in."""
    if torch.is_autocast_enabled(device.type):
        return "bf16"
    quick = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    return "tf32" if device.type == "cuda" and quick else "fp32"


def tell_slow(engine: OneByOne, reason: str, like: Tensor, copies: int, expected_lot: float) -> None:
    """Warn that a network is trained one record at a time, and how slow that is."""
    x, label = like[:copies], torch.zeros((), dtype=torch.int64, device=like.device)
    engine.gradient(x, label)
    begin = time.monotonic()
    engine.gradient(x, label)
    each = time.monotonic() - begin
    warnings.warn(
        f"The network is trained one record at a time, about {1000 * each:.2g} ms each: roughly "
        f"{each * expected_lot:.2g} s for a step of {expected_lot:,.0f} records. Faster ways could not be shown to "
        f"keep records apart: {reason}. "
        "The guarantee is the same.",
        AirlockWarning,
        stacklevel=2,
    )


class _Still(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes all random numbers equal, so that results can be compared between batches of different sizes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _is_random(func):
            return func(*args, **kwargs)
        name = func._schema.name
        if name == "aten::native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if name not in _DRAWN:
            args, kwargs = _without_dropout(func, args, kwargs)
        out = func(*args, **kwargs)
        if name in _DRAWN:
            with torch.no_grad():
                out.fill_(_DRAWN[name] if out.is_floating_point() or out.dtype == torch.bool else 0)
        return out


_DRAWN = {
    **dict.fromkeys(("aten::rand", "aten::rand_like", "aten::uniform_"), 0.5),
    **dict.fromkeys(("aten::randn", "aten::randn_like", "aten::normal_"), 0.0),
    **dict.fromkeys(("aten::bernoulli_", "aten::bernoulli"), 1.0),
    **dict.fromkeys(("aten::randint", "aten::randint_like"), 0.0),
}


@cache
def _is_random(func: Any) -> bool:
    """Whether an operator draws numbers; looked up once, because a check runs thousands of operators."""
    names = {argument.name for argument in func._schema.arguments}
    return func._schema.name in {*_DRAWN, "aten::native_dropout"} or "dropout_p" in names


def _without_dropout(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    names = [argument.name for argument in func._schema.arguments]
    place = names.index("dropout_p")
    if place < len(args):
        args = (*args[:place], 0.0, *args[place + 1 :])
    elif "dropout_p" in kwargs:
        kwargs = {**kwargs, "dropout_p": 0.0}
    return args, kwargs


@contextmanager
def still() -> Iterator[None]:
    """Random numbers are held fixed in this context."""
    with _Still():  # type: ignore[no-untyped-call]
        yield
