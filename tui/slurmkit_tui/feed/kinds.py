"""Every question the TUI asks: who answers it, and of which type the answer is."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from slurmkit.cluster import Cluster
from slurmkit.errors import SlurmError
from slurmkit.gpumap.model import GpuMap
from slurmkit.gpumap.read import read_gpus
from slurmkit.jobs.efficiency import Uses, read_uses
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.logpaths import LogFile
from slurmkit.jobs.mine import Mine, read_mine
from slurmkit.jobs.pages import Piece, read_piece
from slurmkit.jobs.steps import Steps, read_step_uses
from slurmkit.machine import machine_of
from slurmkit.nodes.read import NodesSnapshot, read_nodes
from slurmkit.queue.snapshot import Queue, read_queue
from slurmkit.site import Site, read_site
from slurmkit.slurm import Slurm
from slurmkit.spec import JobSpec
from slurmkit.survive.history import RunEnd
from slurmkit.why.model import Explanation
from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.feed.pictures import (
    Fairness,
    Health,
    Usage,
    Utilization,
    read_fairness,
    read_health,
    read_usage,
    read_utilization,
)
from slurmkit_tui.feed.sources import SOURCES
from slurmkit_tui.feed.turns import InTurns
from slurmkit_tui.rights import Rights, read_rights

if TYPE_CHECKING:
    from slurmkit.planner import Plan
    from slurmkit_tui.submit.known import Known
    from slurmkit_tui.submit.past import Past


class Kind(NamedTuple):
    """A kind of question.

    Attributes:
        type: of the answer; or `module:name` of one that is imported when it is needed.
        source: who answers, in words.
        read: asks a cluster.
    """

    type: Any
    source: str
    read: Callable[..., Any]

    @property
    def answers(self) -> Any:
        """The type of the answer."""
        if not isinstance(self.type, str):
            return self.type
        module, _, name = self.type.partition(":")
        return getattr(import_module(module), name)


class Asker(NamedTuple):
    """Who asks which cluster."""

    cluster: Cluster
    me: str

    @property
    def slurm(self) -> Slurm:
        """The cluster's border, whose long answers are read in turn."""
        return InTurns(self.cluster.slurm)


def _site(asker: Asker) -> Site:
    try:
        return read_site(asker.slurm)
    except SlurmError:  # what else is on the screen does not depend on it
        return Site()


def _job(asker: Asker, job_id: str) -> JobInfo:
    return asker.cluster.job(job_id).info()


def _restarts(asker: Asker, job_id: str) -> tuple[RunEnd, ...]:
    """Read from the home that nodes share; Slurm is not asked."""
    return asker.cluster.job(job_id).restarts()


def _why(asker: Asker, job_id: str) -> Explanation:
    from slurmkit.why.explain import explain  # noqa: PLC0415 - much of the library, seldom used

    return explain(asker.cluster, job_id)


def _script(asker: Asker, job_id: str) -> str:
    return asker.slurm.run(["scontrol", "write", "batch_script", job_id, "-"])


def _log_path(asker: Asker, job_id: str, which: str) -> str:
    return asker.cluster.job(job_id).log_path(LogFile(stderr=which == "stderr")) or ""


def _piece(asker: Asker, path: str, begin: str, length: str) -> Piece:
    return read_piece(path, int(begin), int(length), machine_of(asker.slurm))


def _plan(asker: Asker, spec: str) -> Plan:
    """Of a spec as JSON."""
    from slurmkit.planner import plan  # noqa: PLC0415 - much of the library, for the form alone

    return plan(msgspec.json.decode(spec, type=JobSpec), asker.cluster)


def _known(asker: Asker, age: str = "") -> Known:
    """What is known of the cluster as it is kept, or as it is now where `age` is `now`."""
    from slurmkit_tui.submit.known import Known  # noqa: PLC0415 - for the form alone

    return Known(asker.cluster.capabilities(refresh=age == "now"), asker.cluster.standing())


def _past(asker: Asker, job_id: str) -> Past:
    from slurmkit_tui.submit.past import read_past  # noqa: PLC0415 - for the form alone

    return read_past(asker.cluster, job_id)


KINDS = {
    "rights": Kind(Rights, "sacctmgr", lambda asker: read_rights(asker.slurm, asker.me)),
    "site": Kind(Site, "scontrol", _site),
    "queue": Kind(Queue, SOURCES["queue"], lambda asker: read_queue(asker.slurm)),
    "mine": Kind(Mine, SOURCES["mine"], lambda asker: read_mine(asker.slurm, asker.me)),
    "gpus": Kind(GpuMap, SOURCES["gpus"], lambda asker: read_gpus(asker.slurm)),
    "nodes": Kind(NodesSnapshot, SOURCES["nodes"], lambda asker: read_nodes(asker.slurm)),
    "fairshare": Kind(
        Fairness, SOURCES["fairshare"], lambda asker: read_fairness(asker.cluster, asker.me)
    ),
    "utilization": Kind(
        Utilization, SOURCES["utilization"], lambda asker, by: read_utilization(asker.cluster, by)
    ),
    "usage": Kind(Usage, SOURCES["usage"], lambda _asker: read_usage()),
    "health": Kind(Health, SOURCES["health"], lambda asker: read_health(asker.cluster)),
    "job": Kind(JobInfo, "squeue", _job),
    "restarts": Kind(tuple[RunEnd, ...], "file", _restarts),
    "why": Kind(Explanation, "squeue", _why),
    "script": Kind(str, "scontrol", _script),
    "logpath": Kind(str, "squeue", _log_path),
    "plan": Kind("slurmkit.planner:Plan", "slurmctld", _plan),
    "known": Kind("slurmkit_tui.submit.known:Known", "scontrol", _known),
    "past": Kind("slurmkit_tui.submit.past:Past", "sacct", _past),
    "steps": Kind(Steps, "sacct", lambda asker, *ids: read_step_uses(asker.slurm, ids)),
    "uses": Kind(Uses, "sacct", lambda asker: read_uses(asker.slurm, asker.me)),
    "piece": Kind(Piece, "file", _piece),
}


def answer(asker: Asker, ask: Ask) -> Answer:
    """Ask a cluster.

    Raises:
        SlurmkitError: when it does not answer.
    """
    kind = KINDS[ask.what]
    taken, began = time.time(), time.perf_counter()
    value = kind.read(asker, *ask.about)
    return Answer(
        value,
        getattr(value, "source", kind.source),
        getattr(value, "taken", taken),
        getattr(value, "seconds", time.perf_counter() - began),
    )
