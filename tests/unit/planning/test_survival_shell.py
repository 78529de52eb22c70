"""The shell of jobs that survive, by a real bash: never lost silently, never requeued for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from survive_lab import PACE, WAYS, Slurmctld
from waiting import PATIENCE, wait_until

from slurmkit.planning import survival
from slurmkit.spec.survival import Survive

ALL = Survive(
    on_timeout="requeue", on_preempt="requeue", on_node_fail="requeue", on_oom="requeue",
    checkpoint_signal="USR1", grace=1, max_restarts=4, restart_delay=0,
)  # fmt: skip
ENDS = ("warned", "preempted", "lost", "limit", "nothing")


def policy(**changes: object) -> Survive:
    return Survive(**{name: getattr(ALL, name) for name in ALL.__struct_fields__} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
def test_a_warned_run_comes_back_and_ends_with_the_right_count(tmp_path: Path, way: str) -> None:
    slurm = Slurmctld(tmp_path, ALL, way, target=60)
    slurm.start()
    slurm.await_work()
    slurm.warn()
    assert slurm.finish() == "requeued", slurm.log
    assert slurm.requests() == ["requeue 7"]
    slurm.start()
    assert slurm.finish() == "done", slurm.log
    assert slurm.count == 60
    assert slurm.requests() == ["requeue 7"]
    assert "\tend\ttimeout requeue " in slurm.history
    assert "\tend\tdone - 0 " in slurm.history


@pytest.mark.parametrize(
    "name",
    [
        "SGDR Restarts=10",
        "ablate JobState=PENDING",
        "x\nJobId=7 JobState=PENDING Restarts=10",
        "x|PENDING|10|N/A|N/A|None|\n7|PENDING|10|N/A|N/A|None|",
        "EndTime=2020-01-01T00:00:00 PreemptTime=2020-01-01T00:00:00 Reason=TimeLimit",
    ],
)
def test_a_name_that_looks_like_a_fact_of_slurms_is_none(tmp_path: Path, name: str) -> None:
    slurm = Slurmctld(tmp_path, ALL, "exits", target=60)
    slurm.name = name
    slurm.environment = {"SQUEUE_STATES": "PENDING", "SQUEUE_PARTITION": "none"}
    slurm.start()
    slurm.await_work()
    slurm.warn()
    assert slurm.finish() == "requeued", slurm.log
    assert slurm.requests() == ["requeue 7"]
    assert "timeout requeue" in slurm.history
    slurm.start()
    assert slurm.finish() == "done", slurm.log
    assert slurm.count == 60


def test_a_run_whose_home_is_away_goes_on_whatever_its_name(tmp_path: Path) -> None:
    """It was taken for a run that goes on elsewhere."""
    slurm = Slurmctld(tmp_path, ALL, "plain", target=60)
    slurm.name = "SGDR Restarts=10 JobState=PENDING"
    slurm.start()
    slurm.await_work()
    (slurm.home / ".local").rename(tmp_path / "elsewhere")
    assert slurm.finish() == "done", slurm.log
    assert slurm.count == 60


def test_work_in_a_process_group_of_its_own_is_told(tmp_path: Path) -> None:
    slurm = Slurmctld(tmp_path, policy(grace=60), "exits", target=100_000)
    slurm.work = ("timeout", "3600", *slurm.work)
    slurm.start()
    slurm.await_work()
    slurm.warn()
    assert slurm.finish() == "requeued", slurm.log
    assert slurm.saves() == 2


@pytest.mark.parametrize("left", [60, -60])
def test_an_end_that_is_long_or_was_before_takes_nothing_of_the_grace(
    tmp_path: Path, left: int
) -> None:
    slurm = Slurmctld(tmp_path, policy(grace=15), "file")
    asked = 'until [ -e "$SLURMKIT_CHECKPOINT_FILE" ]; do sleep 0.1; done'
    slurm.work = ("sh", "-c", f"{asked}; sleep 1; touch {tmp_path}/saved; exit 75")
    slurm.start(left)
    slurm.warn()
    assert slurm.finish() == "requeued", slurm.log
    assert (tmp_path / "saved").exists(), slurm.log + slurm.history


def test_no_warning_is_lost_while_bash_expands_a_command(tmp_path: Path) -> None:
    """Bash 5.2 lost about one of 300 that came while it expanded `$(...)`."""
    shell = Path(survival.__file__).parent / "survive/turns.sh"
    script = f"""{{
        . {shell}
        slurmkit_state={tmp_path}
        slurmkit_soon() {{ echo lease.0; }}
        slurmkit_listen
        echo ready
        while :; do
          slurmkit_is_stale
          [ -z "$slurmkit_warned" ] || {{ slurmkit_warned=''; echo heard; }}
        done
    }}"""
    with subprocess.Popen(
        ["bash", "-c", script], env={"SLURM_JOB_ID": "7", "PATH": os.environ["PATH"]}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as bash:  # fmt: skip
        try:
            assert bash.stdout is not None
            assert bash.stdout.readline() == "ready\n"
            for number in range(2000):
                time.sleep(number % 7 / 5000)
                bash.send_signal(signal.SIGUSR1)
                assert bash.stdout.readline() == "heard\n", number
        finally:
            bash.kill()


def test_what_catches_the_signal_for_a_moment_does_not_die_of_it(tmp_path: Path) -> None:
    """As what was just forked does, which has its parent's handlers until it begins."""
    shell = Path(survival.__file__).parent / "survive/slurm.sh"
    script = f"""
        . {shell}
        cd {tmp_path}
        work() {{ # name, and what it does once it has begun
          trap "echo heard >>$1" USR1
          touch "$1"
          until [ -e begin ]; do command sleep 0.02; done
          $2
          touch "$1.began"
          until [ -e end ] || ! kill -0 $$; do command sleep 0.02; done
        }}
        sleep() {{ # which slurmkit_tell does between its two looks
          touch begin
          until [ -e steady.began ] && [ -e young.began ]; do command sleep 0.02; done
        }}
        work steady : & steady=$!
        work young 'trap - USR1' & young=$!
        until [ -e steady ] && [ -e young ]; do command sleep 0.02; done
        slurmkit_processes() {{ echo "$steady" "$young"; }}
        slurmkit_signal=USR1 slurmkit_told=' '
        slurmkit_tell
        slurmkit_tell
        touch end
        wait "$steady" && wait "$young"
    """
    subprocess.run(["bash", "-c", script], check=True, timeout=60)
    assert (tmp_path / "steady").read_text() == "heard\n"
    assert (tmp_path / "young").read_text() == ""


def test_an_error_of_the_command_is_never_requeued(tmp_path: Path) -> None:
    slurm = Slurmctld(tmp_path, ALL, "raises")
    slurm.start()
    assert slurm.finish() == "failed"
    assert slurm.codes == [1]
    assert slurm.requests() == []


@pytest.mark.parametrize(
    ("on_timeout", "on_preempt", "outcome"),
    [
        ("requeue", None, "requeued"),
        ("hold", "requeue", "held"),
        (None, "requeue", "requeued"),
        ("fail", "requeue", "failed"),
        (None, None, "failed"),
    ],
)
def test_exit_code_75_after_a_signal_by_hand_comes_back(
    tmp_path: Path, on_timeout: str | None, on_preempt: str | None, outcome: str
) -> None:
    """`scancel --signal=USR1` reaches the steps alone."""
    of_test = policy(on_timeout=on_timeout, on_preempt=on_preempt)
    slurm = Slurmctld(tmp_path, of_test, "exits", target=60)
    slurm.start(3600)
    slurm.await_work()
    slurm.signal_steps(signal.SIGUSR1)
    assert slurm.finish() == outcome, slurm.log
    if outcome == "failed":
        assert slurm.codes == [75]
        assert slurm.requests() == []
        assert "\tend\terror fail 75 " in slurm.history
        return
    how = "requeuehold" if outcome == "held" else "requeue"
    assert slurm.requests() == [f"{how} 7"]
    assert "\tend\tcheckpoint " in slurm.history
    slurm.start(3600)
    assert slurm.finish() == "done", slurm.log
    assert slurm.count == 60
    assert "\tafter\tcheckpoint\n" in slurm.history  # what SLURMKIT_RESTART_REASON says


def test_a_command_that_always_ends_with_75_comes_to_an_end(tmp_path: Path) -> None:
    slurm = Slurmctld(tmp_path, policy(max_restarts=2), "plain")
    slurm.work = ("sh", "-c", "exit 75")
    outcomes = []
    for _ in range(3):
        slurm.start()
        outcomes.append(slurm.finish())
    assert outcomes == ["requeued", "requeued", "failed"], slurm.log
    assert slurm.codes[-1] == 75
    assert slurm.requests() == ["requeue 7"] * 2
    assert "checkpoint: not requeued, for it was 2 times already" in slurm.log


def test_a_loop_stops_at_its_limit(tmp_path: Path) -> None:
    slurm = Slurmctld(tmp_path, policy(max_restarts=2), "plain", target=10_000)
    for _ in range(2):
        slurm.start()
        slurm.warn()
        assert slurm.finish() == "requeued", slurm.log
    slurm.start()
    slurm.warn()
    await_log(slurm, "not requeued, for it was 2 times already")
    assert slurm.process is not None
    assert slurm.process.poll() is None  # the work goes on to its real end
    slurm.terminate()
    assert slurm.finish() == "failed"
    assert slurm.requests() == ["requeue 7"] * 2


@pytest.mark.parametrize("on_timeout", ["requeue", "fail"])
@pytest.mark.parametrize("disk", ["fine", "full"])
@pytest.mark.parametrize("way", ["exits-0", "exits"])
def test_what_stopped_and_may_not_come_back_is_not_done(
    tmp_path: Path, way: str, disk: str, on_timeout: str
) -> None:
    policy_of_test = policy(max_restarts=1, on_timeout=on_timeout, grace=20)
    slurm = Slurmctld(tmp_path, policy_of_test, way, target=10_000)
    slurm.run = 1
    if disk == "full":
        slurm.output, slurm.home = Path("/dev/full"), Path("/proc/nobody")
    slurm.start()
    slurm.await_work()
    slurm.warn()
    assert slurm.finish() == "failed", slurm.log
    assert slurm.codes == [75]
    assert slurm.requests() == []


def test_short_runs_wait_for_their_next_start_longer_and_longer(
    tmp_path: Path,
) -> None:
    slurm = Slurmctld(tmp_path, policy(restart_delay=30), "exits", target=10_000)
    slurm.pace = msgspec.structs.replace(PACE, short=600)
    for _ in range(2):
        slurm.start()
        slurm.warn()
        assert slurm.finish() == "requeued", slurm.log
    assert slurm.requests(0) == ["requeue 7", "update JobId=7 StartTime=now+30"]
    assert slurm.requests(1) == ["requeue 7", "update JobId=7 StartTime=now+60"]


def test_slurm_requeues_a_preempted_job_and_the_script_does_not(tmp_path: Path) -> None:
    for way in ("exits", "exits-0", "plain"):
        folder = tmp_path / way
        folder.mkdir()
        slurm = Slurmctld(folder, ALL, way)
        slurm.start()
        slurm.await_work()
        slurm.set(preempt="2026-11-22T07:00:00")
        slurm.signal_steps()
        time.sleep(0.5)
        assert slurm.process is not None
        assert slurm.process.poll() is None, slurm.log  # or Slurm would take it for done
        slurm.requeue()
        assert slurm.finish() == "requeued"
        assert slurm.requests() == []
        slurm.start()
        assert slurm.finish() == "done"
        assert slurm.count == 12


def test_a_step_that_ends_well_at_slurms_sigterm_is_not_done(tmp_path: Path) -> None:
    """It may hear of the end before the batch shell does."""
    slurm = Slurmctld(tmp_path, ALL, "exits-0", target=60)
    slurm.start()
    slurm.await_work()
    slurm.requeue()
    slurm.signal_steps()
    assert slurm.finish() == "requeued"
    slurm.start()
    assert slurm.finish() == "done", slurm.log
    assert slurm.count == 60
    assert slurm.requests() == []


def test_a_job_that_would_be_cancelled_requeues_itself_in_time(tmp_path: Path) -> None:
    slurm = Slurmctld(tmp_path, ALL, "exits-0")
    slurm.preempt_mode = "cancel"
    slurm.start()
    slurm.await_work()
    slurm.set(preempt="2026-11-22T07:00:00")
    slurm.signal_steps()
    assert slurm.finish() == "requeued", slurm.log
    assert slurm.requests() == ["requeue 7"]


@pytest.mark.parametrize("way", ["exits", "plain", "deaf"])
def test_sigterm_to_the_batch_shell_alone_ends_the_work(tmp_path: Path, way: str) -> None:
    """`scancel --batch --signal=TERM`. The job goes on until its script ends."""
    slurm = Slurmctld(tmp_path, ALL, way, target=100_000)
    slurm.start(seconds=3600)
    slurm.await_work()
    slurm.warn(signal.SIGTERM)
    assert slurm.finish() == "failed", slurm.log
    assert slurm.requests() == []
    assert slurm.codes == [128 + signal.SIGTERM]
    assert "\tend\tcancelled fail 143 " in slurm.history
    assert slurm.count < 100_000


def test_slurmctld_away_at_requeue_time(tmp_path: Path) -> None:
    slurm = Slurmctld(tmp_path, ALL, "exits", target=10_000)
    slurm.start()
    slurm.await_work()
    slurm.set(away="")
    slurm.warn()
    threading.Timer(2, slurm.clear, ["away"]).start()
    assert slurm.finish() == "requeued", slurm.log
    slurm.start()
    slurm.await_work()
    slurm.set(away="")
    slurm.warn()
    assert slurm.finish() == "failed", slurm.log  # it told so, and gave up after its patience
    assert "could not be requeued: Unable to contact" in slurm.log
    assert slurm.codes[-1] == 75


@pytest.mark.parametrize("begin", ["slurmstepd-c7:", "[2026-11-22T10:26:08.729]"])  # 24.11, 26.05
def test_more_memory_after_out_of_memory_or_held(tmp_path: Path, begin: str) -> None:
    said = f"{begin} error: StepId=7.0 exceeded memory limit (2 > 1), being killed"
    for late in (False, True):
        folder = tmp_path / str(late)
        folder.mkdir()
        slurm = Slurmctld(folder, policy(oom_max_mem="1500"), "plain")
        slurm.work = ("sh", "-c", f'echo "{said}"; exit 137')
        if late:
            slurm.set(late="")
        slurm.start()
        assert slurm.finish() == ("held" if late else "requeued"), slurm.log
        more = ["update JobId=7 MinMemoryNode=1500", "release 7"]
        assert slurm.requests() == ["requeuehold 7", *([] if late else more)]
        assert ("held, for it could not be given more memory" in slurm.log) is late


def test_what_slurm_requeued_by_itself_may_not_be_wanted(tmp_path: Path) -> None:
    for action, end in (("fail", "failed"), ("hold", "held"), ("requeue", "done")):
        folder = tmp_path / action
        folder.mkdir()
        slurm = Slurmctld(folder, policy(on_node_fail=action), "plain")
        slurm.start()
        slurm.await_work()
        slurm.kill()
        slurm.requeue()
        slurm.finish()
        slurm.start()
        assert slurm.finish() == end, slurm.log


def test_a_stale_run_writes_nothing_once_the_next_has_begun(tmp_path: Path) -> None:
    slurm = Slurmctld(tmp_path, ALL, "deaf", target=60)
    stale = slurm.start()
    slurm.await_work()
    slurm.run = 1  # slurmctld has lost its node, where it goes on
    slurm.set(away="")  # or the stale run may hear of it there first
    slurm.start()
    assert stale.wait(PATIENCE) != 0
    slurm.clear("away")
    assert slurm.finish() == "done", slurm.log
    trace = [line.split() for line in (tmp_path / "trace").read_text().splitlines()]
    order = [run for _, run, _ in trace]
    assert order == sorted(order)
    assert set(order) == {"0", "1"}
    assert slurm.requests() == []
    assert "a later run has begun" in slurm.log


def test_a_run_that_is_ended_while_it_waits_for_its_turn_does_no_work(tmp_path: Path) -> None:
    slurm = Slurmctld(tmp_path, ALL, "deaf", target=10_000)
    slurm.pace = msgspec.structs.replace(PACE, lease=60)
    folder = slurm.home / ".local/state/slurmkit/runs/lab/7"
    folder.mkdir(parents=True)
    (folder / "lease.0").touch()
    slurm.run = 1
    slurm.start()
    await_log(slurm, "run 0 may still be at work")
    slurm.requeue()
    assert slurm.finish() == "requeued", slurm.log
    assert not (tmp_path / "trace").exists()
    assert "\tend\trequeued slurm " in (folder / "history").read_text()


def cut_off(tmp_path: Path, answer: str = "") -> Slurmctld:
    """A run whose home is away, and whose slurmctld, too, or says where the job is."""
    slurm = Slurmctld(tmp_path, policy(on_node_fail=None), "deaf", target=100_000)
    slurm.start()
    slurm.await_work()
    slurm.home.rename(tmp_path / "away-home")
    slurm.set(**{answer: "1"} if answer else {"away": ""})
    return slurm


def paused(tmp_path: Path) -> Slurmctld:
    """Such a run once its work is stopped."""
    slurm = cut_off(tmp_path)
    await_log(slurm, "paused: neither")
    wait_until(slurm.is_paused, lambda: slurm.log)
    return slurm


def test_a_run_that_runs_elsewhere_stops(tmp_path: Path) -> None:
    slurm = cut_off(tmp_path, "restarts")
    await_log(slurm, "back to the queue")
    before = slurm.saves()
    time.sleep(0.3)
    assert slurm.saves() == before, slurm.log
    assert slurm.requests() == []  # a later run is not requeued
    slurm.terminate()


@pytest.mark.parametrize("back", ["home", "slurmctld"])
def test_a_run_that_cannot_know_whether_it_runs_elsewhere_pauses(tmp_path: Path, back: str) -> None:
    slurm = paused(tmp_path)
    before = slurm.saves()
    time.sleep(0.5)
    assert slurm.saves() == before, slurm.log
    if back == "home":
        (tmp_path / "away-home").rename(slurm.home)
    else:
        slurm.clear("away")
    await_log(slurm, "it goes on")
    wait_until(lambda: slurm.saves() > before, lambda: slurm.log)
    slurm.clear("away")
    slurm.set(enough="")
    assert slurm.finish() == "done", slurm.log
    counts = [int(line.split()[2]) for line in (tmp_path / "trace").read_text().splitlines()]
    assert counts == [*range(slurm.count + 1), slurm.count]  # no step is lost, or done twice
    assert slurm.requests() == []


def test_a_paused_run_whose_job_went_on_elsewhere_writes_nothing(tmp_path: Path) -> None:
    slurm = paused(tmp_path)
    before = slurm.saves()
    folder = tmp_path / "away-home/.local/state/slurmkit/runs/lab/7"
    (folder / "lease.1").touch()
    (tmp_path / "away-home").rename(slurm.home)
    await_log(slurm, "a later run has begun")
    assert slurm.saves() == before
    slurm.clear("away")
    slurm.terminate()


@pytest.mark.parametrize("trouble", ["home", "refused", "slurmctld"])
def test_work_is_not_stopped_while_either_is_there(tmp_path: Path, trouble: str) -> None:
    slurm = Slurmctld(tmp_path, ALL, "plain", target=60)
    slurm.start()
    await_log(slurm, "begins on")
    if trouble == "home":
        slurm.home.rename(tmp_path / "away-home")
    elif trouble == "refused":
        touch = tmp_path / "bin" / "touch"
        touch.write_text("#!/bin/sh\necho touch: no: Permission denied >&2\nexit 1\n")
        touch.chmod(0o755)
    if trouble != "home":
        slurm.set(away="")
    assert slurm.finish() == "done", slurm.log
    assert slurm.count == 60


def await_log(slurm: Slurmctld, words: str) -> None:
    wait_until(lambda: words in slurm.log, lambda: slurm.log)


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    way=st.sampled_from(WAYS),
    ends=st.lists(st.tuples(st.sampled_from(ENDS), st.floats(0, 0.7)), min_size=1, max_size=6),
    away=st.sampled_from((0.0, 0.0, 0.5)),
    disk=st.sampled_from(("fine", "full")),
)
def test_never_lost_silently_and_never_for_ever(
    way: str, ends: list[tuple[str, float]], away: float, disk: str
) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        slurm = Slurmctld(Path(name), ALL, way)
        if disk == "full":
            slurm.output, slurm.home = Path("/dev/full"), Path("/proc/nobody")
        state = "requeued"
        for what, after in (*ends, *[("nothing", 0.0)] * 8):
            if state != "requeued":
                break
            state = one_run(slurm, what, after, away)
            assert len(slurm.requests(slurm.run - 1)) <= 1
        assert slurm.run <= ALL.max_restarts + 1
        if state == "done":
            assert slurm.codes[-1] == 0
            assert slurm.count == 12
        else:
            assert state == "failed"
            assert slurm.codes[-1] != 0


def one_run(slurm: Slurmctld, what: str, after: float, away: float) -> str:
    """A run, what ends it, and when: from the first moment on."""
    slurm.start()
    if what == "warned":
        slurm.warn() if after < 0.05 else time.sleep(after)
        slurm.set(away="") if away else None
        slurm.warn()
        time.sleep(away)
        slurm.clear("away")
        return slurm.finish()
    time.sleep(after)
    if what == "preempted":
        slurm.set(preempt="2026-11-22T07:00:00")
        slurm.signal_steps()
        time.sleep(0.4)
        if slurm.process and slurm.process.poll() is None:  # what is over is not preempted
            slurm.requeue()
    elif what == "lost" and slurm.process and slurm.process.poll() is None:
        slurm.kill()
        slurm.requeue()
    elif what == "limit":
        slurm.set(reason="TimeLimit")
        slurm.terminate()
    return slurm.finish()
