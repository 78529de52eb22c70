"""The property that a fix is one: applied and checked again, nothing says no any more."""

from __future__ import annotations

from typing import Any

import msgspec
from checked_requests import replace, request, with_config, with_partition, with_qos
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmkit.planning.checks.fixes import request_builder
from slurmkit.planning.checks.registry import CHECKS, check
from slurmkit.planning.request import Request
from slurmkit.spec.gpus import Gpus
from slurmkit.state.model import Capabilities, Limits, LimitUsage, Standing

TRES = ("cpu", "mem", "node", "gres/gpu", "gres/gpu:a100", "billing")
amounts = st.dictionaries(st.sampled_from(TRES), st.integers(1, 200), max_size=2)
times = st.one_of(st.none(), st.integers(1, 3000))


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    return Limits(
        max_tres_per_job=draw(amounts),
        max_tres_per_user=draw(amounts),
        grp_tres=draw(amounts),
        max_tres_mins_per_job={k: v * 100 for k, v in draw(amounts).items()},
        grp_tres_mins={k: v * 500 for k, v in draw(amounts).items()},
        max_wall=draw(times),
        max_submit=draw(st.one_of(st.none(), st.integers(1, 20))),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Capabilities:
    known = with_partition(
        "gpu",
        max_time=draw(times),
        max_nodes=draw(st.one_of(st.none(), st.integers(1, 3))),
        max_cpus_per_node=draw(st.one_of(st.none(), st.integers(1, 64))),
        max_mem_per_node=draw(st.one_of(st.none(), st.integers(1024, 400_000))),
    )
    return with_config(known, EnforcePartLimits=draw(st.sampled_from(["NO", "ANY", "ALL"])))


@st.composite
def standings(draw: st.DrawFn) -> Standing:
    used = LimitUsage(
        tres_mins={"gres/gpu": draw(st.integers(0, 500))}, submitted=draw(st.integers(0, 5))
    )
    where = with_qos("high", limits=draw(limits()), user_usage=used, usage=used)
    vision = next(a for a in where.associations if a.account == "vision" and not a.user)
    changed = replace(vision, limits=draw(limits()), usage=used)
    rest = tuple(a for a in where.associations if a is not vision)
    return replace(where, associations=(*rest, changed))


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "nodes": draw(st.integers(1, 5)),
        "cpus_per_task": draw(st.integers(1, 80)),
        "time": str(draw(st.integers(1, 5000))),
        "mem": f"{draw(st.integers(1, 600))}G",
        "qos": draw(st.sampled_from(["normal", "high"])),
    }
    if draw(st.booleans()):
        spec["gpus"] = Gpus(draw(st.integers(1, 8)), draw(st.sampled_from([None, "a100"])))
    if draw(st.booleans()):
        spec["array"] = f"0-{draw(st.integers(0, 1500))}"
    return spec


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters(), standings(), specs())
def test_a_fix_passes_every_check(known: Capabilities, where: Standing, asks: Any) -> None:
    asked = request(known, where, **asks)
    found = [f for f in check(asked) if f.severity == "error"]
    clean: list[bool] = []
    for finding in found:
        if not finding.fix:
            continue
        made = request_builder(asked)(finding.fix)
        assert made is not None
        left = {f.code for f in check(made) if f.severity == "error"}
        assert finding.code not in left
        clean.append(not left)
    assert len(set(clean)) <= 1, "one way out is everybody's way out"
    assert len(found) != 1 or all(clean)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 32))
def test_a_limit_on_gpus_always_has_a_fix(nodes: int, gpus: int, limit: int) -> None:
    """One GPU on one node fits every limit, so something must be found."""
    where = with_qos("high", limits=Limits(max_tres_per_user={"gres/gpu": limit}))
    asked = request(where=where, nodes=min(nodes, 2), gpus=Gpus(gpus, "a100"), qos="high")
    wanted = asked.total["gres/gpu"]
    found = [f for f in check(asked) if f.severity == "error"]
    assert bool(found) is (wanted > limit)
    for finding in found:
        made = request_builder(asked)(finding.fix)
        assert made is not None
        assert made.total["gres/gpu"] <= limit
        assert made.total["gres/gpu"] * 2 > limit or made.total["gres/gpu"] * 2 > wanted


def test_the_options_of_a_fix_have_one_order() -> None:
    """The order of a fix of several amounts followed PYTHONHASHSEED."""
    where = with_qos("high", limits=Limits(max_tres_per_job={"billing": 20}))
    gpus = Gpus(4, "a100")
    asked = request(where=where, qos="high", nodes=2, cpus_per_task=40, mem="200G", gpus=gpus)
    (finding,) = [found for found in check(asked) if found.severity == "error"]
    assert [name for name, _ in finding.fix] == ["mem", "cpus-per-task", "nodes", "gpus-per-node"]


def test_checks_are_pure() -> None:
    asked = request(gpus=Gpus(8, "a100"), nodes=2, mem="600G", array="0-2000")
    before = msgspec.json.encode(asked)
    for each in CHECKS:
        assert list(each(asked)) == list(each(asked))
    assert msgspec.json.encode(asked) == before


def test_a_spec_that_cannot_be_is_no_candidate() -> None:
    again = request_builder(request())
    assert again((("time", "soon"),)) is None
    assert again((("partition", "nowhere"),)) is None
    assert again((("gpus-per-node", "v100:1"),)) is None
    assert isinstance(again(()), Request)


def test_a_doubt_that_the_request_has_already_is_no_reason_to_change_more() -> None:
    """Two tasks may have no CPUs to share, but only the memory is too much."""
    asked = request(mem="600G", overcommit=True, ntasks=2, cpus_per_task=8, mincpus=16, nodes=1)
    found = {each.code: each for each in check(asked)}
    assert found["overcommit-cpus"].severity == "warning"
    fixes = {each.fix for each in found.values() if each.severity == "error"}
    assert fixes == {(("mem", "500G"),)}
