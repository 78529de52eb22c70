"""The headings of `slurmkit --help`, and of the options of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

import click

from slurmkit.spec.option_values import SBATCH_OPTIONS

COMMAND_HEADINGS: dict[str, tuple[str, ...]] = {
    "Start here": ("plan", "submit", "queue", "log", "why", "cancel"),
    "Other ways to run something": ("sweep", "workflow", "shell", "jupyter", "tunnel", "image"),
    "Your jobs": (
        "job", "wait", "hold", "release", "requeue", "interrupt", "update", "notify",
    ),
    "The cluster": (
        "tui", "nodes", "gpus", "topo", "capabilities", "reservations", "fairshare",
    ),
    "GPU-hours": ("report", "ledger"),
    "Clusters over SSH": ("clusters", "send", "find"),
    "slurmkit itself": ("doctor", "config", "plugins", "completion"),
}  # fmt: skip
"""Each heading of `slurmkit --help` -> the subcommands under it."""

OPTION_HEADINGS: dict[str, tuple[str, ...]] = {
    "GPUs": (
        "gpus-per-node", "gpus-per-task", "gpus", "gpus-per-socket", "gres", "gpu-bind",
        "gres-flags",
    ),
    "Nodes, CPUs and memory": (
        "nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task", "cpus-per-gpu",
        "mincpus", "mem", "mem-per-cpu", "mem-per-gpu", "tmp", "exclusive", "overcommit",
    ),
    "Sockets, cores and threads": (
        "sockets-per-node", "cores-per-socket", "threads-per-core", "extra-node-info",
        "ntasks-per-socket", "ntasks-per-core", "hint", "distribution", "cpu-bind", "mem-bind",
    ),
    "Time and order": (
        "time", "time-min", "begin", "deadline", "dependency", "nice", "hold",
    ),
    "Where, and on whose account": (
        "partition", "account", "qos", "wckey", "reservation", "constraint", "licenses", "nodelist",
        "exclude", "switches", "segment", "spread-job", "use-min-nodes",
    ),
    "What runs": (
        "script", "wrap", "job-file", "chdir", "env", "export", "launch", "mpi", "nccl-debug",
        "preflight", "job-name", "comment", "option",
    ),
    "Arrays and sweeps": ("array", "array-throttle", "sweep", "points"),
    "Output and mail": (
        "output", "error", "open-mode", "label", "log-per-rank", "mail-type", "mail-user",
    ),
    "After a time limit, a preemption or a failure": (
        "on-timeout", "on-preempt", "on-node-fail", "on-oom", "oom-max-mem", "checkpoint-signal",
        "grace", "max-restarts", "restart-delay", "signal", "requeue", "no-requeue",
    ),
    "Containers": (
        "container-image", "container-mounts", "container-workdir", "container-name",
        "container-save", "container-env", "container-unshare", "container-runtime",
        "container-mount-home", "container-remap-root", "container-entrypoint",
        "container-writable", "container-entrypoint-log",
    ),
}  # fmt: skip
"""Each heading of the options of a job -> the options under it."""


COMMAND_IS_MARKED = "slurmkit.cli.help.command_is_marked"
"""Key in the context's `meta`: whether `--` stands before COMMAND."""


class JobCommand(click.Command):
    """A command with the options of a job, which its help lists under headings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options and COMMAND, and note whether `--` stands before COMMAND."""
        words = tuple(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = {name for param in self.get_params(ctx) for name in param.opts}
            name, similar = error.option_name, error.possibilities
            message = f"No such option: {name}; {_how_to_pass_on(name, known)}"
            raise click.NoSuchOption(name, message, similar, error.ctx) from None
        before = len(words) - len(ctx.params.get("command") or ())
        ctx.meta[COMMAND_IS_MARKED] = words[:before][-1:] == ("--",)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options under `OPTION_HEADINGS`, and at the end those that are under none."""
        options = (param for param in self.get_params(ctx) if isinstance(param, click.Option))
        params = {option.name: option for option in options}
        for heading, names in OPTION_HEADINGS.items():
            headed = [params.pop(name.replace("-", "_")) for name in names]
            _write_options(ctx, formatter, heading, headed)
        _write_options(ctx, formatter, "This command", params.values())


def _how_to_pass_on(name: str, known: set[str]) -> str:
    """Return how an option of sbatch is given that slurmkit has no option for."""
    others = [option for option in SBATCH_OPTIONS if f"--{option}" not in known]
    near = get_close_matches(name.removeprefix("--"), others, n=1, cutoff=0.8)
    example = f", e.g. --option {near[0]}" if near else ""
    return f"give any other option of sbatch as --option NAME=VALUE{example}"


def _write_options(
    ctx: click.Context,
    formatter: click.HelpFormatter,
    heading: str,
    options: Iterable[click.Option],
) -> None:
    rows = [row for option in options if (row := option.get_help_record(ctx))]
    with formatter.section(heading):
        formatter.write_dl(rows)


def write_commands(formatter: click.HelpFormatter, help_by_name: Mapping[str, str]) -> None:
    """List commands under `COMMAND_HEADINGS`, and those that are under none as the site's own."""
    width = max(map(len, help_by_name))
    rest = dict(help_by_name)
    for heading, names in COMMAND_HEADINGS.items():
        rows = [(name.ljust(width), rest.pop(name)) for name in names]
        with formatter.section(heading):
            formatter.write_dl(rows)
    if rest:
        with formatter.section("Commands of this site"):
            formatter.write_dl([(name.ljust(width), text) for name, text in rest.items()])
