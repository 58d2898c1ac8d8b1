"""Language models: taking a text away moves the sum by at most the bound, and a text's loss is its own."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from airlock.config import TRANSFORMERS
from airlock.errors import NetError
from airlock.mechanisms import Clip
from airlock.nets import check as check_net
from airlock.nets import create
from airlock.nets.domain import drawn, lengths
from airlock.nets.hugging_face import LanguageModel, Tune
from airlock.nets.registry import tuned
from airlock.training.losses import NEXT_TOKEN
from airlock.training.per_sample import clipped_sum, outputs, use_of
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.self_check import still
from tests.tiny_models import TOKENS, write
from tests.training.per_sample.test_leave_one_out import LOT, check, moved
from tests.training.per_sample.test_transformers import agrees_with_ordinary_passes

CASES = [
    (kind, how, precision)
    for kind, how in (("gpt2", "full"), ("gpt2", "lora"), ("gpt2", "bias"), ("llama", "full"), ("llama", "lora"),
                      ("llama", "last"))
    for precision in ("fp32", "bf16")
]  # fmt: skip


def make(kind: str, how: Tune, folder: Path) -> LanguageModel:
    net = tuned(create(f"{TRANSFORMERS}{write(kind, folder)}", (TOKENS,), 0, seed=1), how, 4, seed=1)
    assert isinstance(net, LanguageModel)
    return net


@pytest.mark.parametrize(("kind", "how", "precision"), CASES)
def test_one_text_moves_the_sum_by_at_most_the_bound(kind: str, how: Tune, precision: str, tmp_path: Path) -> None:
    """GPT-2 has one table for tokens and head; Llama has rotary positions and grouped queries."""
    net, y = make(kind, how, tmp_path).train(), torch.zeros(9, dtype=torch.int64)
    x = drawn(net, 9, (TOKENS,), 4)
    x[[0, 4, 8], 1] = 1  # of which at least one token is predicted
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"), warnings.catch_warnings():
        warnings.simplefilter("error")
        use = use_of(net, x, 1, LOT, loss=NEXT_TOKEN)
        assert isinstance(use.engine, BookKeeper), use.reason
        with still():
            check(net, x, y, NEXT_TOKEN)


def tied_embeddings_keep_the_bound(folder: Path) -> None:
    """In whichever way they are computed."""
    net, y = make("gpt2", "full", folder).train(), torch.zeros(9, dtype=torch.int64)
    x = drawn(net, 9, (TOKENS,), 4)
    with still(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert moved(net, x, y, Clip(1e-3), loss=NEXT_TOKEN) <= 1


def test_a_table_that_is_also_the_head_has_the_gradient_of_both(tmp_path: Path) -> None:
    net = make("gpt2", "full", tmp_path).train()
    name = "model.transformer.wte.weight"
    assert net.get_parameter(name) is net.get_parameter("model.lm_head.weight")
    x, y = drawn(net, 5, (TOKENS,), 1), torch.zeros(5, dtype=torch.int64)
    agrees_with_ordinary_passes(BookKeeper(net, loss=NEXT_TOKEN), x, y)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_loss_is_the_mean_over_the_texts_own_next_tokens(kind: str, tmp_path: Path) -> None:
    net = make(kind, "full", tmp_path).eval()
    with torch.no_grad():
        nn.init.normal_(next(p for p in net.parameters() if p.dim() == 2), std=1.0)
        x = drawn(net, 6, (TOKENS,), 2)
        x[0, 1:], x[1, 2:] = 0, 0  # of one token, of two
        x[1:, 1] = 3
        found = net(x)[:, 0]
        assert found[0] == 0
        for text, loss in zip(x[1:], found[1:], strict=True):
            own = text[text > 0].long() - 1
            logits = net.model(input_ids=own[None]).logits[0, :-1]
            assert float(loss) == pytest.approx(float(F.cross_entropy(logits, own[1:])), abs=1e-5)
        alone = torch.cat([net(row[None]) for row in x])[:, 0]
        assert torch.allclose(found, alone, atol=1e-6)
        assert torch.allclose(net(F.pad(x, (0, 5)))[:, 0], found, atol=1e-5)  # what is empty counts for nothing


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_text_of_one_token_or_beyond_the_vocabulary_is_a_record_like_others(kind: str, tmp_path: Path) -> None:
    net = make(kind, "full", tmp_path).train()
    x, y = drawn(net, 9, (TOKENS,), 4), torch.zeros(9, dtype=torch.int64)
    x[3], x[5], x[7, 1:] = 0, 10**6, 0
    total, dropped = clipped_sum(net, x, y, Clip(1.0), LOT, loss=NEXT_TOKEN)
    assert dropped == 0
    assert all(bool(g.isfinite().all()) for g in total.values())
    nothing, _ = clipped_sum(net, x[[3, 7]], y[:2], Clip(1.0), LOT, loss=NEXT_TOKEN)
    assert all(not g.any() for g in nothing.values())


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_texts_are_seen_without_their_padding_and_one_moves_the_sum_by_at_most_the_bound(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, y = make(kind, "full", tmp_path).train(), torch.zeros(9, dtype=torch.int64)
    x = drawn(net, 9, (TOKENS,), 4)
    for place, length in enumerate((8, 1, 0, 2, 3, 4, 5, 7, 2)):
        x[place, length:] = 0
    assert lengths(net, TOKENS) == [2, 4, 8]
    seen: set[int] = set()
    net.register_forward_pre_hook(lambda module, given: seen.add(given[0].shape[1]))
    with still():
        use = use_of(net, x, 1, LOT, loss=NEXT_TOKEN)
        assert isinstance(use.engine, BookKeeper), use.reason
        short, dropped = clipped_sum(net, x, y, Clip(0.1), LOT, loss=NEXT_TOKEN)
        assert (dropped, seen) == (0, {2, 4, 8})
        assert torch.equal(outputs(net, x) == 0, (x[:, 1:2] == 0))
        with monkeypatch.context() as patched:
            patched.setattr(net, "halvings", 0)
            whole, _ = clipped_sum(net, x, y, Clip(0.1), LOT, loss=NEXT_TOKEN)
        size = torch.stack([g.norm() for g in whole.values()]).norm()
        off = torch.stack([(whole[name] - g).norm() for name, g in short.items()]).norm()
        assert off <= 1e-4 * size
        assert moved(net, x, y, Clip(1e-3), loss=NEXT_TOKEN) <= 1


@pytest.mark.parametrize(("places", "wanted"), [(2, [2]), (3, [2, 3]), (4, [2, 4]), (7, [2, 4, 7]), (16, [4, 8, 16])])
def test_no_length_is_too_short_to_predict_a_token(places: int, wanted: list[int], tmp_path: Path) -> None:
    net = create(f"{TRANSFORMERS}{write('gpt2', tmp_path)}", (places,), 0, seed=1)
    assert lengths(net, places) == wanted


def test_a_network_to_which_the_length_matters_sees_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = LanguageModel.forward
    monkeypatch.setattr(LanguageModel, "forward", lambda self, x: forward(self, x) * x.shape[1])
    assert lengths(make("gpt2", "full", tmp_path), TOKENS) == [TOKENS]


def a_text_is_weighed_by_itself(folder: Path) -> None:
    """A network that divides by the tokens of its whole batch is refused."""
    net = make("gpt2", "full", folder)
    check_net(net, "gpt2", (TOKENS,), 0)


def test_a_loss_over_the_whole_batch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_text_is_weighed_by_itself(tmp_path / "as it is")
    forward = LanguageModel.forward
    monkeypatch.setattr(LanguageModel, "forward", lambda self, x: forward(self, x) / (x > 0).sum())
    with pytest.raises(NetError, match="depend on their own record alone"):
        a_text_is_weighed_by_itself(tmp_path / "over all")


def test_how_many_are_asked_at_once_follows_from_public_sizes(tmp_path: Path) -> None:
    small = make("gpt2", "full", tmp_path)
    large = LanguageModel(small.model, 64)
    large.vocabulary = 50_258
    assert large.at_once < small.at_once
    assert large.at_once * large.places * large.vocabulary <= 1 << 28
    assert large.bytes_beside == 16 * 64 * 50_258
