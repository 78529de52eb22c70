"""Sweeps that were sent: remembered, found by their comments, shown by point, run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from jobs_lab import FakeJobs

from slurmkit.cli import why
from slurmkit.cluster import sweeps
from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.sweep_results import (
    UNSENT,
    parse_point_states,
    read_sweep_results,
    rerun_spec,
)
from slurmkit.diagnose.model import Explanation
from slurmkit.errors import BadInput, Refused
from slurmkit.planning.arrays import ArrayLimits, split_array
from slurmkit.planning.planner import Plan
from slurmkit.spec.jobspec import JobSpec, with_array
from slurmkit.spec.submission import Submission
from slurmkit.spec.sweep import Sweep
from slurmkit.state.arrays import (
    ArrayTag,
    MergedArrayRow,
    array_cells,
    drop_foreign_tags,
    group_by_array,
    matches_job_id,
    merge_pending_rows,
    parse_array_tag,
    shown_id,
    to_user_array_id,
)
from slurmkit.state.model import Capabilities
from slurmkit.state.queue_rows import QueueRow
from slurmkit.testing import sacct_text

TOKEN = "0123456789ab"
CLUSTER = Capabilities(
    taken=0, release=(24, 11, 5), cluster_name="lab", config={}, nodes=(), partitions=()
)


class Jobs(FakeJobs):
    """Slurm that takes jobs: each array that is sent waits, under a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[list[str]] = []
        self.refuses = 0  # the submit of that number; 0 for none
        self.interrupts = 0
        self.slurm._answers |= {"sbatch": self._sbatch, "scancel": self._scancel}

    def _sbatch(self, argv: Sequence[str], stdin: str | None) -> str:
        self.sent.append(list(argv))
        if len(self.sent) == self.refuses:
            raise Refused("Batch job submission failed: too many")
        job_id = str(10 * len(self.sent))
        given = next(word for word in (stdin or "").split() if word.startswith("--array="))
        comment = next(word for word in argv if word.startswith("--comment=")).partition("=")[2]
        indices = given.removeprefix("--array=").strip('"')
        self.waits(f"{job_id}_[{indices}]", Comment=comment, JobID=job_id)
        if len(self.sent) == self.interrupts:
            raise KeyboardInterrupt
        return f"{job_id}\n"

    def _scancel(self, argv: Sequence[str], stdin: str | None) -> str:
        for job_id in (word for word in argv if word.isdigit()):
            self.queue = {k: v for k, v in self.queue.items() if not k.startswith(f"{job_id}_")}
        return ""

    def cluster(self) -> Cluster:
        made = super().cluster()
        made.capabilities = lambda *, refresh=False: CLUSTER  # type: ignore[method-assign]
        return made

    def task(self, job_id: str, state: str, code: str = "0:0") -> None:
        """A task ends, and slurmctld forgets it."""
        self.runs.append({"JobID": job_id, "State": state, "ExitCode": code})


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


def made(count: int = 25, size: int = 10, array: str | None = None, **fields: object) -> Plan:
    spec = JobSpec(command=("a", "{i}"), sweep=Sweep.grid(i=range(count)), array=array, **fields)  # type: ignore[arg-type]
    spec = with_array(spec)
    parts = split_array(spec.array or "", ArrayLimits(size))
    sent = tuple(
        Submission(
            f"#!/bin/bash\n#SBATCH --array={part.array}\n",
            (("array", part.array), ("chdir", "/proj")),
            () if part.after is None else (part.after,),
            "afterany",
            part,
        )
        for part in parts
    )
    return Plan(submissions=sent, spec=spec, capabilities_taken=0)


def test_each_part_says_what_it_is_of(jobs: Jobs) -> None:
    job = jobs.cluster().submit(made())
    assert (job.id, [part.id for part in job.parts]) == ("10", ["10", "20", "30"])
    tags = [parse_array_tag(argv[-1]) for argv in jobs.sent]
    token = tags[0].token if tags[0] else ""
    assert tags == [
        ArrayTag(token, 0, 25),
        ArrayTag(token, 10, 25, "10"),
        ArrayTag(token, 20, 25, "10"),
    ]


def test_chained_parts_wait_for_the_one_before(jobs: Jobs) -> None:
    jobs.cluster().submit(made(array="0-24%2"))
    after = [[word for word in argv if "depend" in word] for argv in jobs.sent]
    assert after == [[], ["--dependency=afterany:10"], ["--dependency=afterany:20"]]


def test_a_refusal_half_way_takes_all_back(jobs: Jobs) -> None:
    jobs.refuses = 3
    with pytest.raises(Refused, match=r"the jobs sent before \(10, 20\) are cancelled"):
        jobs.cluster().submit(made())
    assert not jobs.queue


def test_ctrl_c_takes_back_also_what_nobody_has_heard_of(jobs: Jobs) -> None:
    jobs.interrupts = 2
    with pytest.raises(KeyboardInterrupt):
        jobs.cluster().submit(made())
    assert not jobs.queue
    assert len(jobs.sent) == 2


def test_nothing_is_remembered_of_what_was_refused(jobs: Jobs) -> None:
    jobs.refuses = 1
    with pytest.raises(Refused):
        jobs.cluster().submit(made())
    assert list(sweeps.load_records(jobs.cluster())) == []


def test_the_secrets_of_a_job_are_not_remembered(jobs: Jobs, home: Path) -> None:
    plan = made(environment={"HF_TOKEN": "hf_" + "x" * 34, "A": "b"})
    jobs.cluster().submit(plan)
    (path,) = (home / "slurmkit" / "arrays" / "lab").iterdir()
    assert "hf_x" not in path.read_text("utf-8")
    assert path.stat().st_mode & 0o777 == 0o600
    record = sweeps.load_record(jobs.cluster(), "10")
    assert record is not None
    assert (record.secrets, record.spec.environment) == (("HF_TOKEN",), {"A": "b"})
    assert rerun_spec(record, [3], {"HF_TOKEN": "t"}).environment == {"A": "b", "HF_TOKEN": "t"}
    with pytest.raises(BadInput, match="the sweep needs the variable HF_TOKEN, a secret"):
        rerun_spec(record, [3], {})


# --- found again ----------------------------------------------------------------------------------


def ids(found: Callable[[], Cluster], job_id: str) -> list[str]:
    return [part.id for part in found().handle(job_id).parts]


@pytest.mark.parametrize("remembered", [True, False])
def test_the_first_id_stands_for_the_whole(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, remembered: bool
) -> None:
    jobs.cluster().submit(made())
    if not remembered:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    assert ids(jobs.cluster, "10") == ["10", "20", "30"]
    assert ids(jobs.cluster, "10_13") == ["20_3"]
    assert ids(jobs.cluster, "10_24") == ["30_4"]
    assert ids(jobs.cluster, "10_9") == ["10_9"]
    assert ids(jobs.cluster, "20") == ["20"]
    assert jobs.cluster().handle("10_13").named("20_3") == "10_13"


def test_a_job_that_has_its_number_anew_is_not_taken_for_it(jobs: Jobs) -> None:
    jobs.cluster().submit(made())
    jobs.queue = {}
    jobs.runs_now("10")
    assert ids(jobs.cluster, "10") == ["10"]


def test_slurmdbd_knows_the_whole_when_slurmctld_has_forgotten_it(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = {
        "10": ArrayTag(TOKEN, 0, 25),
        "20": ArrayTag(TOKEN, 10, 25, "10"),
        "40": ArrayTag("f" * 12, 0, 9),
    }
    for job_id, tag in lines.items():
        said = f"sbatch --parsable --comment={tag.comment_text()}"
        jobs.runs.append({"JobID": f"{job_id}_0", "SubmitLine": said})
    kept = jobs.slurm._answers["sacct"]

    def sacct(argv: Sequence[str], stdin: str | None) -> str:
        asked = [*argv, "--jobs=10,20,40"] if "--user=alice" in argv else argv
        return kept(asked, stdin)

    monkeypatch.setitem(jobs.slurm._answers, "sacct", sacct)
    assert ids(jobs.cluster, "10") == ["10", "20"]
    assert ids(jobs.cluster, "40") == ["40"]


def test_another_users_array_is_no_part_of_the_whole(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mallory writes alice's token, which squeue shows, in a comment."""
    tags = {
        ("alice", "10"): ArrayTag(TOKEN, 0, 25),
        ("alice", "20"): ArrayTag(TOKEN, 10, 25, "10"),
        ("mallory", "30"): ArrayTag("f" * 12, 0, 9),
        ("mallory", "40"): ArrayTag(TOKEN, 20, 25, "10"),
    }
    runs = [
        {
            "JobID": f"{job_id}_0",
            "User": user,
            "SubmitLine": f"sbatch --comment={tag.comment_text()}",
        }
        for (user, job_id), tag in tags.items()
    ]

    def sacct(argv: Sequence[str], stdin: str | None) -> str:
        chosen = [
            run
            for run in runs
            if f"--user={run['User']}" in argv
            or any(word.startswith("--jobs=") and run["JobID"][:2] in word for word in argv)
        ]
        return sacct_text(argv, chosen)

    monkeypatch.setitem(jobs.slurm._answers, "sacct", sacct)
    found = sweeps.find_split_arrays(jobs.cluster(), ["10", "30"])
    assert {first: list(array.offsets) for first, array in found.items()} == {
        "10": ["10", "20"],
        "30": ["30"],
    }


def test_another_users_tag_is_dropped() -> None:
    first = ArrayTag(TOKEN, 0, 25).comment_text()
    later = ArrayTag(TOKEN, 10, 25, "10").comment_text()
    rows = [
        row("10_3", first),
        row("20_4", later),
        row("99_1", f"hog {later}", user="mallory"),
        row("98_1", ArrayTag("f" * 12, 2, 9, "10").comment_text()),  # another token
        row("97_1", ArrayTag("f" * 12, 2, 9, "12345").comment_text(), user="mallory"),
        row("96_1", ArrayTag("f" * 12, 2, 9, "12345").comment_text(), user="me"),
    ]
    found = drop_foreign_tags(rows, "me")
    assert [shown_id(each) for each in found] == [
        "10_3",
        "10_14",
        "99_1",
        "98_1",
        "97_1",
        "12345_3",
    ]
    assert found[2].comment == "hog"
    assert not matches_job_id(found[2], "10_11")
    assert matches_job_id(found[2], "99_1")


# --- one row --------------------------------------------------------------------------------------


def row(job_id: str, comment: str = "", user: str = "alice") -> QueueRow:
    fields: Mapping[str, object] = {
        "raw_id": job_id.partition("_")[0], "account": "a", "partition": "p", "qos": "q",
        "state": "PENDING", "nodes": 1, "cpus": 1, "tres": "", "gpus": 0, "priority": 1,
        "submitted": 1, "started": None, "time_used": "0:00", "time_limit": "1:00",
        "node_list": "", "reason": "Resources", "workdir": "/", "output": "", "name": "n",
    }  # fmt: skip
    return QueueRow(job_id=job_id, user=user, comment=comment, **fields)  # type: ignore[arg-type]


def test_one_row_for_the_whole() -> None:
    first, later = (
        ArrayTag(TOKEN, 0, 25).comment_text(),
        f"mine {ArrayTag(TOKEN, 10, 25, '10').comment_text()}",
    )
    rows = [row("10_[3-9%2]", first), row("20_4", later), row("20_[6-9%3]", later), row("7")]
    rows.append(row("30_[0-4]", ArrayTag(TOKEN, 20, 25, "10").comment_text(), user="mallory"))
    found = group_by_array(rows)
    assert [len(each) for each in found] == [3, 1, 1]
    assert array_cells(found[0], gpus_known=True)[0] == "10_[3-9,14,16-19%5]"
    assert array_cells(found[0][1:2], gpus_known=True)[0] == "10_14"
    assert matches_job_id(rows[1], "10_14")
    assert matches_job_id(rows[1], "20_4")
    assert not matches_job_id(rows[1], "10_4")


def test_what_waits_of_the_whole_is_joined() -> None:
    first, later = (
        ArrayTag(TOKEN, 0, 25).comment_text(),
        ArrayTag(TOKEN, 10, 25, "10").comment_text(),
    )
    rows = [row("7"), row("10_[3-9%2]", first), row("20_4", later), row("20_[6-9%3]", later)]
    rows.append(row("30_[0-4]", ArrayTag(TOKEN, 20, 25, "10").comment_text(), user="mallory"))
    found = merge_pending_rows(rows)
    assert [shown_id(each) for each in found] == [
        "7", "10_[3-9,16-19%5]", "10_14", "10_[20-24]",
    ]  # fmt: skip
    assert isinstance(found[1], MergedArrayRow)
    assert found[1].rows == (rows[1], rows[3])
    assert merge_pending_rows(rows[:3]) is not None
    assert merge_pending_rows(rows[:1]) == rows[:1]


def test_ids_of_the_whole() -> None:
    assert to_user_array_id("20_[0,3-9:2%4]", "10", 100) == "10_[100,103-109:2%4]"
    assert to_user_array_id("20", "10", 100) == "20"
    assert shown_id(row("20_3", "no tag")) == "20_3"
    assert parse_array_tag("slurmkit-array:short:1:2") is None


def test_why_looks_at_the_part_that_waits_and_names_it_as_its_user_does(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = jobs.cluster()
    cluster.submit(made())
    asked: list[str] = []

    def explain(_: object, job_id: str, **_asked: bool) -> Explanation:
        asked.append(job_id)
        answer = f"job {job_id}_[0-9] waits: for resources; scontrol show job {job_id}_[0-9]"
        facts = {"name": "a", "user": "alice", "account": "x", "partition": "p", "state": "PENDING"}
        return Explanation(job_id=f"{job_id}_[0-9]", answer=answer, taken=0, source="", **facts)

    monkeypatch.setattr(why, "Cluster", lambda: cluster)
    monkeypatch.setattr(why, "explain", explain)
    jobs.queue = {k: v for k, v in jobs.queue.items() if not k.startswith("10_")}
    said = CliRunner().invoke(why.why_command, ["10"]).output
    assert said.startswith("job 10_[10-19] waits")
    jobs.queue = {}
    for index in range(25):
        jobs.task(f"{10 * (1 + index // 10)}_{index % 10}", "FAILED" if index > 20 else "COMPLETED")
    CliRunner().invoke(why.why_command, ["10"])
    CliRunner().invoke(why.why_command, ["10_13"])
    assert asked == ["20", "30", "20_3"]


# --- point by point -------------------------------------------------------------------------------


def test_points_and_those_that_failed_again(jobs: Jobs) -> None:
    cluster = jobs.cluster()
    cluster.submit(made())
    jobs.queue = {}
    for index in range(25):
        own = f"{10 * (1 + index // 10)}_{index % 10}"
        jobs.task(own, *(("FAILED", "3:0") if index in (4, 13) else ("COMPLETED", "0:0")))
    found = read_sweep_results(cluster, "10")
    assert found.tally == {"COMPLETED": 23, "FAILED": 2}
    failed = [p for p in found.points if p.state in parse_point_states("failed")]
    assert [(p.index, p.parameters, p.exit_code) for p in failed] == [
        (4, {"i": "4"}, "3:0"),
        (13, {"i": "13"}, "3:0"),
    ]
    spec = rerun_spec(found.runs[0], [p.index for p in failed])
    assert (spec.array, spec.chdir) == ("4,13", "/proj")
    again = cluster.submit(made(array=spec.array), again="10")
    assert again.id == "40"
    assert [parse_array_tag(argv[-1]).offset for argv in jobs.sent[3:]] == [0, 13]  # type: ignore[union-attr]
    jobs.queue = {}
    jobs.task("40_4", "COMPLETED")
    jobs.task("50_0", "TIMEOUT")
    for asked in ("10", "40"):
        now = read_sweep_results(cluster, asked)
        assert now.first == "10"
        assert {p.index: p.state for p in now.points if p.state != "COMPLETED"} == {13: "TIMEOUT"}
        assert len(now.points) == 25


def test_what_was_not_sent_is_told(jobs: Jobs) -> None:
    cluster = jobs.cluster()
    cluster.submit(made())
    record = sweeps.load_record(cluster, "10")
    assert record is not None
    sweeps.save_record(cluster, msgspec.structs.replace(record, sent=record.sent[:1]))
    found = read_sweep_results(cluster, "10")
    assert (found.tally, found.unsent) == ({"PENDING": 10, UNSENT: 15}, 2)
    assert sum(p.state in parse_point_states("unsent") for p in found.points) == 15
    assert parse_point_states("failed") < parse_point_states("unfinished")
    with pytest.raises(BadInput, match="there is no record of a sweep 77"):
        read_sweep_results(cluster, "77")
