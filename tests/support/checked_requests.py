"""Requests for tests of checks: a spec in the Docker cluster as recorded, with limits put in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from recorded_lab import capabilities, standing

from slurmkit.planning.checks.fixes import request_builder
from slurmkit.planning.checks.registry import check
from slurmkit.planning.request import Request
from slurmkit.spec.findings import Finding
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Capabilities, Limits, LimitUsage, Qos, Standing

replace = msgspec.structs.replace
NOW = 1_700_000_000


def with_config(known: Capabilities | None = None, **config: str) -> Capabilities:
    known = known or capabilities()
    return replace(known, config={**known.config, **config})


def with_partition(name: str, known: Capabilities | None = None, **fields: Any) -> Capabilities:
    known = known or capabilities()
    found = known.partition(name)
    assert found is not None
    changed = replace(found, **fields)
    return replace(known, partitions=tuple(changed if p is found else p for p in known.partitions))


def with_settings(name: str, **settings: str) -> Capabilities:
    found = capabilities().partition(name)
    assert found is not None
    return with_partition(name, settings={**found.settings, **settings})


def with_nodes(names: Sequence[str], **fields: Any) -> Capabilities:
    known = capabilities()
    return replace(
        known, nodes=tuple(replace(n, **fields) if n.name in names else n for n in known.nodes)
    )


def with_qos(name: str, where: Standing | None = None, **fields: Any) -> Standing:
    """A QOS of its own limits and use."""
    where = where or standing()
    changed = Qos(name=name, **fields)
    kept = tuple(qos for qos in where.qos if qos.name != name)
    return replace(where, qos=(*kept, changed))


def with_limits(
    account: str, user: str = "", *, limits: Limits | None = None, usage: LimitUsage | None = None
) -> Standing:
    """Limits of an account, or of alice in it."""
    where = standing()
    return replace(
        where,
        associations=tuple(
            replace(a, limits=limits or Limits(), usage=usage or LimitUsage())
            if (a.account, a.user) == (account, user)
            else a
            for a in where.associations
        ),
    )


def request(
    known: Capabilities | None = None, where: Standing | None = None, **spec: Any
) -> Request:
    """What a spec comes to in its (first) partition, as the planner has it."""
    known = known or capabilities()
    asked = JobSpec(**{"command": ("true",), "time": "10", "partition": "gpu", **spec})
    name = (asked.partition or "gpu").split(",")[0]
    partition = known.partition(name)
    assert partition is not None
    bare = Request(
        spec=asked,
        capabilities=known,
        standing=where or standing(),
        partition=partition,
        nodes=1,
        tasks=1,
        seconds=None,
        per_node={},
        total={},
        fitting=(),
        account=None,
        association=None,
        qos=None,
        partition_qos=None,
    )
    made = request_builder(bare)(())
    assert made is not None, "the spec itself is wrong"
    return made


def findings(
    known: Capabilities | None = None, where: Standing | None = None, **spec: Any
) -> dict[str, Finding]:
    """By code, without the note of the default time."""
    return {f.code: f for f in check(request(known, where, **spec)) if f.code != "default-time"}


def only(found: dict[str, Finding]) -> Finding:
    """Return the finding, of which there must be one."""
    (finding,) = found.values()
    return finding


def errors(found: dict[str, Finding]) -> list[str]:
    return [code for code, finding in found.items() if finding.severity == "error"]


def fixed(asked: Request, finding: Finding) -> tuple[Finding, ...]:
    """What is found once the fix is applied; it must be a request again."""
    assert finding.fix, f"{finding.code} has no fix"
    made = request_builder(asked)(finding.fix)
    assert made is not None
    return check(made)
