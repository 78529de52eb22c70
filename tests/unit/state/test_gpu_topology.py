"""Where GPUs sit: by gres.conf(5), and by what nvidia-smi prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.cli.capabilities import topo_command
from slurmkit.errors import BadInput, Refused
from slurmkit.state.gpu_topology import (
    GresConfGpu,
    parse_gres_conf,
    parse_matrix,
    parse_peers,
    peer_sets,
)
from slurmkit.testing import FakeSlurm, squeue_text

RECORDED = Path(__file__).parents[2] / "recorded"
CONF = r"""
AutoDetect=off
# NodeName=c1 Name=gpu File=/dev/nvidia9
nodename=c[1-2] name=gpu type=a100 file=/dev/nvidia[0-3] \
  cores=0-31   # near
NodeName=c[1-2] Name=gpu Type=a100 File=/dev/nvidia[4-7] Cores=32-63
NodeName=c3 Name=gpu Type=h100 File=/dev/nvidia0 Links=-1,18
NodeName=c3 Name=gpu Type=h100 File=/dev/nvidia1 Links=18,-1
NodeName=c3 Name=shard Count=16
Name=gpu File=/dev/everywhere
NodeName=c[ Name=gpu File=/dev/nvidia0
"""
# As the driver prints it: tabs, an underlined header, cells that are padded, some empty.
MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tSYS\tSYS\tPXB\tSYS\t0-31,64-95\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\tSYS\tPXB\tSYS\t0-31,64-95\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tNV12\tSYS\tPXB\t32-63\t1\t\tN/A\n"
    "GPU3\tSYS\tSYS\tNV12\t X \tSYS\tPXB\t\t\t\tN/A\n"
    "NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n\n"
)
PEERS = (
    " \tGPU0\tGPU1\tGPU2\tGPU3\t\n GPU0\tX\tOK\tCNS\tCNS\t\n GPU1\tOK\tX\tCNS\tCNS\t\n"
    " GPU2\tCNS\tCNS\tX\tOK\t\n GPU3\tCNS\tCNS\tOK\tX\t\n\nLegend:\n\n  X    = Self\n"
)


def test_gres_conf_says_which_cores_are_near() -> None:
    near = [gpu.cores for gpu in parse_gres_conf(CONF, "c2")]
    assert near == ["0-31"] * 4 + ["32-63"] * 4 + [None]
    assert parse_gres_conf(CONF, "c3") == (
        GresConfGpu("h100", None, "-1,18"), GresConfGpu("h100", None, "18,-1"), GresConfGpu(),
    )  # fmt: skip
    assert parse_gres_conf(CONF, "c9") == (GresConfGpu(),)
    assert parse_gres_conf("AutoDetect=nvml\nName=gpu\n", "c1") == ()


def test_the_matrix_of_devices() -> None:
    found = parse_matrix(MATRIX)
    assert list(found) == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert found["GPU0"].links == {
        "GPU1": "NV12", "GPU2": "SYS", "GPU3": "SYS", "mlx5_0": "PXB", "mlx5_1": "SYS",
    }  # fmt: skip
    assert (found["GPU0"].cpus, found["GPU0"].numa) == ("0-31,64-95", "0")
    assert (found["GPU2"].cpus, found["GPU2"].numa) == ("32-63", "1")
    assert (found["GPU3"].cpus, found["GPU3"].numa) == (None, None)
    assert parse_matrix(MATRIX.replace("\t", "    "))["GPU1"].links == found["GPU1"].links
    assert parse_matrix("No devices were found\n") == {}


def test_peer_access_is_mutual_and_sets_are_whole() -> None:
    assert peer_sets(parse_peers(PEERS)) == [("GPU0", "GPU1"), ("GPU2", "GPU3")]
    ring = {n: frozenset({n, (n + 1) % 4, (n - 1) % 4}) for n in range(4)}
    named = {f"GPU{n}": frozenset(f"GPU{m}" for m in reach) for n, reach in ring.items()}
    beside = [("GPU0", "GPU1"), ("GPU0", "GPU3"), ("GPU1", "GPU2"), ("GPU2", "GPU3")]
    assert peer_sets(named) == beside
    every = {f"GPU{n}": frozenset(f"GPU{m}" for m in range(16)) for n in range(16)}
    assert peer_sets(every) == [tuple(every)]
    assert peer_sets({"GPU0": frozenset({"GPU0"})}) == [("GPU0",)]
    one_way = {"GPU0": frozenset({"GPU0", "GPU1"}), "GPU1": frozenset({"GPU1"})}
    assert peer_sets(one_way) == [("GPU0",), ("GPU1",)]


@given(st.text(st.sampled_from("\t\n GPUXOK0123NIC:,-\x1b[m4")))
def test_any_text_is_read(text: str) -> None:
    parse_matrix(text)
    for made in peer_sets(parse_peers(text)):
        assert made


class Lab:
    """The recorded nodes, and a step that finds nvidia-smi, or does not."""

    def __init__(self, answers: dict[str, str] | None) -> None:
        nodes = (RECORDED / "24.11" / "gpus-nodes.txt").read_text("utf-8")
        self.state = "RUNNING"
        self.answers = answers
        self.slurm = FakeSlurm(
            {
                "scontrol": lambda argv, stdin: nodes,
                "squeue": self._squeue,
                "sacct": lambda argv, stdin: "",
                "srun": self._srun,
            }
        )

    def _squeue(self, argv: Sequence[str], stdin: str | None) -> str:
        job = {"JobArrayID": "42", "State": self.state, "NodeList": "c1"}
        return squeue_text(argv, [job])

    def _srun(self, argv: Sequence[str], stdin: str | None) -> str:
        if self.answers is None:
            raise Refused("execve(): nvidia-smi: No such file or directory")
        return self.answers[argv[-1]]


def run(monkeypatch: pytest.MonkeyPatch, lab: Lab, *words: str) -> Result:
    monkeypatch.setattr("slurmkit.cluster.cluster._LOCAL", lab.slurm)
    return CliRunner().invoke(topo_command, words, catch_exceptions=False)


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    file = tmp_path / "gres.conf"
    file.write_text(CONF.replace("Name=gpu File=/dev/everywhere", ""), "utf-8")
    return file


def test_what_slurm_knows_of_a_node(monkeypatch: pytest.MonkeyPatch, conf: Path) -> None:
    done = run(monkeypatch, Lab(None), "c1")
    lines = done.stdout.splitlines()
    assert lines[0] == "c1: 2 sockets of 32 cores, 8 GPUs"
    assert [line.split() for line in lines[1:3]] == [
        ["GPU", "TYPE", "CORES", "LINKS"], ["0", "a100", "0-31", "?"],
    ]  # fmt: skip
    assert lines[-1] == "peer access: ?"
    assert f"cores from {conf}" in done.stderr
    conf.unlink()
    done = run(monkeypatch, Lab(None), "c1")
    assert done.stdout.splitlines()[2].split() == ["0", "a100", "?", "?"]
    assert "cores unknown: no readable gres.conf on this machine" in done.stderr
    conf.write_text("NodeName=c1 Name=gpu File=/dev/nvidia0 Cores=0-3\n", "utf-8")  # one of eight
    done = run(monkeypatch, Lab(None), "c1")
    assert done.stdout.splitlines()[2].split() == ["0", "a100", "?", "?"]
    assert (
        f"cores unknown: {conf} does not list them for the GPUs that slurmctld reports"
        in done.stderr
    )


def test_in_a_job_nvidia_smi_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab({"-m": MATRIX, "r": PEERS})
    done = run(monkeypatch, lab, "--job", "42")
    assert "peer access: GPU0 GPU1; GPU2 GPU3" in done.stdout
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("GPU3")]
    assert row == ["GPU3", "SYS", "SYS", "NV12", "X", "SYS", "PXB", "?", "?"]
    step = next(argv for argv in lab.slurm.asked if argv[0] == "srun")
    assert step[:4] == ["srun", "--jobid=42", "--overlap", "--nodelist=c1"]
    (told,) = json.loads(run(monkeypatch, lab, "--job=42", "--json").stdout)["rows"]
    assert told["peers"] == [["GPU0", "GPU1"], ["GPU2", "GPU3"]]
    assert told["devices"]["GPU0"]["links"]["mlx5_0"] == "PXB"


def test_a_link_that_is_not_told_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-3\t0\nGPU1\tNV1\t0-3\t0\n"
    done = run(monkeypatch, Lab({"-m": matrix, "r": ""}), "--job", "42")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line}
    assert rows["GPU0"] == ["GPU0", "X", "?", "0-3", "0"]
    assert rows["GPU1"] == ["GPU1", "NV1", "X", "0-3", "0"]


def test_without_nvidia_smi_it_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, Lab(None), "--job", "42")
    assert "peer access: ?" in done.stdout
    assert "nvidia-smi does not answer on c1: execve(): nvidia-smi: No such" in done.stderr
    (told,) = json.loads(run(monkeypatch, Lab(None), "--json", "c1").stdout)["rows"]
    assert (told["devices"], told["peers"]) == (None, None)


def test_what_cannot_be_asked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(None)
    with pytest.raises(BadInput, match="name nodes"):
        run(monkeypatch, lab)
    with pytest.raises(BadInput, match="there is no node 'c99'"):
        run(monkeypatch, lab, "c99")
    lab.state = "PENDING"
    with pytest.raises(BadInput, match="job 42 is not running"):
        run(monkeypatch, lab, "--job", "42")
