"""The one border to Slurm: run its client commands, and translate how they fail.

Everything else takes text or parsed values. `slurmkit.testing.FakeSlurm` stands here in tests.
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

# Slurm's own words (src/common/slurm_errno.c and the clients), on 22.05 to 26.05.
_SAYS: tuple[tuple[str, type[SlurmError]], ...] = (
    ("Invalid job id specified", NoSuchJob),
    ("Problem talking to the database", DatabaseDown),
    ("open persistent connection", DatabaseDown),
    ("Unable to contact slurm controller", ControllerDown),
    ("Unable to establish controller machine", ControllerDown),
    ("Unable to establish configuration source", ControllerDown),
    ("Could not establish a configuration source", ControllerDown),
)
_BEHIND, _LAST = 10, 19  # nice(2)
_ADVICE: dict[type[SlurmError], str] = {
    ControllerDown: "slurmctld does not answer; see `scontrol ping`, or ask your administrator",
    DatabaseDown: "slurmdbd does not answer; try again, or ask your administrator",
}
# Set in a surrounding job or by the user, these would change what a command does or prints; what
# a user wants of SBATCH_*, the command line has read before (`slurmkit.cli.defaults`).
# PYXIS_* would put the batch step itself into a container.
_LEAKS = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SRUN_", "PYXIS_")
# What a job's own script sets (docs/survive.md, docs/sweeps.md), and a job sent from it is not.
_OF_A_RUN = (
    "SLURMKIT_ARRAY_TASK_ID",
    "SLURMKIT_CHECKPOINT_FILE",
    "SLURMKIT_RESTART",
    "SLURMKIT_RESTART_REASON",
    "SLURMKIT_RUN",
)
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
_HANDED_ON = (
    "SLURM_TIME_FORMAT",
    "SQUEUE_FORMAT",
    "SACCT_FORMAT",
)  # a user's taste, in the job too
_READ = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}
# Of a large queue squeue prints epoch times in half the time where it need not look at the file of
# its zone for each, and huge pages spare it most page faults; glibc before 2.35 knows none.
_LARGE = {"TZ": "UTC0", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_NOTHING: Mapping[str, str] = MappingProxyType({})
_PIPE = 1 << 16  # bytes a pipe holds
_WIDE = 1 << 20  # bytes it can hold, for anyone


class Slurm(Protocol):
    """Runs Slurm's client commands."""

    @property
    def calls(self) -> int:
        """Commands run so far, each of them at least one RPC."""
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
            timeout: seconds until it is given up.
            errors: return its standard error after that, for one that answers there.

        Raises:
            SlurmError: translated from what the command said.
        """
        ...

    def stream(
        self, argv: Sequence[str], *, timeout: float | None = None
    ) -> Generator[str, None, None]:
        """Run one command and yield its standard output line by line, line ends kept.

        Closing the generator before its end kills the command.

        Args:
            argv: the command and its arguments.
            timeout: seconds until it is given up, None for never.

        Raises:
            SlurmError: at its end, translated from what the command said.
        """
        ...


class LocalSlurm:
    """Slurm's commands on this machine."""

    def __init__(self) -> None:
        self._calls = 0

    @property
    def calls(self) -> int:
        """See `Slurm.calls`."""
        return self._calls

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        timeout: float = 60,
        errors: bool = False,
    ) -> str:
        """See `Slurm.run`."""
        self._calls += 1
        with _memory("stdin") as given, _memory("stderr") as complaints:
            given.write((stdin or "").encode())
            given.seek(0)
            with _started(argv, complaints, given) as process:
                try:
                    output = _read(process, argv, timeout)
                except BaseException:
                    process.kill()
                    raise
            complaints.seek(0)
            said = complaints.read()
        if has_failed(process.returncode, said):
            raise translate(argv[0], decoded(said or output), process.returncode)
        return decoded(output + said if errors else output)

    def stream(
        self, argv: Sequence[str], *, timeout: float | None = None
    ) -> Generator[str, None, None]:
        """See `Slurm.stream`."""
        self._calls += 1
        with (
            _memory("stderr") as errors,
            _started(argv, errors) as process,
            _killed_after(timeout, process) as too_late,
        ):
            _widen(process)
            try:
                yield from map(decoded, process.stdout or ())
            except GeneratorExit:
                process.kill()
                raise
            code = process.wait()
            errors.seek(0)
            said = errors.read()
        if too_late.is_set():
            raise too_late_for(argv, timeout or 0)
        if has_failed(code, said):
            raise translate(argv[0], decoded(said), code)


class _Rank(threading.local):
    is_behind = False


_rank = _Rank()


@contextmanager
def behind() -> Generator[None, None, None]:
    """Commands that this thread starts meanwhile let what else this machine runs go first.

    Not for jobs: where slurm.conf has PropagatePrioProcess, sbatch hands its priority on to them.
    """
    before, _rank.is_behind = _rank.is_behind, True
    try:
        yield
    finally:
        _rank.is_behind = before


def attach(argv: Sequence[str], environment: Mapping[str, str] = _NOTHING) -> int:
    """Lend this terminal to a command until it ends, as to a shell in a job; returns its exit code.

    Its environment is the person's own, as sbatch would hand it on, and `environment`, without what
    salloc would take for options (SALLOC_*). Ctrl-C is for the command alone, which has more to
    clear up than we have.

    Raises:
        SlurmError: when it cannot be run.
    """
    own = environment_for(["sbatch"], os.environ).items()
    env = {name: value for name, value in own if not name.startswith("SALLOC_")} | dict(environment)
    try:
        with _left_to_it(signal.SIGINT):
            code = subprocess.run(argv, env=env, check=False).returncode
            return code if code >= 0 else 128 - code
    except OSError as error:
        raise _cannot_run(argv, error) from error


@contextmanager
def _left_to_it(number: signal.Signals) -> Iterator[None]:
    """A handler that does nothing: a signal that is ignored would be by the command, too."""
    ignored = signal.getsignal(number) is signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(number, before)


def _memory(name: str) -> IO[bytes]:
    """A file in memory: a pipe nobody reads could fill up and block the command.

    One on disk would need `tempfile`, which takes 3 ms to import.
    """
    return os.fdopen(os.memfd_create(name), "w+b")


def _started(
    argv: Sequence[str], errors: IO[bytes], stdin: IO[bytes] | int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    try:
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            bufsize=_WIDE,
            stderr=errors,
            env=environment_for(argv, os.environ),
        )
    except OSError as error:
        raise _cannot_run(argv, error) from error
    if _rank.is_behind:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        with suppress(OSError):  # it is over
            os.setpriority(os.PRIO_PROCESS, process.pid, min(own + _BEHIND, _LAST))
    return process


def _widen(process: subprocess.Popen[bytes]) -> None:
    """Let it print on while other threads keep this one waiting; the system may say no."""
    with suppress(OSError):
        fcntl(cast("IO[bytes]", process.stdout), F_SETPIPE_SZ, _WIDE)


def _read(process: subprocess.Popen[bytes], argv: Sequence[str], timeout: float) -> bytes:
    """All that a command prints. `communicate` sleeps before it sees the end, which costs more."""
    pipe, end = cast("IO[bytes]", process.stdout).fileno(), time.monotonic() + timeout
    waiting = select.poll()
    waiting.register(pipe)
    output = bytearray()
    while waiting.poll(max(0.0, end - time.monotonic()) * 1000):
        piece = os.read(pipe, _PIPE)
        if not piece:
            return bytes(output)
        output += piece
    raise too_late_for(argv, timeout)


@contextmanager
def _killed_after(
    timeout: float | None, process: subprocess.Popen[bytes]
) -> Generator[threading.Event, None, None]:
    """Kill a process that takes too long; the event is set if that was so."""
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


def has_failed(code: int, said: bytes) -> bool:
    """Whether a command failed; squeue takes an unknown user for nobody's jobs, and ends well."""
    return code != 0 or b"Invalid user" in said


def too_late_for(argv: Sequence[str], timeout: float) -> SlurmTimeout:
    """The error of a command that was given up after `timeout` seconds."""
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
    """Copy `environ` without what would silently change a Slurm command.

    What is read by us prints times as epoch seconds, and an array's tasks in full. sbatch hands its
    environment on to the job, so nothing is added for it.
    """
    kept = {name: value for name, value in environ.items() if not leaks(name, argv)}
    return kept | settings_for(argv)


def leaks(name: str, argv: Sequence[str]) -> bool:
    """Whether a variable of the environment would silently change a Slurm command."""
    handed_on = _submits(argv) and name in _HANDED_ON
    return name in _OF_A_RUN or (name.startswith(_LEAKS) and name not in _KEPT and not handed_on)


def settings_for(argv: Sequence[str]) -> dict[str, str]:
    """What the environment of a command is given; see `environment_for`."""
    if _submits(argv):
        return {}
    return _READ | (_LARGE if argv[0] == "squeue" else {})


def _submits(argv: Sequence[str]) -> bool:
    return argv[0] == "sbatch" and "--test-only" not in argv


def translate(command: str, said: str, code: int) -> SlurmError:
    """Make one error out of what a command said on its way out."""
    words = "; ".join(line.strip() for line in said.splitlines() if line.strip())
    kind = next((kind for sign, kind in _SAYS if sign in said), Refused)
    if kind in _ADVICE:
        return kind(f"{_ADVICE[kind]} ({words})")
    return kind(words or f"{command} failed with exit code {code} and said nothing")


def decoded(output: bytes) -> str:
    """Names come in any encoding, and line ends inside them must stay as they are."""
    return output.decode("utf-8", "replace")
