"""`slurmkit clusters`: which there are, whether they answer, and whose host key is trusted."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
import msgspec

from slurmkit.capabilities.cache import kept, load_capabilities
from slurmkit.capabilities.model import Capabilities
from slurmkit.cli.each import say
from slurmkit.cli.show import table
from slurmkit.errors import BadInput, SlurmkitError, SshError
from slurmkit.ssh.asking import at_terminal, nobody
from slurmkit.ssh.border import SshSlurm
from slurmkit.ssh.connection import host_key
from slurmkit.ssh.hosts import host_of
from slurmkit.ssh.known import check, fingerprint, known_keys, trust
from slurmkit.ssh.section import ClusterSection, section_of, sections

_HEADER = ("CLUSTER", "HOST", "REACHED", "SLURM", "LATENCY", "KEPT")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a cluster in the configuration.

    Attributes:
        host: whom it is reached by.
        reached: whether it answered just now; `trouble` why not.
        release: of Slurm there, empty when never seen.
        latency: seconds that a command took which does nothing, None when it did not answer.
        age: seconds since its settings were read, None when they are not kept.
    """

    name: str
    host: str
    reached: bool
    trouble: str
    release: str
    latency: float | None
    age: float | None


@click.group("clusters", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
@click.option("--ask/--no-ask", default=False, help="Ask for passphrases and codes, one by one.")
@click.pass_context
def clusters_group(ctx: click.Context, *, as_json: bool, ask: bool) -> None:
    """List the clusters reached over SSH: [clusters.NAME] in the configuration.

    REACHED is from now, KEPT the age of what is kept of the cluster's settings. A cluster that
    would ask for a code counts as not reached, unless --ask is given.

    \b
    Examples:
      slurmkit clusters
      slurmkit clusters --json | jq '.[] | select(.reached).name'
      slurmkit clusters trust lab
    """
    if ctx.invoked_subcommand is not None:
        return
    known = sections()
    with ThreadPoolExecutor(1 if ask else 8) as pool:
        found = list(pool.map(lambda item: _look(*item, ask=ask), known.items()))
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    if not found:
        say('no cluster is configured: [clusters.NAME] with host = "…", see slurmkit config show')
        return
    table(_HEADER, [_cells(each) for each in found])
    for each in found:
        if each.trouble:
            say(f"{each.name}: {each.trouble}")


def _look(name: str, section: ClusterSection, *, ask: bool) -> Found:
    slurm = SshSlurm(name, section, at_terminal if ask else nobody)
    facts: dict[str, Any] = {"reached": False, "trouble": "", "latency": None}
    try:
        facts["latency"] = _seconds(slurm)
        facts["reached"] = True
        load_capabilities(slurm)
    except SlurmkitError as error:
        facts["trouble"] = str(error)
    finally:
        slurm.connection.close()
    copy = kept("capabilities", slurm.key, Capabilities)
    age = time.time() - copy.taken if copy else None
    release = copy.config.get("SLURM_VERSION", "") if copy else ""
    host = section.host or name
    return Found(name=name, host=host, release=release, age=age, **facts)


def _seconds(slurm: SshSlurm) -> float:
    slurm.run(["true"])
    began = time.perf_counter()
    slurm.run(["true"])
    return time.perf_counter() - began


def _cells(found: Found) -> tuple[str, ...]:
    latency = "" if found.latency is None else f"{found.latency * 1000:.0f} ms"
    age = "" if found.age is None else f"{found.age:.0f} s"
    reached = "yes" if found.reached else "no"
    return (found.name, found.host, reached, found.release or "?", latency, age)


@clusters_group.command("trust")
@click.argument("name")
@click.option("--fingerprint", "wanted", metavar="SHA256:…", help="Accept this key, unasked.")
def trust_command(name: str, *, wanted: str | None) -> None:
    """Accept the host key of a cluster's login node, once its fingerprint is compared.

    Compare it with what your site publishes. It is written into your known_hosts, as ssh does.

    \b
    Examples:
      slurmkit clusters trust lab
      slurmkit clusters trust lab --fingerprint SHA256:nThbg6kXUpJWGl7E1IGOCspRomTxdCARLviKw6E5SY8
    """
    host = host_of(name, section_of(name))
    kind, data = host_key(host, at_terminal)
    seen = fingerprint(data)
    known = known_keys(host.known_as, host.known_hosts)
    if any(each.data == data and not each.revoked for each in known):
        say(f"the host key of {host.known_as} is known already: {kind} {seen}")
        return
    if known:
        check(host.known_as, kind, data, known)
    if wanted is None and not click.confirm(
        f"{host.known_as} shows {kind} {seen}; is it that?", err=True
    ):
        raise click.Abort
    if wanted not in (None, seen):
        raise BadInput(f"{host.known_as} shows {kind} {seen}, not {wanted}")
    if not host.known_hosts:
        raise SshError("ssh names no UserKnownHostsFile to write to")
    trust(host.known_as, kind, data, host.known_hosts[0])
    say(f"written to {host.known_hosts[0]}: {host.known_as} {kind} {seen}")
