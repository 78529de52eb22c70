"""The batch script: the same spec, kind and layout give the same bytes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec

from slurmkit.capabilities.nodes import folded, node_names
from slurmkit.machine import HERE
from slurmkit.options import option_values
from slurmkit.planning.chunks import Chunk
from slurmkit.planning.kinds import Kind
from slurmkit.planning.layout import Layout
from slurmkit.planning.secrets import secret_variables
from slurmkit.planning.tasks import lines as task_lines
from slurmkit.secretfiles import FORGETTING, FORGETTING_SCRIPT, reading
from slurmkit.spec import JobSpec
from slurmkit.survive.lines import kept_apart, read_first, started_script
from slurmkit.text import printable
from slurmkit.valueforms import check_text

Options = tuple[tuple[str, str], ...]


class Submission(msgspec.Struct, frozen=True):
    """One batch job as Slurm gets it.

    Attributes:
        script: the whole batch script; its `#SBATCH` lines say the same as `options`.
        options: sbatch's long options without dashes, and their values, in order; the value of
            a flag is empty.
        after: positions in the plan of the submissions this one waits for.
        order: how it waits for them, as in Slurm's `--dependency`: `afterok` or `afterany`.
        part: which tasks of the plan's array it holds, where Slurm knows only a part of it or
            counts them otherwise, and of every sweep.
    """

    script: str
    options: Options
    after: tuple[int, ...] = ()
    order: str = "afterok"
    part: Chunk | None = None


def submission(
    spec: JobSpec,
    made: tuple[Kind | None, Layout],
    lines: tuple[str, ...],
    chunk: Chunk | None = None,
    survival: tuple[str, ...] = (),
) -> Submission:
    """Write the script of a job.

    Args:
        spec: the job.
        made: the GPUs meant, and the layout.
        lines: what starts its command; of a whole script none.
        chunk: the tasks of its array that this is for; None without an array.
        survival: what stands before all else in a job that survives; see `slurmkit.survive.lines`.

    Raises:
        BadInput: when an option would break out of its line.
    """
    options = _options(spec, *made) | ({"array": chunk.array} if chunk else {})
    interpreter, body = _body(spec, lines)
    first = (*_variables(spec), *task_lines(spec, chunk))
    last = FORGETTING if not _is_as_given(spec) and secret_variables(spec) else ()
    lines = (*first, *([""] if first else []), *body, *last)
    text = "\n".join([*survival, *(read_first(lines) if survival else lines)])
    options |= {"ignore-pbs": ""} if has_foreign_options(text) else {}
    for name, value in options.items():
        check_text(f"--{name}", value)
    header = option_lines(options.items())
    script = "\n".join([interpreter, *header, "", text])
    return Submission(f"{script}\n", tuple(options.items()))


def _variables(spec: JobSpec) -> tuple[str, ...]:
    """What exports the job's variables: secrets are read from a file."""
    kept = secret_variables(spec)
    plain = ((name, value) for name, value in spec.environment.items() if name not in kept)
    exports = tuple(f"export {name}={shlex.quote(value)}" for name, value in plain)
    trap = FORGETTING_SCRIPT if _is_as_given(spec) else ()
    return (*exports, *reading(kept), *trap) if kept else exports


def option_lines(options: Iterable[tuple[str, str]]) -> list[str]:
    """The `#SBATCH` lines of options and their values."""
    return [f"#SBATCH --{name}{_value(value)}" for name, value in options]


def has_foreign_options(text: str) -> bool:
    """Whether sbatch would take lines of a script for options of PBS or LSF, over those given."""
    return any(line.startswith(("#PBS", "#BSUB")) for line in text.split("\n"))


def _options(spec: JobSpec, kind: Kind | None, layout: Layout) -> dict[str, str]:
    """Options in a fixed order; the working directory is explicit for every transport."""
    found = option_values(spec)
    place: dict[str, object] = {
        "job-name": found.pop("job-name", None) or _name(spec),
        "nodes": spec.nodes if layout.most else layout.nodes,
        "ntasks": layout.ntasks,
        "ntasks-per-node": _tasks_per_node(spec, layout),
        "cpus-per-task": _cpus_per_task(spec, layout),
        **_gpu_options(spec, kind, layout),
        "gpu-bind": spec.gpus.bind if spec.gpus and _starts_itself(spec) else None,
    }
    if kind is not None:
        place["constraint"] = _both(spec.constraint, kind.constraint)
        place["exclude"] = _without(spec.exclude, kind.exclude)
    late = {
        "chdir": found.pop("chdir", None) or HERE.folder,
        "output": found.pop("output", None) or _output(spec),
    }
    rest = {name: value for name, value in found.items() if name not in place}
    merged = place | rest | late
    return {name: str(value) for name, value in merged.items() if value is not None}


def _starts_itself(spec: JobSpec) -> bool:
    """Whether any srun is the job's own, which takes from the job what is not on its line."""
    return spec.script is not None or spec.launch.launcher == "none"


def _tasks_per_node(spec: JobSpec, layout: Layout) -> int | None:
    """Said even where it is 1, but a script's own steps would be bound by that."""
    default = spec.script is None and not layout.ntasks and "ntasks-per-gpu" not in spec.options
    return layout.ntasks_per_node or (1 if default else None)


def _cpus_per_task(spec: JobSpec, layout: Layout) -> int | None:
    """Said even where it is 1, but in a script it would keep a step to so many CPUs."""
    elsewhere = "cpus-per-gpu" in spec.options or "cpu" in spec.options.get("tres-per-task", "")
    return spec.cpus_per_task if spec.script is not None or elsewhere else layout.cpus_per_task


def _gpu_options(spec: JobSpec, kind: Kind | None, layout: Layout) -> dict[str, str | None]:
    if kind is None:
        return {}
    prefix = f"{kind.type}:" if kind.type else ""
    if kind.units:
        parts = [f"{kind.gres}:{kind.units}", spec.gres or ""]
        return {"gres": ",".join(filter(None, parts))}
    if layout.gpus_in_all:
        return {"gpus": f"{prefix}{layout.gpus_in_all}"}
    return {"gpus-per-node": f"{prefix}{layout.gpus}"}


def _both(constraint: str | None, feature: str | None) -> str | None:
    if not constraint or not feature:
        return constraint or feature
    plain = "|" in constraint and "[" not in constraint  # brackets may not stand in parentheses
    return f"{feature}&({constraint})" if plain else f"{feature}&{constraint}"


def _without(exclude: str | None, more: tuple[str, ...]) -> str | None:
    return folded([*node_names(exclude), *more]) if more else exclude


def _name(spec: JobSpec) -> str:
    return printable(PurePosixPath(spec.command[0]).name if spec.command else "") or "job"


def _output(spec: JobSpec) -> str:
    return "slurm-%A_%a.out" if spec.array else "slurm-%j.out"


def _body(spec: JobSpec, lines: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The line of the interpreter, and what follows the options."""
    if spec.script is None:
        return "#!/bin/bash", kept_apart(lines) if spec.survive else lines
    if spec.survive:
        return "#!/bin/bash", kept_apart(started_script(spec.script))
    first, _, rest = spec.script.partition("\n")
    return first, tuple(rest.rstrip("\n").split("\n"))


def _is_as_given(spec: JobSpec) -> bool:
    """Whether a script of the user's is the batch script itself."""
    return spec.script is not None and not spec.survive


def step_options(spec: JobSpec) -> tuple[str, ...]:
    """Options of the job's step whatever starts it; all else it takes from the job.

    Without `--export` it would leave out what the script exports where the job has none.
    """
    given = ["--export=ALL"] if spec.options.get("export", "ALL") != "ALL" else []
    if spec.gpus is not None and spec.gpus.bind:
        given.append(f"--gpu-bind={spec.gpus.bind}")
    given += ["--label"] if spec.launch.label else []
    return tuple(given)


def _value(value: str) -> str:
    return f"={_sbatch_quote(value)}" if value else ""


def _sbatch_quote(value: str) -> str:
    """Quote a value for a `#SBATCH` line, whose words sbatch splits itself (src/sbatch/opt.c)."""
    if value and all(char.isalnum() or char in "%+,-./:=@_" for char in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
