"""Write Slurm's pending reasons into docs/reasons.md, with the words of `slurmkit why`.

.venv/bin/python docs/reasons.py
"""

from __future__ import annotations

from pathlib import Path

from slurmkit.jobs.pending_reasons import TEXT_BY_NAME, explain_reason

PAGE = Path(__file__).with_name("reasons.md")
MARK = "<!-- What follows is made from slurmkit/jobs/pending_reasons.py, by docs/reasons.py. -->\n"
_FREE_TEXTS = (
    "ReqNodeNotAvail, UnavailableNodes:c1",
    "ReqNodeNotAvail, May be reserved for other job",
    "ReqNodeNotAvail, Reserved for maintenance",
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
    "launch failed requeued held",
    "launch failure limit exceeded requeued held",
    "user env retrieval failed requeued held",
    "job requeued in held state",
    "job requeued in special exit state",
)
# Slurm has some 150 of these names; all are made in the same way.
_LIMITS = (
    "AssocGrpGRES", "AssocGrpGRESMinutes", "AssocGrpGRESRunMinutes", "AssocGrpCpuLimit",
    "AssocGrpCPUMinutesLimit", "AssocGrpMemLimit", "AssocGrpNodeLimit", "AssocGrpBillingMinutes",
    "AssocGrpJobsLimit", "AssocGrpSubmitJobsLimit", "AssocMaxJobsLimit", "AssocMaxSubmitJobLimit",
    "AssocMaxGRESPerJob", "AssocMaxWallDurationPerJobLimit", "QOSGrpGRES", "QOSGrpCpuLimit",
    "QOSGrpJobsLimit", "QOSGrpNodeLimit", "QOSMaxGRESPerUser", "QOSMaxCpuPerUserLimit",
    "QOSMaxMemoryPerUser", "QOSMaxNodePerUserLimit", "QOSMaxJobsPerUserLimit",
    "QOSMaxSubmitJobPerUserLimit", "QOSMaxGRESPerAccount", "QOSMaxJobsPerAccountLimit",
    "QOSMaxGRESPerJob", "QOSMaxWallDurationPerJobLimit", "QOSMinGRES",
)  # fmt: skip


def page() -> str:
    """Return the text of the page."""
    head = PAGE.read_text("utf-8").partition(MARK)[0]
    tables = {
        "Reasons with a name": sorted(TEXT_BY_NAME),
        "Reasons that are a sentence": _FREE_TEXTS,
        "Limits": _LIMITS,
    }
    return head + MARK + "".join(_table(title, names) for title, names in tables.items())


def _table(title: str, names: list[str] | tuple[str, ...]) -> str:
    return (
        f"\n## {title}\n\n| reason | it means | who can change it | what to do |\n"
        f"|---|---|---|---|\n{''.join(map(_row, names))}"
    )


def _row(reason: str) -> str:
    words = explain_reason(reason, "JOB")
    cells = (f"`{reason}`", words.meaning, words.who, words.advice)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
