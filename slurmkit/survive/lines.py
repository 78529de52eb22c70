"""The lines of a batch script that keep a job alive; the shell beside this is put in as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from slurmkit.spec import JobSpec
from slurmkit.survive.model import ENDINGS, mebibytes

_INSIDE = tuple(Path(__file__).with_name(f"{name}.sh") for name in ("turns", "slurm", "course"))
_MARK = "SLURMKIT_SCRIPT"
SURVIVES = "slurmkit_survive"
"""The line of a script that starts the work of a job that survives."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take inside, in seconds; the defaults are right but in tests.

    Attributes:
        kill_wait: from SIGTERM to SIGKILL (KillWait).
        pause: between two looks while something is awaited.
        tick: between two looks at whose turn it is; a lease is renewed each third.
        lease: after which a run that does not renew its lease is taken for dead.
        fence: after which a run pauses that reaches neither the home nor slurmctld; looking
            for both may take 25 s, and it is to have paused before its lease is over.
        patience: for which a slurmctld that does not answer is asked to requeue.
        margin: before the end that Slurm has set, in which the job must be back in the queue.
        slack: after the end of its grace in which Slurm ends a preempted job.
        short: a run that lasted less waits for its next start.
    """

    kill_wait: int = 30
    pause: float = 1
    tick: float = 5
    lease: int = 60
    fence: int = 30
    patience: int = 3600
    margin: int = 5
    slack: int = 120
    short: int = 600


def survival(spec: JobSpec, preempt_mode: str, pace: Pace) -> tuple[str, ...]:
    """Lines that stand first in a script; none for a job without any policy.

    Args:
        spec: the job.
        preempt_mode: what Slurm does with this job once it is preempted, e.g. `requeue`.
        pace: how long things take.
    """
    policy = spec.survive
    if not policy:
        return ()
    actions = {f"on_{name.replace('-', '_')}": policy.action(name) or "" for name in ENDINGS}
    values: dict[str, object] = {
        **actions,
        "restarts": policy.max_restarts,
        "delay": policy.restart_delay,
        "signal": policy.checkpoint_signal or "",
        "grace": policy.grace,
        "most": mebibytes(policy.oom_max_mem or "0"),
        "preempt": preempt_mode,
        **msgspec.structs.asdict(pace),
        "beats": 3,
    }
    given = " ".join(f"slurmkit_{name}={shlex.quote(str(value))}" for name, value in values.items())
    inside = "\n".join(path.read_text("utf-8") for path in _INSIDE).rstrip("\n").split("\n")
    kept = (line for line in inside if not line.lstrip().startswith("# shellcheck"))
    return (given, *kept, "")


def kept_apart(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines that start a job's work, as what the shell around them waits for."""
    return ("slurmkit_work() {", *lines, "}", SURVIVES)


def read_first(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines as one that bash reads to its end before it runs it, hearing signals from then."""
    return ("{", "slurmkit_listen", *lines, "exit", "}")


def started_script(script: str) -> tuple[str, ...]:
    """Lines that run a whole script by its own interpreter, as a child of the batch shell."""
    first, _, _ = script.partition("\n")
    interpreter, _, argument = first.removeprefix("#!").strip().partition(" ")
    words = [interpreter, *([argument.strip()] if argument.strip() else []), "/dev/fd/9"]
    text = script.rstrip("\n").split("\n")
    mark = _MARK
    while mark in text:
        mark += "_"
    return (f"{shlex.join(words)} 9<<'{mark}'", *text, mark)
