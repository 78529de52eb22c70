"""A workflow as its user means it: named jobs and what each waits for; frozen, without any I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import msgspec

from slurmkit.config import nearest
from slurmkit.errors import BadInput
from slurmkit.spec import JobSpec

KINDS = {
    "ok": "afterok",
    "any": "afterany",
    "notok": "afternotok",
    "corr": "aftercorr",
    "start": "after",
    "burstbuffer": "afterburstbuffer",
}
"""How a job waits for another, to Slurm's word for it (sbatch(1) --dependency)."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}", re.ASCII)
_AFTER = re.compile(r"(?P<name>[^:]+)(:(?P<kind>[a-z]+)(\+(?P<minutes>\d{1,6}))?)?", re.ASCII)


class Edge(msgspec.Struct, frozen=True):
    """That a job waits for another one of its workflow.

    Attributes:
        name: of the job waited for.
        kind: a key of `KINDS`.
        minutes: to wait after its start; 0 for any other kind.
    """

    name: str
    kind: str = "ok"
    minutes: int = 0

    def __str__(self) -> str:
        """As it stands in a file: `train`, `train:any`, `train:start+5`."""
        more = f"+{self.minutes}" if self.minutes else ""
        return self.name if self.kind == "ok" else f"{self.name}:{self.kind}{more}"

    @classmethod
    def parse(cls, text: str) -> Edge:
        """Read `NAME`, `NAME:KIND` or `NAME:start+MINUTES`.

        Raises:
            BadInput: for any other form, and an unknown kind.
        """
        match = _AFTER.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise BadInput(f"after {text!r} is not NAME, NAME:KIND or NAME:start+MINUTES")
        kind, minutes = match["kind"] or "ok", int(match["minutes"] or 0)
        if kind not in KINDS:
            raise BadInput(f"after {text!r}: no kind {kind!r}; {nearest(kind, list(KINDS))}")
        if match["minutes"] and kind != "start":
            raise BadInput(f"after {text!r}: Slurm counts minutes from a start only; write :start+")
        return cls(match["name"], kind, minutes)


class Workflow(msgspec.Struct, frozen=True):
    """Named jobs, and what each waits for.

        Workflow(
            "pipeline",
            {"prepare": prepare, "train": train, "report": report},
            after={"train": ["prepare"], "report": ["train:any"]},
        )

    Attributes:
        name: of the whole.
        jobs: each job by its name; one without a `job_name` gets that.
        after: for each job, all that it waits for: `NAME` that must end well, or `NAME:KIND`, a
            key of `KINDS`.

    Raises:
        BadInput: for a name that cannot be one, one that is unknown, and for a circle.
    """

    name: str
    jobs: Mapping[str, JobSpec]
    after: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (self.name, *self.jobs):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise BadInput(f"{name!r} is no name; letters, digits, and inside also _ . -")
        if not self.jobs:
            raise BadInput(f"workflow {self.name} has no jobs; each is a table [jobs.NAME]")
        self._check_names()
        self.order()

    def _check_names(self) -> None:
        known = list(self.jobs)
        for name in self.after:
            if name not in self.jobs:
                raise BadInput(f"after: no job {name!r}; {nearest(name, known)}")
        for name in known:
            for edge in self.edges(name):
                if edge.name == name:
                    raise BadInput(f"job {name} waits for itself; take it out of its after")
                if edge.name not in self.jobs:
                    others = [each for each in known if each != name]
                    hint = nearest(edge.name, others) if others else "there is no other job"
                    raise BadInput(f"job {name} waits for {edge.name!r}, which is no job; {hint}")

    def edges(self, name: str) -> tuple[Edge, ...]:
        """What a job waits for, each once.

        Raises:
            BadInput: for one that cannot be read.
        """
        given = self.after.get(name, ())
        if isinstance(given, str):
            raise BadInput(f"after of job {name} is a list of names, not one text: {given!r}")
        return tuple(dict.fromkeys(map(Edge.parse, given)))

    def known(self, name: str) -> str:
        """A name that is one of its jobs.

        Raises:
            BadInput: when it is none.
        """
        if name not in self.jobs:
            raise BadInput(f"no job {name!r} in {self.name}; {nearest(name, list(self.jobs))}")
        return name

    def order(self) -> tuple[str, ...]:
        """Names so that each job stands after those it waits for, else as they were given.

        Raises:
            BadInput: naming the circle, when jobs wait for each other.
        """
        graph = {name: [edge.name for edge in self.edges(name)] for name in self.jobs}
        try:
            return _in_order(graph)
        except CycleError as error:
            circle = " -> ".join(reversed(error.args[1]))
            raise BadInput(f"jobs wait in a circle, each for the next: {circle}") from error

    def spec(self, name: str) -> JobSpec:
        """The job of that name, as it is planned."""
        spec = self.jobs[name]
        return spec if spec.job_name else msgspec.structs.replace(spec, job_name=name)


def _in_order(graph: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Of those that are ready, the first given goes first."""
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    places = {name: at for at, name in enumerate(graph)}
    found: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=places.__getitem__)
        found += ready
        sorter.done(*ready)
    return tuple(found)
