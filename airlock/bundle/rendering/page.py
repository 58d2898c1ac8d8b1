"""The card as a page to read, print and sign, and as a model card for hubs.

In: a `Card`. Out: `card.html`, which needs no network and no script, and `README.md` with front matter. Both are pure
functions of the card, so verification renders them again and compares. Every value is escaped where it is printed.

How pages are rendered (`room_environment`): the templates of a package extend the layout that all pages share
(`templates/look.html.j2`). Every value is escaped where it is printed, an undefined one is an error, and a page loads
no external resources: the Content-Security-Policy in its head forbids it. A page with its own script allows it by its
SHA-256 (`allow_script`).

The dossier's page (`render_dossier`) is read, printed and signed inside. It is stored next to `dossier.json` in the
vault.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from airlock import nets
from airlock.auditing.evaluation import Figure, Figures
from airlock.auditing.perplexity import compare_with_guessing
from airlock.auditing.perplexity import rows as language_rows
from airlock.auditing.regression_errors import compare_with_constant
from airlock.auditing.regression_errors import rows as error_rows
from airlock.auditing.usefulness import compare_with_blind
from airlock.bundle.card import Card
from airlock.bundle.dossier import STAYS, Dossier
from airlock.bundle.packing import packing_of
from airlock.bundle.receiving.input_schema import NamedColumn
from airlock.bundle.rendering import formatting, text
from airlock.bundle.rendering.charts import draw_roc, has_curve
from airlock.bundle.rendering.strength import STRENGTHS
from airlock.bundle.schema import Compression, OtherRelease
from airlock.bundle.vault import DOSSIER, Vault
from airlock.config import About
from airlock.errors import visible

# Templates.


def room_environment(room: str = "bundle") -> Environment:
    """The environment for a package's templates, which may extend `look.html.j2` and use marks from `marks.html.j2`."""
    loaders = [PackageLoader(f"airlock.{name}", "templates") for name in dict.fromkeys((room, "bundle"))]
    return Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: visible(value, breaks=True) if type(value) is str else value,
    )


def allow_script(source: str) -> str:
    """The Content-Security-Policy directive that allows this script and no other."""
    return f"script-src 'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


# The card.

_MARKDOWN = re.compile(r"([\\`*_\[\]#|~])")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_IN_JSON = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "&<>`\x7f"})
_EQUATION = re.compile("([εδ]) = ")
_WHITE = re.compile(r"\s+")

BADGES = {"proven": "Proven", "unproven": "Not proven", "doubt": "In doubt", "insecure": "Test only"}
MARKS = BADGES | {"proven": "Proven, strong", "limited": "Proven, with limits", "weak": "Proven, but very weak"}
PROVED = {
    "proven": "Yes: it holds against every attack, if the assumptions below are true.",
    "unproven": "No: judge this release as if it promised nothing.",
    "doubt": "In doubt: something measured inside contradicts it.",
    "insecure": "Not for what is here: its noise can be computed and taken away.",
}
ABOUT = {
    "whose": "Whose data",
    "fields": "Which fields",
    "purpose": "Purpose",
    "controller": "Who answers for the data",
    "recipient": "Recipient",
    "retention": "How long it may be kept",
}
UNDECLARED = "not declared"
UNITS = {
    "person": "one person, with all records",
    "record": "one record",
    "model": "one trained model",
    "none": "nothing",
}
RELATIONS = {
    "add-remove": "with and without it (add or remove one)",
    "replace-one": "it or another one in its place (replace one)",
}
VIEWS = {
    "white-box": "The attacker holds the model with all its weights.",
    "black-box": "The attacker sees how sure the model is of each class, and not its weights.",
    "labels": "The attacker sees only which class the model names.",
    "interface": "The attacker asks through the released interface and sees its answers, with their noise.",
    "features": "The attacker holds the released features, and knows some records with theirs.",
    "front": "The attacker holds the released features and the front end that made them.",
}
HAS = {
    "white-box": "the model with its weights",
    "black-box": "how sure it is of each class",
    "labels": "the class that it names",
    "interface": "answers, with their noise",
    "features": "the features, and some records with theirs",
    "front": "the features and the front end",
}
GIVES = {
    "logits": "one noisy number a class (logits)",
    "probabilities": "one noisy probability a class",
    "label": "a class and nothing else",
}
FEW_CLASSES = 20  # up to this many classes, every recall has a row
SAME_SPEED = 1.05  # two timings of one network may differ by this factor
FORMS = {"model.int8.onnx": "8-bit integers", "model.fp16.onnx": "16-bit floats"}
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """One measured figure on a scale from `start` to `end`: positions of the point, its interval and the mark, in %."""

    point: float
    low: float
    high: float
    mark: float


def scale(value: float, low: float, high: float, mark: float, start: float = 0.0, end: float = 1.0) -> Scale:
    """Positions between 0 and 100, clamped to the scale."""

    def place(number: float) -> float:
        return round(100 * min(1.0, max(0.0, (number - start) / (end - start))), 2)

    return Scale(place(value), place(low), place(high), place(mark))


def render_html(card: Card) -> str:
    """The page."""
    return _render("card.html.j2", card, autoescape=True)


def summary(card: Card, folder: Path) -> str:
    """A release in one line, without anything that must stay: the card's headline, its utility, its location."""
    useful = (
        card.words.utility.split(" About ")[0].rstrip(".")
        if card.errors is not None or card.language is not None
        else "How useful it is stands in the dossier"
        if card.utility is None
        else (f"About {percent(card.utility.figures.accuracy.value)} of the test {_counted(card)} are right")
    )
    return f"{card.channel}/{card.method} on {card.data.name}: {card.headline} {useful}. In {folder}."


def _counted(card: Card) -> str:
    """What the test part counts, and what attacks score."""
    return text.UNITS["record" if card.data.people is None else "person"]["counted"]


def _builder(net: str) -> str:
    """What of `airlock.nets` builds a network by its name."""
    return "build_front" if nets.is_front(net) and net not in nets.names() else "build"


def in_notebook(said: str, page: str) -> str:
    """A short text with the page below it in its own frame, isolated from the notebook's styles and scripts."""
    return (
        f'<p>{escape(said)}</p><iframe sandbox="allow-scripts" title="{escape(said)}" width="100%" height="560" '
        f'style="border:1px solid #b9c3cc" srcdoc="{escape(page)}"></iframe>'
    )


def render_readme(card: Card) -> str:
    """The model card."""
    return _render("README.md.j2", card, autoescape=False)


def _render(template: str, card: Card, *, autoescape: bool) -> str:
    page = environment(autoescape).get_template(template)
    return page.render(
        card=card,
        packing=packing_of(card.artefact),
        badge=MARKS[card.mark],
        proved=PROVED[card.verdict],
        strengths=STRENGTHS,
        total=_total(card),
        scale=scale,
        units=UNITS,
        words=text.UNITS["record" if card.data.people is None else "person"],
        relations=RELATIONS,
        views=VIEWS,
        gives=GIVES,
        code=_code,
        python=python,
        as_tensor=as_tensor,
        builder=_builder,
        figures=formatting,
        about_rows=about_rows,
        undeclared=undeclared,
        scored=functools.partial(text.scored, counted=_counted(card)),
        size_rows=size_rows,
        beside_blind=compare_with_blind,
        useful_rows=useful_rows,
        error_rows=error_rows,
        language_rows=language_rows,
        beside_constant=compare_with_constant,
        smaller_words=smaller_words,
    )


@functools.cache
def environment(autoescape: bool = True) -> Environment:
    """This package's templates with the filters that its documents use."""
    made = room_environment()
    if not autoescape:
        made.autoescape, made.finalize = False, _markdown
    made.filters |= {"day": day, "figure": figure, "epsilon": epsilon, "percent": percent}
    made.filters |= {"pretty": _pretty, "tight": tight, "yaml": _yaml}
    return made


def epsilon(value: float | None) -> str:
    """ε rounded up, or that there is no bound."""
    return "no bound" if value is None else formatting.epsilon_up(value)


def figure(value: object) -> str:
    """A public figure in readable form."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return formatting.short(value) if abs(value) < 1e-3 else f"{value:,.5g}"
    return str(value)


def about_rows(about: About) -> list[tuple[str, str]]:
    """What was declared about the data and the release, and what was not."""
    return [(says, getattr(about, key) or UNDECLARED) for key, says in ABOUT.items()]


def undeclared(about: About) -> list[str]:
    """What was not declared, as it follows "ask for"."""
    return [says[0].lower() + says[1:] for says, said in about_rows(about) if said == UNDECLARED]


MAJORITY = "share of the largest class: always naming it is right this often"
BALANCED = "mean over the classes of how many it finds (balanced accuracy): rare classes count as much as frequent ones"
AREA = "how often a record of the second class scores higher than one of the first (AUC); 50% by chance"
CALIBRATION = "how far its probabilities are off, on average (expected calibration error)"


def useful_rows(card: Card) -> list[tuple[str, Figure]]:
    """Every figure about test records with its name, including per-class recall if there are few classes."""
    return [] if card.utility is None else rows_of(card.utility.figures, card.data.classes)


def rows_of(found: Figures, classes: Sequence[str]) -> list[tuple[str, Figure]]:
    """Every figure with its name, including those of each class, by name or number, if there are few classes.

    A rare class has a row too: that hardly anything can be said of it is what its interval says.
    """
    rows = [("accuracy", found.accuracy), (MAJORITY, found.majority)]
    rows.append((BALANCED, found.balanced_accuracy))
    if found.auc is not None:
        rows.append((AREA, found.auc))
    if found.calibration_error is not None:
        rows.append((CALIBRATION, found.calibration_error))
    names = list(classes) or [f"class {number}" for number in range(len(found.recalls))]
    recalls = [(f"how many of {name} it finds (recall)", one) for name, one in zip(names, found.recalls, strict=True)]
    return rows + (recalls if len(recalls) <= FEW_CLASSES else [])


@dataclass(frozen=True)
class SizeRow:
    """One line of "Smaller and faster", as text; unknown values are dashes."""

    what: str
    file: str
    parameters: str
    multiply_adds: str
    size: str
    time: str
    agrees: str


def size_rows(found: Compression) -> list[SizeRow]:
    """The teacher and the student at full precision, then the student's smaller files."""
    big, small, whole = found.teacher, found.student, found.forms[0]
    rows = [
        SizeRow("teacher, stays", "", f"{big.parameters:,}", _short_count(big.multiply_adds),
                file_size(big.onnx_bytes), _time(big.milliseconds), ""),
        SizeRow("student", whole.file, f"{small.parameters:,}", _short_count(small.multiply_adds),
                file_size(whole.bytes), _time(whole.milliseconds), ""),
    ]  # fmt: skip
    for form in found.forms[1:]:
        rows.append(
            SizeRow(f"in {FORMS[form.file]}", form.file, "", "", file_size(form.bytes), _time(form.milliseconds),
                    percent(form.agrees / max(1, form.records)))
        )  # fmt: skip
    return rows


def smaller_words(found: Compression) -> str:
    """The report in one sentence."""
    big, small = found.teacher, found.student
    text = (
        f"Beside its teacher, which does not leave, the student has {_ratio(big.parameters, small.parameters)} fewer "
        f"parameters and takes {_ratio(big.multiply_adds, small.multiply_adds)} fewer multiplications"
    )
    if found.faster is None:
        return text + "."
    where = "one input after the other on one processor thread, where this card was made"
    if found.faster < SAME_SPEED:
        return f"{text}; it is no faster {where}: networks this small are all overhead."
    return f"{text}; it answers {found.faster:.2g} times as fast {where}."


def _ratio(big: int, small: int) -> str:
    return f"{big / max(1, small):.3g} times"


def file_size(size: int | None) -> str:
    """A file size in readable units."""
    if size is None:
        return "–"
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"


def _short_count(number: int) -> str:
    return f"{number / 1e6:,.3g} million" if number >= 1e6 else f"{number:,}"


def _time(milliseconds: float | None) -> str:
    return "–" if milliseconds is None else f"{milliseconds:,.3g} ms"


def _total(card: Card) -> list[OtherRelease]:
    return sorted(card.total.releases, key=lambda other: (other.name, other.release_id))


def day(date: datetime.date) -> str:
    """A date, formatted the same in every locale."""
    return f"{date.day} {MONTHS[date.month - 1]} {date.year}"


def percent(value: float) -> str:
    """A proportion as a percentage with one decimal."""
    return f"{100 * value:.1f}%"


def tight(text: str) -> str:
    """Without line breaks inside "ε = 3.00"."""
    return _EQUATION.sub("\\1\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}", text)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _yaml(value: object) -> Markup:
    """A value that every YAML parser reads unchanged: JSON is YAML. It holds nothing that HTML or Markdown acts on."""
    return Markup(json.dumps(value, ensure_ascii=True).translate(_IN_JSON))


def _markdown(value: object) -> Markup:
    """Text on one line with everything escaped that Markdown or HTML would act on."""
    if isinstance(value, Markup):
        return value
    return Markup(_MARKDOWN.sub(r"\\\1", visible(_WHITE.sub(" ", str(value)))).translate(_ENTITIES))


def _code(value: object) -> Markup:
    """Text for a code span or a code block: one line, without backticks."""
    return Markup(visible(_WHITE.sub(" ", str(value))).replace("`", "'"))


def python(value: float | str) -> Markup:
    """A value as Python writes it, in signs that neither Markdown nor HTML acts on."""
    if isinstance(value, float):
        return Markup(repr(value))
    plain = (c if c.isprintable() and c not in '\\"&<>`' else f"\\U{ord(c):08x}" for c in value)
    return Markup('"' + "".join(plain) + '"')


def as_tensor(column: NamedColumn) -> Markup:
    """One row of a column as model.table.onnx takes it."""
    if column.categories is not None:
        return Markup("np.array([{}], object)").format(python(column.example))
    return Markup("np.array([{}])").format(python(column.low if column.sort == "date" else column.example))


# The dossier.

DOSSIER_HTML = "dossier.html"


def render_dossier(dossier: Dossier) -> str:
    """The page, which says first that it stays inside."""
    template = environment().get_template("dossier.html.j2")
    words = text.UNITS.get(dossier.guarantee.unit, text.UNITS["record"])
    return template.render(
        dossier=dossier,
        badge=MARKS[dossier.mark],
        proved=PROVED[dossier.verdict],
        strengths=STRENGTHS,
        words=words,
        about_rows=about_rows,
        undeclared=undeclared,
        scored=functools.partial(text.scored, counted=words["counted"]),
        has=HAS,
        stays=STAYS,
        scale=scale,
        views=VIEWS,
        roc=_curves(dossier),
        figures=formatting,
        rows=[] if dossier.utility is None else rows_of(dossier.utility.figures, ()),
        beside_blind=compare_with_blind,
        error_rows=error_rows,
        language_rows=language_rows,
        beside_constant=compare_with_constant,
        beside_guessing=compare_with_guessing,
    )


def _curves(dossier: Dossier) -> str:
    """The ROC curves as the URL of an image; empty if there are none."""
    attacks = dossier.audit.attacks
    if not has_curve(attacks):
        return ""
    return "data:image/svg+xml;base64," + base64.b64encode(draw_roc(attacks).encode()).decode()


def dossier_place(vault: Vault, release_id: str) -> Path:
    """The path of the page of a release's newest dossier."""
    return vault.dossier_folder(release_id) / DOSSIER_HTML


def keep_dossier(vault: Vault, dossier: Dossier) -> Path:
    """Write the dossier and its page to the vault, keeping earlier ones. Returns the path of the page."""
    files = {DOSSIER: dossier.to_json().encode(), DOSSIER_HTML: render_dossier(dossier).encode()}
    return vault.store_dossier(dossier.release_id, files) / DOSSIER_HTML
