"""`airlock features characterise`: measured on public records, written, drawn, and chosen from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from airlock.bundle.rendering.charts import draw_feasible
from airlock.bundle.rendering.svg import write_figure
from airlock.cli import app
from airlock.cli.plan import _chosen
from airlock.config import load
from airlock.errors import ConfigError, DataError, OutputError
from airlock.training.front_ends.characterise import Effort, Learning
from airlock.training.front_ends.characterised import Characterised, limits
from airlock.training.front_ends.choose import choose

TINY = Effort(
    utility=Learning(records=32, epochs=1, batch_size=16),
    privacy=Learning(records=32, epochs=1, batch_size=16, width=4, blocks=1),
    test_records=16,
)
CONFIG = """
channel = "features"
epsilon = 1
delta = 1e-5
[data]
source = "own.npz"
classes = 3
records = 240
[split]
public = 0.4
[settings]
front = "vgg16"
"""


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("front")
    chance = np.random.default_rng(0)
    np.savez(folder / "own.npz", x=chance.integers(256, size=(240, 3, 8, 8), dtype=np.uint8), y=np.arange(240) % 3)
    (folder / "config.toml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr("airlock.training.front_ends.characterise.QUICK", TINY)
        out = ("--out", folder / "found.json", "--layers", "1,3", "--channels", "2,4", "--quick", "--no-onnx")
        result = run("features", "characterise", folder / "config.toml", *out, "--figure", folder / "a.svg", "--json")
        assert result.exit_code == 0, result.output
        said = json.loads(result.stdout)
        assert [(p["layers"], p["channels"]) for p in said["points"]] == [(1, 2), (1, 4), (3, 2), (3, 4)]
        assert said["chosen"]["feasible"] == 4
        table = run("features", "characterise", folder / "config.toml", *out)
        assert "points keep to no limit" in " ".join(table.stdout.split())
    return folder


def test_what_was_written_is_read_back_and_chosen_from(measured: Path) -> None:
    made = Characterised.read(measured / "found.json")
    assert "the public part of" in made.found.public
    assert all(option.milliseconds and option.bytes for option in made.options)
    middle = sorted(option.psnr for option in made.options)[2]
    config = load(measured / "config.toml", {"settings.psnr": middle})
    found = _chosen(config, measured / "found.json", measured / "b.svg")
    assert found is not None
    assert found == choose(made.options, limits(config.settings))
    named = load(
        measured / "config.toml", {"settings.psnr": middle, "settings.characterised": str(measured / "found.json")}
    )
    assert _chosen(named, None, None) == found
    assert _chosen(config, None, None) is None
    fixed = _chosen(load(measured / "config.toml", {"settings.layers": 3}), measured / "found.json", None)
    assert fixed is not None
    assert {option.layers for option in fixed.options} == {3}
    assert found.option.psnr <= middle
    figure = (measured / "b.svg").read_text()
    assert figure.count('fill="#1d4f91"') == len(found.feasible)
    assert figure.count('stroke="#b3471d" stroke-width') == 1
    assert "dB allowed" in figure
    assert "dB allowed" not in (measured / "a.svg").read_text()
    assert draw_feasible(found, limits(config.settings), "A < B").startswith("<svg")
    with pytest.raises(OutputError):
        write_figure(measured / "none" / "c.svg", draw_feasible(found, limits({}), ""))


def test_mistakes_are_named(measured: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="psnr binds"):
        _chosen(load(measured / "config.toml", {"settings.psnr": 1}), measured / "found.json", None)
    with pytest.raises(ConfigError, match="the channel features"):
        _chosen(load(measured / "config.toml", {"channel": "weights"}), measured / "found.json", None)
    (tmp_path / "other.json").write_text('{"format": 9}')
    for name in ("other.json", "none.json"):
        with pytest.raises(DataError, match="airlock features characterise"):
            Characterised.read(tmp_path / name)
    private = run(
        "features", "characterise", measured / "config.toml", "--out", tmp_path / "x.json", "-s", "split.public=0"
    )
    assert private.exit_code == 2
    assert "Private records may not choose it" in " ".join(private.output.split())
    odd = run("features", "characterise", measured / "config.toml", "--out", tmp_path / "x.json", "--layers", "a")
    assert (odd.exit_code, "numbers separated by commas" in odd.output) == (2, True)
