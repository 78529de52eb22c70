"""Notices of a person's own jobs: that they have started, failed, ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.progress import Known
from slurmkit.text import printable
from slurmkit_accounting.notify.config import Event, NotifySection
from slurmkit_accounting.plugins import Notice

KIND = "job"


class News:
    """Makes a notice of each thing that happens to jobs, once; the section says which."""

    def __init__(self, section: NotifySection, cluster: str) -> None:
        self._section = section
        self._cluster = cluster
        self._told: set[tuple[str, Event]] = set()
        self._names: dict[str, str] = {}

    def of(self, known: Mapping[str, Known]) -> Iterator[Notice]:
        """Notices of what is new since the last call."""
        for job_id, one in known.items():
            if one.info is None:
                continue
            # slurmdbd calls a job of which it has heard nothing but the end "allocation".
            self._names.setdefault(job_id, one.info.name)
            event = _event(one.info, over=one.over)
            if event and (job_id, event) not in self._told:
                self._told.add((job_id, event))
                if self._wants(event):
                    yield self._notice(job_id, event, one.info)

    def _wants(self, event: Event) -> bool:
        # Who wants to know of every end wants to know of a bad one.
        return event in self._section.jobs or (event == "fail" and "end" in self._section.jobs)

    def _notice(self, job_id: str, event: Event, info: JobInfo) -> Notice:
        word = {"start": "started", "fail": f"ended as {info.state}", "end": "completed"}[event]
        name, where = printable(self._names[job_id]), printable(self._cluster)
        text = (
            f"Job {job_id} ({name}) on {where} {word}.\n"
            f"partition {printable(info.partition)}, nodes {printable(info.node_list) or '?'},"
            f" run time {info.elapsed or '?'}\n"
        )
        return Notice(
            kind=KIND,
            identity=f"{self._cluster}/{job_id}/{info.submitted}/{event}",
            to=(self._section.to,) if self._section.to else (),
            subject=f"job {job_id} ({name}) {word}",
            text=text,
            facts={"event": event, "cluster": self._cluster} | msgspec.to_builtins(info),
        )


def _event(info: JobInfo, *, over: bool) -> Event | None:
    if over:
        return "end" if info.state == "COMPLETED" else "fail"
    return "start" if info.state == "RUNNING" else None
