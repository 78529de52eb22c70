"""node_check as slurmd runs it: which nodes it drains and resumes; its commands are stand-ins."""

from __future__ import annotations

import json
import os
import time

import pytest
from node_lab import FIRST, SECOND, NodeLab, xid
from waiting import wait_until

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
    (node.checks / "state.json").unlink()
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
    tmp = "CHECK_SEVERITY=tmp=drain\nCHECK_TMP_FREE"
    node.configure(f"CHECK_SKIP=leftovers\nCHECK_RESUME=yes\n{tmp}=1e9")
    node.run(env=node.environment)
    (told,) = node.told()
    node.node("IDLE+DRAIN", told.partition("Reason=")[2])
    node.configure("CHECK_SKIP='leftovers tmp'\nCHECK_RESUME=yes")
    for _ in range(4):
        node.run(env=node.environment)
    assert node.told() == []
    node.configure(f"CHECK_SKIP=leftovers\nCHECK_RESUME=yes\n{tmp}=0")
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
    node.kernel(xid("0000:0f:00", 74, "NVLink: fatal error", seconds=0.5))
    node.run(env=node.environment)
    (told,) = node.told()
    node.node("IDLE+DRAIN", told.partition("Reason=")[2])
    node.kernel("[    0.900000] the ring has gone round\n")
    assert node.run(env=node.environment).returncode == 2
    assert node.run("--forget").returncode == 0
    assert node.run(env=node.environment).returncode == 0
    state = node.kept() | {"boot": "another", "xids": {"0000:0f:00.0|74": {"at": 1, "text": ""}}}
    (node.checks / "state.json").write_text(json.dumps(state), "utf-8")
    assert node.run(env=node.environment).returncode == 0


ECC = f"ecc {FIRST}: /dev/nvidia0: 1 uncorrectable errors"


def drained(node: NodeLab) -> None:
    """Let the health check drain the node."""
    node.run(env=node.environment)
    (told,) = node.told()
    node.node("IDLE+DRAIN", told.partition("Reason=")[2])
    node.run(env=node.environment)
    assert node.told() == []


def test_who_resumes_a_node_with_its_fault_is_respected_for_a_day(node: NodeLab) -> None:
    node.gpus({"dram": "1"}, {})
    drained(node)
    node.node("IDLE", "")
    assert (
        f"the node was resumed with {ECC}; left alone for 24 h"
        in node.run(env=node.environment).stderr
    )
    assert node.run(env=node.environment).returncode == 0
    assert node.told() == []
    (found,) = node.wrong()
    assert found.startswith(f"ecc note {FIRST} 1 uncorrectable errors (the node was resumed")
    assert node.run("--context", "prolog").returncode == 0
    assert not (node.checks / "faults").exists()
    # Nor does one that cannot be looked for in one round count as new in the next.
    for skipped in ("leftovers ecc", "leftovers"):
        node.configure(f"CHECK_SKIP='{skipped}'")
        node.run(env=node.environment)
    assert node.told() == []
    state = node.kept()
    state["accepted"][ECC]["at"] -= 86400
    (node.checks / "state.json").write_text(json.dumps(state), "utf-8")
    node.run(env=node.environment)
    assert node.told() == [f"NodeName=c1|State=DRAIN|Reason=slurmkit: {ECC}"]


def test_a_state_of_slurmkit_01_counts_as_before(node: NodeLab) -> None:
    node.gpus({"dram": "1"}, {})
    drained(node)
    path = node.checks / "state.json"
    state = json.loads(path.read_text("utf-8"))
    for old, new in (("told", "reported"), ("told_at", "reported_at")):
        state[old] = state.pop(new)
    path.write_text(json.dumps(state), "utf-8")
    node.node("IDLE", "")
    assert f"the node was resumed with {ECC}" in node.run(env=node.environment).stderr
    assert not {"told", "told_at"} & set(node.kept())


@pytest.mark.parametrize("how", ["more", "again"])
def test_a_fault_that_is_seen_anew_drains_a_resumed_node(node: NodeLab, how: str) -> None:
    node.gpus({"dram": "1"}, {})
    drained(node)
    node.node("IDLE", "")
    node.run(env=node.environment)
    if how == "again":
        node.gpus({}, {})
        node.run(env=node.environment)
    node.gpus({"dram": "2" if how == "more" else "1"}, {})
    node.run(env=node.environment)
    (told,) = node.told()
    assert told.startswith(f"NodeName=c1|State=DRAIN|Reason=slurmkit: ecc {FIRST}: ")


def test_an_xid_that_comes_again_drains_a_resumed_node(node: NodeLab) -> None:
    node.kernel(xid("0000:07:00", 48, "DBE", seconds=0.5))
    drained(node)
    node.node("IDLE", "")
    for _ in range(2):
        node.run(env=node.environment)
        assert node.told() == []
    later = time.clock_gettime(time.CLOCK_MONOTONIC) + 5
    node.kernel(xid("0000:07:00", 48, "DBE", seconds=later))
    node.run(env=node.environment)
    (told,) = node.told()
    assert told.endswith(f"Reason=slurmkit: xid {FIRST}: /dev/nvidia0: 48 DBE")


def test_a_site_may_have_a_resumed_node_drained_again_at_once(node: NodeLab) -> None:
    node.configure("CHECK_SKIP=leftovers\nCHECK_RESUMED_HOURS=0")
    node.gpus({"dram": "1"}, {})
    drained(node)
    node.node("IDLE", "")
    node.run(env=node.environment)
    assert node.told() == [f"NodeName=c1|State=DRAIN|Reason=slurmkit: {ECC}"]


def test_a_new_fault_drains_a_node_that_was_resumed_with_another(node: NodeLab) -> None:
    node.gpus({"dram": "1"}, {})
    drained(node)
    node.node("IDLE", "")
    node.run(env=node.environment)
    node.gpus({"dram": "1"}, {"pending": "Yes"})
    node.run(env=node.environment)
    (told,) = node.told()
    assert told.partition("Reason=")[2].startswith(f"slurmkit: remap {SECOND}: ")
    assert "ecc" not in told


@pytest.mark.parametrize(("seconds", "drains"), [(5, True), (100, False)])
def test_a_node_resumed_before_the_health_check_told_why_stays_in_use(
    node: NodeLab, seconds: int, drains: bool
) -> None:
    """A prolog has failed, an administrator resumed the node, and then the health check runs."""
    node.checks.mkdir()
    left = node.checks / "faults"
    left.write_text("devices: GPU 0\n", "utf-8")
    os.utime(left, (time.time() - seconds,) * 2)
    done = node.run(env=node.environment)
    assert bool(node.told()) == drains
    assert ("the node was resumed after: devices: GPU 0" in done.stderr) != drains


def test_the_prolog_of_a_node_resumed_a_moment_ago_lets_jobs_start(node: NodeLab) -> None:
    """The health check, which asks slurmctld, has not run since."""
    node.gpus({"dram": "1"}, {})
    drained(node)
    assert node.run("--context", "prolog").returncode == 2
    state = node.kept()
    state["reported_at"] -= 100
    (node.checks / "state.json").write_text(json.dumps(state), "utf-8")
    assert node.run("--context", "prolog").returncode == 0


def test_forget_holds_although_a_health_check_runs_meanwhile(node: NodeLab) -> None:
    """It has read the old Xids already, and writes what it keeps after `--forget` has run."""
    node.kernel(xid("0000:0f:00", 74, "NVLink: fatal error", seconds=0.5))
    forget = (
        f"[ -e {node.folder}/once ] || {{ touch {node.folder}/once; {node.command('--forget')}; }}"
    )
    node.script("nvidia-smi", f"{forget}; cat {node.folder}/smi.xml")
    node.run(env=node.environment)
    assert node.told() == []
    assert node.run(env=node.environment).returncode == 0
    assert node.told() == []


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


def test_a_check_that_crashes_stops_no_other(node: NodeLab) -> None:
    node.script("nvidia-smi", "kill -SEGV $$")
    node.kernel(xid("0000:07:00", 48, "DBE"))
    states = [each.split()[:2] for each in node.wrong()]
    assert states == [["gpus", "drain"], ["xid", "drain"]]
    (node.bin / "nvidia-smi").write_bytes(b"\x7fELF no program")
    found = node.wrong()
    assert ["gpus", "unknown"] in [each.split()[:2] for each in found]
    assert "xid drain 0000:07:00.0 48 DBE" not in found
