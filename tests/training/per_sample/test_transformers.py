"""Networks of transformers: taking a record away moves the sum by at most the bound, and which engine computes them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from airlock.config import TRANSFORMERS
from airlock.errors import TrainingError
from airlock.mechanisms import Clip
from airlock.nets import create
from airlock.nets.domain import drawn
from airlock.nets.hugging_face import Tune, merged
from airlock.nets.registry import tuned
from airlock.training.per_sample import clipped_sum, engine, use_of
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.functional import FunctionalGradients
from airlock.training.per_sample.layers import AdapterRule, TransposedRule, adapted
from airlock.training.per_sample.one_by_one import OneByOne
from airlock.training.per_sample.sealed import USES
from airlock.training.per_sample.self_check import still
from tests.tiny_models import IMAGES, OTHERS, shape_of, write
from tests.training.per_sample.test_leave_one_out import LOT, check, moved

CLASSES = 3
BOOK = (
    *[(kind, "full") for kind in ("bert", "roberta", "deberta", "gpt2", "llama", "vit", "beit")],
    *[(kind, "lora") for kind in ("bert", "gpt2", "llama", "vit", "mpnet")],
    ("bert", "bias"), ("bert", "last"), ("deberta-v2", "last"),
)  # fmt: skip
# A table of relative positions belongs to no record, and no rule says what one record's part of its gradient is.
FUNCTIONAL = (("deberta-v2", "full"), ("mpnet", "full"))
CANNOT = {"deberta", "deberta-v2"}  # by themselves: they fill places with a number that bfloat16 does not have
CASES = [
    pytest.param(kind, how, precision, id=f"{kind}-{how}-{precision}")
    for kind, how in (*BOOK, *FUNCTIONAL)
    for precision in ("fp32", "bf16")
    if precision == "fp32" or kind not in CANNOT
]


def make(kind: str, how: Tune, folder: Path) -> nn.Module:
    name = f"{TRANSFORMERS}{write(kind, folder)}"
    return tuned(create(name, shape_of(kind), CLASSES, seed=1), how, 4, seed=1)


@pytest.mark.parametrize(("kind", "how", "precision"), CASES)
def test_one_record_moves_the_sum_by_at_most_the_bound(kind: str, how: Tune, precision: str, tmp_path: Path) -> None:
    net, y = make(kind, how, tmp_path).train(), torch.arange(9) % CLASSES
    x = drawn(net, 9, shape_of(kind), 4)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"), warnings.catch_warnings():
        warnings.simplefilter("error")  # as where a network is trained one record at a time
        use = use_of(net, x, 1, LOT)
        assert isinstance(use.engine, BookKeeper if (kind, how) in BOOK else FunctionalGradients), use.reason
        with still():
            check(net, x, y)


def whether_a_network_is_refused_follows_from_no_record(folder: Path) -> None:
    """One that cannot compute texts of a quarter of the length is refused, whether one is there or not."""
    net, y = make("bert", "lora", folder).train(), torch.arange(9) % CLASSES
    x = drawn(net, 9, (8,), 4).clamp(min=1)

    def fail(module: nn.Module, given: tuple[torch.Tensor]) -> None:
        if given[0].shape[1] == 2:
            raise RuntimeError("too short")

    net.register_forward_pre_hook(fail)
    short = x.clone()
    short[3, 1:] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for lot in (x, short):
            with pytest.raises(TrainingError, match="made-up record"):
                clipped_sum(net, lot, y, Clip(1.0), LOT)


def test_whether_a_network_is_refused_follows_from_no_record(tmp_path: Path) -> None:
    whether_a_network_is_refused_follows_from_no_record(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", OTHERS)
def test_other_architectures_keep_the_bound(kind: str, tmp_path: Path) -> None:
    net, y = make(kind, "full", tmp_path).train(), torch.arange(9) % CLASSES
    x = drawn(net, 9, shape_of(kind), 4)
    with warnings.catch_warnings(), still():
        warnings.simplefilter("ignore")
        use = use_of(net, x, 1, LOT)
        assert type(use.engine).__name__ == OTHERS[kind][0], use.reason
        check(net, x, y)


def an_adapted_network_keeps_the_bound(folder: Path) -> None:
    """The same for one network, in whichever way it is computed."""
    net, y = make("bert", "lora", folder).train(), torch.arange(9) % CLASSES
    x = drawn(net, 9, (8,), 4)
    with still(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert moved(net, x, y, Clip(1e-3), places=(0, 4, 8)) <= 1


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_a_text_that_is_empty_or_beyond_the_vocabulary_is_a_record_like_others(kind: str, tmp_path: Path) -> None:
    net = make(kind, "lora", tmp_path).train()
    x, y = drawn(net, 9, shape_of(kind), 4), torch.arange(9) % CLASSES
    x[3], x[5] = 0, 10**6
    total, dropped = clipped_sum(net, x, y, Clip(1.0), LOT)
    assert dropped == 0
    assert all(bool(g.isfinite().all()) for g in total.values())


def test_what_stands_where_there_is_no_token_changes_nothing(tmp_path: Path) -> None:
    """Padding is a 0, and what is shorter than a batch's longest gets the same logits as by itself."""
    for kind in ("bert", "roberta", "deberta", "mpnet", "gpt2", "llama"):
        net = make(kind, "full", tmp_path / kind).eval()
        with torch.no_grad():
            nn.init.normal_(next(p for p in net.parameters() if p.dim() == 2), std=1.0)
            long = drawn(net, 4, (8,), 1)
            long[:, 4:] = 0
            if kind != "deberta":  # which measures distances over whatever there is room for
                assert torch.allclose(net(long), net(long[:, :4]), atol=1e-5), kind
            moved = torch.cat([long[:1], drawn(net, 3, (8,), 2)])
            assert torch.allclose(net(long)[0], net(moved)[0], atol=1e-5), kind


def agrees_with_ordinary_passes(book: BookKeeper, x: Tensor, y: Tensor) -> None:
    """Norms and gradients of single records, by parameter."""
    slow = OneByOne(book.net, loss=book.loss)
    with still():
        squares = book.squares(x, y)
        for i in range(len(y)):
            mask = torch.zeros(len(y))
            mask[i] = 1
            got, _ = book.masked_sum(x, y, mask, Clip(1e6))
            wanted = slow.gradient(x[i : i + 1], y[i])
            assert wanted is not None
            for name, g in wanted.items():
                assert torch.allclose(got[name].float(), g, atol=1e-6), name
                assert abs(float(squares[name][i].sqrt() - g.norm())) < 1e-5, name


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "deberta"])
def test_texts_are_seen_without_their_padding_and_one_moves_the_sum_by_at_most_the_bound(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, y = make(kind, "full", tmp_path).train(), torch.arange(9) % CLASSES
    x = drawn(net, 9, (8,), 4)
    for place, length in enumerate((8, 1, 0, 2, 3, 4, 5, 7, 2)):
        x[place, length:] = 0
    seen: set[int] = set()
    net.register_forward_pre_hook(lambda module, given: seen.add(given[0].shape[1]))
    with still():
        short, dropped = clipped_sum(net, x, y, Clip(0.1), LOT)
        assert dropped == 0
        assert seen == {2, 4, 8}
        with monkeypatch.context() as patched:
            patched.setattr(net, "halvings", 0)
            whole, _ = clipped_sum(net, x, y, Clip(0.1), LOT)
        size = torch.stack([g.norm() for g in whole.values()]).norm()
        off = torch.stack([(whole[name] - g).norm() for name, g in short.items()]).norm()
        assert off <= 1e-4 * size
        assert 0.9 < moved(net, x, y, Clip(1e-3)) <= 1
        assert moved(net, x[:1].expand_as(x).contiguous(), torch.zeros_like(y), Clip(1e-3), places=(0, 8)) <= 1


def test_the_dense_layer_of_gpt2_has_a_rule_of_its_own(tmp_path: Path) -> None:
    net = make("gpt2", "full", tmp_path).train()
    x, y = drawn(net, 5, (8,), 1), torch.arange(5) % CLASSES
    book = BookKeeper(net)
    rules = [rule for rule in book.rules.values() if isinstance(rule, TransposedRule)]
    assert len(rules) == 4
    agrees_with_ordinary_passes(book, x, y)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "vit"])
def test_merged_adapters_compute_the_same_and_are_gone(kind: str, tmp_path: Path) -> None:
    net = make(kind, "lora", tmp_path)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "lora_" in name:
                nn.init.normal_(parameter, std=0.5)
        x = drawn(net, 5, shape_of(kind), 0)
        before = net.eval()(x)
        after = merged(net)(x)
    assert torch.allclose(before, after, atol=1e-4)
    plain = create(f"{TRANSFORMERS}{tmp_path}", shape_of(kind), CLASSES, seed=1)
    assert plain.state_dict().keys() == net.state_dict().keys()
    assert not torch.allclose(plain.eval()(x), after, atol=1e-2)


def test_images_of_another_size_and_in_grey_are_taken(tmp_path: Path) -> None:
    for kind in IMAGES:
        net = create(f"{TRANSFORMERS}{write(kind, tmp_path / kind)}", (1, 8, 8), CLASSES, seed=0).eval()
        assert net(torch.rand(2, 1, 8, 8)).shape == (2, CLASSES)


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_layer_and_its_adapter_are_one_product(kind: str, scale: float, tmp_path: Path) -> None:
    """Also where the adapter is multiplied by a number; what is used of a record is part of the trial of positions."""
    net = make(kind, "lora", tmp_path).train()
    torch.manual_seed(0)
    for name, layer in net.named_modules():
        if hasattr(layer, "lora_A"):
            layer.scaling["default"] = scale
        if "lora_B" in name and isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.3)
    x, y = drawn(net, 6, shape_of(kind), 4), torch.arange(6) % CLASSES
    book = BookKeeper(net)
    rules = [rule for rule in book.rules.values() if isinstance(rule, AdapterRule)]
    assert len(rules) >= 4
    agrees_with_ordinary_passes(book, x, y)
    traced = len(book.traces(x, y))
    assert traced == 2 * len(book.rules) + 2 * len(rules)
    assert all("forward" not in vars(layer) for layer in net.modules())


@pytest.mark.parametrize("change", ["dropout", "merged", "a bias"])
def test_an_adapter_that_is_more_than_a_product_is_not_taken_for_one(change: str, tmp_path: Path) -> None:
    net = make("bert", "lora", tmp_path).train()
    layer = next(layer for layer in net.modules() if hasattr(layer, "lora_A"))
    assert adapted(layer)
    if change == "dropout":
        layer.lora_dropout["default"] = nn.Dropout(0.5)
    elif change == "merged":
        layer.merge()
    else:
        layer.lora_A["default"].bias = nn.Parameter(torch.zeros(layer.lora_A["default"].out_features))
    assert not adapted(layer)
    assert not isinstance(BookKeeper(net).rules.get(layer), AdapterRule)


def test_texts_of_a_small_lot_are_not_divided_where_that_does_not_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By public figures alone; the sum is the same to rounding."""
    net = make("bert", "lora", tmp_path).eval()
    assert net.halvings > 0
    x, y = drawn(net, 9, (8,), 4), torch.arange(9) % CLASSES
    x[3:, 4:] = 0
    sums, uses = [], []
    for worth in (0, 8192):
        vars(net).pop(USES, None)
        monkeypatch.setitem(engine._WORTH, "cpu", worth)
        sums.append(clipped_sum(net, x, y, Clip(0.1), 40.0)[0])
        uses.append(len(vars(net)[USES]))
    assert uses == [1 + net.halvings, 1]
    for name, part in sums[0].items():
        assert torch.allclose(part, sums[1][name], atol=1e-6), name
