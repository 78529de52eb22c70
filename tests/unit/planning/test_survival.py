"""What a job that survives is sent with, what its plan says, and its history."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checked_requests import with_config, with_qos
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from recorded_lab import capabilities, standing

from slurmkit.cli.job_options import parse_job_options
from slurmkit.cli.submit import plan_command
from slurmkit.config.paths import state_folder
from slurmkit.errors import BadInput
from slurmkit.jobs.describe import restart_facts
from slurmkit.jobs.run_history import RunRecord, parse_history, read_restarts, restart_words
from slurmkit.planning.planner import Plan, plan_offline
from slurmkit.planning.request import SiteState
from slurmkit.planning.survival import parse_survival, preempt_mode_of, sends_user_signal
from slurmkit.spec.jobfile import format_job_file, load_job_file, parse_job_table
from slurmkit.spec.jobspec import JobSpec, Launch
from slurmkit.spec.survival import Survive, size_in_mib
from slurmkit.spec.sweep import Sweep
from slurmkit.state.cache import save_cached
from slurmkit.state.model import Capabilities, Standing
from slurmkit.testing import FakeSlurm

BACK = Survive(on_timeout="requeue", on_preempt="requeue", checkpoint_signal="USR1", grace=120)
HISTORY = """\
0\t100\tbegin\tc1
0\t160\tasked\ttimeout
0\t161\tend\ttimeout requeue 75 timeout: back to the queue
1\t200\tbegin\tc2
2\t300\tbegin\tc[3-4]
2\t300\tafter\tnode-fail
2\t310\tend\tdone - 0 the work is done
half a li"""


def planned(known: Capabilities | None = None, where: Standing | None = None, **spec: Any) -> Plan:
    fields: dict[str, Any] = {"command": ("./x",), "time": "1:00:00", "chdir": "/a"}
    if "script" in spec:
        fields.pop("command")
    made = JobSpec(**fields | {"survive": BACK} | spec)
    return plan_offline(made, SiteState(known or capabilities(), where or standing()))


def said(plan: Plan) -> str:
    return "\n".join(each.message for each in (*plan.notes, *plan.warnings, *plan.errors))


def codes(plan: Plan) -> set[str]:
    return {each.code for each in (*plan.warnings, *plan.errors)}


def test_the_script_is_the_shell_and_the_work_in_it() -> None:
    plan = planned()
    assert not plan.errors
    options = dict(plan.submissions[0].options)
    assert options["signal"] == "B:USR1@120"
    assert options["open-mode"] == "append"
    assert "requeue" in options
    script = plan.submissions[0].script
    assert "\n\nslurmkit_on_timeout=requeue slurmkit_on_preempt=requeue" in script
    work = "\n{\nslurmkit_listen\nslurmkit_work() {\nsrun --cpus-per-task=1 -- ./x\n}\n"
    assert script.endswith(f"{work}slurmkit_survive\nexit\n}}\n")
    assert script == planned().submissions[0].script


def test_a_script_says_what_its_job_does() -> None:
    back = Survive(on_timeout="hold", on_oom="requeue", max_restarts=3, grace=90)
    settings = parse_survival(planned(survive=back).submissions[0].script)
    wanted = {
        "on_timeout": "hold", "on_preempt": "", "on_oom": "requeue", "restarts": "3", "grace": "90"
    }  # fmt: skip
    assert settings.items() >= wanted.items()
    assert parse_survival(planned(survive=Survive()).submissions[0].script) == {}
    assert parse_survival("#!/bin/bash\nslurmkit_on_timeout='\nslurmkit_survive\n") == {}
    assert parse_survival("") == {}


def test_a_job_without_policy_is_what_it_was() -> None:
    script = planned(survive=Survive()).submissions[0].script
    assert "slurmkit_" not in script
    assert "--signal" not in script


@pytest.mark.parametrize(
    "spec",
    [
        {"launch": Launch(launcher="none")},
        {"script": "#!/bin/bash -e\necho 'SLURMKIT_SCRIPT'\nSLURMKIT_SCRIPT\n"},
        {"script": "#!/usr/bin/env python3\nprint('x')\n"},
        {"environment": {"A": "b c", "HF_TOKEN": "hf_" + "a" * 34}},
        {"sweep": Sweep(("a",), (("1",), ("it's",))), "command": ("echo", "{a}")},
        {"array": "0-3000"},
    ],
)
def test_every_kind_of_script_is_one_that_bash_takes(spec: dict[str, Any]) -> None:
    for submission in planned(**spec).submissions:
        subprocess.run(["bash", "-n"], input=submission.script, text=True, check=True)
        assert submission.script.startswith("#!/bin/bash\n")
        assert submission.script.count("\nslurmkit_survive\n") == 1


def test_a_whole_script_runs_by_its_own_interpreter(tmp_path: Path) -> None:
    text = "#!/usr/bin/env python3\nimport sys\nprint('it is', sys.argv[1:])\nsys.exit(7)\n"
    script = planned(script=text).submissions[0].script
    env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "1", "HOME": str(tmp_path)}
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=env,
                          start_new_session=True, check=False)  # fmt: skip
    assert done.stdout == "it is []\n"
    assert done.returncode == 7


def test_what_will_happen_stands_in_plain_words() -> None:
    words = said(planned())
    assert "at its time limit: 120 to 180 s before it the work is asked for a checkpoint" in words
    assert "when preempted: its steps get SIGTERM at once; Slurm itself puts it back" in words
    assert "when a node is lost: left to Slurm" in words
    assert "it comes back 20 times at most" in words


def test_how_a_preemption_is_told_depends_on_the_cluster() -> None:
    told = with_config(PreemptParameters="send_user_signal")
    gentle = with_qos("normal", preempt_mode="cancel", grace_time=90)
    assert "its steps get SIGTERM, 90 s before" in said(planned(None, gentle))
    assert "survive-no-signal" in codes(planned(None, gentle))
    plan = planned(told, gentle)
    assert "asked for a checkpoint by USR1 and a file, 90 s before it is ended; it goes" in said(
        plan
    )
    assert "survive-no-signal" not in codes(plan)
    assert "requeues itself before" in said(plan)
    exempt = with_config(PreemptExemptTime="00:30:00")
    assert "no job is preempted before it has run for 00:30:00" in said(planned(exempt))
    assert "no job is preempted" not in said(plan)


@pytest.mark.parametrize(
    ("code", "spec", "config"),
    [
        ("survive-grace", {"time": "2"}, {}),
        ("survive-early", {"time": "3"}, {}),
        ("survive-kill-wait", {}, {"KillWait": "2 sec"}),
        ("survive-truncate", {"open_mode": "truncate"}, {}),
        ("survive-same-memory", {"survive": Survive(on_oom="requeue")}, {}),
        ("survive-memory", {"survive": Survive(on_oom="requeue", oom_max_mem="9G")}, {}),
        ("survive-memory",
         {"survive": Survive(on_oom="requeue", oom_max_mem="900T"), "mem": "1G"}, {}),
        ("survive-agent", {"launch": Launch(launcher="torchrun")}, {}),
        ("survive-wrapper", {}, {}),
        ("survive-no-grace", {}, {}),
    ],
)  # fmt: skip
def test_what_cannot_be_or_is_not_meant(
    code: str, spec: dict[str, Any], config: dict[str, str]
) -> None:
    assert code in codes(planned(with_config(**config), **spec))
    always = ("survive-no-grace", "survive-wrapper")
    assert code in always or code not in codes(planned(mem="1G"))
    assert "survive-wrapper" not in codes(planned(launch=Launch(launcher="none")))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"signal": "USR2@30"}, "--checkpoint-signal and --grace"),
        ({"requeue": False}, "--no-requeue"),
    ],
)
def test_options_that_contradict_are_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        planned(**spec)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"on_timeout": "restart"}, "--on-timeout must be one of requeue, hold, fail"),
        ({"grace": 30}, "give at least one of --on-timeout"),
        ({"on_oom": "requeue", "oom_max_mem": "lots"}, "is not a size"),
        ({"on_timeout": "hold", "oom_max_mem": "9G"}, "works only with --on-oom requeue"),
        ({"on_timeout": "hold", "max_restarts": 0}, "--max-restarts must be a whole number from 1"),
        ({"on_timeout": "hold", "checkpoint_signal": "KILL"}, "--checkpoint-signal must be one of"),
    ],
)
def test_a_policy_that_means_nothing_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Survive(**fields)


def test_a_job_file_and_the_command_line_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        'command = ["./x"]\n[survive]\non-timeout = "requeue"\non-preempt = "requeue"\n'
        'checkpoint-signal = "USR1"\ngrace = 120\n',
        "utf-8",
    )
    spec = JobSpec(**load_job_file(path))
    assert spec.survive == BACK
    again = tmp_path / "again.toml"
    again.write_text(format_job_file(planned().spec), "utf-8")
    assert plan_offline(
        JobSpec(**load_job_file(again)), SiteState(capabilities(), standing())
    ).spec == (planned().spec)
    with pytest.raises(BadInput, match="on-timeout"):
        parse_job_table({"survive": {"on-timeou": "requeue"}}, tmp_path)
    words = "--on-timeout requeue --on-preempt requeue --checkpoint-signal usr1 --grace 120 -- x"
    with plan_command.make_context("plan", words.split()) as context:
        assert parse_job_options(dict(context.params)).spec.survive == BACK


def test_help_tells_of_it() -> None:
    text = CliRunner().invoke(plan_command, ["--help"]).output
    assert "--on-timeout [requeue|hold|fail]" in text


def test_sizes() -> None:
    assert [size_in_mib(size) for size in ("64000", "2G", "1TB", "2048K", "x")] == [
        64000, 2048, 1048576, 2, 0
    ]  # fmt: skip


def test_the_mode_of_a_preemption_is_that_of_the_qos_else_the_clusters() -> None:
    known, where = capabilities(), with_qos("scavenger", preempt_mode="cancel")
    assert preempt_mode_of(known, where, None, "scavenger") == "cancel"
    assert preempt_mode_of(known, where, None, "normal") == "requeue"
    off = with_config(PreemptType="preempt/none")
    assert preempt_mode_of(off, standing(), None, None) == "off"
    assert not sends_user_signal(capabilities().config)
    assert sends_user_signal({"SlurmctldParameters": "x,preempt_send_user_signal"})


def test_a_history_is_read_as_it_was_written() -> None:
    first, lost, last = parse_history(HISTORY)
    assert first == RunRecord(
        run=0,
        began=100,
        ended=161,
        nodes="c1",
        reason="timeout",
        action="requeue",
        exit_code=75,
        words="timeout: back to the queue",
    )
    assert (lost.reason, lost.action, lost.ended, lost.nodes) == ("node-fail", "slurm", None, "c2")
    assert last.reason == "done"
    shown = dict(restart_facts((first, lost, last)))
    assert "timeout: back to the queue" in shown["  run 0"]
    assert "on c2" in shown["  run 1"]
    assert "node-fail" in shown["  run 1"]
    assert json.loads(msgspec.json.encode(first))["exit_code"] == 75


@pytest.mark.parametrize(
    ("lines", "waits", "words"),
    [
        ("", True, ""),
        ("0\t1\tbegin\tc1", False, ""),
        ("0\t1\tbegin\tc1\n0\t2\tend\toom requeue - x", True, "restart 1: oom"),
        ("0\t1\tbegin\tc1", True, "restart 1"),  # Slurm put it back: nothing says why yet
        ("0\t1\tbegin\tc1\n1\t2\tbegin\tc2", False, "restart 1"),
        (HISTORY, False, "restart 2: node-fail"),
        ("4\t2\tbegin\tc2", False, "restart 4"),  # what a full disk did not take
    ],
)
def test_the_last_restart_in_words(lines: str, words: str, *, waits: bool) -> None:
    assert restart_words(parse_history(lines), waits=waits) == words


def test_only_histories_of_jobs_in_the_queue_are_read_and_slurm_is_not_asked() -> None:
    border = FakeSlurm({})
    border.key = "lab"  # type: ignore[attr-defined]
    assert read_restarts(border, {"7": True}) == {}  # nobody has left any
    save_cached("capabilities", "lab", capabilities())
    for job_id in ("7", "8_2", "9"):
        folder = state_folder("runs") / capabilities().cluster_name / job_id
        folder.mkdir(parents=True)
        (folder / "history").write_text("0\t1\tbegin\tc1\n0\t2\tend\toom requeue - x\n")
    (folder / "history").unlink()
    said = read_restarts(border, {"7": True, "8_2": True, "9": False, "10": True})
    assert said == {"7": "restart 1: oom", "8_2": "restart 1: oom"}
    assert border.asked == []
    assert read_restarts(FakeSlurm({}), {"7": True}) == {}  # a stand-in


def test_a_job_that_waits_to_be_run_again_tells_of_its_only_run() -> None:
    (said,) = restart_facts(
        [RunRecord(run=0, began=0, ended=61, nodes="c1", reason="oom", action="hold")]
    )
    assert re.fullmatch(r"on c1, \S+ (\S+) to \S+ \w+: oom", said[1])  # the day once
    over_midnight = RunRecord(run=0, began=0, ended=86400, nodes="c1", reason="oom", action="hold")
    assert re.fullmatch(
        r"on c1, \S+ \S+ \w+ to \S+ \S+ \w+: oom", restart_facts([over_midnight])[0][1]
    )
    assert restart_facts([RunRecord(run=0, reason="done")]) == []


@given(st.text())
def test_no_history_is_too_broken(text: str) -> None:
    parse_history(text)
    parse_history("\n".join(f"1\t2\tend\t{line}" for line in text.splitlines()))
