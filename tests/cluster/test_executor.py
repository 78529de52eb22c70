"""Python functions as jobs of a real cluster, from the login node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import wait_for

if TYPE_CHECKING:
    from subprocess import CompletedProcess

    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
GUIDE = (Path(__file__).parents[2] / "docs" / "executor.md").read_text("utf-8")
PYTHON = "/opt/slurmkit/venv/bin/python"
# Before the real one on the PATH, so that its calls can be counted.
COUNTED = '#!/bin/bash\necho "$@" >>"${0%/*}/sbatch.calls"\nexec /usr/bin/sbatch "$@"\n'
BEGIN = """
import json, os, signal, subprocess, sys, time
from slurmkit import Executor

def executor(**more):
    return Executor(**{"partition": "cpu", "time": "5", "mem": "100M", **more})

def answer(**found):
    print(json.dumps(found), flush=True)
"""
MAP = """
def call(x):
    if x % 100 == 37:
        raise ValueError(x)
    if x == 1234:
        os.kill(os.getpid(), signal.SIGKILL)
    return x * x

with executor(array_throttle=16) as made:
    futures = made.submit_all(call, range(2000), chunksize=CHUNKSIZE)
    found = []
    for future in futures:
        error = future.exception(900)
        found.append(str(error) if error else future.result())
tasks = len({future.job_id for future in futures})
kinds = sorted({type(f.exception()).__name__ for f in futures if f.exception()})
answer(found=found, tasks=tasks, kinds=kinds, trace=str(futures[37].exception().__cause__))
"""


@pytest.fixture(scope="module")
def folder(lab: Lab) -> Iterator[str]:
    """Alice's, on the shared filesystem."""
    path = lab.run("mktemp", "-d", "/home/alice/calls.XXXXXX").stdout.strip()
    lab.run("tee", f"{path}/sbatch", input=COUNTED)
    lab.run("chmod", "+x", f"{path}/sbatch")
    yield path
    lab.run("scancel", "--me")
    lab.run("rm", "-r", path)


def run(lab: Lab, folder: str, script: str, **more: Any) -> CompletedProcess[str]:
    """Run a script on the login node, as its own `__main__`."""
    command = ["bash", "-c", f"cd {folder} && PATH={folder}:$PATH exec {PYTHON} -"]
    return lab.run(*command, input=BEGIN + script, **more)


def answer(lab: Lab, folder: str, script: str, **more: Any) -> dict[str, Any]:
    said = run(lab, folder, script, **more).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def map_two_thousand(lab: Lab, folder: str, chunksize: int | None) -> tuple[int, int]:
    """Tasks and submits that it took."""
    lab.run("rm", "-f", f"{folder}/sbatch.calls")
    script = MAP.replace("CHUNKSIZE", str(chunksize))
    got = answer(lab, folder, script, timeout=2400)
    found = got["found"]
    assert len(found) == 2000
    raised = {x for x in range(2000) if x % 100 == 37}
    assert all(found[x] == str(x) for x in raised)
    assert "its process was ended by signal 9 (SIGKILL)" in found[1234]
    rest = set(range(2000)) - raised - {1234}
    assert all(found[x] == x * x for x in rest)
    assert got["kinds"] == ["CallDied", "ValueError"]
    assert "raise ValueError(x)" in got["trace"] or "in call" in got["trace"]
    return got["tasks"], len(lab.run("cat", f"{folder}/sbatch.calls").stdout.splitlines())


@pytest.mark.timeout(2700)
def test_two_thousand_calls(lab: Lab, folder: str) -> None:
    tasks, submits = map_two_thousand(lab, folder, None)
    assert submits == 1
    assert tasks <= 32


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_two_thousand_tasks(lab: Lab, folder: str) -> None:
    """Each a task of its own, in as many arrays as MaxArraySize wants.

    A task takes 0.17 s of CPU, of which 0.06 are Slurm's own: that is 3 minutes of two idle cores,
    and a quarter of an hour where others keep them busy.
    """
    assert map_two_thousand(lab, folder, 1) == (2000, 2)


def test_a_call_has_what_its_job_has(lab: Lab, folder: str) -> None:
    script = """
with executor(partition="gpu", gpus="a100:2", cpus_per_task=2) as made:
    def look():
        names = "CUDA_VISIBLE_DEVICES", "SLURM_CPUS_PER_TASK", "SLURM_JOB_ID", "PWD"
        show = ["scontrol", "-d", "show", "job", os.environ["SLURM_JOB_ID"]]
        shown = subprocess.run(show, check=True, capture_output=True, text=True).stdout
        return {"shown": shown, **{name: os.environ.get(name) for name in names}}
    future = made.submit(look)
    found = future.result(400)
answer(job=future.job_id, **found)
"""
    found = answer(lab, folder, script)
    (held,) = re.findall(r"GRES=gpu:a100:2\(IDX:([\d,-]+)\)", found["shown"])
    first, _, last = held.partition("-")
    assert found["CUDA_VISIBLE_DEVICES"] == (f"{first},{last}" if last else held)
    assert found["SLURM_CPUS_PER_TASK"] == "2"
    assert found["job"] == found["SLURM_JOB_ID"]
    assert found["PWD"] == folder


def test_found_again_by_a_new_process(lab: Lab, folder: str) -> None:
    """The first is killed as a notebook's kernel is, while its calls run."""
    killed = """
made = executor(max_workers=4)
futures = made.submit_all(lambda x: time.sleep(x) or x * x, range(8))
print(futures[0].job, flush=True)
futures[0].result(400)
os.kill(os.getpid(), signal.SIGKILL)
"""
    gone = run(lab, folder, killed, check=False)
    assert gone.returncode in (137, 128 + 9)
    job = gone.stdout.strip()
    again = f"""
futures = Executor.attach("{job}")
answer(found=[future.result(400) for future in futures])
"""
    assert answer(lab, folder, again)["found"] == [x * x for x in range(8)]
    assert answer(lab, folder, again)["found"] == [x * x for x in range(8)]
    foreign = lab.run(PYTHON, "-", user="bob", input=BEGIN + again, check=False)
    assert foreign.returncode == 1
    assert f"no record of calls that you sent to {lab.name} as job {job} from" in foreign.stderr


def test_what_is_over_is_forgotten(lab: Lab, folder: str) -> None:
    script = """
def wait(_):
    while not os.path.exists("go-on"):
        time.sleep(0.2)

with executor(max_workers=2) as made:
    futures = made.submit_all(wait, [0, 1])
    try:
        Executor.forget(futures[0].job)
    except Exception as error:
        words = str(error)
    open("go-on", "w").close()
end = time.monotonic() + 300
while time.monotonic() < end:
    try:
        Executor.forget(futures[0].job)
        break
    except Exception as error:
        time.sleep(1)  # it has not ended when the last result is there
answer(words=words, left=futures[0].log.parent.exists())
"""
    got = answer(lab, folder, script)
    assert re.match(r"job \d+_\S+ is (pending|configuring|running); the files of", got["words"])
    assert not got["left"]


def test_a_result_of_somebody_else_is_refused(lab: Lab, folder: str) -> None:
    """Root alone can put it there, and all may read it; it is not unpickled."""
    begin = """
made = executor(hold=True)
future = made.submit(abs, -1)
answer(job=future.job, folder=str(future.log.parent))
os._exit(0)
"""
    sent = answer(lab, folder, begin)
    forged = f"{sent['folder']}/results/0-0-0"
    evil = f"import os; os.system('touch {folder}/evil')"
    made = f"""
import pickle
from slurmkit.executor import resultfiles
class Evil:
    def __reduce__(self):
        return exec, ({evil!r},)
result = resultfiles.StoredResult(0, resultfiles.VALUE, pickle.dumps(Evil()))
data = resultfiles.sized(resultfiles.dumped(result))
resultfiles.write_whole({forged!r}, data)
"""
    lab.run(PYTHON, "-", user="", input=made)
    lab.run("chown", "bob", forged, user="")
    lab.run("chmod", "0644", forged, user="")
    got = answer(
        lab,
        folder,
        f"""
(future,) = Executor.attach("{sent["job"]}")
error = future.exception(400)
answer(kind=type(error).__name__, words=str(error))
""",
    )
    lab.run("scancel", sent["job"])
    assert got["kind"] == "ResultRefused"
    assert re.search(r"0-0-0 is not trusted: it belongs to user id \d+, not to you", got["words"])
    assert lab.run("test", "-e", f"{folder}/evil", check=False).returncode == 1


def test_cancelled_calls_leave_the_queue(lab: Lab, folder: str) -> None:
    script = """
made = executor(max_workers=3, job_name="given-up")
futures = made.submit_all(time.sleep, [600] * 6)
while not futures[0].running():
    time.sleep(0.1)
made.shutdown(cancel_futures=True)
answer(cancelled=[future.cancelled() for future in futures])  # none has ended by itself
"""
    got = answer(lab, folder, script)
    assert got["cancelled"] == [True] * 6
    left = ("squeue", "--noheader", "--me", "--name=given-up")
    wait_for(lambda: not lab.run(*left).stdout)


def test_a_job_that_is_cancelled_elsewhere_is_no_hang(lab: Lab, folder: str) -> None:
    script = """
import subprocess
with executor() as made:
    future = made.submit(time.sleep, 600)
    while not future.running():
        time.sleep(0.1)
    subprocess.run(["scancel", future.job_id], check=True)
    error = future.exception(400)
answer(kind=type(error).__name__, words=str(error))
"""
    got = answer(lab, folder, script)
    assert got["kind"] == "ResultLost"
    assert "left no result: cancelled by alice" in got["words"]


def test_another_python_is_named(lab: Lab, folder: str) -> None:
    """One that says it is 3.6: the image has no second one."""
    old = f"""#!/bin/sh
exec {PYTHON} -c 'import runpy, sys
sys.version_info = (3, 6, 9)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")' "$@"
"""
    lab.run("tee", f"{folder}/old", input=old)
    lab.run("chmod", "+x", f"{folder}/old")
    script = f"""
with executor(python="{folder}/old") as made:
    error = made.submit(abs, -1).exception(400)
answer(kind=type(error).__name__, words=str(error))
"""
    got = answer(lab, folder, script)
    assert got["kind"] == "PythonDiffers"
    assert re.search(r"the job's Python is 3\.6 \(.* on c\d\), but the call", got["words"])


def test_another_version_of_a_library_is_named(lab: Lab, folder: str) -> None:
    """The login node has a newer one, in a folder that it does not share."""
    own = lab.run("mktemp", "-d", "/tmp/own.XXXXXX").stdout.strip()
    for place, version in ((own, "2.0"), (folder, "1.0")):
        text = f"__version__ = '{version}'\ndef which(): return __version__\n"
        lab.run("tee", f"{place}/answers.py", input=text)
    script = f"""
import warnings
sys.path[:0] = ["{own}", "{folder}"]
import answers
with warnings.catch_warnings(record=True) as seen, executor() as made:
    warnings.simplefilter("always")
    found = made.submit(answers.which).result(400)
answer(found=found, words=[str(each.message) for each in seen])
"""
    got = answer(lab, folder, script)
    lab.run("rm", "-r", own)
    assert got["found"] == "1.0"
    assert re.search(r"answers has version 1\.0 for \S+ on c\d, and 2\.0 here", got["words"][0])


def test_a_folder_that_nodes_do_not_share(lab: Lab, folder: str) -> None:
    own = lab.run("mktemp", "-d", "/tmp/own.XXXXXX").stdout.strip()
    script = f"""
with executor(folder="{own}") as made:
    error = made.submit(abs, -1).exception(400)
answer(kind=type(error).__name__, words=str(error))
"""
    got = answer(lab, folder, script)
    lab.run("rm", "-r", own)
    assert got["kind"] == "ResultLost"
    assert "do the nodes share that folder?" in got["words"]


def test_the_guide(lab: Lab, folder: str) -> None:
    """Its scripts run as they stand, one after another."""
    scripts = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    said = [run(lab, folder, script).stdout for script in scripts]
    shown = re.findall(r"^```text\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    assert [text for text in said if text] == shown
