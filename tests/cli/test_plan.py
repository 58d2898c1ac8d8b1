"""The curve as a terminal and a figure show it."""

from __future__ import annotations

import io
import json
import math
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlock.accounting import Curve
from airlock.accounting.budget_curve import CurvePoint
from airlock.bundle.rendering.charts import draw_curve
from airlock.cli import main
from airlock.cli.plan import chart
from tests.cli.test_cli import run

ROOT_CURVE = Curve(
    "epochs", 1e-5, "proven", 1, tuple(CurvePoint(n, n / 10, 0.3 * math.sqrt(n)) for n in (1, 4, 9, 25, 49, 100))
)
EXPECTED = """\
ε at δ = 1e-5 by number of epochs
 3┤                                      ⣀⣀⠤⠤⠒⠒⠉
  │                              ⢀⣀⡠⠤⠔⠒⠉⠉
  │                       ⣀⣀⠤⠤⠒⠊⠉⠁
 2┤                 ⢀⡠⠤⠒⠊⠉
  │            ⣀⡠⠔⠒⠉⠁
  │        ⢀⠤⠒⠉
  │    ⢀⡠⠔⠊⠁
 1┤  ⢀⠔⠁
  │ ⡔⠁
  │⠈
 0└─────────┬────────┬───────┬────────┬────────┬
   0        2        4       6        8       10 epochs
ε is 3.0000 after all 100 steps (10 epochs)."""
CURVE_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["says", "unit", "delta", "status", "runs", "points"],
    "properties": {
        "says": {"type": "string"},
        "unit": {"enum": ["epochs", "steps"]},
        "delta": {"type": "number"},
        "status": {"const": "proven"},
        "runs": {"type": "integer", "minimum": 1},
        "points": {
            "type": "array",
            "minItems": 2,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["steps", "at", "epsilon"],
                "properties": {
                    "steps": {"type": "integer", "minimum": 0},
                    "at": {"type": "number", "minimum": 0},
                    "epsilon": {"type": "number", "minimum": 0},
                },
            },
        },
    },
}


def test_the_chart_as_it_is_seen() -> None:
    assert chart(ROOT_CURVE, 58) == EXPECTED


def test_plain_characters_alone() -> None:
    text = chart(ROOT_CURVE, 58, plain=True).split("\n")
    drawing = "\n".join(text[1:-1])
    assert drawing.isascii()
    assert drawing.count("*") > 40
    assert text[12].split() == ["0", "2", "4", "6", "8", "10", "epochs"]


def test_a_narrow_terminal_gets_a_few_points() -> None:
    lines = chart(ROOT_CURVE, 30).split("\n")
    assert [line.split() for line in (lines[1], lines[-1])] == [["0.1", "0.3000"], ["10", "3.0000"]]


@given(
    st.lists(
        st.tuples(st.integers(1, 10**6), st.floats(0, 1000).map(lambda e: round(e, 9))),
        min_size=1,
        max_size=30,
        unique_by=lambda p: p[0],
    ),
    st.floats(1e-6, 1.0),
    st.integers(20, 200),
    st.booleans(),
)
def test_any_curve_fits_into_any_width(rows: list[tuple[int, float]], q: float, width: int, plain: bool) -> None:
    epsilons = sorted(epsilon for _, epsilon in rows)
    steps = sorted(n for n, _ in rows)
    curve = Curve(
        "epochs", 1e-5, "proven", 1, tuple(CurvePoint(n, n * q, e) for n, e in zip(steps, epsilons, strict=True))
    )
    lines = chart(curve, width, plain=plain).split("\n")
    if width >= 40:
        assert all(len(line) <= width for line in lines[1:13])
        assert sum(any(c == "*" or c > "\u2800" for c in line) for line in lines[1:11]) >= 1
    ET.fromstring(draw_curve(curve, "Plan: a/b"))


def test_plan_draws_the_curve_and_json_has_its_points(digits_config: Path, tmp_path: Path) -> None:
    figure = tmp_path / "plan.svg"
    shown = run("plan", digits_config, "--figure", figure, "-s", "settings.lot_size=400")
    assert shown.exit_code == 0, shown.output
    assert "ε at δ = 0.0001 by number of epochs" in shown.stdout
    assert "┤" in shown.stdout
    assert "plan.svg" in shown.stdout.replace("\n", "")
    assert "\x1b" not in shown.stdout
    plan = json.loads(run("plan", digits_config, "--json", "-s", "settings.lot_size=400").stdout)
    jsonschema.validate(plan["curve"], CURVE_SCHEMA)
    assert plan["curve"]["points"][-1]["epsilon"] == plan["guarantee"]["epsilon"]
    assert plan["curve"]["points"][-1]["at"] == pytest.approx(3 * plan["details"]["sampling_probability"])
    picture = ET.parse(figure).getroot()
    lines = [e for e in picture.iter() if e.tag.endswith("polyline")]
    assert len(lines[0].attrib["points"].split()) == len(plan["curve"]["points"])
    assert any("Plan: weights/gaussian" in (e.text or "") for e in picture.iter())


def test_an_older_figure_is_replaced(digits_config: Path, tmp_path: Path) -> None:
    figure = tmp_path / "plan.svg"
    figure.write_text("old")
    assert run("plan", digits_config, "--figure", figure).exit_code == 0
    assert figure.read_text().startswith("<svg")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits.toml", "plan.svg"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("plan.gif", ".svg"), ("plan", ".svg"), ("nowhere/plan.svg", "nowhere"), ("folder.svg", "folder")],
)
def test_a_figure_that_cannot_be_written_is_refused_before_the_work(
    name: str, words: str, digits_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("work was done first")

    monkeypatch.setattr("airlock.pipeline.plan_release", refuse)
    (tmp_path / "folder.svg").mkdir()
    result = run("plan", digits_config, "--figure", tmp_path / name)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr


def test_a_claim_is_not_drawn(digits_config: Path, tmp_path: Path) -> None:
    change = ("-s", "method=published", "-s", "settings.solver=closed")
    shown = run("plan", digits_config, *change)
    assert shown.exit_code == 0
    assert "no curve of ε" in shown.stdout
    assert "┤ " not in shown.stdout
    assert json.loads(run("plan", digits_config, *change, "--json").stdout)["curve"] is None
    refused = run("plan", digits_config, *change, "--figure", tmp_path / "x.svg")
    assert refused.exit_code == 1
    assert "guarantee" in refused.stderr
    assert not (tmp_path / "x.svg").exists()


def test_a_terminal_without_unicode_reads_epsilon(digits_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, complaints = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    monkeypatch.setattr(sys, "argv", ["airlock", "plan", str(digits_config)])
    monkeypatch.setattr(sys, "stdout", said)
    monkeypatch.setattr(sys, "stderr", complaints)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    text, errors = (stream.buffer.getvalue().decode("ascii") for stream in (said, complaints))  # type: ignore[attr-defined]
    assert "epsilon at delta = 0.0001 by number of steps" in text
    assert "***" in text
    assert errors == ""
