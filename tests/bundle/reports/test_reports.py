"""Exports: every value is its source's own, nothing of the dossier is public, and what was not measured says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airlock.accounting import Claim
from airlock.auditing import Audit
from airlock.bundle import Bundle, Card, Dossier, card_schema, dossier_schema, make_card
from airlock.bundle.dossier import make as make_dossier
from airlock.bundle.reports import Report, make, registry, write
from airlock.bundle.reports.quoting import IN_DOSSIER, Quote, Sources
from airlock.bundle.reports.writing import DOCUMENTS, FORMS, to_html, to_json, to_markdown
from airlock.errors import ConfigError, OutputError
from airlock.methods.contract import KINDS, Release
from tests.bundle.conftest import ATTACK, AUDIT, CONFIG, FACTS, INSIDE, guarantee, make_release, noise
from tests.bundle.signing.conftest import holder as holder
from tests.bundle.signing.conftest import of_answers as of_answers
from tests.bundle.signing.conftest import of_features as of_features
from tests.bundle.test_feature_card import FOUND, LOOKED

AUDITS = {
    "network": AUDIT,
    "interface": Audit((replace(ATTACK, view="interface"),), ("Shadow models.",)),
    "features": Audit((LOOKED,), (), FOUND),
}
# Fields whose value is for the curator, or the same for every release.
OWN = {"curator", "airlock"}


@pytest.fixture(params=KINDS)
def card(request: pytest.FixtureRequest) -> Card:
    """A card of each kind."""
    if request.param == "network":
        return make_card(CONFIG, FACTS, make_release(guarantee()), noise())
    bundle: Bundle = request.getfixturevalue({"interface": "of_answers", "features": "of_features"}[request.param])
    return bundle.card


@pytest.fixture
def dossier(card: Card, release: Release) -> Dossier:
    return make_dossier(card, release, AUDITS[card.artefact])


def in_schema(schema: dict[str, Any], path: str) -> bool:
    """Whether a published schema has a path: through references, alternatives, lists and open tables."""

    def step(nodes: list[Any], part: str) -> list[Any]:
        found = []
        for node in resolve(nodes):
            if part in node.get("properties", {}):
                found.append(node["properties"][part])
            elif part.isdecimal() and node.get("type") == "array":
                found += [node["items"]] if "items" in node else node.get("prefixItems", [])
        return found

    def resolve(nodes: list[Any]) -> list[Any]:
        flat = []
        for node in nodes:
            inner = [schema["$defs"][node["$ref"].rpartition("/")[2]]] if "$ref" in node else node.get("anyOf", [])
            flat += resolve(inner) if inner else [node]
        return flat

    nodes: list[Any] = [schema]
    for part in path.split("."):
        nodes = step(nodes, part)
    return bool(nodes)


def check_quotes(quotes: list[Quote], card: Card, dossier: Dossier | None) -> int:
    """That every source is in its published schema, and the value is what stands there or says how it follows."""
    schemas = {"card": card_schema(), "dossier": dossier_schema()}
    tables = {"card": json.loads(card.to_json())} | ({"dossier": json.loads(dossier.to_json())} if dossier else {})
    checked = 0
    for quote in quotes:
        where, _, path = quote.source.partition(":")
        if where in OWN | {"user"}:
            continue
        assert in_schema(schemas[where], path), quote.source
        found = tables[where]
        for part in path.split("."):
            found = found[int(part)] if isinstance(found, list) else found[part]
        assert quote.derived or json.loads(json.dumps(quote.value)) == found, quote.source
        checked += not quote.derived
    return checked


def test_the_walker_finds_what_is_not_in_a_schema() -> None:
    assert in_schema(card_schema(), "guarantee.parts.test.epsilon")
    assert in_schema(card_schema(), "features.recovery.0.bound")
    assert not in_schema(card_schema(), "guarantee.epsilonn")
    assert not in_schema(card_schema(), "guarantee.0")


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("inside", [False, True])
def test_every_value_is_its_sources_own(card: Card, dossier: Dossier, kind: str, inside: bool) -> None:
    report = make(kind, card, dossier if inside else None)
    assert check_quotes(list(report.quotes), card, dossier if inside else None) > 20
    assert {quote.source.partition(":")[0] for quote in report.quotes} == ({"card", "dossier"} if inside else {"card"})
    keys = [answer.key for chapter in report.chapters for answer in chapter.answers]
    assert len(set(keys)) == len(keys)
    for chapter in report.chapters:
        for answer in chapter.answers:
            assert answer.says, answer.key
            assert answer.state in ("not measured", "not stated", "to be filled in") or answer.quotes, answer.key


def test_every_field_of_a_registry_entry_has_a_source(card: Card) -> None:
    entry, quotes = registry.make(card)
    assert check_quotes(list(quotes.values()), card, None) >= 10
    table = entry.to_table()
    for path, quote in quotes.items():
        found: Any = table
        for part in path.split("."):
            found = found[part]
        assert found == json.loads(json.dumps(quote.value)), path
    leaves = sum(1 for _ in flat(table))
    assert leaves == len(quotes)
    assert table["deployment"]["privacy_loss"]["privacy_parameters"] == {
        "epsilon": card.guarantee.epsilon,
        "delta": card.guarantee.delta,
    }
    basic, model = table["deployment"]["basic"], table["deployment"]["deployment_model"]
    kinds = {"network": "Machine learning model", "interface": "Interactive API", "features": "Dataset"}
    assert basic["data_product_type"] == kinds[card.artefact]
    assert (model["access_type"] == "Interactive") == (card.artefact == "interface")


def flat(table: Any) -> Any:
    """The fields of a table that hold no table."""
    for value in table.values():
        yield from flat(value) if isinstance(value, dict) else [value]


def figures_of(dossier: Dossier) -> set[str]:
    """Figures that only the dossier has, as they would be printed."""
    found = {str(one.value) for one in dossier.audit.attacks} | {str(one.low) for one in dossier.audit.attacks}
    found |= {f"{dossier.utility.correct} of", str(dossier.utility.figures.accuracy.low)}
    found |= {str(one.share) for one in (dossier.audit.features.reconstructions if dossier.audit.features else ())}
    return found


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_without_the_dossier_nothing_of_it_is_there(card: Card, dossier: Dossier, kind: str) -> None:
    public, inside = make(kind, card), make(kind, card, dossier)
    assert not public.stays
    assert inside.stays
    for form in (to_json, to_markdown, to_html):
        assert "stays inside" not in form(public).lower().replace("which stays", "")
        assert "stays inside" in form(inside).lower().replace("_", " ")
        said = form(public)
        card_text = card.to_json()
        assert not [one for one in figures_of(dossier) if len(one) > 4 and one in said and one not in card_text]
    assert str(dossier.audit.attacks[0].value) in to_json(inside)


def test_a_form_that_stays_says_so_first(card: Card, dossier: Dossier) -> None:
    report = make("dpia", card, dossier)
    assert to_markdown(report).startswith("**STAYS INSIDE.**")
    assert next(iter(json.loads(to_json(report)))) == "stays_inside"
    body = to_html(report).partition("<body")[2]
    assert body.index("Stays inside") < body.index("<header>")


def answer_of(report: Report, key: str) -> Any:
    return next(one for chapter in report.chapters for one in chapter.answers if one.key == key)


def test_what_was_not_measured_says_so(card: Card, release: Release) -> None:
    bare = make("dpia", card, make_dossier(card, release, Audit((), ())))
    for key in ("membership-held", "membership-asked", "test-membership", "test-attributes", "test-inversion"):
        assert answer_of(bare, key).state == "not measured"
        assert answer_of(bare, key).says[0].startswith("Not measured")
    public = make("dpia", card)
    for key in ("test-attributes", "test-inversion", "test-reconstruction"):
        assert (answer_of(public, key).state, answer_of(public, key).says) == ("not stated", (IN_DOSSIER,))
    for key in ("test-exfiltration", "test-regurgitation"):
        assert answer_of(public, key).state == "not measured"


def test_each_attack_is_told_once_for_those_who_hold_it_and_those_who_ask(card: Card, dossier: Dossier) -> None:
    report = make("dpia", card, dossier)
    held, asked = (answer_of(report, f"membership-{key}") for key in ("held", "asked"))
    names = [quote.value for one in (held, asked) for quote in one.quotes if quote.name == "name"]
    assert sorted(names) == sorted(attack.name for attack in dossier.audit.attacks)
    if card.artefact == "features":
        assert answer_of(report, "test-attributes").state == "measured"
        assert "'inversion'" in answer_of(report, "test-inversion").says[0]


@pytest.mark.parametrize(
    "promise",
    [{"status": "claimed", "claim": Claim(1.0, 1e-5, "theorem 2")}, {"status": "empirical"}, {"unit": "model"}],
)
def test_what_is_not_proven_is_not_filed_as_proven(promise: dict[str, Any]) -> None:
    card = make_card(CONFIG, FACTS, make_release(guarantee(**promise)), noise())
    seeded = make_card(CONFIG, FACTS, make_release(guarantee(), secure_noise=False), noise())
    for one in (card, seeded):
        table = registry.make(one)[0].to_table()["deployment"]
        assert "privacy_parameters" not in table["privacy_loss"]
        assert "variant_name" not in table["dp_variant"]
        assert table["administrative"]["notes"] == one.headline
        for kind, keys in (("dpia", ("extraction", "queries", "further-information")), ("nist", ("epsilon",))):
            report = make(kind, one)
            assert {answer_of(report, key).state for key in keys} == {"not proven"}
            assert "proven" not in {answer.state for chapter in report.chapters for answer in chapter.answers}


def test_what_an_attack_refutes_is_not_proven_inside(card: Card, release: Release) -> None:
    refuted = Audit(tuple(replace(one, epsilon_lower_bound=9.0) for one in (ATTACK, INSIDE)), ())
    report = make("dpia", card, make_dossier(card, release, refuted))
    assert report.headline.startswith("IN DOUBT")
    assert answer_of(report, "extraction").state == "not proven"


def test_nothing_on_a_card_is_acted_on_as_markup(card: Card) -> None:
    hostile = "<script>alert(1)</script> [x](http://a.example) | `b` \x1b[31m"
    odd = card.model_copy(update={"data": card.data.model_copy(update={"origin": hostile, "name": hostile})})
    for kind in DOCUMENTS:
        page, text = to_html(make(kind, odd)), to_markdown(make(kind, odd))
        assert "<script>" not in page + text
        assert "\x1b" not in page + text
        assert "[x](http" not in text
        for line in text.splitlines():
            assert not line.startswith("|") or line.replace("\\|", "").count("|") == 4


def test_a_source_that_is_nowhere_is_no_quote(card: Card) -> None:
    for source in ("card:guarantee.epsilonn", "dossier:audit", "vault:key"):
        with pytest.raises(KeyError):
            Sources(card).quote(source)


# Files.


@pytest.mark.parametrize("kind", [*DOCUMENTS, "registry"])
def test_files_of_every_form(card: Card, tmp_path: Path, kind: str) -> None:
    for suffix in FORMS[kind]:
        path = tmp_path / f"{kind}{suffix}"
        files = write(path, kind, card)
        assert files[0] == path
        assert path.stat().st_mode & 0o777 == 0o644
        with pytest.raises(OutputError, match="does not exist yet"):
            write(path, kind, card)
    with pytest.raises(ConfigError, match="ends in"):
        write(tmp_path / "file.pdf", kind, card)


def test_a_registry_entry_and_its_sources(card: Card, tmp_path: Path) -> None:
    filled = {"deployment.basic.data_curators": ["A hospital"], "deployment.basic.data_product_sector": "Healthcare"}
    entry, sources = write(tmp_path / "entry.json", "registry", card, filled_in=filled)
    assert sources.name == "entry.sources.json"
    table, told = json.loads(entry.read_text()), json.loads(sources.read_text())
    assert table["deployment"]["basic"]["data_curators"] == ["A hospital"]
    assert told["fields"]["deployment.basic.data_curators"]["source"] == "user"
    assert told["fields"]["deployment.privacy_loss.privacy_parameters.epsilon"]["source"] == "card:guarantee.epsilon"
    assert "3e9c812" in told["follows"]
    for wrong in ({"deployment.basic.nmae": "x"}, {"deployment.basic.data_product_sector": "Circus"}):
        with pytest.raises(ConfigError, match=r"deployment\.basic"):
            registry.make(card, wrong)
