"""The one place where a command ends: errors become one line on stderr and an exit code. Used by ``main`` and ``node``.

0 done, 2 usage or configuration, 3 a service or package missing, 4 the run failed (or what was asked for with ``--exit-code`` is so),
130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import click

from distrl.core.errors import ConfigError, DistrlError

DONE, USAGE, MISSING, FAILED, INTERRUPTED = 0, 2, 3, 4, 130


@dataclass
class Debug:
    """Click's object of a call: whether ``--debug`` was given, wherever on the line."""

    on: bool = False


def run(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; prints the error, if any. ``arguments`` default to the process's own."""
    debug = Debug()
    try:
        result = command.main(list(arguments) if arguments is not None else None, standalone_mode=False, obj=debug)
        return result if isinstance(result, int) else DONE
    except click.exceptions.Abort:
        return _interrupted(debug)
    except KeyboardInterrupt:
        return _interrupted(debug)
    except click.ClickException as error:
        return _usage(error)
    except DistrlError as error:
        _say(f"error [{error.code}]: {error.message}", debug)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output (`| head`) has seen enough; without this Python complains once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        # Whatever comes here is a bug: name it, and say how to see more.
        hint = "" if debug.on else "; run again with --debug for the traceback"
        _say(f"error [{DistrlError.code}]: unexpected {type(error).__name__}: {_one_line(error)}{hint}", debug)
        return FAILED


def main(command: click.Command) -> NoReturn:
    """Run a command as this process's own and end the process."""
    sys.exit(run(command))


def _interrupted(debug: Debug) -> int:
    _say("interrupted", debug)
    return INTERRUPTED


def _usage(error: click.ClickException) -> int:
    context = error.ctx if isinstance(error, click.UsageError) else None
    where = f"; see '{context.command_path} --help'" if context is not None else ""
    click.echo(f"error [{ConfigError.code}]: {_one_line(error.format_message()).rstrip('.')}{where}", err=True)
    return USAGE


def _say(line: str, debug: Debug) -> None:
    from distrl.core.runtime.redaction import conceal

    if debug.on and sys.exc_info()[0] is not None:
        click.echo(conceal(traceback.format_exc()), err=True, nl=False)
    click.echo(conceal(line), err=True)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
