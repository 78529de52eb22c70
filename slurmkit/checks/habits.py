"""Options that do nothing here, or not what they seem to: mail, switches, segments."""

from __future__ import annotations

from collections.abc import Iterator

from slurmkit.checks.say import Pairs, error, note, warning
from slurmkit.findings import Finding
from slurmkit.request import Request

_SEGMENT_SINCE = (24, 5)
_LARGE_SEGMENT_IGNORED = (26, 5)  # one larger than the job; before, such a job never starts


def mail(request: Request) -> Iterator[Finding]:
    """Mail without an address, or an address without an occasion."""
    spec, config = request.spec, request.capabilities.config
    domain = config.get("MailDomain", "(null)")
    if (spec.mail_type or "NONE").upper() != "NONE" and spec.mail_user is None:
        to = f"{request.standing.user}@{domain}" if domain != "(null)" else "the local user"
        message = f"mail goes to {to} on the controller's machine; name an address: --mail-user"
        say = warning if domain == "(null)" else note
        yield say("mail-no-address", message, f"slurm.conf: MailDomain={domain}")
    if spec.mail_user is not None and spec.mail_type is None:
        message = "no mail is sent without --mail-type"
        yield warning(
            "mail-no-type", message, "sbatch(1) --mail-user", (("mail-type", "END,FAIL"),)
        )


def topology(request: Request) -> Iterator[Finding]:
    """Switches without topology/tree; segments without topology/block, or that do not fit."""
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
        version = ".".join(f"{part:02}" for part in release[:2])
        message = f"Slurm {version} does not know --segment (since 24.05)"
        yield error("segment-unknown", message, "release of Slurm", off)
    elif "block" not in plugin:
        message = f"--segment does nothing here: this cluster's topology is {plugin or 'unknown'}"
        yield warning("segment-unused", message, source, off)
    elif nodes % segment and not (nodes < segment and release >= _LARGE_SEGMENT_IGNORED):
        message = f"{nodes} nodes do not divide into segments of {segment}; sbatch would refuse it"
        fix: Pairs = (("nodes", str(max(nodes // segment, 1) * segment)),)
        yield error("segment-uneven", message, source, fix)
