"""Which of a job's processes failed first, as its log says."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_SHOWN = 5  # lines
# torchrun's agents each sum up the failures of their node, the earliest as root cause.
_TORCH = re.compile(
    r"Root Cause \(first observed failure\):\n(?:\d+: )?\[\d+\]:\n"
    r"(?:\d+: )?\s+time +: (?P<time>\S+)\n"
    r"(?:\d+: )?\s+host +: (?P<node>\S+)\n"
    r"(?:\d+: )?\s+rank +: (?P<rank>\d+)[^\n]*\n"
    r"(?:\d+: )?\s+exitcode +: (?P<code>-?\d+)"
)
_SRUN = re.compile(r"^srun: error: (?P<node>[\w.\-]+): task (?P<rank>\d+): (?P<how>.+)$", re.M)
_ENDED = re.compile(r"^srun: error: [\w.\-\[\],]+: tasks? [\d,\-]+: ", re.M)
_CODE = re.compile(r"Exited with exit code (\d+)")


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
    def words(self) -> str:
        """All but its lines, in a few words."""
        return f"rank {self.rank} on {self.node} failed first ({self.how})"


def first_failure(log: str) -> RankFailure | None:
    """Find it in the end of a log; None where the log does not say."""
    by_torch = min(_TORCH.finditer(log), key=lambda found: found["time"], default=None)
    if by_torch:
        code = int(by_torch["code"])
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        found = by_torch
    elif (by_srun := _SRUN.search(log)) and _are_many(by_srun, log):
        exited = _CODE.match(by_srun["how"])
        how = f"exit code {exited[1]}" if exited else by_srun["how"].strip()
        found = by_srun
    else:
        return None
    rank = int(found["rank"])
    return RankFailure(rank, found["node"], how, tuple(_of(rank, log))[-_SHOWN:])


def _are_many(first: re.Match[str], log: str) -> bool:
    """Whether there are other processes: of one alone its exit code says all."""
    return int(first["rank"]) > 0 or len(_ENDED.findall(log)) > 1


def _of(rank: int, log: str) -> Iterator[str]:
    """Lines that say whose they are: by srun --label, by torchrun --tee, or by torch itself."""
    mark = re.compile(rf"^(?:{rank}: |\[(?:rank|default)?{rank}\]:\s?)(?P<text>.*\S)")
    return (found["text"] for line in log.split("\n") if (found := mark.match(line)))
