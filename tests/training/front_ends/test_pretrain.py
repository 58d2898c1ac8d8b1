"""Training on public images: kept by everything that determines it, resumed to the same bits, and of use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from airlock.data import Public, Records, digest, halve
from airlock.errors import ConfigError, Interrupted, NetError, OutputError
from airlock.nets.backbones import ResidualTrunk
from airlock.nets.prefix import open_prefix
from airlock.nets.synthetic import draw_classes
from airlock.training import Run
from airlock.training.front_ends.pretrain import (
    LABEL,
    Pretraining,
    _Classifier,
    _file,
    cut_and_mix,
    front_weights,
    pretrained,
    write_weights,
)

HOW = Pretraining(epochs=2, batch_size=32)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def shapes(count: int = 96, seed: int = 0, classes: int = 4) -> Public:
    images, labels = draw_classes(count, (1, 8, 8), classes, seed)
    records = Records(images.numpy(), labels.numpy())
    return Public("shapes", records, classes, digest(records))


def trunk() -> nn.Module:
    return ResidualTrunk(1, 16)


class Count:
    """A progress bar that counts the steps it was shown."""

    steps = 0

    def __call__(self, label: str, done: int, total: int) -> None:
        assert label == LABEL
        self.steps += 1


def made(
    public: Public, how: Pretraining = HOW, seed: int = 0, run: Run | None = None
) -> tuple[dict[str, Tensor], int]:
    count = Count()
    net = pretrained("residual-16", trunk, public, how, seed, run or Run(progress=count))
    return dict(net.state_dict()), count.steps


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "airlock" / "fronts").iterdir())


def test_the_same_again_comes_from_the_cache_in_the_same_bits(tmp_path: Path) -> None:
    first, steps = made(shapes())
    again, none = made(shapes())
    assert (steps, none) == (6, 0)
    assert same(first, again)
    kept(tmp_path)[0].unlink()
    anew, steps = made(shapes())
    assert steps == 6
    assert same(first, anew)


def test_another_set_recipe_or_seed_is_another_front_end(tmp_path: Path) -> None:
    first, _ = made(shapes())
    others = [
        made(shapes(seed=1)),
        made(shapes(), HOW.model_copy(update={"mixing": 0.0})),
        made(shapes(), seed=1),
        made(Public("shapes", shapes().records, 5, shapes().digest)),
    ]
    assert all(steps == 6 and not same(first, other) for other, steps in others)
    assert len(kept(tmp_path)) == 5


def test_a_damaged_entry_is_made_again(tmp_path: Path) -> None:
    first, _ = made(shapes())
    kept(tmp_path)[0].write_bytes(kept(tmp_path)[0].read_bytes()[:1000])
    again, steps = made(shapes())
    assert steps == 6
    assert same(first, again)


def test_an_entry_of_another_key_is_not_taken(tmp_path: Path) -> None:
    made(shapes())
    kept(tmp_path)[0].rename(_file("another"))
    assert made(shapes())[1] == 6


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    assert same(made(shapes())[0], made(shapes())[0])


def test_an_interrupted_training_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    def press(label: str, done: int, total: int) -> None:
        if done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        made(shapes(), run=Run(checkpoint=tmp_path / "run", progress=press))
    assert (tmp_path / "run" / "public" / "checkpoint.safetensors").exists()
    count = Count()
    resumed, _ = made(shapes(), run=Run(checkpoint=tmp_path / "run", resume=True, progress=count))
    assert count.steps == 3
    assert not (tmp_path / "run" / "public").exists()
    kept(tmp_path)[0].unlink()
    assert same(resumed, made(shapes())[0])


def test_torchs_own_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    made(shapes())
    assert torch.equal(torch.rand(3), wanted)


def test_features_tell_new_images_apart_better_than_before() -> None:
    """Nearest class mean on images of the same classes that were not seen."""
    public = shapes(1200, classes=8)
    seen, new = public.records.take(range(800)), public.records.take(range(800, 1200))
    taught = Public("seen", seen, 8, digest(seen))

    def score(net: nn.Module) -> float:
        with torch.no_grad():
            a, b = (net.eval()(torch.from_numpy(part.x).float() / 255)[:, :128] for part in (seen, new))
            a, b = nn.functional.normalize(a), nn.functional.normalize(b)
        means = torch.stack([a[torch.from_numpy(seen.y == k)].mean(0) for k in range(8)])
        return float((torch.cdist(b, means).argmin(1).numpy() == new.y).mean())

    torch.manual_seed(0)
    before = score(trunk())
    how = Pretraining(epochs=10, batch_size=64, learning_rate=0.1, mixing=0.0, mirror=False)
    after = score(pretrained("residual-16", trunk, taught, how, 0, Run()))
    assert after > before + 0.05  # 0.73 and 0.64


def test_mixed_labels_follow_the_area() -> None:
    x = torch.arange(4.0)[:, None, None, None].expand(4, 1, 8, 8)
    targets = torch.eye(4)
    for seed in range(20):
        mixed, labels = cut_and_mix(x, targets, torch.Generator().manual_seed(seed))
        foreign = (mixed != x).float().mean((1, 2, 3))
        assert torch.allclose(labels.diagonal(), 1 - foreign)
        assert torch.allclose(labels.sum(1), torch.ones(4))


def test_the_classifier_learns_as_much_faster_as_asked() -> None:
    moves = []
    for rate in (1.0, 10.0):
        torch.manual_seed(0)
        net = _Classifier(trunk(), 4, Pretraining(projector=False, head_rate=rate)).eval()
        last = net.head[-1]
        assert isinstance(last, nn.Linear)
        before = last.weight.detach() * net.gain
        net(torch.ones(2, 1, 8, 8)).sum().backward()
        assert last.weight.grad is not None
        moves.append((before, last.weight.grad * net.gain))
    assert torch.allclose(moves[0][0], moves[1][0], atol=1e-6)
    assert torch.allclose(10 * moves[0][1], moves[1][1], rtol=1e-4)


def test_a_front_end_is_kept_in_the_usual_layout(tmp_path: Path) -> None:
    images, labels = draw_classes(48, (3, 8, 8), 4, 0)
    records = Records(images.numpy(), labels.numpy())
    public, count = Public("shapes", records, 4, digest(records)), Count()
    tensors = front_weights("vgg16", public, HOW, 0, Run(progress=count), layers=3)
    assert set(tensors) == {f"features.{place}.{part}" for place in (0, 2) for part in ("weight", "bias")}
    assert count.steps == 2
    again = front_weights("vgg16", public, HOW, 0, Run(progress=count), layers=3)
    assert (count.steps, same(tensors, again)) == (2, True)
    assert len(write_weights(tmp_path / "w.safetensors", tensors)) == 64
    prefix = open_prefix("vgg16", 3, (3, 8, 8), tmp_path / "w.safetensors")
    assert torch.isfinite(prefix(images)).all()
    assert not torch.allclose(prefix(images), open_prefix("vgg16", 3, (3, 8, 8))(images))
    with pytest.raises(NetError, match="grey images"):
        front_weights("vgg16", shapes(), HOW, 0, Run())
    with pytest.raises(OutputError, match="ends in .safetensors"):
        write_weights(tmp_path / "w.pth", tensors)


def test_an_unfinished_front_end_goes_on_by_itself() -> None:
    images, labels = draw_classes(64, (3, 8, 8), 4, 0)
    records = Records(images.numpy(), labels.numpy())
    public = Public("shapes", records, 4, digest(records))

    def stop(label: str, done: int, total: int) -> None:
        if done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    whole = front_weights("vgg16", public, HOW, 1, Run(checkpoint_seconds=600), layers=1)
    for path in Path(os.environ["XDG_CACHE_HOME"]).rglob("*.safetensors"):
        path.unlink()
    with pytest.raises(Interrupted):
        front_weights("vgg16", public, HOW, 1, Run(progress=stop), layers=1)
    count = Count()
    assert same(front_weights("vgg16", public, HOW, 1, Run(progress=count), layers=1), whole)
    assert count.steps == 2


def test_one_half_of_the_classes_learns_for_the_other() -> None:
    whole = shapes(classes=5)
    first, second = halve(whole, second=False), halve(whole, second=True)
    assert (first.classes, second.classes) == (2, 3)
    assert len(first.records) + len(second.records) == len(whole.records)
    assert set(second.records.y.tolist()) == {0, 1, 2}
    with pytest.raises(ConfigError, match="four classes"):
        halve(first, second=True)
