"""The only module that runs Slurm's client commands; it translates their errors.

All other modules take text or parsed values. Tests replace it by `slurmkit.testing.FakeSlurm`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fcntl import F_SETPIPE_SZ, fcntl
from types import MappingProxyType
from typing import IO, Protocol, cast

from slurmkit.errors import (
    ControllerDown,
    DatabaseDown,
    NoSuchJob,
    Refused,
    SlurmError,
    SlurmMissing,
    SlurmTimeout,
)

# Slurm's messages (src/common/slurm_errno.c and the clients), on 22.05 to 26.05.
_ERROR_MESSAGES: tuple[tuple[str, type[SlurmError]], ...] = (
    ("Invalid job id specified", NoSuchJob),
    ("Problem talking to the database", DatabaseDown),
    ("open persistent connection", DatabaseDown),
    ("Unable to contact slurm controller", ControllerDown),
    ("Unable to establish controller machine", ControllerDown),
    ("Unable to establish configuration source", ControllerDown),
    ("Could not establish a configuration source", ControllerDown),
)
ANSWER_LOST = (
    "Connection reset by peer",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Message receive failure",
    "(receive failure)",
)
"""Messages for a request that a daemon may have carried out, although its answer did not come."""
_ASK_SLURMDBD = frozenset(("sacct", "sacctmgr", "sreport"))
_NICE_STEP = 10  # added to the niceness (nice(2)) of low-priority commands
_NICEST = 19  # the highest niceness
_ADVICE: dict[type[SlurmError], str] = {
    ControllerDown: "slurmctld does not answer; see `scontrol ping`, or ask your administrator",
    DatabaseDown: "slurmdbd does not answer; try again, or ask your administrator",
}
# Set in a surrounding job or by the user, these would change what a command does or prints. The
# command line reads a user's SBATCH_* itself (`slurmkit.cli.job_options`). PYXIS_*
# would put the batch step itself into a container.
_REMOVED_PREFIXES = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SRUN_", "PYXIS_")
# Set by a job's own script (docs/survive.md, docs/sweeps.md); wrong in a job sent from that job.
_SET_BY_JOB_SCRIPT = (
    "SLURMKIT_ARRAY_TASK_ID",
    "SLURMKIT_CHECKPOINT_FILE",
    "SLURMKIT_RESTART",
    "SLURMKIT_RESTART_REASON",
    "SLURMKIT_RUN",
)
_RETAINED_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
# The user's own formats, which sbatch passes on to the job.
_PASSED_TO_JOB = ("SLURM_TIME_FORMAT", "SQUEUE_FORMAT", "SACCT_FORMAT")
_PARSEABLE_OUTPUT = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}
# For a large queue: with TZ=UTC0 squeue prints epoch times in half the time, because it does not
# read the zone file for each. Huge pages avoid most page faults; glibc before 2.35 ignores them.
_FAST_SQUEUE = {"TZ": "UTC0", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_NOTHING: Mapping[str, str] = MappingProxyType({})
_READ_SIZE = 1 << 16  # bytes a pipe holds
_LARGE_PIPE = 1 << 20  # bytes it can hold, for anyone


class SlurmCommands(Protocol):
    """A runner of Slurm's client commands."""

    @property
    def calls(self) -> int:
        """Number of commands run so far, each at least one RPC."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        timeout: float = 60,
        errors: bool = False,
    ) -> str:
        """Run one command and return its standard output.

        Args:
            argv: the command and its arguments; never a shell line.
            stdin: text for its standard input.
            timeout: seconds until the command is killed.
            errors: also return standard error, after standard output.

        Raises:
            SlurmError: translated from the command's output; `output` of a command on this machine
                has what it had printed.
        """
        ...

    def stream(
        self, argv: Sequence[str], *, timeout: float | None = None
    ) -> Generator[str, None, None]:
        """Run one command and yield its standard output line by line, with line ends.

        Closing the generator early kills the command.

        Args:
            argv: the command and its arguments.
            timeout: seconds until the command is killed; None for never.

        Raises:
            SlurmError: at the end, translated from the command's output.
        """
        ...


class LocalSlurmCommands:
    """Slurm's commands on this machine."""

    def __init__(self) -> None:
        self._calls = 0

    @property
    def calls(self) -> int:
        return self._calls

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        timeout: float = 60,
        errors: bool = False,
    ) -> str:
        self._calls += 1
        with _memory_file("stdin") as input_file, _memory_file("stderr") as error_file:
            input_file.write((stdin or "").encode())
            input_file.seek(0)
            with _start_command(argv, error_file, input_file) as process:
                try:
                    output = _read_output(process, argv, timeout)
                except BaseException:
                    process.kill()
                    raise
            error_file.seek(0)
            stderr = error_file.read()
        if has_failed(argv[0], process.returncode, stderr):
            error = slurm_error(argv[0], decode_output(stderr or output), process.returncode)
            error.output = decode_output(output)
            raise error
        return decode_output(output + stderr if errors else output)

    def stream(
        self, argv: Sequence[str], *, timeout: float | None = None
    ) -> Generator[str, None, None]:
        self._calls += 1
        with (
            _memory_file("stderr") as error_file,
            _start_command(argv, error_file) as process,
            _killed_after(timeout, process) as too_late,
        ):
            # A larger pipe lets the command print on while other threads keep this one waiting.
            with suppress(OSError):  # the system may refuse
                fcntl(cast("IO[bytes]", process.stdout), F_SETPIPE_SZ, _LARGE_PIPE)
            try:
                yield from map(decode_output, process.stdout or ())
            except GeneratorExit:
                process.kill()
                raise
            code = process.wait()
            error_file.seek(0)
            stderr = error_file.read()
        if too_late.is_set():
            raise timeout_error(argv, timeout or 0)
        if has_failed(argv[0], code, stderr):
            raise slurm_error(argv[0], decode_output(stderr), code)


class _Priority(threading.local):
    is_behind = False


_priority = _Priority()


@contextmanager
def at_low_priority() -> Generator[None, None, None]:
    """Run the commands that this thread starts meanwhile at a lower priority (nice).

    Not for submits: where slurm.conf has PropagatePrioProcess, sbatch passes its priority on to
    the job.
    """
    before, _priority.is_behind = _priority.is_behind, True
    try:
        yield
    finally:
        _priority.is_behind = before


def run_in_terminal(argv: Sequence[str], environment: Mapping[str, str] = _NOTHING) -> int:
    """Run a command in this terminal until it ends, e.g. a shell in a job; return its exit code.

    It gets the user's environment, as sbatch would pass it on, plus `environment`, without
    SALLOC_*, which salloc reads as options. Ctrl-C goes to the command only, which then cleans up.

    Raises:
        SlurmError: when the command cannot be run.
    """
    own = environment_for(["sbatch"], os.environ).items()
    env = {name: value for name, value in own if not name.startswith("SALLOC_")} | dict(environment)
    try:
        with _leave_signal_to_child(signal.SIGINT):
            code = subprocess.run(argv, env=env, check=False).returncode
            return code if code >= 0 else 128 - code
    except OSError as error:
        raise _cannot_run(argv, error) from error


@contextmanager
def _leave_signal_to_child(number: signal.Signals) -> Iterator[None]:
    """Leave a signal to the child process: handle it here without doing anything.

    An ignored signal (SIG_IGN) would be ignored by the child too.
    """
    ignored = signal.getsignal(number) is signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(number, before)


def _memory_file(name: str) -> IO[bytes]:
    """Open a file in memory, because a pipe that nobody reads could fill up and block the command.

    A file on disk would need `tempfile`, which takes 3 ms to import.
    """
    return os.fdopen(os.memfd_create(name), "w+b")


def _start_command(
    argv: Sequence[str], errors: IO[bytes], stdin: IO[bytes] | int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    try:
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            bufsize=_LARGE_PIPE,
            stderr=errors,
            env=environment_for(argv, os.environ),
        )
    except OSError as error:
        raise _cannot_run(argv, error) from error
    if _priority.is_behind:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        with suppress(OSError):  # it has already ended
            os.setpriority(os.PRIO_PROCESS, process.pid, min(own + _NICE_STEP, _NICEST))
    return process


def _read_output(process: subprocess.Popen[bytes], argv: Sequence[str], timeout: float) -> bytes:
    """Read all output of a command; `communicate` is slower, because it sleeps before the end."""
    pipe, end = cast("IO[bytes]", process.stdout).fileno(), time.monotonic() + timeout
    waiting = select.poll()
    waiting.register(pipe)
    output = bytearray()
    while waiting.poll(max(0.0, end - time.monotonic()) * 1000):
        piece = os.read(pipe, _READ_SIZE)
        if not piece:
            return bytes(output)
        output += piece
    error = timeout_error(argv, timeout)
    error.output = decode_output(bytes(output))
    raise error


@contextmanager
def _killed_after(
    timeout: float | None, process: subprocess.Popen[bytes]
) -> Generator[threading.Event, None, None]:
    """Kill a process that takes too long; the yielded event says whether that happened."""
    too_late = threading.Event()
    if timeout is None:
        yield too_late
        return

    def kill() -> None:
        too_late.set()
        process.kill()

    timer = threading.Timer(timeout, kill)
    timer.daemon = True
    timer.start()
    try:
        yield too_late
    finally:
        timer.cancel()


def has_failed(command: str, code: int, stderr: bytes) -> bool:
    """Tell whether a command failed; for an unknown user squeue prints no jobs and exits with 0.

    The exit code of all other commands counts, whatever they print: a job_submit plugin may write
    any text to sbatch's standard error.
    """
    return code != 0 or (command == "squeue" and b"Invalid user" in stderr)


def timeout_error(argv: Sequence[str], timeout: float) -> SlurmTimeout:
    """Return the error for a command that was killed after `timeout` seconds."""
    return SlurmTimeout(
        f"{argv[0]} gave no answer in {timeout:g} s; slurmctld may be overloaded, try again"
    )


def _cannot_run(argv: Sequence[str], error: OSError) -> SlurmError:
    if isinstance(error, FileNotFoundError):
        return SlurmMissing(
            f"Slurm's {argv[0]} is not on the PATH; run this on a login node, or load the site's"
            " Slurm module first"
        )
    return SlurmError(f"cannot run Slurm's {argv[0]}: {error.strerror}")


def environment_for(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Copy `environ` without variables that would silently change a Slurm command.

    Commands whose output we parse are made to print epoch seconds, and an array's tasks in full.
    sbatch passes its environment on to the job, so nothing is added for it.
    """
    remaining = {
        name: value for name, value in environ.items() if not is_harmful_variable(name, argv)
    }
    return remaining | added_variables(argv)


def is_harmful_variable(name: str, argv: Sequence[str]) -> bool:
    """Tell whether an environment variable would silently change a Slurm command."""
    handed_on = _submits(argv) and name in _PASSED_TO_JOB
    return name in _SET_BY_JOB_SCRIPT or (
        name.startswith(_REMOVED_PREFIXES) and name not in _RETAINED_VARIABLES and not handed_on
    )


def added_variables(argv: Sequence[str]) -> dict[str, str]:
    """Return the variables added to a command's environment; see `environment_for`."""
    if _submits(argv):
        return {}
    return _PARSEABLE_OUTPUT | (_FAST_SQUEUE if argv[0] == "squeue" else {})


def _submits(argv: Sequence[str]) -> bool:
    return argv[0] == "sbatch" and "--test-only" not in argv


def slurm_error(command: str, output: str, code: int) -> SlurmError:
    """Return the error that a failed command's output means."""
    words = "; ".join(line.strip() for line in output.splitlines() if line.strip())
    kind = next((kind for sign, kind in _ERROR_MESSAGES if sign in output), Refused)
    if kind is Refused and any(sign in output for sign in ANSWER_LOST):
        kind = DatabaseDown if command in _ASK_SLURMDBD else ControllerDown
    if kind in _ADVICE:
        return kind(f"{_ADVICE[kind]} ({words})")
    return kind(words or f"{command} failed with exit code {code} and printed nothing")


def decode_output(output: bytes) -> str:
    """Decode a command's output: names may have any encoding, and their line ends must stay."""
    return output.decode("utf-8", "replace")
