"""What every command has in common: a mistake or Ctrl-C is a message and an exit code, a defect is a traceback."""

from __future__ import annotations

import pytest
import typer

from airlock.cli.terminal import translate_errors


class _Interrupted:
    """Ctrl-C while a class is made; before Python 3.12 a RuntimeError with the interrupt as its cause."""

    def __set_name__(self, owner: type, name: str) -> None:
        raise KeyboardInterrupt


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
