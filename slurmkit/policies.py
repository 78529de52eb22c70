"""Every policy of the site, called in order of names, and what each made of a spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from slurmkit.errors import BrokenPlugin
from slurmkit.findings import Finding
from slurmkit.planning.secrets import masked
from slurmkit.plugins import Plugin, Policy, Review, plugins

if TYPE_CHECKING:
    from slurmkit.capabilities.model import Capabilities
    from slurmkit.spec import JobSpec


class Change(msgspec.Struct, frozen=True):
    """One field of a spec as a policy found it and left it, in words.

    Attributes:
        policy: name of the policy.
        field: name of the field of `JobSpec`, e.g. `time`.
        before: its value; empty where there was none. So `after`.
    """

    policy: str
    field: str
    before: str
    after: str


class Reviewed(msgspec.Struct, frozen=True):
    """A spec after every policy has looked at it."""

    spec: JobSpec
    changes: tuple[Change, ...] = ()
    findings: tuple[Finding, ...] = ()


def review(spec: JobSpec, capabilities: Capabilities) -> Reviewed:
    """Let every policy look at `spec`, each at what those before it made of it.

    A broken policy is a warning that names it and is otherwise skipped: it stops nobody's work.
    """
    changes: list[Change] = []
    findings: list[Finding] = []
    for plugin in plugins("policies").values():
        try:
            said = _review(plugin, spec, capabilities)
        except BrokenPlugin as error:
            findings.append(_skipped(plugin, error))
            continue
        changes += _changes(plugin.name, spec, said.spec)
        findings += [_sourced(plugin, finding) for finding in said.findings]
        spec = said.spec
    return Reviewed(spec, tuple(changes), tuple(findings))


def _review(plugin: Plugin, spec: JobSpec, capabilities: Capabilities) -> Review:
    policy = cast("Callable[[], Policy]", plugin.load())
    try:
        said = policy().review(spec, capabilities)
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        raise BrokenPlugin(f"{plugin.title}: {type(error).__name__}: {error}") from error
    if not isinstance(said, Review) or type(said.spec) is not type(spec):
        raise BrokenPlugin(f"{plugin.title} did not give back a Review of the spec")
    return said


def _changes(policy: str, before: JobSpec, after: JobSpec) -> list[Change]:
    pairs = (
        (name, getattr(before, name), getattr(after, name)) for name in before.__struct_fields__
    )
    return [
        Change(policy, name, _word(name, old), _word(name, new))
        for name, old, new in pairs
        if old != new
    ]


def _word(field: str, value: Any) -> str:
    if value is None:
        return ""
    return str(masked(value) if field == "environment" else value)


def _sourced(plugin: Plugin, finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, source=finding.source or f"policy {plugin.name}")


def _skipped(plugin: Plugin, error: BrokenPlugin) -> Finding:
    return Finding(
        severity="warning",
        code="broken-policy",
        message=f"skipped the policy {plugin.name!r}, tell your administrator: {error}",
        source=f"policy {plugin.name}",
    )
