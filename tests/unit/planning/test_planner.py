"""From a spec to a plan, beside what a real cluster said of itself."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checked_requests import with_partition, with_settings
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planner_lab import Lab
from recorded_lab import RELEASES, capabilities, slurm, standing

from slurmkit.cli.submit import plan_json
from slurmkit.errors import Refused
from slurmkit.planning.checks.fixes import Check, FixSearch
from slurmkit.planning.containers import check_shared_containers
from slurmkit.planning.planner import Plan, plan, plan_offline, run_test_only, with_past_waits
from slurmkit.planning.request import Request, SiteState
from slurmkit.spec.containers import Container
from slurmkit.spec.findings import error
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch
from slurmkit.spec.sbatch_options import with_options
from slurmkit.spec.submission import Submission
from slurmkit.state.model import Capabilities, Reservation, Standing
from slurmkit.state.past_waits import PastWaits, WaitsOfKind, job_kind
from slurmkit.testing import FakeSlurm


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SLURMKIT_CONFIG", raising=False)


def made(border: FakeSlurm | None = None, **options: Any) -> Plan:
    spec = JobSpec(**{"command": ("x",), "chdir": "/", "time": "10", **options})
    return plan(spec, Lab(border or slurm()))


def codes(found: Sequence[Any]) -> list[str]:
    return [finding.code for finding in found]


@pytest.mark.parametrize("release", RELEASES)
def test_a_plan_is_the_script_and_what_it_would_take(release: str) -> None:
    done = made(slurm(release), gpus=Gpus(2, "A100"), nodes=2)
    assert dict(done.submissions[0].options)["gpus-per-node"] == "a100:2"
    assert not done.errors
    assert done.estimate
    assert done.estimate.start == 1_700_000_100
    assert msgspec.json.encode(done)


def test_a_plan_says_how_long_jobs_like_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = job_kind("gpu", None, {"gres/gpu:a100": 4, "node": 2}, 600)
    waits = WaitsOfKind(kind=kind.wider()[1], jobs=30, half=90, nine_in_ten=7200)
    known = PastWaits(kinds=(waits,), begin=1, end=2, source="books")
    monkeypatch.setattr("slurmkit.planning.planner.load_past_waits", lambda *_: known)
    done = made(gpus=Gpus(2, "A100"), nodes=2, partition="gpu")
    assert done.estimate
    assert not done.estimate.waited  # only who shows it asks for it
    estimate = with_past_waits(done, Lab(slurm())).estimate
    assert estimate
    assert estimate.past_waits == waits
    said = dict(estimate.facts())["Waited"]
    assert said.startswith("half up to 2 min, nine in ten up to 2 h: 30 or more jobs with 2 to 4")
    for gpus, other in (
        (Gpus.parse("0.5"), {}),
        (None, {"options": {"tres-per-task": "gres/gpu:1"}}),
    ):
        unsure = with_past_waits(made(gpus=gpus, **other), Lab(slurm())).estimate
        assert unsure
        assert unsure.job_kind is None


def test_a_range_of_nodes_is_sent_as_it_is_and_estimated_at_both_ends() -> None:
    done = made(gpus=Gpus(2, "a100"), nodes="1-400")
    assert dict(done.submissions[0].options)["nodes"] == "1-400"
    assert done.estimate
    assert done.estimate.least
    a100 = len(capabilities().nodes_of("gpu")) - 1  # one of them has no types
    assert (done.estimate.nodes, done.estimate.least.nodes) == (a100, 1)
    assert done.estimate.gpu_hours == {"a100": a100 * 2 / 6}
    assert done.estimate.least.gpu_hours == {"a100": 2 / 6}
    said = dict(done.estimate.facts())["Nodes"]
    assert said.startswith(
        f"1 to {a100}, as Slurm finds them free; the lines below are for {a100}; on 1: at"
    )
    for nodes in (2, "2-2,2"):
        assert made(nodes=nodes).estimate.least is None  # type: ignore[union-attr]


def test_the_same_bytes_every_time() -> None:
    options = {"gpus": Gpus(fraction=0.5), "environment": {"B": "2", "A": "1"}}
    assert made(**options).submissions == made(**options).submissions


def test_slurmctld_is_asked_last_and_its_refusal_counts() -> None:
    def refuse(argv: Sequence[str], _: str | None) -> str:
        raise Refused("Invalid qos specification")

    done = made(slurm(sbatch=refuse))
    assert codes(done.errors) == ["slurm-refuses"]
    assert "Invalid qos specification" in done.errors[0].message


def test_a_refusal_that_slurm_itself_does_not_keep_to_is_a_warning() -> None:
    def refuse(argv: Sequence[str], _: str | None) -> str:
        raise Refused("allocation failure: Requested node configuration is not available")

    done = made(slurm(sbatch=refuse))
    assert not done.errors
    assert codes(done.warnings) == ["slurm-refuses"]


@pytest.mark.parametrize("words", ["Requested nodes are busy", "Licenses not available"])
def test_what_is_in_use_now_is_no_error(words: str) -> None:
    """The job waits for licences, and Slurm runs it later."""

    def refuse(argv: Sequence[str], _: str | None) -> str:
        raise Refused(f"allocation failure: {words}")

    done = made(slurm(sbatch=refuse))
    assert not done.errors
    assert not done.warnings
    assert "slurm-busy" in codes(done.notes)
    licensed = Submission("#!/bin/sh\n", (("licenses", "matlab:1"),))
    _, (busy,) = run_test_only(slurm(sbatch=refuse), licensed)
    assert "all nodes or licences (matlab:1) that it needs are in use" in busy.message


def test_slurmctld_is_not_asked_when_we_know_better() -> None:
    border = slurm()
    assert codes(made(border, gpus=Gpus(9, "a100")).errors) == ["gpus-per-node"]
    assert not [argv for argv in border.asked if argv[0] == "sbatch"]


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"partition": "gpus"}, "partition-unknown", "did you mean 'gpu'"),
        ({"gpus": Gpus(1, "a10")}, "gpu-no-such-type", "did you mean 'a100'"),
        ({"launch": Launch(mpi="pmi9")}, "mpi-unknown", "it has"),
        ({"gpus": Gpus(shard=1, bind="closest")}, "gpu-bind-part", "whole GPUs"),
        ({"launch": Launch(launcher="srun"), "command": (), "script": "#!/bin/sh\n"},
         "launcher-needs-command", "whole script"),
    ],
)  # fmt: skip
def test_errors(options: dict[str, Any], code: str, says: str) -> None:
    done = made(**options)
    assert code in codes(done.errors)
    assert says in done.errors[0].message


@pytest.mark.parametrize(
    "options",
    [
        {"command": ("curl", "-H", "ghp_" + "b" * 36)},
        {"comment": "glpat-" + "c" * 20},
        {"job_name": "glpat-" + "c" * 20},
        {"options": {"wckey": "sk-proj-" + "c" * 40}},
        {"command": (), "script": "#!/bin/sh\necho AKIA" + "D" * 16 + "\n"},
    ],
)
def test_secrets_are_never_sent(options: dict[str, Any]) -> None:
    done = made(**options)
    assert codes(done.unsafe) == ["secret"]
    shown = done.unsafe[0].message
    assert not any(part in shown for part in ("aaaa", "bbbb", "cccc", "DDDD"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_API_KEY", "xaaaa"),
        ("X", "hf_" + "a" * 34),
        ("AWS_SECRET_ACCESS_KEY", "aa/aaaaaaa+aaaa"),
        ("PGPASSWORD", "aaaa"),
        ("WANDB_KEY", "xaaaa"),
        ("HF_TOKEN_2", "xaaaa"),
        ("GITHUB_PAT", "xaaaa"),
        ("PASSWORD", "/aaaa.x"),
    ],
)
def test_variables_that_look_like_secrets_travel_in_a_file(name: str, value: str) -> None:
    for more in ({}, {"command": (), "script": "#!/bin/sh\nexit 3\n"}):
        done = made(environment={"A": "1", name: value}, **more)
        assert not done.errors
        assert "secret-file" in codes(done.notes)
        (sent,) = done.submissions
        assert "export A=1\n" in sent.script
        assert 'slurmkit_file"' in sent.script
        shown = (sent.script, *map(str, sent.options), *(n.message for n in done.notes))
        assert not any("aaaa" in text for text in (*shown, json.dumps(plan_json(done))))


@pytest.mark.parametrize(
    "options",
    [
        {"environment": {"WANDB_API_KEY": ""}},
        {"environment": {"TOKENIZERS_PARALLELISM": "false"}},
        {"environment": {"MAX_TOKENS": "512", "NUM_TOKEN": "4", "OLDPWD": "/home/alice"}},
        {"environment": {"GOOGLE_APPLICATION_CREDENTIALS": "/home/alice/key.json"}},
        {"environment": {"HF_TOKEN_PATH": "/home/alice/.token", "PASSWORD_FILE": "x"}},
        {"environment": {"AWS_ACCESS_KEY_ID": "x", "SORT_KEY": "1", "CLASSPATH": "x", "PAT": "x"}},
        {"command": ("x", "--run=my-sk-learn-baseline-of-some-long-experiment-name")},
    ],
)
def test_what_only_sounds_like_a_secret_is_sent(options: dict[str, Any]) -> None:
    done = made(**options)
    assert not done.errors
    assert "slurmkit_file" not in done.submissions[0].script


def test_a_script_that_waits_for_another_jobs_secrets_is_refused() -> None:
    secret = {"HF_TOKEN": "x"}
    (first,) = made(command=(), script="#!/bin/sh\n", environment=secret).submissions
    sent = first.script.replace("#SBATCH", "#")
    assert codes(made(command=(), script=sent).errors) == ["secret-gone"]
    assert not made(command=(), script=sent, environment=secret).errors


def test_a_password_may_be_a_number() -> None:
    done = made(environment={"DB_PASS": "123456"})
    assert "slurmkit_file" in done.submissions[0].script
    assert "123456" not in done.submissions[0].script


def test_what_slurmctld_does_not_show_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = ("nodes are unknown", "partitions are unknown")
    bare = msgspec.structs.replace(capabilities(), nodes=(), partitions=(), hidden=hidden)
    monkeypatch.setattr(Lab, "capabilities", lambda *_, **__: bare)
    done = made(gpus=Gpus(2, "a100"), nodes=2, partition="gpu", constraint="ib")
    assert not done.errors
    assert {"unknown-partitions", "unknown-nodes"} == set(codes(done.warnings))
    assert dict(done.submissions[0].options)["gpus-per-node"] == "a100:2"
    assert done.estimate is None
    nodes = msgspec.structs.replace(capabilities(), nodes=(), hidden=hidden[:1])
    monkeypatch.setattr(Lab, "capabilities", lambda *_, **__: nodes)
    assert not made(gpus=Gpus(2, "a100"), nodes=2, constraint="ib", nodelist="c[1-2]").errors


@pytest.mark.parametrize("release", RELEASES)
def test_amounts_for_each_gpu_need_gpus(release: str) -> None:
    """sbatch refuses them, CPUs from 23.02 on."""
    found = made(slurm(release), mem_per_gpu="4G").errors
    assert codes(found) == ["mem-without-gpus"]
    assert found[0].fix_words == "no --mem-per-gpu --mem=4G"
    assert codes(made(mem_per_gpu="4G", gpus=Gpus(shard=1)).errors) == ["mem-without-gpus"]
    assert not made(mem_per_gpu="4G", gpus=Gpus(1, "a100")).errors
    done = made(slurm(release), cpus_per_gpu=4)
    assert codes(done.warnings if release == "22.05" else done.errors) == ["cpus-without-gpus"]
    assert not made(cpus_per_gpu=4, gpus=Gpus(1, "a100")).warnings


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        (
            {"partition": "mig", "gpus": Gpus(5, "h100")},
            "--partition=gpu --nodes=1 --gpus-per-node=h100:4",
        ),
        ({"partition": "mig", "gpus": Gpus(2, "h100")}, "--partition=gpu"),
        (
            {"gpus": Gpus(9, "a100"), "time": "30-0"},
            "--nodes=1 --gpus-per-node=a100:8 --time=7-00:00:00",
        ),
        (
            {"partition": "gpu,cpu", "gpus": Gpus(1, "h100", "task"), "nodes": 4, "ntasks": 16},
            "--nodes=1 --ntasks=4",
        ),
        ({"gpus": Gpus(1, "h100"), "account": "nobodys", "qos": "nope"}, None),
    ],
)
def test_what_is_said_to_fit_passes(options: dict[str, Any], fix: str | None) -> None:
    """A proposal is planned again before it is said to fit."""
    found = made(**options).errors
    assert found
    for each in found:
        if fix is not None:
            assert each.fix_words == fix
        if each.fix:
            spec = JobSpec(**{"command": ("x",), "chdir": "/", "time": "10", **options})
            assert not plan(with_options(spec, each.fix), Lab(slurm())).errors


def test_fixes_that_undo_each_other_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planned again a few times, not for ever."""

    def swings(spec: JobSpec, site: SiteState, slurm: object, *, search: bool = True) -> Plan:
        del search
        other = (("nodes", str(3 - int(spec.nodes or 1))),)
        wrong = error("swings", "", "", other)
        taken = site.capabilities.taken
        return Plan(submissions=(), errors=(wrong,), spec=spec, capabilities_taken=taken)

    monkeypatch.setattr("slurmkit.planning.planner._plan_and_check", swings)
    site = SiteState(capabilities(), standing())
    assert plan_offline(JobSpec(command=("x",), nodes=1), site).errors[0].fix == ()


def test_trying_fixes_searches_for_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes most of a plan's time, and a trial only has to pass or not."""
    searched: list[Request] = []

    def search(request: Request, checks: Sequence[Check]) -> FixSearch:
        searched.append(request)
        return FixSearch(request, checks)

    monkeypatch.setattr("slurmkit.planning.checks.registry.FixSearch", search)
    spec = JobSpec(command=("x",), partition="gpu,mig", mem="600G", time="30-0")
    known = with_partition("mig", max_time=100)  # so that the fixes are not the same
    found = plan_offline(spec, SiteState(known, standing())).errors
    assert len({each.fix for each in found}) == 2
    assert [request.partition.name for request in searched] == ["gpu", "mig"]


@pytest.mark.parametrize("on", ["afterok:99", "afterok:99:98"])
def test_a_fix_takes_an_unknown_job_out_of_the_dependency_too(on: str) -> None:
    border = slurm()
    border._answers |= {"squeue": lambda *_: "", "sacct": lambda *_: ""}
    made = plan(JobSpec(command=("x",), mem="600G", dependency=on), Lab(border))
    assert set(codes(made.errors)) > {"dependency-unknown"}
    assert {each.fix for each in made.errors} == {(("mem", "500G"), ("dependency", ""))}
    alone = plan(JobSpec(command=("x",), mem="1G", dependency=on), Lab(border))
    assert {each.fix for each in alone.errors} == {(("dependency", ""),)}


def test_fixes_that_there_is_no_time_to_try_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = JobSpec(command=("x",), mem="600G")
    site = SiteState(capabilities(), standing())
    tried = plan_offline(spec, site)
    assert [each.fix for each in tried.errors] == [(("mem", "500G"),)]
    assert "fixes-untried" not in codes(tried.notes)
    monkeypatch.setattr("slurmkit.planning.planner._TRIAL_SECONDS", 0.0)
    late = plan_offline(spec, site)
    assert [each.fix for each in late.errors] == [()]
    assert codes(late.notes) == [*codes(tried.notes), "fixes-untried"]


gpu_requests = st.none() | st.sampled_from(
    [Gpus(9, "a100"), Gpus(5, "a100", "job"), Gpus(1, "h100", "task"), Gpus(2, mig="3g.20gb")]
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    nodes=st.none() | st.sampled_from([1, 2, 5, "1-4"]),
    ntasks=st.none() | st.sampled_from([2, 7, 128]),
    ntasks_per_node=st.none() | st.sampled_from([1, 65]),
    gpus=gpu_requests,
    mem=st.none() | st.sampled_from(["0", "300G", "600G"]),
    exclude=st.none() | st.sampled_from(["c3", "c[1-2]"]),
    partition=st.sampled_from(["gpu", "cpu", "gpu,cpu", "mig"]),
    min_nodes=st.integers(0, 2),
)
def test_every_proposal_passes(min_nodes: int, **options: Any) -> None:
    """70 of 357 proposals did not pass `plan` again."""
    known = with_partition("gpu", min_nodes=min_nodes, max_mem_per_cpu=8192)
    site = SiteState(known, standing())
    spec = JobSpec(command=("x",), chdir="/", time="10", **options)
    for found in plan_offline(spec, site).errors:
        if found.fix:
            assert not plan_offline(with_options(spec, found.fix), site).errors


def test_a_user_without_an_account_is_told_so_first(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = msgspec.structs.replace(
        standing(), user="trent", default_account=None, hidden=("x",)
    )
    monkeypatch.setattr(Lab, "standing", lambda *_: stranger)
    done = made(qos="nope")
    (found,) = done.errors
    assert found.message.startswith("you have no account on this cluster")
    assert (found.fix, done.warnings) == ((), ())


def test_minnodes_is_written_but_for_fewer_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch takes `--nodes` down to the number of tasks."""
    known = with_partition("gpu", min_nodes=2)
    monkeypatch.setattr(Lab, "capabilities", lambda *_, **__: known)
    assert dict(made().submissions[0].options)["nodes"] == "2"
    one = made(ntasks=1, gpus=Gpus(1, "a100"))
    assert "nodes" not in dict(one.submissions[0].options)
    assert not one.errors


@pytest.mark.parametrize(
    ("nodes", "written"),
    [("1-2", "2-2"), ("1-4", "2-4"), ("2-4", "2-4"), ("3-4", "3-4"), ("1,4", "1,4"), (1, "1")],
)
def test_the_least_of_a_range_is_raised_to_minnodes(
    monkeypatch: pytest.MonkeyPatch, nodes: int | str, written: str
) -> None:
    """26.05 refuses `--nodes=1-2 --ntasks-per-node=1` where MinNodes=2, and takes `--nodes=1-2`."""
    known = with_partition("gpu", min_nodes=2)
    monkeypatch.setattr(Lab, "capabilities", lambda *_, **__: known)
    assert dict(made(nodes=nodes).submissions[0].options)["nodes"] == written


def test_cpus_of_gpus_that_do_not_divide_over_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """DefCpuPerGPU gives the job 8 CPUs; each of 3 tasks has 2 of them."""
    known = with_settings("gpu", JobDefaults="DefCpuPerGPU=4")
    monkeypatch.setattr(Lab, "capabilities", lambda *_, **__: known)
    done = made(gpus=Gpus(2, "a100"), ntasks=3)
    assert "cpus-per-task" not in dict(done.submissions[0].options)
    assert "srun --cpus-per-task=2 -- x" in done.submissions[0].script
    even = made(gpus=Gpus(2, "a100"), ntasks=4)
    assert dict(even.submissions[0].options)["cpus-per-task"] == "2"


def test_whole_nodes_are_not_whole_for_a_task() -> None:
    assert codes(made(exclusive=True).notes) == ["exclusive-cpus"]
    assert not made(exclusive=True, cpus_per_task=64).notes
    assert not made(exclusive=True, command=(), script="#!/bin/sh\n").notes


def test_what_is_not_looked_at_is_said() -> None:
    found = made(command=(), script="#!/bin/sh\n#PBS -q x\n", options={"tres-per-task": "cpu=2"})
    assert codes(found.warnings) == ["script-foreign-options", "unchecked-option"]


def test_one_plan_names_every_limit_in_the_way() -> None:
    found = made(gpus=Gpus(9, "a100"), time="30-0").errors
    assert {"gpus-per-node", "partition-max-time"} == set(codes(found))


def test_an_error_on_kept_settings_is_judged_on_fresh_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is kept is from before the admin gave c1 its GPUs."""
    bare = tuple(msgspec.structs.replace(node, gres=()) for node in capabilities().nodes)
    old = msgspec.structs.replace(capabilities(), taken=1.0, nodes=bare)
    asked: list[bool] = []

    def kept(self: Lab, *, refresh: bool = False) -> Capabilities:
        del self
        asked.append(refresh)
        return msgspec.structs.replace(capabilities(), taken=time.time()) if refresh else old

    monkeypatch.setattr(Lab, "capabilities", kept)
    assert not made(gpus=Gpus(1, "a100")).errors
    assert asked == [False, True]
    assert made(gpus=Gpus(9, "a100")).errors


def test_a_job_for_a_reservation_to_come_is_tried_at_its_start() -> None:
    """With --test-only alone sbatch refuses what it takes (24.11)."""
    asked: list[list[str]] = []

    def sbatch(argv: Sequence[str], _: str | None) -> str:
        asked.append(list(argv))
        return "sbatch: Job 7 to start at 1700090000 using 1 processors on nodes c1"

    class Reserved(Lab):
        def standing(self, user: str | None = None) -> Standing:
            nodes, end = ("c1",), 1_700_190_000
            later = Reservation(name="r", start=1_700_090_000, end=end, nodes=nodes)
            return msgspec.structs.replace(standing(), reservations=(later,))

    spec = JobSpec(command=("x",), chdir="/", time="10", reservation="r")
    done = plan(spec, Reserved(slurm(sbatch=sbatch)))
    assert not done.errors
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1_700_090_000))
    assert asked == [["sbatch", "--test-only", f"--begin={at}"]]
    plan(msgspec.structs.replace(spec, begin="now+2days"), Reserved(slurm(sbatch=sbatch)))
    assert asked[1:] == [["sbatch", "--test-only"]]


def test_each_node_of_a_nodelist_would_save_the_container() -> None:
    """Differential test, A."""
    container = Container(image="x", save="/y.sqsh")
    several = JobSpec(command=("x",), nodelist="c[1-2]")
    (finding,) = check_shared_containers(several, container, "pyxis")
    assert (finding.severity, finding.code) == ("error", "container-save")
    one = JobSpec(command=("x",), nodelist="c1")
    assert not list(check_shared_containers(one, container, "pyxis"))


@pytest.mark.parametrize("release", RELEASES)
def test_but_for_24_11_each_node_holds_the_cpus_of_its_most_tasks(release: str) -> None:
    done = made(slurm(release), ntasks=2, ntasks_per_node=4, cpus_per_task=2, nodes=1)
    assert done.estimate
    cpus = done.estimate.cpu_hours / done.estimate.hours
    assert cpus == pytest.approx(4 if release == "24.11" else 8)


def test_a_single_task_holds_its_own_cpus_alone() -> None:
    """22.05.8 gives `--ntasks=1 --ntasks-per-node=2` one CPU, though it says NumTasks=2 of it."""
    done = made(slurm("22.05"), ntasks=1, ntasks_per_node=2)
    assert done.estimate
    assert done.estimate.cpu_hours == pytest.approx(done.estimate.hours)
