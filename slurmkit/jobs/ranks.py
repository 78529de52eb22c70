"""Which of a job's processes failed first, as its log says."""

from __future__ import annotations

import re

import msgspec

from slurmkit.survive.history import RUN_BEGINS

_SHOWN = 5  # lines
_LABEL = r"(?: *\d+: )?"  # of srun --label, whose numbers are as wide as the largest
# torchrun's agents each sum up the failures of their node, the earliest as root cause.
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
_ENDED_FOR_ANOTHER = re.compile(r"Terminated|Exited with exit code 143\b")  # by srun: SIGTERM
# A run that was requeued, in a log that the next one goes on with. Lines of slurmstepd begin with
# its name, since 26.05 with the time in brackets.
_RUN_OVER = re.compile(
    r"^(?:(?:slurmstepd\S*:|\[\S+\]) error: \*\*\* JOB \d+ ON \S+ CANCELLED .* DUE TO .*"
    rf"|{RUN_BEGINS}.*)$",
    re.M,
)


class RankFailure(msgspec.Struct, frozen=True):
    """The process that failed first.

    Attributes:
        rank: its number among all.
        node: where it ran.
        how: `exit code 7`, `signal 9`, or srun's words.
        lines: its last lines, where the log tells whose they are; not escaped.
    """

    rank: int
    node: str
    how: str
    lines: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None where a signal ended it."""
        code = self.how.removeprefix("exit code ")
        return int(code) if code.isdecimal() else None

    @property
    def words(self) -> str:
        """All but its lines, in a few words."""
        return f"rank {self.rank} on {self.node} failed first ({self.how})"


def first_failure(log: str) -> RankFailure | None:
    """Find it in the end of a log, in what the last run wrote; None where the log does not say."""
    log = log[max((run.end() for run in _RUN_OVER.finditer(log)), default=0) :]
    return _by_torch(log) or _by_srun(log)


def _by_torch(log: str) -> RankFailure | None:
    found = min(_TORCH.finditer(log), key=lambda found: found["time"], default=None)
    if found is None:
        return None
    rank, code = int(found["rank"]), int(found["code"])
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    # What srun puts before a line is the agent's number.
    lines = _matching(rf"{_LABEL}\[rank{rank}\]:\s?", log)
    return RankFailure(rank, found["node"], how, lines)


def _by_srun(log: str) -> RankFailure | None:
    """Of several that ended together none is the first; of one alone its exit code says all."""
    ended = list(_SRUN.finditer(log))
    found = next((each for each in ended if not _ENDED_FOR_ANOTHER.match(each["how"])), None)
    if found is None or not found["rank"].isdecimal() or (found["rank"], len(ended)) == ("0", 1):
        return None
    rank, exited = int(found["rank"]), _CODE.match(found["how"])
    how = f"exit code {exited[1]}" if exited else found["how"].strip()
    lines = _matching(rf" *{rank}: |\[rank{rank}\]:\s?", log)
    return RankFailure(rank, found["node"], how, lines)


def of_its_own(failure: RankFailure, log: str) -> RankFailure:
    """The failure with its last lines from the end of the file of its rank."""
    lines = (re.sub(r"^\[rank\d+\]:\s?", "", line).rstrip() for line in log.split("\n"))
    return msgspec.structs.replace(failure, lines=tuple(filter(None, lines))[-_SHOWN:])


def _matching(marks: str, log: str) -> tuple[str, ...]:
    """The last lines that say whose they are: by srun --label, or by torch itself."""
    mark = re.compile(rf"(?:{marks})(?P<text>.*\S)")
    found = (mark.match(line) for line in log.split("\n"))
    return tuple(each["text"] for each in found if each)[-_SHOWN:]
