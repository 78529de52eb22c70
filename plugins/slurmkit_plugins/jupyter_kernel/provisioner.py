"""`SlurmkitProvisioner`: Jupyter starts a kernel as a Slurm job."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from jupyter_client.provisioning import KernelProvisionerBase
from tornado.web import HTTPError
from traitlets import Float

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import NotOver, SlurmkitError
from slurmkit.interactive.kernel_spec import JOB_FILE
from slurmkit.interactive.ssh_job import wait_for_keeper
from slurmkit.interactive.ssh_profile import KeeperAddress
from slurmkit.jobs.job import Job
from slurmkit_plugins.jupyter_kernel import kernel_job
from slurmkit_plugins.jupyter_kernel.kernel_job import PORTS, KernelJob, KernelLink, Sockets

ResultT = TypeVar("ResultT")
_LOOK_SECONDS = 0.1
_CONNECTION_FILE = "{connection_file}"
_OF_THE_NOTEBOOK = "JPY_SESSION_NAME"


class KernelRefused(HTTPError):
    """A kernel that could not be started; JupyterLab shows the message for a new kernel."""

    def __init__(self, message: str) -> None:
        super().__init__(409, message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class SlurmkitProvisioner(KernelProvisionerBase):
    """Runs a kernel in a job of its own, which `job.toml` beside `kernel.json` describes.

    A restart of the kernel stays in the job. If the job has ended, a restart by the user submits
    another one; Jupyter's automatic restart does not.
    """

    start_timeout = Float(
        600, help="Seconds that the job may wait for its start; then it is cancelled."
    )

    _job: KernelJob | None = None
    _link: KernelLink | None = None
    _submitting: asyncio.Future[KernelJob] | None = None
    _why = ""
    _is_closed = False
    _is_started = False
    _is_asked_for = True  # whether a user wants the next start

    @cached_property
    def _sockets(self) -> Sockets:
        return Sockets()

    @property
    def has_process(self) -> bool:
        """Whether a kernel was started whose end was not waited for."""
        return self._is_started

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Write Jupyter's connection file with sockets of this machine."""
        manager = self.parent
        manager.transport, manager.ip = "ipc", self._sockets.prefix
        for number, port in enumerate(PORTS, 1):
            setattr(manager, port, number)
        manager.write_connection_file()
        self.connection_info = manager.get_connection_info()
        self._is_closed = False
        cmd = manager.format_kernel_cmd(extra_arguments=kwargs.pop("extra_arguments", []))
        return dict(await super().pre_launch(cmd=cmd, **kwargs))

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        """Start the kernel, in a job that is submitted unless there is one already.

        Raises:
            KernelRefused: when the job is refused, does not start in time, or the kernel ends.
        """
        try:
            await self._launch(cmd, kwargs)
        except (SlurmkitError, OSError) as error:
            await self._end_job()
            self._forget()
            self._why = str(error)
            self.log.error("kernel %s: %s", self.kernel_id, error)  # noqa: TRY400 - it says all
            if self._is_asked_for:
                raise KernelRefused(str(error)) from error
            # Jupyter tries five times, then it says that the kernel has died.
        except BaseException:
            await self._end_job()
            raise
        self._is_started, self._is_asked_for = True, False
        return dict(self.connection_info)

    def _forget(self) -> None:
        """Take the kernel out of those that start: Jupyter leaves it there, and fails at its end.

        See `_add_kernel_when_ready` of jupyter_client 8.10.
        """
        getattr(self.parent.parent, "_pending_kernels", {}).pop(self.kernel_id, None)

    async def _launch(self, cmd: list[str], kwargs: dict[str, Any]) -> None:
        if not any(_CONNECTION_FILE in word for word in self.kernel_spec.argv):
            raise SlurmkitError(f"argv in kernel.json lacks {_CONNECTION_FILE}")
        here = await self._find_or_start_job()
        address = await self._wait_for_job(here)
        if self._link is not None:
            self._link.close()
        if self._is_closed:
            raise SlurmkitError("the kernel was shut down before it had started")
        self._sockets.make()
        self._link = link = KernelLink(here, address, self._sockets)
        given = kwargs.get("env", {})
        names = (*self.kernel_spec.env, _OF_THE_NOTEBOOK)
        await _in_thread(
            link.start,
            self._with_connection_file(cmd, str(link.connection_file)),
            str(kwargs.get("cwd") or Path.cwd()),
            {name: given[name] for name in names if name in given},
            self._connection_on_node(link),
        )
        if not await _in_thread(link.ready.wait, self.start_timeout):
            raise SlurmkitError(
                f"the kernel has not listened within {self.start_timeout:g} s; see:"
                f" slurmkit log {here.job.id}"
            )
        if link.code is not None:
            if await _in_thread(kernel_job.is_over, here.job):
                raise SlurmkitError(await _in_thread(_describe_end, here.job))
            raise SlurmkitError(
                f"the kernel ended with code {link.code}: {link.words}; see: slurmkit log"
                f" {here.job.id}"
            )
        self.log.info("kernel %s runs in job %s on %s", self.kernel_id, here.job.id, address.node)

    async def _find_or_start_job(self) -> KernelJob:
        """Return the job of this kernel; submit another one only for a user."""
        if self._job is not None:
            if not await _in_thread(kernel_job.is_over, self._job.job):
                return self._job
            if not self._is_asked_for:
                raise SlurmkitError(await _in_thread(_describe_end, self._job.job))
        elif not self._is_asked_for:
            raise SlurmkitError(self._why)
        # A start that is cancelled leaves the submit to go on; `_end_job` waits for it.
        self._submitting = _in_thread(self._submit)
        self._job = await asyncio.shield(self._submitting)
        return self._job

    def _submit(self) -> KernelJob:
        cluster = Cluster()
        if cluster.name:
            raise SlurmkitError(
                f"kernels run on the cluster of this machine, and not over SSH on {cluster.name}:"
                " start Jupyter on a login node"
            )
        name = cluster.capabilities().cluster_name
        kernel_job.remove_old_folders(cluster, name)
        folder = Path(self.kernel_spec.resource_dir)
        short = folder.name.removeprefix("slurmkit-")
        profile = kernel_job.make_profile(name, short, self.kernel_id)
        return kernel_job.submit(cluster, profile, folder / JOB_FILE)

    async def _wait_for_job(self, here: KernelJob) -> KeeperAddress:
        waiting = _in_thread(wait_for_keeper, here.job, here.profile, self.log.info)
        try:
            return await asyncio.wait_for(waiting, self.start_timeout)
        except NotOver:
            raise
        except TimeoutError as error:
            raise SlurmkitError(
                f"job {here.job.id} has not started within {self.start_timeout:g} s,"
                " and was cancelled; ask for less, or set start_timeout in kernel.json"
            ) from error

    def _with_connection_file(self, cmd: Sequence[str], there: str) -> list[str]:
        """Return the kernel's command with the connection file for the node."""
        here = str(self.parent.connection_file)
        for each in (os.path.realpath(here), here):  # of newer and of older releases of Jupyter
            cmd = [word.replace(each, there) for word in cmd]
        return list(cmd)

    def _connection_on_node(self, link: KernelLink) -> bytes:
        info = dict(self.connection_info) | {"ip": f"{link.place}/k"}
        key = info.get("key", b"")
        return json.dumps(info | {"key": key.decode() if isinstance(key, bytes) else key}).encode()

    async def poll(self) -> int | None:
        """Return None while the kernel runs, else its exit code."""
        return self._link.code if self._link is not None else 0

    async def wait(self) -> int | None:
        """Wait until the kernel has ended, and return its exit code."""
        while (code := await self.poll()) is None:
            await asyncio.sleep(_LOOK_SECONDS)
        self._is_started = False
        return code

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel and the processes that it has started."""
        link = self._link
        if link is None or link.code is not None or not signum:
            return
        if not await _in_thread(link.send_signal, signum):
            self.log.warning("signal %s did not reach kernel %s", signum, self.kernel_id)

    async def terminate(self, restart: bool = False) -> None:
        """End the kernel with SIGTERM."""
        await self.send_signal(signal.SIGTERM)

    async def kill(self, restart: bool = False) -> None:
        """End the kernel with SIGKILL; its job ends in `cleanup`."""
        await self.send_signal(signal.SIGKILL)

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Note that a user, and not Jupyter by itself, restarts the kernel."""
        self._is_asked_for = restart

    async def cleanup(self, restart: bool = False) -> None:
        """End the job, unless the kernel is to be restarted in it."""
        if not restart:
            self._is_closed = True
            await self._end_job()
            self._sockets.remove()

    async def _end_job(self) -> None:
        """End ssh and the job, and remove the files."""
        submitting, self._submitting = self._submitting, None
        if submitting is not None:
            with suppress(SlurmkitError, OSError):
                self._job = await submitting
        here, link = self._job, self._link
        self._job = self._link = None
        if link is not None:
            link.close()
        if here is not None:
            try:
                await _in_thread(kernel_job.cancel, here.job)
            except SlurmkitError as error:
                self.log.warning("job %s may go on: %s", here.job.id, error)
            kernel_job.remove_files(here.profile)


def _describe_end(job: Job) -> str:
    try:
        return f"job {job.id} {job.outcome().words}"
    except SlurmkitError:
        return f"job {job.id} has ended"


def _in_thread(work: Callable[..., ResultT], *arguments: object) -> asyncio.Future[ResultT]:
    """Run something in a thread of its own.

    Those of `asyncio.to_thread` are few, and Python waits for them when it ends: kernels that wait
    for their jobs would keep others from being cancelled.
    """
    result: Future[ResultT] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(work(*arguments))
        except BaseException as error:  # noqa: BLE001 - who awaits it gets it
            result.set_exception(error)

    threading.Thread(target=run, daemon=True, name="slurmkit-kernel").start()
    return asyncio.wrap_future(result)
