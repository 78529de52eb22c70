"""The process of the pages: their threads would take the time of the service's ingest.

The service starts it, starts it again if it ends, and stops it by closing its standard input. So it
also stops when the service is killed. The service itself listens on the address, and lends the
socket: while the process is away, no other user of the host can take a port on which people log in.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

import msgspec

from slurmkit import __version__
from slurmkit.config.files import load_section
from slurmkit.errors import BadConfig, ServiceError, SlurmkitError
from slurmkit_accounting.portal.listener import portal_door
from slurmkit_accounting.portal.settings import PortalSection
from slurmkit_accounting.remote.client import fault_error
from slurmkit_accounting.remote.protocol import ServiceFault
from slurmkit_accounting.service.listening import listening_on, serving
from slurmkit_accounting.service.log import Log
from slurmkit_accounting.service.server import Neighbour, service_parts

# Nothing of the folder that the service was started in is run, nor of PYTHONPATH in a package's
# own Python.
_ALONE = "-I" if sys.flags.isolated else "-P"
_ARGV = (sys.executable, _ALONE, "-m", "slurmkit_accounting.portal.process")
_PAUSE_SECONDS, _LONGEST_PAUSE = 5.0, 60.0  # after which a process that ended is started again
_START_SECONDS, _STOP_SECONDS, _END_SECONDS = 300.0, 60.0, 10.0
_OOM_SCORE = "500"  # if memory is short, the kernel ends the pages before an ingest


class Start(msgspec.Struct):
    """The first line of its standard input: a URL can hold a password, so it is no argument.

    Attributes:
        db: database URL of the ledger; None for the configured one.
        release: of the service, which may run on after an upgrade.
        address: of the pages.
        listener: file descriptor of the socket that listens there.
    """

    db: str | None
    release: str
    address: str
    listener: int


class Started(msgspec.Struct):
    """The only line of its standard output: that it serves, or why it does not."""

    fault: ServiceFault | None = None


@contextmanager
def portal_process(db: str | None, log: Log) -> Iterator[Neighbour | None]:
    """Serve the pages in a process of their own until the end of the `with` block.

    Args:
        db: database URL of the ledger; None for the configured one.
        log: gets a line if the process ends by itself.

    Yields:
        None where `[ledger.portal]` names no address, and there are no pages.

    Raises:
        SlurmkitError: any error of `listening_on` and `portal_door`.
    """
    address = load_section("ledger.portal", PortalSection).listen
    if not address:
        yield None
        return
    with listening_on(address) as listener:
        keeper = _Keeper(Start(db, __version__, address, listener.fileno()), log)
        try:
            yield Neighbour(address, keeper.is_serving)
        finally:
            keeper.stop()


class _Keeper:
    """Starts the process, and again if it ends."""

    def __init__(self, start: Start, log: Log) -> None:
        self._start, self._log = start, log
        self._stopping = threading.Event()
        self._serving = False
        self._lock = threading.Lock()  # held where a process is started or told to stop
        self._launch()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="portal process")
        self._thread.start()

    def is_serving(self) -> bool:
        """Whether the pages are served."""
        return self._serving

    def stop(self) -> None:
        """Let it answer what it was asked, and end."""
        with self._lock:
            self._stopping.set()
            _let_end(self._process)
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            self._process.kill()
        self._thread.join()

    def _keep(self) -> None:
        while True:
            code = self._process.wait()
            self._serving = False
            _let_end(self._process)
            if self._stopping.is_set():
                return
            self._log("failed", why=f"the process of the pages ended ({_named(code)})")
            self._launch_again()

    def _launch_again(self) -> None:
        pause = _PAUSE_SECONDS
        while not self._stopping.wait(pause):
            try:
                self._launch()
            except Exception as error:  # noqa: BLE001 - without its thread, no pages ever
                if self._stopping.is_set():
                    return
                self._log("failed", why=f"the pages do not start: {error}")
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._log("serving", also=self._start.address)
                return

    def _launch(self) -> None:
        """Start the process, unless it is to stop; return once it serves.

        Raises:
            SlurmkitError: why it does not serve.
        """
        with self._lock:
            if self._stopping.is_set():
                return
            self._process = _spawned(self._start)
        try:
            _wait_for_answer(self._process)
        except BaseException:
            _ended(self._process)
            raise
        self._serving = True


def _spawned(start: Start) -> subprocess.Popen[bytes]:
    """Start the process; it has a session of its own, so that Ctrl-C is for the service only."""
    try:
        process = subprocess.Popen(
            _ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            pass_fds=[start.listener],
        )  # fmt: skip
    except OSError as error:
        raise ServiceError(f"cannot start the process of the pages: {error}") from error
    line = cast("IO[bytes]", process.stdin)
    with suppress(BrokenPipeError):  # the answer, or that there is none, says why
        line.write(msgspec.json.encode(start) + b"\n")
        line.flush()
    return process


def _wait_for_answer(process: subprocess.Popen[bytes]) -> None:
    """Return once the process serves.

    Raises:
        SlurmkitError: why it does not.
    """
    killing = threading.Timer(_START_SECONDS, process.kill)
    killing.daemon = True
    killing.start()
    try:
        with cast("IO[bytes]", process.stdout) as output:
            line = output.readline()
    finally:
        killing.cancel()
    try:
        fault = msgspec.json.decode(line, type=Started).fault
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # it ends without an answer
        code = _named(_ended(process))
        raise ServiceError(f"their process ended ({code}); see the log") from error
    if fault is not None:
        raise fault_error(fault.kind, fault.message)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a process that ends by itself, or is killed if it does not."""
    _let_end(process)
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_END_SECONDS)
    process.kill()
    return process.wait()


def _let_end(process: subprocess.Popen[bytes]) -> None:
    """Close its standard input; it may have ended before."""
    with suppress(BrokenPipeError):
        cast("IO[bytes]", process.stdin).close()


def _named(code: int) -> str:
    try:
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def main() -> None:
    """Serve the pages until standard input ends."""
    # Who stops the service may send SIGTERM to all its processes; it first finishes its task. A
    # handler, since commands that the pages run would inherit that it is ignored.
    signal.signal(signal.SIGTERM, lambda *_: None)
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, "utf-8")
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=Start)
    try:
        _check_unchanged(start)
        listener = socket.socket(fileno=start.listener)
        with (
            portal_door(service_parts(start.db)) as door,
            serving(listener, door.app, door.threads),
        ):
            _tell(answer, Started())
            sys.stdin.buffer.read()
    except SlurmkitError as error:
        _tell(answer, Started(ServiceFault(type(error).__name__, str(error))))
        sys.exit(1)


def _check_unchanged(start: Start) -> None:
    """Check that the service would start these pages, if it were started now."""
    if start.release != __version__:
        raise ServiceError(f"slurmkit {__version__} was installed; restart the service")
    if load_section("ledger.portal", PortalSection).listen != start.address:
        raise BadConfig("[ledger.portal] listen has changed; restart the service")


def _tell(answer: IO[bytes], started: Started) -> None:
    with suppress(BrokenPipeError), answer:  # the service may have ended meanwhile
        answer.write(msgspec.json.encode(started) + b"\n")


if __name__ == "__main__":
    main()
