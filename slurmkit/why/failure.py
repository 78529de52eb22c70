"""Why a job that ended has ended so, with what its log says."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from slurmkit.errors import LogUnavailable, SlurmError
from slurmkit.jobs.ids import one_of
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.logpaths import LogFile
from slurmkit.jobs.outcome import NO_OUTPUT, Outcome
from slurmkit.jobs.ranks import RankFailure
from slurmkit.machine import Machine, machine_of
from slurmkit.queue.rows import record_mark
from slurmkit.slurm import Slurm
from slurmkit.why import ends, words
from slurmkit.why.aftermath import aftermath
from slurmkit.why.logs import Reading, read_log
from slurmkit.why.model import Ended, Explanation, FailedStep

if TYPE_CHECKING:
    from slurmkit.cluster import Cluster
    from slurmkit.jobs.job import Job

_STEP_FIELDS = ("JobID", "State", "ExitCode", "NodeList", "JobName")
_FINE = ("COMPLETED", "RUNNING", "PENDING")


def explain_end(cluster: Cluster, job_id: str) -> Explanation:
    """Say how a job ended.

    Raises:
        NoSuchJob: when neither slurmctld nor slurmdbd knows it.
        DatabaseDown: when only slurmdbd could know it and does not answer.
    """
    job = cluster.job(job_id)
    info, outcome = job.info(), job.outcome()
    if len(info.tally) > 1 or sum(info.tally.values()) > 1:
        job = cluster.job(worst_part(info, outcome))
        info, outcome = job.info(), job.outcome()
    log, trouble, reading = _log(job, info, outcome)
    outcome = _as_the_log_says(outcome, reading)
    means, advice = _means(outcome)
    # What Slurm itself ended says so in its log: that is no news.
    told = reading.is_cause or outcome.kind == "failed"
    details = [
        *([means] if means else []),
        *reading.tasks,
        *_last_of(outcome.first_failure),
        *aftermath(cluster.slurm, info, outcome),
    ]
    ended = Ended(
        kind=outcome.kind,
        meaning=outcome.words,
        advice=advice,
        details=tuple(details),
        exit_code=info.exit_code,
        ended=info.ended,
        steps=tuple(_steps(cluster.slurm, info.job_id)) if outcome.kind != "completed" else (),
        first_error=reading.first_error if told else None,
        error_means=reading.means if told else "",
        log=log,
        log_trouble=trouble,
        last_lines=reading.last,
    )
    return Explanation(
        job_id=info.job_id,
        name=info.name,
        user=info.user,
        account=info.account,
        partition=info.partition,
        state=info.state,
        answer=_answer(info, outcome, reading),
        ended=ended,
        source=info.source,
        taken=time.time(),
    )


def _last_of(failed: RankFailure | None) -> Iterator[str]:
    if failed and failed.lines:
        yield f"the last of rank {failed.rank}: {failed.lines[-1]}"


def worst_part(info: JobInfo, outcome: Outcome) -> str:
    """Of an array or het job the part that the outcome is about: its words name it."""
    _, _, rest = outcome.words.partition("; ")
    named = rest.partition(":")[0]
    return one_of(named) if named.startswith(info.job_id) else info.job_id


def _answer(info: JobInfo, outcome: Outcome, reading: Reading) -> str:
    when = f", {words.moment(info.ended, time.time())}" if info.ended else ""
    said = f"job {info.job_id} {outcome.words}{when}"
    tells = outcome.kind == "failed" and reading.first_error is not None
    return f"{said}: {reading.first_error.text}" if tells and reading.first_error else said


def _as_the_log_says(outcome: Outcome, reading: Reading) -> Outcome:
    """Where memory is watched by polling, sacct may say that the user killed the step."""
    if outcome.kind != "failed" or outcome.signal != signal.SIGKILL or not reading.over_memory:
        return outcome
    said = "out of memory: a step used more than its limit and was killed, by the step's message"
    when = outcome.words.partition(", after ")[2]
    return msgspec.structs.replace(
        outcome, kind="out_of_memory", words=f"{said}, after {when}" if when else said
    )


def _means(outcome: Outcome) -> tuple[str, str]:
    if outcome.kind == "completed":
        return "", ""
    if outcome.kind != "failed":
        return "", ends.ADVICE.get(outcome.kind, "")
    if outcome.first_failure is not None:
        code = outcome.first_failure.exit_code
        return ends.of_code(code) if code else ("", "")
    if outcome.signal is not None:
        return ends.of_signal(outcome.signal)
    return ends.of_code(outcome.exit_code) if outcome.exit_code else ("", "")


def _steps(slurm: Slurm, job_id: str) -> Iterator[FailedStep]:
    """The steps of the last run that did not end well."""
    mark = record_mark()
    fields = ",".join(_STEP_FIELDS)
    argv = ["sacct", "--noheader", "--parsable", f"--delimiter={mark}", f"--jobs={job_id}"]
    try:
        text = slurm.run([*argv, f"--format={fields}"])
    except SlurmError:
        return
    yield from parse_steps(text, mark)


def parse_steps(text: str, mark: str) -> Iterator[FailedStep]:
    """Read sacct's answer; what has a dot in its id is a step."""
    parts = text.split(mark)
    size = len(_STEP_FIELDS)
    for at in range(0, len(parts) - size, size):
        step_id, state, code, nodes, name = parts[at : at + size]
        if "." in step_id and not state.startswith(_FINE):
            step_id = step_id.strip()
            yield FailedStep(step_id=step_id, name=name, state=state, exit_code=code, nodes=nodes)


def _log(job: Job, info: JobInfo, outcome: Outcome) -> tuple[str | None, str, Reading]:
    """Path of the log that tells most, why it could not be read, and what it says."""
    paths: list[str] = []
    for which in (LogFile(stderr=True), LogFile()):
        try:
            path = job.log_path(which)
        except (LogUnavailable, SlurmError) as error:
            return None, str(error), Reading()
        paths += [path] if path and path not in paths else []
    if info.started is None:
        return None, "it never started, so it wrote nothing", Reading()
    if outcome.signal == NO_OUTPUT:
        return paths[0] if paths else None, "it could not be opened, so nothing was kept", Reading()
    return _best(paths, machine_of(job.cluster.slurm))


def _best(paths: list[str], on: Machine) -> tuple[str | None, str, Reading]:
    """Standard error where it says something, else standard output."""
    trouble = "Slurm does not say where its log is"
    for path in paths:
        try:
            reading = read_log(path, on)
        except OSError as error:
            trouble = f"{path}: {error.strerror}, as seen from here"
            continue
        trouble = ""
        if reading.last or path == paths[-1]:
            return path, "", reading
    return (paths[0] if paths else None), trouble, Reading()
