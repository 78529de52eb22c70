"""Workflows: named jobs, what each waits for, and the workflow file that describes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import msgspec

from slurmkit.config.files import did_you_mean
from slurmkit.errors import BadInput
from slurmkit.spec.jobfile import load_job_file, load_script, load_toml, parse_job_table
from slurmkit.spec.jobspec import EXCLUSIVE_FIELDS, JobSpec
from slurmkit.spec.sbatch_options import merge_fields

KINDS = {
    "ok": "afterok",
    "any": "afterany",
    "notok": "afternotok",
    "corr": "aftercorr",
    "start": "after",
    "burstbuffer": "afterburstbuffer",
}
"""Slurm's word for each kind of dependency (sbatch(1) --dependency)."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}", re.ASCII)
_AFTER = re.compile(r"(?P<name>[^:]+)(:(?P<kind>[a-z]+)(\+(?P<minutes>\d{1,6}))?)?", re.ASCII)
Table = dict[str, Any]
_KEYS = ("name", "defaults", "jobs")
_OWN = ("after", "job-file", "script-file")
# A job has one of each group; its own value replaces that of its file or of the defaults.
_ONE_OF = (("command", "script"), *EXCLUSIVE_FIELDS)


class Edge(msgspec.Struct, frozen=True):
    """A dependency on another job of the workflow.

    Attributes:
        name: name of the job to wait for.
        kind: a key of `KINDS`.
        minutes: minutes to wait after its start; 0 for any kind but `start`.
    """

    name: str
    kind: str = "ok"
    minutes: int = 0

    def __str__(self) -> str:
        """Return the form of a workflow file: `train`, `train:any`, `train:start+5`."""
        more = f"+{self.minutes}" if self.minutes else ""
        return self.name if self.kind == "ok" else f"{self.name}:{self.kind}{more}"

    @classmethod
    def parse(cls, text: str) -> Edge:
        """Parse `NAME`, `NAME:KIND` or `NAME:start+MINUTES`.

        Raises:
            BadInput: for any other form, and an unknown kind.
        """
        match = _AFTER.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise BadInput(f"after {text!r} is not NAME, NAME:KIND or NAME:start+MINUTES")
        kind, minutes = match["kind"] or "ok", int(match["minutes"] or 0)
        if kind not in KINDS:
            raise BadInput(f"after {text!r}: no kind {kind!r}; {did_you_mean(kind, list(KINDS))}")
        if match["minutes"] and kind != "start":
            raise BadInput(
                f"after {text!r}: Slurm counts minutes only from the start of a job; write :start+"
            )
        return cls(match["name"], kind, minutes)


class Workflow(msgspec.Struct, frozen=True):
    """Named jobs, and what each waits for.

        Workflow(
            "pipeline",
            {"prepare": prepare, "train": train, "report": report},
            after={"train": ["prepare"], "report": ["train:any"]},
        )

    Attributes:
        name: name of the workflow.
        jobs: the jobs by name; the name is also the default `job_name`.
        after: what each job waits for: `NAME` (must complete), or `NAME:KIND` with a key of
            `KINDS`.

    Raises:
        BadInput: for an invalid or unknown name, and when jobs wait in a circle.
    """

    name: str
    jobs: Mapping[str, JobSpec]
    after: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (self.name, *self.jobs):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise BadInput(
                    f"{name!r} is not a valid name; use letters and digits, and inside also _ . -"
                )
        if not self.jobs:
            raise BadInput(f"workflow {self.name} has no jobs; write each as a table [jobs.NAME]")
        self._check_names()
        self.order()

    def _check_names(self) -> None:
        known = list(self.jobs)
        for name in self.after:
            if name not in self.jobs:
                raise BadInput(f"after: no job {name!r}; {did_you_mean(name, known)}")
        for name in known:
            for edge in self.edges(name):
                if edge.name == name:
                    raise BadInput(f"job {name} waits for itself; remove {name} from its after")
                if edge.name not in self.jobs:
                    others = [each for each in known if each != name]
                    hint = did_you_mean(edge.name, others) if others else "there is no other job"
                    raise BadInput(
                        f"job {name} waits for {edge.name!r}, which is not a job; {hint}"
                    )

    def edges(self, name: str) -> tuple[Edge, ...]:
        """Parse what a job waits for, without duplicates.

        Raises:
            BadInput: for a dependency that cannot be parsed.
        """
        given = self.after.get(name, ())
        if isinstance(given, str):
            raise BadInput(f"after of job {name} must be a list of names, not one text: {given!r}")
        return tuple(dict.fromkeys(map(Edge.parse, given)))

    def known(self, name: str) -> str:
        """Return a name after checking that it is one of the jobs.

        Raises:
            BadInput: when it is not.
        """
        if name not in self.jobs:
            raise BadInput(f"no job {name!r} in {self.name}; {did_you_mean(name, list(self.jobs))}")
        return name

    def order(self) -> tuple[str, ...]:
        """Return the names in topological order, otherwise in the given order.

        Raises:
            BadInput: naming the circle, when jobs wait for each other.
        """
        graph = {name: [edge.name for edge in self.edges(name)] for name in self.jobs}
        try:
            return _topological_order(graph)
        except CycleError as error:
            circle = " -> ".join(reversed(error.args[1]))
            raise BadInput(
                f"the jobs wait for each other in a circle: {circle}; remove one of these"
                " dependencies"
            ) from error

    def spec(self, name: str) -> JobSpec:
        """Return the spec of a job, with its name as the default `job_name`."""
        spec = self.jobs[name]
        return spec if spec.job_name else msgspec.structs.replace(spec, job_name=name)


def _topological_order(graph: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Sort names topologically; names that are ready together keep the given order."""
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    positions = {name: position for position, name in enumerate(graph)}
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=positions.__getitem__)
        order += ready
        sorter.done(*ready)
    return tuple(order)


def load_workflow(path: Path, folder: Path | None = None) -> Workflow:
    """Load a workflow file. It is data only: nothing in it is run.

    Args:
        path: the file; paths in it are relative to its folder.
        folder: default working directory of the jobs; the current directory by default.

    Raises:
        BadInput: naming the file, the job, the key and the nearest valid one.
    """
    table = load_toml(path)
    try:
        return _parse_workflow(table, path, folder or Path.cwd())
    except BadInput as error:
        words = str(error)
        raise BadInput(words if words.startswith(str(path)) else f"{path}: {words}") from error


def _parse_workflow(table: Table, path: Path, folder: Path) -> Workflow:
    for key in table:
        if key == "command":
            raise BadInput(
                "no key 'command'; for a workflow it is in [jobs.NAME]; for one job:"
                f" slurmkit submit --job-file {path}"
            )
        if key not in _KEYS:
            raise BadInput(
                f"no key {key!r}; {did_you_mean(key, list(_KEYS))}; a job is [jobs.{key}]"
            )
    default_table = _check_table("defaults", table.get("defaults", {}))
    defaults = _parse_fields("defaults", default_table, path.parent)
    listed = _check_table("jobs", table.get("jobs", {}))
    jobs = {name: _check_table(f"jobs.{name}", job) for name, job in listed.items()}
    return Workflow(
        name=table.get("name", path.stem),
        jobs={name: _parse_job(name, job, defaults, path, folder) for name, job in jobs.items()},
        after={
            name: _parse_after(name, job["after"]) for name, job in jobs.items() if "after" in job
        },
    )


def _check_table(key: str, value: object) -> Table:
    if not isinstance(value, dict):
        raise BadInput(f"{key} must be a table: write [{key}] on a line of its own")
    return value


def _parse_after(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadInput(f'jobs.{name}: after must be a list of names, e.g. ["prepare", "train:any"]')
    return tuple(value)


def _parse_job(name: str, job: Table, defaults: Table, path: Path, folder: Path) -> JobSpec:
    """Merge the defaults, the job's files and its own keys into a JobSpec."""
    where = f"jobs.{name}"
    fields = dict(defaults)
    if (script := _file_path(where, job, "script-file", path)) is not None:
        fields = _merge(fields, load_script(script))
    if (job_file := _file_path(where, job, "job-file", path)) is not None:
        fields = _merge(fields, load_job_file(job_file))
    own = {key: value for key, value in job.items() if key not in _OWN}
    fields = _merge(fields, _parse_fields(where, own, path.parent))
    try:
        fields["chdir"] = str(folder / (fields.get("chdir") or ""))
        return JobSpec(**fields)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error


def _file_path(where: str, job: Table, key: str, path: Path) -> Path | None:
    """Return the path of a file that a job names, relative to the workflow file."""
    name = job.get(key)
    if name is not None and not isinstance(name, str):
        raise BadInput(f"{where}: {key} must be the path of a file, in quotes")
    return None if name is None else path.parent / name


def _parse_fields(where: str, table: Table, base: Path) -> Table:
    """Parse fields of a JobSpec; unlike in a job file, `chdir` may be relative."""
    rest = {key: value for key, value in table.items() if key != "chdir"}
    try:
        fields = parse_job_table(rest, base)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error
    if not isinstance(table.get("chdir", ""), str):
        raise BadInput(f"{where}: chdir must be the path of a directory, in quotes")
    return fields | ({"chdir": table["chdir"]} if "chdir" in table else {})


def _merge(weaker: Table, stronger: Table) -> Table:
    """Merge fields of two sources; a field of a `_ONE_OF` group replaces the whole group."""
    replaced = {n for names in _ONE_OF if any(each in stronger for each in names) for n in names}
    return merge_fields({name: v for name, v in weaker.items() if name not in replaced}, stronger)
