"""What a job would use and cost."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checked_requests import replace, request, with_config, with_limits, with_partition, with_qos
from recorded_lab import capabilities, standing

from slurmkit.config.prices import Price, part_weight
from slurmkit.planning.estimate import (
    Estimate,
    estimate,
    estimate_in_all,
    estimate_range,
    possible_gpu_types,
)
from slurmkit.planning.planner import plan_offline
from slurmkit.planning.request import SiteState
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Limits, LimitUsage

DAY = dt.date(2023, 1, 1)
TABLE = {
    "a100": Price(since=DAY, currency="EUR", on_premises=Decimal("0.85"), cloud=Decimal("3.20")),
    "h100": Price(since=DAY, currency="EUR", on_premises=Decimal("1.50")),
    "b200": Price(since=DAY, currency="USD", cloud=Decimal(9)),
}


def price(kind: str, when: dt.date) -> Price | None:
    found = TABLE.get(kind)
    return found if found and when >= found.since else None


def made(**spec: object) -> Estimate:
    return estimate(request(**spec), price)  # type: ignore[arg-type]


def test_of_all_tasks_over_the_whole_time() -> None:
    found = made(
        gpus=Gpus(4, "a100"), nodes=2, cpus_per_task=8, mem="64G", time="1:30:00", array="0-4"
    )
    assert (found.hours, found.tasks) == (1.5, 5)
    assert found.gpu_hours == {"a100": 2 * 4 * 1.5 * 5}
    assert found.cpu_hours == 2 * 8 * 1.5 * 5
    assert found.memory_hours == 2 * 64 * 1.5 * 5
    # CPU=1.0,Mem=0.125G,GRES/gpu=16.0
    assert found.billing == 16 + 128 * 0.125 + 8 * 16
    assert found.billing_hours == found.billing * 1.5 * 5
    assert (found.cost, found.cloud_cost, found.currency) == (
        Decimal("51.00"),
        Decimal("192.00"),
        "EUR",
    )


def test_time_counts_in_slurms_minutes() -> None:
    assert made(time="1:01").hours == 2 / 60


def test_without_a_time_limit_hours_are_unknown() -> None:
    known = with_partition("gpu", default_time=None, max_time=None)
    found = estimate(request(known, time=None, gpus=Gpus(1, "a100")), price)
    assert found.hours is None
    assert found.gpu_hours is None
    assert found.cpu_hours is None
    assert found.cost is None
    assert ("Uses", "unknown: the job has no time limit") in found.facts()


def test_untyped_gpus_and_slices() -> None:
    assert made(gpus=Gpus(2), partition="untyped", time="1:00:00").gpu_hours == {"": 2}
    sliced = made(gpus=Gpus(1, mig="3g.20gb"), partition="mig", time="1:00:00")
    assert sliced.gpu_hours == {"a100_3g.20gb": 1}


def test_untyped_gpus_of_the_only_type_there_are_priced() -> None:
    found = made(gpus=Gpus(2), partition="mps", time="1:00:00")
    assert found.cost == Decimal("1.70")
    asked = request(gpus=Gpus(2), partition="untyped", time="1:00:00")
    assert estimate(asked, price).cost is None
    own = {"untyped": price("a100", dt.date(2026, 1, 1))}
    assert estimate(asked, lambda kind, _: own.get(kind)).cost == Decimal("1.70")


def test_untyped_gpus_cost_the_dearest_that_may_be_given() -> None:
    """`at most` is never less than what is charged later."""
    asked = request(gpus=Gpus(2), partition="gpu", time="1:00:00")
    kinds = possible_gpu_types(asked)
    assert len(kinds) > 1
    day = dt.date(2026, 1, 1)
    dear = Price(since=day, currency="EUR", on_premises=Decimal(9), cloud=Decimal(1))
    cheap = Price(since=day, currency="EUR", on_premises=Decimal(1), cloud=Decimal(4))
    prices = dict.fromkeys(kinds, cheap) | {kinds[-1]: dear, "untyped": cheap}
    found = estimate(asked, lambda kind, _: prices.get(kind))
    assert (found.cost, found.cloud_cost) == (Decimal(18), Decimal(8))
    prices.pop(kinds[0])  # a type without a price: unknown, not the price of others
    found = estimate(asked, lambda kind, _: prices.get(kind))
    assert (found.cost, found.cloud_cost) == (None, None)


def weight(kind: str, part: str) -> float | None:
    return {("h100", "shard"): 0.25, ("a100", "mps"): 0.01}.get((kind, part))


def test_parts_of_a_gpu_count_by_their_weight() -> None:
    found = estimate(request(gpus=Gpus(shard=2), time="1:00:00", array="0-3"), price, weight)
    assert found.gpu_hours == {"h100": 2.0}
    assert found.cost == Decimal("3.00")
    says = "at most 2 h100 GPU-hours (shard_weight of [gpu.h100]: 0.25), 4 CPU-hours"
    assert dict(found.facts())["Uses"].startswith(says)
    mps = estimate(request(gpus=Gpus(mps=50), partition="mps", time="1:00:00"), price, weight)
    assert mps.gpu_hours == {"a100": 0.5}


def test_parts_of_a_gpu_without_a_weight_are_unknown_not_nothing() -> None:
    found = estimate(request(gpus=Gpus(shard=2), time="1:00:00"), price, lambda *_: None)
    assert (found.gpu_hours, found.cost, found.cpu_hours) == (None, None, 1)
    facts = dict(found.facts())
    says = "at most unknown GPU-hours (no shard_weight of [gpu.h100] in the configuration), 1 CPU"
    assert facts["Uses"].startswith(says)
    assert facts["Costs"] == "unknown, because the GPU-hours are unknown"


@pytest.mark.parametrize(
    ("options", "gpus", "cpus"),
    [
        ({"tres-per-task": "gres/gpu=2"}, None, None),
    ],
)
def test_what_is_only_passed_on_is_unknown_not_nothing(
    options: dict[str, str], gpus: dict[str, float] | None, cpus: float | None
) -> None:
    limits = Limits(grp_tres_mins={"billing": 600})
    asked = request(where=with_limits("vision", limits=limits), options=options, time="1:00:00")
    found = estimate(asked, price)
    assert (found.gpu_hours, found.cpu_hours) == (gpus, cpus)
    assert (found.billing, found.billing_hours, found.share) == (None, None, None)
    name = next(iter(options))
    assert dict(found.facts())["Bills"] == f"unknown: slurmkit does not count --{name}"


@pytest.mark.parametrize(
    ("kind", "cost", "cloud"),
    [("h100", Decimal("1.50"), None), ("a100", Decimal("0.85"), Decimal("3.20"))],
)
def test_a_price_unknown_stays_unknown(kind: str, cost: Decimal, cloud: Decimal | None) -> None:
    found = made(gpus=Gpus(1, kind), time="1:00:00")
    assert (found.cost, found.cloud_cost) == (cost, cloud)


def test_no_price_before_its_day() -> None:
    asked = request(gpus=Gpus(1, "a100"))
    early = replace(asked, standing=replace(asked.standing, taken=0.0))
    assert estimate(early, price).cost is None


@pytest.mark.parametrize(
    ("flags", "billing"),
    [("", 4 + 32 * 0.125 + 2 * 16), ("MAX_TRES", 32), ("MAX_TRES_GRES", 4 + 32)],
)
def test_billing_by_slurms_rules(flags: str, billing: int) -> None:
    known = with_config(PriorityFlags=flags)
    asked = request(known, gpus=Gpus(2, "a100"), cpus_per_task=4, mem="32G")
    assert estimate(asked, price).billing == billing


def test_without_weights_cpus_are_billed() -> None:
    known = with_partition("cpu", billing_weights={})
    found = estimate(request(known, partition="cpu", cpus_per_task=6), price)
    assert found.billing == 6
    assert "no TRESBillingWeights" in found.sources["billing"]


def test_the_share_of_the_budget_nearest_to_its_end() -> None:
    usage = LimitUsage(tres_mins={"gres/gpu": 300, "cpu": 0}, tres_run_mins={"gres/gpu": 60})
    budget = Limits(grp_tres_mins={"gres/gpu": 600, "cpu": 100_000})
    where = with_limits("vision", limits=budget, usage=usage)
    found = estimate(request(where=where, gpus=Gpus(2, "a100"), time="1:00:00"), price)
    assert found.share is not None
    assert found.share.source == "account vision: GrpTRESMins gres/gpu=600"
    assert (found.share.wanted, found.share.left) == (2.0, 4.0)
    assert found.share.share == 0.5
    facts = dict(found.facts())
    assert facts["Budget"] == (
        "2 of 4 hours of gres/gpu left (50.0%), account vision: GrpTRESMins gres/gpu=600"
    )


def test_a_budget_used_up_has_no_share() -> None:
    where = with_limits(
        "vision",
        limits=Limits(grp_tres_mins={"gres/gpu": 60}),
        usage=LimitUsage(tres_mins={"gres/gpu": 70}),
    )
    share = estimate(request(where=where, gpus=Gpus(1, "a100")), price).share
    assert share is not None
    assert (share.left, share.share) == (0.0, None)


def test_a_budget_used_up_goes_before_one_that_is_not() -> None:
    limits = Limits(grp_tres_mins={"gres/gpu": 600, "cpu": 6000})
    usage = LimitUsage(tres_mins={"gres/gpu": 600, "cpu": 1000})
    where = with_limits("vision", limits=limits, usage=usage)
    share = estimate(request(where=where, gpus=Gpus(1, "a100")), price).share
    assert share is not None
    assert (share.tres, share.left) == ("gres/gpu", 0.0)


def test_hours_name_where_they_are_from() -> None:
    known = with_partition("gpu", default_time=None)
    assert estimate(request(known, time=None), price).sources["hours"] == "partition gpu: MaxTime"
    assert made(time=None).sources["hours"] == "partition gpu: DefaultTime"


def test_without_a_budget_there_is_no_share() -> None:
    assert made(gpus=Gpus(1, "a100")).share is None
    free = with_qos("high", with_limits("vision", limits=Limits(grp_tres_mins={"cpu": 5})))
    assert estimate(request(where=free, qos="normal"), price).share is not None


def test_in_words_and_as_json() -> None:
    found = made(gpus=Gpus(2, "a100"), time="1:00:00", mem="8G")
    facts = dict(found.facts())
    assert facts["Uses"] == "at most 2 a100 GPU-hours, 1 CPU-hour, 8 GiB-hours"
    assert (
        facts["Costs"] == "at most 1.70 EUR, in a cloud 6.40 EUR (the prices of the configuration)"
    )
    assert "Starts" not in facts
    started = replace(found, start=1_700_000_000, start_source="sbatch --test-only")
    assert "sbatch --test-only" in dict(started.facts())["Starts"]
    assert msgspec.json.decode(msgspec.json.encode(found))["gpu_hours"] == {"a100": 2.0}


def test_all_memory_of_the_nodes_is_billed() -> None:
    """`--mem=0` promised 34 billing, and 159 were billed."""
    found = made(gpus=Gpus(1, "a100"), nodes=2, mem="0", time="1:00:00")
    assert (found.billing, found.memory_hours) == (159, 1000)


def test_tasks_that_slurm_may_spread_have_memory_on_each_node() -> None:
    """`at most` is the most nodes, each with the memory asked for."""
    found = estimate_range(request(ntasks=4, mem="10G", time="1:00:00"))
    assert found.least
    assert (found.nodes, found.memory_hours, found.least.memory_hours) == (3, 30, 10)
    assert dict(found.facts())["Nodes"].startswith("1 to 3, as Slurm finds them free")
    assert estimate_range(request(ntasks=4, mem_per_cpu="10G")).least is None


def test_whole_nodes_of_an_unknown_type_cost_the_dearest() -> None:
    """`--exclusive` promised the GPUs of the smallest node."""
    found = made(exclusive=True, mem="1G", time="1:00:00")
    assert found.gpu_hours == {"": 8}
    assert found.cost == Decimal("12.00")


def test_the_price_table_is_the_sites(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    config = f"{tmp_path}/config.toml"
    monkeypatch.setenv("SLURMKIT_CONFIG", config)
    with open(config, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write('[[gpu.a100.prices]]\nsince = 2020-01-01\ncurrency = "EUR"\non_premises = 2\n')
    assert estimate(request(capabilities(), gpus=Gpus(1, "a100"), time="1:00:00")).cost == 2


def test_weights_are_the_sites(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[gpu.h100]\naliases = ["H-100"]\nshard_weight = 0.125\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    asked = request(capabilities(), gpus=Gpus(shard=2), time="1:00:00")
    assert estimate(asked).gpu_hours == {"h100": 0.25}
    assert part_weight("h-100", "shard") == 0.125
    assert part_weight("h100", "mps") is None
    assert part_weight("other", "mps") is None


@pytest.fixture
def priced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        f"[[{what}.prices]]\nsince = 2023-01-01\ncurrency = 'EUR'\non_premises = {amount}\n"
        for what, amount in (("cpu", 0.01), ("memory", 0.002))
    ]
    (tmp_path / "config.toml").write_text("".join(lines))
    monkeypatch.setenv("SLURMKIT_CONFIG", str(tmp_path / "config.toml"))


@pytest.mark.usefixtures("priced")
def test_cpus_and_memory_cost_what_the_site_says() -> None:
    with_gpus = made(gpus=Gpus(2, "a100"), cpus_per_task=8, mem="64G", time="1:00:00")
    assert with_gpus.cost == Decimal("1.91")  # 2 x 0.85 + 8 x 0.01 + 64 x 0.002
    assert with_gpus.cloud_cost is None  # nobody has said what a CPU costs there
    without = made(cpus_per_task=8, mem="64G", time="1:00:00")
    assert without.cost == Decimal("0.21")
    assert dict(without.facts())["Costs"].startswith("at most 0.21 EUR")


def test_slurm_adds_other_nodes_to_a_short_nodelist() -> None:
    """Differential test, A: the most of a range is not limited to the named nodes."""
    found = estimate_range(request(nodes="1-2", nodelist="c2", cpus_per_task=3, mem="1G"))
    assert found.least is not None
    assert (found.least.nodes, found.nodes, found.cpu_hours) == (1, 2, 1.0)


def test_whole_nodes_differ_in_size() -> None:
    """Differential test, C: of one node, too, there is a least."""
    found = estimate_range(request(exclusive=True, nodes=1, mem="1G", time="1:00:00"))
    assert found.least
    assert (found.nodes, found.least.nodes) == (1, 1)
    assert (found.gpu_hours, found.least.gpu_hours) == ({"": 8}, {"": 4})
    text = dict(found.facts())["Nodes"]
    assert text.startswith("1, as Slurm finds them free; the lines below are for the largest;")
    assert estimate_range(request(exclusive=True, gpus=Gpus(1, "h100"), mem="1G")).least is None


@pytest.mark.parametrize(
    "spec",
    [
        {"exclusive": True, "nodes": 1, "mem": "1G"},
        {"mem": "0", "gpus": Gpus(1, "a100")},
        {"nodes": "1-2", "cpus_per_task": 3},
        {"ntasks": 200},
    ],
)
def test_drained_nodes_count_as_they_are_once_they_are_back(spec: dict[str, Any]) -> None:
    """While all of them were drained, "at most" was four times too low."""
    drained = replace(
        capabilities(),
        nodes=tuple(replace(node, states=("IDLE", "DRAIN")) for node in capabilities().nodes),
    )
    asked, up = request(drained, **spec), request(**spec)
    assert asked.fitting == ()
    assert (asked.nodes, asked.total, asked.most) == (up.nodes, up.total, up.most)
    assert estimate_range(asked) == estimate_range(up)
    assert possible_gpu_types(asked) == possible_gpu_types(up)


def test_of_several_partitions_the_most_of_any_counts() -> None:
    """Slurm chooses among them when the job starts."""
    known = with_partition("gpu", billing_weights={"cpu": 1.0}, default_time=60)
    known = with_partition("cpu", known, billing_weights={"cpu": 5.0}, default_time=30)
    both = [
        request(known, partition=name, cpus_per_task=4, mem="1G", time=None)
        for name in ("gpu", "cpu")
    ]
    for asked in (both, both[::-1]):
        found = estimate_in_all(asked)
        assert (found.cpu_hours, found.billing, found.billing_hours) == (4.0, 20, 10.0)
        assert found.sources["billing"] == "partition cpu: TRESBillingWeights"
    endless = request(with_partition("cpu", known, default_time=None, max_time=None),
                      partition="cpu", cpus_per_task=4, mem="1G", time=None)  # fmt: skip
    assert estimate_in_all([both[0], endless]).cpu_hours is None
    plan = plan_offline(
        JobSpec(command=("x",), partition="gpu,cpu", cpus_per_task=4, mem="1G", time="30"),
        SiteState(known, standing()),
    )
    assert plan.estimate is not None
    assert plan.estimate.billing == 20


def test_a_partition_in_which_the_job_never_starts_does_not_count() -> None:
    known = with_partition("gpu", billing_weights={"cpu": 1.0}, max_time=600)
    known = with_partition("cpu", known, billing_weights={"cpu": 5.0}, max_time=10)
    spec = JobSpec(command=("x",), partition="gpu,cpu", cpus_per_task=4, mem="1G", time="30")
    done = plan_offline(spec, SiteState(known, standing()))
    assert [finding.code for finding in done.warnings] == ["partition-max-time"]
    assert done.estimate is not None
    assert done.estimate.billing == 4
