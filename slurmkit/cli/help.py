"""The headings of `slurmkit --help`, and of the options of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import click

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
    "GPUs": ("gpus-per-node", "gpus-per-task", "gpus", "gres", "gpu-bind"),
    "Nodes, CPUs and memory": (
        "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "mem", "mem-per-cpu", "mem-per-gpu",
        "exclusive",
    ),
    "Time and order": (
        "time", "time-min", "begin", "deadline", "dependency", "nice", "hold",
    ),
    "Where, and on whose account": (
        "partition", "account", "qos", "reservation", "constraint", "licenses", "nodelist",
        "exclude", "switches", "segment",
    ),
    "What runs": (
        "script", "job-file", "chdir", "env", "launch", "mpi", "nccl-debug", "preflight",
        "job-name", "comment", "option",
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


class JobCommand(click.Command):
    """A command with the options of a job, which its help lists under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options under `OPTION_HEADINGS`, and at the end those that are under none."""
        options = (param for param in self.get_params(ctx) if isinstance(param, click.Option))
        params = {option.name: option for option in options}
        for heading, names in OPTION_HEADINGS.items():
            headed = [params.pop(name.replace("-", "_")) for name in names]
            _write_options(ctx, formatter, heading, headed)
        _write_options(ctx, formatter, "This command", params.values())


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
