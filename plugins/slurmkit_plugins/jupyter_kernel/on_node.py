"""Start a kernel in the job, wait for it, or signal it; ssh runs this on the node.

    python3 on_node.py run FOLDER LAUNCH              says "ready" and later "ended CODE WORDS"
    python3 on_node.py signal FOLDER LAUNCH NUMBER

The kernel does not depend on the connection: once it has been started, the same `run` finds it
and waits for it again. Its environment is that of the job's batch shell, since sshd gives a session
hardly anything of it.

This file is copied to the user's shared home and runs on the python3 of the node, from 3.6 on: it
stands alone, and needs the standard library only.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

SAYS = "slurmkit-kernel"
"""First word of the lines for the provisioner; shells of users say other things."""
_LOCK, _FIRST_SOCKET = "lock", "k-1"
_NOT_STARTED, _MOST_LETTERS = 127, 500
# They tell a kernel of the process that has started it, which is on another machine.
_OF_THE_SERVER = "JPY_PARENT_PID", "JPY_INTERRUPT_EVENT"


class KernelStart:
    """One start of a kernel.

    Args:
        folder: on the shared home.
        name: of this start.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.order = folder / (name + ".json")
        self.pid = folder / (name + ".pid")
        self.end = folder / (name + ".end")
        self.address = folder / "address.json"

    def run(self) -> int:
        """Start the kernel unless it has been started, and wait until it has ended."""
        if not self.end.exists() and not self._start_once():
            return 1
        # The server keeps our standard input open while it lives.
        threading.Thread(target=_leave_with_input, daemon=True).start()
        place = self._place()
        while not (place / _FIRST_SOCKET).exists() and not self.end.exists():
            time.sleep(0.1)
        if not self.end.exists():
            _say("ready")
            self._wait(place)
        _say("ended " + self._read_end())
        return 0

    def send(self, number: int) -> int:
        """Send a signal to the kernel and the processes that it has started."""
        try:
            os.killpg(int(self.pid.read_text()), number)
        except (OSError, ValueError):  # it has not started yet, or has ended
            return 1
        return 0

    def _load_order(self) -> Any:
        return json.loads(self.order.read_text("utf-8"))

    def _place(self) -> Path:
        """Return the folder of the sockets, which is on the node."""
        return Path(self._load_order()["place"])

    def _start_once(self) -> bool:
        """Start the kernel if nobody has; return False if somebody else has made its folder."""
        place = self._place()
        try:
            place.mkdir(mode=0o700)
            if self.end.exists():  # since `run` looked
                place.rmdir()
                return True
        except FileExistsError:
            if place.is_symlink() or place.stat().st_uid != os.getuid():
                sys.stderr.write("slurmkit: {} belongs to somebody else\n".format(place))
                return False
            return True
        self._end_others()
        started, begin = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            if os.fork() == 0:
                self._supervise(place, begin)
            os._exit(0)
        os.waitpid(child, 0)
        os.close(begin)
        os.read(started, 1)  # its supervisor has taken the lock, or has ended
        os.close(started)
        return True

    def _end_others(self) -> None:
        """End kernels that a restart has left, since no signal came to them."""
        for path in self.folder.glob("*.pid"):
            other = KernelStart(self.folder, path.stem)
            if not other.end.exists():
                other.send(signal.SIGKILL)

    def _supervise(self, place: Path, begin: int) -> None:
        """Start the kernel, and write how it ended once it has ended."""
        # The end of the job ends the kernel, whose end is still written. A handler, unlike
        # SIG_IGN, is not handed on to the kernel.
        signal.signal(signal.SIGTERM, _go_on)
        code, words = _NOT_STARTED, ""
        try:
            lock = os.open(str(place / _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.write(begin, b".")
            os.close(begin)
            keeper = Path("/proc", str(json.loads(self.address.read_text())["pid"]))
            with (keeper / "fd/2").open("rb") as log:
                log.seek(0, os.SEEK_END)
                kernel = self._popen(keeper)
                self.pid.write_text(str(kernel.pid))
                code = kernel.wait()
                words = _last_line(log)
        except Exception as error:  # noqa: BLE001 - nobody else can say it
            words = str(error)
        finally:
            try:
                _write(self.end, "{} {}".format(code, words))
            finally:
                shutil.rmtree(str(place), ignore_errors=True)
                os._exit(0)

    def _popen(self, keeper: Path) -> "subprocess.Popen[bytes]":
        """Start the kernel, with the environment and the log of the job's batch shell."""
        order = self._load_order()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        log = os.open(str(keeper / "fd/2"), os.O_WRONLY | os.O_APPEND)
        for number in (1, 2):
            os.dup2(log, number)
        environment = _environment((keeper / "environ").read_bytes())
        environment.update(order["environment"])
        return subprocess.Popen(
            order["argv"],
            env=environment,
            cwd=order["cwd"] if os.path.isdir(order["cwd"]) else None,
            start_new_session=True,  # a group of its own, for signals
        )

    def _wait(self, place: Path) -> None:
        try:
            with (place / _LOCK).open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH)  # until its supervisor ends
        except OSError:  # it has just ended, or somebody cleans /tmp
            while not self.end.exists() and not self.send(0):
                time.sleep(1)

    def _read_end(self) -> str:
        try:
            return self.end.read_bytes().decode("utf-8", "replace")
        except OSError:  # its supervisor was killed, and the kernel with it
            return str(-signal.SIGKILL)


def _go_on(*_: object) -> None:
    pass


def _last_line(log: BinaryIO) -> str:
    lines = [line.decode("utf-8", "replace").strip() for line in log]
    return next(filter(None, reversed(lines)), "")[-_MOST_LETTERS:]


def _write(path: Path, text: str) -> None:
    aside = path.with_name("." + path.name)
    aside.write_bytes(text.encode("utf-8", "replace"))
    aside.replace(path)


def _environment(raw: bytes) -> "dict[str, str]":
    pairs = (os.fsdecode(each).partition("=") for each in raw.split(b"\0") if b"=" in each)
    return {name: value for name, _, value in pairs if name not in _OF_THE_SERVER}


def _leave_with_input() -> None:
    while os.read(0, 1 << 16):
        pass
    os._exit(0)


def _say(text: str) -> None:
    # On a line of its own: the user's shell may have written something.
    sys.stdout.buffer.write("\n{} {}\n".format(SAYS, text).encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def main(words: "list[str]") -> int:
    """Run one of the two."""
    start = KernelStart(Path(words[1]), words[2])
    return start.run() if words[0] == "run" else start.send(int(words[3]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
