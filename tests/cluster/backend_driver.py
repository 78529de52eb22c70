"""Runs on the login node: one call to a backend, asked for and answered as JSON.

python backend_driver.py '{"backend": "commands", "call": "hold", "job_id": "12"}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from slurmkit.cluster.cluster import Cluster
from slurmkit.config.plugins import load_plugin
from slurmkit.errors import SlurmkitError
from slurmkit.jobs.backends import pyslurm
from slurmkit.jobs.backends.commands import SubmitOverrides
from slurmkit.jobs.backends.protocol import Backend
from slurmkit.slurm.commands import LocalSlurmCommands, SlurmCommands
from slurmkit.spec.submission import Submission
from slurmkit.state.queue import QueueFilter


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        pyslurm.SENT.clear()
        try:
            backend = made(asked.pop("backend"))
            answer: Any = {"value": call(backend, asked.pop("call"), asked)}
        except SlurmkitError as error:
            answer = told(error)
        print(json.dumps(answer | {"ways": [*pyslurm.SENT]}), flush=True)


def made(name: str) -> Backend:
    if name == "commands over SSH":
        return Cluster("lab").backend
    make: Callable[[SlurmCommands], Backend] = load_plugin("backends", name)  # type: ignore[assignment]
    return make(LocalSlurmCommands())


def call(backend: Backend, name: str, given: dict[str, Any]) -> object:
    if name == "submit":
        made = msgspec.convert(given.pop("submission"), Submission)
        return backend.submit(made, msgspec.convert(given, SubmitOverrides))
    if name == "queue":
        queue = backend.queue(msgspec.convert(given, QueueFilter))
        return msgspec.to_builtins(queue.rows)
    if name == "cancel":
        failed = backend.cancel(given.pop("job_ids"), **given)
        return {job_id: told(error) for job_id, error in failed.items()}
    return getattr(backend, name)(**given)


def told(error: SlurmkitError) -> dict[str, str]:
    return {"error": type(error).__name__, "words": str(error)}


if __name__ == "__main__":
    main()
