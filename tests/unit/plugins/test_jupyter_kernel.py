"""The program that starts a kernel on its node: real processes, a shell script as the kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from slurmkit_plugins.jupyter_kernel import on_node
from waiting import wait_until

from slurmkit.errors import BadInput
from slurmkit.interactive.kernel_spec import (
    NO_COMMAND,
    check_kernel_job,
    find_kernel,
    write_kernel,
)
from slurmkit.spec.containers import Container
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobfile import load_job_file
from slurmkit.spec.jobspec import JobSpec

PROGRAM = Path(on_node.__file__)
LAUNCH = "launch-1"
# Listens as a kernel does, says what it has, and ends when it is told.
KERNEL = """
touch "$1/k-1"
echo "$$ ${JPY_PARENT_PID:-none} $OF_THE_JOB $OF_THE_KERNEL $PWD" > "$2/seen"
trap 'exit 7' INT
while :; do sleep 0.05; done
"""


class Node:
    """A folder of a kernel, and a process that stands for the job's batch shell."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "place"
        self.log = folder / "1.log"
        environment = {**os.environ, "OF_THE_JOB": "job", "JPY_PARENT_PID": "1"}
        with self.log.open("ab") as log:
            self.shell = subprocess.Popen(["sleep", "600"], env=environment, stderr=log)
        address = {"pid": self.shell.pid}
        (folder / "address.json").write_text(json.dumps(address), "utf-8")
        self.runs: list[subprocess.Popen[str]] = []

    def order(self, *argv: str) -> None:
        order = {
            "argv": argv,
            "cwd": str(self.folder),
            "environment": {"OF_THE_KERNEL": "kernel"},
            "place": str(self.place),
        }
        (self.folder / f"{LAUNCH}.json").write_text(json.dumps(order), "utf-8")

    def run(self) -> subprocess.Popen[str]:
        argv = [sys.executable, str(PROGRAM), "run", str(self.folder), LAUNCH]
        pipe = subprocess.PIPE
        started = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8")
        self.runs.append(started)
        return started

    def send(self, number: int) -> int:
        argv = [sys.executable, str(PROGRAM), "signal", str(self.folder), LAUNCH, str(number)]
        return subprocess.run(argv, check=False).returncode

    def seen(self) -> list[str]:
        wait_until((self.folder / "seen").exists)
        return (self.folder / "seen").read_text("utf-8").split()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    made.order("bash", "-c", KERNEL, "kernel", str(made.place), str(tmp_path))
    yield made
    made.send(9)
    for process in (*made.runs, made.shell):
        process.kill()
        process.communicate()


def line(run: subprocess.Popen[str]) -> str:
    """Return the next line that is not empty."""
    assert run.stdout is not None
    return next(said for said in iter(run.stdout.readline, "") if said.strip()).strip()


def test_a_kernel_has_the_environment_of_its_job(node: Node) -> None:
    assert line(node.run()) == "slurmkit-kernel ready"
    assert node.seen()[1:] == ["none", "job", "kernel", str(node.folder)]
    assert node.place.stat().st_mode & 0o777 == 0o700


def test_a_kernel_is_started_once_and_outlives_its_connection(node: Node) -> None:
    first = node.run()
    assert line(first) == "slurmkit-kernel ready"
    pid = node.seen()[0]
    first.communicate("")  # the server is gone
    second = node.run()
    assert line(second) == "slurmkit-kernel ready"
    assert node.send(0) == 0
    assert node.seen()[0] == pid
    node.send(2)
    assert line(second) == "slurmkit-kernel ended 7"
    assert line(node.run()) == "slurmkit-kernel ended 7"  # the answer may have been lost
    assert not node.place.exists()
    assert node.send(0) == 1


def test_a_kernel_that_fails_says_why(node: Node) -> None:
    node.log.write_text("of another kernel\n", "utf-8")
    node.order("bash", "-c", "echo first; echo no module >&2; echo; exit 3")
    assert line(node.run()) == "slurmkit-kernel ended 3 no module"
    assert "first\nno module" in node.log.read_text("utf-8")


def test_a_kernel_that_is_not_there_says_so(node: Node) -> None:
    node.order("/nowhere/python3")
    said = line(node.run())
    assert said.startswith("slurmkit-kernel ended 127 ")
    assert "/nowhere/python3" in said


def test_a_killed_supervisor_is_the_end(node: Node) -> None:
    run = node.run()
    assert line(run) == "slurmkit-kernel ready"
    (supervisor,) = (
        int(each.name)
        for each in Path("/proc").glob("[0-9]*")
        if str(node.folder).encode() in _read(each / "cmdline")
        and each.name != str(run.pid)
        and b"on_node" in _read(each / "cmdline")
    )
    os.kill(supervisor, 9)
    assert line(run) == "slurmkit-kernel ended -9"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_words_in_any_encoding(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    node.order("bash", "-c", r"printf 'K\xc3\xb6nnte \xff nicht\n' >&2; exit 1")
    assert line(node.run()) == "slurmkit-kernel ended 1 Könnte \ufffd nicht"


def test_a_new_start_ends_a_kernel_that_no_signal_reached(node: Node) -> None:
    run = node.run()
    assert line(run) == "slurmkit-kernel ready"
    old = node.folder / f"{LAUNCH}.json"
    order = json.loads(old.read_text("utf-8"))
    order |= {"place": str(node.folder / "place-2"), "argv": ["true"]}
    (node.folder / "launch-2.json").write_text(json.dumps(order), "utf-8")
    argv = [sys.executable, str(PROGRAM), "run", str(node.folder), "launch-2"]
    subprocess.run(argv, check=True, capture_output=True)
    assert line(run) == "slurmkit-kernel ended -9"


def test_a_folder_of_somebody_else_is_refused(node: Node, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    node.place.symlink_to(tmp_path / "theirs")
    run = node.run()
    assert "belongs to somebody else" in run.communicate("")[1]
    assert run.returncode == 1


class TestSpec:
    @pytest.fixture(autouse=True)
    def jupyter(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))

    def test_jupyter_finds_a_kernel_and_its_job(self, tmp_path: Path) -> None:
        kernel = find_kernel("gpu")
        spec = JobSpec(command=NO_COMMAND, gpus=Gpus(1, "a100"), time="4:00:00")
        write_kernel(kernel, spec, "/venv/bin/python")
        table = json.loads((tmp_path / "kernels/slurmkit-gpu/kernel.json").read_text("utf-8"))
        assert table["argv"][0] == "/venv/bin/python"
        assert table["display_name"] == "gpu (Slurm job)"
        assert table["metadata"]["kernel_provisioner"]["provisioner_name"] == "slurmkit"
        fields = load_job_file(kernel.job_file)
        assert "command" not in fields
        assert JobSpec(**fields | {"command": NO_COMMAND}) == spec

    @pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "..", "x" * 33, "ä", "GPU"])
    def test_names_that_jupyter_does_not_take(self, name: str) -> None:
        with pytest.raises(BadInput, match="for example gpu"):
            find_kernel(name)

    def test_jobs_that_make_no_sense_for_a_kernel(self) -> None:
        spec = JobSpec(command=NO_COMMAND)
        check_kernel_job(spec)
        for changed in (
            {"array": "1-3"},
            {"hold": True},
            {"container": Container(image="ubuntu")},
        ):
            with pytest.raises(BadInput, match="of a kernel"):
                check_kernel_job(msgspec.structs.replace(spec, **changed))
