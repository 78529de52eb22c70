"""How the command line ends: the one place where errors become words and exit codes."""

from __future__ import annotations

import os
import signal
import sys

import click

from slurmkit.errors import SlurmkitError
from slurmkit.text import printable


def run_to_exit_code(command: click.Command, args: list[str] | None = None) -> int:
    """Run a command line and return its exit code.

    0 done, 1 a failed operation, 2 bad input, 130 interrupted. SLURMKIT_DEBUG=1 lets the
    traceback through.
    """
    try:
        done = command.main(args=args, prog_name="slurmkit", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # `slurmkit queue | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1  # as click does where it notices first
    except (SlurmkitError, click.ClickException, click.Abort, KeyboardInterrupt, OSError) as error:
        return _ended_by(error)
    return done if isinstance(done, int) else 0


def _ended_by(error: BaseException) -> int:
    match error:
        case click.exceptions.NoArgsIsHelpError():
            error.show()
            return error.exit_code
        case SlurmkitError():
            return _say(error, str(error), error.exit_code)
        case click.ClickException():
            return _say(error, _click_words(error), error.exit_code)
        case OSError():
            where = error.filename or "the operating system"
            return _say(error, f"{where}: {error.strerror}", 1)
        case _:
            return _say(error, "interrupted", 128 + signal.SIGINT)


def _say(error: BaseException, words: str, code: int) -> int:
    if os.environ.get("SLURMKIT_DEBUG") == "1":
        raise error
    click.echo(f"slurmkit: {printable(words)}", err=True)
    return code


def _click_words(error: click.ClickException) -> str:
    words = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{words}; see: {error.ctx.command_path} --help"
    return words
