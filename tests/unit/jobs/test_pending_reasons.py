"""Every reason of every release has words of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurmkit.jobs import pending_reasons

RECORDED = Path(__file__).parents[2] / "recorded" / "reasons.json"
BY_RELEASE: dict[str, list[str]] = json.loads(RECORDED.read_text("utf-8"))
NAMES = sorted({name for names in BY_RELEASE.values() for name in names})


def test_the_releases_are_those_between_the_oldest_and_the_newest_supported() -> None:
    assert list(BY_RELEASE) == "22.05 23.02 23.11 24.05 24.11 25.05 25.11 26.05".split()
    assert all(len(names) > 190 for names in BY_RELEASE.values())


@pytest.mark.parametrize("name", NAMES)
def test_every_reason_has_words(name: str) -> None:
    words = pending_reasons.explain_reason(name, "12")
    assert pending_reasons.is_known_reason(name)
    assert "Slurm says" not in words.meaning
    assert words.meaning.startswith("Slurm itself") or words.meaning[0].islower()
    assert not words.meaning.endswith(".")
    assert words.who
    assert words.advice
    assert "JOB" not in words.advice.replace("JobId", "")


def test_no_words_are_kept_for_a_reason_that_no_release_has() -> None:
    assert sorted(set(pending_reasons.TEXT_BY_NAME) - set(NAMES)) == []


def test_no_two_limits_are_said_alike() -> None:
    """Spellings of one limit are; the TRES types of all others differ."""
    said: dict[str, set[str]] = {}
    for name in NAMES:
        if limit := pending_reasons.parse_limit_reason(name):
            said.setdefault(pending_reasons.explain_reason(name, "12").meaning, set()).add(
                f"{limit.owner} {limit.kind.slurm} {limit.tres}"
            )
    assert {words: kinds for words, kinds in said.items() if len(kinds) > 1} == {}
    assert len(said) > 130


@pytest.mark.parametrize(
    ("name", "owner", "slurm", "tres", "waits"),
    [
        ("AssocGrpGRES", "association", "GrpTRES", "gres/", True),
        ("AssocGrpCPURunMinutesLimit", "association", "GrpTRESRunMins", "cpu", True),
        ("AssocMaxWallDurationPerJobLimit", "association", "MaxWall", "", False),
        ("AssocMaxJobsLimit", "association", "MaxJobs", "", True),
        ("AssocMaxSubmitJobLimit", "association", "MaxSubmitJobs", "", True),
        ("QOSMaxGRESPerUser", "qos", "MaxTRESPerUser", "gres/", True),
        ("QOSMaxJobsPerUserLimit", "qos", "MaxJobsPerUser", "", True),
        ("QOSMaxMemoryMinutesPerJob", "qos", "MaxTRESMinsPerJob", "mem", False),
        ("QOSMinCpuNotSatisfied", "qos", "MinTRESPerJob", "cpu", False),
        ("MaxGRESPerAccount", "qos", "MaxTRESPerAccount", "gres/", True),
        ("MaxCpuRunMinsPerUser", "qos", "MaxTRESRunMinsPerUser", "cpu", True),
    ],
)
def test_a_limit_is_read_from_its_name(
    name: str, owner: str, slurm: str, tres: str, waits: bool
) -> None:
    limit = pending_reasons.parse_limit_reason(name)
    assert limit is not None
    assert (limit.owner, limit.kind.slurm, limit.tres, limit.waits) == (owner, slurm, tres, waits)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:c[1-2]", "down, drained or reserved: c[1-2]"),
        ("ReqNodeNotAvail, Reserved for maintenance", "maintenance"),
        ("launch failed requeued held", "prolog failed"),
        ("job requeued in held state", "requeued and put on hold"),
        ("Job's QOS not permitted to use this partition (gpu allows high not low)", "gpu allows"),
        ("Reservation course was deleted", "never starts"),
        ("Nodes required for job are DOWN, DRAINED, REBOOTING or reserved", "too few nodes"),
    ],
)
def test_free_text_of_slurmctld_is_said_too(text: str, said: str) -> None:
    assert said in pending_reasons.explain_reason(text, "12").meaning


def test_the_tasks_of_an_array_may_wait_for_several_reasons() -> None:
    assert pending_reasons.reason_name("Priority,Resources") == "Priority"
    assert pending_reasons.explain_reason("JobArrayTaskLimit,Resources", "1").meaning.startswith(
        "its array already runs as many tasks"
    )
    assert pending_reasons.reason_name("ReqNodeNotAvail, UnavailableNodes:c1") == "ReqNodeNotAvail"


def test_an_unknown_reason_is_shown_as_it_is() -> None:
    words = pending_reasons.explain_reason("BrandNewReason {0}", "12")
    assert words.meaning == "Slurm says: BrandNewReason {0}"
    assert words.who == "unknown"


def test_the_advice_names_the_job() -> None:
    assert "slurmkit release 12_3" in pending_reasons.explain_reason("JobHeldUser", "12_3").advice


def test_a_hold_that_the_user_can_release_is_not_said_to_be_the_users() -> None:
    """The service holds jobs with idle GPUs like that (`scontrol uhold`)."""
    words = pending_reasons.explain_reason("JobHeldUser", "12")
    assert words.meaning.startswith("it is on hold, and its user can release it")
    assert "has put" not in words.meaning


@pytest.mark.parametrize("name", NAMES)
def test_nobody_who_can_act_is_told_only_to_wait(name: str) -> None:
    """`Who can act  you; wait`."""
    words = pending_reasons.explain_reason(name, "12")
    assert words.advice != "wait" or words.who == pending_reasons.TIME


@pytest.mark.parametrize(
    ("reason", "planned"),
    [
        ("Resources", True),
        ("Priority", True),
        ("BeginTime", True),
        ("Licenses", True),
        ("ReqNodeNotAvail, Reserved for maintenance", True),
        ("ReqNodeNotAvail, UnavailableNodes:c1", True),
        ("AssocMaxGRESPerJob", False),
        ("QOSMaxCpuPerJobLimit", False),
        ("QOSGrpGRES", False),
        ("AssocGrpGRES", False),
        ("PartitionTimeLimit", False),
        ("QOSNotAllowed", False),
        ("QOSUsageThreshold", False),
        ("JobHeldUser", False),
        ("uid 10017 not in group permitted to use this partition (g). groups allowed: g", False),
        ("something new", False),
    ],
)
def test_slurm_plans_no_job_that_a_limit_stops(reason: str, planned: bool) -> None:
    assert pending_reasons.may_be_planned(reason) == planned
