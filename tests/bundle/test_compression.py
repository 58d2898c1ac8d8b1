"""How small and fast a student is: what is counted, the smaller files, and that verification finds a wrong one."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from airlock.bundle import Bundle, Card, Vault, bundle, compression, export, make_card, verify, write
from airlock.bundle.compression import Compressed, compress, multiply_adds, report
from airlock.bundle.dossier import make as make_dossier
from airlock.bundle.rendering import page
from airlock.bundle.rendering.page import smaller_words
from airlock.cli import app
from airlock.config import from_table
from airlock.data import Records, Split
from airlock.methods.contract import NetworkArtefact, Plan, Release
from airlock.nets import create
from tests.bundle.conftest import AUDIT, CLASSES, FACTS, SHAPE, guarantee, make_release, noise, outcomes

RANDOM = np.random.default_rng(0)
RECORDS = Records(RANDOM.integers(0, 256, (40, *SHAPE)).astype(np.uint8), RANDOM.integers(0, 10, 40))
NONE = RECORDS.take(np.arange(0))
SPLIT = Split(FACTS, NONE, RECORDS, RECORDS, NONE)

pytestmark = pytest.mark.usefixtures("made_up")


class Branching(nn.Module):
    """Branches on a value, which no exporter takes."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.dense(x.flatten(1))
        return y if float(y.sum()) > 0 else -y


def a_release() -> Release:
    plain = make_release(guarantee())
    details = {"net": "linear", "teacher": "mlp"}
    plan = Plan("student", "ensemble", "A student.", plain.guarantee, details)
    return dataclasses.replace(plain, plan=plan, utility=outcomes(4, 40))


@pytest.fixture(scope="module")
def small() -> Compressed:
    found = compress(a_release(), SPLIT)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, small: Compressed) -> Bundle:
    release = a_release()
    config = from_table({"channel": "student", "data": "digits", "epsilon": 3.0, "delta": 1e-4, "method": "ensemble"})
    card = make_card(config, FACTS, release, noise(), compression=small.report)
    return write(tmp_path_factory.mktemp("student") / "bundle", config, release, card, smaller=small.files)


@pytest.fixture
def copy(made: Bundle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.folder, tmp_path / "bundle"))


def failed(folder: Path) -> dict[str, str]:
    return {check.name: check.says for check in verify(folder, Vault.open()).checks if check.outcome == "failed"}


def test_every_use_of_a_weight_is_counted_once() -> None:
    net = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 5))
    assert multiply_adds(net, (2, 4, 4)) == 16 * 6 * 9 + 6 * 16 * 5
    assert not any(layer._forward_hooks for layer in net.modules())


def test_the_report_compares_architectures(small: Compressed) -> None:
    found = small.report
    assert found.student.parameters == found.student.multiply_adds + 10 == 650
    assert found.teacher.parameters == sum(p.numel() for p in create("mlp", SHAPE, 10, 0).parameters())
    assert [form.file for form in found.forms] == ["model.onnx", "model.int8.onnx", "model.fp16.onnx"]
    assert found.forms[0].agrees == found.forms[0].records == 40
    assert found.faster is not None
    assert not found.not_made
    assert "times fewer parameters" in smaller_words(found)


def test_only_a_student_is_compared_with_a_teacher() -> None:
    assert compress(make_release(guarantee()), SPLIT) is None


def test_a_teacher_that_cannot_be_exported_is_counted_and_not_timed(small: Compressed) -> None:
    found = report(Branching(), "own:teacher", a_release().network, RECORDS, RECORDS).report
    assert (found.teacher.milliseconds, found.teacher.onnx_bytes, found.faster) == (None, None, None)
    assert found.teacher.parameters == 650
    assert "The teacher's file and time" in found.not_made[0]


def test_a_form_that_cannot_be_made_is_told(made: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise NotImplementedError

    content = (made.folder / "model.onnx").read_bytes()
    monkeypatch.setattr("onnxruntime.transformers.float16.convert_float_to_float16", broken)
    monkeypatch.setitem(compression.TOLERANCES, compression.INT8, -1.0)  # type: ignore[attr-defined]
    forms = compression.smaller_forms(content, SHAPE, export.probe(40, SHAPE))
    assert not forms.files
    assert "differ" in forms.not_made[0]
    assert "NotImplementedError" in forms.not_made[1]


def test_ranges_are_found_while_it_runs_where_public_records_do_not_give_them(made: Bundle) -> None:
    content = (made.folder / "model.onnx").read_bytes()
    other = compression.to_int8(content, export.probe(40, SHAPE)[:0])
    assert "DynamicQuantizeLinear" in {node.op_type for node in onnx.load_model_from_string(other).graph.node}
    assert compression.difference(compression.INT8, other, content, SHAPE) is None


def test_a_convolution_keeps_its_answers_in_every_form() -> None:
    net = create("rona-digits-student", SHAPE, 10, 0).eval()
    content = export.to_onnx(NetworkArtefact(net, "rona-digits-student", SHAPE, CLASSES))
    forms = compression.smaller_forms(content, SHAPE, export.probe(64, SHAPE))
    assert set(forms.files) == {compression.INT8, compression.FP16}
    assert len(forms.files[compression.FP16]) < 0.65 * len(content)


def test_the_bundle_verifies_and_is_shown(made: Bundle) -> None:
    assert {"model.int8.onnx", "model.fp16.onnx"} < {path.name for path in made.folder.iterdir()}
    assert not failed(made.folder)
    shown = CliRunner().invoke(app, ["show", str(made.folder)]).output
    assert "Smaller and faster" in shown
    for file in ("card.html", "README.md"):
        assert "Smaller and faster" in (made.folder / file).read_text()


def test_the_card_speaks_of_public_records_and_the_dossier_of_test_records(
    small: Compressed, made: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the card says about files stays the same whoever the test records are."""
    nobody = SPLIT.test.take(np.arange(0))
    monkeypatch.setattr(compression, "milliseconds", lambda sessions, shape, **how: [1.0] * len(sessions))
    first, second = (compress(a_release(), dataclasses.replace(SPLIT, test=own)) for own in (SPLIT.test, nobody))
    assert first is not None
    assert second is not None
    assert first.report == second.report
    assert first.files == second.files
    assert [one.records for one in first.on_test] == [40, 40, 40]
    assert [one.records for one in second.on_test] == [0, 0, 0]
    inside = make_dossier(made.card, a_release(), AUDIT, smaller=small.on_test)
    assert "model.int8.onnx" in page.render_dossier(inside)


def test_another_network_in_a_smaller_file_is_found(copy: Path, reseal: Callable[[Path], None]) -> None:
    torch.manual_seed(5)
    other = compression.to_fp16(export.to_onnx(dataclasses.replace(a_release().network, net=another())))
    (copy / "model.fp16.onnx").write_bytes(other)
    card = bundle.read(copy).card
    assert card.hashes is not None
    sha = bundle.hashes({path.name: path.read_bytes() for path in copy.iterdir()})
    rewritten(copy, card.model_copy(update={"hashes": sha}), reseal)
    assert "model.fp16.onnx is not what model.onnx is converted to" in failed(copy)["smaller"]


def another() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()


def test_files_and_sizes_that_the_card_does_not_name_are_found(copy: Path, reseal: Callable[[Path], None]) -> None:
    card = bundle.read(copy).card
    assert card.hashes is not None
    bare = card.model_copy(update={"hashes": card.hashes.model_copy(update={"model_int8_onnx": None})})
    rewritten(copy, bare, reseal)
    found = failed(copy)
    assert "does not name it" in found["hashes"]
    assert "other files" in found["sizes"]
    (copy / "model.int8.onnx").unlink()
    rewritten(copy, card, reseal)
    assert "model.int8.onnx" in failed(copy)["hashes"]


def rewritten(folder: Path, card: Card, reseal: Callable[[Path], None]) -> None:
    for name, text in bundle.texts(card).items():
        (folder / name).write_text(text)
    reseal(folder)


def _hide(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1000, np.float32), "hidden"))


def _sign(model: onnx.ModelProto) -> None:
    model.producer_name = "a secret"


def _skew(model: onnx.ModelProto) -> None:
    weights = next(each for each in model.graph.initializer if "weight" in each.name and len(each.dims) > 1)
    weights.raw_data = bytes([weights.raw_data[0] ^ 1]) + weights.raw_data[1:]


@pytest.mark.parametrize("change", [_hide, _sign, _skew])
@pytest.mark.parametrize("name", ["model.int8.onnx", "model.fp16.onnx"])
def test_a_smaller_file_holds_what_it_was_made_from_and_nothing_else(
    copy: Path, name: str, change: Callable[[onnx.ModelProto], None]
) -> None:
    model = onnx.load_model(copy / name)
    change(model)
    (copy / name).write_bytes(model.SerializeToString())
    assert f"{name} is not what model.onnx is converted to" in failed(copy)["smaller"]


def test_a_form_with_ranges_found_while_it_runs_is_made_again_too(made: Bundle) -> None:
    content = (made.folder / "model.onnx").read_bytes()
    other = compression.to_int8(content, export.probe(40, SHAPE)[:0])
    assert list(compression.made_again(compression.INT8, other, content, SHAPE)) == [other]
