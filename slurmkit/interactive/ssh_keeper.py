"""The program of a job that one reaches by `ssh slurmkit-NAME`: one sshd for each connection.

    python3 ssh_keeper.py keep FOLDER MINUTES      the job: its batch shell runs this
    python3 ssh_keeper.py bridge SOCKET            a step of the job: standard input and output

The bridge's step ends with its connection, and Slurm ends all that runs in a step. So what people
start over ssh, such as the server of an editor, is in the batch shell's part of the job: it stays
when a connection breaks. The socket is in Linux's abstract namespace, so it needs no folder on the
node; both ends check that the other one belongs to the same user.

This file is copied to the user's shared home and runs on the python3 of the node, from 3.6 on: it
stands alone, and needs the standard library only.
"""

import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

ADDRESS = "address.json"
"""File in the profile's folder with the job, its node and the name of the socket."""
_PLACES = "/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"
# What programs in the job need to know of it; sshd gives a session nothing of its own environment.
_PASSED_ON = ("SLURM_", "SLURMD_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
              "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
              "ZE_AFFINITY_MASK", "TMPDIR")  # fmt: skip
_PIECE = 1 << 16
_LOOK = 5.0  # seconds between two looks at connections
_SUSPENDED = 60.0  # seconds without a look: the job was suspended, and connections broke
_END = 5.0  # seconds that processes have to end
_PEER = struct.Struct("3i")  # pid, uid and gid: socket(7), SO_PEERCRED


def find_sshd() -> "str | None":
    """Return the path of sshd, which insists on an absolute one; None where there is none."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_PLACES])
    return shutil.which("sshd", path=path)


def config_text(folder: Path, environment: "dict[str, str]") -> str:
    """Return the configuration of sshd (sshd_config(5)) for an ordinary user.

    The user's own authorized keys work, too: whoever may log in to the login node may log in here.
    """
    lines = [
        'HostKey "{}"'.format(folder / "host_key"),
        'AuthorizedKeysFile "{}" .ssh/authorized_keys'.format(folder / "authorized_keys"),
        "PubkeyAuthentication yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "UsePAM no",
        "PidFile none",
        "X11Forwarding no",
        "PrintMotd no",
        "ClientAliveInterval 60",
        "ClientAliveCountMax 10",
        "LogLevel INFO",
        "Subsystem sftp internal-sftp",
    ]
    # One line: sshd takes the first SetEnv only.
    pairs = [
        f'"{name}={value}"'
        for name, value in sorted(environment.items())
        if name.startswith(_PASSED_ON) and value.isprintable() and not set(value) & set('"\\')
    ]
    if pairs:
        lines.append("SetEnv " + " ".join(pairs))
    return "\n".join([*lines, ""])


def peer_uid(connection: socket.socket) -> int:
    """Return the uid of the process at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(raw)[1])


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    aside = path.with_name(f".{path.name}-{os.getpid()}")
    with os.fdopen(os.open(str(aside), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    aside.replace(path)


class Keeper:
    """Accepts connections of the user, and starts an sshd for each.

    Args:
        folder: the profile's folder.
        sshd: the program and its options.
        idle: seconds without a connection after which the job ends; 0 for never.
    """

    def __init__(self, folder: Path, sshd: "list[str]", idle: float) -> None:
        self.sshd = sshd
        self.idle = idle
        self.job = os.environ.get("SLURM_JOB_ID", str(os.getpid()))
        self.name = f"slurmkit-ssh-{self.job}-{os.urandom(12).hex()}"
        self.address = folder / ADDRESS
        self.children = []  # type: list[subprocess.Popen[bytes]]
        self.last = self.looked = time.monotonic()

    def run(self) -> None:
        """Serve until nobody has been connected for the idle time."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind("\0" + self.name)
            server.listen(64)
            self._tell()
            try:
                while not self._is_idle():
                    if select.select([server], [], [], _LOOK if self.idle else 60)[0]:
                        self._accept(server)
            finally:
                self._take_back()

    def _accept(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            if peer_uid(connection) != os.getuid():
                return
            try:
                both = connection.fileno()
                self.children.append(subprocess.Popen(self.sshd, stdin=both, stdout=both))
            except OSError as error:  # no process is left: the next connection may have one
                say(f"{self.sshd[0]}: {error.strerror}")

    def _is_idle(self) -> bool:
        """Return whether nobody has been connected for long enough."""
        self.children = [child for child in self.children if child.poll() is None]
        now = time.monotonic()
        if self.children or now - self.looked > _SUSPENDED:
            self.last = now
        self.looked = now
        return bool(self.idle) and now - self.last >= self.idle

    def _tell(self) -> None:
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        facts = {"job_id": self.job, "node": node, "socket": self.name, "pid": os.getpid(),
                 "started": int(time.time())}  # fmt: skip
        write_private(self.address, json.dumps(facts))

    def _take_back(self) -> None:
        """Remove the address, unless another job of this profile has written its own."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would cut this short
        try:
            if json.loads(self.address.read_text())["socket"] == self.name:
                self.address.unlink()
        except (OSError, ValueError, KeyError, TypeError):
            pass
        for child in self.children:
            child.terminate()
        end_processes(self.job)


def end_processes(job: str) -> None:
    """End what people started in the job; sshd's sessions have left the group of the batch shell.

    Slurm ends them itself only where it tracks processes by cgroup.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + _END
        for pid in _processes_of(job):
            try:
                os.kill(pid, number)
            except OSError:  # it has ended meanwhile
                continue
        while _processes_of(job) and time.monotonic() < until:
            time.sleep(0.1)


def _processes_of(job: str) -> "list[int]":
    """Return the user's processes with the job's id in their environment, but those above us."""
    above, mark = _ancestors(), b"SLURM_JOB_ID=" + job.encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid != os.getuid() or int(folder.name) in above:
                continue
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile, or is not ours
            continue
    return found


def _ancestors() -> "set[int]":
    """Return this process and those that it comes from, such as the batch shell."""
    pid, above = os.getpid(), set()
    while pid > 0 and pid not in above:
        above.add(pid)
        try:
            # The name before the last bracket may hold anything.
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            break
    return above


def keep(folder: Path, minutes: float) -> int:
    """Serve connections; return the exit code of the job."""
    sshd = find_sshd()
    if sshd is None:
        say(f"there is no sshd on {os.uname()[1]}; it is in the package openssh-server")
        return 127
    config = folder / "sshd_config-{}".format(os.environ.get("SLURM_JOB_ID", "0"))
    write_private(config, config_text(folder, dict(os.environ)))
    signal.signal(signal.SIGTERM, _end)
    try:
        # sshd says why in the job's output, which is standard error of this program.
        Keeper(folder, [sshd, "-i", "-e", "-f", str(config)], minutes * 60).run()
    finally:
        with suppress(FileNotFoundError):  # the profile was taken back meanwhile
            config.unlink()
    say(f"nobody was connected for {minutes:g} minutes: the job ends")
    return 0


def bridge(name: str) -> int:
    """Copy standard input to a keeper's socket, and what comes back to standard output."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as far:
        try:
            far.connect("\0" + name)
        except OSError as error:
            say(f"the job's sshd does not answer: {error.strerror}")
            return 1
        if peer_uid(far) != os.getuid():
            say("the job's sshd belongs to another user")
            return 1
        _copy_both_ways(far)
    return 0


def _copy_both_ways(far: socket.socket) -> None:
    """Copy until the far end has closed; a thread for each way: neither waits for the other."""
    threading.Thread(target=_send_input, args=(far,), daemon=True).start()
    while True:
        try:
            piece = far.recv(_PIECE)
        except ConnectionResetError:
            return
        if not piece:
            return
        while piece:
            piece = piece[os.write(1, piece) :]


def _send_input(far: socket.socket) -> None:
    """Send standard input, and pass its end on."""
    try:
        piece = os.read(0, _PIECE)
        while piece:
            far.sendall(piece)
            piece = os.read(0, _PIECE)
        far.shutdown(socket.SHUT_WR)
    except OSError:  # the far end has closed, which the other thread sees
        return


def say(text: str) -> None:
    """Say something in the job's output, or to the user of ssh."""
    sys.stderr.write(f"slurmkit: {text}\n")
    sys.stderr.flush()


def _end(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def main(words: "list[str]") -> int:
    """Run one of the two."""
    if words[0] == "keep":
        return keep(Path(words[1]), float(words[2]))
    return bridge(words[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
