"""All questions the TUI asks: who answers each, and the type of the answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.my_jobs import MyJobs, read_my_ended, read_my_jobs, read_my_queue
from slurmkit.diagnose.model import Explanation
from slurmkit.errors import SlurmError
from slurmkit.jobs.exit_codes import settle_step_codes
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.log import FilePiece, LogFile, read_piece
from slurmkit.jobs.lookup import read_batch_script
from slurmkit.jobs.run_history import RunRecord
from slurmkit.jobs.steps import StepsSnapshot, UserEfficiency, read_step_uses, read_user_efficiency
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.machine import machine_of
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.capabilities import SlurmConfig, read_slurm_config
from slurmkit.state.gpumap import read_gpus
from slurmkit.state.gpumap_model import GpuMap
from slurmkit.state.nodes import NodesSnapshot, read_nodes
from slurmkit.state.queue import Queue, read_queue
from slurmkit_tui.feed import SOURCE_NAMES, FeedAnswer, FeedQuestion
from slurmkit_tui.feed.composed import (
    ClusterHealth,
    FairshareAnswer,
    LedgerUsage,
    Utilization,
    read_ended_gpus,
    read_fairshare,
    read_gpus_now,
    read_gpus_of_job,
    read_health,
    read_usage,
    read_utilization,
)
from slurmkit_tui.feed.knowledge import ClusterData
from slurmkit_tui.feed.rights import Rights, read_rights
from slurmkit_tui.feed.threads import SlurmInTurns
from slurmkit_tui.jobform.gpu_use import GpusNow, GpusOfJob
from slurmkit_tui.jobform.past_jobs import read_past_job

if TYPE_CHECKING:
    from slurmkit.planning.planner import Plan
    from slurmkit_tui.jobform.past_jobs import PastJob


class QuestionKind(NamedTuple):
    """A kind of question.

    Attributes:
        type: type of the answer, or `module:name` of a type that is imported only when needed.
        source: name of the command or daemon that answers.
        read: function that asks a cluster.
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


class ClusterReader(NamedTuple):
    """A cluster, and the login name of the person who asks it."""

    cluster: Cluster
    me: str

    @property
    def slurm(self) -> SlurmCommands:
        """The cluster's Slurm commands; only one thread at a time parses a long output."""
        return SlurmInTurns(self.cluster.slurm)


def _read_site(asker: ClusterReader) -> SlurmConfig:
    try:
        return read_slurm_config(asker.slurm)
    except SlurmError:  # the rest of the screen does not need it
        return SlurmConfig()


def _read_mine(asker: ClusterReader, part: str = "") -> MyJobs:
    """Read all about my jobs, or only the part `queue` or `ended`, each with one command."""
    read = {"queue": read_my_queue, "ended": read_my_ended}.get(part, read_my_jobs)
    return read(asker.slurm, asker.me)


def _read_job(asker: ClusterReader, job_id: str) -> JobInfo:
    return asker.cluster.job(job_id).info()


def _load_restarts(asker: ClusterReader, job_id: str) -> tuple[RunRecord, ...]:
    """Read the run history from the shared home directory, without a Slurm command."""
    return asker.cluster.job(job_id).restarts()


def _explain(asker: ClusterReader, job_id: str) -> Explanation:
    from slurmkit.diagnose.explain import explain  # noqa: PLC0415 - much of the library, seldom used

    return explain(asker.cluster, job_id, probe=True)


def _read_steps(asker: ClusterReader, *ids: str) -> StepsSnapshot:
    """Read the steps of jobs; those of one job with whole exit codes."""
    answer = read_step_uses(asker.slurm, ids)
    if len(ids) > 1:  # `sacct --json` prints much about each step
        return answer
    codes = {row.step_id: row.exit_code for row in answer.rows if not row.is_allocation}
    codes = settle_step_codes(asker.slurm, ids[0], codes)
    rows = [
        msgspec.structs.replace(row, exit_code=codes.get(row.step_id, row.exit_code))
        for row in answer.rows
    ]
    return msgspec.structs.replace(answer, rows=tuple(rows))


def _read_script(asker: ClusterReader, job_id: str) -> str:
    return read_batch_script(asker.slurm, job_id)


def _read_log_path(asker: ClusterReader, job_id: str, which: str) -> str:
    return asker.cluster.job(job_id).log_path(LogFile(stderr=which == "stderr")) or ""


def _read_log_piece(asker: ClusterReader, path: str, begin: str, length: str) -> FilePiece:
    return read_piece(path, int(begin), int(length), machine_of(asker.slurm))


def _plan(asker: ClusterReader, spec: str) -> Plan:
    """Plan a job; `spec` is a JobSpec as JSON."""
    # Much of the library, for the form alone.
    from slurmkit.planning.planner import plan, with_past_waits  # noqa: PLC0415

    planned = plan(msgspec.json.decode(spec, type=JobSpec), asker.cluster)
    return with_past_waits(planned, asker.cluster)


def _read_cluster_data(asker: ClusterReader, age: str = "") -> ClusterData:
    """Return capabilities and associations: cached ones, or new ones if `age` is `now`."""
    return ClusterData(asker.cluster.capabilities(refresh=age == "now"), asker.cluster.standing())


def _read_past_job(asker: ClusterReader, job_id: str) -> PastJob:
    return read_past_job(asker.cluster, job_id)


QUESTION_KINDS = {
    "rights": QuestionKind(Rights, "sacctmgr", lambda asker: read_rights(asker.slurm, asker.me)),
    "site": QuestionKind(SlurmConfig, "scontrol", _read_site),
    "queue": QuestionKind(Queue, SOURCE_NAMES["queue"], lambda asker: read_queue(asker.slurm)),
    "mine": QuestionKind(MyJobs, SOURCE_NAMES["mine"], _read_mine),
    "gpus": QuestionKind(GpuMap, SOURCE_NAMES["gpus"], lambda asker: read_gpus(asker.slurm)),
    "nodes": QuestionKind(
        NodesSnapshot, SOURCE_NAMES["nodes"], lambda asker: read_nodes(asker.slurm)
    ),
    "fairshare": QuestionKind(
        FairshareAnswer,
        SOURCE_NAMES["fairshare"],
        lambda asker: read_fairshare(asker.cluster, asker.me),
    ),
    "utilization": QuestionKind(
        Utilization,
        SOURCE_NAMES["utilization"],
        lambda asker, *about: read_utilization(asker.cluster, *about),
    ),
    "usage": QuestionKind(LedgerUsage, SOURCE_NAMES["usage"], lambda _asker: read_usage()),
    "health": QuestionKind(
        ClusterHealth, SOURCE_NAMES["health"], lambda asker: read_health(asker.cluster)
    ),
    "job": QuestionKind(JobInfo, "squeue", _read_job),
    "restarts": QuestionKind(tuple[RunRecord, ...], "file", _load_restarts),
    "why": QuestionKind(Explanation, "squeue", _explain),
    "script": QuestionKind(str, "scontrol", _read_script),
    "logpath": QuestionKind(str, "squeue", _read_log_path),
    "plan": QuestionKind("slurmkit.planning.planner:Plan", "slurmctld", _plan),
    "known": QuestionKind(
        "slurmkit_tui.feed.knowledge:ClusterData", "scontrol", _read_cluster_data
    ),
    "past": QuestionKind("slurmkit_tui.jobform.past_jobs:PastJob", "sacct", _read_past_job),
    "steps": QuestionKind(StepsSnapshot, "sacct", _read_steps),
    "uses": QuestionKind(
        UserEfficiency, "sacct", lambda asker: read_user_efficiency(asker.slurm, asker.me)
    ),
    "gpus-now": QuestionKind(GpusNow, "ledger", lambda _asker: read_gpus_now()),
    "gpus-ended": QuestionKind(
        GpusOfJob, "ledger", lambda _asker, job_ids: read_ended_gpus(job_ids)
    ),
    "gpus-of-job": QuestionKind(
        GpusOfJob, "ledger", lambda _asker, job_id: read_gpus_of_job(job_id)
    ),
    "piece": QuestionKind(FilePiece, "file", _read_log_piece),
}


def read_answer(asker: ClusterReader, ask: FeedQuestion) -> FeedAnswer:
    """Ask a cluster one question.

    Raises:
        SlurmkitError: when there is no answer.
    """
    kind = QUESTION_KINDS[ask.what]
    taken, began = time.time(), time.perf_counter()
    value = kind.read(asker, *ask.about)
    return FeedAnswer(
        value,
        getattr(value, "source", kind.source),
        getattr(value, "taken", taken),
        getattr(value, "seconds", time.perf_counter() - began),
    )
