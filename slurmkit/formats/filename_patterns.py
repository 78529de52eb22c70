"""Filename patterns in output paths (`%j`), expanded without Slurm.

squeue and sacct print the pattern as the user gave it. Releases and commands differ in what they
can expand, and sacct has no option for it before 24.05.
"""

from __future__ import annotations

import re
from typing import NamedTuple

RANK_MARK = ".rank"

_NO_TASK = "4294967294"  # Slurm writes this for %a outside an array
_MOST_WIDTH = 10
# slurmd reads the width with strtoul: zeros before it count for nothing.
_PATTERN = re.compile(r"%(?P<width>\d+)?(?P<letter>[%AabjJNntsux])", re.ASCII)
_RESTARTS = re.compile(r"%%|%\d*(?P<letter>[rS])", re.ASCII)


class PatternValues(NamedTuple):
    """The values of the patterns of sbatch(1), "filename pattern".

    Attributes:
        first_node: node of the batch script, or of a step on one node; None when unknown. Before
            25.11 slurmd writes the node's host name, which is the same on most clusters.
        rank: of a process of step 0, for the patterns of srun(1); None for the batch script.
    """

    job_id: str
    raw_id: str
    name: str
    user: str
    first_node: str | None
    rank: int | None = None


def expand_pattern(pattern: str, facts: PatternValues) -> str | None:
    """Expand an output path; return None while it depends on a node that is not known."""
    if "\\" in pattern:  # a backslash turns all patterns off and is itself dropped
        return pattern.replace("\\", "")
    array, _, task = facts.job_id.partition("_")
    batch = facts.rank is None
    values = {
        "%": "%",
        "A": array,
        "a": task or _NO_TASK,
        "b": str(int(task or _NO_TASK) % 10) if (task or "0").isdigit() else "",
        "j": facts.raw_id,
        "J": facts.raw_id if batch else f"{facts.raw_id}.0",
        "N": facts.first_node,
        "n": "0" if batch else None,
        "t": "0" if batch else str(facts.rank),
        "s": "batch" if batch else "0",
        "u": facts.user,
        "x": facts.name,
    }
    used = {match["letter"] for match in _PATTERN.finditer(pattern)}
    if any(values[letter] is None for letter in used):
        return None
    return _PATTERN.sub(lambda match: _pad(str(values[match["letter"]]), match["width"]), pattern)


def depends_on_restarts(pattern: str) -> bool:
    """Tell whether a path has `%r` or `%S`: patterns since `LOG_NAMES_RESTARTS_SINCE` only.

    squeue of such a release prints a path with these filled in; accounting does not keep them.
    """
    return "\\" not in pattern and any(match["letter"] for match in _RESTARTS.finditer(pattern))


def _pad(value: str, width: str | None) -> str:
    return value.zfill(min(int(width), _MOST_WIDTH)) if width and value.isdigit() else value
