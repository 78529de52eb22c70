"""Checks that options have an effect: Slurm ignores some beside others, or on this cluster."""

from __future__ import annotations

from collections.abc import Iterator

from slurmkit.config.files import did_you_mean
from slurmkit.planning.request import Request
from slurmkit.spec.findings import Finding, Pairs, error, warning
from slurmkit.spec.jobspec import option
from slurmkit.spec.option_values import SBATCH_OPTIONS

# From here on sbatch ignores --hint beside these, too (validate_hint_option in slurm_opt.c).
_HINT_BESIDE_SOCKETS_SINCE = (25, 11)
_NODE_SELECTION = ("sockets_per_node", "cores_per_socket", "threads_per_core")
_TASKS_ON_CORES = ("ntasks_per_socket", "ntasks_per_core")
_CONS_TRES_ONLY = ("ntasks_per_gpu", "cpus_per_gpu")


def options_for_gpus(request: Request) -> Iterator[Finding]:
    """Report options for each GPU or socket on a cluster that cannot have them."""
    spec, config = request.spec, request.capabilities.config
    given = [option(name) for name in _CONS_TRES_ONLY if getattr(spec, name) is not None]
    given += ["--gpus-per-socket"] if spec.gpus is not None and spec.gpus.sockets else []
    select = config.get("SelectType", "")
    if given and select and "cons_tres" not in select:
        message = f"{given[0]} works only with SelectType=select/cons_tres; sbatch would refuse it"
        yield error("cons-tres-only", message, f"slurm.conf: SelectType={select}")


def fewest_cpus(request: Request) -> Iterator[Finding]:
    """Warn of `--mincpus` beside tasks that take fewer CPUs: Slurm gives only those."""
    spec = request.spec
    if spec.mincpus is None or spec.cpus_per_task is None:
        return
    cpus = request.per_node.get("cpu", 0)
    if cpus < spec.mincpus:
        message = (
            f"--mincpus={spec.mincpus} selects nodes with so many CPUs free, but the tasks take"
            f" only {cpus} of them; leave --cpus-per-task out"
        )
        fix: Pairs = (("cpus-per-task", ""),)
        yield warning("mincpus-unused", message, "sbatch(1) --mincpus", fix)


def ignored_hint(request: Request) -> Iterator[Finding]:
    """Warn of `--hint` beside options that override it."""
    spec = request.spec
    overriding = ["ntasks_per_core", "threads_per_core"]
    if request.capabilities.release >= _HINT_BESIDE_SOCKETS_SINCE:
        overriding += ["sockets_per_node", "cores_per_socket"]
    given = [option(name) for name in overriding if getattr(spec, name) is not None]
    if spec.hint is not None and given:
        message = f"sbatch ignores --hint={spec.hint} beside {' and '.join(given)}"
        yield warning("hint-ignored", message, "sbatch(1) --hint", (("hint", ""),))


def binding_plugins(request: Request) -> Iterator[Finding]:
    """Warn of bindings on a cluster whose TaskPlugin binds nothing."""
    spec, plugin = request.spec, request.capabilities.config.get("TaskPlugin", "")
    bind = spec.launch.cpu_bind or ""
    given = [f"--cpu-bind={bind}"] if bind and not bind.endswith(("no", "none")) else []
    given += ["--mem-bind"] if "mem-bind" in spec.options else []
    if given and plugin and "affinity" not in plugin:
        message = f"{' and '.join(given)} binds nothing here, without the plugin task/affinity"
        yield warning("binding-unused", message, f"slurm.conf: TaskPlugin={plugin}")


def core_selection(request: Request) -> Iterator[Finding]:
    """Warn of sockets, cores and threads where Slurm gives out CPUs or whole nodes."""
    spec, config = request.spec, request.capabilities.config
    select, unit = config.get("SelectType", ""), config.get("SelectTypeParameters", "").upper()
    linear = "linear" in select
    ignored = [*(_NODE_SELECTION if "CR_CPU" in unit else ()), *(_TASKS_ON_CORES if linear else ())]
    given = [name for name in ignored if getattr(spec, name) is not None]
    if given:
        source = f"slurm.conf: SelectType={select} SelectTypeParameters={unit}"
        message = (
            f"{' and '.join(map(option, given))}: not supported with this cluster's SelectType"
        )
        yield warning("cores-unsupported", message, source)


def spreading(request: Request) -> Iterator[Finding]:
    """Warn of options for the number of nodes that contradict others or change nothing."""
    spec, source = request.spec, "sbatch(1) --spread-job"
    if spec.spread_job and spec.switches is not None:
        message = "--switches does nothing beside --spread-job, which turns the topology off"
        yield warning("switches-unused", message, source, (("switches", ""),))
    if spec.spread_job and spec.use_min_nodes:
        message = "--spread-job and --use-min-nodes contradict each other; leave one of them out"
        yield warning("spread-and-min-nodes", message, source)
    if spec.use_min_nodes and not isinstance(spec.nodes, str):
        message = "--use-min-nodes changes nothing without a range of nodes, e.g. --nodes=1-4"
        yield warning("min-nodes-unused", message, "sbatch(1) --use-min-nodes")


def passed_on_options(request: Request) -> Iterator[Finding]:
    """Warn of options that sbatch does not know, and of a workload key that nobody tracks."""
    spec, known = request.spec, request.capabilities
    for name in spec.options:
        if name not in SBATCH_OPTIONS and name not in known.container_options:
            hint = did_you_mean(name, sorted(SBATCH_OPTIONS))
            near = f"; {hint}" if hint.startswith("did you mean") else ""
            message = (
                f"sbatch itself has no --{name}{near}; it refuses the job unless a plugin of this"
                " site adds the option"
            )
            yield warning("unknown-option", message, "sbatch(1)")
    tracked = known.config.get("TrackWCKey", "")
    if "wckey" in spec.options and tracked.casefold() == "no":
        message = "--wckey does nothing: this cluster does not track workload keys"
        yield warning("wckey-unused", message, f"slurm.conf: TrackWCKey={tracked}")
