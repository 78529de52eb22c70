"""node_check as slurmd and people run it, on stand-ins for the commands that it asks."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_lab import GRES, SCRIPTS, NodeLab, diag_json, nvlink_text
from waiting import wait_until

from slurmkit.cli.main import cli, run_to_exit_code

FIRST, SECOND = "1320922000000", "1320922000001"
LOST = "[GPU is lost]"


@pytest.fixture
def node(tmp_path: Path) -> NodeLab:
    return NodeLab(tmp_path)


@pytest.mark.parametrize("name", ["node_check.py", "node_checks.py"])
def test_a_nodes_python_can_run_it(name: str) -> None:
    """RHEL 8 has 3.6: no walrus, no keyword-only marks; and nothing but the standard library."""
    tree = ast.parse((SCRIPTS / name).read_text("utf-8"), feature_version=(3, 6))
    names = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "node_checks"}
    # 3.6 evaluates annotations: `list[str]` is an error there unless it is a string.
    for each in ast.walk(tree):
        found = [getattr(each, part, None) for part in ("annotation", "returns")]
        assert not any(isinstance(part, ast.Subscript | ast.BinOp) for part in found)


# --- by hand, as Nagios and NHC ask ---------------------------------------------------------------


def test_a_good_node_is_ok(node: NodeLab) -> None:
    done = node.run("--context", "hand")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "OK: 10 checks, 2 GPUs\n"
    assert not node.told()
    assert not node.checks.exists()


@pytest.mark.parametrize(
    ("changes", "code", "line"),
    [
        ({"hot": "Active"}, 1, "throttle held back by hw_thermal_slowdown"),
        (
            {"hot": "Active", "reasons": "clocks_throttle_reason"},
            1,
            "throttle held back by hw_thermal_slowdown",
        ),
        ({"width": "8x"}, 1, "pcie 8 of 16 PCIe lanes"),
        ({"clock": "900 MHz"}, 1, "clocks graphics_clock is set to 900 of 1275 MHz"),
        ({"dram": "3", "sram": "1"}, 2, "ecc 4 uncorrectable errors"),
        ({"threshold": "Yes"}, 2, "ecc too many SRAM errors in its life"),
        ({"pending": "Yes"}, 2, "remap memory is to be remapped at the next reset"),
        ({"retire": "Yes"}, 2, "remap memory is to be remapped at the next reset"),
        ({"failure": "Yes"}, 2, "remap a row could not be remapped"),
        ({"recovery": "GPU Reset"}, 2, "recovery it asks for: GPU Reset"),
    ],
)
def test_what_nvidia_smi_shows_of_a_gpu(
    node: NodeLab, changes: dict[str, str], code: int, line: str
) -> None:
    node.gpus({}, changes)
    done = node.run()
    check, text = line.split(" ", 1)
    word = {1: "WARNING", 2: "CRITICAL"}[code]
    assert done.stdout == f"{word}: {check} {SECOND}: /dev/nvidia1: {text}\n"
    assert done.returncode == code


def test_unknown_values_are_no_faults(node: NodeLab) -> None:
    names = "recovery width hot sram dram threshold retire pending failure clock".split()
    node.gpus({}, dict.fromkeys(names, "N/A"))
    assert node.run().stdout == "OK: 10 checks, 2 GPUs\n"


def test_a_missing_gpu(node: NodeLab) -> None:
    node.gpus({})
    assert node.wrong() == ["gpus drain 1 of 2 GPUs are there"]
    node.configure("CHECK_GPUS=1\nCHECK_SKIP=leftovers")
    assert node.wrong() == []
    node.gpus({}, {"uuid": LOST, "serial": LOST, "minor": LOST, "pending": LOST})
    assert node.wrong() == [f"gpus page it does not answer: {LOST}"]


# One line for each GPU, as with AutoDetect; and MIG instances of two GPUs beside what is no GPU.
PLAIN = (
    "gpu Type=(null) Count=1 Index=0 ID=7 File=/dev/nvidia0 Links=-1,4 Flags=x",
    "gpu Type=a100 Count=1 Index=1 ID=7 File=/dev/nvidia1 Cores=0-31 CoreCnt=64",
)
MIG = (
    "gpu Type=1g Count=1 ID=7 File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap66",
    "gpu Type=1g Count=1 ID=7 File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap75",
    "gpu Type=1g Count=1 ID=7 File=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap84",
    "shard Type=(null) Count=9 Index=2 ID=8 File=/dev/nvidia2 Links=(null)",
)


@pytest.mark.parametrize("lines", [PLAIN, MIG], ids=["plain", "mig"])
def test_what_slurmd_says_of_gpus(node: NodeLab, lines: tuple[str, ...]) -> None:
    node.says("slurmd", "".join(f"slurmd: Gres Name={line}\n" for line in lines))
    node.gpus({})
    assert node.wrong() == ["gpus drain 1 of 2 GPUs are there"]
    node.gpus({}, {})
    assert node.wrong() == []


def test_a_gpu_that_autodetect_does_not_find_any_more_is_missed(node: NodeLab) -> None:
    node.run(env=node.environment)
    node.says("slurmd", GRES.replace("Count=2", "Count=1").replace("[0-1]", "0"))
    node.gpus({})
    assert node.wrong("--context", "health") == ["gpus drain 1 of 2 GPUs are there"]


def test_a_driver_that_fails(node: NodeLab) -> None:
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    node.says("nvidia-smi", said, code=9)
    assert node.wrong() == [f"gpus drain nvidia-smi fails with code 9: {said}"]
    node.says("slurmd", "")
    assert node.wrong() == []  # a node without GPUs in gres.conf, from the same image
    node.says("slurmd", "slurmd: fatal: no configuration", code=1)
    assert node.wrong() == [f"gpus unknown nvidia-smi fails with code 9: {said}"]
    assert node.run().returncode == 3


def test_a_node_without_nvidia_smi(node: NodeLab) -> None:
    (node.bin / "nvidia-smi").unlink()
    assert node.wrong() == []
    node.configure("CHECK_GPUS=2\nCHECK_SKIP=leftovers")
    assert node.wrong() == ["gpus drain nvidia-smi is not installed"]


def test_what_nvidia_smi_says_beside_its_answer_is_no_fault(node: NodeLab) -> None:
    whole = (node.folder / "smi.xml").read_text("utf-8")
    more = "WARNING: infoROM is corrupted at gpu 0000:07:00.0\n"
    (node.folder / "smi.xml").write_text(more + whole + more, "utf-8")
    assert node.wrong() == []


def test_a_truncated_answer_is_no_answer(node: NodeLab) -> None:
    whole = (node.folder / "smi.xml").read_text("utf-8")
    (node.folder / "smi.xml").write_text(whole[: len(whole) // 2], "utf-8")
    (found,) = node.wrong()
    assert found.startswith("gpus drain nvidia-smi fails with code 0: ")


def test_nvlinks_are_compared_with_the_other_gpus(node: NodeLab) -> None:
    node.gpus({}, {}, nvlink=nvlink_text(12, 11))
    assert node.wrong() == [f"nvlink drain {SECOND} 11 of 12 NVLinks are active"]
    node.gpus({}, {}, nvlink=nvlink_text(0, 12, name="NVIDIA A100-PCIE-40GB"))
    assert node.wrong() == [f"nvlink note {FIRST} 0 of 12 NVLinks are active"]
    node.gpus({}, {}, nvlink=nvlink_text(0, 0))
    assert node.wrong() == []


def xid(pci: str, number: int | str, text: str = "", seconds: float = 99.5) -> str:
    return f"[{seconds:12.6f}] NVRM: Xid (PCI:{pci}): {number}, {text}\n"


def test_xids_since_the_boot(node: NodeLab) -> None:
    application = xid("0000:07:00", 31, "pid=812, name=python, Ch 00000008, MMU Fault")
    bad = xid("0000:0f:00", 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    node.says("dmesg", application + bad)
    assert node.wrong() == [f"xid page {SECOND} 79 GPU has fallen off the bus."]
    node.says("dmesg", xid("0000:0F:00", 63, "Row remap pending") + xid("0000:07:00", 94, "x; y"))
    assert node.wrong() == [f"xid note {FIRST} 94 x, y", f"xid note {SECOND} 63 Row remap pending"]
    node.configure('CHECK_XIDS="63=ok 94=drain"  # ours\nCHECK_SKIP="leftovers"')
    assert node.wrong() == [f"xid drain {FIRST} 94 x, y"]


def test_names_that_users_chose_are_no_xids(node: NodeLab) -> None:
    named = xid("0000:07:00", 79, "x").strip()
    oom = f"[    9.100000] oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user.slice/{named}\n"
    node.says("dmesg", oom)
    assert node.wrong() == []
    node.says("dmesg", xid("0000:07:00", 48, "DBE").replace("] NVRM", "][ T1234] NVRM"))
    assert node.wrong() == [f"xid drain {FIRST} 48 DBE"]


def test_xids_of_switches_and_of_a_reset(node: NodeLab) -> None:
    line = "[    9.100000] nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): {}, {} Link 60 ERR\n"
    node.says("dmesg", line.format(12028, "Non-fatal,") + line.format(20034, "Fatal,"))
    assert node.wrong() == ["xid drain SXid20034 Fatal, Link 60 ERR"]
    action = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    node.says("dmesg", xid("0000:07:00", 154, action))
    assert node.wrong() == []
    action = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    node.says("dmesg", xid("0000:07:00", 154, action))
    assert [each[:9] for each in node.wrong()] == ["xid drain"]


def test_infiniband(node: NodeLab) -> None:
    node.port("mlx5_0")
    node.port("mlx5_1", state="1: DOWN", phys_state="3: Disabled")
    node.port("mlx5_2", state="1: DOWN", phys_state="2: Polling", link_layer="Ethernet")
    assert node.wrong() == []
    node.port("mlx5_0", state="1: DOWN", phys_state="2: Polling")
    assert node.wrong() == ["infiniband note port mlx5_0:1 is 1: DOWN (2: Polling)"]
    ours = 'CHECK_INFINIBAND="mlx5_0 mlx5_7:1"\nCHECK_INFINIBAND_RATE=400\nCHECK_SKIP=leftovers'
    node.configure(ours)
    assert node.wrong() == [
        "infiniband drain port mlx5_0:1 is 1: DOWN (2: Polling)",
        "infiniband drain port mlx5_7:1 does not exist",
    ]
    node.port("mlx5_0")
    node.port("mlx5_7", rate="400 Gb/sec (4X NDR)")
    assert node.wrong() == ["infiniband drain port mlx5_0:1 has 200 Gb/sec (4X HDR)"]


def test_a_full_file_system(node: NodeLab) -> None:
    missing = node.folder / "none"
    node.configure(
        f'CHECK_TMP="{node.folder} {missing}"\nCHECK_TMP_FREE=1e9\nCHECK_SKIP=leftovers\n'
        "CHECK_SEVERITY=tmp=note"
    )
    assert node.wrong() == [
        f"tmp note {node.folder} has less than 1e+09 GiB free",
        f"tmp note {missing}: No such file or directory",
    ]


@pytest.fixture
def left_behind() -> Iterator[subprocess.Popen[bytes]]:
    env = {"SLURM_JOB_ID": "4100000009", "PATH": os.environ["PATH"]}
    person = None if os.geteuid() else 65534
    with subprocess.Popen(["sleep", "60"], env=env, user=person) as process:
        yield process
        process.kill()


def test_leftovers_of_a_person(node: NodeLab, left_behind: subprocess.Popen[bytes]) -> None:
    records = node.folder / "records" / "0"
    node.configure(f"RECORDS={records.parent}\nCHECK_LEFTOVER_SECONDS=0")
    said = f"leftovers note processes of ended jobs 4100000009: {left_behind.pid}"
    wait_until(lambda: said in node.wrong())
    records.mkdir(parents=True)
    (records / "4100000009").touch()
    assert node.wrong() == []


@pytest.mark.parametrize("release", [3, 4])
def test_dcgm(node: NodeLab, release: int) -> None:
    node.configure("CHECK_SKIP=leftovers\nCHECK_DIAG=epilog")
    text = "Persistence Mode, DCGM's GPU 1: Persistence mode for GPU 1 is disabled."
    for status, found in (
        ("Pass", []),
        ("Warn", [f"diag note {text}"]),
        ("Fail", [f"diag drain {text}"]),
    ):
        node.says("dcgmi", diag_json(status, release) + "\n")
        assert node.wrong("--context", "epilog") == found
        assert node.wrong("--context", "prolog") == []
    node.says("dcgmi", "Error: unable to establish a connection to the specified host.", code=255)
    (found_now,) = node.wrong("--context", "epilog")
    assert found_now.startswith("diag unknown dcgmi diag gives no result (code 255): Error: unable")


def test_dcgm_is_not_asked_at_each_health_check(node: NodeLab) -> None:
    node.configure("CHECK_SKIP=leftovers\nCHECK_DIAG=health")
    node.says("dcgmi", diag_json("Warn"))
    assert [each[:9] for each in node.wrong("--context", "health")] == ["diag note"]
    assert node.wrong("--context", "health") == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("CHECK_TPM=/tmp", "CHECK_TPM is unknown; allowed: CHECK_DIAG, "),
        ("CHECK_SKIP=dcgm", "CHECK_SKIP=dcgm: dcgm is not one of gpus, "),
        ("CHECK_TMP_FREE=full", "CHECK_TMP_FREE=full: could not convert"),
        ("CHECK_SEVERITY=tmp=bad", "tmp=bad is not NAME=note|drain|page"),
        ("CHECK_RESUME='yes", "No closing quotation"),
        ("CHECK_PROLOG_SECONDS=0", "must be at least 0.1"),
    ],
)
def test_an_error_in_the_settings_takes_no_node_out_of_use(
    node: NodeLab, line: str, said: str
) -> None:
    node.configure(line)
    for context, code in (("hand", 3), ("health", 3), ("prolog", 0), ("epilog", 0)):
        done = node.run("--context", context)
        assert done.returncode == code
        assert said in done.stderr
    assert not node.told()


def test_help_and_list_run_nothing(node: NodeLab) -> None:
    assert "HealthCheckProgram=/etc/slurm/node_check.py" in node.run("--help").stdout
    listed = node.run("--list").stdout.splitlines()
    assert len(listed) == 13
    assert listed[0].startswith("gpus        a GPU is missing")


def test_the_command_of_slurmkit_is_the_same_program(
    node: NodeLab, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    node.gpus({}, {"pending": "Yes"})
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{node.bin}:/usr/bin:/bin")
    assert run_to_exit_code(cli, ["node-check", "--json", "--context", "health"]) == 2
    assert json.loads(capfd.readouterr().out)["context"] == "hand"
    assert not node.told()
    assert run_to_exit_code(cli, ["node-check", "--", "--list"]) == 0


# --- the health check -----------------------------------------------------------------------------


def test_slurmd_calls_it_without_arguments_and_path(node: NodeLab) -> None:
    node.gpus({}, {"pending": "Yes"})
    done = node.run(env=node.environment)
    assert done.returncode == 2
    reason = f"slurmkit: remap {SECOND}: /dev/nvidia1: memory is to be remapped at the next reset"
    assert node.told() == [f"NodeName=c1|State=DRAIN|Reason={reason}"]
    last = json.loads((node.checks / "health.json").read_text("utf-8"))
    assert (last["node"], last["status"], last["context"]) == ("c1", "CRITICAL", "health")


def test_a_good_node_asks_slurmctld_nothing(node: NodeLab) -> None:
    assert node.run(env=node.environment).returncode == 0
    assert not (node.folder / "told").exists()


@pytest.mark.parametrize("old", ["Prolog error", "Epilog error"])
def test_slurms_own_reason_gets_the_real_one(node: NodeLab, old: str) -> None:
    node.checks.mkdir()
    (node.checks / "faults").write_text("devices: GPU 0 has no device file /dev/nvidia0\n", "utf-8")
    node.node("IDLE+DRAIN", old)
    node.run(env=node.environment)
    said = "devices: GPU 0 has no device file /dev/nvidia0"
    assert node.told() == [f"NodeName=c1|State=DRAIN|Reason=slurmkit: {said}"]
    node.node("IDLE+DRAIN", f"slurmkit: {said}")
    node.run(env=node.environment)
    assert node.told() == []


def test_a_fault_of_long_ago_drains_nothing(node: NodeLab) -> None:
    node.checks.mkdir()
    left = node.checks / "faults"
    left.write_text("devices: GPU 0\n", "utf-8")
    os.utime(left, (time.time() - 9000,) * 2)
    node.run(env=node.environment)
    assert node.told() == []
    assert not left.exists()


@pytest.mark.parametrize("state", ["MIXED+DRAIN", "DOWN", "DOWN*+NOT_RESPONDING"])
def test_an_administrators_reason_stays(node: NodeLab, state: str) -> None:
    node.gpus({})
    node.node(state, "new power supply [ticket 7]; back on Monday")
    done = node.run(env=node.environment)
    assert node.told() == []
    assert "already out of use: new power supply [ticket 7]; back on Monday" in done.stderr


def test_an_administrators_reason_without_a_time_stays(node: NodeLab) -> None:
    node.gpus({})
    node.node("IDLE+DRAIN", "fans")
    line = (node.folder / "node.txt").read_text("utf-8").partition(" [root")[0]
    (node.folder / "node.txt").write_text(line + "\n", "utf-8")
    node.run(env=node.environment)
    assert node.told() == []


def test_a_note_on_a_node_in_use_stays_in_front(node: NodeLab) -> None:
    node.gpus({})
    node.node("IDLE", "a loud fan")
    node.run(env=node.environment)
    said = "a loud fan; slurmkit: gpus: 1 of 2 GPUs are there"
    assert node.told() == [f"NodeName=c1|State=DRAIN|Reason={said}"]
    node.node("IDLE", "loud " * 45 + "fan")
    node.run(env=node.environment)
    (told,) = node.told()
    assert len(told.partition("Reason=")[2]) == 240


def test_a_reason_that_cannot_be_read_is_not_replaced(node: NodeLab) -> None:
    """Slurmctld that is busy may answer the second question although it has not the first."""
    node.gpus({})
    note = f'printf "%s|" "$@" >>{node.folder}/told; echo >>{node.folder}/told'
    node.script("scontrol", f'{note}\n[ "$1" = update ]')
    node.run(env=node.environment)
    assert node.told() == []


def test_further_faults_are_added_and_numbers_change_nothing(node: NodeLab) -> None:
    first = f"slurmkit: ecc {FIRST}: /dev/nvidia0: 1 uncorrectable errors"
    node.node("IDLE+DRAIN", first)
    node.gpus({"dram": "7"}, {})
    node.run(env=node.environment)
    assert node.told() == []
    node.gpus({"dram": "7"}, {"dram": "2"})
    node.run(env=node.environment)
    added = f"{first}; ecc {SECOND}: /dev/nvidia1: 2 uncorrectable errors"
    assert node.told() == [f"NodeName=c1|State=DRAIN|Reason={added}"]


def test_a_reason_fits_into_slurmdbd(node: NodeLab) -> None:
    node.gpus(*[{"pending": "Yes"}] * 8)
    node.run(env=node.environment)
    (told,) = node.told()
    assert len(told.partition("Reason=")[2]) <= 255


def test_it_takes_back_only_what_it_drained_and_is_fine(node: NodeLab) -> None:
    node.configure("CHECK_SKIP=leftovers\nCHECK_RESUME=yes")
    node.gpus({})
    node.run(env=node.environment)
    (told,) = node.told()
    node.node("IDLE+DRAIN", told.partition("Reason=")[2])
    node.gpus({}, {})
    for _ in range(2):
        node.run(env=node.environment)
        assert node.told() == []
    node.run(env=node.environment)
    assert node.told() == ["NodeName=c1|State=RESUME"]
    for _ in range(4):
        node.run(env=node.environment)
    assert node.told() == []


@pytest.mark.parametrize(
    "reason", ["slurmkit: gpus: 1 of 2 GPUs are there; devices: GPU 0", "a person's"]
)
def test_what_it_cannot_check_a_person_resumes(node: NodeLab, reason: str) -> None:
    node.configure("CHECK_SKIP=leftovers\nCHECK_RESUME=yes")
    node.gpus({})
    node.run(env=node.environment)
    node.told()
    node.node("IDLE+DRAIN", reason)
    node.gpus({}, {})
    for _ in range(5):
        node.run(env=node.environment)
    assert node.told() == []


def test_a_check_that_is_unknown_for_a_while_does_not_end_the_wish_to_resume(node: NodeLab) -> None:
    node.configure("CHECK_SKIP=leftovers\nCHECK_RESUME=yes\nCHECK_TMP_FREE=1e9")
    node.run(env=node.environment)
    (told,) = node.told()
    node.node("IDLE+DRAIN", told.partition("Reason=")[2])
    node.configure("CHECK_SKIP='leftovers tmp'\nCHECK_RESUME=yes")
    for _ in range(4):
        node.run(env=node.environment)
    assert node.told() == []
    node.configure("CHECK_SKIP=leftovers\nCHECK_RESUME=yes\nCHECK_TMP_FREE=0")
    node.run(env=node.environment)
    assert node.told() == ["NodeName=c1|State=RESUME"]


def test_slurmctld_that_is_silent_once_does_not_end_the_wish_to_resume(node: NodeLab) -> None:
    node.configure("CHECK_SKIP=leftovers\nCHECK_RESUME=yes")
    node.gpus({})
    node.run(env=node.environment)
    (told,) = node.told()
    node.gpus({}, {})
    node.says("scontrol", "Unable to contact slurm controller", code=1)
    for _ in range(3):
        node.run(env=node.environment)
    node.node("IDLE+DRAIN", told.partition("Reason=")[2])
    node.run(env=node.environment)
    assert node.told() == ["NodeName=c1|State=RESUME"]


def test_the_reason_of_a_node_in_use_is_not_added_to(node: NodeLab) -> None:
    node.node("IDLE", "slurmkit: tmp: /tmp has less than 1 GiB free")
    node.gpus({})
    node.run(env=node.environment)
    assert node.told() == ["NodeName=c1|State=DRAIN|Reason=slurmkit: gpus: 1 of 2 GPUs are there"]


def test_an_xid_counts_until_the_boot_or_until_it_is_forgotten(node: NodeLab) -> None:
    node.says("dmesg", xid("0000:0f:00", 74, "NVLink: fatal error", seconds=0.5))
    node.run(env=node.environment)
    assert len(node.told()) == 1
    node.says("dmesg", "[    0.900000] the ring has gone round\n")
    assert node.run(env=node.environment).returncode == 2
    assert node.run("--forget").returncode == 0
    assert node.run(env=node.environment).returncode == 0
    state = node.kept() | {"boot": "another", "xids": {"0000:0f:00.0|74": {"at": 1, "text": ""}}}
    (node.checks / "state.json").write_text(json.dumps(state), "utf-8")
    assert node.run(env=node.environment).returncode == 0


def test_people_are_paged_once(node: NodeLab) -> None:
    node.script("call", f'echo "$2" >>{node.folder}/called')
    node.configure(f'CHECK_SKIP=leftovers\nCHECK_PAGE="{node.bin}/call now"')
    node.gpus({"failure": "Yes"}, {})
    for _ in range(2):
        node.run(env=node.environment)
    called = node.folder / "called"
    wait_until(called.exists)
    said = f"c1: remap {FIRST}: /dev/nvidia0: a row could not be remapped\n"
    wait_until(lambda: called.read_text("utf-8") == said)


def test_slurmctld_that_does_not_answer_is_no_fault_of_the_check(node: NodeLab) -> None:
    node.checks.mkdir()
    (node.checks / "faults").write_text("devices: GPU 0\n", "utf-8")
    node.says("scontrol", "Unable to contact slurm controller", code=1)
    done = node.run(env=node.environment)
    assert "cannot drain the node: Unable to contact slurm controller" in done.stderr
    node.node("IDLE+DRAIN", "Prolog error")
    node.run(env=node.environment)
    assert node.told() == ["NodeName=c1|State=DRAIN|Reason=slurmkit: devices: GPU 0"]


# --- prolog and epilog ----------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["prolog", "epilog"])
def test_a_fault_fails_the_script_and_no_slurm_command_is_run(node: NodeLab, script: str) -> None:
    env = node.environment | {"SLURM_SCRIPT_CONTEXT": f"{script}_slurmd", "SLURM_JOB_ID": "41"}
    assert node.run(env=env).returncode == 0
    node.gpus({}, {"dram": "2"})
    assert node.run(env=env).returncode == 2
    assert not (node.folder / "told").exists()
    node.gpus({}, {})
    node.node("IDLE+DRAIN", f"{script.title()} error")
    node.run(env=node.environment)
    reason = f"slurmkit: ecc {SECOND}: /dev/nvidia1: 2 uncorrectable errors"
    assert node.told() == [f"NodeName=c1|State=DRAIN|Reason={reason}"]


def test_a_note_lets_jobs_run(node: NodeLab) -> None:
    node.gpus({}, {"hot": "Active"})
    done = node.run("--context", "prolog")
    assert (done.returncode, done.stdout.partition(":")[0]) == (0, "WARNING")


def test_the_prolog_knows_the_gpus_from_the_health_check(node: NodeLab) -> None:
    node.run(env=node.environment)
    node.script("slurmd", f"touch {node.folder}/asked")
    node.gpus({})
    assert node.run("--context", "prolog").stdout == "CRITICAL: gpus: 1 of 2 GPUs are there\n"
    assert not (node.folder / "asked").exists()


# A process that got away, and keeps what it inherited: as one in state D, no signal ends it.
HANG = "[ $1 != nvlink ] || exit 1; setsid sh -c 'echo $$ >{0}; exec sleep 600' & wait"


@pytest.fixture
def hanging(node: NodeLab) -> Iterator[Path]:
    pid = node.folder / "pid"
    node.script("nvidia-smi", HANG.format(pid))
    yield pid
    if pid.exists():
        subprocess.run(["kill", "-9", pid.read_text("utf-8").strip()], check=False)


def test_a_check_that_hangs_delays_no_job(node: NodeLab, hanging: Path) -> None:
    node.configure("CHECK_SKIP=leftovers\nCHECK_PROLOG_SECONDS=6")
    node.says("dmesg", xid("0000:0f:00", 79))
    env = node.environment | {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd", "SLURM_JOB_ID": "41"}
    # As slurmd's run_command, this waits for the end of the output, not of the process alone.
    done = node.run(env=env)
    os.kill(int(hanging.read_text("utf-8")), 0)  # it still hangs, and nobody has waited for it
    assert done.returncode == 2, "the other checks must still count"
    assert done.stdout == "CRITICAL: xid 0000:0f:00.0: 79\n"
    last = json.loads((node.checks / "prolog.json").read_text("utf-8"))
    states = {each["state"] for each in last["checks"] if "nvidia-smi within" in each["text"]}
    assert states == {"unknown"}


def test_a_driver_that_hangs_drains_the_node_by_the_health_check(
    node: NodeLab, hanging: Path
) -> None:
    node.configure("CHECK_SKIP=leftovers\nCHECK_HEALTH_SECONDS=6")
    assert node.run(env=node.environment).returncode == 2
    (told,) = node.told()
    assert told.endswith("Reason=slurmkit: gpus: no answer from nvidia-smi within 6 s")


def test_a_check_that_crashes_stops_no_other(node: NodeLab) -> None:
    node.script("nvidia-smi", "kill -SEGV $$")
    node.says("dmesg", xid("0000:07:00", 48, "DBE"))
    states = [each.split()[:2] for each in node.wrong()]
    assert states == [["gpus", "drain"], ["xid", "drain"]]
    (node.bin / "nvidia-smi").write_bytes(b"\x7fELF no program")
    found = node.wrong()
    assert ["gpus", "unknown"] in [each.split()[:2] for each in found]
    assert "xid drain 0000:07:00.0 48 DBE" not in found
