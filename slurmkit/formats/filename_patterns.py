"""Filename patterns in output paths (`%j`), expanded without Slurm.

squeue and sacct print the pattern as the user gave it. Releases and commands differ in what they
can expand, and sacct has no option for it before 24.05.
"""

from __future__ import annotations

import re
from typing import NamedTuple

RANK_MARK = ".rank"

_NO_TASK = "4294967294"  # Slurm writes this for %a outside an array
_PATTERN = re.compile(r"%(?P<width>[1-9]\d?)?(?P<letter>[%AabjJNntsux])")


class PatternValues(NamedTuple):
    """The values of the patterns of sbatch(1), "filename pattern".

    Attributes:
        first_node: node of the batch script, or of a step on one node; None when unknown.
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


def _pad(value: str, width: str | None) -> str:
    return value.zfill(int(width)) if width and value.isdigit() else value
