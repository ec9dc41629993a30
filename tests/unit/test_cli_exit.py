"""Where commands end: one line on stderr, the promised exit code, a traceback only with ``--debug``."""

from __future__ import annotations

import click
import pytest

from distrl.core.cli import exit, option
from distrl.core.errors import BusUnavailableError, ConfigError, DistrlError, FencedError

TWO_LINES = "first\n  second"


def run(error: BaseException | None, *arguments: str, returns: int | None = None) -> int:
    @click.command()
    @option.debug
    @click.option("--number", type=int)
    def command(number: int | None) -> int | None:
        if error is not None:
            raise error
        return returns

    return exit.run(command, arguments)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("bad key"), 2, "error [DISTRL-100]: bad key"),
        (BusUnavailableError("no broker"), 3, "error [DISTRL-301]: no broker"),
        (FencedError("replaced"), 4, "error [DISTRL-304]: replaced"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.exceptions.Abort(), 130, "interrupted"),
        (
            ZeroDivisionError(TWO_LINES),
            4,
            "error [DISTRL-000]: unexpected ZeroDivisionError: first second; run again with --debug for the traceback",
        ),
    ],
)
def test_an_error_is_one_line_and_a_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(error) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip() == line  # click ends the line that a ^C stands on


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ZeroDivisionError("x"), "--debug") == 4
    assert "Traceback" in capsys.readouterr().err
    assert run(DistrlError("x"), "--debug") == 4
    assert "Traceback" in capsys.readouterr().err


def test_usage_is_one_line_that_says_where_to_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(None, "--number", "x") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error [DISTRL-100]: ")
    assert captured.err.count("\n") == 1
    assert "--help" in captured.err


def test_a_command_may_choose_its_code() -> None:
    assert run(None) == 0
    assert run(None, returns=3) == 3
