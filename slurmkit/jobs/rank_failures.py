"""Find the rank that failed first in the end of a job's log."""

from __future__ import annotations

import re

import msgspec

from slurmkit.jobs.run_history import RUN_BEGINS

_SHOWN = 5  # last lines of the failed rank
_LABEL = r"(?: *\d+: )?"  # prefix of srun --label, padded to the width of the largest rank
# The torchrun agent of each node prints the failures of its node; the earliest is the root cause.
_TORCH = re.compile(
    rf"Root Cause \(first observed failure\):\n{_LABEL}\[\d+\]:\n"
    rf"{_LABEL}\s+time +: (?P<time>\S+)\n"
    rf"{_LABEL}\s+host +: (?P<node>\S+)\n"
    rf"{_LABEL}\s+rank +: (?P<rank>\d+)[^\n]*\n"
    rf"{_LABEL}\s+exitcode +: (?P<code>-?\d+)"
)
_SRUN = re.compile(
    r"^srun: error: (?P<node>[\w.\-\[\],]+): tasks? (?P<rank>[\d,\-]+): (?P<how>.+)$", re.M
)
_CODE = re.compile(r"Exited with exit code (\d+)")
# srun ends the other ranks with SIGTERM once one has failed.
_ENDED_FOR_ANOTHER = re.compile(r"Terminated|Exited with exit code 143\b")
# The end of a requeued run, in a log to which the next run appends. Lines of slurmstepd begin with
# its name, since 26.05 with the time in brackets.
_RUN_OVER = re.compile(
    r"^(?:(?:slurmstepd\S*:|\[\S+\]) error: \*\*\* JOB \d+ ON \S+ CANCELLED .* DUE TO .*"
    rf"|{RUN_BEGINS}.*)$",
    re.M,
)


class RankFailure(msgspec.Struct, frozen=True):
    """The rank that failed first.

    Attributes:
        rank: its number among all ranks.
        node: the node it ran on.
        how: `exit code 7`, `signal 9`, or srun's message.
        lines: its last lines, if the log marks lines by rank; not escaped.
    """

    rank: int
    node: str
    how: str
    lines: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int | None:
        """Exit code; None if a signal ended the rank."""
        code = self.how.removeprefix("exit code ")
        return int(code) if code.isdecimal() else None

    @property
    def message(self) -> str:
        """Message such as `rank 3 on gpu07 failed first (signal 9)`."""
        return f"rank {self.rank} on {self.node} failed first ({self.how})"


def first_failure(log: str) -> RankFailure | None:
    """Find the first failure in the last run's part of a log; None if the log does not tell."""
    log = log[max((run.end() for run in _RUN_OVER.finditer(log)), default=0) :]
    return _torchrun_failure(log) or _srun_failure(log)


def _torchrun_failure(log: str) -> RankFailure | None:
    """Return the earliest root cause that torchrun's agents printed."""
    root_cause = min(_TORCH.finditer(log), key=lambda match: match["time"], default=None)
    if root_cause is None:
        return None
    rank, code = int(root_cause["rank"]), int(root_cause["code"])
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    # The label of srun is the number of the agent, not of the rank.
    lines = _last_lines_of(rf"{_LABEL}\[rank{rank}\]:\s?", log)
    return RankFailure(rank, root_cause["node"], how, lines)


def _srun_failure(log: str) -> RankFailure | None:
    """Return the first rank that srun reports.

    None if several ranks ended together, or if rank 0 is the only one: its exit code says all.
    """
    ended = list(_SRUN.finditer(log))
    first = next((each for each in ended if not _ENDED_FOR_ANOTHER.match(each["how"])), None)
    if first is None or not first["rank"].isdecimal() or (first["rank"], len(ended)) == ("0", 1):
        return None
    rank, exited = int(first["rank"]), _CODE.match(first["how"])
    how = f"exit code {exited[1]}" if exited else first["how"].strip()
    lines = _last_lines_of(rf" *{rank}: |\[rank{rank}\]:\s?", log)
    return RankFailure(rank, first["node"], how, lines)


def with_log_lines(failure: RankFailure, log: str) -> RankFailure:
    """Return the failure with its last lines, taken from the end of the rank's own file."""
    lines = (re.sub(r"^\[rank\d+\]:\s?", "", line).rstrip() for line in log.split("\n"))
    return msgspec.structs.replace(failure, lines=tuple(filter(None, lines))[-_SHOWN:])


def _last_lines_of(marks: str, log: str) -> tuple[str, ...]:
    """Return the last lines with a rank's mark, set by srun --label or by torch."""
    mark = re.compile(rf"(?:{marks})(?P<text>.*\S)")
    matches = (mark.match(line) for line in log.split("\n"))
    return tuple(match["text"] for match in matches if match)[-_SHOWN:]
