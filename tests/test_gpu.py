"""What only a GPU can show; skipped without one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from airlock.auditing.attacks.invert import InvertSettings
from airlock.auditing.attacks.reconstruct import ReconstructSettings
from airlock.auditing.features.attack import Attackers
from airlock.auditing.features.feature_pipeline import FeaturePipeline, push
from airlock.auditing.features.reconstruction_metrics import hits_at_most, psnr
from airlock.config import TRANSFORMERS
from airlock.data import Records
from airlock.mechanisms import BALANCE, Clip, GaussianNoise, QuantileBound, Stream, gaussian
from airlock.mechanisms.density import DensityMechanism, published_sensitivity, sheather_jones, silverman
from airlock.nets import create
from airlock.nets.domain import drawn as made_up_records
from airlock.nets.domain import numbers
from airlock.nets.prefix import open_prefix
from airlock.nets.registry import tuned
from airlock.nets.synthetic import draw_classes
from airlock.training import (
    PlainGradients,
    Poisson,
    PrivateGradients,
    Recipe,
    Resident,
    Run,
    Shuffled,
    count_correct,
    fit,
    train_together,
)
from airlock.training.devices import capture
from airlock.training.ensembles.checkpoint_store import Slices, collect
from airlock.training.ensembles.ensemble import Ensemble, Make, makes, model_seed
from airlock.training.ensembles.stacked import Dropouts, Looped, OneBatch, Vmapped, choose, stack
from airlock.training.front_ends.characterise import Effort, Learning, Point, characterise
from airlock.training.per_sample import clipped_sum, use_of
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.engine import Lot, use_for
from airlock.training.per_sample.graphs import Graphs
from airlock.training.per_sample.people import FixedPeople, People
from airlock.training.per_sample.self_check import still
from airlock.training.per_sample.sums import product_squares_by_person
from tests.auditing.attacks.toy_features import conv_front, pictures
from tests.mechanisms.test_gaussian import has_scale
from tests.tiny_models import VOCABULARY, save, shape_of
from tests.training.per_sample.test_copies import by_loop as by_copies
from tests.training.per_sample.test_layers import CASES, by_loop, clips, engine_for, nearness, summed
from tests.training.per_sample.test_leave_one_out import CLIP, LOT, NETS, check, moved
from tests.training.per_sample.test_people import QUICK, owned
from tests.training.per_sample.test_people import by_loop as by_people
from tests.training.per_sample.test_people import moved as moved_by_person
from tests.training.test_loop import blobs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
GPU = torch.device("cuda")


def test_a_capture_that_cuda_breaks_off_leaves_the_generator_where_it_was() -> None:
    torch.manual_seed(7)
    torch.rand(3, device=GPU)
    expected = torch.rand(5, device=GPU)
    torch.manual_seed(7)
    torch.rand(3, device=GPU)
    assert capture(lambda: torch.rand(1000, device=GPU).sum().item()) is None
    assert torch.equal(torch.rand(5, device=GPU), expected)
    torch.manual_seed(7)
    torch.rand(3, device=GPU)
    assert torch.equal(torch.rand(5, device=GPU), expected)
    assert capture(lambda: torch.zeros(3, device=GPU) + 1) is not None


@pytest.fixture(autouse=True)
def _own_precision() -> Iterator[None]:
    """What one test chooses is not the next one's."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.fixture
def exact() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


@pytest.mark.parametrize("kind", ["flat", "by layer", "by channel"])
@pytest.mark.parametrize("case", sorted(CASES))
def test_the_engine_equals_a_loop_over_records(case: str, kind: str, exact: None) -> None:
    torch.manual_seed(0)
    make, draw = CASES[case]
    net, x, y = make().to(GPU).eval(), draw(5).to(GPU), torch.randint(0, 3, (5,), device=GPU)
    clip = clips(net, 0.3, kind)
    if clip.scale is not None:
        clip = Clip(clip.norm, scale={name: s.to(GPU) for name, s in clip.scale.items()})
    assert isinstance(engine_for(net, x), BookKeeper)
    got, wanted = clipped_sum(net, x, y, clip)[0], by_loop(net, x, y, clip)
    size = torch.stack([g.norm() for g in wanted.values()]).norm()
    near = max(nearness(case), 1e-4)  # kernels measure norms from above, by up to 2^-16 of what rounding may hide
    for name, g in wanted.items():
        assert (got[name] - g).norm() <= near * size, name


@pytest.mark.parametrize(
    "shape",
    [
        (7, 5, 9, 11), (64, 32, 128, 130), (40, 100, 33, 64), (9, 2, 16, 16), (20, 100, 256, 300), (40, 24, 384, 16),
        (40, 48, 16, 1536),
    ],
)  # fmt: skip
@pytest.mark.parametrize("tf32", [False, True])
def test_kernels_measure_what_they_sum(shape: tuple[int, int, int, int], tf32: bool, exact: None) -> None:
    from airlock.training.per_sample import sum_kernels

    torch.backends.cuda.matmul.allow_tf32 = tf32
    records, places, into, out = shape
    a, b = torch.randn(records, places, into, device=GPU), torch.randn(records, places, out, device=GPU)
    factors = torch.rand(records, dtype=torch.float64, device=GPU)
    wanted = (torch.bmm(b.double().transpose(1, 2), a.double()) * factors[:, None, None]).sum(0)
    assert (sum_kernels.product_sum(factors, a, b) - wanted).norm() <= (5e-3 if tf32 else 1e-5) * wanted.norm()
    measured, most_a, most_b = sum_kernels.product_squares(a, b, 2.0**-16)
    assert torch.equal(most_a, a.flatten(1).abs().amax(1))
    assert torch.equal(most_b, b.flatten(1).abs().amax(1))
    for record in range(0, records, 5):
        alone = torch.zeros(records, dtype=torch.float64, device=GPU)
        alone[record] = 1
        formed = sum_kernels.product_sum(alone, a, b).square().sum()
        assert 0.9 * measured[record] <= formed <= measured[record] * (1 + 1e-6)


@pytest.mark.parametrize("shape", [(20, 24, 384, 16), (20, 48, 16, 1536), (20, 32, 128, 130), (20, 100, 64, 64)])
@pytest.mark.parametrize("tf32", [False, True])
def test_what_is_summed_is_no_longer_than_measured_where_nearly_all_of_it_cancels(
    shape: tuple[int, int, int, int], tf32: bool, exact: None
) -> None:
    """Then rounding is what is left, and norm and sum may round in different orders."""
    from airlock.training.per_sample import sum_kernels

    torch.backends.cuda.matmul.allow_tf32 = tf32
    records, places, into, out = shape
    a, b = torch.randn(records, places // 2, into, device=GPU), torch.randn(records, places // 2, out, device=GPU)
    a, b = torch.cat([a, a], 1), torch.cat([b, -b * (1 + 1e-4)], 1)
    order = torch.randperm(places, device=GPU)
    a, b = a[:, order].contiguous(), b[:, order].contiguous()
    measured, _, _ = sum_kernels.product_squares(a, b, 2.0**-16)
    for record in range(records):
        alone = torch.zeros(records, dtype=torch.float64, device=GPU)
        alone[record] = 1
        assert sum_kernels.product_sum(alone, a, b).square().sum() <= measured[record] * (1 + 2.0**-16)


@pytest.mark.parametrize("shape", [(5, 9, 11), (32, 128, 130), (70, 33, 64), (2, 16, 16)])
@pytest.mark.parametrize("tf32", [False, True])
def test_kernels_measure_of_people_what_they_sum(shape: tuple[int, int, int], tf32: bool, exact: None) -> None:
    from airlock.training.per_sample import people_kernels

    torch.backends.cuda.matmul.allow_tf32 = tf32
    places, into, out = shape
    people = FixedPeople.of([4, 3, 3, 2, 1], 40, 5, GPU)
    a, b = torch.randn(40, places, into, device=GPU), torch.randn(40, places, out, device=GPU)
    factors = torch.rand(40, dtype=torch.float64, device=GPU) * people.first
    rows = torch.bmm(b.double().transpose(1, 2), a.double())
    wanted = (rows * people.spread(factors)[:, None, None]).sum(0)
    got = people_kernels.product_sum(factors, a, b, people.length)
    assert (got - wanted).norm() <= (5e-3 if tf32 else 1e-5) * wanted.norm()
    measured = people_kernels.product_squares(a, b, people.length)
    for place in (0, 4, 7, 10, 12, 20):
        alone = torch.zeros_like(factors)
        alone[place] = 1
        formed = people_kernels.product_sum(alone, a, b, people.length).square().sum()
        assert abs(float(measured[place] - formed)) <= 1e-6 * float(formed)
    assert not measured[~people.first].any()


def test_kernels_add_up_a_persons_rows_as_without_them() -> None:
    from airlock.training.per_sample import people_kernels

    sizes, rows = [5, 3, 3, 2], torch.randn(64, 7, 301)
    fixed, ragged = FixedPeople.of(sizes, 64, 5, GPU), People(sizes, 64, 5, torch.device("cpu"))
    got, wanted = fixed.add_up(rows.to(GPU)).cpu(), ragged.add_up(rows.clone())
    assert torch.equal(got[ragged.first], wanted[ragged.first])
    a, b = rows[:, 0], torch.randn(64, 19)
    for floor in (0.0, 2.0**-16):
        found = people_kernels.pair_squares(a.to(GPU), b.to(GPU), fixed.rest, fixed.length, 5, floor).cpu()
        pairs = product_squares_by_person(a[:, None], b[:, None], ragged, exact=floor == 0)
        assert torch.allclose(found[ragged.first], pairs[ragged.first], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["flat", "by channel"])
@pytest.mark.parametrize("case", sorted(CASES))
def test_the_engine_equals_a_loop_over_people(case: str, kind: str, exact: None) -> None:
    """By ordinary launches, and by a graph that serves people of other sizes than those it was made with."""
    torch.manual_seed(0)
    make, draw = CASES[case]
    net = make().to(GPU).eval()
    clip = clips(net, 0.3, kind)
    if clip.scale is not None:
        clip = Clip(clip.norm, scale={name: s.to(GPU) for name, s in clip.scale.items()})
    for sizes in ([1, 2], [3, 1, 4], [5, 2], [1, 1, 1, 2], [2, 5, 1], [4]):
        count = sum(sizes)
        x, y = draw(count).to(GPU), torch.randint(0, 3, (count,), device=GPU)
        got, lost = clipped_sum(net, x, y, clip, 3.0, True, owned(sizes), 5, 7.0)
        assert lost == 0
        wanted = by_people(net, x, y, sizes, clip)
        size = torch.stack([g.norm() for g in wanted.values()]).norm()
        for name, g in wanted.items():
            assert (got[name] - g).norm() <= max(nearness(case), 1e-4) * size, name
    graphs = use_for(net, x, 1, Lot(3.0, 7.0, 5, True)).graphs
    assert graphs is None or not graphs.broken


@pytest.mark.parametrize(("records", "columns"), [(3, 7), (100, 1000), (33, 20_000), (1024, 9216)])
def test_a_kernel_sums_rows_in_float64(records: int, columns: int) -> None:
    from airlock.training.per_sample import sum_kernels

    rows, factors = torch.randn(records, columns, device=GPU), torch.rand(records, dtype=torch.float64, device=GPU)
    assert torch.allclose(sum_kernels.weighted_sum(factors, rows), factors @ rows.double(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("last", [False, True])
def test_tf32_keeps_every_record_within_the_bound(last: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    net = create("cifar-net", (3, 32, 32), 3, 0).to(GPU).eval()
    x, y = torch.randn(64, 3, 32, 32, device=GPU) * 5, torch.randint(0, 3, (64,), device=GPU)
    if last:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    for i in range(0, 64, 8):
        total, _ = clipped_sum(net, x[i : i + 1], y[i : i + 1], Clip(0.1))
        assert torch.stack([g.double().norm() for g in total.values()]).norm() <= 0.1


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("count", [1, 16, 17, 1_199_882])
def test_the_kernel_makes_the_stream_of_the_cpu(count: int, shaped: bool) -> None:
    assert gaussian.gpu_takes(torch.zeros(1, device=GPU))
    mechanism, value = GaussianNoise(0.7, 1.3), torch.randn(count)
    shape = torch.rand(count) * 3 if shaped else None
    factors = None if shape is None else shape.numpy()
    wanted = torch.from_numpy(mechanism.add(value.numpy(), Stream.from_seed(count), factors) / 3.0).float()
    there = None if shape is None else shape.to(GPU)
    got = mechanism.add_and_divide(value.to(GPU), 3.0, Stream.from_seed(count), there).cpu()
    assert (got == wanted).float().mean() > 0.999
    assert (got - wanted).abs().max() <= 4 * mechanism.grid


def test_the_kernels_noise_has_the_scale_that_is_accounted_for() -> None:
    noise = GaussianNoise(0.5, 3.0).add_and_divide(torch.zeros(400_000, device=GPU), 1.0, Stream.from_system())
    values = noise.double().cpu().numpy()
    assert has_scale(values, 1.5)
    assert not has_scale(values / 2, 1.5)
    assert stats.kstest(values / 1.5, "norm").pvalue > 1e-4
    half = len(values) // 2
    assert abs(np.corrcoef(values[:half], values[half:])[0, 1]) < 0.01


def test_the_kernel_spends_the_stream_and_is_noted() -> None:
    stream = Stream.from_system()
    GaussianNoise(1.0, 1.0).add_and_divide(torch.zeros(10, device=GPU), 1.0, stream)
    assert stream.drawn_on == ("gpu",)
    with pytest.raises(RuntimeError, match="twice"):
        stream.normal(1)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_private_training_learns(precision: str) -> None:
    stream, records = Stream.from_seed(1), blobs()
    net = create("mlp", (5,), 3, 0)
    recipe = Recipe(steps=60, learning_rate=0.2, precision=precision)  # type: ignore[arg-type]
    gradients = PrivateGradients(1.0, 1.0, 60.0, stream.child("noise"))
    fit(net, Resident(records, GPU), Poisson(0.2, stream.child("lots")), gradients, recipe, 0, Run(device=GPU))
    assert count_correct(net, Records(records.x, records.y)) > 260


PRECISIONS = {"fp32": (False, False), "tf32": (True, False), "bf16": (True, True)}


@pytest.mark.parametrize("tokens", [16, 48])
def test_a_transformer_of_a_real_size_is_computed_by_book_keeping(tokens: int, tmp_path: Path) -> None:
    """Of MiniLM's size with adapters: at the quickest, cuBLAS does not treat all rows alike there."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    sizes = {"hidden_size": 384, "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 1536}
    transformers.AutoConfig.for_model("bert", **sizes).save_pretrained(tmp_path)
    net = tuned(create(f"{TRANSFORMERS}{tmp_path}", (tokens,), 3, 0), "lora", 16, 0).to(GPU).train()
    x, y = made_up_records(net, 512, (tokens,), 1).to(GPU), torch.arange(512, device=GPU) % 3
    vars(net)["halvings"] = 0
    use = use_of(net, x, 1, 512.0, sampled=False)
    assert isinstance(use.engine, BookKeeper), use.reason
    assert moved(net, x, y, Clip(CLIP), 512.0, places=(0, 255, 511)) <= 1


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("precision", sorted(PRECISIONS))
@pytest.mark.parametrize("name", sorted(NETS))
def test_one_record_moves_the_sum_by_at_most_the_bound(name: str, precision: str, mode: str) -> None:
    """Every kind of layer and every odd network, by ordinary launches and by graphs."""
    make, draw = NETS[name]
    torch.manual_seed(1)
    net, x, y = make().to(GPU).train(mode == "train"), draw(9).to(GPU), torch.arange(9, device=GPU) % 3
    if name == "LSTM" and mode == "eval":
        pytest.skip("cuDNN has no gradient of it in evaluation mode; it is refused")
    tf32, half = PRECISIONS[precision]
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    try:
        with warnings.catch_warnings(), torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
            warnings.simplefilter("ignore")
            with still():  # from the start: what a graph draws is fixed with it
                for _ in range(4):  # a graph is made
                    clipped_sum(net, x, y, Clip(CLIP), LOT)
                check(net, x, y)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("precision", sorted(PRECISIONS))
@pytest.mark.parametrize("name", sorted(NETS))
def test_one_person_moves_the_sum_by_at_most_the_bound(name: str, precision: str) -> None:
    """People with 1, 2, 3 and 7 rows: ordinary rows, and equal ones."""
    if name not in QUICK and precision != "tf32":
        pytest.skip("in one precision only")
    make, draw = NETS[name]
    torch.manual_seed(1)
    net, sizes = make().to(GPU).train(), (1, 2, 3, 7, 1)
    x, y = draw(sum(sizes)).to(GPU), torch.arange(sum(sizes), device=GPU) % 3
    tf32, half = PRECISIONS[precision]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    with warnings.catch_warnings(), torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
        warnings.simplefilter("ignore")
        with still():
            assert 0.9 < moved_by_person(net, x, y, sizes, most=7) <= 1
            equal = x[:1].expand_as(x).contiguous()
            assert moved_by_person(net, equal, torch.zeros_like(y), sizes, most=7) <= 1


def graphs_of(net: torch.nn.Module, x: torch.Tensor, records: int, copies: int = 1) -> Graphs:
    found = use_of(net, x, copies, records, sampled=False).graphs
    assert found is not None
    return found


@pytest.mark.parametrize("case", ["mnist-net", "cifar-net", "tied weights", "attention"])
def test_a_graph_gives_what_ordinary_launches_give(case: str, exact: None) -> None:
    make, draw = CASES[case]
    torch.manual_seed(0)
    net = make().to(GPU).eval()
    graphs, clip = graphs_of(net, draw(2).to(GPU), 64), Clip(0.3)
    for count in (61, 64, 57, 61, 63, 58, 62):
        x, y = draw(count).to(GPU), torch.randint(0, 3, (count,), device=GPU)
        got = {name: g.clone() for name, g in clipped_sum(net, x, y, clip, 64.0, False)[0].items()}
        wanted = summed(graphs.keeper, x, y, clip, 64)[0]
        size = torch.stack([g.norm() for g in wanted.values()]).norm()
        assert all((got[name] - g).norm() <= 1e-5 * size for name, g in wanted.items())
        with torch.no_grad():
            for p in net.parameters():
                p.add_(0.01 * torch.randn_like(p))
    assert graphs._graphs
    assert not graphs.broken
    x, y = draw(60).to(GPU), torch.randint(0, 3, (60,), device=GPU)
    if x.is_floating_point():
        x[3] = float("nan")
        assert clipped_sum(net, x, y, clip, 64.0, False)[1] == 1


def test_dropout_in_a_graph_follows_the_seed_and_changes_with_it() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(5, 500), torch.nn.Dropout(0.5), torch.nn.Linear(500, 3)).to(GPU).train()
    x, y = torch.randn(64, 5, device=GPU), torch.zeros(64, dtype=torch.int64, device=GPU)
    sums = []
    for seed in (0, 0, 0, 1, 1, 2):
        torch.manual_seed(seed)
        sums.append(clipped_sum(net, x, y, Clip(100.0))[0]["2.weight"].clone())
    assert torch.equal(sums[3], sums[4])
    assert not torch.equal(sums[3], sums[5])


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("case", ["mnist-net", "tied weights"])
def test_one_graph_serves_a_bound_that_moves(case: str, copies: int, exact: None) -> None:
    make, draw = CASES[case]
    torch.manual_seed(0)
    net = make().to(GPU).eval()
    graphs = graphs_of(net, draw(2).to(GPU), 64, copies)
    for step, count in enumerate((61, 64, 57, 61, 63, 58, 62)):
        clip = Clip(0.1 * 1.5**step, counting=True)
        x, y = draw(count * copies).to(GPU), torch.randint(0, 3, (count,), device=GPU)
        got = {name: g.clone() for name, g in clipped_sum(net, x, y, clip, 64.0, False)[0].items()}
        wanted = summed(graphs.keeper, x, y, clip, 64)[0]
        assert abs(float(got.pop(BALANCE)) - float(wanted.pop(BALANCE))) <= 1  # a norm may be at the bound
        size = torch.stack([g.norm() for g in wanted.values()]).norm()
        assert all((got[name] - g).norm() <= 1e-5 * size for name, g in wanted.items())
    assert len(graphs._graphs) == 1
    assert not graphs.broken


@pytest.mark.parametrize("case", sorted(CASES))
def test_copies_of_a_record_are_clipped_as_one(case: str, exact: None) -> None:
    torch.manual_seed(0)
    make, draw = CASES[case]
    net, x, y = make().to(GPU).eval(), draw(9).to(GPU), torch.randint(0, 3, (3,), device=GPU)
    got, wanted = clipped_sum(net, x, y, Clip(0.3))[0], by_copies(net, x, y, 3, Clip(0.3))
    size = torch.stack([g.norm() for g in wanted.values()]).norm()
    near = max(nearness(case), 1e-4)  # kernels measure norms from above, by up to 2^-16 of what rounding may hide
    for name, g in wanted.items():
        assert (got[name] - g).norm() <= near * size, name


def test_training_with_a_bound_that_moves_learns() -> None:
    stream, records = Stream.from_seed(1), blobs()
    net, recipe = create("mlp", (5,), 3, 0), Recipe(steps=60, learning_rate=0.2)
    gradients = PrivateGradients(5.0, 1.0, 60.0, stream.child("noise"), QuantileBound(0.5, 0.2, 3.0))
    fit(net, Resident(records, GPU), Poisson(0.2, stream.child("lots")), gradients, recipe, 0, Run(device=GPU))
    assert gradients.clip.norm < 5.0
    assert count_correct(net, Records(records.x, records.y)) > 240


def test_plain_training_in_bfloat16_learns() -> None:
    """Its loss falls as that of float32 does: every step sees the weights of the step before."""
    records, found = blobs(), {}
    for precision in ("fp32", "bf16"):
        net, recipe = create("mlp", (5,), 3, 0), Recipe(steps=60, learning_rate=0.05, precision=precision)
        fit(net, Resident(records, GPU), Shuffled(32, 0), PlainGradients(), recipe, 0, Run(device=GPU))
        found[precision] = torch.cat([p.flatten() for p in net.parameters()])
    assert (found["bf16"] - found["fp32"]).norm() <= 0.05 * found["fp32"].norm()


def assert_as_alone(
    make: Make, found: Ensemble, records: Records, members: list[np.ndarray[Any, Any]], recipe: Recipe
) -> None:
    """Every model is what it becomes when it is trained by itself."""
    for model, own in enumerate(members):
        alone, seed = make(model), model_seed(3, model)
        part = Resident(Records(records.x[own], records.y[own]), GPU)
        fit(alone, part, Shuffled(16, seed), PlainGradients(), recipe, seed, Run(device=GPU))
        for p, q in zip(alone.parameters(), found.model(model).parameters(), strict=True):
            torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("net", ["mlp", "mnist-net"])
def test_models_trained_together_are_what_each_is_alone(
    net: str, exact: None, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(0)
    records = Records(rng.random((60, 1, 28, 28), np.float32), rng.integers(0, 10, 60))
    members = [np.arange(0, 35), np.arange(10, 60)]  # dropout is each model's own, last batches differ
    recipe, run = Recipe(steps=5, learning_rate=0.02, precision="fp32"), Run(device=GPU)
    make = makes(net, (1, 28, 28), 10, 3)
    found = train_together(make, 2, Resident(records, GPU), members, recipe, 3, run, batch_size=16)
    assert "one after another" not in caplog.text
    assert_as_alone(make, found, records, members, recipe)


def test_dropout_masks_of_many_networks_are_those_of_each() -> None:
    from airlock.training.ensembles import stacked_kernels

    assert stacked_kernels.draws_masks(GPU)
    net = create("cifar-net", (3, 32, 32), 10, 0)
    dropouts = Dropouts(net, (3, 32, 32), GPU)
    chances, sizes = [7, 2**60 + 1, 3], [20, 20, 9]
    together = dropouts.together(chances, sizes, 20)
    assert together is not None
    for place, (chance, size) in enumerate(zip(chances, sizes, strict=True)):
        for mask, wanted in zip(together, dropouts.masks(chance, size), strict=True):
            assert torch.equal(mask[place, :size], wanted)
            assert not mask[place, size:].any()


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_adapters_on_one_base_are_what_each_is_alone(kind: str, exact: None, tmp_path: Path) -> None:
    name, shape = f"{TRANSFORMERS}{save(kind, tmp_path)}", shape_of(kind)
    rng = np.random.default_rng(0)
    records = Records(numbers(60, shape, VOCABULARY + 1, rng), rng.integers(0, 3, 60))
    members = [np.arange(0, 35), np.arange(10, 60)]  # last batches differ
    recipe, run = Recipe(steps=9, learning_rate=0.02, precision="fp32"), Run(device=GPU)

    def make(model: int) -> torch.nn.Module:
        return tuned(create(name, shape, 3, 0), "lora", 4, model)

    engine = choose([make(0).to(GPU), make(1).to(GPU)], shape, GPU)
    assert isinstance(engine, OneBatch)
    found = train_together(make, 2, Resident(records, GPU), members, recipe, 3, run, batch_size=16)
    assert_as_alone(make, found, records, members, recipe)


def test_a_step_of_adapters_is_one_graph(tmp_path: Path) -> None:
    name, shape = f"{TRANSFORMERS}{save('bert', tmp_path)}", shape_of("bert")
    nets = [tuned(create(name, shape, 3, 0), "lora", 4, model).to(GPU) for model in range(3)]
    engine = choose(nets, shape, GPU)
    held, rng = stack(nets), np.random.default_rng(0)
    for _ in range(4):
        x = torch.from_numpy(numbers(24, shape, VOCABULARY + 1, rng)).view(3, 8, *shape).to(GPU)
        y = torch.from_numpy(rng.integers(0, 3, (3, 8))).to(GPU)
        engine(held, x, y, [8] * 3, [0] * 3)
        found = {name: p.grad for name, p in held.named_parameters() if p.requires_grad}
        Looped(nets[0])(held, x, y, [8] * 3, [0] * 3)
        for key, p in held.named_parameters():
            if p.requires_grad:
                torch.testing.assert_close(found[key], p.grad, rtol=1e-3, atol=1e-5)
    assert isinstance(engine, OneBatch)
    assert engine.replays is not None
    assert len(engine.replays._graphs) == 1


@pytest.mark.parametrize(
    ("into", "out", "kernel", "padding", "size"),
    [
        (1, 32, 3, 0, 28),
        (3, 20, 3, 1, 15),
        (32, 64, 3, 0, 13),
        (64, 64, 3, 1, 7),
        (5, 7, 5, 2, 9),
        (8, 9, 7, 3, 10),
        (40, 100, 1, 0, 6),
    ],
)
def test_kernels_for_many_networks_give_what_each_gives_alone(
    into: int, out: int, kernel: int, padding: int, size: int, exact: None
) -> None:
    torch.manual_seed(0)
    nets = [
        nn.Sequential(nn.Conv2d(into, 8, 1), nn.Conv2d(8, into, 1), nn.Conv2d(into, out, kernel, padding=padding),
                      nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(out, 4, 1), nn.ReLU(), nn.Flatten(),
                      nn.LazyLinear(3))
        for _ in range(3)
    ]  # fmt: skip
    x, y = torch.randn(3, 6, into, size, size, device=GPU), torch.randint(0, 3, (3, 6), device=GPU)
    for net in nets:
        net(x[0].cpu())
    dropouts = Dropouts(nets[0], (into, size, size), GPU)
    fused, loop = Vmapped(nets[0], dropouts, fills=True, fused=True), Looped(nets[0])
    assert fused.fused
    held, wanted = stack(nets).to(GPU), stack(nets)
    fused(held, x, y, [6, 5, 6], [1, 2, 3])
    loop(wanted, x.cpu(), y.cpu(), [6, 5, 6], [1, 2, 3])  # cuDNN's own rounding is coarser for some shapes
    for name, p in wanted.named_parameters():
        found = held.get_parameter(name).grad
        assert found is not None, name
        torch.testing.assert_close(found.cpu(), p.grad, rtol=1e-4, atol=1e-5)


def test_networks_with_convolutions_take_the_kernels_for_many() -> None:
    nets = [create("cifar-net", (3, 32, 32), 10, seed) for seed in (0, 1)]
    engine = choose(nets, (3, 32, 32), GPU)
    assert isinstance(engine, Vmapped)
    assert engine.fused


@pytest.mark.parametrize("rule", [silverman, sheather_jones])
def test_a_density_has_the_same_scores_bandwidths_and_draws_on_both_devices(rule: Callable[[Tensor], Tensor]) -> None:
    block = torch.randn(20, 3000) * 0.01 + torch.randn(3000)
    block[0, :50] = 100.0  # computed directly, not as a series
    mechanism = DensityMechanism(1.0, published_sensitivity(20), points=64)

    def on(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        own = block.to(device)
        b = rule(own)
        ends = own.amin(0).double() - b, own.amax(0).double() + b, b
        return b.cpu(), mechanism.scores(own, *ends).cpu(), mechanism.pick(own, *ends, Stream.from_seed(3)).cpu()

    here, there = on(torch.device("cpu")), on(GPU)
    torch.testing.assert_close(there[0], here[0], rtol=1e-9, atol=0)
    torch.testing.assert_close(there[1], here[1], rtol=0, atol=2e-9)
    assert float((there[2] != here[2]).double().mean()) < 1e-3  # where a uniform number is at a boundary


def test_a_collection_on_a_gpu_ends_in_the_models_that_are_trained_together(tmp_path: Path, exact: None) -> None:
    data = Resident(Records(np.random.default_rng(0).random((64, 1, 8, 8), np.float32), np.arange(64) % 10), GPU)
    recipe, run = Recipe(steps=6, learning_rate=0.05, precision="fp32"), Run(device=GPU)
    make = makes("digits-net", (1, 8, 8), 10, 0, shared=True)
    found = collect(make, 4, data, recipe, 0, run, tmp_path / "c", (3,), batch_size=16)
    wanted = train_together(make, 4, data, [np.arange(64)] * 4, recipe, 0, run, batch_size=16)
    rows, same = (torch.cat([b for _, b in s.blocks()], 1) for s in (found.at(), Slices.of(wanted)))
    torch.testing.assert_close(rows, same, rtol=1e-3, atol=1e-5)
    assert not torch.equal(rows, torch.cat([b for _, b in found.at(3).blocks()], 1))


def test_features_are_rebuilt_on_a_gpu_as_on_a_cpu(exact: None) -> None:
    pipeline, records = FeaturePipeline(conv_front(4), clip=3.0), pictures(260)

    def on(device: torch.device) -> dict[str, float]:
        pairs = push(pipeline, records, device)
        known, target = pairs.take(slice(200)), pairs.take(slice(200, None))
        settings = InvertSettings(steps=20, variation=(0.01,), restarts=0, learning_rate=0.1)
        net = ReconstructSettings(epochs=2, batch_size=50)
        everybody = Attackers.learn(pipeline, known, 0, Run(device=device), settings, net)
        assert hits_at_most(target.x, 60.0) == 1 / 60
        made = everybody.make(target.clean, target.y)
        return {name: float(psnr(found, target.x).mean()) for (name, _), found in made.items()}

    here, there = on(torch.device("cpu")), on(GPU)
    assert there == pytest.approx(here, abs=0.5)


@pytest.mark.parametrize("few", [0, 10**9])
def test_front_ends_are_characterised_as_on_a_cpu(few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airlock.training.front_ends.probe_networks._FEW", few)
    images, labels = draw_classes(160, (3, 8, 8), 3, 0)
    public, fronts = Records(images.numpy(), labels.numpy()), {3: open_prefix("vgg16", 3, (3, 8, 8))}
    effort = Effort(
        utility=Learning(records=64, epochs=2, batch_size=32),
        privacy=Learning(records=64, epochs=2, batch_size=32, width=8, blocks=2),
        test_records=64,
    )
    points = [Point(3, (1, 2, 3)), Point(3, (5,)), Point(3, tuple(range(20)))]
    found = [
        characterise(fronts, public, 3, points, Run(device=device), effort, cache=tmp_path / str(device)).cells
        for device in (GPU, torch.device("cpu"))
    ]
    for there, here in zip(*found, strict=True):
        assert there.psnr == pytest.approx(here.psnr, abs=1.0)
        assert there.utility == pytest.approx(here.utility, abs=0.25)
