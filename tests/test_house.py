"""The house itself: imports point one way, the front door is explicit, every command is documented."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import airlock
from tests.loading import heavy

ROOT = Path(__file__).resolve().parents[1]
# Lower floors first; a module imports from its own floor (its own room) or from below.
FLOORS = [
    ["_version", "threads", "lazy"],
    ["errors"],
    ["isolation"],
    ["plugins"],
    ["config", "ledger"],
    ["data", "nets", "mechanisms", "accounting"],
    ["training"],
    ["methods"],
    ["papers"],
    ["auditing"],
    ["bundle"],
    ["pipeline", "serve"],
    ["comparison"],
    ["reproduction"],
    ["api"],
    ["estimator", "private_training"],
    ["cli", "testing"],
    ["__main__"],
]
# Commands that have commands of their own.
GROUPS = {"features", "keys", "ledger", "policy", "register"}
# Rooms that export names.
ROOMS = [
    "data",
    "nets",
    "mechanisms",
    "accounting",
    "training",
    "methods",
    "auditing",
    "bundle",
    "ledger",
    "serve",
    "comparison",
    "reproduction",
]
HEIGHT = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"airlock.{a.name}" for a in node.names] if node.module == "airlock" else [node.module]
        found |= {name.split(".")[1] for name in names if name.startswith("airlock.")}
    return found


def test_imports_point_down_the_house() -> None:
    modules = [path for path in (ROOT / "airlock").rglob("*.py") if path != ROOT / "airlock/__init__.py"]
    assert len(modules) > 40
    for path in modules:
        room = path.relative_to(ROOT / "airlock").parts[0].removesuffix(".py")
        for other in imported_rooms(path):
            allowed = other == room or HEIGHT[other] < HEIGHT[room]
            assert allowed, f"{path.relative_to(ROOT)} in '{room}' imports '{other}'"


def test_nobody_imports_the_papers_but_who_runs_them_again() -> None:
    """They are found by their entry points, like the methods of any other package."""
    for path in (ROOT / "airlock").rglob("*.py"):
        if path.relative_to(ROOT / "airlock").parts[0] not in ("papers", "reproduction"):
            assert "papers" not in imported_rooms(path), path.relative_to(ROOT)


def test_methods_of_different_channels_do_not_import_each_other() -> None:
    folders = [p for p in (ROOT / "airlock/methods").iterdir() if p.is_dir() and p.name != "__pycache__"]
    assert folders
    for folder in folders:
        for path in folder.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for other in folders:
                assert other == folder or f"methods.{other.name}" not in text


def test_no_room_above_the_methods_imports_a_channel() -> None:
    """A method is found by its name, and what leaves is asked by its protocol."""
    channels = {p.name for p in (ROOT / "airlock/methods").iterdir() if p.is_dir() and p.name != "__pycache__"}
    for name, others in import_graph().items():
        if not name.startswith(("airlock.methods.", "airlock.papers.")):
            inside = {other for other in others if other.startswith("airlock.methods.")}
            assert not {other for other in inside if other.split(".")[2] in channels}, name


def test_every_room_has_an_entry_for_each_kind_of_artefact() -> None:
    from airlock import testing
    from airlock.auditing.required_attacks import ATTACKS
    from airlock.bundle.packing import PACKINGS
    from airlock.comparison.advise import UNFIT
    from airlock.methods.contract import KINDS

    for table in (ATTACKS, PACKINGS, UNFIT, testing.SEEN, testing.CHECKED):
        assert tuple(table) == KINDS


def test_every_method_says_of_itself_what_tables_and_the_chooser_ask() -> None:
    from airlock.methods import METHODS, named
    from airlock.methods.contract import KINDS

    found = [named(f"{channel}/{method}") for channel, own in METHODS.items() for method in own]
    assert len({method.title for method in found}) == len(found)
    assert {method.artefact for method in found} == set(KINDS)
    proven = [method.rank for method in found if method.status == "proven"]
    assert len(set(proven)) == len(proven)
    assert max(proven) < min(method.rank for method in found if method.status != "proven")


def test_the_front_door_opens_every_name_it_lists() -> None:
    assert set(airlock.__all__) == {
        "AirlockError",
        "Audit",
        "Bundle",
        "Card",
        "Comparison",
        "Guarantee",
        "Plan",
        "PrivateClassifier",
        "PrivateRegressor",
        "Release",
        "ReleaseConfig",
        "Split",
        "__version__",
        "advise",
        "audit",
        "audit_bundle",
        "compare",
        "compare_paid",
        "court",
        "gate",
        "load",
        "load_config",
        "make_config",
        "make_release",
        "plan",
        "plan_release",
        "push_to_hub",
        "release",
        "show",
        "train_private",
        "tune",
        "verify",
        "verify_bundle",
    }
    for name in airlock.__all__:
        assert getattr(airlock, name) is not None
    assert dir(airlock) == sorted(airlock.__all__)


def test_every_room_lists_what_it_exports() -> None:
    for room in ROOMS:
        module = importlib.import_module(f"airlock.{room}")
        assert sorted(module.__all__) == sorted(set(module.__all__))
        for name in module.__all__:
            assert hasattr(module, name), f"airlock.{room}.{name}"


MOST_MODULES = 20


def folders() -> Iterator[tuple[Path, list[str]]]:
    """Every folder of the package, and the names of the modules in it."""
    for place in [ROOT / "airlock", *sorted(path.parent for path in (ROOT / "airlock").glob("*/**/__init__.py"))]:
        yield place, sorted(file.stem for file in place.glob("*.py") if file.stem != "__init__")


def test_every_room_says_what_each_of_its_files_holds() -> None:
    """In its docstring: one line per file, its name first."""
    checked = 0
    for place, modules in folders():
        if place == ROOT / "airlock":
            continue
        told = ast.get_docstring(ast.parse((place / "__init__.py").read_text(encoding="utf-8"))) or ""
        named = [line.split()[0] for line in told.splitlines() if line.startswith("    ")]
        rooms = [f"{inner.parent.name}/" for inner in place.glob("*/__init__.py")]
        assert sorted(named) == sorted([*modules, *rooms]), f"{place.relative_to(ROOT)}/__init__.py"
        checked += len(modules)
    assert checked > 100


def test_no_folder_holds_too_many_modules() -> None:
    for place, modules in folders():
        assert len(modules) <= MOST_MODULES, f"{place.relative_to(ROOT)} holds {len(modules)} modules"


METHODS = ("airlock.methods.", "airlock.papers.")


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def import_graph() -> dict[str, set[str]]:
    """Which module imports which, anywhere in it: at the top, inside a function, or for types alone."""
    files = {module_name(file): file for file in (ROOT / "airlock").rglob("*.py")}
    graph: dict[str, set[str]] = {name: set() for name in files}
    for name, file in files.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names} & set(files)
            elif isinstance(node, ast.ImportFrom) and node.module in files:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[name] |= inner & set(files) if inner <= set(files) else (inner & set(files)) | {node.module}
    return graph


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph[waiting.pop()] - found:
            found.add(other)
            waiting.append(other)
    return found


def test_no_module_imports_itself_by_way_of_others_not_even_for_types() -> None:
    graph = import_graph()
    assert sum(map(len, graph.values())) > 500
    door = {"airlock"}  # which opens every room when it is asked for a name
    graph = {name: others - door for name, others in graph.items()}
    cyclic = {name for name in graph if name in reached(graph, name)}
    assert not cyclic


def is_method(node: ast.ClassDef) -> bool:
    """Whether it is named after a method, which is told from others by its channel."""
    stated = (one for one in node.body if isinstance(one, ast.Assign | ast.AnnAssign))
    return any(isinstance(name, ast.Name) and name.id == "method" for one in stated for name in ast.walk(one))


def test_no_two_classes_have_one_name() -> None:
    """A name stands for one thing in the whole house; methods alone, and their settings, may be called alike."""
    found: dict[str, list[str]] = {}
    for file in (ROOT / "airlock").rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not is_method(node):
                found.setdefault(node.name, []).append(module_name(file))
    assert len(found) > 300
    twice = {name: files for name, files in found.items() if len(files) > 1}
    assert not {name: files for name, files in twice.items() if not all(file.startswith(METHODS) for file in files)}


def test_every_command_and_option_is_documented() -> None:
    from typer.main import get_command

    from airlock.cli import app

    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert (
        set(commands)
        == {
            "advise",
            "approve",
            "audit",
            "bench",
            "check",
            "compare",
            "court",
            "datasets",
            "demo",
            "export",
            "gate",
            "plan",
            "predict",
            "pretrain",
            "release",
            "reproduce",
            "serve",
            "show",
            "tune",
            "verify",
        }
        | GROUPS
    )
    for name, command in commands.items():
        section = page.split(f"## airlock {name}\n")
        assert len(section) == 2, f"docs/commands.md has no section 'airlock {name}'"
        text = section[1].split("\n## ")[0]
        assert command.help, f"airlock {name} has no help text"
        parts = getattr(command, "commands", {})
        for part, below in parts.items():
            assert f"airlock {name} {part}" in text, f"docs/commands.md does not mention airlock {name} {part}"
            assert below.help, f"airlock {name} {part} has no help text"
        for parameter in [parameter for one in (command, *parts.values()) for parameter in one.params]:
            if parameter.name == "help":
                continue
            assert parameter.help, f"airlock {name}: {parameter.name} has no help text"
            shown = [o for o in parameter.opts if o.startswith("--")] or [parameter.name.upper()]
            assert shown[0] in text, f"docs/commands.md does not mention {shown[0]} of airlock {name}"


@pytest.mark.parametrize("asked", [("--help",), ("release", "--help"), ("datasets",)])
def test_what_only_prints_loads_nothing_heavy(asked: tuple[str, ...]) -> None:
    assert heavy(*asked) == []


def test_a_file_called_like_an_exported_name_does_not_hide_it() -> None:
    """Python sets a file that was imported on its room: `from airlock.accounting import calibrate` would find it."""
    both = 0
    for room in ROOMS:
        module = importlib.import_module(f"airlock.{room}")
        for name in set(module.__all__) & {file.stem for file in (ROOT / "airlock" / room).glob("*.py")}:
            importlib.import_module(f"airlock.{room}.{name}")
            assert not isinstance(getattr(module, name), ModuleType), f"airlock.{room}.{name}"
            both += 1
    assert both >= 3


def test_a_room_knows_nothing_that_it_does_not_export() -> None:
    from airlock import accounting

    with pytest.raises(AttributeError, match=r"module 'airlock\.accounting' has no attribute 'epsilom'"):
        getattr(accounting, "epsilom")  # noqa: B009
    assert dir(accounting) == sorted(accounting.__all__)


def test_no_benchmark_hides_a_module_of_python() -> None:
    """One that runs as a script has its folder first in the path: select.py there would break every socket."""
    assert not [file.name for file in (ROOT / "benchmarks").glob("*.py") if file.stem in sys.stdlib_module_names]


def test_no_pickle_and_no_junk_rooms() -> None:
    for path in (ROOT / "airlock").rglob("*.py"):
        assert path.stem not in {"utils", "util", "helpers", "common", "misc", "manager"}
        text = path.read_text(encoding="utf-8")
        assert "import pickle\n" not in text
        assert "allow_pickle=True" not in text
