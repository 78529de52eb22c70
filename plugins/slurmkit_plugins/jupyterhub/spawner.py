"""`SlurmkitSpawner`: JupyterHub's servers as Slurm jobs, with one query of the queue for all."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import cache
from typing import Annotated

import msgspec
from jupyterhub.apihandlers import APIHandler, default_handlers
from jupyterhub.scopes import needs_scope
from jupyterhub.spawner import Spawner
from jupyterhub.utils import url_path_join
from sqlalchemy.orm import object_session
from tornado.web import HTTPError
from traitlets import Dict, default

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import NoSuchJob, SlurmkitError
from slurmkit.formats.durations import format_duration
from slurmkit.formats.job_ids import check_job_id
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.poller import PollPace, Watch
from slurmkit_plugins.jupyterhub.as_person import ask_as
from slurmkit_plugins.jupyterhub.pages import (
    Chosen,
    describe_wait,
    make_form,
    make_notice,
    read_chosen,
    read_form,
)
from slurmkit_plugins.jupyterhub.person import (
    AskEnd,
    Cancel,
    Cancelled,
    Ended,
    Offer,
    Offered,
    Submit,
    Submitted,
)

_PACE = PollPace(first=10, longest=10, floor=10)
_LOOK_SECONDS = 1.0
_FIRST_ANSWER_SECONDS = 60.0
_EARLIER = 5  # seconds
_STOP_PAUSES = (5, 10, 20, 40, 0)  # seconds after each try to cancel
_NOWHERE = "http://127.0.0.1:1"  # where nobody listens without being root
_HIDDEN = (
    "; with PrivateData=jobs in slurm.conf, the account that runs the hub has to be an operator of"
    " Slurm"
)


class SpawnRefused(HTTPError):
    """A server that could not be started; JupyterHub shows the message to the person."""

    def __init__(self, message: str) -> None:
        super().__init__(409, "%s", message)
        self.jupyterhub_message = message


class SlurmkitSpawner(Spawner):
    """Starts a person's server in a Slurm job of theirs."""

    profiles = Dict(
        value_trait=Dict(),
        help="""
        What people can choose from: names and jobs. A job has the keys of a job file of slurmkit.

        Example::

            c.SlurmkitSpawner.profiles = {
                "2 cores, 4 hours": {"cpus-per-task": 2, "time": "4:00:00"},
                "1 A100, 8 hours": {"gpus": "a100:1", "time": "8:00:00"},
            }

        Default: a profile without GPUs, and one for a GPU of each type of the default partition.
        """,
    ).tag(config=True)

    job_id = ""
    _watch: Watch | None = None
    _port = 0
    _submitting: asyncio.Task[None] | None = None

    @default("start_timeout")
    def _start_timeout_default(self) -> int:
        return 3600

    @default("http_timeout")
    def _http_timeout_default(self) -> int:
        return 300  # from the start of the job, and once more from its port

    @default("env_keep")
    def _env_keep_default(self) -> list[str]:
        return []  # the hub's PATH is not the node's

    @default("ip")
    def _ip_default(self) -> str:
        return "0.0.0.0"  # noqa: S104 - the hub's proxy is on another machine

    @default("apply_user_options")
    def _apply_user_options_default(self) -> object:
        return lambda _spawner, _options: None  # `start` takes them

    @default("options_form")
    def _options_form_default(self) -> object:
        return type(self).show_form

    @default("options_from_form")
    def _options_from_form_default(self) -> object:
        return read_form

    async def show_form(self) -> str:
        """Return the form in HTML; it says so if Slurm does not answer."""
        try:
            offered = await ask_as(self.user.name, Offer(self.profiles), Offered)
        except SlurmkitError as error:
            return make_notice(f"The profiles cannot be shown: {error}")
        try:
            chosen = read_chosen(self.user_options or {})
        except SlurmkitError:
            chosen = Chosen()
        return make_form(offered, chosen, time.time(), self.start_timeout)

    async def start(self) -> str:
        """Submit the job, wait until its server listens, and return the server's address.

        Raises:
            SpawnRefused: when Slurm refuses the job, or the job ends.
        """
        if self.internal_ssl:
            raise SpawnRefused(
                "the servers' certificates do not reach the nodes: the hub's administrator has to"
                " set c.JupyterHub.internal_ssl = False"
            )
        try:
            # A start that is cancelled leaves it: `stop` waits for it, and cancels the job.
            self._submitting = asyncio.create_task(self._submit(read_chosen(self.user_options)))
            await asyncio.shield(self._submitting)
            # JupyterHub's own end of the time says nothing to the person.
            return await asyncio.wait_for(self._find_server(), self.start_timeout - _EARLIER)
        except NoSuchJob as error:
            with suppress(SlurmkitError):
                await self.stop()
            raise SpawnRefused(f"{error}{_HIDDEN}") from error
        except TimeoutError as error:
            waited = describe_wait(self.job_id, self._info())[1]
            raise SpawnRefused(
                f"{waited}. The hub waits {format_duration(self.start_timeout)} for a server, and"
                " has cancelled the job"
            ) from error
        except SlurmkitError as error:
            raise SpawnRefused(str(error)) from error

    async def _submit(self, chosen: Chosen) -> None:
        wish = Submit(
            profiles=self.profiles,
            profile=chosen.profile,
            time=chosen.time,
            account=chosen.account,
            environment={name: str(value) for name, value in self.get_env().items()},
            command=(*self.cmd, *self.get_args()),
            name=f"jupyterhub-{self.name}" if self.name else "jupyterhub",
        )
        self._take_job((await ask_as(self.user.name, wish, Submitted)).job_id)
        self._save_state()

    def _take_job(self, job_id: str) -> None:
        """Watch a job from now on, together with the jobs of all other servers."""
        if self._watch is not None:
            self._watch.close()
        self.job_id = check_job_id(job_id)
        self._watch = _cluster().poller.watch([job_id])

    def _save_state(self) -> None:
        """Store job and port now: JupyterHub itself does so only once the server answers."""
        self.orm_spawner.state = self.get_state()
        if (session := object_session(self.orm_spawner)) is not None:
            session.commit()

    async def _find_server(self) -> str:
        """Wait until the job runs and its server has told its port; return its address.

        Raises:
            SlurmkitError: when the job ends, or its server does not listen in time.
        """
        runs_since = None
        while True:
            info = self._info()
            if info is not None and info.is_over:
                raise SlurmkitError(await self._describe_end())
            if info is not None and info.state == "RUNNING" and self._port:
                return f"http://{await _address_of(expand_nodes(info.node_list)[0])}:{self._port}"
            runs = info is not None and info.state == "RUNNING"
            runs_since = (runs_since or time.monotonic()) if runs else None
            if runs_since and time.monotonic() - runs_since > self.http_timeout:
                raise SlurmkitError(
                    f"job {self.job_id} runs, but its server has not listened within"
                    f" {self.http_timeout} s; see: slurmkit log {self.job_id}"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    def _info(self) -> JobInfo | None:
        """Return what Slurm last said of the job; None while it has not answered.

        Raises:
            NoSuchJob: when Slurm does not know it, or it is a job of somebody else.
        """
        if self._watch is None:
            return None
        known = self._watch.known[self.job_id]
        if isinstance(known.error, NoSuchJob):
            raise known.error
        if known.error is not None:  # the poller has given up; it begins anew
            self.log.warning("%s: %s", self._log_name, known.error)
            self._take_job(self.job_id)
            return None
        if known.info is not None and known.info.user != self.user.name:
            raise NoSuchJob(f"job {self.job_id} is not a job of {self.user.name}")
        return known.info

    async def _describe_end(self) -> str:
        try:
            return (await ask_as(self.user.name, AskEnd(self.job_id), Ended)).words
        except SlurmkitError:
            return f"job {self.job_id} has ended; see: slurmkit log {self.job_id}"

    async def poll(self) -> int | None:
        """Return None while the job waits or runs, else an exit code."""
        if self.is_submitting:
            return None
        if not self.job_id:
            return 0
        end = time.monotonic() + _FIRST_ANSWER_SECONDS
        try:
            while (info := self._info()) is None and time.monotonic() < end:
                await asyncio.sleep(_LOOK_SECONDS)
        except NoSuchJob as error:
            self.log.warning("%s: %s", self._log_name, error)
            return 1
        if info is None or not info.is_over:
            return None
        return 0 if info.state == "COMPLETED" else 1

    async def stop(self, now: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - JupyterHub's
        """Cancel the job, also one that is being submitted.

        Raises:
            SlurmkitError: when Slurm does not cancel it.
        """
        if self._submitting is not None:
            with suppress(SlurmkitError):
                await self._submitting
        if not self.job_id:
            return
        for pause in _STOP_PAUSES:
            try:
                await ask_as(self.user.name, Cancel(self.job_id), Cancelled)
            except SlurmkitError as error:
                self.log.warning("%s: job %s goes on: %s", self._log_name, self.job_id, error)
                if not pause:
                    raise
                await asyncio.sleep(pause)
            else:
                return

    async def progress(self) -> AsyncIterator[dict[str, object]]:
        """Yield what the server waits for, each time that it changes."""
        last = None
        while True:
            with suppress(SlurmkitError):
                said = describe_wait(self.job_id, self._info())
                if said != last:
                    last = said
                    yield {"progress": said[0], "message": said[1]}
            await asyncio.sleep(1)

    def hear_port(self, port: int) -> None:
        """Take the port of the server, which its job has told."""
        self._port = port
        self._save_state()

    @property
    def is_submitting(self) -> bool:
        """Whether the id of the job is not known yet."""
        return self._submitting is not None and not self._submitting.done()

    async def get_url(self) -> str:
        """Return the server's address after a restart of the hub, also of one that still waited."""
        try:
            address = await asyncio.wait_for(self._find_server(), self.start_timeout)
        except (SlurmkitError, TimeoutError) as error:
            self.log.warning("%s: %s", self._log_name, error)
            address = _NOWHERE  # JupyterHub sees that it does not answer, and stops it
        return str(url_path_join(address, self.server.base_url))

    def get_state(self) -> dict[str, object]:
        """Return the job's id, and the server's port once it is known."""
        state = super().get_state()
        if self.job_id:
            state |= {"job_id": self.job_id, "port": self._port}
        return dict(state)

    def load_state(self, state: dict[str, object]) -> None:
        """Watch the job of a server that was started before the hub."""
        super().load_state(state)
        if job_id := str(state.get("job_id", "")):
            self._take_job(job_id)
            self._port = int(str(state.get("port", 0)))

    def clear_state(self) -> None:
        """Forget the job."""
        super().clear_state()
        if self._watch is not None:
            self._watch.close()
        self._watch, self._submitting = None, None
        self.job_id, self._port = "", 0


class ServerPort(APIHandler):
    """Hears from a job on which port its server listens.

    The address is Slurm's: a job can name a port of its own first node, and nothing else. A job
    that no server waits for hears so and ends; the hub may have lost it.
    """

    @needs_scope("users:activity")
    def post(self, user_name: str) -> None:
        """Take the port."""
        user = self.find_user(user_name)
        try:
            told = msgspec.json.decode(self.request.body, type=_ToldPort)
        except msgspec.MsgspecError as error:
            raise HTTPError(400, "%s", error) from error
        spawners = list(user.spawners.values()) if user else []
        own = [each for each in spawners if isinstance(each, SlurmkitSpawner)]
        for spawner in own:
            if spawner.job_id == told.job_id:
                spawner.hear_port(told.port)
                self.set_status(204)
                return
        if any(spawner.is_submitting for spawner in own):  # the job asks again
            raise HTTPError(503, "%s's server is being submitted", user_name)
        raise HTTPError(404, "no server of %s waits for job %s", user_name, told.job_id)


class _ToldPort(msgspec.Struct, frozen=True):
    job_id: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


default_handlers.append((r"/api/users/([^/]+)/slurmkit-server", ServerPort))


@cache
def _cluster() -> Cluster:
    return Cluster(pace=_PACE)


async def _address_of(node: str) -> str:
    """Return the IPv4 address of a node: the server listens on these.

    Raises:
        SlurmkitError: when the hub's machine cannot resolve the node's name.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(node, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SlurmkitError(
            f"the hub's machine cannot resolve the name of node {node}: {error.strerror}; see:"
            f" getent ahostsv4 {node}"
        ) from error
    return str(found[0][4][0])
