"""`slurmkit plan` and `slurmkit submit` beside what a real cluster said of itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from planner_lab import Lab
from recorded_lab import slurm

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.testing import FakeSlurm


@pytest.fixture(autouse=True)
def border(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSlurm:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    made = slurm()
    monkeypatch.setattr("slurmkit.cli.submit.Cluster", lambda: Lab(made))
    return made


def run(*args: str) -> int:
    return run_to_exit_code(cli, list(args))


def sent(border: FakeSlurm) -> list[Sequence[str]]:
    return [argv for argv in border.asked if argv[0] == "sbatch" and "--test-only" not in argv]


def test_plan_prints_the_script_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--gpus-per-node", "a100:2", "--time", "10", "--", "train", "--lr", "3") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("#!/bin/bash\n#SBATCH --job-name=train\n")
    assert shown.out.endswith("\nsrun --cpus-per-task=1 -- train --lr 3\n")
    assert "GPU" in shown.err


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("backnd = 'commands'", "backnd"),
        ("backend = 'nonesuch'", "no plugin 'nonesuch'"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "submit"])
def test_plan_and_submit_refuse_the_same_configuration(
    command: str, section: str, says: str, tmp_path: Path, border: FakeSlurm,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """`plan` took a key of `[submit]` that submit refused."""
    (tmp_path / "slurmkit").mkdir()
    (tmp_path / "slurmkit" / "config.toml").write_text(f"[submit]\n{section}\n", "utf-8")
    assert run(command, "--time", "1", "--", "hostname") == 2
    assert says in capsys.readouterr().err
    assert border.asked == []


def test_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--json", "--time", "1", "hostname") == 0
    made = json.loads(capsys.readouterr().out)["rows"][0]
    (submission,) = made["submissions"]
    assert submission["script"].startswith("#!/bin/bash\n")
    assert submission["options"]["job-name"] == "hostname"
    assert submission["after"] == []
    assert (made["errors"], made["warnings"]) == ([], [])
    assert made["estimate"]["start"] == 1_700_000_100


def test_a_wrapped_line_is_the_script_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """As `_script_wrap` in src/sbatch/sbatch.c."""
    line = "srun hostname | sort -u; echo \"$HOME\" 'a b'"
    assert run("plan", "--json", "--time", "1", "-N2", "--wrap", line) == 0
    (sent,) = json.loads(capsys.readouterr().out)["rows"][0]["submissions"]
    assert sent["options"]["job-name"] == "wrap"
    assert not sent["options"].keys() & {"ntasks-per-node", "cpus-per-task"}
    assert sent["script"].startswith("#!/bin/sh\n#SBATCH --job-name=wrap\n")
    assert sent["script"].endswith(f"\n\n{line}\n")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--script", "x.sh"), "both --wrap and --script were given"),
        (("--launch", "torchrun"), "the launcher torchrun starts a command on each node"),
    ],
)
def test_a_wrapped_line_has_no_launcher(
    args: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sh").write_text("#!/bin/sh\ndate\n", "utf-8")
    assert run("plan", "--time", "1", "--wrap", "date", *args) == 2
    assert says in capsys.readouterr().err


def test_options_with_the_letters_of_sbatch(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("-B", "2:4", "-m", "block:cyclic", "-O", "-n", "4", "--hint", "nomultithread")
    assert run("plan", "--json", "--time", "1", *given, "--", "x") == 0
    options = json.loads(capsys.readouterr().out)["rows"][0]["submissions"][0]["options"]
    assert (options["sockets-per-node"], options["cores-per-socket"]) == ("2", "4")
    assert {"overcommit": "", "distribution": "block:cyclic"}.items() <= options.items()
    assert options["hint"] == "nomultithread"


def test_variables_of_export_and_env_are_merged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --export=PATH,A=1,B=1\ndate\n", "utf-8")
    given = ("--script", str(script), "--env", "B=2", "--export", "HOME,C=3")
    assert run("plan", "--json", "--time", "1", *given) == 0
    made = json.loads(capsys.readouterr().out)["rows"][0]
    assert made["spec"]["environment"] == {"A": "1", "B": "2", "C": "3"}
    (sent,) = made["submissions"]
    assert sent["options"]["export"] == "HOME"
    assert "\nexport A=1\nexport B=2\nexport C=3\n" in sent["script"]


def test_a_secret_of_export_is_in_no_option_and_no_script(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ("--export", "ALL,HF_TOKEN=hf_s3cr3t", "--", "train")
    assert run("plan", "--json", "--time", "1", *given) == 0
    (sent,) = json.loads(capsys.readouterr().out)["rows"][0]["submissions"]
    assert sent["options"]["export"] == "ALL"
    assert "s3cr3t" not in sent["script"]


def test_a_preflight_stands_before_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "slurmkit").mkdir()
    (tmp_path / "slurmkit" / "config.toml").write_text('[preflight]\nprogram = "/x"\n', "utf-8")
    asked = ("--preflight", "nccl", "--gpus-per-node", "a100:2", "--time", "1", "--", "train")
    assert run("plan", *asked) == 0
    shown = capsys.readouterr()
    assert shown.out.index("python3 -IS - ") < shown.out.index("-- train\n")
    assert "before the work, all_reduce_perf runs over the job's nodes" in shown.err
    assert run("plan", "--preflight", "mpi", "--time", "1", "--", "train") == 2


def test_errors_end_with_2_and_nothing_is_sent(
    capsys: pytest.CaptureFixture[str], border: FakeSlurm
) -> None:
    asked = ("--gpus-per-node", "a100:9", "--time", "1", "--", "x")
    assert run("plan", *asked) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("#!/bin/bash\n")
    assert "fits: --nodes=1 --gpus-per-node=a100:8" in shown.err
    assert run("submit", *asked) == 2
    assert "not submitted: 1 error; to submit it anyway: --force" in capsys.readouterr().err
    assert not sent(border)
    assert run("submit", "--force", *asked) == 0
    assert len(sent(border)) == 1


def test_force_never_sends_a_secret(capsys: pytest.CaptureFixture[str], border: FakeSlurm) -> None:
    asked = ("--time", "1", "--", "x", f"--token=hf_{'a' * 34}")
    assert run("submit", "--force", *asked) == 2
    assert "--force" not in capsys.readouterr().err
    assert not sent(border)


def test_submit_prints_the_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("submit", "--parsable", "--time", "1", "--", "hostname") == 0
    assert capsys.readouterr().out == "7\n"


def test_letters_are_those_of_sbatch(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--json", "-N2", "-n", "4", "-p", "gpu", "-t5", "-H", "--", "x", "-N") == 0
    options = json.loads(capsys.readouterr().out)["rows"][0]["submissions"][0]["options"]
    assert options.items() >= {"nodes": "2", "ntasks": "4", "partition": "gpu", "time": "5"}.items()
    assert "hold" in options


def test_a_batch_script_given_as_the_command_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text, mode in (
        ("train.py", "import x\n", 0o644),
        ("job.sh", "#!/bin/sh\n#SBATCH -N 2\n", 0o755),
        ("run", "#!/bin/sh\nhostname\n", 0o755),
    ):
        Path(name).write_text(text, "utf-8")
        Path(name).chmod(mode)
    noted = {}
    for word in ("train.py", "./job.sh", "./run", "sh", "missing.sh"):
        assert run("plan", "--time", "1", "--", word) == 0
        noted[word] = (
            f"to submit it as a batch script: --script {word}\n" in capsys.readouterr().err
        )
    assert [word for word, said in noted.items() if said] == ["./job.sh"]


def test_submit_says_how_to_follow(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("submit", "--time", "1", "--", "hostname") == 0
    assert capsys.readouterr().err.endswith("follow it: slurmkit log --follow 7\n")
    assert run("submit", "--time", "1", "--array", "0-3", "--", "hostname") == 0
    assert "slurmkit wait 7; one task: slurmkit log --follow 7_INDEX\n" in capsys.readouterr().err


def test_options_go_before_the_job_file_and_that_before_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, job = tmp_path / "run.sh", tmp_path / "job.toml"
    script.write_text("#!/bin/sh\n#SBATCH -N 3 -n 3 -t 9\nhostname\n", "utf-8")
    job.write_text("nodes = 2\nntasks = 2\n[environment]\nA = '1'\n", "utf-8")
    files = ("--script", str(script), "--job-file", str(job))
    assert run("plan", "--json", *files, "--nodes", "1", "--env", "B=2") == 0
    made = json.loads(capsys.readouterr().out)["rows"][0]
    options = made["submissions"][0]["options"]
    assert (options["nodes"], options["ntasks"], options["time"]) == ("1", "2", "9")
    assert options["job-name"] == "run.sh"
    assert made["spec"]["environment"] == {"A": "1", "B": "2"}


def test_what_is_given_beside_a_script_adds_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, job = tmp_path / "run.sh", tmp_path / "job.toml"
    lines = "#SBATCH --contiguous --wckey=a --gpus-per-node=2\n"
    script.write_text(f"#!/bin/sh\n{lines}hostname\n", "utf-8")
    launch = "label = true\nper-gpu = false\nlog-per-rank = true"
    job.write_text(f"time = 1\n[options]\nreboot = ''\n[launch]\n{launch}\n", "utf-8")
    files = ("--script", str(script), "--job-file", str(job))
    given = ("--option", "wckey=b", "--gpu-bind", "closest", "--mpi", "pmix", "--nccl-debug")
    assert run("plan", "--json", *files, *given) == 0
    made = json.loads(capsys.readouterr().out)["rows"][0]
    options = made["submissions"][0]["options"]
    assert {"contiguous", "reboot"} <= options.keys()
    assert (options["wckey"], options["gpu-bind"]) == ("b", "closest")
    assert made["spec"]["launch"] == {
        "launcher": None,
        "mpi": "pmix",
        "cpu-bind": None,
        "per-gpu": False,
        "log-per-rank": True,
        "nccl-debug": "INFO",
        "preflight": None,
        "label": True,
    }


def test_a_script_that_says_wait_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurmkit.cli.jobs.wait_and_exit_code", lambda _: 3)
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\n#SBATCH --wait --quiet -t 1\nhostname\n", "utf-8")
    assert run("submit", "--script", str(script)) == 3
    said = capsys.readouterr().err
    assert "the script has --wait: slurmkit submit waits for the job" in said
    assert "the script's --quiet is left out, because it does not describe the job" in said
    script.write_text("#!/bin/sh\n#SBATCH -t 1\nhostname\n", "utf-8")
    assert run("submit", "--script", str(script)) == 0


def test_a_relative_directory_is_below_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("plan", "--chdir", "runs/../a", "--time", "1", "--", "x") == 0
    assert f"#SBATCH --chdir={tmp_path}/a\n" in capsys.readouterr().out


def test_a_variable_without_a_value_has_ones_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREETING", "a=b c")
    assert run("plan", "--env", "GREETING", "--time", "1", "--", "x") == 0
    assert "export GREETING='a=b c'\n" in capsys.readouterr().out


def test_a_secret_that_was_typed_is_noted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the shell's history."""
    said = "the value of HF_TOKEN is now in your shell's history"
    assert run("plan", "--env", "HF_TOKEN=abcdef", "--env", "A=b", "--time", "1", "--", "x") == 0
    shown = capsys.readouterr()
    assert shown.err.count(said) == 1
    assert "next time export it, and give --env HF_TOKEN" in shown.err
    assert "abcdef" not in shown.out + shown.err
    monkeypatch.setenv("HF_TOKEN", "abcdef")
    assert run("plan", "--env", "HF_TOKEN", "--time", "1", "--", "x") == 0
    assert said not in capsys.readouterr().err


def test_flags(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--exclusive", "--hold", "--no-requeue", "--option", "contiguous", "--time", "1")
    assert run("plan", *flags, "--", "x") == 0
    script = capsys.readouterr().out
    for flag in ("exclusive", "hold", "no-requeue", "contiguous"):
        assert f"#SBATCH --{flag}\n" in script


def test_requeue_takes_a_value_only_after_equals(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nhostname\n", "utf-8")
    assert run("plan", "--time", "1", "--requeue", str(script)) == 0
    assert "#SBATCH --requeue\n" in capsys.readouterr().out
    assert run("plan", "--time", "1", "--requeue=expedite", str(script)) == 2  # a release before it
    assert "does not know --requeue=expedite (since 25.11)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["plan", "--env", "A_B_C", "--", "x"], "--env A_B_C: no such variable is exported"),
        (["plan", "--option", "wrap=x", "--", "x"], "or the command after --"),
        (["plan", "--wrap", "date", "--", "x"], "both --wrap and a COMMAND were given"),
        (["plan", "--job-file", "none.toml", "--", "x"], "cannot read none.toml"),
        (["plan", "--gpus", "3", "--gres", "gpu:2", "--", "x"], "--gpus=3 and --gres=gpu:2 do not"),
    ],
)
def test_bad_input(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*args) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("nodes", "asked"), [("2", True), ("3", False)])
def test_slurmctld_is_not_asked_of_switches_that_cannot_hold_a_job(
    border: FakeSlurm, capsys: pytest.CaptureFixture[str], nodes: str, *, asked: bool
) -> None:
    """`--test-only` refuses what Slurm starts once it has waited (seen on 24.11.5)."""
    assert run("plan", "--switches", "1", "--nodes", nodes, "--time", "1", "hostname") == 0
    assert any("--test-only" in argv for argv in border.asked) == asked
    said = capsys.readouterr().err
    assert "leaf switches leaf1 (c[1-2]), leaf2 (c3)" in said
    assert ("do not fit on 1 of the leaf switches" in said) != asked
