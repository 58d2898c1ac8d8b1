"""The command line as a user meets it: what it prints, how it exits, and that no mistake shows a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from airlock import auditing, methods
from airlock.cli import app
from tests.waiting import LONG, wait_until

runner = CliRunner()
ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: object) -> Result:
    result = runner.invoke(app, [str(a) for a in arguments])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_plan_in_json(digits_config: Path) -> None:
    result = run("plan", digits_config, "--json")
    assert result.exit_code == 0
    plan = json.loads(result.stdout)
    assert (plan["channel"], plan["method"]) == ("weights", "gaussian")
    assert plan["guarantee"]["status"] == "proven"
    assert 2.9 < plan["guarantee"]["epsilon"] <= 3.0


def test_plan_as_a_table_with_overrides(digits_config: Path) -> None:
    result = run("plan", digits_config, "--epsilon", "1", "--set", "settings.steps=2", "-s", "net=mlp")
    assert result.exit_code == 0
    assert "mlp" in result.stdout
    assert "0.99" in result.stdout


def test_release_verify_show(digits_config: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    result = run("release", digits_config, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["bundle"] == str(out)
    assert 0 <= summary["utility"]["low"] <= summary["utility"]["value"] <= summary["utility"]["high"] <= 1
    assert summary["guarantee"]["status"] == "proven"
    assert summary["guarantee"]["epsilon"] <= 3.0
    verified = run("verify", out)
    assert verified.exit_code == 0
    assert verified.stdout.splitlines()[0] == f"Signed by this vault ({summary['signed_by']})."
    assert json.loads(run("verify", out, "--json").stdout)["ok"] is True
    assert "ε" in run("show", out).stdout
    assert "it may leave" in run("show", out).stdout
    assert json.loads(run("show", out, "--json").stdout) == json.loads((out / "card.json").read_text())
    inside = run("show", out, "--dossier").stdout
    assert "STAYS INSIDE" in inside
    assert "exact count" in inside
    kept = json.loads(Path(summary["dossier"]).read_text())
    assert json.loads(run("show", out, "--dossier", "--json").stdout) == kept
    missing = run("show", out, "--dossier", "--vault", tmp_path / "elsewhere")
    assert (missing.exit_code, "--vault" in missing.stderr) == (2, True)

    refused = run("gate", out, "--html", out / "gate.html")
    assert refused.exit_code == 1
    assert "the bundle leaves" in " ".join(refused.output.split())
    assert not (out / "gate.html").exists()
    assert "Page, which stays inside" in run("gate", out, "--html", tmp_path / "gate.html").output
    assert "Where you sign" in (tmp_path / "gate.html").read_text(encoding="utf-8")
    result = run("gate", out, "--sacro", tmp_path / "sacro")
    assert result.exit_code == 0
    assert result.stdout.startswith("Open: there is no reason to reject, and there are ")
    for title in ("Reasons to reject (0)", "Reasons for caution", "Reasons to release"):
        assert title in result.stdout
    assert json.loads((tmp_path / "sacro/report.json").read_text())
    lists = json.loads(run("gate", out, "--json").stdout)
    assert lists["open"]
    assert run("verify", out, "--gate").exit_code == 0

    content = bytearray((out / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (out / "model.safetensors").write_bytes(bytes(content))
    result = run("verify", out)
    assert result.exit_code == 1
    assert "model.safetensors" in result.stdout


def test_release_prints_where_the_bundle_is(digits_config: Path, tmp_path: Path) -> None:
    out = tmp_path / "b"
    result = run("release", digits_config, "--out", out)
    assert result.exit_code == 0
    assert str(out) in result.stdout.replace("\n", "")
    assert result.stdout.count("A key was made in the vault") == 1
    assert run("release", digits_config, "--out", out).exit_code == 2
    again = run("release", digits_config, "--out", out, "--force")
    assert again.exit_code == 0
    assert "A key was made" not in again.stdout
    assert result.stdout.split("Signed by")[1].split(".")[0] == again.stdout.split("Signed by")[1].split(".")[0]


def test_audit_in_words_and_in_json(digits_config: Path, tmp_path: Path) -> None:
    out, vault = tmp_path / "bundle", tmp_path / "vault"
    run("release", digits_config, "--out", out, "--vault", vault)
    few = ("--shadows", 4, "--epochs", 1, "--vault", vault)
    result = run("audit", out, *few)
    assert result.exit_code == 0, result.output
    for word in ("LiRA, online", "gradient norm", "white-box", "Not tested", "airlock gate"):
        assert word in result.stdout
    found = json.loads(run("audit", out, *few, "--json").stdout)
    assert found["refuted"] is False
    assert found["epsilon_lower_bound"] <= found["stated_epsilon"] <= 3.0
    assert {attack["name"] for attack in found["attacks"]} >= {
        "shadow models", "RMIA, offline", "BaVarIA, online", "quantile regression"
    }  # fmt: skip
    assert run("verify", out, "--gate", "--vault", vault).exit_code == 0
    bad = run("audit", out, "--shadows", 5)
    assert bad.exit_code == 2
    assert "even" in bad.stderr


def test_datasets(tmp_path: Path) -> None:
    result = run("datasets", "--data-dir", tmp_path, "--json")
    assert result.exit_code == 0
    listed = {entry["name"]: entry for entry in json.loads(result.stdout)}
    names = ["adult", "cifar10", "cifar100", "digits", "fashion-mnist", "location30", "mnist", "sst2", "svhn"]
    assert sorted(listed) == names
    assert listed["digits"]["found"]
    assert not listed["svhn"]["found"]
    assert "how to get" in run("datasets", "--data-dir", tmp_path).stdout.lower()


def test_bench_refuses_an_unknown_name() -> None:
    result = run("bench", "nothing")
    assert result.exit_code == 2
    assert "noise" in result.stderr


def test_version_and_help() -> None:
    from airlock import __version__

    assert run("--version").stdout.strip() == __version__
    assert "release" in run("--help").stdout


BAD = {
    "unknown key": ("epsilom = 3.0\n{rest}", ["epsilom", "Did you mean 'epsilon'"]),
    "negative epsilon": ('channel="weights"\ndata="digits"\nepsilon=-1.0\ndelta=1e-4\n', ["epsilon", "-1.0"]),
    "NaN epsilon": ('channel="weights"\ndata="digits"\nepsilon=nan\ndelta=1e-4\n', ["epsilon", "nan"]),
    "delta of one": ('channel="weights"\ndata="digits"\nepsilon=1.0\ndelta=1.0\n', ["delta", "less than 1"]),
    "no such channel": ('channel="wights"\ndata="digits"\nepsilon=1.0\ndelta=1e-4\n', ["Did you mean 'weights'"]),
    "no such data": ('channel="weights"\ndata="digts"\nepsilon=1.0\ndelta=1e-4\n', ["digits"]),
    "no TOML": ("channel = = 3", ["TOML"]),
    "unknown setting": ("{rest}[settings]\nstepz = 3\n", ["settings.stepz", "Did you mean 'steps'"]),
    "net with the wrong shape": ('net="mnist-net"\n{rest}', ["mnist-net", "28"]),
    "missing net": ('net="nowhere:net"\n{rest}', ["nowhere:net"]),
    "no GPU here": ('device="cuda:7"\n{rest}', ["GPU"]),
}
REST = 'channel="weights"\ndata="digits"\nepsilon=1.0\ndelta=1e-4\n'


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_gives_one_message_and_exit_code_2(case: str, tmp_path: Path) -> None:
    import torch

    if case == "no GPU here" and torch.cuda.is_available():
        pytest.skip("there is one")
    text, words = BAD[case]
    path = tmp_path / "c.toml"
    path.write_text(text.replace("{rest}", REST))
    result = run("release", path, "--out", tmp_path / "bundle")
    assert result.exit_code == 2
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr, result.stderr
    assert not (tmp_path / "bundle").exists()


def test_a_large_delta_is_warned_about(digits_config: Path) -> None:
    result = run("plan", digits_config, "--delta", "0.01")
    assert result.exit_code == 0
    assert "warning:" in result.stderr


def test_a_net_with_batchnorm_is_refused(digits_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "normed_cli.py").write_text(
        "from torch import nn\n"
        "def net():\n    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))\n"
    )
    monkeypatch.chdir(tmp_path)
    result = run("release", digits_config, "--out", "b", "--set", "net=normed_cli:net")
    assert result.exit_code == 2
    assert "GroupNorm" in result.stderr


def test_an_unproven_method_exits_1(digits_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods.METHODS["weights"], "unproven", "tests.test_pipeline:Unproven")
    result = run("release", digits_config, "--out", tmp_path / "b", "--set", "method=unproven")
    assert result.exit_code == 1
    for word in ("refused", "no proof", "gaussian", "--accept-unproven"):
        assert word in result.stderr
    result = run("release", digits_config, "--out", tmp_path / "b", "--set", "method=unproven", "--accept-unproven")
    assert result.exit_code == 0


@pytest.mark.parametrize("command", ["audit", "verify", "show", "gate"])
def test_a_folder_that_is_no_bundle(command: str, tmp_path: Path) -> None:
    assert run(command, tmp_path / "none").exit_code == 2
    assert run(command, tmp_path).exit_code in (1, 2)


def test_the_users_own_csv_and_net_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = ["age,sex,sick"]
    for _ in range(900):
        sick = rng.random() < 0.4
        rows.append(f"{rng.normal(60 if sick else 40, 8):.1f},{rng.choice(['f', 'm'])},{'yes' if sick else 'no'}")
    (tmp_path / "ward.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "ward_nets.py").write_text(
        "from torch import nn\ndef net(shape, classes):\n    return nn.Linear(shape[0], classes)\n"
    )
    (tmp_path / "ward.toml").write_text(
        'channel = "weights"\nnet = "ward_nets:net"\nepsilon = 3.0\ndelta = 1e-4\n'
        '[data]\nsource = "ward.csv"\nlabel = "sick"\nclasses = ["no", "yes"]\nrecords = 900\n'
        '[data.columns]\nage = { min = 0, max = 110 }\nsex = ["f", "m"]\n'
    )
    monkeypatch.chdir(tmp_path)
    result = run("release", "ward.toml", "--out", "bundle", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["inside"]["accuracy"]["value"] > 0.8
    checks = {check["name"]: check for check in json.loads(run("verify", "bundle", "--json").stdout)["checks"]}
    assert checks["outputs"]["outcome"] == "skipped"
    result = run("verify", "bundle", "--net", "ward_nets:net", "--json")
    assert result.exit_code == 0
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert checks["outputs"]["outcome"] == "ok"
    few = ("--shadows", 4, "--epochs", 1)
    missing = run("audit", "bundle", "--net", "ward_nets:net", *few)
    assert missing.exit_code == 2
    assert "--data" in missing.stderr
    assert "--net" in run("audit", "bundle", "--data", "ward.csv", *few).stderr
    found = json.loads(run("audit", "bundle", "--data", "ward.csv", "--net", "ward_nets:net", *few, "--json").stdout)
    assert not found["refuted"]
    everything = b"".join(path.read_bytes() for path in Path("bundle").iterdir())
    assert b"ward.csv" not in everything
    assert str(tmp_path).encode() not in everything


def test_ctrl_c_in_a_real_process_and_resume(digits_config: Path, tmp_path: Path) -> None:
    """The signal may fall into any phase: afterwards there is no half bundle, and the run can be finished."""
    command = [sys.executable, "-m", "airlock", "release", str(digits_config), "--out", str(tmp_path / "b")]
    command += ["--set", "settings.steps=100000", "--insecure-seed", "3"]  # no machine is through by then
    environment = {**os.environ, "AIRLOCK_VAULT": str(tmp_path / "vault")}
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell ignores it
    )
    checkpoints = tmp_path / "vault" / "checkpoints"
    wait_until(lambda: checkpoints.exists() or process.poll() is not None, "a folder for checkpoints")
    wait_until(lambda: pressed(process), "the end of the process")
    _, message = process.communicate(timeout=LONG)
    # A shell calls both 130: Python itself dies of the signal if it fell into code that runs from a string.
    assert process.returncode in (130, -signal.SIGINT), message
    assert "Traceback" not in message
    assert "interrupted:" in message
    assert not (tmp_path / "b").exists()
    assert not list(tmp_path.glob(".b*"))


def pressed(process: subprocess.Popen[str], again_after: float = 60) -> bool:
    """Ctrl-C, and whether that was the end; one that falls into an import may get lost, and is pressed again."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(again_after)
    return process.poll() is not None


def test_of_several_processes_the_lead_speaks_and_the_others_name_their_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, begins in (("0", "error: "), ("1", "process 1: error: ")):
        monkeypatch.setenv("RANK", rank)
        result = run("plan", tmp_path / "missing.toml")
        assert result.exit_code == 2
        assert result.stderr.startswith(begins)


def test_court_lists_what_can_be_tried() -> None:
    result = run("court", "--json")
    assert result.exit_code == 0
    own = [f"{channel}/{method}" for channel, own in methods.METHODS.items() for method in own]
    assert json.loads(result.stdout) == [*own, *methods.CASES]
    assert "weights/published" in run("court").stdout


@pytest.fixture
def _judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a trial that is asked for twice, in words and in JSON, the runs are made once."""
    verdicts: dict[tuple[object, ...], auditing.Verdict] = {}

    def judge(case: methods.Case, stream: object, *limits: Any) -> auditing.Verdict:
        key = (case.claim, *limits[:-1])  # without the bar that shows how far it is
        if key not in verdicts:
            verdicts[key] = court_judge(case, stream, *limits)  # type: ignore[arg-type]
        return verdicts[key]

    court_judge = auditing.judge
    monkeypatch.setattr(auditing, "judge", judge)


@pytest.mark.usefixtures("_judged_once")
def test_court_refutes_the_published_claim_with_exit_code_1() -> None:
    result = run("court", "weights/published", "--seed", "1", "--seconds", "1e9")
    assert result.exit_code == 1
    assert result.stdout.startswith("Refuted: weights/published claims (ε, δ) = (1, 1e-05)")
    result = run("court", "weights/published", "--seed", "1", "--seconds", "1e9", "--json")
    assert result.exit_code == 1
    verdict = json.loads(result.stdout)
    assert (verdict["verdict"], verdict["refuted"], verdict["confidence"]) == ("refuted", True, 0.95)
    assert verdict["claim"]["epsilon"] == 1.0 <= verdict["epsilon_lower_bound"]
    assert 64 <= verdict["pairs"] < 1000


def test_court_says_so_when_another_point_of_the_proof_falls() -> None:
    from airlock.accounting import Claim
    from airlock.auditing import Verdict
    from airlock.cli.court import in_words
    from airlock.methods import Case

    case = Case(Claim(1.0, 1e-5, "a theorem"), "a pair", ("a score",), lambda *_: np.zeros((0, 1)), ((0.0, 0.08),))
    words = [in_words("a/b", Verdict(case, at, 0.3, 0.95, 99, 1.0)) for at in (*case.points, None)]
    assert [text.split(":")[0] for text in words] == ["Refuted", "Refuted", "Not refuted"]
    assert "(1, 1e-05), and that is false" in words[0]
    assert "proof that fails" in words[1]
    assert "(0, 0.08), and that is false" in words[1]


@pytest.mark.usefixtures("_judged_once")
def test_court_lets_a_proven_claim_stand_with_exit_code_0() -> None:
    options = ("--seed", "1", "--pairs", "300", "--seconds", "1e9", "--epsilon", "2", "--delta", "1e-4")
    result = run("court", "weights/gaussian", *options)
    assert result.exit_code == 0, result.output
    first = result.stdout.splitlines()[0]
    assert first.startswith("Not refuted: weights/gaussian claims (ε, δ) = (")
    assert first.endswith("This is no proof.")
    assert "300 pairs" in result.stdout
    verdict = json.loads(run("court", "weights/gaussian", *options, "--json").stdout)
    assert verdict["verdict"] == f"not refuted (could have refuted ε ≥ {verdict['could_refute']:.2f})"
    assert verdict["epsilon_lower_bound"] < 1.99 < verdict["claim"]["epsilon"] <= 2 < verdict["could_refute"]


def test_court_with_one_run_refutes_the_published_claim_and_says_how_weak_it_is() -> None:
    result = run("court", "weights/published", "--one-run", "--canaries", "600", "--seed", "1")
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith("Refuted: weights/published claims (ε, δ) = (1, 1e-05)")
    assert "One run is weak" in result.stdout
    result = run("court", "weights/published", "--one-run", "--canaries", "60", "--seed", "1", "--json")
    verdict = json.loads(result.stdout)
    assert result.exit_code == (1 if verdict["refuted"] else 0)
    assert (verdict["canaries"], verdict["runs"], verdict["confidence"]) == (60, 1, 0.95)
    assert {look["guesses"] for look in verdict["looks"]} == {60, 15, 3}
    assert verdict["epsilon_lower_bound"] <= verdict["largest_refutable_claim"] < 3


def test_court_with_one_run_of_people_says_whom_it_put_in_or_left_out() -> None:
    result = run("court", "answers/head", "--one-run", "--people", "--canaries", "60", "--seed", "1")
    assert result.exit_code in (0, 2), result.output
    assert "60 canaries, people with 8 records each" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("weights/published", "--one-run", "--people"), "a method that protects people"),
        (("features/noised", "--one-run", "--people"), "canaries for the court that are people"),
        (("weights/published", "--one-run", "--canaries", "3"), "20 to 5,000 canaries"),
        (("weights/published", "--one-run", "--confidence", "1"), "confidence"),
        (("weights/gausian", "--one-run"), "Did you mean 'weights/gaussian'"),
        (("weights/gausian",), "Did you mean 'weights/gaussian'"),
        (("weights",), "weights/head"),
        (("weights/gaussian", "--epsilon", "0"), "ε above 0"),
        (("weights/gaussian", "--epsilon", "nan"), "ε above 0"),
        (("weights/gaussian", "--delta", "1"), "δ between 0 and 1"),
        (("weights/published", "--pairs", "3"), "64 pairs"),
        (("weights/published", "--confidence", "1"), "confidence"),
        (("weights/published", "--seconds", "-1"), "seconds"),
    ],
)
def test_court_refuses_what_cannot_be_tried(arguments: tuple[str, ...], word: str) -> None:
    result = run("court", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert word in result.stderr


def test_pretrain_writes_weights_and_says_from_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chance = np.random.default_rng(0)
    x, y = chance.integers(256, size=(40, 3, 8, 8), dtype=np.uint8), np.arange(40) % 4
    np.savez(tmp_path / "open.npz", x=x, y=y)
    config = ["--front", "vgg16", "--layers", "3", "--epochs", "1", "--classes", "4"]
    result = run("pretrain", tmp_path / "open.npz", "--out", tmp_path / "w.safetensors", *config, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert (said["tensors"], said["records"]) == (4, 40)
    half = run("pretrain", tmp_path / "open.npz", "--out", tmp_path / "v.safetensors", *config, "--half", "first")
    assert "first half of the classes" in " ".join(half.stdout.split())
    result = run(
        "pretrain", tmp_path / "open.npz", "--out", tmp_path / "w.safetensors", "--front", "vgg17", "--classes", "4"
    )
    assert (result.exit_code, "Did you mean" in result.output) == (2, True)


def test_features_are_extracted_and_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_VAULT", str(tmp_path / "vault"))
    config = ROOT / "runs/features-noised-digits-eps8.toml"
    own = ("--set", "settings.front=tests.methods.features.test_methods:own_front", "--set", "settings.layers=2")
    result = run("features", "extract", config, "--out", tmp_path / "b", "--format", "npz", *own, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["inside"]["accuracy"]["value"] > 0.2
    assert (tmp_path / "b/features-00000.npz").exists()
    result = run("features", "train", tmp_path / "b", "--json")
    assert json.loads(result.stdout)["net"] == "nearest-mean"
    for wrong, says in (
        (("extract", config, "--out", tmp_path / "c", "--engine", "spark"), "local or ray"),
        (("extract", config, "--out", tmp_path / "c", "--format", "pickle"), "settings.format"),
        (("extract", ROOT / "runs/digits-eps3.toml", "--out", tmp_path / "c"), "features"),
        (("train", tmp_path), "card"),
    ):
        result = run("features", *wrong)
        assert result.exit_code in (1, 2)
        assert says in result.output
    assert "claims no ε" in run("court", "features/published").output
