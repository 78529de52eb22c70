"""Arrays, times, signals, mail, switches and dependencies."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from checked_requests import NOW, errors, findings, only, request, with_config
from recorded_lab import RECORDED, capabilities

from slurmkit.errors import DatabaseDown, NoSuchJob, SlurmError
from slurmkit.planning.checks.live import check_dependencies, check_topology
from slurmkit.planning.checks.registry import check
from slurmkit.planning.checks.times import parse_begin_time
from slurmkit.spec.findings import Finding
from slurmkit.spec.jobspec import JobSpec
from slurmkit.testing import FakeSlurm

# --- arrays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("array", ["0-1001", "1001-2000%5", "5000", "0-1000"])
def test_an_index_beyond_maxarraysize_is_sent_in_parts(array: str) -> None:
    assert not [f for f in check(request(array=array)) if f.severity == "error"]


def test_a_cluster_without_arrays_says_so() -> None:
    assert errors(findings(with_config(MaxArraySize="1"), array="0-3")) == ["max-array-size"]


def test_tasks_of_an_array_are_counted() -> None:
    jobs = with_config(MaxJobCount="100")
    assert errors(findings(jobs, array="0-99")) == ["max-job-count"]


# --- times ----------------------------------------------------------------------------------------


def test_moments_as_sbatch_takes_them() -> None:
    assert parse_begin_time("now", NOW) == NOW
    assert parse_begin_time("now+2hours", NOW) == NOW + 7200
    assert parse_begin_time("now+90", NOW) == NOW + 90
    utc = dt.datetime.fromtimestamp(NOW).astimezone().utcoffset()
    assert utc is not None
    assert parse_begin_time("2023-11-14T22:13:20", NOW) == NOW - utc.total_seconds()
    assert parse_begin_time("teatime", NOW) is None
    assert parse_begin_time("20231114", NOW) is None


@pytest.mark.parametrize(
    ("spec", "severity", "code", "fix"),
    [
        ({"begin": "2020-01-01"}, "warning", "begin-passed", "no --begin"),
        ({"deadline": "2020-01-01"}, "error", "deadline-passed", "no --deadline"),
        ({"deadline": "now+5minutes"}, "error", "deadline-too-near", "--time=4:00"),
        (
            {"deadline": "now+20minutes", "begin": "now+15minutes"},
            "error",
            "deadline-too-near",
            "--time=4:00",
        ),
        ({"signal": "B:USR1@1200"}, "warning", "signal-at-start", "--signal=B:USR1@300"),
        ({"signal": "USR1", "time": "1"}, "warning", "signal-at-start", "--signal=USR1@30"),
        ({"mail_user": "a@b.c"}, "warning", "mail-no-type", "--mail-type=END,FAIL"),
        ({"mail_type": "END"}, "warning", "mail-no-address", ""),
        ({"segment": 2}, "warning", "segment-unused", "no --segment"),
    ],
)
def test_what_is_likely_not_meant(spec: dict[str, Any], severity: str, code: str, fix: str) -> None:
    finding = only(findings(**spec))
    assert (finding.severity, finding.code) == (severity, code)
    assert finding.fix_words == fix


def test_mail_that_the_service_sends_goes_to_the_address_in_the_directory() -> None:
    """It was said to go to the local user on the controller's machine."""
    ours = with_config(MailProg="/etc/slurm/slurmkit-mail")
    finding = only(findings(ours, mail_type="END"))
    assert (finding.severity, finding.code) == ("note", "mail-no-address")
    assert finding.message == "mail goes to the address of alice in the directory"


@pytest.mark.parametrize(
    "spec",
    [
        {"begin": "now+1hour"},
        {"deadline": "now+1hour"},
        {"deadline": "now+5minutes", "time_min": "1"},
        {"signal": "USR1@60"},
        {"mail_type": "END", "mail_user": "a@b.c"},
        {"mail_type": "NONE"},
        {"switches": "1"},
    ],
)
def test_what_is_well(spec: dict[str, Any]) -> None:
    assert not findings(**spec)


def test_switches_and_segments_need_their_topology() -> None:
    assert only(findings(with_config(TopologyPlugin="topology/flat"), switches="1")).code == (
        "switches-unused"
    )
    block = with_config(TopologyPlugin="topology/block")
    assert errors(findings(block, segment=2, nodes=3)) == ["segment-uneven"]
    assert not errors(findings(block, segment=2, nodes=2))
    assert errors(findings(block, segment=4, nodes=2)) == ["segment-uneven"]
    newer = with_config(capabilities("26.05"), TopologyPlugin="topology/block")
    assert not errors(findings(newer, segment=4, nodes=2))
    assert errors(findings(capabilities("22.05"), segment=1)) == ["segment-unknown"]


# --- topology -------------------------------------------------------------------------------------

TREE = (RECORDED / "24.11" / "scontrol-topology.txt").read_text("utf-8")
BLOCKS = "BlockName=b1 BlockIndex=0 Nodes=c[1-2] BlockSize=2\n"


def on_switches(said: str | SlurmError, plugin: str = "tree", **fields: Any) -> list[Finding]:
    def scontrol(argv: Sequence[str], _: str | None) -> str:
        assert list(argv) == ["scontrol", "show", "topology"]
        if isinstance(said, SlurmError):
            raise said
        return said

    asked = request(with_config(TopologyPlugin=f"topology/{plugin}"), **fields)
    return list(check_topology(FakeSlurm({"scontrol": scontrol}), [asked]))


def test_the_plan_names_the_switches_that_a_job_may_be_on() -> None:
    (note,) = on_switches(TREE, switches="1", nodes=2)
    assert (
        note.message
        == "topology/tree: the job's nodes are on leaf switches leaf1 (c[1-2]), leaf2 (c3)"
    )
    assert note.source == "scontrol show topology"
    (note,) = on_switches(BLOCKS, "block", segment=1, nodes=2)
    assert note.message == "topology/block: the job's nodes are on blocks b1 (c[1-2])"


def test_too_few_switches_are_told_with_how_long_it_waits_in_vain() -> None:
    _, warning = on_switches(TREE, switches="1", nodes=3)
    assert (warning.code, warning.fix_words) == ("switches-too-few", "--switches=2")
    assert (
        "3 nodes do not fit on 1 of the leaf switches: the job would wait 5:00" in warning.message
    )
    _, warning = on_switches(TREE, switches="1@2", nodes=3)
    assert "the job would wait 2:00" in warning.message
    assert len(on_switches(TREE, switches="2@10:00", nodes=3)) == 1


def test_nobody_asks_for_a_topology_that_no_option_is_about() -> None:
    assert not on_switches(SlurmError("no"), switches="1", nodes=2)
    assert not on_switches(TREE, "flat", switches="1", nodes=2)
    assert not on_switches(TREE, nodes=2)
    assert check_topology(FakeSlurm({}), []) == ()


# --- dependencies ---------------------------------------------------------------------------------

Answer = Callable[[Sequence[str], str | None], str]


def queue(text: str) -> Answer:
    def squeue(argv: Sequence[str], _: str | None) -> str:
        ids = next(word for word in argv if word.startswith("--jobs=")).removeprefix("--jobs=")
        rows = [r for r in text.splitlines() if r.split("_")[0].split(" ")[0] in ids.split(",")]
        if not rows and "," not in ids:
            raise NoSuchJob("slurm_load_jobs error: Invalid job id specified")
        return "\n".join(rows) + "\n"

    return squeue


def depends(on: str, *, here: str = "", past: str | SlurmError = "") -> tuple[Finding, ...]:
    def sacct(argv: Sequence[str], _: str | None) -> str:
        if isinstance(past, SlurmError):
            raise past
        return past

    border = FakeSlurm({"squeue": queue(here), "sacct": sacct})
    return check_dependencies(border, JobSpec(command=("x",), dependency=on))


HERE = "12 RUNNING\n13 FAILED\n14 COMPLETED\n20_1 FAILED\n20_[2-9] PENDING\n21_1 COMPLETED\n"


@pytest.mark.parametrize(
    ("on", "code", "severity", "fix"),
    [
        ("afterok:12", None, None, ""),
        ("afterok:13", "dependency-never", "error", "no --dependency"),
        ("afternotok:14", "dependency-never", "error", "no --dependency"),
        ("afterok:14", None, None, ""),
        ("afterany:13", None, None, ""),
        ("after:12+5", None, None, ""),
        ("afterok:20", "dependency-never", "error", "no --dependency"),
        ("afterok:20_3", None, None, ""),
        ("afterok:20_1", "dependency-never", "error", "no --dependency"),
        ("afterok:21_*", None, None, ""),
        ("afterok:99", "dependency-unknown", "error", "no --dependency"),
        ("afterany:99", "dependency-unknown", "error", "no --dependency"),
        ("afterok:12:99", "dependency-unknown", "error", "--dependency=afterok:12"),
        ("afterok:12,afterany:99", "dependency-unknown", "error", "--dependency=afterok:12"),
        ("afterok:12?afterany:99", "dependency-unknown", "error", "--dependency=afterok:12"),
        ("afterok:13:12", "dependency-never", "error", "--dependency=afterok:12"),
        ("afterok:30", "dependency-over", "error", "no --dependency"),
        ("afterany:30", "dependency-over", "note", "no --dependency"),
        ("afterok:31", "dependency-never", "error", "no --dependency"),
        ("singleton", None, None, ""),
    ],
)
def test_dependencies(on: str, code: str | None, severity: str | None, fix: str) -> None:
    found = depends(on, here=HERE, past="30|COMPLETED\n31|CANCELLED by 10011\n")
    if code is None:
        assert not found
        return
    (finding,) = found
    assert (finding.code, finding.severity, finding.fix_words) == (code, severity, fix)


def test_jobs_that_cannot_be_waited_for_have_one_fix() -> None:
    found = depends("afterok:13:12,afterany:99,after:98", here=HERE)
    assert [each.code for each in found] == ["dependency-never", *["dependency-unknown"] * 2]
    assert {each.fix_words for each in found} == {"--dependency=afterok:12"}


def test_an_unknown_job_while_slurmdbd_is_down_is_said_to_be_unknown() -> None:
    (finding,) = depends("afterok:99", here=HERE, past=DatabaseDown("down"))
    assert (finding.severity, finding.code) == ("warning", "unknown-dependency")


def test_no_dependency_asks_nobody() -> None:
    border = FakeSlurm({})
    assert check_dependencies(border, JobSpec(command=("x",))) == ()
    assert not border.asked


def test_each_job_is_asked_for_once() -> None:
    border = FakeSlurm({"squeue": queue(HERE), "sacct": lambda *_: ""})
    check_dependencies(border, JobSpec(command=("x",), dependency="afterok:12:13,afterany:12"))
    assert len(border.asked) == 1
    assert "--jobs=12,13" in border.asked[0]


def test_minutes_count_from_a_start_only() -> None:
    here = "12 RUNNING\n13 RUNNING\n"
    (found,) = depends("after:12+5,afterok:13+5", here=here)
    assert (found.code, found.severity) == ("dependency-minutes", "warning")
    assert found.message.startswith(
        "afterok:13+5: Slurm ignores the minutes; only after:JOB+MINUTES"
    )
    assert not depends("after:12+5", here=here)
