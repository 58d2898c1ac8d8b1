"""What every command has in common: a mistake or Ctrl-C is a message and an exit code, a defect is a traceback."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
import typer

import airlock.__main__
import airlock.cli
from airlock.cli.terminal import (
    print_json,
    print_lines,
    print_table,
    print_text,
    progress_bar,
    tell,
    translate_errors,
)
from airlock.errors import AirlockError, visible

# A title that is set, a colour, a line that is wiped, a name that is turned around, one that is not seen, a lone byte.
HOSTILE = "\x1b]0;owned\x07\x1b[31m\r\x9b2K\x7f\u202egnp.exe\u2066\u200b\ufeff\u2028\udc80[bold red]ok[/]"


class _Interrupted:
    """Ctrl-C while a class is made; before Python 3.12 a RuntimeError with the interrupt as its cause."""

    def __set_name__(self, owner: type, name: str) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_is_a_message_while_the_command_line_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pressed:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "airlock.cli":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Pressed(), *sys.meta_path])
    for name in [name for name in sys.modules if name.startswith("airlock.cli")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit) as ended:
        airlock.__main__.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted: Ctrl-C.\n"


def test_ctrl_c_is_a_message_even_where_a_class_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    @translate_errors
    def plainly() -> None:
        raise KeyboardInterrupt

    @translate_errors
    def in_a_class() -> None:
        class Made:
            one = _Interrupted()

    @translate_errors
    def wrapped() -> None:
        raise RuntimeError("while a class was made") from KeyboardInterrupt()

    for command in (plainly, in_a_class, wrapped):
        with pytest.raises(typer.Exit) as found:
            command()
        assert found.value.exit_code == 130
        assert "interrupted: Ctrl-C" in capsys.readouterr().err


def test_a_defect_stays_what_it_is() -> None:
    @translate_errors
    def broken() -> None:
        raise RuntimeError("a defect") from ValueError("its cause")

    with pytest.raises(RuntimeError, match="a defect"):
        broken()


def test_what_a_terminal_would_act_on_is_written_out() -> None:
    seen = visible(HOSTILE)
    assert seen.isprintable()
    assert seen.startswith(r"\x1b]0;owned\x07\x1b[31m\r\x9b2K\x7f\u202egnp.exe")
    assert visible("a\nb\tc", breaks=True) == "a\nb\tc"
    assert visible("a\nb\tc") == r"a\nb\tc"
    assert visible("Größe ε ≤ 3, 名前 ✓") == "Größe ε ≤ 3, 名前 ✓"


def test_no_way_of_printing_lets_a_name_act_on_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")

    @translate_errors
    def refused() -> None:
        raise AirlockError(HOSTILE, f"{HOSTILE}\nerror: a second line")

    print_table(HOSTILE, [HOSTILE, "b"], [[HOSTILE, HOSTILE]], HOSTILE)
    print_lines(lambda width, plain: HOSTILE)
    print_text(HOSTILE)
    tell(HOSTILE, HOSTILE)
    print_json({HOSTILE: HOSTILE})
    with pytest.raises(typer.Exit):
        refused()
    with progress_bar() as report:
        report(HOSTILE, 1, 10)
    out, err = capsys.readouterr()
    for text in (out, err):
        assert "[bold red]ok[/]" in text
        assert all(line.isprintable() for line in text.splitlines())
    assert err.count("\n") == 3  # a message, an error, a line of progress


def test_a_log_of_progress_counts_no_records(capsys: pytest.CaptureFixture[str]) -> None:
    """Features are computed record by record, in blocks: neither numbers nor the number of lines tell of how many."""
    logs = []
    for records in (1, 249, 12_345, 12_346):
        with progress_bar() as report:
            for done in [*range(250, records, 250), records]:
                report("features", done, records)
        logs.append(capsys.readouterr().err)
    assert logs[0].count("\n") == 10
    assert len(set(logs)) == 1


def test_json_is_the_same_value_for_whoever_parses_it(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": HOSTILE.replace("\udc80", "") + "\U000e0041ε"}
    print_json(value)
    assert json.loads(capsys.readouterr().out) == value


def test_every_command_prints_through_the_terminal() -> None:
    for path in Path(airlock.cli.__file__).parent.glob("*.py"):
        if path.name == "terminal.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("print", "typer.echo", "typer.secho", "Console", "sys.stdout.write"), path.name


def test_a_misspelt_key_is_named_as_it_was_typed() -> None:
    from airlock.config import from_table
    from airlock.errors import ConfigError

    with pytest.raises(ConfigError, match=r"found 'chanel'.*Did you mean 'channel'\?"):
        from_table({"chanel": "weights", "data": "digits", "epsilon": 1.0, "delta": 1e-5})


def test_an_install_hint_works_where_it_is_read() -> None:
    from airlock.errors import install_hint

    root = Path(airlock.cli.__file__).parents[2]
    assert install_hint("ray") == "pip install -e '.[ray]' in the checkout of Airlock"
    assert (root / "pyproject.toml").is_file()
