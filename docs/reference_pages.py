"""Pages of the reference that are made from the code, so that nothing can be missing from them.

A hook of MkDocs (`mkdocs.yml`). It fills in `reference/config.md` and `policy.md` from the pydantic models,
`reference/cli.md` from typer and `reference/rooms/` from docstrings, shows the docstrings that other pages name, and
brings the configs in `runs/` into the site, so that links to them work.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel

from airlock import config as settings
from airlock.bundle import Policy
from airlock.comparison.settings import BaselineSettings, CompareConfig
from airlock.comparison.values import Need
from airlock.data import describe
from airlock.errors import ConfigError
from airlock.methods import METHODS, build

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "airlock"
MARKER = "<!-- generated -->"
# A proof is written once, in the docstring of the code that it is about; a page shows it by naming the module.
DOCSTRING = re.compile(r"<!-- docstring: ([\w.]+) -->")
# Whichever key a method does not know, the model that refuses it is the model of the method's settings.
UNKNOWN = "no_method_has_this_key"
BOUNDS = {"exclusiveMinimum": "> {}", "minimum": "≥ {}", "exclusiveMaximum": "< {}", "maximum": "≤ {}"}
KINDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "none"}
Schema = Mapping[str, Any]


def rooms() -> list[str]:
    """The rooms of the package: its folders that hold modules."""
    return sorted(file.parent.name for file in PACKAGE.glob("*/__init__.py"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the configs of the results."""
    for path in sorted((ROOT / "runs").glob("*.toml")):
        files.append(File.generated(config, f"runs/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is made from the code, and keep links to `runs/` inside the site."""
    if MARKER in markdown:
        markdown = markdown.replace(MARKER, generated(page.file.src_uri))
    markdown = DOCSTRING.sub(lambda found: _docstring(found[1]), markdown)
    return re.sub(r"\]\(((?:\.\./)*)\.\./runs/", r"](\1runs/", markdown)


def generated(page: str) -> str:
    """The generated part of a page."""
    if page == "reference/config.md":
        return config_tables()
    if page == "reference/cli.md":
        return commands()
    if page == "policy.md":
        return policy_tables()
    room = page.removeprefix("reference/rooms/").removesuffix(".md")
    return top_page() if room == "airlock" else room_page(room)


def room_page(room: str) -> str:
    """What a room is for and exports, and the docstring of each of its modules, proofs included."""
    modules = [path for path in sorted((PACKAGE / room).rglob("*.py")) if path != PACKAGE / room / "__init__.py"]
    return _docstring(f"airlock.{room}", exported(room)) + "\n## Modules\n" + "".join(map(_module, modules))


def top_page() -> str:
    """The modules that lie in no room."""
    return "\n## Modules\n" + "".join(map(_module, sorted(PACKAGE.glob("[a-z]*.py"))))


def exported(room: str) -> list[str]:
    """The names in a room's `__all__`."""
    for node in ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value
            and "__all__" in map(ast.unparse, filter(None, targets))
        ):
            return list(ast.literal_eval(node.value))
    return []


def _docstring(name: str, members: list[str] | None = None) -> str:
    return f"::: {name}\n    options:\n      show_root_heading: false\n      members: {json.dumps(members or False)}\n"


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    return f"\n::: {name}\n    options:\n      show_root_full_path: true\n      members: false\n"


def commands() -> str:
    """Every command with its arguments and options, as typer documents them."""
    line = [sys.executable, "-m", "typer", "airlock.cli", "utils", "docs", "--name", "airlock"]
    made = subprocess.run(
        line, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    without_title = made.stdout.partition("\n")[2]
    return re.sub(r"\*\*Commands\*\*:\n\n(?:\* .*\n)+", "", without_title)  # their sentences are cut off there


def config_tables() -> str:
    """Every key of a release, of every method's settings and of a comparison."""
    made = [
        "## A release\n",
        _section("Top level", settings.ReleaseConfig),
        _section("`[data]`", settings.DataConfig),
        _section("`[data.columns]`, per column", settings.Column),
        _section("`[split]`", settings.SplitConfig),
        _section("`[tune]`", settings.TuneConfig),
        "## `[settings]`, by method\n",
    ]
    named = [(channel, method) for channel, methods in METHODS.items() for method in methods]
    made += [_section(f"`{channel}/{method}`", settings_model(channel, method)) for channel, method in named]
    made += ["## A comparison\n", _section("Top level of a comparison", CompareConfig), _section("`[need]`", Need)]
    return "\n".join([*made, _section("`[settings.baseline]`", BaselineSettings)])


def policy_tables() -> str:
    """Every key of a policy, section by section."""
    made = []
    for name, section in Policy():
        made.append(_section(f"`[{name}]`", type(section)))
        inner = [(key, value) for key, value in section if isinstance(value, BaseModel)]
        made += [_section(f"`[{name}.{key}]`", type(value)) for key, value in inner]
    return "\n".join(made)


def settings_model(channel: str, method: str) -> type[BaseModel]:
    """The model that parses `[settings]` of a method."""
    table = {"channel": channel, "method": method, "data": "digits", "epsilon": 1.0, "delta": 1e-4}
    asked = settings.from_table({**table, "split": {"public": 0.3}, "settings": {UNKNOWN: 0}})
    try:
        build(asked, describe(asked))
    except ConfigError as error:
        return _refused_by(error.__traceback__)
    raise AssertionError(f"{channel}/{method} takes settings that it does not know")


def _refused_by(trace: TracebackType | None) -> type[BaseModel]:
    while trace is not None:
        if trace.tb_frame.f_code is settings.parse.__code__:
            model: type[BaseModel] = trace.tb_frame.f_locals["model"]
            return model
        trace = trace.tb_next
    raise AssertionError("a method refused its settings without config.parse")


def _section(title: str, model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    says = descriptions(model)
    lines = [f"### {title}", "", "| key | values | default | what it says |", "|---|---|---|---|"]
    for key, field in model.model_fields.items():
        values, default = (
            kind(schema["properties"][key]),
            _default(field.is_required(), field.get_default(call_default_factory=True)),
        )
        lines.append(f"| `{key}` | {values} | {default} | {says[key]} |")
    return "\n".join([*lines, ""])


def _default(required: bool, value: object) -> str:
    if required:
        return ""
    if value is None:
        return "none"
    if isinstance(value, BaseModel) or value == {} or value == ():
        return "empty"
    return f"`{json.dumps(value)}`"


def kind(schema: Schema) -> str:
    """The values that a key takes, in words, from its JSON schema."""
    if "anyOf" in schema:
        return " or ".join(kind(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema or "allOf" in schema or schema.get("type") == "object":
        return "table"
    if schema.get("type") == "array":
        items = schema.get("items") or {}
        return f"list of {kind(items)}" if items else "list"
    bounds = [shown.format(_number(schema[name])) for name, shown in BOUNDS.items() if name in schema]
    return ", ".join([" ".join([KINDS.get(schema.get("type", ""), "any"), *bounds[:1]]), *bounds[1:]])


def _number(value: float) -> str:
    power = int(value).bit_length() - 1
    return f"2^{power}" if power > 30 and value == 2**power else f"{value:,}"


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """What each key says; one that says nothing is an error."""
    found = {name: says.replace("|", "\\|") for name, says in settings.described(model).items()}
    missing = set(model.model_fields) - set(found)
    if missing:
        raise AssertionError(f"the docstring of {model.__name__} does not say what {', '.join(sorted(missing))} is")
    return found
