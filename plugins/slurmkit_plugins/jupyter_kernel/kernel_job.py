"""The job of a kernel, and the way into it: ssh through a step, as for `slurmkit ssh-config`.

Each kernel has a folder with mode 0700 on the shared home, with keys of its own and the order for
the node. The kernel listens on Unix sockets, which ssh leads to Unix sockets here: no port is on
the network, and what the notebook and the kernel say to each other is encrypted.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slurmkit.config.paths import state_folder, write_private_file
from slurmkit.errors import BadInput, JobOver, NoSuchJob, SlurmkitError
from slurmkit.formats.display import printable
from slurmkit.interactive.kernel_spec import NO_COMMAND, check_kernel_job
from slurmkit.interactive.ssh_profile import (
    KeeperAddress,
    SshProfile,
    direct_block,
    with_keeper,
    write_profile,
)
from slurmkit.jobs.job import Job
from slurmkit.jobs.lookup import read_queued_ids
from slurmkit.planning.planner import plan
from slurmkit.slurm.commands import environment_for
from slurmkit.spec.jobfile import load_job_file
from slurmkit.spec.jobspec import JobSpec
from slurmkit_plugins.jupyter_kernel import on_node

if TYPE_CHECKING:
    from slurmkit.cluster.cluster import Cluster

FOLDER = "kernels"
PORTS = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")
"""As Jupyter names them; with the transport `ipc` they are endings of sockets' paths: 1 to 5."""
_IDLE_MINUTES = 10.0  # a job whose Jupyter server was killed ends then
_PROGRAM, _SSH_CONFIG, _SSH_LOG, _JOB_ID = "on_node.py", "ssh_config", "ssh.log", "job_id"
_KEPT_SECONDS = 7 * 86400
_SIGNAL_SECONDS = 15.0
_PAUSES = (0.2, 1, 5, 15)  # seconds before each try to connect again; the last one stays
_MOST_TRIES = 5  # to reach a kernel that nobody has reached yet
_LOST = -1  # code of a kernel whose end nobody has seen
_jobs: dict[str, Job] = {}  # not cancelled yet


class Order(msgspec.Struct, frozen=True):
    """What the node starts.

    Attributes:
        argv: the kernel.
        cwd: its folder, if the node has it.
        environment: beside that of the job.
        place: folder of its sockets on the node.
    """

    argv: tuple[str, ...]
    cwd: str
    environment: dict[str, str]
    place: str


class KernelJob(msgspec.Struct, frozen=True):
    """The job of a kernel, with the keys and files to reach it."""

    job: Job
    profile: SshProfile


def make_profile(cluster_name: str, kernel_name: str, kernel_id: str) -> SshProfile:
    """Return the keys and files of a kernel, which are not written yet."""
    return SshProfile(kernel_name, cluster_name, state_folder(FOLDER) / cluster_name / kernel_id)


def submit(cluster: Cluster, profile: SshProfile, job_file: Path) -> KernelJob:
    """Submit the job of a kernel.

    Raises:
        BadInput: for a mistake in the job file, and for what the site does not allow.
        SlurmError: when Slurm refuses the job, or does not answer.
    """
    fields = load_job_file(job_file)
    if given := fields.keys() & {"command", "script"}:
        raise BadInput(f"{job_file}: {given.pop()} is in argv of kernel.json; leave it out")
    spec = JobSpec(**fields | {"command": NO_COMMAND})
    check_kernel_job(spec)
    name = spec.job_name or f"kernel-{profile.name}"
    named = msgspec.structs.replace(spec, job_name=name, requeue=False)
    job = with_keeper(named, profile, _IDLE_MINUTES)
    remove_files(profile)  # of an earlier job; its processes were on another node
    write_profile(profile, job)
    write_private_file(profile.folder / _PROGRAM, Path(on_node.__file__).read_bytes())
    try:
        submitted = cluster.submit(plan(job, cluster, ask=False))
    except BadInput as error:
        shutil.rmtree(profile.folder, ignore_errors=True)
        raise BadInput(f"{job_file}: {error}") from error
    _jobs[submitted.id] = submitted
    try:
        write_private_file(profile.folder / _JOB_ID, submitted.id.encode())
    except OSError:
        cancel(submitted)
        raise
    return KernelJob(submitted, profile)


def remove_files(profile: SshProfile) -> None:
    """Remove the files of a kernel, but not the log of its job."""
    for path in profile.folder.glob("*"):
        if path.suffix != ".log":
            with suppress(OSError):  # the job removes some itself
                path.unlink()


def remove_old_folders(cluster: Cluster, cluster_name: str) -> None:
    """Remove the folders of kernels whose jobs ended a week ago; some have lost their server.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    old, now = dict[Path, str](), time.time()
    for folder in (state_folder(FOLDER) / cluster_name).glob("*"):
        with suppress(OSError):
            if now - folder.stat().st_mtime > _KEPT_SECONDS:
                known = folder / _JOB_ID
                old[folder] = known.read_text("ascii") if known.exists() else ""
    live = read_queued_ids(cluster.backend, filter(None, old.values()))
    for folder, job_id in old.items():
        if job_id not in live:
            shutil.rmtree(folder, ignore_errors=True)


def cancel(job: Job) -> None:
    """Cancel a job; one that is over is fine.

    Raises:
        SlurmError: when Slurm refuses, or does not answer.
    """
    with suppress(JobOver, NoSuchJob):
        job.cancel()
    _jobs.pop(job.id, None)


@atexit.register
def _cancel_left() -> None:
    """Cancel jobs that Jupyter has not ended, such as one that still waited."""
    for job in list(_jobs.values()):
        with suppress(SlurmkitError):
            cancel(job)


def is_over(job: Job) -> bool:
    """Tell whether a job has ended; not if Slurm does not answer."""
    try:
        return job.info().is_over
    except NoSuchJob:
        return True
    except SlurmkitError:
        return False


class Sockets:
    """The folder of a kernel's sockets on this machine; their paths have at most 107 bytes.

    It is in one of this process, which stays: Jupyter connects to the sockets again and again, and
    nobody else may make them.
    """

    def __init__(self) -> None:
        self.folder = _own_folder() / secrets.token_hex(6)
        self.prefix = str(self.folder / "k")

    def make(self) -> None:
        """Make the folder, unless it is there."""
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="slurmkit-sockets-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class KernelLink:
    """A kernel on its node: an ssh that leads its sockets here and waits for its end.

    If ssh ends before the kernel does, it is started again while the job runs.

    Args:
        kernel_job: the job, which runs.
        address: where it waits for connections.
        sockets: the kernel's sockets on this machine.
    """

    def __init__(self, kernel_job: KernelJob, address: KeeperAddress, sockets: Sockets) -> None:
        self.profile, self.job = kernel_job.profile, kernel_job.job
        self.address, self.sockets = address, sockets
        self.name = f"launch-{secrets.token_hex(6)}"
        self.place = f"/tmp/slurmkit-kernel-{secrets.token_hex(12)}"  # noqa: S108 - see on_node.py
        self.code: int | None = None
        self.words = ""  # its last ones
        self.ready = threading.Event()  # also when it has ended
        self._closed = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, argv: Sequence[str], cwd: str, environment: Mapping[str, str], connection: bytes
    ) -> None:
        """Start the kernel; `ready` is set once it listens or has ended.

        Args:
            argv: the kernel; it names `connection_file`.
            cwd: its folder.
            environment: beside that of the job.
            connection: Jupyter's connection file for the node.
        """
        folder = self.profile.folder
        write_private_file(self.connection_file, connection)
        order = Order(tuple(argv), cwd, dict(environment), self.place)
        write_private_file(folder / f"{self.name}.json", msgspec.json.encode(order))
        write_private_file(folder / _SSH_CONFIG, self._config().encode())
        threading.Thread(target=self._follow, daemon=True, name=f"kernel-{self.job.id}").start()

    @property
    def connection_file(self) -> Path:
        """Jupyter's connection file for the node."""
        return self.profile.folder / f"{self.name}-connection.json"

    def send_signal(self, number: int) -> bool:
        """Send a signal to the kernel; return whether it got there."""
        argv = self._ssh("-o", "ClearAllForwardings=yes")
        command = self._on_node("signal", str(number))
        try:
            done = subprocess.run(
                [*argv, command], stdin=subprocess.DEVNULL, capture_output=True,
                env=_environment(), start_new_session=True, check=False, timeout=_SIGNAL_SECONDS,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def close(self) -> None:
        """End ssh; the kernel goes on."""
        self._closed.set()
        process = self._process
        if process is not None:
            process.terminate()

    def _follow(self) -> None:
        """Connect until the kernel has ended, its job has ended, or the link is closed."""
        try:
            self._keep_connected()
        finally:
            if self.code is None:
                self.code = _LOST
            self.ready.set()

    def _keep_connected(self) -> None:
        tries = 0
        while True:
            was_ready = self.ready.is_set()
            try:
                tries = 0 if self._connect() else tries + 1
            except OSError as error:  # no process or no space is left: a later try may have one
                tries, self.words = tries + 1, str(error)
            if self.code is not None or self._closed.wait(_PAUSES[min(tries, len(_PAUSES) - 1)]):
                return
            if is_over(self.job) or (tries == _MOST_TRIES and not was_ready):
                self.words = self._last_words_of_ssh() or self.words
                return

    def _last_words_of_ssh(self) -> str:
        try:
            lines = (self.profile.folder / _SSH_LOG).read_text("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return printable(lines[-1]) if lines else ""

    def _connect(self) -> bool:
        """Connect once, until that connection ends; return whether it had reached the kernel."""
        reached = False
        with (self.profile.folder / _SSH_LOG).open("ab") as log:
            process = subprocess.Popen(
                [*self._ssh(), self._on_node("run")], stdin=subprocess.PIPE, stderr=log,
                stdout=subprocess.PIPE, env=_environment(), start_new_session=True,
            )  # fmt: skip
        self._process = process
        if self._closed.is_set():  # meanwhile
            process.terminate()
        with process:
            for line in process.stdout or ():
                match line.decode("utf-8", "replace").split(maxsplit=3):
                    case [on_node.SAYS, "ready"]:
                        reached = True
                        self.ready.set()
                    case [on_node.SAYS, "ended", code, *words]:
                        self.words = printable("".join(words).strip())
                        self.code = int(code)
                        process.terminate()  # it would wait for connections to its sockets
        return reached

    def _ssh(self, *options: str) -> list[str]:
        return [
            "ssh", "-T", "-F", str(self.profile.folder / _SSH_CONFIG), *options, self.profile.host
        ]  # fmt: skip

    def _on_node(self, what: str, *more: str) -> str:
        folder = self.profile.folder
        words = ["python3", str(folder / _PROGRAM), what, str(folder), self.name, *more]
        return shlex.join(words)

    def _config(self) -> str:
        """Return the file for ssh; the paths of sockets are no business of `ps`."""
        forwards = [
            f"LocalForward {self.sockets.prefix}-{number} {self.place}/k-{number}"
            for number in range(1, len(PORTS) + 1)
        ]
        more = ["StreamLocalBindUnlink yes", "ExitOnForwardFailure yes", "BatchMode yes",
                "ConnectTimeout 60"]  # fmt: skip
        return direct_block(self.profile, self.address, [*more, *forwards])


def _environment() -> dict[str, str]:
    """Return the environment for ssh, which starts srun: Jupyter may itself be in a job."""
    return environment_for(["srun"], os.environ)
