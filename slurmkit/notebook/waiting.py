"""Wait until the server of a job answers, and tell meanwhile what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from slurmkit.errors import NotOver, SlurmError, SlurmkitError
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.job import Job
from slurmkit.notebook.state import Server, read_server
from slurmkit.why.explain import explain
from slurmkit.why.reasons import in_words

PATIENCE = 180.0
"""Seconds that a server may take to answer, once its job runs."""
_NOT_YET = ("", "None", "Prolog")


def wait_for_server(
    job: Job, folder: Path, notice: Callable[[str], None], patience: float = PATIENCE
) -> Server:
    """Block until the server of `job` answers HTTP, and return where.

    Args:
        job: what was submitted.
        folder: where servers leave word.
        notice: told in words why the job waits, and that it runs.
        patience: seconds to wait for an answer once it runs.

    Raises:
        SlurmkitError: when the job ends first.
        NotOver: when nothing answers in that time; the job goes on.
    """
    told, since = "", None
    with job.cluster.poller.watch([job.id]) as watch:
        for known in watch.changes(every=1.0):
            one = known[job.id]
            if one.error is not None:
                raise one.error
            runs = one.info is not None and one.info.state == "RUNNING"
            server = read_server(folder, job.id) if runs else None  # not that of a run before
            if server is not None and answers(server):
                return server
            words = _words(job, one.info, told)
            if words != told:
                notice(words)
                told = words
            since = (since or time.monotonic()) if runs else None
            if since and time.monotonic() - since > patience:
                raise NotOver(_silent(job, server, patience))
    outcome = job.outcome()
    raise SlurmkitError(f"no notebook: job {job.id} {outcome.words}; see: slurmkit log {job.id}")


def answers(server: Server) -> bool:
    """Whether anything speaks HTTP there; the token is not sent."""
    line = HTTPConnection(server.node, server.port, timeout=5)
    try:
        line.request("GET", "/api")
        line.getresponse()
    except (OSError, HTTPException):
        return False
    finally:
        line.close()
    return True


def _words(job: Job, info: JobInfo | None, told: str) -> str:
    """What there is to say now; that said last where it is nothing new."""
    if info is None or info.is_over or (info.state == "PENDING" and info.reason in _NOT_YET):
        return told
    if info.state != "PENDING":
        return f"job {job.id} runs on {info.node_list}; waiting for Jupyter to answer"
    meaning = in_words(info.reason, job.id).meaning
    return told if meaning in told else _why(job, meaning)


def _why(job: Job, meaning: str) -> str:
    """Why it waits, when it may start, and its place in the queue, as far as is known."""
    try:
        told = explain(job.cluster, job.id, alternatives=False)
    except SlurmError:
        return f"job {job.id} waits: {meaning}"
    ranks = told.waiting.ranks if told.waiting else ()
    places = [f"; place {r.place} of {r.waiting} in partition {r.partition}" for r in ranks]
    return told.answer + "".join(places)


def _silent(job: Job, server: Server | None, patience: float) -> str:
    where = f"at {server.address}" if server else "or left word"
    return (
        f"job {job.id} runs, but no server has answered {where} within {patience:g} s of it; see:"
        f" slurmkit log {job.id}, then slurmkit jupyter show {job.id}"
    )
