"""The names that plugins import: the Protocol of each kind, and the types in its methods.

    >>> from slurmkit.plugins import Capabilities, Finding, JobSpec, Review

Names are imported on first use, so a plugin pays only for the kind it implements.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmkit.config.files import has_section, load_section
    from slurmkit.config.plugins import KINDS, Plugin, load_plugin, plugins, registered_plugins
    from slurmkit.jobs.backends.protocol import Backend
    from slurmkit.planning.containers import Runtime
    from slurmkit.planning.launchers.base import Launcher, LaunchStep
    from slurmkit.planning.policies import Policy, Review
    from slurmkit.spec.findings import Finding
    from slurmkit.spec.jobspec import JobSpec
    from slurmkit.spec.submission import Submission
    from slurmkit.state.gpu_metrics import (
        GpuHistory,
        GpuMetrics,
        GpuSample,
        GpuTrace,
        JobWindow,
        NoSamples,
    )
    from slurmkit.state.model import Capabilities
    from slurmkit.state.past_waits import (
        AmountClass,
        JobKind,
        PastWaitReader,
        PastWaits,
        WaitsOfKind,
    )

__all__ = [
    "KINDS",
    "AmountClass",
    "Backend",
    "Capabilities",
    "Finding",
    "GpuHistory",
    "GpuMetrics",
    "GpuSample",
    "GpuTrace",
    "JobKind",
    "JobSpec",
    "JobWindow",
    "LaunchStep",
    "Launcher",
    "NoSamples",
    "PastWaitReader",
    "PastWaits",
    "Plugin",
    "Policy",
    "Review",
    "Runtime",
    "Submission",
    "WaitsOfKind",
    "has_section",
    "load_plugin",
    "load_section",
    "plugins",
    "registered_plugins",
]

_HOMES = {
    "AmountClass": "state.past_waits:AmountClass",
    "Backend": "jobs.backends.protocol:Backend",
    "Capabilities": "state.model:Capabilities",
    "Finding": "spec.findings:Finding",
    "GpuHistory": "state.gpu_metrics:GpuHistory",
    "GpuMetrics": "state.gpu_metrics:GpuMetrics",
    "GpuSample": "state.gpu_metrics:GpuSample",
    "GpuTrace": "state.gpu_metrics:GpuTrace",
    "JobKind": "state.past_waits:JobKind",
    "JobSpec": "spec.jobspec:JobSpec",
    "JobWindow": "state.gpu_metrics:JobWindow",
    "KINDS": "config.plugins:KINDS",
    "LaunchStep": "planning.launchers.base:LaunchStep",
    "Launcher": "planning.launchers.base:Launcher",
    "NoSamples": "state.gpu_metrics:NoSamples",
    "PastWaitReader": "state.past_waits:PastWaitReader",
    "PastWaits": "state.past_waits:PastWaits",
    "Plugin": "config.plugins:Plugin",
    "Policy": "planning.policies:Policy",
    "Review": "planning.policies:Review",
    "Runtime": "planning.containers:Runtime",
    "Submission": "spec.submission:Submission",
    "WaitsOfKind": "state.past_waits:WaitsOfKind",
    "has_section": "config.files:has_section",
    "load_plugin": "config.plugins:load_plugin",
    "load_section": "config.files:load_section",
    "plugins": "config.plugins:plugins",
    "registered_plugins": "config.plugins:registered_plugins",
    # Old names, for one release.
    "Beside": "jobs.backends.commands:SubmitOverrides",
    "launcher": "planning.launchers.base:make_launcher",
    "load": "config.plugins:load_plugin",
    "registered": "config.plugins:registered_plugins",
}


def __getattr__(name: str) -> object:
    """Import a name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'slurmkit.plugins' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value = getattr(import_module(f"slurmkit.{module}"), attribute)
    globals()[name] = value
    return value
