"""The site's policies: called in order of their names, with a record of their changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from slurmkit.config.plugins import Plugin, plugins
from slurmkit.errors import BrokenPlugin
from slurmkit.planning.secrets import mask_secrets
from slurmkit.spec.findings import Finding

if TYPE_CHECKING:
    from slurmkit.spec.jobspec import JobSpec
    from slurmkit.state.model import Capabilities


class Review(msgspec.Struct, frozen=True):
    """A policy's result for a spec.

    Attributes:
        spec: the spec, unchanged or changed; every change is shown to the user.
        findings: an error refuses the job, a warning or note is shown.
    """

    spec: JobSpec
    findings: tuple[Finding, ...] = ()


class Policy(Protocol):
    """A site's rule for jobs. The entry point's object is its class; all policies are called.

    A policy that is off by default checks for its section with `slurmkit.config.files.has_section`.
    """

    def review(self, spec: JobSpec, capabilities: Capabilities) -> Review:
        """Review a spec: accept it, warn, refuse it, or change it."""
        ...


class PolicyChange(msgspec.Struct, frozen=True):
    """A policy's change of one field of a spec, as text.

    Attributes:
        policy: name of the policy.
        field: name of the field of `JobSpec`, e.g. `time`.
        before: the old value; empty where there was none.
        after: the new value; empty where there is none.
    """

    policy: str
    field: str
    before: str
    after: str


class ReviewedSpec(msgspec.Struct, frozen=True):
    """A spec after every policy has reviewed it."""

    spec: JobSpec
    changes: tuple[PolicyChange, ...] = ()
    findings: tuple[Finding, ...] = ()


def apply_policies(spec: JobSpec, capabilities: Capabilities) -> ReviewedSpec:
    """Call every policy; each reviews the spec as the policies before it left it.

    A broken policy is skipped with a warning that names it, so that it stops nobody's work.
    """
    changes: list[PolicyChange] = []
    findings: list[Finding] = []
    for plugin in plugins("policies").values():
        try:
            result = _call_policy(plugin, spec, capabilities)
        except BrokenPlugin as error:
            findings.append(_skipped_warning(plugin, error))
            continue
        changes += _changes(plugin.name, spec, result.spec)
        findings += [_with_source(plugin, finding) for finding in result.findings]
        spec = result.spec
    return ReviewedSpec(spec, tuple(changes), tuple(findings))


def _call_policy(plugin: Plugin, spec: JobSpec, capabilities: Capabilities) -> Review:
    policy = cast("Callable[[], Policy]", plugin.load())
    try:
        result = policy().review(spec, capabilities)
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        raise BrokenPlugin(f"{plugin.title}: {type(error).__name__}: {error}") from error
    if not isinstance(result, Review) or type(result.spec) is not type(spec):
        raise BrokenPlugin(f"{plugin.title} did not return a Review of the spec")
    return result


def _changes(policy: str, before: JobSpec, after: JobSpec) -> list[PolicyChange]:
    pairs = (
        (name, getattr(before, name), getattr(after, name)) for name in before.__struct_fields__
    )
    return [
        PolicyChange(policy, name, _value_text(name, old), _value_text(name, new))
        for name, old, new in pairs
        if old != new
    ]


def _value_text(field: str, value: Any) -> str:
    if value is None:
        return ""
    return str(mask_secrets(value) if field == "environment" else value)


def _with_source(plugin: Plugin, finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, source=finding.source or f"policy {plugin.name}")


def _skipped_warning(plugin: Plugin, error: BrokenPlugin) -> Finding:
    return Finding(
        severity="warning",
        code="broken-policy",
        message=f"skipped the policy {plugin.name!r}, tell your administrator: {error}",
        source=f"policy {plugin.name}",
    )
