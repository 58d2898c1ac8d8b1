"""Exit codes of `court` and `audit`: 0 the claim stands, 1 it is refuted, 2 it could not be tried; no other meaning."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from airlock import auditing, methods
from airlock.accounting import Claim
from airlock.auditing import Audit, measure
from airlock.auditing.result import Scores
from airlock.cli import app
from airlock.errors import Refused
from airlock.mechanisms import Stream
from airlock.methods import Canaries, Case

Patch = pytest.MonkeyPatch
runner = CliRunner()


def run(*arguments: object) -> Result:
    return runner.invoke(app, [str(a) for a in arguments])


def case_of(shift: float, epsilon: float = 1.0) -> Case:
    def runs(with_record: bool, count: int, stream: Stream) -> np.ndarray:
        rng = np.random.default_rng(np.frombuffer(stream.take_key(), np.uint32))
        return rng.normal(shift * with_record, 1.0, (count, 1))

    return Case(Claim(epsilon, 1e-5, "a theorem"), "a pair", ("a score",), runs)


def canaries_of(shift: float, epsilon: float) -> Canaries:
    def runs(coins: np.ndarray, stream: Stream) -> np.ndarray:
        return shift * coins + np.random.default_rng(np.frombuffer(stream.take_key(), np.uint32)).normal(
            size=len(coins)
        )

    return Canaries(Claim(epsilon, 1e-5, "a theorem"), 100, "canaries", "a score", runs)


def failing(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("shift", "epsilon", "pairs", "code", "word"),
    [(0.1, 1.0, 400, 0, "Not refuted"), (5.0, 1.0, 400, 1, "Refuted"), (5.0, 9.0, 64, 2, "Not tried")],
)
def test_the_court_says_what_it_found(
    shift: float, epsilon: float, pairs: int, code: int, word: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(methods, "open_case", lambda *_: case_of(shift, epsilon))
    result = run("court", "weights/gaussian", "--seed", 0, "--pairs", pairs, "--seconds", 600)
    assert result.exit_code == code, result.output
    assert result.stdout.startswith(word)
    found = json.loads(run("court", "weights/gaussian", "--seed", 0, "--pairs", pairs, "--json").stdout)
    assert (found["refuted"], found["tried"]) == (code == 1, code != 2)


@pytest.mark.parametrize(
    ("shift", "epsilon", "code", "word"),
    [(0.1, 1.0, 0, "Not refuted"), (9.0, 1.0, 1, "Refuted"), (9.0, 9.0, 2, "Not tried")],
)
def test_one_run_says_what_it_found(shift: float, epsilon: float, code: int, word: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(methods, "open_canaries", lambda *_: canaries_of(shift, epsilon))
    result = run("court", "weights/gaussian", "--one-run", "--seed", 0)
    assert result.exit_code == code, result.output
    assert result.stdout.startswith(word)


@pytest.mark.parametrize(
    "arguments",
    [
        ("features/published",),  # claims nothing
        ("features/noised", "--one-run"),  # has no canaries
        ("weights/nothing",),
        ("weights/gaussian", "--epsilon", "-1"),
        ("weights/gaussian", "--epsilon", "many"),
        ("weights/gaussian", "--nothing"),
        ("weights/gaussian", "--delta", "nan"),
        ("weights/gaussian", "--pairs", "1"),
    ],
)
def test_what_cannot_be_tried_is_no_refutation(arguments: tuple[str, ...]) -> None:
    result = run("court", *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused("the executed event to equal the claimed one", "a difference"), 2),
        (ValueError("a defect"), 2),
        (MemoryError(), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_a_refusal_and_a_defect_are_no_refutation(error: BaseException, code: int, monkeypatch: Patch) -> None:
    """Python ends with 1 after an exception that nobody caught, which would read as a claim that fell."""
    monkeypatch.setattr(methods, "open_case", lambda *_: replace(case_of(0.1), run=failing(error)))
    result = run("court", "weights/gaussian", "--seed", 0)
    assert result.exit_code == code
    assert ("a defect" in result.stderr) == isinstance(error, ValueError)
    monkeypatch.setattr("airlock.pipeline.audit_bundle", failing(error))
    assert run("audit", "anywhere").exit_code == code


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bundle and its vault."""
    folder = tmp_path_factory.mktemp("released")
    config = folder / "digits.toml"
    config.write_text('channel = "weights"\ndata = "digits"\nepsilon = 3.0\ndelta = 1e-4\n[settings]\nsteps = 2\n')
    out, vault = folder / "bundle", folder / "vault"
    assert run("release", config, "--out", out, "--vault", vault).exit_code == 0
    return out, vault


def attacked(apart: float, records: int) -> Audit:
    """What an attack finds whose scores of members lie so far apart from the others'."""
    members, others = np.random.default_rng(0).normal([[apart], [0.0]], 1.0, (2, records))
    labels = np.zeros(records, int)
    return Audit((measure(Scores("an attack", "Was it in?", "black-box", members, others, labels, labels), 1e-4),), ())


@pytest.mark.parametrize(
    ("found", "code", "word"),
    [
        (attacked(0.0, 2000), 0, "Dossier, which stays inside"),
        (attacked(0.0, 60), 0, "With this few records"),
        (attacked(9.0, 2000), 1, "Dossier, which stays inside"),
        (attacked(9.0, 2), 2, "Not tried"),
        (Audit((), ("Membership inference.",)), 2, "Not tried"),
    ],
)
def test_an_audit_says_what_it_found(
    found: Audit, code: int, word: str, released: tuple[Path, Path], monkeypatch: Patch
) -> None:
    monkeypatch.setattr(auditing, "attack_artefact", lambda *_: (found, {}))
    result = run("audit", released[0], "--vault", released[1])
    assert result.exit_code == code, result.output
    assert word in result.stdout
    told = json.loads(run("audit", released[0], "--vault", released[1], "--json").stdout)
    assert (told["refuted"], told["tried"]) == (code == 1, code != 2)


def test_an_audit_that_cannot_be_made_is_no_refutation(released: tuple[Path, Path], tmp_path: Path) -> None:
    out, vault = released
    assert run("audit", tmp_path / "nowhere").exit_code == 2
    assert run("audit", out, "--vault", vault, "--shadows", 5).exit_code == 2
    assert run("audit", out, "--vault", vault, "--shadows", "x").exit_code == 2
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in out.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    (broken / "model.safetensors").write_bytes(b"\0" * 100)
    result = run("audit", broken, "--vault", vault)  # which is refused: it does not verify
    assert result.exit_code == 2, result.output
    (broken / "card.json").write_text("{")
    assert run("audit", broken, "--vault", vault).exit_code == 2
