"""`slurmkit ssh-config`: `ssh slurmkit-NAME` leads into a job, also for editors; and `code`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from slurmkit.cli.job_options import (
    JobCommand,
    job_options,
    parse_job_options,
    refuse_batch_options,
)
from slurmkit.cli.jobs import print_notice
from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.submit import (
    print_estimate,
    print_finding,
    print_findings,
    refuse_errors,
    typed_secret_notes,
)
from slurmkit.cli.tables import print_table
from slurmkit.cluster.cluster import Cluster
from slurmkit.config.files import load_section
from slurmkit.config.paths import state_folder
from slurmkit.errors import BadInput
from slurmkit.interactive import ssh_profile
from slurmkit.interactive.ssh_job import find_job, find_or_start, wait_for_keeper
from slurmkit.interactive.ssh_profile import SshProfile, find_profile, load_profiles
from slurmkit.interactive.tunnel import TunnelSection
from slurmkit.jobs.job import Job
from slurmkit.planning.planner import plan

_BATCH_OPTIONS = ("script", "wrap")
_BATCH_FIELDS = ("array", "sweep", "hold")
_STEP_OPTIONS = ("mpi", "cpu_bind", "label", "log_per_rank", "preflight", "launcher")
_HEADER = ("NAME", "SSH", "JOBID", "STATE", "NODE", "JOB_FILE")


def _complete_profile(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    folders = state_folder(ssh_profile.FOLDER).glob("*/*")
    return sorted({path.name for path in folders if path.name.startswith(incomplete)})


@click.command("ssh-config", cls=JobCommand)
@job_options("[NAME]")
@click.option(
    "--idle", type=click.FloatRange(0, 10080), default=30.0, show_default=True, metavar="MINUTES",
    help="End the job when nobody has been connected for so long; 0 for never.",
)  # fmt: skip
@click.option("--remove", is_flag=True, help="Take the profile back; a job of it goes on.")
@click.option("--laptop", is_flag=True, help="Print the block for ~/.ssh/config of your laptop.")
@click.option(
    "--connect", is_flag=True,
    help="Lead standard input and output into the job: the ProxyCommand in ~/.ssh/config.",
)  # fmt: skip
@json_option("slurmkit.ssh/1", text="Print the profiles as JSON.")
def ssh_config_command(
    *,
    idle: float,
    remove: bool,
    laptop: bool,
    connect: bool,
    as_json: JsonOutput | None,
    **options: Any,
) -> int:
    """Let `ssh slurmkit-NAME` lead into a job with GPUs; editors and rsync go there, too.

    The command writes a block into ~/.ssh/config and checks the job; nothing is submitted yet. The
    first ssh submits the job and waits for it, further ones go into the same job. The job ends at
    its time limit, or when nobody has been connected for --idle minutes. The options are those of
    `slurmkit submit`; the profile keeps them as a job file that you may edit.

    Without a name the command lists your profiles.

    \b
    Examples:
      slurmkit ssh-config gpu --gpus-per-node a100:1 --cpus-per-task 8 --time 8:00:00
      ssh slurmkit-gpu nvidia-smi
      slurmkit code gpu ~/project
      slurmkit ssh-config gpu --laptop
      slurmkit ssh-config gpu --remove
    """
    names = options["command"]
    if len(names) > 1:
        raise BadInput(f"one name is enough: {' '.join(names)}; options begin with --")
    cluster = Cluster()
    where = cluster.capabilities().cluster_name
    if not names:
        _list_profiles(cluster, where, as_json)
        return 0
    profile = find_profile(where, names[0])
    if connect:
        return _connect(profile, cluster)
    if remove:
        _remove(profile)
    elif laptop:
        _print_laptop_block(profile)
    else:
        _write(profile, cluster, idle, options)
    if as_json:
        as_json.print([_facts(profile, cluster)])
    return 0


def _write(profile: SshProfile, cluster: Cluster, idle: float, options: dict[str, Any]) -> None:
    """Plan the job of a profile, then write its files and the block of ~/.ssh/config."""
    options["command"] = profile.keeper_command(idle)
    refuse_batch_options(name for name in _BATCH_OPTIONS if options[name] is not None)
    for secret in typed_secret_notes(options["env"]):
        print_finding(secret)
    spec = parse_job_options(options).spec
    refuse_batch_options(name for name in _BATCH_FIELDS if getattr(spec, name) not in (None, False))
    refuse_batch_options(name for name in _STEP_OPTIONS if getattr(spec.launch, name))
    job = ssh_profile.with_keeper(spec, profile, idle)
    ssh_profile.write_profile(profile, job)  # the plan looks whether its program is there
    planned = plan(job, cluster)
    print_findings(planned)
    if planned.errors:
        ssh_profile.remove_profile(profile)
    refuse_errors(planned, "no profile was made")
    print_estimate(planned)
    path = ssh_profile.edit_ssh_config(profile.name, ssh_profile.host_block(profile, _program()))
    print_notice(f"{path} has the host {profile.host}; connect: ssh {profile.host}")
    print_notice(f"the job: {profile.job_file}; to take it back: slurmkit ssh-config"
                 f" {profile.name} --remove")  # fmt: skip
    if row := find_job(cluster.slurm, job.job_name or ""):
        print_notice(
            f"job {row.raw_id} goes on as it is; to replace it: slurmkit cancel {row.raw_id}, then"
            f" ssh {profile.host}"
        )


def _program() -> str:
    """Return the path of the command slurmkit."""
    return shutil.which("slurmkit") or str(Path(sys.argv[0]).absolute())


def _remove(profile: SshProfile) -> None:
    path = ssh_profile.edit_ssh_config(profile.name, None)
    ssh_profile.remove_profile(profile)
    print_notice(f"{path} has no host {profile.host} any more; a job that runs goes on:"
                 f" slurmkit cancel --me --name ssh-{profile.name}")  # fmt: skip


def _print_laptop_block(profile: SshProfile) -> None:
    _check_exists(profile)
    login = load_section("tunnel", TunnelSection).login or os.uname().nodename
    click.echo(ssh_profile.laptop_block(profile, login, _program()), nl=False)
    print_notice(
        f"put this at the top of ~/.ssh/config of your laptop; {login} is what ssh there calls the"
        " login node. Your own key must be in ~/.ssh/authorized_keys here"
    )


def _check_exists(profile: SshProfile) -> None:
    if not profile.job_file.exists():
        raise BadInput(
            f"there is no profile {profile.name}; make it: slurmkit ssh-config {profile.name}"
            " --gpus-per-node 1 --time 8:00:00"
        )


def _list_profiles(cluster: Cluster, where: str, as_json: JsonOutput | None) -> None:
    facts = [_facts(profile, cluster) for profile in load_profiles(where)]
    if as_json:
        as_json.print(facts)
    elif facts:
        print_table(_HEADER, [[str(value or "") for value in each.values()] for each in facts])
    else:
        print_notice("there is no profile yet; see: slurmkit ssh-config --help")


def _facts(profile: SshProfile, cluster: Cluster) -> dict[str, Any]:
    row = None
    if profile.job_file.exists():
        row = find_job(cluster.slurm, profile.load_spec().job_name or "")
    return {
        "name": profile.name,
        "host": profile.host,
        "job_id": row and row.raw_id,
        "state": row and row.state,
        "node": (row and row.node_list) or None,
        "job_file": str(profile.job_file),
    }


def _connect(profile: SshProfile, cluster: Cluster) -> int:
    """Find or start the job of a profile, and lead this connection into it."""
    _check_exists(profile)
    spec = profile.load_spec()

    def start() -> Job:
        planned = plan(spec, cluster)
        if planned.errors:
            print_findings(planned)
        job = cluster.submit(planned)
        print_notice(f"submitted job {job.id}")
        return job

    job = find_or_start(cluster, profile, spec.job_name or "", start)
    address = wait_for_keeper(job, profile, print_notice)
    return cluster.attach(profile.bridge_command(address))


@click.command("code")
@click.argument("name", shell_complete=_complete_profile)
@click.argument("folder", required=False)
@click.option("--link", is_flag=True, help="Only print the link.")
def code_command(name: str, folder: str | None, *, link: bool) -> None:
    """Open VS Code in a job of `slurmkit ssh-config`, or print the link that opens it.

    Cursor and other editors with Remote-SSH take the same host name, slurmkit-NAME. The first
    connection submits the job; the editor waits as long as its setting remote.SSH.connectTimeout.

    \b
    Examples:
      slurmkit code gpu ~/project
      slurmkit code gpu --link
    """
    profile = find_profile(Cluster().capabilities().cluster_name, name)
    _check_exists(profile)
    path = str(Path(folder or Path.cwd()).expanduser().absolute())
    url = f"vscode://vscode-remote/ssh-remote+{profile.host}{quote(path)}"
    editor = None if link else shutil.which("code")
    if editor is None:
        click.echo(url)
        return
    print_notice(f"opening {url}")
    os.execv(editor, [editor, "--remote", f"ssh-remote+{profile.host}", path])  # noqa: S606
