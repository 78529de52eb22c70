"""`slurmkit clusters`, `send` and `find`: the clusters reached over SSH."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import msgspec

from slurmkit.cli.jobs import print_notice
from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import Fit, print_table
from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import BadInput, NoSuchJob, SlurmkitError, SshError
from slurmkit.formats.display import format_time
from slurmkit.jobs.backends.ssh import (
    NeverRan,
    OnceBackend,
    PendingSubmit,
    load_pending_submit,
    load_pending_submits,
)
from slurmkit.jobs.backends.submit_token import TOKEN_PREFIX, find_by_token
from slurmkit.slurm.ssh.authentication import ask_at_terminal, ask_nobody
from slurmkit.slurm.ssh.connection import read_host_key
from slurmkit.slurm.ssh.hosts import ClusterSection, load_cluster, load_clusters, read_ssh_host
from slurmkit.slurm.ssh.known_hosts import (
    check_host_key,
    fingerprint,
    load_host_keys,
    trust_host_key,
)
from slurmkit.slurm.ssh.login import SshSlurmCommands
from slurmkit.slurm.ssh.transfer import SendOptions, send_files
from slurmkit.state.associations import current_user
from slurmkit.state.cache import load_cached, load_capabilities
from slurmkit.state.model import Capabilities

_HEADER = ("CLUSTER", "HOST", "REACHED", "SLURM", "LATENCY", "CACHED")


class RemoteClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a cluster in the configuration.

    Attributes:
        host: the login node's name.
        reached: whether it answered just now.
        trouble: why it did not answer.
        release: Slurm's release there; empty if unknown.
        latency: seconds that an empty command took; None if it did not answer.
        age: seconds since its settings were read; None if they are not cached.
    """

    name: str
    host: str
    reached: bool
    trouble: str
    release: str
    latency: float | None
    age: float | None


@click.group("clusters", invoke_without_command=True)
@json_option("slurmkit.clusters/1", text="Print them as JSON.")
@click.option(
    "--ask/--no-ask", default=False, help="Ask for passphrases and codes, cluster by cluster."
)
@click.pass_context
def clusters_group(ctx: click.Context, *, as_json: JsonOutput | None, ask: bool) -> None:
    """List the clusters reached over SSH: [clusters.NAME] in the configuration.

    REACHED is tested now. CACHED is the age of the cached settings. A cluster that asks for a code
    counts as not reached, unless you give --ask.

    \b
    Examples:
      slurmkit clusters
      slurmkit clusters --json | jq '.rows[] | select(.reached).name'
      slurmkit clusters trust lab
    """
    if ctx.invoked_subcommand is not None:
        return
    known = load_clusters()
    with ThreadPoolExecutor(1 if ask else 8) as pool:
        statuses = list(pool.map(lambda item: _read_status(*item, ask=ask), known.items()))
    if as_json:
        as_json.print(statuses)
        return
    if not statuses:
        print_notice(
            'no cluster is configured; add a section [clusters.NAME] with host = "…" to your'
            " configuration; its files: slurmkit config show"
        )
        return
    print_table(_HEADER, [_status_row(each) for each in statuses])
    for each in statuses:
        if each.trouble:
            print_notice(f"{each.name}: {each.trouble}")


def _read_status(name: str, section: ClusterSection, *, ask: bool) -> RemoteClusterStatus:
    """Connect to a cluster, and read its settings if the cached ones are too old."""
    slurm = SshSlurmCommands(name, section, ask_at_terminal if ask else ask_nobody)
    facts: dict[str, Any] = {"reached": False, "trouble": "", "latency": None}
    try:
        facts["latency"] = _measure_latency(slurm)
        facts["reached"] = True
        load_capabilities(slurm)
    except SlurmkitError as error:
        facts["trouble"] = str(error)
    finally:
        slurm.connection.close()
    copy = load_cached("capabilities", slurm.key, Capabilities)
    age = time.time() - copy.taken if copy else None
    release = copy.config.get("SLURM_VERSION", "") if copy else ""
    host = section.host or name
    return RemoteClusterStatus(name=name, host=host, release=release, age=age, **facts)


def _measure_latency(slurm: SshSlurmCommands) -> float:
    """Return the seconds of a round trip; the first command pays for the connection."""
    slurm.run(["true"])
    began = time.perf_counter()
    slurm.run(["true"])
    return time.perf_counter() - began


def _status_row(status: RemoteClusterStatus) -> tuple[str, ...]:
    latency = "" if status.latency is None else f"{status.latency * 1000:.0f} ms"
    age = "" if status.age is None else f"{status.age:.0f} s"
    reached = "yes" if status.reached else "no"
    return (status.name, status.host, reached, status.release or "?", latency, age)


@clusters_group.command("trust")
@click.argument("name")
@click.option(
    "--fingerprint",
    "wanted",
    metavar="SHA256:…",
    help="Accept the key with this fingerprint, without asking.",
)
def trust_command(name: str, *, wanted: str | None) -> None:
    """Accept the host key of a cluster's login node.

    Compare its fingerprint with the one that your site publishes. The key is written to your
    known_hosts, as ssh does.

    \b
    Examples:
      slurmkit clusters trust lab
      slurmkit clusters trust lab --fingerprint SHA256:nThbg6kXUpJWGl7E1IGOCspRomTxdCARLviKw6E5SY8
    """
    host = read_ssh_host(name, load_cluster(name))
    kind, data = read_host_key(host, ask_at_terminal)
    seen = fingerprint(data)
    known = load_host_keys(host.known_as, host.known_hosts)
    if any(each.data == data and not each.revoked for each in known):
        print_notice(f"the host key of {host.known_as} is known already: {kind} {seen}")
        return
    if known:
        check_host_key(host.known_as, kind, data, known, host.accept)
    if wanted is None and not click.confirm(
        f"{host.known_as} has the host key {kind} {seen}; does your site publish the same one?",
        err=True,
    ):
        raise click.Abort
    if wanted not in (None, seen):
        raise BadInput(f"{host.known_as} has the host key {kind} {seen}, not {wanted}")
    if not host.known_hosts:
        raise SshError(
            "ssh has no UserKnownHostsFile to write the host key to; set one in ~/.ssh/config"
        )
    trust_host_key(host.known_as, kind, data, host.known_hosts[0])
    print_notice(f"written to {host.known_hosts[0]}: {host.known_as} {kind} {seen}")


@click.command("find")
@click.argument("token", required=False)
@click.option(
    "--days",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="How many days back to search for a job that was not submitted from this machine.",
)
@json_option("slurmkit.find/1", text="Print the submits as JSON.")
def find_command(token: str | None, *, days: int, as_json: JsonOutput | None) -> None:
    """Find the job of a submit whose connection broke, and print the job's id.

    Each submit over SSH puts a token into the job's comment, slurmkit:TOKEN. Without TOKEN, this
    command lists the submits that got no answer.

    \b
    Examples:
      slurmkit find
      slurmkit find 3935556409c8f0fe
      slurmkit --cluster lab find 3935556409c8f0fe
    """
    if token is None and as_json:
        as_json.print(map(_pending_submit_json, load_pending_submits()))
        return
    if token is None:
        rows = [(s.token, s.cluster, s.name, format_time(s.since)) for s in load_pending_submits()]
        print_table(("TOKEN", "CLUSTER", "NAME", "SENT"), rows, fit=Fit(("TOKEN",)))
        return
    token = token.removeprefix(TOKEN_PREFIX)
    sending = load_pending_submit(token)
    job_id = _find_own_submit(sending) if sending else _find_by_comment(token, days)
    if as_json:
        unknown = {"token": token, "cluster": None, "name": None, "sent": None}
        facts = _pending_submit_json(sending) if sending else unknown
        as_json.print([facts | {"job_id": job_id}])
    else:
        click.echo(job_id)


def _pending_submit_json(sending: PendingSubmit) -> dict[str, Any]:
    """Return a submit without an answer for programs."""
    return {
        "token": sending.token,
        "cluster": sending.cluster,
        "name": sending.name,
        "sent": int(sending.since),
        "job_id": None,
    }


def _find_own_submit(sending: PendingSubmit) -> str:
    """Return the job id of a submit that this machine sent; raises NoSuchJob if it never ran."""
    backend = Cluster(sending.cluster).backend
    if not isinstance(backend, OnceBackend):  # the configuration has changed since
        return _find_by_comment(sending.token, 7)
    result = backend.find(sending)
    if isinstance(result, NeverRan):
        raise NoSuchJob(
            f"job {sending.name} was never submitted, and now never will be: submit it again"
        )
    return result


def _find_by_comment(token: str, days: int) -> str:
    """Return the job id of a token, from the queue or the accounting database."""
    slurm, since = Cluster().slurm, int(time.time()) - days * 86400
    job_id = find_by_token(slurm, token, current_user(slurm), since)
    if job_id is None:
        raise NoSuchJob(
            f"no job of yours of the last {days} days has {TOKEN_PREFIX}{token} in its comment"
        )
    return job_id


@click.command("send")
@click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--to",
    "target",
    default="",
    metavar="FOLDER",
    help="Folder on the cluster.  [default: see above]",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave out files and folders with such names.",
)
@json_option("slurmkit.send/1", text="Print what was sent as JSON.")
def send_command(
    sources: tuple[Path, ...],
    *,
    target: str,
    exclude: tuple[str, ...],
    as_json: JsonOutput | None,
) -> None:
    """Send code to a cluster over SSH.

    The files go to the folder that your configuration sets for the cluster (`folder`), otherwise to
    your home directory there. Missing folders are made. A file that is already there with the same
    checksum is not sent. Each file is verified after it was sent, and then replaces the old one in
    one step. Nothing is deleted there. .git and __pycache__ are not sent.

    \b
    Examples:
      slurmkit --cluster lab send train.py
      slurmkit --cluster lab send src --to project --exclude '*.ckpt'
    """
    slurm = Cluster().slurm
    if not isinstance(slurm, SshSlurmCommands):
        raise BadInput("name the cluster to send to: slurmkit --cluster NAME send …")
    sent = send_files(slurm, sources, SendOptions(target, exclude))
    print_notice(
        f"{sent.sent} file{'s' * (sent.sent != 1)} sent ({sent.size:,} bytes), {sent.same} there"
        f" already, in {sent.folder}"
    )
    if as_json:
        as_json.print([sent])
    else:
        click.echo(sent.folder)
