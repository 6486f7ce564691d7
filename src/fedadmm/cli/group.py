"""Bad input ends in one short message and exit code 2, never in a traceback."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO

import click
import typer
from typer.core import TyperGroup

from fedadmm.core import signals
from fedadmm.core.errors import FedADMMError
from fedadmm.core.parts import TRUSTS_CODE

BAD_INPUT, INTERNAL, INTERRUPTED, TERMINATED = 2, 1, 130, 143
STDOUT = "fedadmm.stdout"
"""Where a context keeps standard output while a command may print one document only."""


class CommandGroup(TyperGroup):
    """All commands; the one place where errors become messages."""

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and exit with its code."""
        arguments = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in arguments
        trusts = TRUSTS_CODE.set("--trust-code" in arguments)
        flags = ("--debug", "--trust-code")
        arguments = [argument for argument in arguments if argument not in flags]
        try:
            code = super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
        except (click.exceptions.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        except click.exceptions.NoArgsIsHelpError as error:  # rich has printed the help by now
            code = complain(error.message) if error.message else BAD_INPUT
        except click.ClickException as error:
            code = complain(_usage(error))
        except (FedADMMError, OSError) as error:
            if debug:
                raise
            code = complain(message_of(error))
        except Exception as error:
            if debug:
                raise
            code = complain(
                f"{_place(error)} ({type(error).__name__}: {error}); --debug shows where", INTERNAL
            )
        finally:
            TRUSTS_CODE.reset(trusts)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


def only_one_document(context: typer.Context, wanted: bool) -> bool:
    """With --json, whatever anybody prints before the document goes to standard error."""
    if wanted and not context.resilient_parsing:
        context.meta[STDOUT] = context.with_resource(_set_aside())
    return wanted


@contextmanager
def _set_aside() -> Iterator[TextIO]:
    """Standard output as it was; meanwhile its name and its number mean standard error."""
    real = sys.stdout
    real.flush()
    try:
        number = real.fileno()
    except (OSError, ValueError):  # not a file, so it has no number
        with redirect_stdout(sys.stderr):
            yield real
        return
    with os.fdopen(os.dup(number), "w", encoding="utf-8") as kept, redirect_stdout(sys.stderr):
        os.dup2(sys.stderr.fileno(), number)
        try:
            yield kept
        finally:
            kept.flush()
            os.dup2(kept.fileno(), number)


def complain(message: str, code: int = BAD_INPUT) -> int:
    """Say what is wrong on standard error."""
    sys.stderr.write(f"fedadmm: {message}\n")
    return code


def message_of(error: Exception) -> str:
    """An error in one sentence."""
    if isinstance(error, OSError) and not isinstance(error, FedADMMError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    if context is None:
        return error.format_message()
    hint = f"see {context.command_path} --help"
    if isinstance(error, click.NoSuchOption) and isinstance(context.command, click.Group):
        hint = f"an option of a command comes after the command; {hint}"
    return f"{error.format_message()} ({hint})"


def _place(error: Exception) -> str:
    """Whose error it is: that of a file in the current folder, as of one's own method, or ours."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.parent == Path.cwd():
            return f"{path.name} fails in line {frame.lineno}"
    return "internal error"


@contextmanager
def resumable(command: Sequence[str], folder: Path | None = None) -> Iterator[None]:
    """Turn Ctrl-C into exit code 130, SIGTERM and SIGHUP into 143, and say how to go on from here.

    All leave a checkpoint; what a run in `folder` has kept is said.
    """
    with signals.as_interrupt(*(one for one in signals.END if one != signal.SIGINT)) as received:
        try:
            yield
        except KeyboardInterrupt:
            from fedadmm.study.run_dir import RunDir

            found = RunDir(folder).summary() if folder is not None else {}
            ending = found["status"] if found.get("code") == "interrupted" else "interrupted"
            sys.stderr.write(f"{ending}; go on with: {shlex.join(command)}\n")
            raise typer.Exit(TERMINATED if received else INTERRUPTED) from None


@contextmanager
def exit_cleanly() -> Iterator[None]:
    """For a command that runs until it is ended: Ctrl-C and SIGTERM are no failure."""
    with suppress(KeyboardInterrupt), signals.as_interrupt(signal.SIGTERM):
        yield


def again(**changes: Any) -> list[str]:
    """The command line that is being carried out, every option of it, with some changed."""
    context = click.get_current_context()
    values = context.params | changes
    words: list[str] = []
    for parameter in context.command.params:
        value = values.get(parameter.name or "")
        if value != parameter.get_default(context):
            words += _words(parameter, value)
    path = []
    while context.parent is not None:
        path.append(str(context.info_name))
        context = context.parent
    return ["fedadmm", *reversed(path), *words]


def _words(parameter: click.Parameter, value: Any) -> list[str]:
    """How a parameter gets a value on a command line."""
    if value is None:
        return []
    if isinstance(parameter, click.Argument):
        return [str(value)]
    if isinstance(value, bool):
        return [parameter.opts[0] if value else parameter.secondary_opts[0]]
    several = value if isinstance(value, list | tuple) else [value]
    return [word for one in several for word in (parameter.opts[0], str(one))]
