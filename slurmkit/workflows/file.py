"""A workflow from a TOML file: `[defaults]`, and `[jobs.NAME]` with the keys of a job file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurmkit.config import nearest
from slurmkit.errors import BadInput
from slurmkit.jobfile import job_fields, read_job_file, read_script, read_toml
from slurmkit.options import merged
from slurmkit.spec import JobSpec
from slurmkit.workflows.model import Workflow

Table = dict[str, Any]

_KEYS = ("name", "defaults", "jobs")
_OWN = ("after", "job-file", "script-file")
# Of each of these a job gives one; what its file or the defaults give gives way.
_ONE_OF = (("command", "script"), ("mem", "mem_per_cpu", "mem_per_gpu"))


def read_workflow(path: Path, folder: Path | None = None) -> Workflow:
    """Read a workflow file; it is data only: nothing in it is run.

    Args:
        path: the file; files that it names stand beside it.
        folder: where jobs start that do not say; the current directory by default.

    Raises:
        BadInput: naming the file, the job, the key and the nearest valid one.
    """
    found = read_toml(path)
    try:
        return _workflow(found, path, folder or Path.cwd())
    except BadInput as error:
        words = str(error)
        raise BadInput(words if words.startswith(str(path)) else f"{path}: {words}") from error


def _workflow(found: Table, path: Path, folder: Path) -> Workflow:
    for key in found:
        if key not in _KEYS:
            raise BadInput(f"no key {key!r}; {nearest(key, list(_KEYS))}; a job is [jobs.{key}]")
    defaults = _decoded("defaults", _table("defaults", found.get("defaults", {})), path.parent)
    listed = _table("jobs", found.get("jobs", {}))
    jobs = {name: _table(f"jobs.{name}", job) for name, job in listed.items()}
    return Workflow(
        name=found.get("name", path.stem),
        jobs={name: _job(name, job, defaults, path, folder) for name, job in jobs.items()},
        after={name: _after(name, job["after"]) for name, job in jobs.items() if "after" in job},
    )


def _table(key: str, value: object) -> Table:
    if not isinstance(value, dict):
        raise BadInput(f"{key} is a table: [{key}] on a line of its own")
    return value


def _after(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadInput(f'jobs.{name}: after is a list of names, e.g. ["prepare", "train:any"]')
    return tuple(value)


def _job(name: str, job: Table, defaults: Table, path: Path, folder: Path) -> JobSpec:
    where = f"jobs.{name}"
    fields = dict(defaults)
    if (script := _beside(where, job, "script-file", path)) is not None:
        fields = _over(fields, read_script(script))
    if (job_file := _beside(where, job, "job-file", path)) is not None:
        fields = _over(fields, read_job_file(job_file))
    own = {key: value for key, value in job.items() if key not in _OWN}
    fields = _over(fields, _decoded(where, own, path.parent))
    try:
        fields["chdir"] = str(folder / (fields.get("chdir") or ""))
        return JobSpec(**fields)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error


def _beside(where: str, job: Table, key: str, path: Path) -> Path | None:
    name = job.get(key)
    if name is not None and not isinstance(name, str):
        raise BadInput(f"{where}: {key} is the path of a file, in quotes")
    return None if name is None else path.parent / name


def _decoded(where: str, table: Table, beside: Path) -> Table:
    """Fields of a JobSpec; a working directory may be relative to that of the workflow."""
    rest = {key: value for key, value in table.items() if key != "chdir"}
    try:
        fields = job_fields(rest, beside)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error
    if not isinstance(table.get("chdir", ""), str):
        raise BadInput(f"{where}: chdir is the path of a directory, in quotes")
    return fields | ({"chdir": table["chdir"]} if "chdir" in table else {})


def _over(weaker: Table, stronger: Table) -> Table:
    """What two places say together; of some fields only one may be given."""
    gone = {n for names in _ONE_OF if any(each in stronger for each in names) for n in names}
    return merged({name: v for name, v in weaker.items() if name not in gone}, stronger)
