"""Slurm's job states: the short code squeue knows each by, and the style it is shown in."""

from __future__ import annotations

# squeue(1), JOB STATE CODES.
_CODES = {
    "BOOT_FAIL": "BF",
    "CANCELLED": "CA",
    "COMPLETED": "CD",
    "COMPLETING": "CG",
    "CONFIGURING": "CF",
    "DEADLINE": "DL",
    "FAILED": "F",
    "NODE_FAIL": "NF",
    "OUT_OF_MEMORY": "OOM",
    "PENDING": "PD",
    "PREEMPTED": "PR",
    "REQUEUED": "RQ",
    "REQUEUE_FED": "RF",
    "REQUEUE_HOLD": "RH",
    "RESIZING": "RS",
    "RESV_DEL_HOLD": "RD",
    "REVOKED": "RV",
    "RUNNING": "R",
    "SIGNALING": "SI",
    "SPECIAL_EXIT": "SE",
    "STAGE_OUT": "SO",
    "STOPPED": "ST",
    "SUSPENDED": "S",
    "TIMEOUT": "TO",
}
_STYLES = {
    "RUNNING": "state--running",
    "PENDING": "state--waiting",
    "COMPLETING": "state--moving",
    "CONFIGURING": "state--moving",
    "RESIZING": "state--moving",
    "SIGNALING": "state--moving",
    "STAGE_OUT": "state--moving",
    "SUSPENDED": "state--halted",
    "STOPPED": "state--halted",
    "COMPLETED": "state--done",
}
STYLES = frozenset({*_STYLES.values(), "state--bad"})


def code(state: str) -> str:
    """Slurm's one to three letters for a state; a state we do not know is itself."""
    return _CODES.get(state, state)


def style(state: str) -> str:
    """The style class of a state; one we do not know is shown like a failure, to be seen."""
    return _STYLES.get(state, "state--bad")
