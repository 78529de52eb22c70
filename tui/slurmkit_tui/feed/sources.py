"""Who answers the views' questions, in words for the screen before the first answer."""

from __future__ import annotations

SOURCES = {
    "queue": "squeue",
    "mine": "squeue",
    "gpus": "scontrol",
    "nodes": "scontrol",
    "fairshare": "sshare",
    "utilization": "ledger",
    "usage": "ledger",
    "health": "doctor",
}
