"""Texts without labels: from a file to a language model in a verified bundle, and everything else refuses them."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import airlock
from airlock import data, methods, nets, pipeline
from airlock.auditing import AuditSettings, judge
from airlock.bundle import Vault, dossier
from airlock.bundle.answering import open_answerer
from airlock.bundle.gate import weigh
from airlock.bundle.platforms.hub import front_matter
from airlock.bundle.rendering import page
from airlock.bundle.reports import dpia, nist
from airlock.bundle.verify import verify
from airlock.cli import app
from airlock.cli.release import print_summary
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records
from airlock.errors import AirlockError, AirlockWarning, ConfigError, NetError, Refused
from airlock.mechanisms import Randomness, Stream
from airlock.methods.config_case import neighbours, of_config
from airlock.methods.weights.gaussian import Gaussian
from airlock.pipeline import audit_bundle, plan_release, train_openly
from airlock.training import Run
from tests.bundle.forging import failures_of
from tests.texts import SPECIAL, WORDS, reviews, write_tokenizer
from tests.tiny_models import save_language, write

TOKENS, RECORDS = 10, 1200
VOCABULARY = len(WORDS) + len(SPECIAL)
QUICK = {"steps": 25, "lot_size": 300, "learning_rate": 0.03}


def make_release(asked: ReleaseConfig, out: Path, vault: Path, **how: Any) -> airlock.Outcome:
    """Without the short trial in court, which has tests of its own."""
    return pipeline.make_release(asked, out, insecure_seed=1, vault=vault, **{"court_seconds": 0.0, **how})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, a tokenizer, and folders of networks that fit it."""
    made = tmp_path_factory.mktemp("language")
    write_tokenizer(made)
    write("gpt2", made / "gpt2", vocab_size=VOCABULARY)
    save_language("llama", made / "llama", vocab_size=VOCABULARY)
    write_csv(made / "reviews.csv", [[text] for text in reviews(RECORDS)[0]])
    return made


def write_csv(place: Path, rows: list[list[str]], header: tuple[str, ...] = ("review",)) -> Path:
    with place.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return place


def config(folder: Path, net: str = "gpt2", **changes: Any) -> ReleaseConfig:
    own = changes.pop("data", {})
    table = {
        "channel": "weights", "task": "language", "epsilon": 8.0, "delta": 1e-5, "net": f"transformers:{folder / net}",
        "device": "cpu", "split": {"holdout": 0.2}, "settings": QUICK,
        "data": {"source": str(folder / "reviews.csv"), "name": "reviews", "text": "review",
                 "tokenizer": str(folder / "tokenizer.json"), "tokens": TOKENS, "records": RECORDS} | own,
    }  # fmt: skip
    return from_table(table | changes)


@pytest.fixture(scope="module")
def released(folder: Path) -> airlock.Outcome:
    """One release; who changes its bundle works on a copy."""
    return make_release(config(folder), folder / "released" / "bundle", vault=folder / "vault")


def test_the_bundle_verifies_and_its_card_has_a_perplexity(released: airlock.Outcome, folder: Path) -> None:
    card, inside = released.bundle.card, released.dossier
    found = airlock.verify(released.bundle.folder, net=f"transformers:{folder / 'gpt2'}", vault=folder / "vault")
    assert found.ok, [check for check in found.checks if check.outcome != "ok"]
    assert {check.outcome for check in found.checks} == {"ok"}
    assert (card.utility, card.errors, card.data.classes) == (None, None, ())
    assert card.language is not None
    assert card.language.figures.guessing == VOCABULARY
    assert card.language.figures.perplexity.high < card.language.figures.before.low
    assert card.method == "gaussian"
    assert (inside.utility, inside.errors) == (None, None)
    assert inside.language is not None
    assert inside.language.perplexity.value == pytest.approx(card.language.figures.perplexity.value, rel=0.1)
    opened = weigh(card, (), inside, recorded=True)
    assert any("better than guessing every token" in line for line in opened.release)
    for text in (page.render_html(card), page.render_readme(card), page.render_dossier(inside)):
        assert "perplexity" in text
        assert "classified" not in text
        assert str(folder) not in text
    assert '"text-generation"' in page.render_readme(card)
    assert "text-generation" in front_matter(card)
    assert "perplexity" in front_matter(card)


def test_another_folder_is_not_taken_for_the_network(released: airlock.Outcome, folder: Path) -> None:
    found = airlock.verify(released.bundle.folder, net=f"transformers:{folder / 'llama'}", vault=folder / "vault")
    assert not found.ok


def test_what_is_on_the_card_is_what_the_files_say_of_the_test_texts(released: airlock.Outcome, folder: Path) -> None:
    """By ONNX, and by torch from the weights: the exact perplexity of the dossier."""
    test = data.load(config(folder)).test
    session = onnxruntime.InferenceSession(released.bundle.folder / "model.onnx")
    (told,) = session.run(["next_token"], {"input": test.x})
    np.testing.assert_allclose(np.exp(told).sum(2), 1.0, atol=1e-4)
    losses = []
    for said, text in zip(told, test.x.astype(int), strict=True):
        wanted = text[text > 0] - 1
        losses.append(-np.mean([said[place, one] for place, one in enumerate(wanted[1:])]))
    assert released.dossier.language is not None
    assert math.exp(np.mean(losses)) == pytest.approx(released.dossier.language.perplexity.value, rel=1e-4)
    net = nets.create(f"transformers:{folder / 'gpt2'}", (TOKENS,), 0, seed=0).eval()
    net.load_state_dict(load_file(released.bundle.folder / "model.safetensors"))
    with torch.no_grad():
        assert np.allclose(net(torch.from_numpy(test.x))[:, 0], losses, atol=1e-4)


def test_plain_transformers_opens_the_weights_with_the_public_config(released: airlock.Outcome, folder: Path) -> None:
    """As the tutorial shows it: the same losses, token by token."""
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "gpt2", local_files_only=True)).eval()
    weights = load_file(released.bundle.folder / "model.safetensors")
    missing, _ = theirs.load_state_dict({n.removeprefix("model."): v for n, v in weights.items()}, strict=False)
    assert not missing
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(released.bundle.folder / "tokenizer.json"))
    told = "the film was good"
    ids = torch.tensor([tokenizer(told)["input_ids"]])
    with torch.no_grad():
        loss = float(theirs(input_ids=ids, labels=ids).loss)
    model = airlock.load(released.bundle.folder, vault=folder / "vault")
    assert math.exp(loss) == pytest.approx(float(model.predict([told])[0]), rel=1e-4)


def test_a_receiver_asks_with_texts(released: airlock.Outcome, folder: Path, tmp_path: Path) -> None:
    schema = json.loads((released.bundle.folder / "schema.json").read_text())
    assert schema["kind"] == "text"
    assert "classes" not in schema
    model = airlock.load(released.bundle.folder, vault=folder / "vault")
    likely, odd = model.predict(["the film was good a great actor", "[SEP] [SEP] [CLS] [SEP]"]).tolist()
    assert 1 < likely < VOCABULARY < odd
    on = model.generate("the film", tokens=4)
    assert on == model.generate("the film", tokens=4)
    assert set(on.split()) <= set(WORDS)
    drawn = {model.generate("the film", tokens=6, temperature=2.0, seed=seed) for seed in range(8)}
    assert len(drawn) > 1
    assert model.generate(" ".join(["film"] * 50), tokens=5).count(" ") == 0  # there is room for one more
    with pytest.raises(AirlockError, match="a language model"):
        model.predict_proba(["a"])
    rows = tmp_path / "new.txt"
    rows.write_text("the film was good\n\na dull plot\n")
    done = CliRunner().invoke(app, ["predict", str(released.bundle.folder), str(rows)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "row,perplexity"
    assert len(done.stdout.splitlines()) == 4


def test_a_text_without_a_second_token_is_refused_by_row(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "plain"
    own.mkdir()
    shutil.copytree(folder / "gpt2", own / "gpt2")
    write_tokenizer(own, special=False)
    texts = [[text] for text in reviews(RECORDS)[0]]
    write_csv(own / "reviews.csv", [["film"], [""], *texts])
    split = data.load(config(own))
    kept = np.concatenate([part.x for part in (split.private, split.test, split.holdout)])
    assert len(kept) == RECORDS
    assert (kept[:, 1] > 0).all()
    assert any("fewer than two tokens" in line for line in split.remarks)
    with pytest.warns(AirlockWarning, match="fewer than two tokens"):
        made = make_release(config(own), own / "bundle", vault=own / "vault")
    model = airlock.load(own / "bundle", vault=own / "vault")
    found = model.answer(["a film", "film", "", "the plot"])
    assert found.numbers is not None
    assert np.isnan(found.numbers).tolist() == [False, True, True, False]
    assert found.refused[0].rows == (2, 3)
    with pytest.raises(AirlockError, match="fewer than two tokens"):
        model.predict(["film"])
    with pytest.raises(AirlockError, match="without tokens"):
        model.generate("")
    assert made.bundle.card.language is not None


@pytest.mark.parametrize("how", [{}, {"tune": "full"}, {"tune": "last"}])
def test_a_folder_with_weights_is_fine_tuned(folder: Path, how: dict[str, str], tmp_path: Path) -> None:
    """A Llama: rotary, grouped queries, RMSNorm, a head of its own; adapters where nothing else is asked for."""
    asked = config(folder, "llama", settings={**QUICK, **how})
    made = make_release(asked, tmp_path / "bundle", vault=tmp_path / "vault")
    left, came = made.release.network.net.state_dict(), load_file(folder / "llama" / "model.safetensors")
    moved = {name for name, value in came.items() if not left[f"model.{name}"].equal(value)}
    dense = {name for name in came if name.endswith("proj.weight")}
    wanted = {"full": set(came), "last": {"lm_head.weight"}, None: dense}
    assert moved == wanted[how.get("tune")]
    assert made.bundle.card.details.get("tune") == {None: "lora, rank 16", "full": None}.get(
        how.get("tune"), how.get("tune")
    )
    assert verify(tmp_path / "bundle", Vault.open(tmp_path / "vault")).ok


def test_people_are_protected_as_a_whole(folder: Path, tmp_path: Path) -> None:
    rows = [[text, f"p{i // 4}"] for i, text in enumerate(reviews(RECORDS)[0])]
    source = write_csv(tmp_path / "own.csv", rows, ("review", "who"))
    own = {"source": str(source), "person": "who", "people": RECORDS // 4, "records_per_person": 4}
    made = make_release(
        config(folder, data=own, settings={**QUICK, "lot_size": 80}), tmp_path / "bundle",
        vault=tmp_path / "vault",
    )  # fmt: skip
    card = made.bundle.card
    assert card.guarantee.unit == "person"
    assert card.language is not None
    assert 30 < card.language.figures.records < 100  # one text of each of 60 test people
    assert verify(tmp_path / "bundle", Vault.open(tmp_path / "vault")).ok


def test_the_config_in_the_bundle_leads_to_the_same_plan(released: airlock.Outcome) -> None:
    table = tomllib.loads((released.bundle.folder / "config.toml").read_text())
    assert table["task"] == "language"
    assert "classes" not in table["data"]


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        (lambda card: card["language"]["figures"]["perplexity"].update(value=1.5, low=1.2), "utility"),
        (lambda card: card["language"]["figures"].update(guessing=10_000.0), "utility"),
        (lambda card: card["language"]["counts"].update(epsilon=4.0), "utility"),
        (lambda card: card["data"].update(vocabulary=10_001), "utility"),
        (lambda card: card.update(language=None), "utility"),
        (lambda card: card["data"].update(classes=["a", "b"]), "card"),
        (lambda card: card["network"].update(classes=["a", "b"]), "onnx"),
        (lambda card: card["data"].update(vocabulary=None, tokenizer=None), "card"),
        (lambda card: card["data"].update(vocabulary=2), "utility"),
    ],
)
def test_a_forged_card_is_noticed(
    released: airlock.Outcome, tmp_path: Path, changed: Callable[[Any], object], check: str
) -> None:
    failed = failures_of(released.bundle.folder, tmp_path / "bundle", changed, tmp_path / "vault")
    assert failed & {check, "card", "outputs"}, failed


def test_a_model_that_learnt_nothing_is_a_reason_to_reject(folder: Path, tmp_path: Path) -> None:
    idle = config(folder, settings={**QUICK, "steps": 1, "learning_rate": 1e-9})
    made = make_release(idle, tmp_path / "bundle", vault=tmp_path / "vault")
    found = weigh(made.bundle.card, (), made.dossier, recorded=True)
    assert any("better than guessing every token" in line for line in found.reject)


def test_the_audit_attacks_texts_and_measures_exposure(released: airlock.Outcome, folder: Path) -> None:
    before = [place.read_bytes() for place in sorted(released.bundle.folder.iterdir())]
    hard = AuditSettings(shadows=8, epochs=1, canaries=4, copies=2, fillings=20)
    found = audit_bundle(
        released.bundle.folder, hard, overrides={"data.source": str(folder / "reviews.csv")},
        net=f"transformers:{folder / 'gpt2'}", vault=folder / "vault",
    )  # fmt: skip
    audit = found.dossier.audit
    kinds = [
        "loss threshold",
        "gradient norm",
        "LiRA, online",
        "LiRA, offline",
        "BaVarIA, online",
        "RMIA, online",
        "RMIA, offline",
    ]
    assert [attack.name for attack in audit.attacks] == kinds
    assert all(attack.epsilon_lower_bound < 8 for attack in audit.attacks)
    assert audit.exposure is not None
    assert (audit.exposure.canaries, audit.exposure.copies, audit.exposure.secret) == (4, 2, TOKENS // 2)
    assert 0 <= audit.exposure.value <= audit.exposure.most == pytest.approx(math.log2(21), abs=1e-3)
    assert [place.read_bytes() for place in sorted(released.bundle.folder.iterdir())] == before
    assert any("labels alone" in line for line in audit.not_tested)
    kept = dossier.read(Vault.open(folder / "vault"), released.bundle.card.release_id)
    assert kept.audit.exposure == audit.exposure
    assert "exposure" in page.render_dossier(kept)
    assert kept.language is not None


def test_shadows_may_be_made_like_the_release(released: airlock.Outcome, folder: Path) -> None:
    hard = AuditSettings(shadows=4, like="release", most=100)
    found = audit_bundle(
        released.bundle.folder, hard, overrides={"data.source": str(folder / "reviews.csv")},
        net=f"transformers:{folder / 'gpt2'}", vault=folder / "vault",
    )  # fmt: skip
    assert "LiRA, online" in {attack.name for attack in found.dossier.audit.attacks}


def test_too_few_texts_for_an_attack_leave_exposure(folder: Path, tmp_path: Path) -> None:
    own = config(folder, split={"test": 0.2, "holdout": 0.0}, settings={**QUICK, "steps": 2})
    make_release(own, tmp_path / "bundle", vault=tmp_path / "vault")
    found = audit_bundle(
        tmp_path / "bundle", AuditSettings(shadows=4, canaries=2, fillings=10),
        overrides={"data.source": str(folder / "reviews.csv")}, net=f"transformers:{folder / 'gpt2'}",
        vault=tmp_path / "vault",
    )  # fmt: skip
    assert found.dossier.audit.attacks == ()
    assert found.dossier.audit.exposure is not None


@pytest.mark.parametrize("show", [("show",), ("show", "--dossier"), ("gate",)])
def test_the_command_line_speaks_of_perplexity(released: airlock.Outcome, folder: Path, show: tuple[str, ...]) -> None:
    asked = [show[0], str(released.bundle.folder), *show[1:], "--vault", str(folder / "vault")]
    said = CliRunner().invoke(app, asked, catch_exceptions=False, env={"COLUMNS": "200"}).output
    assert "perplexity" in said
    assert "guessing" in said
    assert show[0] == "gate" or "counts as guessed" in said


def test_the_terminal_says_after_a_release_how_texts_count(
    released: airlock.Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    print_summary(released, Path("bundle"))
    assert "counts as guessed" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("report", [dpia.make, nist.make])
@pytest.mark.parametrize("inside", [False, True])
def test_reports_speak_of_a_language_model(released: airlock.Outcome, report: Callable[..., Any], inside: bool) -> None:
    made = json.dumps(
        dataclasses.asdict(report(released.bundle.card, released.dossier if inside else None)), default=str
    )
    assert "language model" in made or "perplexity" in made
    assert "classifier" not in made
    assert "gives no records" not in made


def test_the_service_refuses_it(released: airlock.Outcome, folder: Path) -> None:
    with pytest.raises(Refused, match="a language model"):
        open_answerer(released.bundle.folder, Vault.open(folder / "vault"))


def test_the_python_verb_takes_a_frame_of_texts(folder: Path, tmp_path: Path) -> None:
    import pandas as pd

    own = config(folder)
    asked: dict[str, Any] = {
        "channel": "weights", "task": "language", "net": own.net, "text": "review", "records": RECORDS,
        "tokenizer": str(own.data.tokenizer), "tokens": TOKENS, "epsilon": 8.0, "delta": 1e-5, "settings": QUICK,
    }  # fmt: skip
    frame = pd.read_csv(folder / "reviews.csv")
    made = airlock.release(data=frame, **asked, out=tmp_path / "bundle", vault=tmp_path / "vault", court_seconds=1.0)
    assert [trial.refuted for trial in made.dossier.court] == [False]
    assert made.bundle.card.language is not None
    with pytest.raises(ConfigError, match="a column of texts"):
        airlock.plan(data=(frame["review"].to_numpy(), np.zeros(RECORDS)), **asked)


# What is declared, and what is refused before a record is read.


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": {"label": "verdict"}}, "needs no label"),
        ({"data": {"classes": ["a", "b"]}}, "needs no label"),
        ({"data": {"target": {"min": 0, "max": 1}}}, 'add task = "regression"'),
        ({"data": {"tokens": 1}}, "at least 2"),
        ({"class_weights": {"a": 2}}, "no classes"),
        ({"tune": {"search": {"settings.steps": [1, 2]}}}, "compares candidates by their accuracy"),
        ({"attack_share": 0.1}, "are about classes"),
        ({"split": {"public": 0.1, "public_without": ["a"]}}, "needs no label"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(folder: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(folder, **changes)


def test_texts_without_labels_need_their_task(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.classes"):
        data.describe(config(folder, task="classification"))


@pytest.mark.parametrize("method", sorted(f"{room}/{name}" for room, own in methods.METHODS.items() for name in own))
def test_every_other_method_refuses_them_when_it_is_planned(folder: Path, method: str, tmp_path: Path) -> None:
    channel, _, name = method.partition("/")
    if method == "weights/gaussian":
        return
    unread = write_csv(tmp_path / "empty.csv", [])
    with pytest.raises(AirlockError, match="language") as error:
        plan_release(config(folder, channel=channel, method=name, data={"source": str(unread)}, settings={}))
    assert "weights/gaussian" in str(error.value)


@pytest.mark.parametrize("channel", sorted(set(methods.METHODS) - {"weights"}))
def test_a_channel_without_a_method_for_them_says_so(folder: Path, channel: str) -> None:
    with pytest.raises(AirlockError, match="language"):
        plan_release(config(folder, channel=channel, settings={}))


@pytest.mark.parametrize("net", ["auto", "mlp", "transformers:minilm", "tests.test_regression:own_net"])
def test_only_a_folder_of_a_language_model_is_one(folder: Path, net: str) -> None:
    with pytest.raises(ConfigError, match="AutoModelForCausalLM"):
        plan_release(config(folder).model_copy(update={"net": net}))


def test_a_network_that_sees_what_it_is_to_predict_is_refused(folder: Path) -> None:
    write("bert", folder / "bert", vocab_size=VOCABULARY)
    with pytest.raises(NetError, match="reads left to right"):
        plan_release(config(folder, "bert"))


def test_a_tokenizer_with_more_tokens_than_the_network_is_refused(folder: Path) -> None:
    write("gpt2", folder / "small", vocab_size=VOCABULARY - 1)
    with pytest.raises(NetError, match=f"a tokenizer of {VOCABULARY} tokens"):
        plan_release(config(folder, "small"))


def test_a_network_for_shorter_texts_is_refused(folder: Path) -> None:
    for positions in (4, TOKENS - 1):
        write("gpt2", folder / "short", vocab_size=VOCABULARY, n_positions=positions)
        with pytest.raises(NetError, match=f"accept records of shape {TOKENS}"):
            plan_release(config(folder, "short"))


def test_layers_that_no_adapter_fits_are_refused(folder: Path) -> None:
    table = {"model_type": "falcon", "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1}
    (folder / "falcon").mkdir()
    (folder / "falcon" / "config.json").write_text(json.dumps({**table, "num_attention_heads": 2}))
    with pytest.raises(NetError, match="adapters can stand beside"):
        plan_release(config(folder, "falcon", settings={**QUICK, "tune": "lora"}))


def test_a_head_that_is_the_table_of_tokens_cannot_be_trained_alone(folder: Path) -> None:
    with pytest.raises(NetError, match="a head of its own"):
        plan_release(config(folder, settings={**QUICK, "tune": "last"}))


def test_weights_without_a_head_are_not_taken_for_a_language_model(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModel

    write("llama", tmp_path / "body", vocab_size=VOCABULARY)
    own = AutoConfig.from_pretrained(tmp_path / "body", local_files_only=True)
    AutoModel.from_config(own).save_pretrained(tmp_path / "body")
    shutil.copy(folder / "tokenizer.json", tmp_path)
    write_csv(tmp_path / "reviews.csv", [["a film"]])
    with pytest.raises(NetError, match="weights for every layer"):
        plan_release(config(tmp_path, "body"))


def test_a_source_without_texts_has_no_next_token(folder: Path) -> None:
    table = config(folder).model_dump(exclude_unset=True) | {"data": {"source": "digits"}}
    with pytest.raises(ConfigError, match='texts for task = "language"'):
        data.describe(from_table(table))
    np.savez(folder / "a.npz", x=np.zeros((9, 3), np.float32), y=np.zeros(9))
    with pytest.raises(ConfigError, match="a column of texts"):
        data.describe(from_table(table | {"data": {"source": str(folder / "a.npz"), "records": 9}}))


def test_nothing_is_trained_openly_on_them(folder: Path) -> None:
    with pytest.raises(ConfigError, match="the next token"):
        train_openly(config(folder))


def test_other_audits_refuse_canaries(tmp_path: Path) -> None:
    table = {
        "channel": "weights", "method": "gaussian", "data": "digits", "epsilon": 8.0, "delta": 1e-5,
        "settings": {"steps": 2},
    }  # fmt: skip
    make_release(from_table(table), tmp_path / "bundle", vault=tmp_path / "vault")
    with pytest.raises(ConfigError, match="a language model for --canaries"):
        audit_bundle(tmp_path / "bundle", AuditSettings(canaries=2), vault=tmp_path / "vault")


# The court, and one text by itself.

FACTS = Facts("made-up", (TOKENS,), (), 200, None, "Made up.", vocabulary=VOCABULARY + 1)


def build(folder: Path, net: str = "gpt2", **settings: Any) -> Gaussian:
    made = methods.build(config(folder, net, settings={**QUICK, **settings}), FACTS)
    assert isinstance(made, Gaussian)
    return made


@pytest.mark.parametrize("net", ["gpt2", "llama"])
def test_the_very_configuration_stands_in_court(folder: Path, net: str) -> None:
    found = judge(of_config(methods.build, build(folder, net).config, FACTS, Run()), Stream.from_seed(0), 64, 0.999, 60)
    assert not found.refuted


def test_made_up_records_of_the_court_are_texts(folder: Path) -> None:
    for split in neighbours(FACTS, 0):
        assert len(np.unique(split.private.x)) > 5
        assert (split.private.y == 0).all()


def test_an_empty_data_set_is_released_without_an_error(folder: Path) -> None:
    nobody = Records(np.zeros((0, TOKENS), np.float32), np.zeros(0, np.int64))
    split = data.divide(FACTS, nobody, None, config(folder).split, seed=0)
    made = build(folder).release(split, Randomness.make(0, insecure_seed=1), Run())
    assert made.utility.records == 0


def test_the_page_for_who_comes_from_dp_transformers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airlock's half runs; the other half is at least Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(airlock.release.__kwdefaults__, "court_seconds", 1.0)  # type: ignore[arg-type]
    save_language("gpt2", tmp_path / "my-gpt2", vocab_size=VOCABULARY, n_positions=128)
    shutil.copy(folder / "tokenizer.json", tmp_path / "my-gpt2")
    rows = [[text, f"p{i // 4}"] for i, text in enumerate(reviews(RECORDS)[0])]
    write_csv(tmp_path / "posts.csv", rows, ("content", "author"))
    page = (Path(__file__).resolve().parents[1] / "docs/migrate-from-dp-transformers.md").read_text(encoding="utf-8")
    theirs, ours = re.findall(r"```python\n(.*?)```", page, re.S)
    compile(theirs, "docs/migrate-from-dp-transformers.md", "exec")
    exec(compile(ours, "docs/migrate-from-dp-transformers.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("person ")
