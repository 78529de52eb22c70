"""node_check as people run it, on stand-ins for the commands that it asks."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_lab import FIRST, GRES, SCRIPTS, SECOND, NodeLab, diag_json, kmsg, nvlink_text, xid
from waiting import wait_until

from slurmkit.cli.main import cli, run_to_exit_code

LOST = "[GPU is lost]"
DEPRECATED = "Requested functionality has been deprecated"


@pytest.mark.parametrize("name", ["node_check.py", "node_checks.py", "node_settings.py"])
def test_a_nodes_python_can_run_it(name: str) -> None:
    """RHEL 8 has 3.6: no walrus, no keyword-only marks; and nothing but the standard library."""
    tree = ast.parse((SCRIPTS / name).read_text("utf-8"), feature_version=(3, 6))
    names = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    ours = {"node_checks", "node_settings"}
    assert {name.partition(".")[0] for name in names} <= ours | sys.stdlib_module_names
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


@pytest.mark.parametrize("unknown", ["N/A", DEPRECATED])
def test_a_check_that_no_gpu_answers_is_not_ok(node: NodeLab, unknown: str) -> None:
    """Driver 595 has no application clocks any more."""
    node.gpus(*[{"clock": unknown, "mem_clock": unknown, "width": unknown}] * 2)
    checks = json.loads(node.run("--json").stdout)["checks"]
    found = {each["check"]: (each["state"], each["text"]) for each in checks}
    assert found["clocks"] == found["pcie"] == ("skipped", "the driver does not say")
    assert found["ecc"] == ("ok", "")


def test_lanes_are_compared_with_other_gpus_and_with_what_was(node: NodeLab) -> None:
    """A slot of a virtual machine may have half of the lanes that its GPU can use."""
    other = {"product_name": "NVIDIA A10G", "width": "8x"}
    node.gpus({}, other)
    assert node.wrong() == []
    node.gpus({}, {"width": "8x"})
    assert node.wrong() == [f"pcie note {SECOND} 8 of 16 PCIe lanes"]
    node.gpus({}, other | {"width": "16x"})
    node.run(env=node.environment)
    node.gpus({}, other)
    assert node.wrong() == [f"pcie note {SECOND} 8 of 16 PCIe lanes"]
    node.configure("CHECK_PCIE_WIDTH=16\nCHECK_SKIP=leftovers\nCHECK_TMP=/")
    node.gpus({"width": "8x"}, {"width": "8x"})
    assert [each.split()[0] for each in node.wrong()] == ["pcie", "pcie"]


@pytest.mark.parametrize("what", ["channel", "tpc"])
def test_a_pending_repair(node: NodeLab, what: str) -> None:
    node.gpus({}, {"repair": f"<{what}_repair_pending>Yes</{what}_repair_pending>"})
    assert node.wrong() == [f"remap drain {SECOND} memory is to be repaired at the next reset"]


def test_a_missing_gpu(node: NodeLab) -> None:
    node.gpus({})
    assert node.wrong() == ["gpus drain 1 of 2 GPUs are there"]
    node.configure("CHECK_GPUS=1\nCHECK_SKIP=leftovers")
    assert node.wrong() == []
    node.gpus({}, {"uuid": LOST, "serial": LOST, "minor": LOST, "pending": LOST})
    assert node.wrong() == [f"gpus page it does not answer: {LOST}"]


@pytest.mark.parametrize("part", ["hot", "sram", "width", "clock", "pending"])
def test_a_lost_gpu_may_still_say_its_name(node: NodeLab, part: str) -> None:
    """UUID and name come from elsewhere than what the GPU itself answers."""
    node.gpus({}, {part: "GPU is lost"})
    assert node.wrong() == [f"gpus page {SECOND} it does not answer: GPU is lost"]


def test_a_program_may_have_the_name_of_a_lost_gpu(node: NodeLab) -> None:
    path = node.folder / "smi.xml"
    for kind in ("processes", "accounted_processes"):
        name = f"<{kind}><process_info><process_name>GPU is lost</process_name></process_info>"
        whole = path.read_text("utf-8")
        path.write_text(whole.replace("\t</gpu>", f"{name}</{kind}>\t</gpu>"), "utf-8")
    assert node.wrong() == []


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


def test_the_cause_is_what_the_driver_says_first(node: NodeLab) -> None:
    """The last line is the version."""
    cause = "Failed to initialize NVML: Driver/library version mismatch"
    node.says("nvidia-smi", f"{cause}\nNVML library version: 550.54\n", code=18)
    assert node.wrong() == [f"gpus drain nvidia-smi fails with code 18: {cause}"]


# `amd-smi list --json` of ROCm 6 (amdsmi_cli/amdsmi_commands.py, `list`): bdf, uuid, then numbers.
AMD_LIST = [
    {
        "gpu": at,
        "bdf": f"0000:{bus}:00.0",
        "uuid": f"{at}aff74a1-0000-1000-80f1-000000000000",
        "kfd_id": 41000 + at,
        "node_id": 2 + at,
        "partition_id": 0,
    }
    for at, bus in enumerate(("05", "26"))
]
AMD_GRES = "slurmd: Gres Name=gpu Type=mi300x Count=2 Index=0 ID=7 File=/dev/dri/renderD[128,136]\n"


def test_amds_gpus_are_counted(node: NodeLab) -> None:
    (node.bin / "nvidia-smi").unlink()
    node.says("slurmd", AMD_GRES)
    node.says("amd-smi", "WARNING: User is not in the group render\n" + json.dumps(AMD_LIST))
    assert node.wrong() == []
    node.says("amd-smi", json.dumps({"gpu_data": AMD_LIST[:1]}))
    assert node.wrong() == ["gpus drain 1 of 2 GPUs are there"]
    said = "AMDSMI_STATUS_DRIVER_NOT_LOADED"
    node.says("amd-smi", said, code=34)
    assert node.wrong() == [f"gpus drain amd-smi fails with code 34: {said}"]
    node.says("amd-smi", '{"error": 34}', code=34)
    assert node.wrong() == ['gpus drain amd-smi fails with code 34: {"error": 34}']


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


PARITY = (
    "<sram_uncorrectable_parity>{}</sram_uncorrectable_parity>"
    "<sram_uncorrectable_secded>{}</sram_uncorrectable_secded>"
)
SRAM = "<sram_uncorrectable>2</sram_uncorrectable>"


@pytest.mark.parametrize(
    ("counters", "clock"),
    [
        # GPUs before Ampere: nvidia-smi(1) calls them double bit errors.
        ("<double_bit><total>2</total></double_bit>", "1275 MHz"),
        ("<sram_uncorrectable>2</sram_uncorrectable>", "1275 MHz"),
        # Newer drivers tell parity and SEC-DED errors apart, and have no application clocks.
        (PARITY.format("0", "2"), DEPRECATED),
        (PARITY.format("2", "N/A"), "N/A"),
    ],
    ids=["double-bit", "sram", "secded-deprecated-clocks", "parity"],
)
def test_memory_errors_are_counted_in_the_words_of_each_generation_of_drivers(
    node: NodeLab, counters: str, clock: str
) -> None:
    """Element names as in outputs that users of each driver have published."""
    node.gpus({}, {"sram": "2", "clock": clock})
    whole = (node.folder / "smi.xml").read_text("utf-8")
    assert whole.count(SRAM) == 1
    (node.folder / "smi.xml").write_text(whole.replace(SRAM, counters), "utf-8")
    assert node.wrong() == [f"ecc drain {SECOND} 2 uncorrectable errors"]


def test_an_answer_that_is_no_xml_is_unknown(node: NodeLab) -> None:
    """The name of a user's program stands in it."""
    path = node.folder / "smi.xml"
    whole = path.read_text("utf-8")
    said = "gpus unknown nvidia-smi -q -x gives no XML that can be read: "
    path.write_text(whole[: len(whole) // 2], "utf-8")
    (found,) = node.wrong("--context", "health")
    assert found.startswith(said)
    name = "<processes><process_info><process_name>a<b&c</process_name></process_info></processes>"
    path.write_text(whole.replace("\t</gpu>", f"{name}\t</gpu>"), "utf-8")
    (found,) = node.wrong("--context", "health")
    assert found.startswith(said)
    assert not any("State=DRAIN" in each for each in node.told())


def test_nvlinks_are_compared_with_the_other_gpus(node: NodeLab) -> None:
    node.gpus({}, {}, nvlink=nvlink_text(12, 11))
    assert node.wrong() == [f"nvlink drain {SECOND} 11 of 12 NVLinks are active"]
    node.gpus({}, {}, nvlink=nvlink_text(0, 12, name="NVIDIA A100-PCIE-40GB"))
    assert node.wrong() == [f"nvlink note {FIRST} 0 of 12 NVLinks are active"]
    node.gpus({}, {}, nvlink=nvlink_text(0, 0))
    assert node.wrong() == []


def test_a_gpu_in_mig_mode_has_no_active_nvlinks(node: NodeLab) -> None:
    """nvidia-smi prints a line without links for it, beside GPUs with all of theirs."""
    inactive = "NVML: Unable to retrieve NVLink information as all links are inActive"
    whole = nvlink_text(12, 0, 12)
    links = "".join(f"\t Link {link}: <inactive>\n" for link in range(12))
    node.gpus({}, {}, {}, nvlink=whole.replace(links, f"\t {inactive}\n"))
    assert node.wrong() == [f"nvlink drain {SECOND} 0 of 12 NVLinks are active"]
    node.mig("Disabled", "Enabled", "Disabled")
    assert node.wrong() == []
    node.mig("[N/A]", "[N/A]", "[N/A]")
    assert node.wrong() == [f"nvlink drain {SECOND} 0 of 12 NVLinks are active"]
    node.mig(said='Field "mig.mode.current" is not a valid field to query.', code=2)
    assert node.wrong() == [f"nvlink drain {SECOND} 0 of 12 NVLinks are active"]
    node.mig(said="Unable to determine the device handle", code=15)
    unknown = "nvidia-smi does not say which GPUs are in MIG mode"
    assert node.wrong() == [f"nvlink unknown {unknown}: Unable to determine the device handle"]


def test_a_gpu_beside_mig_is_compared_with_what_it_had(node: NodeLab) -> None:
    node.gpus({}, {}, nvlink=nvlink_text(12, 12))
    node.run(env=node.environment)
    node.gpus({}, {}, nvlink=nvlink_text(11, 0))
    node.mig("Disabled", "Enabled")
    assert node.wrong() == [f"nvlink drain {FIRST} 11 of 12 NVLinks are active"]


def test_xids_since_the_boot(node: NodeLab) -> None:
    application = xid("0000:07:00", 31, "pid=812, name=python, Ch 00000008, MMU Fault")
    bad = xid("0000:0f:00", 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    node.kernel(application + bad)
    assert node.wrong() == [f"xid page {SECOND} 79 GPU has fallen off the bus."]
    node.kernel(xid("0000:0F:00", 63, "Row remap pending") + xid("0000:07:00", 94, "x; y"))
    assert node.wrong() == [f"xid note {FIRST} 94 x, y", f"xid note {SECOND} 63 Row remap pending"]
    node.configure('CHECK_XIDS="63=ok 94=drain"  # ours\nCHECK_SKIP="leftovers"')
    assert node.wrong() == [f"xid drain {FIRST} 94 x, y"]


def test_names_that_users_chose_are_no_xids(node: NodeLab) -> None:
    named = xid("0000:07:00", 79, "x").strip()
    oom = f"[    9.100000] oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user.slice/{named}\n"
    node.kernel(oom)
    assert node.wrong() == []
    node.kernel(xid("0000:07:00", 48, "DBE").replace("] NVRM", "][ T1234] NVRM"))
    assert node.wrong() == [f"xid drain {FIRST} 48 DBE"]


@pytest.mark.parametrize(
    "said",
    [
        # leptonai/gpud#1209 and NVIDIA/NVSentinel#155: drivers that print no Xid with it.
        """[ 1843.308145] NVRM: The NVIDIA GPU 0000:0f:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).
""",
        "[    9.100000] NVRM: GPU 0000:0f:00.0: GPU has fallen off the bus.\n",
        "NVRM: GPU 0f:00.0: GPU has fallen off the bus.\n",
    ],
)
def test_a_gpu_off_the_bus_without_an_xid(node: NodeLab, said: str) -> None:
    node.kernel(said)
    assert node.wrong() == [f"xid page {SECOND} 79 off the bus"]


def test_an_xid_of_an_old_driver(node: NodeLab) -> None:
    node.kernel(xid("0000:0f:00", 48, "DBE").replace("PCI:", ""))
    assert node.wrong() == [f"xid drain {SECOND} 48 DBE"]


@pytest.mark.parametrize(
    "words",
    ["NVRM: GPU 0000:0f:00.0: GPU has fallen off the bus.", "NVRM: Xid (PCI:0000:0f:00): 79, x"],
)
def test_a_further_line_of_a_message_is_not_the_drivers(node: NodeLab, words: str) -> None:
    """A program of any user has such a name, and crashes."""
    node.kernel(
        f"[    9.100000] EXT4-fs warning: entry 'a\n               {words}'\n"
        f"[   11.500000] segv[812]: segfault at 0 ip 0 sp 0 error 4 in x\n               {words}\n"
        f"[   12.000000] NVRM: Xid (PCI:0000:07:00): 31, pid=1, name=x\n               {words}\n"
    )
    assert node.wrong() == []


def test_what_a_process_wrote_into_the_kernel_log_is_not_the_drivers(node: NodeLab) -> None:
    words = "NVRM: Xid (PCI:0000:0f:00): 79, x"
    (node.folder / "kmsg").write_text(
        f"12,1,9100000,-;{words}\n"  # facility 1: written to /dev/kmsg by a process
        f"4,2,9200000,-;usb 1-1: new device\n SUBSYSTEM=usb\n DEVICE={words}\n {words}\n"
        f"4,3,1.2.3,-;{words}\n",
        "utf-8",
    )
    assert node.wrong() == []


def test_the_kernel_log_is_not_waited_for(node: NodeLab) -> None:
    """At its end /dev/kmsg would block; so does a pipe that somebody has open."""
    path = node.folder / "kmsg"
    path.unlink()
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)
    try:
        os.write(pipe, kmsg(xid("0000:0f:00", 48, "DBE")).encode())
        assert node.wrong() == [f"xid drain {SECOND} 48 DBE"]
    finally:
        os.close(pipe)


def test_a_kernel_log_that_cannot_be_read_is_unknown(node: NodeLab) -> None:
    path = node.folder / "kmsg"
    path.unlink()
    assert node.wrong() == [f"xid unknown cannot read {path}: No such file or directory"]


def test_xids_of_switches_and_of_a_reset(node: NodeLab) -> None:
    line = "[    9.100000] nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): {}, {} Link 60 ERR\n"
    node.kernel(line.format(12028, "Non-fatal,") + line.format(20034, "Fatal,"))
    assert node.wrong() == ["xid drain SXid20034 Fatal, Link 60 ERR"]
    action = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    node.kernel(xid("0000:07:00", 154, action))
    assert node.wrong() == []
    action = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    node.kernel(xid("0000:07:00", 154, action))
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
    )
    full = f"{node.folder} has less than 1e+09 GiB free"
    gone = f"{missing}: No such file or directory"
    assert node.wrong() == [f"tmp note {full}", f"tmp drain {gone}"]
    with (node.folder / "node.conf").open("a") as conf:
        conf.write("CHECK_SEVERITY=tmp=drain\n")
    assert node.wrong() == [f"tmp drain {full}", f"tmp drain {gone}"]


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
    # The machine may have leftovers of others, too.
    pid = str(left_behind.pid)
    wait_until(lambda: any(pid in each.split() for each in node.wrong()))
    (said,) = (each for each in node.wrong() if pid in each.split())
    assert said.startswith("leftovers note processes of ended jobs ")
    assert "4100000009" in said
    records.mkdir(parents=True)
    (records / "4100000009").touch()
    assert not [each for each in node.wrong() if "4100000009" in each]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user")
def test_a_user_hides_no_leftovers_by_a_title(
    node: NodeLab, left_behind: subprocess.Popen[bytes]
) -> None:
    node.configure(f"RECORDS={node.folder}\nCHECK_LEFTOVER_SECONDS=0")
    title = "slurmstepd: [4100000009.0]"
    with subprocess.Popen(
        [title, "60"], executable="/bin/sleep", user=65534, cwd="/", env={}
    ) as pretends:
        try:
            shown = Path(f"/proc/{pretends.pid}/cmdline")
            wait_until(lambda: title.encode() in shown.read_bytes())
            # The machine may have leftovers of others, too.
            pid = str(left_behind.pid)
            wait_until(lambda: any(pid in each.split() for each in node.wrong()))
        finally:
            pretends.kill()


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


@pytest.mark.parametrize(("status", "state"), [("PASS", None), ("WARN", "note"), ("FAIL", "drain")])
def test_the_json_of_dcgm_3_1(node: NodeLab, status: str, state: str | None) -> None:
    """With a warning before it, `null` between the tests, and all GPUs of a test in one result.

    As in NVIDIA/DCGM, nvvs/tests, "Deserialize real output".
    """
    node.configure("CHECK_SKIP=leftovers\nCHECK_DIAG=epilog")
    tests = [
        {"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "PASS"}]},
        None,
        {"name": "Inforom", "results": [{"gpu_ids": "0,1", "status": status}]},
    ]
    parts = [{"category": "Deployment", "tests": tests}]
    said = json.dumps({"DCGM GPU Diagnostic": {"test_categories": parts, "version": "3.1.0"}})
    node.says("dcgmi", f"\tWARNING: THIS SHOULD NOT HAPPEN\n\t{said}\n")
    found = node.wrong("--context", "epilog")
    assert found == ([f"diag {state} Inforom, DCGM's GPU 0,1: {status}"] if state else [])


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
