"""The batch script: the same spec, GPUs and layout give the same bytes."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from slurmkit.formats.display import printable
from slurmkit.formats.scontrol import expand_nodes, fold_nodes
from slurmkit.planning.arrays import array_task_lines
from slurmkit.planning.gpu_request import ResolvedGpus
from slurmkit.planning.layout import Layout, implied_tasks
from slurmkit.planning.request import JobShape
from slurmkit.planning.secrets import FORGET_LINES, FORGET_TRAP, secret_lines, secret_variables
from slurmkit.planning.survival import as_one_block, as_work_function, run_script_lines
from slurmkit.slurm.machine import LOCAL_MACHINE
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.option_values import check_text
from slurmkit.spec.sbatch_options import has_foreign_options, option_lines, option_values
from slurmkit.spec.submission import Chunk, Submission


def write_submission(
    spec: JobSpec,
    shape: JobShape,
    lines: tuple[str, ...],
    chunk: Chunk | None = None,
    survival: tuple[str, ...] = (),
) -> Submission:
    """Write the script of a job, and its sbatch options.

    Args:
        spec: the job.
        shape: the GPUs meant, and the layout.
        lines: lines that start its command; empty for a whole script.
        chunk: the tasks of its array in this submission; None without an array.
        survival: first lines of a job that survives; see `slurmkit.planning.survival`.

    Raises:
        BadInput: when an option would break out of its line.
    """
    options = _options(spec, *shape) | ({"array": chunk.array} if chunk else {})
    interpreter, body = _body(spec, lines)
    first = (*_variables(spec), *(array_task_lines(spec, chunk) if chunk else ()))
    forgets = secret_variables(spec) and not _runs_once(spec) and not _is_unchanged_script(spec)
    last = FORGET_LINES if forgets else ()
    lines = (*first, *([""] if first else []), *body, *last)
    text = "\n".join([*survival, *(as_one_block(lines) if survival else lines)])
    options |= {"ignore-pbs": ""} if has_foreign_options(text) else {}
    for name, value in options.items():
        check_text(f"--{name}", value)
    header = option_lines(options.items())
    script = "\n".join([interpreter, *header, "", text])
    return Submission(f"{script}\n", tuple(options.items()))


def _variables(spec: JobSpec) -> tuple[str, ...]:
    """Return lines that export the job's variables; secrets are read from a file."""
    secret = secret_variables(spec)
    plain = ((name, value) for name, value in spec.environment.items() if name not in secret)
    exports = tuple(f"export {name}={shlex.quote(value)}" for name, value in plain)
    once = _runs_once(spec)
    trap = FORGET_TRAP if _is_unchanged_script(spec) and not once else ()
    return (*exports, *secret_lines(secret, once=once), *trap) if secret else exports


def _runs_once(spec: JobSpec) -> bool:
    """Return whether the batch script never starts again: Slurm refuses to requeue the job."""
    return spec.requeue is False and spec.array is None and not spec.survive


def _nodes_option(spec: JobSpec, layout: Layout) -> int | str | None:
    """Return the number of nodes, or their range with the least that slurmctld raises it to."""
    nodes, most = layout.nodes, layout.most
    if most is None or nodes is None:
        return nodes
    if nodes <= (spec.least_nodes or 1) or "," in str(spec.nodes):
        return spec.nodes
    return f"{nodes}-{most}"


def _options(spec: JobSpec, kind: ResolvedGpus | None, layout: Layout) -> dict[str, str]:
    """Return the options in a fixed order; the working directory is always explicit."""
    values = option_values(spec)
    program = PurePosixPath(spec.command[0]).name if spec.command else ""
    place: dict[str, object] = {
        "job-name": values.pop("job-name", None) or printable(program) or "job",
        "nodes": _nodes_option(spec, layout),
        "ntasks": spec.ntasks if _slurm_counts_tasks(spec) else layout.ntasks,
        "ntasks-per-node": _tasks_per_node(spec, layout),
        # Of a command the layout has these tasks, and the step their GPUs.
        "ntasks-per-gpu": None if spec.script is None else spec.ntasks_per_gpu,
        "cpus-per-task": _cpus_per_task(spec, layout),
        **_gpu_options(spec, kind, layout),
        "gpu-bind": spec.gpus.bind if spec.gpus and _runs_own_srun(spec) else None,
    }
    if kind is not None:
        place["constraint"] = _both(spec.constraint, kind.constraint)
        more = kind.exclude
        place["exclude"] = (
            fold_nodes([*expand_nodes(spec.exclude), *more]) if more else spec.exclude
        )
    output = "slurm-%A_%a.out" if spec.array else "slurm-%j.out"
    late = {
        "chdir": values.pop("chdir", None) or LOCAL_MACHINE.folder,
        "output": values.pop("output", None) or output,
    }
    rest = {name: value for name, value in values.items() if name not in place}
    merged = place | rest | late
    return {name: str(value) for name, value in merged.items() if value is not None}


def _runs_own_srun(spec: JobSpec) -> bool:
    """Return whether the job runs srun itself, so that srun takes its options from the job."""
    return spec.script is not None or spec.launch.launcher == "none"


def _tasks_per_node(spec: JobSpec, layout: Layout) -> int | None:
    """Return `--ntasks-per-node`, even if 1; but not for a script, whose steps it would bind."""
    if _slurm_counts_tasks(spec):
        return None
    return layout.ntasks_per_node or (1 if spec.script is None and not layout.ntasks else None)


def _slurm_counts_tasks(spec: JobSpec) -> bool:
    """Return whether sbatch computes the tasks of a whole script from GPUs, sockets or cores."""
    return spec.script is not None and bool(spec.ntasks_per_gpu or implied_tasks(spec))


def _cpus_per_task(spec: JobSpec, layout: Layout) -> int | None:
    """Return `--cpus-per-task`, even if 1; but not for a script, whose steps it would bind.

    With it slurmctld starts only one task on a node of a job with `--overcommit`
    (`overcommitted_cpus` in slurmkit/planning/checks/nodes.py).
    """
    elsewhere = spec.cpus_per_gpu or "cpu" in spec.options.get("tres-per-task", "")
    elsewhere = elsewhere or (spec.cpus_per_task is None and layout.least_cpus)  # DefCpuPerGPU
    elsewhere = elsewhere or spec.overcommit
    return spec.cpus_per_task if spec.script is not None or elsewhere else layout.cpus_per_task


def _gpu_options(spec: JobSpec, kind: ResolvedGpus | None, layout: Layout) -> dict[str, str | None]:
    if kind is None:
        return {}
    prefix = f"{kind.type}:" if kind.type else ""
    if kind.units:
        parts = [f"{kind.gres}:{kind.units}", spec.gres or ""]
        return {"gres": ",".join(filter(None, parts))}
    if layout.gpus_in_all:
        return {"gpus": f"{prefix}{layout.gpus_in_all}"}
    if spec.gpus is not None and spec.gpus.sockets:
        return {"gpus-per-socket": f"{prefix}{layout.gpus // spec.gpus.sockets}"}
    return {"gpus-per-node": f"{prefix}{layout.gpus}"}


def _both(constraint: str | None, feature: str | None) -> str | None:
    if not constraint or not feature:
        return constraint or feature
    plain = "|" in constraint and "[" not in constraint  # brackets may not stand in parentheses
    return f"{feature}&({constraint})" if plain else f"{feature}&{constraint}"


def _body(spec: JobSpec, lines: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the line of the interpreter, and the lines after the options."""
    if spec.script is None:
        return "#!/bin/bash", as_work_function(lines) if spec.survive else lines
    if spec.survive:
        return "#!/bin/bash", as_work_function(run_script_lines(spec.script))
    first, _, rest = spec.script.partition("\n")
    return first, tuple(rest.rstrip("\n").split("\n"))


def _is_unchanged_script(spec: JobSpec) -> bool:
    """Return whether the user's script is the batch script itself."""
    return spec.script is not None and not spec.survive


def step_options(spec: JobSpec) -> tuple[str, ...]:
    """Return the srun options of the job's step for every launcher; it takes the rest from the job.

    Without `--export` the step would not get the script's variables if the job exports none.
    """
    options = ["--export=ALL"] if spec.options.get("export", "ALL") != "ALL" else []
    if spec.gpus is not None and spec.gpus.bind:
        options.append(f"--gpu-bind={spec.gpus.bind}")
    elif spec.ntasks_per_gpu is not None:  # as Slurm binds them without another binding
        options.append(f"--gpu-bind=single:{spec.ntasks_per_gpu}")
    options += [f"--cpu-bind={spec.launch.cpu_bind}"] if spec.launch.cpu_bind else []
    options += ["--label"] if spec.launch.label else []
    return tuple(options)
