"""The interface of launchers, and the script lines that they share.

A launcher gets the job, and the srun options that its step needs. Shared are the line of srun, a
log for each rank, and the rendezvous of the workers.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from typing import Protocol, cast

import msgspec

from slurmkit.config.plugins import load_plugin, plugins
from slurmkit.errors import BrokenPlugin
from slurmkit.formats.filename_patterns import RANK_MARK
from slurmkit.planning.layout import Layout
from slurmkit.spec.containers import ContainerPaths
from slurmkit.spec.findings import Finding, error
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.sweep import expand_marks
from slurmkit.state.model import Capabilities

END_ALL_ON_FAILURE = ("--wait=0", "--kill-on-bad-exit=1")
"""One failed task ends the others, which would wait for it for ever (srun(1)).

A task that ended well ends none: another may still write the last checkpoint. slurm.conf WaitTime
would end it, hence `--wait=0`.
"""
_EXPORT_OUTPUT = (
    "# Each rank has a file of its own, next to the job's output.",
    "export slurmkit_output=$(readlink /proc/$$/fd/1)",
    "",
)
_NO_FILE = "--log-per-rank writes files next to the job's output; give an --output outside /dev"


class Launcher(Protocol):
    """A way to start a job's command in the batch shell. The entry point's object is its class."""

    def settle(self, spec: JobSpec) -> JobSpec:
        """Return the job with this launcher's defaults, e.g. one task for each GPU."""
        ...

    def needs(self, step: LaunchStep) -> Iterable[Finding]:
        """Return why this launcher cannot start the job on this cluster, and warnings."""
        ...

    def lines(self, step: LaunchStep) -> tuple[str, ...]:
        """Return shell lines that start the command and end with its exit code."""
        ...


def make_launcher(name: str) -> Launcher:
    """Make the launcher of that name; raises as `load_plugin` does."""
    factory = cast("Callable[[], Launcher]", load_plugin("launchers", name))
    try:
        return factory()
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        raise BrokenPlugin(
            f"{plugins('launchers')[name].title}: {type(error).__name__}: {error}"
        ) from error


class LaunchStep(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose command a launcher is to start.

    Attributes:
        spec: the job, with the launcher's own defaults.
        layout: its nodes, tasks and GPUs.
        options: srun options for any step, not quoted: binding, labels, export, and those that
            put the step into its container.
        prefix: words before the command of each task, not quoted: those of a container.
        view: the paths that the container sees; None without one, and when not known.
    """

    spec: JobSpec
    layout: Layout
    options: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    capabilities: Capabilities
    view: ContainerPaths | None = None

    @property
    def cpus(self) -> str:
        """The `--cpus-per-task` option, which srun does not take from the job on every release."""
        return f"--cpus-per-task={self.layout.cpus_per_task}"

    @property
    def tasks_per_node(self) -> int:
        """Tasks on each node, where all nodes have the same number."""
        return self.layout.ntasks_per_node or -(-self.layout.tasks // self.layout.least_nodes)

    @property
    def single_node(self) -> bool:
        """Whether the job has one node whatever Slurm decides."""
        return self.layout.nodes == 1 and self.layout.most in (None, 1)


def srun_line(options: Iterable[str], command: Iterable[str], quoted: str = "") -> str:
    """Return a line that starts a step; only the command stands after `--`.

    Args:
        options: words of an argv.
        command: words of an argv.
        quoted: further options, quoted for the shell, with a blank before them.
    """
    return f"srun{quoted} {shlex.join([*options, '--', *command])}"


def rank_log_lines(step: LaunchStep) -> tuple[str, ...]:
    """Return lines before a step whose ranks have log files; none without `--log-per-rank`."""
    return _EXPORT_OUTPUT if step.spec.launch.log_per_rank else ()


def srun_output(step: LaunchStep) -> str:
    """Return srun options, quoted for the shell, that write each task's output to its file."""
    if not step.spec.launch.log_per_rank:
        return ""
    mode = " --open-mode=append" if step.spec.open_mode == "append" else ""
    return f' --output="${{slurmkit_output//%/%%}}{RANK_MARK}%t"{mode}'


def with_own_log(step: LaunchStep, words: Iterable[str]) -> tuple[str, ...]:
    """Return a worker that knows its `RANK`, started with its output in its own file."""
    # Quoted twice, so that each task's own shell inserts the values of its sweep point.
    return ("sh", "-c", f"exec {expand_marks(shlex.join(words))}{log_redirection(step)}")


def log_redirection(step: LaunchStep) -> str:
    """Return the shell redirection that stands after a worker's words."""
    if not step.spec.launch.log_per_rank:
        return ""
    mode = ">>" if step.spec.open_mode == "append" else ">"
    return f' {mode}"$slurmkit_output{RANK_MARK}$RANK" 2>&1'


def check_output_is_file(step: LaunchStep) -> Iterable[Finding]:
    """Report `--log-per-rank` with an output that is not a file, such as /dev/null."""
    if step.spec.launch.log_per_rank and (step.spec.output or "").startswith("/dev/"):
        yield error("log-per-rank-output", _NO_FILE, "--log-per-rank")


_TEXT = r"""
# Where the tasks meet: this node, the job's first, and a TCP port of it that is free, beyond
# those that the kernel gives to anybody (ip_local_port_range).
slurmkit_bind='import socket, sys; socket.create_server(("", int(sys.argv[1])))'
python3 -IS -c 'import socket' 2>/dev/null || slurmkit_bind=
slurmkit_port_is_free() {
  if [ "$slurmkit_bind" ]; then
    python3 -IS -c "$slurmkit_bind" "$1" 2>/dev/null
  else
    ! grep -qsi ":$(printf %04X "$1") [0-9A-F]*:0000 0A" /proc/net/tcp /proc/net/tcp6
  fi
}
read -r slurmkit_low slurmkit_high </proc/sys/net/ipv4/ip_local_port_range
slurmkit_first=$((slurmkit_high + 1)) slurmkit_count=$((65535 - slurmkit_high))
if ((slurmkit_count < 1000)); then
  slurmkit_first=$((slurmkit_low > 12000 ? slurmkit_low - 2000 : 20000)) slurmkit_count=2000
fi
slurmkit_start=$((SLURM_JOB_ID + 7 * ${SLURM_RESTART_COUNT:-0}))
for ((slurmkit_try = 0; slurmkit_try < 200; slurmkit_try++)); do
  MASTER_PORT=$((slurmkit_first + (slurmkit_start + slurmkit_try) % slurmkit_count))
  slurmkit_port_is_free "$MASTER_PORT" && break
done
if ((slurmkit_try == 200)); then
  echo "slurmkit: none of 200 ports up to $MASTER_PORT of $HOSTNAME is free" >&2
  exit 1
fi
MASTER_ADDR=$HOSTNAME
export MASTER_ADDR MASTER_PORT
"""
RENDEZVOUS_LINES = tuple(_TEXT.strip().split("\n"))
"""Lines that export MASTER_ADDR, a host name, and MASTER_PORT."""

RENDEZVOUS_ID = '"$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"'
"""Id of a rendezvous, as a shell word; a requeued run never meets the remains of an earlier run."""
