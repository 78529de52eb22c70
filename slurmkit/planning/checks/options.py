"""Checks of options: without effect here or with others, not as they seem, missing licences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from slurmkit.config.files import did_you_mean
from slurmkit.formats.releases import CPUS_WITH_TASKS_PER_GPU_FAIL, format_release
from slurmkit.planning.request import Request
from slurmkit.spec.findings import Finding, Pairs, error, note, warning
from slurmkit.spec.jobspec import JobSpec, option
from slurmkit.spec.option_values import SBATCH_OPTIONS
from slurmkit.spec.sbatch_options import has_foreign_options

_SEGMENT_SINCE = (24, 5)
_EXPEDITE_SINCE = (25, 11)
_MEMORY_UPDATE_SINCE = (26, 5)
_CPUS_PER_GPU_REFUSED_SINCE = (23, 2)
# Before 26.05 a job smaller than its segment never starts.
_LARGE_SEGMENT_IGNORED = (26, 5)
# From here on sbatch ignores --hint with these, too (validate_hint_option in slurm_opt.c).
_HINT_IGNORED_WITH_SOCKETS_SINCE = (25, 11)
_NODE_SELECTION = ("sockets_per_node", "cores_per_socket", "threads_per_core")
_TASKS_ON_CORES = ("ntasks_per_socket", "ntasks_per_core")
_CONS_TRES_ONLY = ("ntasks_per_gpu", "cpus_per_gpu")
_UNCHECKED_OPTIONS = ("tres-per-task",)
_REFUSED_VARIABLE = "SLURM_TRES_PER_TASK"
_SOURCE = "scontrol show license"


def gpu_binding(spec: JobSpec) -> Iterator[Finding]:
    """Check the binding of parts of a GPU, which allow two forms (sbatch(1) `--tres-bind`)."""
    gpus = spec.gpus
    if gpus is None or gpus.bind is None or not gpus.is_part:
        return
    if gpus.bind != "none" and not gpus.bind.startswith("per_task:"):
        message = (
            f"GPU binding {gpus.bind} works only for whole GPUs; for a part of a GPU give none or"
            " per_task:N"
        )
        yield error("gpu-bind-part", message, "sbatch(1) --tres-bind")


def unread_options(spec: JobSpec, release: tuple[int, ...]) -> Iterator[Finding]:
    """Report options that are not read, ask for nothing, or whose amounts are not computed."""
    if has_foreign_options(spec.script or ""):
        message = "the script's #PBS or #BSUB lines are not read; write them as #SBATCH lines"
        yield warning("script-foreign-options", message, "")
    if spec.gpus is None or spec.gpus.is_part:
        yield from _per_gpu_without_gpus(spec, release)
    yield from _cpus_with_tasks_per_gpu(spec, release)
    for name in _UNCHECKED_OPTIONS:
        if name in spec.options:
            message = f"--{name} is passed on to sbatch, but slurmkit does not check or estimate it"
            yield warning("unchecked-option", message, "")


def _cpus_with_tasks_per_gpu(spec: JobSpec, release: tuple[int, ...]) -> Iterator[Finding]:
    """Warn of a whole script whose srun some releases refuse to run."""
    since, until = CPUS_WITH_TASKS_PER_GPU_FAIL
    script = spec.script or ""
    runs_srun = "srun" in script and _REFUSED_VARIABLE not in script
    if runs_srun and spec.ntasks_per_gpu and spec.cpus_per_task and since <= release < until:
        message = (
            f"on Slurm {format_release(release)} each srun of the script ends at once: srun refuses"
            f" --ntasks-per-gpu with --cpus-per-task, which sets {_REFUSED_VARIABLE}; write"
            f" before it: unset {_REFUSED_VARIABLE}"
        )
        yield warning("srun-refuses-cpus", message, "release of Slurm")


def _per_gpu_without_gpus(spec: JobSpec, release: tuple[int, ...]) -> Iterator[Finding]:
    """Report `--mem-per-gpu` and `--cpus-per-gpu` of a job without whole GPUs.

    Source: `gres_job_state_validate` in src/interfaces/gres.c; sbatch calls it, too.
    """
    source = "sbatch(1) --mem-per-gpu"
    if spec.mem_per_gpu is not None:
        message = (
            "--mem-per-gpu gives no memory to a job without whole GPUs; give --mem; sbatch would"
            " refuse it"
        )
        fix: Pairs = (("mem-per-gpu", ""), ("mem", spec.mem_per_gpu))
        yield error("mem-without-gpus", message, source, fix)
    if spec.cpus_per_gpu is not None:
        refused = release >= _CPUS_PER_GPU_REFUSED_SINCE
        message = (
            "--cpus-per-gpu gives no CPUs to a job without whole GPUs; give --cpus-per-task"
            f"{'; sbatch would refuse it' if refused else ''}"
        )
        fix = (("cpus-per-gpu", ""), ("cpus-per-task", str(spec.cpus_per_gpu)))
        say = error if refused else warning
        yield say("cpus-without-gpus", message, "sbatch(1) --cpus-per-gpu", fix)


def mail_options(request: Request) -> Iterator[Finding]:
    """Warn of mail without an address, and of an address without `--mail-type`."""
    spec, config = request.spec, request.capabilities.config
    domain = config.get("MailDomain", "(null)")
    if (spec.mail_type or "NONE").upper() != "NONE" and spec.mail_user is None:
        if PurePosixPath(config.get("MailProg", "")).name == "slurmkit-mail":
            to = f"the address of {request.standing.user} in the directory"
            yield note("mail-no-address", f"mail goes to {to}", "slurm.conf: MailProg")
        else:
            known = domain != "(null)"
            to = f"{request.standing.user}@{domain}" if known else "the local user"
            message = f"mail goes to {to} on the controller's machine; name an address: --mail-user"
            say = note if known else warning
            yield say("mail-no-address", message, f"slurm.conf: MailDomain={domain}")
    if spec.mail_user is not None and spec.mail_type is None:
        message = "no mail is sent without --mail-type"
        yield warning(
            "mail-no-type", message, "sbatch(1) --mail-user", (("mail-type", "END,FAIL"),)
        )


def topology_options(request: Request) -> Iterator[Finding]:
    """Check `--switches` and `--segment` against the cluster's topology plugin."""
    spec, plugin = request.spec, request.capabilities.config.get("TopologyPlugin", "")
    source = f"slurm.conf: TopologyPlugin={plugin or 'unknown'}"
    if spec.switches is not None and "tree" not in plugin:
        message = f"--switches does nothing here: this cluster's topology is {plugin or 'unknown'}"
        yield warning("switches-unused", message, source, (("switches", ""),))
    if spec.segment is not None:
        yield from _segment(request, plugin, source)


def _segment(request: Request, plugin: str, source: str) -> Iterator[Finding]:
    segment, nodes = request.spec.segment or 1, request.nodes
    release = request.capabilities.release
    off: Pairs = (("segment", ""),)
    if release < _SEGMENT_SINCE:
        message = f"Slurm {format_release(release)} does not know --segment (since 24.05)"
        yield error("segment-unknown", message, "release of Slurm", off)
    elif "block" not in plugin:
        message = f"--segment does nothing here: this cluster's topology is {plugin or 'unknown'}"
        yield warning("segment-unused", message, source, off)
    elif nodes % segment and not (nodes < segment and release >= _LARGE_SEGMENT_IGNORED):
        message = f"{nodes} nodes do not divide into segments of {segment}; sbatch would refuse it"
        fix: Pairs = (("nodes", str(max(nodes // segment, 1) * segment)),)
        yield error("segment-uneven", message, source, fix)


def expedited_requeue(request: Request) -> Iterator[Finding]:
    """Check that the cluster has `--requeue=expedite`, and that it is enabled."""
    if request.spec.requeue != "expedite":
        return
    release = request.capabilities.release
    if release < _EXPEDITE_SINCE:
        message = f"Slurm {format_release(release)} does not know --requeue=expedite (since 25.11)"
        yield error("expedite-unknown", message, "release of Slurm", (("requeue", ""),))
        return
    parameters = request.capabilities.config.get("SlurmctldParameters", "")
    if "enable_expedited_requeue" not in parameters.lower().split(","):
        message = "--requeue=expedite is not enabled on this cluster, and sbatch would refuse it"
        source = "slurm.conf: SlurmctldParameters lacks enable_expedited_requeue"
        yield error("expedite-disabled", message, source, (("requeue", ""),))


def memory_update(request: Request) -> Iterator[Finding]:
    """Check that `--mem-update` is known, and does something: else Slurm ignores it in silence."""
    if "mem-update" not in request.spec.options:
        return
    config, release = request.capabilities.config, request.capabilities.release
    if release < _MEMORY_UPDATE_SINCE:
        message = f"Slurm {format_release(release)} does not know --mem-update (since 26.05)"
        yield error("mem-update-unknown", message, "release of Slurm")
        return
    parameters = config.get("SlurmctldParameters", "").lower().split(",")
    if "enable_stepmgr" not in parameters and "stepmgr" not in request.spec.options:
        message = "--mem-update does nothing without --stepmgr, or enable_stepmgr in slurm.conf"
        yield warning("mem-update-unused", message, "slurm.conf: SlurmctldParameters")
    gather = config.get("JobAcctGatherType", "")
    if gather != "jobacct_gather/cgroup":
        message = f"--mem-update does nothing with {gather or 'an unknown JobAcctGatherType'}"
        yield warning("mem-update-unused", message, "slurm.conf: JobAcctGatherType")


def license_counts(request: Request) -> Iterator[Finding]:
    """Report unknown licences and more than exist; of alternatives (`a|b`) one must exist."""
    text, total = request.spec.licenses, request.capabilities.licenses
    if text is None:
        return
    if not total and request.capabilities.hidden:
        yield warning("unknown-licenses", f"licences {text} could not be checked", _SOURCE)
        return
    asked = [_split(item) for item in re.split(r"[,;|]", text) if item]
    wrong = [(name, count) for name, count in asked if count > total.get(name, 0)]
    if not wrong or ("|" in text and len(wrong) < len(asked)):
        return
    name, count = wrong[0]
    if name in total:
        message = (
            f"asks for {count} licences {name}; there are {total[name]}; sbatch would refuse it"
        )
        fix: Pairs = (("licenses", _without(asked, name, f"{name}:{total[name]}")),)
        yield error("licenses", message, f"license {name}: Total={total[name]}", fix)
    else:
        hint = did_you_mean(name, sorted(total)) if total else "this cluster has none"
        message = f"no licence {name!r}; {hint}; sbatch would refuse it"
        yield error("no-license", message, _SOURCE, (("licenses", _without(asked, name, "")),))


def _split(item: str) -> tuple[str, int]:
    name, _, count = item.partition(":")
    return name, int(count) if count.isdigit() else 1


def _without(asked: list[tuple[str, int]], name: str, instead: str) -> str:
    items = (instead if each == name else f"{each}:{count}" for each, count in asked)
    return ",".join(filter(None, items))


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
    """Warn of `--mincpus` with tasks that take fewer CPUs: Slurm gives only those."""
    spec = request.spec
    if spec.mincpus is None or not (spec.cpus_per_task or spec.ntasks):
        return
    cpus = request.per_node.get("cpu", 0)
    if cpus < spec.mincpus:
        each = ""  # of one task on each node Slurm raises the CPUs to --mincpus
        if spec.ntasks:
            each = str(-(-spec.mincpus // -(-request.tasks // request.nodes)))
        change = f"give --cpus-per-task={each}" if each else "leave --cpus-per-task out"
        message = (
            f"--mincpus={spec.mincpus} selects nodes with so many CPUs free, but the tasks take"
            f" only {cpus} of them; {change}"
        )
        fix: Pairs = (("cpus-per-task", each),)
        yield warning("mincpus-unused", message, "sbatch(1) --mincpus", fix)


def ignored_hint(request: Request) -> Iterator[Finding]:
    """Warn of `--hint` with options that override it."""
    spec = request.spec
    overriding = ["ntasks_per_core", "threads_per_core"]
    if request.capabilities.release >= _HINT_IGNORED_WITH_SOCKETS_SINCE:
        overriding += ["sockets_per_node", "cores_per_socket"]
    given = [option(name) for name in overriding if getattr(spec, name) is not None]
    if spec.hint is not None and given:
        message = f"sbatch ignores --hint={spec.hint} with {' and '.join(given)}"
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
        message = "--switches does nothing with --spread-job, which turns the topology off"
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
    named = [f"--{name}" for name in spec.options if name in known.container_options]
    if spec.script is not None and named:
        message = (
            f"{', '.join(named)}: pyxis starts the whole script in the container, unless"
            " sbatch_support=0; slurmkit looks at neither the image nor the mounts, and Slurm's"
            " commands work in the script only if the image has them"
        )
        yield note("container-of-script", message, "plugstack.conf: pyxis")
    tracked = known.config.get("TrackWCKey", "")
    if "wckey" in spec.options and tracked.casefold() == "no":
        message = "--wckey does nothing: this cluster does not track workload keys"
        yield warning("wckey-unused", message, f"slurm.conf: TrackWCKey={tracked}")
