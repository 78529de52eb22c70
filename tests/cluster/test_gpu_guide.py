"""The guide "Is my job using its GPUs?": its job, and each of its commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
GUIDE = (Path(__file__).parents[2] / "docs" / "gpus-in-use.md").read_text("utf-8")
EXAMPLE = "41"  # the id of the guide's job
PARTS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL))
(SCRIPT,) = re.findall(r"^```bash\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def commands(part: str) -> list[str]:
    """The commands of a part of the guide."""
    return re.findall(r"^\$ (.+)$", PARTS[part], re.MULTILINE)


@pytest.fixture(scope="module")
def folder(lab: Lab) -> Iterator[str]:
    """Alice's, on the shared filesystem, with the guide's script."""
    path = lab.run("mktemp", "-d", "/home/alice/gpus.XXXXXX").stdout.strip()
    script, count = re.subn(
        r"(?m)^gpu-play --for 240 (.*)$",  # until the tests are done with it instead
        rf"gpu-play \1\nuntil test -e {path}/over; do sleep 1; done\ngpu-play idle",
        SCRIPT,
    )
    assert count == 1
    lab.run("tee", f"{path}/train.sh", input=script)
    yield path
    lab.run("touch", f"{path}/over")
    lab.run("rm", "-r", path)


@pytest.fixture(scope="module")
def job(lab: Lab, folder: str) -> str:
    """Id of the guide's job, submitted as the guide says."""
    (submit,) = commands("Try it")
    said = lab.run("bash", "-ec", f"cd {folder}\n{submit}").stdout
    (found,) = re.findall(r"submitted job (\d+)", said)
    return str(found)


def show(lab: Lab, command: str, job: str) -> str:
    """What a command of the guide prints for this job; empty while it fails."""
    argv = [job if word == EXAMPLE else word for word in shlex.split(command)]
    done = lab.run(*argv, check=False)
    return done.stdout if done.returncode == 0 else ""


def test_the_idle_gpu_is_seen_while_the_job_runs(lab: Lab, job: str) -> None:
    (command,) = commands("While it runs")
    # An ingest comes each minute. A sample may be from before the job began to play.
    busy = re.compile(r" 80 % +\d+ % +20\.0 of ")  # 95 % of the time, and the share at 0
    shown = wait_for(
        lambda: show(lab, command, job),
        lambda shown: busy.search(shown) and re.search(r" idle$", shown, re.MULTILINE),
    )
    assert "still running" in shown
    assert len(busy.findall(shown)) == 1, shown
    assert len(re.findall(r" idle$", shown, re.MULTILINE)) == 1, shown


def test_the_terminal_app_says_the_same(lab: Lab, job: str) -> None:
    """What its two questions get from the site's ledger, as the person who runs the job."""
    program = (
        "from slurmkit_tui.feed.composed import read_gpus_now, read_gpus_of_job as of_job\n"
        "from slurmkit_tui.jobform.gpu_use import sum_up\n"
        f"print(sum_up(read_gpus_now().by_job(None)['{job}'], 2).words)\n"
        f"print(sorted(gpu.idle for gpu in of_job('{job}').runs[0].gpus))\n"
    )
    python = "/opt/slurmkit/venv/bin/python"
    shown = lab.run(python, "-c", program).stdout.splitlines()
    assert shown == ["40%", "[False, True]"]


def test_each_command_works_after_the_end(lab: Lab, folder: str, job: str) -> None:
    wait, *others = commands("After it ended")
    lab.run("touch", f"{folder}/over")
    lab.run(*shlex.split(wait.replace(EXAMPLE, job)))
    efficiency = next(each for each in others if "efficiency" in each)
    wait_for(
        lambda: show(lab, efficiency, job), lambda shown: re.search("^alice ", shown, re.MULTILINE)
    )
    for command in others:
        assert show(lab, command, job), command
    gpus = next(each for each in others if "--gpus" in each)
    assert re.search(r" idle$", show(lab, gpus, job), re.MULTILINE)
