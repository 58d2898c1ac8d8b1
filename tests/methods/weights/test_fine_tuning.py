"""`weights`/`gaussian` on networks of transformers: what is trained, what leaves, what the card says, and the court."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from airlock import data, methods
from airlock.auditing import AuditSettings, judge, required_attacks
from airlock.auditing.required_attacks import Situation
from airlock.bundle import export
from airlock.config import from_table
from airlock.data import Facts, Records
from airlock.errors import ConfigError, NetError
from airlock.mechanisms import Randomness, Stream
from airlock.methods import Release
from airlock.methods.config_case import neighbours, of_config
from airlock.methods.dp_sgd import BROUGHT, _moved
from airlock.methods.weights.gaussian import Gaussian
from airlock.methods.weights.head_first import CLIP, STEPS, Before, HeadFirst, last_layer
from airlock.methods.weights.shaped import synthetic_records
from airlock.nets.domain import numbers, vocabulary_of
from airlock.training import Recipe, Run
from tests.tiny_models import TOKENS, VOCABULARY, save, write

CLASSES = ("bad", "good")
FACTS = Facts("made-up", (TOKENS,), CLASSES, 100, None, "Made up.", vocabulary=VOCABULARY + 1)


def build(net: Path | str, facts: Facts = FACTS, method: str = "gaussian", **settings: Any) -> Gaussian:
    table = {
        "channel": "weights", "method": method, "data": "digits", "epsilon": 8.0, "delta": 1e-3,
        "net": f"transformers:{net}" if isinstance(net, Path) else net,
        "settings": {"steps": 3, "lot_size": 40, **settings},
    }  # fmt: skip
    made = methods.build(from_table(table), facts)
    assert isinstance(made, Gaussian)
    return made


def release(channel: Gaussian) -> Release:
    x = numbers(100, (TOKENS,), VOCABULARY + 1, np.random.default_rng(0))
    split = data.divide(FACTS, Records(x, (x[:, 0] > 10).astype(np.int64)), None, channel.config.split, seed=0)
    return channel.release(split, Randomness.make(0, insecure_seed=1), Run())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("bert", tmp_path_factory.mktemp("bert"), classes=2)


def test_adapters_are_merged_and_what_is_frozen_leaves_as_it_came(folder: Path) -> None:
    made, came = release(build(folder, learning_rate=0.05)), load_file(folder / "model.safetensors")
    left = {name.removeprefix("model."): value for name, value in made.network.net.named_parameters()}
    assert left.keys() == came.keys()
    moved = {name for name, value in came.items() if not left[name].equal(value)}
    dense = {name for name in came if name.endswith("weight") and came[name].dim() == 2 and "embeddings" not in name}
    head = {name for name in came if "classifier" in name or "pooler" in name}
    assert moved == dense | head
    assert made.plan.details["tune"] == "lora, rank 16"
    assert len(str(made.plan.details["base_sha256"])) == 64
    assert made.network.net_name == made.plan.details["net"]
    assert str(folder) not in str(made.plan)
    assert BROUGHT in made.guarantee.assumptions


def test_it_leaves_as_onnx_that_takes_ids(folder: Path) -> None:
    """Also with a table of more positions than a constant may have: it is among the weights."""
    made = release(build(write("bert", folder / "long", max_position_embeddings=200))).network
    assert vocabulary_of(made.net) == VOCABULARY + 1
    session = export.open_onnx(export.to_onnx(made))
    assert export.largest_difference(session, made.net, (TOKENS,)) <= export.TOLERANCE
    probe = export.probe(7, (TOKENS,), vocabulary_of(made.net))
    assert len(np.unique(probe)) > 10  # texts, and no zeros
    empty = session.run(["logits"], {"input": np.zeros((2, TOKENS), np.float32)})[0]
    with torch.no_grad():
        assert np.allclose(empty, made.net(torch.zeros(2, TOKENS)).numpy(), atol=1e-4)


def test_without_weights_all_of_it_is_trained_from_the_seed(tmp_path: Path) -> None:
    made = build(write("bert", tmp_path))
    assert made.tune == "full"
    assert BROUGHT not in made.plan().guarantee.assumptions
    assert "tune" not in made.plan().details
    assert made.settings.optimiser == "adam"
    same = build(write("bert", tmp_path), tune="last")
    assert same.plan().details["trainable_parameters"] < made.plan().details["trainable_parameters"]


def test_the_learning_rate_follows_from_what_is_trained_unless_it_is_given(folder: Path) -> None:
    rates = [build(folder, tune=how).settings.learning_rate for how in ("full", "lora", "bias", "last")]
    assert rates == sorted(rates)
    assert len(set(rates)) == 4
    assert build(folder).settings.learning_rate == rates[1]
    assert build(folder, tune="full", learning_rate=0.5).settings.learning_rate == 0.5


def test_the_events_are_those_of_any_network(folder: Path) -> None:
    """What is trained changes nothing about what a step costs."""
    every = ("full", "lora", "bias", "last")
    costs = {str(build(folder, tune=how, head_share=0).plan().guarantee.events) for how in every}
    assert len(costs) == 1
    first = {str(build(folder, tune=how).plan().guarantee.events) for how in every}
    assert len(first) == 2  # the head alone is not trained twice


def test_a_fresh_last_layer_is_trained_first_and_paid_for(folder: Path) -> None:
    made, without = build(folder), build(folder, head_share=0)
    first = made.head_first(made.noise_multiplier())
    assert first is not None
    assert made.noise_multiplier() > without.noise_multiplier()
    assert made.planned.details["head_first_noise_multiplier"] == first.noise_multiplier
    assert "head_first_noise_multiplier" not in without.planned.details
    found = [str(event) for event in made.planned.guarantee.events.events]
    assert str(first.event) in found
    assert made.planned.guarantee.epsilon == pytest.approx(8.0, rel=1e-2)
    more = build(folder, head_share=0.5)
    assert more.noise_multiplier() > made.noise_multiplier()
    spent = first.train(made.net(), a_few(), Stream.from_seed(1), 0, Run())
    assert spent == first.event
    assert str(release(made).guarantee.events) == str(made.planned.guarantee.events)


@pytest.mark.parametrize("settings", [{"tune": "last", "head_share": 0.1}, {"tune": "last", "head_share": 0.5}])
def test_a_head_that_is_all_that_is_trained_is_not_trained_first(folder: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"settings\.head_share"):
        build(folder, **settings).plan()


def test_fresh_networks_and_those_of_this_package_train_everything_at_once(tmp_path: Path) -> None:
    assert build(write("bert", tmp_path)).head_share == 0
    with pytest.raises(ConfigError, match=r"settings\.head_share"):
        build("mlp", replace(FACTS, vocabulary=None), head_share=0.1).plan()


def a_few(count: int = 6) -> Records:
    x = numbers(count, (TOKENS,), VOCABULARY + 1, np.random.default_rng(1))
    return Records(x, (x[:, 0] > 10).astype(np.int64))


def test_the_last_layer_alone_gets_the_noise_that_is_paid_for(folder: Path) -> None:
    """Without a record nothing but noise is left: that of all steps, through the momentum."""
    made = build(folder)
    first = made.head_first(made.noise_multiplier())
    assert first is not None
    found: list[float] = []
    nobody = a_few().take(np.zeros(0, np.int64))
    for seed in range(12):
        net = made.net()
        front = Before(net, last_layer(net, 2), FACTS, 0)
        first.train(net, nobody, Stream.from_seed(seed), 0, Run())
        found += (last_layer(net, 2).weight * front.scale).flatten().tolist()
    recipe, kept = first.recipe, 0.9
    reach = [(1 - kept ** (STEPS - step)) / (1 - kept) for step in range(STEPS)]
    noise = first.noise_multiplier * CLIP / first.records * recipe.learning_rate * np.linalg.norm(reach)
    assert len(found) > 300
    assert np.std(found) == pytest.approx(noise, rel=5 / (2 * len(found)) ** 0.5)


def test_a_record_moves_the_last_layer_by_no_more_than_its_bound(folder: Path) -> None:
    """One more record, and the same noise: after one step the layer differs by rate · C / N in units of its inputs."""
    made = build(folder)
    first = made.head_first(made.noise_multiplier())
    assert first is not None
    layers = []
    for count in (5, 6):
        net = made.net()
        front = Before(net, last_layer(net, 2), FACTS, 0)
        one = OneStep(first.noise_multiplier, first.records, FACTS)
        one.train(net, a_few().take(np.arange(count)), Stream.from_seed(3), 0, Run())
        last = last_layer(net, 2)
        layers.append(torch.cat([(last.weight * front.scale).flatten(), last.bias]).detach().double())
    most = first.recipe.learning_rate * CLIP / first.records
    assert 0.9 * most <= float((layers[1] - layers[0]).norm()) <= most * (1 + 1e-4)


def the_last_layer_gets_its_noise(path: Path) -> None:
    test_the_last_layer_alone_gets_the_noise_that_is_paid_for(save("bert", path, classes=2))


def a_record_moves_the_last_layer_little(path: Path) -> None:
    test_a_record_moves_the_last_layer_by_no_more_than_its_bound(save("bert", path, classes=2))


class OneStep(HeadFirst):
    """The first step of it."""

    @property
    def recipe(self) -> Recipe:
        return super().recipe.model_copy(update={"steps": 1})


def test_a_tokenizer_with_more_tokens_than_the_network_is_refused_before_data(folder: Path) -> None:
    larger = Facts("made-up", (TOKENS,), CLASSES, 100, None, "Made up.", vocabulary=VOCABULARY + 2)
    with pytest.raises(NetError, match=f"a tokenizer of {VOCABULARY + 1} tokens"):
        build(folder, larger).plan()


def test_of_another_network_only_the_whole_is_trained() -> None:
    with pytest.raises(ConfigError, match=r"settings\.tune"):
        build("mlp", replace(FACTS, vocabulary=None), tune="lora")


@pytest.mark.parametrize(
    ("channel", "settings"), [("weights/head", {"features": "scattering"}), ("twin/published", {})]
)
def test_methods_that_name_their_network_on_the_card_take_no_folder(
    channel: str, settings: dict[str, Any], folder: Path
) -> None:
    room, _, method = channel.partition("/")
    table = {"channel": room, "method": method, "data": "digits", "epsilon": 8.0, "delta": 1e-3, "settings": settings}
    with pytest.raises(ConfigError, match="a method that trains networks of transformers"):
        methods.build(from_table({**table, "net": f"transformers:{folder}"}), replace(FACTS, vocabulary=None))


def test_made_up_texts_are_texts(folder: Path) -> None:
    """The court's records and the proxy's, of which numbers from 0 to 1 would all be empty."""
    for split in neighbours(FACTS, 0):
        assert split.private.x.max() == VOCABULARY
        assert len(np.unique(split.private.x)) > 10
    x, y = synthetic_records((TOKENS,), 2, 64, 0, VOCABULARY + 1)
    assert x.max() == VOCABULARY
    assert x.eq(x.floor()).all()
    alike = [float((x[y == c][0::2] == x[y == c][1::2])[:, 0].float().mean()) for c in (0, 1)]
    assert min(alike) > 0.1  # of one class, whose own tokens are half of them
    assert build(folder, method="shaped").plan().details["shape_from"] == "synthetic records"


def test_the_very_configuration_stands_in_court(folder: Path) -> None:
    case = of_config(methods.build, build(folder).config, FACTS, Run())
    found = judge(case, Stream.from_seed(0), 64, 0.999, 60.0)
    assert not found.refuted


def test_the_court_sees_whether_a_frozen_tensor_moved(folder: Path) -> None:
    """One number each: 0, unless it is written to."""
    side, _ = neighbours(FACTS, 0)
    once = build(folder).disclosing(side, Run())
    left = once(Randomness.make(0, insecure_seed=1)).leaves
    frozen = {name: value for name, value in left.items() if "embeddings" in name}
    assert frozen
    assert all(value.shape == (1,) and value == 0 for value in frozen.values())
    adapters = [name for name in left if "lora_" in name]
    assert adapters
    net = build(folder).net()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    name = next(iter(frozen))
    with torch.no_grad():
        net.get_parameter(name)[0, 0] += 2.0
    assert _moved(net, start)[name] == pytest.approx(2.0)


def test_shadow_models_have_the_same_base_and_adapters_of_their_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, seen = build(folder, tune="lora"), []
    made = release(channel)
    records = Records(np.zeros((8, TOKENS), np.float32), np.arange(8) % 2)
    split = data.divide(FACTS, records, None, channel.config.split, seed=0)
    monkeypatch.setattr(required_attacks, "attack", lambda target, *rest: seen.append(target))
    given = Situation(
        Gaussian, lambda: {}, 1e-3, split, channel.config.split, 0, AuditSettings(), Run(), channel, 0
    )  # fmt: skip
    required_attacks._network_attacks(made.network, given)
    one, other = (dict(seen[0].make(model).named_parameters()) for model in (1, 2))
    frozen = {name for name, p in one.items() if not p.requires_grad}
    assert frozen == {name for name in one if not any(part in name for part in ("lora_", ".classifier.", ".pooler."))}
    assert all(one[name].equal(other[name]) for name in frozen)
    assert not any(p.equal(other[name]) for name, p in one.items() if "lora_A" in name)
