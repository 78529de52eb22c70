"""The checks of a node: what each one reads, and what it says.

Installed in /etc/slurm, next to node_check.py and node_settings.py. They stand alone: the standard
library of Python 3.6 or later.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from node_settings import (  # type: ignore[import-not-found]  # next to this file on a node
    CHECKS,
    CheckResult,
    CheckSettings,
)

XIDS = {
    **dict.fromkeys((46, 48, 62, 64, 74, 95, 110, 119, 120, 136, 140, 143, 154), "drain"),
    **dict.fromkeys((63, 92, 94), "note"),
    79: "page",
}
"""Errors of the GPU itself (NVIDIA's Xid catalogue). The others are mostly errors of programs."""

_SACK = Path("/run/slurm/sack.socket")
_HIDE_SACK = (  # but not a configuration that slurmctld sent
    "cd /run/slurm && mount -t tmpfs none /run/slurm && { [ ! -d conf ] || cp -r conf /run/slurm; }"
    " && cd / && exec slurmd -G"
)

if TYPE_CHECKING:
    State = dict[str, Any]  # what the health check before this one stored
    Found = tuple[list[CheckResult], dict[str, Any]]  # and what this one keeps


# --- NVIDIA's driver ----------------------------------------------------------------------------


def read_smi(conf: CheckSettings, state: "State") -> "Found":
    """Read `nvidia-smi -q -x`: the checks of each GPU, and which GPUs there are."""
    expected = conf.gpus if conf.gpus is not None else state.get("expected")
    if not shutil.which("nvidia-smi"):
        if shutil.which("amd-smi"):
            return _read_amd_smi(expected), {}
        if conf.gpus:
            return [CheckResult("gpus", "drain", "nvidia-smi is not installed")], {}
        return _skipped("smi", "nvidia-smi is not installed"), {}
    code, output = _run(["nvidia-smi", "-q", "-x"])
    if code and expected == 0:
        return _skipped("smi", "this node has no GPU"), {}
    # It may print more, before and after: `WARNING: infoROM is corrupted at gpu …`.
    answer = re.search("<nvidia_smi_log>.*</nvidia_smi_log>", output, re.DOTALL)
    try:
        gpus = ElementTree.fromstring(answer.group() if answer else "").findall("gpu")  # noqa: S314 - the driver wrote it
    except ElementTree.ParseError as error:
        severity = "drain" if expected else "unknown"
        why = f"nvidia-smi fails with code {code}: {_first_line(output)}"
        if answer or ("<nvidia_smi_log>" in output and not code):
            # It has the names of users' programs: no user may drain a node with one.
            severity, why = "unknown", f"nvidia-smi -q -x gives no XML that can be read: {error}"
        return [CheckResult("gpus", severity, why)], {}
    earlier = state.get("lanes", {})  # type: dict[str, int]
    lanes = {_text(gpu, "uuid"): _number(gpu.find(_LANES)) for gpu in gpus}
    most_lanes = {uuid: max(now, earlier.get(uuid, 0)) for uuid, now in lanes.items()}
    results = check_gpus(gpus, expected, conf, earlier)
    return results, {"gpus": [_identity(gpu) for gpu in gpus], "lanes": most_lanes}


def _read_amd_smi(expected: "int | None") -> "list[CheckResult]":
    """Count the GPUs in `amd-smi list --json`; the other checks need nvidia-smi.

    Nothing is sure where slurmd does not say how many there should be.
    """
    code, output = _run(["amd-smi", "list", "--json"])
    others = _skipped("smi", "this node has AMD's GPUs")
    results = [each for each in others if each.check != "gpus"]
    if expected == 0:
        return [*results, CheckResult("gpus", "skipped", "this node has no GPU")]
    try:
        there = len(parse_amd_list(output))
    except ValueError:
        why = f"amd-smi fails with code {code}: {_last_line(output)}"
        return [*results, CheckResult("gpus", "drain" if expected else "unknown", why)]
    if expected is not None and there < expected:
        return [*results, CheckResult("gpus", "drain", f"{there} of {expected} GPUs are there")]
    return [*results, CheckResult("gpus", "ok", f"{there} GPUs" if there else "no GPU")]


def parse_amd_list(text: str) -> "list[str]":
    """Parse `amd-smi list --json`: the PCI address of each GPU or partition.

    Raises:
        ValueError: when it is no such list.
    """
    # Before the JSON, amd-smi may print a warning.
    begin = re.search(r"^[\[{]", text, re.MULTILINE)
    found, _ = json.JSONDecoder().raw_decode(text[begin.start() :] if begin else "")
    try:
        rows = found["gpu_data"] if isinstance(found, dict) else found
        return [str(row["bdf"]) for row in rows]
    except (TypeError, KeyError) as error:
        raise ValueError("no list of GPUs") from error


def check_gpus(
    gpus: "list[Any]",
    expected: "int | None",
    conf: CheckSettings,
    lanes: "Mapping[str, int]",
) -> "list[CheckResult]":
    """Check the `gpu` elements of `nvidia-smi -q -x`.

    Args:
        gpus: the elements.
        expected: how many there should be; None if nothing says so.
        conf: the settings.
        lanes: the most PCIe lanes since the boot, by UUID.
    """
    results = []
    if expected is not None and len(gpus) < expected:
        text = f"{len(gpus)} of {expected} GPUs are there"
        results.append(CheckResult("gpus", "drain", text))
    for gpu in gpus:
        lost = _lost_text(gpu)
        if lost:
            found = [CheckResult("gpus", "page", f"it does not answer: {lost}")]
        else:
            found = _check_gpu(gpu) + _check_clocks(gpu) + _check_pcie(gpu, gpus, conf, lanes)
        results += [result._replace(pci=short_pci(gpu.get("id", ""))) for result in found]
    failed = {result.check for result in results}
    fine = {"gpus": f"{len(gpus)} GPUs" if gpus else "no GPU"}
    for check, info in CHECKS.items():
        if info.source == "smi" and check not in failed:
            answered = not gpus or any(_answers(gpu, check) for gpu in gpus)
            text = fine.get(check, "") if answered else "the driver does not say"
            results.append(CheckResult(check, "ok" if answered else "skipped", text))
    return results


def _check_gpu(gpu: "Any") -> "list[CheckResult]":
    """Return what is wrong with one GPU. A value of `N/A` is not known, and not wrong."""
    results = []
    action = _text(gpu, "gpu_recovery_action")
    if action not in {"", "None", "N/A"}:
        results.append(CheckResult("recovery", "drain", f"it asks for: {action}"))
    errors = sum(
        _number(each)
        for each in gpu.findall("ecc_errors/volatile/*")
        if "uncorrectable" in each.tag
    ) + _number(gpu.find("ecc_errors/volatile/double_bit/total"))
    if errors:
        results.append(CheckResult("ecc", "drain", f"{errors} uncorrectable errors"))
    if _text(gpu, "ecc_errors/aggregate/sram_threshold_exceeded") == "Yes":
        results.append(CheckResult("ecc", "page", "too many SRAM errors in its life"))
    if _text(gpu, "remapped_rows/remapped_row_failure") == "Yes":
        results.append(CheckResult("remap", "page", "a row could not be remapped"))
    pending = (
        "remapped_rows/remapped_row_pending",
        "retired_pages/pending_retirement",
        "retired_pages/pending_blacklist",
    )
    if any(_text(gpu, name) == "Yes" for name in pending):
        results.append(CheckResult("remap", "drain", "memory is to be remapped at the next reset"))
    repairs = ("ecc_errors/channel_repair_pending", "ecc_errors/tpc_repair_pending")
    if any(_text(gpu, name) == "Yes" for name in repairs):
        results.append(CheckResult("remap", "drain", "memory is to be repaired at the next reset"))
    held = [name for name in _THROTTLES if _is_throttled(gpu, name)]
    if held:
        results.append(CheckResult("throttle", "note", "held back by {}".format(", ".join(held))))
    return results


_THROTTLES = (
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
)


_LANES = "pci/pci_gpu_link_info/link_widths/current_link_width"
# What each check reads of a GPU. Where no GPU has a value there, nothing was checked.
_READ = {
    "recovery": ("gpu_recovery_action",),
    "ecc": ("ecc_errors/volatile",),
    "remap": ("remapped_rows", "retired_pages", "ecc_errors/channel_repair_pending"),
    "throttle": ("clocks_event_reasons", "clocks_throttle_reasons"),
    "clocks": ("applications_clocks",),
    "pcie": (_LANES,),
}
_NO_ANSWER = {"", "N/A", "Requested functionality has been deprecated"}


def _answers(gpu: "Any", check: str) -> bool:
    """Return whether a GPU has any of the values that a check reads."""
    return check not in _READ or any(
        text.strip() not in _NO_ANSWER
        for path in _READ[check]
        for element in gpu.findall(path)
        for text in element.itertext()
    )


def _check_clocks(gpu: "Any") -> "list[CheckResult]":
    results = []
    for name in ("graphics_clock", "mem_clock"):
        now = _number(gpu.find("applications_clocks/" + name))
        default = _number(gpu.find("default_applications_clocks/" + name))
        if 0 < now < default:
            text = f"{name} is set to {now} of {default} MHz"
            results.append(CheckResult("clocks", "note", text))
    return results


def _check_pcie(
    gpu: "Any", gpus: "list[Any]", conf: CheckSettings, earlier: "Mapping[str, int]"
) -> "list[CheckResult]":
    """Compare the lanes of a GPU with the others of its kind, and with its own before.

    The GPU's own maximum says little: the slots of many virtual machines have half of it.
    """
    now, name = _number(gpu.find(_LANES)), _text(gpu, "product_name")
    others = [_number(one.find(_LANES)) for one in gpus if _text(one, "product_name") == name]
    most = conf.pcie_width or max(*others, earlier.get(_text(gpu, "uuid"), 0))
    if 0 < now < most:
        return [CheckResult("pcie", "note", f"{now} of {most} PCIe lanes")]
    return []


def _is_throttled(gpu: "Any", name: str) -> bool:
    """Before driver 535 the elements have another name."""
    return "Active" in {
        _text(gpu, f"clocks_{kind}_reasons/clocks_{kind}_reason_{name}")
        for kind in ("event", "throttle")
    }


def _lost_text(gpu: "Any") -> str:
    """Return what a GPU says that does not answer; empty for others.

    One that is lost may still have its name, which the driver remembers.
    """
    for name in ("uuid", "serial", "product_name"):
        if _is_lost(_text(gpu, name)):
            return _text(gpu, name)
    for part in gpu:
        if not part.tag.endswith("processes"):  # they have names that users chose
            for text in part.itertext():
                if "GPU is lost" in text:
                    return str(text.strip())
    return ""


def _is_lost(text: str) -> bool:
    return any(word in text for word in ("ERR!", "GPU is lost", "Unknown Error"))


def _identity(gpu: "Any") -> "dict[str, Any]":
    known = {name: _text(gpu, name) for name in ("uuid", "serial", "product_name", "minor_number")}
    known = {name: "" if text == "N/A" or _is_lost(text) else text for name, text in known.items()}
    return dict(known, pci=short_pci(gpu.get("id", "")))


def _text(element: "Any", path: str) -> str:
    return (element.findtext(path) or "").strip()


def _number(element: "Any") -> int:
    """Return the number at the beginning of an element, as in `16x` and `1410 MHz`, or 0."""
    match = re.match(r"\d+", (element.text or "").strip() if element is not None else "")
    return int(match.group()) if match else 0


def short_pci(address: str) -> str:
    """Return a PCI address in one form: `00000000:07:00.0` and `0000:07:00` are `0000:07:00.0`."""
    match = re.match(r"(?:([0-9A-Fa-f]+):)?([0-9A-Fa-f]+):([0-9A-Fa-f]+)(\.\d)?$", address.strip())
    if not match:
        return ""
    domain, bus, device, function = match.groups()
    return "{:04x}:{:02x}:{:02x}{}".format(
        int(domain or "0", 16), int(bus, 16), int(device, 16), function or ".0"
    )


def read_nvlink(conf: CheckSettings, state: "State") -> "Found":
    """Read `nvidia-smi nvlink -s`: fewer active links than the other GPUs of this kind have.

    A GPU in MIG mode has no active links, and is not compared. Of a GPU, the most links since the
    boot count, too: the others may all be in MIG mode.
    """
    del conf
    if not shutil.which("nvidia-smi"):
        return _skipped("nvlink", "nvidia-smi is not installed"), {}
    code, output = _run(["nvidia-smi", "nvlink", "-s"])
    links = parse_nvlink(output)
    if code or not links:
        return _skipped("nvlink", "no NVLink"), {}
    earlier = state.get("nvlinks", {})  # type: dict[str, int]
    most_links = {uuid: max(active, earlier.get(uuid, 0)) for uuid, _, active in links}
    results = compare_nvlinks(links, earlier)
    if results:
        try:
            mig = read_mig_gpus()
        except ValueError as error:
            return [CheckResult("nvlink", "unknown", str(error))], {"nvlinks": most_links}
        links = [each for each in links if each[0] not in mig]
        results = compare_nvlinks(links, earlier)
    if not links:
        return _skipped("nvlink", "all GPUs are in MIG mode"), {"nvlinks": most_links}
    return results or [CheckResult("nvlink", "ok", "")], {"nvlinks": most_links}


def compare_nvlinks(
    links: "list[tuple[str, str, int]]", earlier: "Mapping[str, int]"
) -> "list[CheckResult]":
    """Compare the active links of each GPU with those of the others, and with its own before.

    Args:
        links: UUID, name and number of active links.
        earlier: the most since the boot, by UUID.
    """
    results = []
    for uuid, name, active in links:
        others = max(count for _, other, count in links if other == name)
        most = max(others, earlier.get(uuid, 0))
        if active < most:
            # Bridges between PCIe cards join some of them only.
            state_of = "drain" if re.search(r"SXM|\bGB\d", name) else "note"
            text = f"{active} of {most} NVLinks are active"
            results.append(CheckResult("nvlink", state_of, text, uuid))
    return results


def read_mig_gpus() -> "set[str]":
    """Return the UUIDs of the GPUs in MIG mode; none with a driver that knows no MIG.

    Raises:
        ValueError: when nvidia-smi does not say.
    """
    query = ["--query-gpu=uuid,mig.mode.current", "--format=csv,noheader"]
    code, output = _run(["nvidia-smi", *query])
    if code and "not a valid field" not in output:
        first = _first_line(output)
        raise ValueError(f"nvidia-smi does not say which GPUs are in MIG mode: {first}")
    rows = [line.split(", ") for line in output.splitlines()]
    return {row[0].strip() for row in rows if row[-1].strip() == "Enabled"}


def parse_nvlink(text: str) -> "list[tuple[str, str, int]]":
    """Parse `nvidia-smi nvlink -s`: UUID, name, and number of active links of each GPU."""
    found = []  # type: list[tuple[str, str, int]]
    for line in text.splitlines():
        gpu = re.match(r"GPU \d+: (.*) \(UUID: (\S+)\)", line)
        if gpu:
            found.append((gpu.group(2), gpu.group(1), 0))
        elif found and re.match(r"\s+Link \d+: [\d.]+ GB/s", line):
            uuid, name, active = found[-1]
            found[-1] = (uuid, name, active + 1)
    return found


def read_diag(conf: CheckSettings, state: "State") -> "Found":
    """Run `dcgmi diag -r 1 -j`, where the configuration asks for it."""
    del conf, state
    if not shutil.which("dcgmi"):
        return [CheckResult("diag", "unknown", "dcgmi is not installed")], {}
    code, output = _run(["dcgmi", "diag", "-r", "1", "-j"])
    return parse_diag(output, code), {"diag": int(time.time())}


def parse_diag(text: str, code: int = 0) -> "list[CheckResult]":
    """Parse the JSON of `dcgmi diag` (3.x and 4.x)."""
    begin = text.find("{")
    try:
        # After the JSON, dcgmi may print more.
        found, _ = json.JSONDecoder().raw_decode(text[begin:] if begin >= 0 else "")
        body = found.get("DCGM Diagnostic") or found["DCGM GPU Diagnostic"]
        # Some releases print `null` between the tests.
        tests = [test for part in body["test_categories"] for test in part["tests"] if test]
        return _diag_results(tests) or [CheckResult("diag", "ok", f"{len(tests)} tests")]
    except (ValueError, KeyError, TypeError, AttributeError):
        why = f"dcgmi diag gives no result (code {code}): {_last_line(text)}"
        return [CheckResult("diag", "unknown", why)]


def _diag_results(tests: "list[Any]") -> "list[CheckResult]":
    states = {"Fail": "drain", "Warn": "note"}
    results = []
    for test in tests:
        for each in test.get("results", ()):
            state = states.get(each.get("status", "").title())  # `FAIL` in some releases
            if state:
                at = each.get("entity_id", each.get("gpu_id", each.get("gpu_ids", "?")))
                text = "{}, DCGM's GPU {}: {}".format(test["name"], at, _warning(each))
                results.append(CheckResult("diag", state, text))
    return results


def _warning(result: "Any") -> str:
    warnings = result.get("warnings") or result.get("info") or result["status"]
    first = warnings[0] if isinstance(warnings, list) else warnings
    return str(first.get("warning", first) if isinstance(first, dict) else first)


# --- the rest of the node -----------------------------------------------------------------------


def read_kernel_log(conf: CheckSettings, state: "State") -> "Found":
    """Read the Xids in the kernel log. Those seen by an earlier round count until the next boot."""
    path = os.environ.get("SLURMKIT_KMSG", "/dev/kmsg")
    try:
        records = read_kmsg(path)
    except OSError as error:
        return [CheckResult("xid", "unknown", f"cannot read {path}: {error.strerror}")], {}
    seen = dict(state.get("xids", {}))
    seen.update(parse_xids(records))
    after = state.get("forgotten", -1.0)
    seen = {key: value for key, value in seen.items() if value["at"] > after}
    results = []
    for key, value in sorted(seen.items()):
        pci, number = key.split("|")
        severity = xid_state(number, value["text"], conf)
        if severity != "ok":
            results.append(CheckResult("xid", severity, f"{number} {value['text']}".strip(), pci))
    return results or [CheckResult("xid", "ok", "")], {"xids": seen}


def read_kmsg(path: str) -> str:
    """Read the kernel log: a record a line, a line break within one escaped (dev-kmsg.rst)."""
    parts = []  # type: list[bytes]
    with open(path, "rb", buffering=0, opener=_open_without_waiting) as log:
        while True:
            try:
                part = log.read(8192)  # no record is longer; None: no further one is there
            except BrokenPipeError:  # overwritten while we read; the next read goes on after it
                continue
            if not part:
                return b"".join(parts).decode("utf-8", "replace")
            parts.append(part)


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def parse_xids(records: str) -> "dict[str, dict[str, Any]]":
    """Parse the kernel log: by `PCI|Xid` seconds since the boot and text of the last one."""
    # A record counts only if the kernel wrote it (facility 0) and the driver's words begin it.
    # Other records have names that users chose, of programs and files, with line breaks in them.
    driver = r"^[0-7],\d+,(\d+),[^;\n]*;(?:NVRM|nvidia-nvswitch\d+): "
    xid = r"(S?Xid) \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d+)(?:, *(.*))?"
    # The driver also says this without an Xid: in one line, or in three.
    off_the_bus = (
        r"(?:The NVIDIA )?GPU ([0-9A-Fa-f:.]+?):?(?: GPU has |\\x0aNVRM: \(PCI ID: [\w:]+\)"
        r" installed in this system has\\x0aNVRM: )fallen off the bus"
    )
    found = {}
    for micro, pci in re.findall(driver + off_the_bus, records, re.MULTILINE):
        found[short_pci(pci) + "|79"] = {"at": int(micro) / 1e6, "text": "off the bus"}
    for micro, kind, pci, number, words in re.findall(driver + xid, records, re.MULTILINE):
        name = "SXid" + number if kind == "SXid" else number
        # A process and its name are a user's words, and nobody's fault.
        rest = re.sub(r"\b(pid|name)=[^,]*,? *", "", words).strip()
        found[short_pci(pci) + "|" + name] = {"at": int(micro) / 1e6, "text": rest[:80]}
    return found


def xid_state(number: str, text: str, conf: CheckSettings) -> str:
    """Return the state of an Xid, or of an NVSwitch's SXid."""
    if number.startswith("SXid"):
        return "drain" if text.startswith("Fatal") else "ok"
    if number == "154" and text.endswith("(None)"):
        return "ok"  # the GPU has been reset, and asks for nothing any more
    return str(conf.xids.get(int(number), XIDS.get(int(number), "ok")))


def read_infiniband(conf: CheckSettings, state: "State") -> "Found":
    """Read the ports of InfiniBand devices in sysfs."""
    del state
    base = Path(os.environ.get("SLURMKIT_SYS", "/sys"), "class/infiniband")
    ports = {}
    for port in sorted(base.glob("*/ports/*")):
        ports[f"{port.parent.parent.name}:{port.name}"] = {
            name: read_line(port / name) for name in ("state", "phys_state", "rate", "link_layer")
        }
    wanted = [name if ":" in name else name + ":1" for name in conf.infiniband]
    results = [
        CheckResult("infiniband", "drain", f"port {name} does not exist")
        for name in wanted
        if name not in ports
    ]
    for name, values in ports.items():
        in_use = values["link_layer"] == "InfiniBand" and "Disabled" not in values["phys_state"]
        if name not in wanted and (wanted or not in_use):
            continue
        severity = "drain" if name in wanted else "note"
        if "ACTIVE" not in values["state"]:
            text = "port {} is {} ({})".format(name, values["state"], values["phys_state"])
            results.append(CheckResult("infiniband", severity, text))
        elif _number_of(values["rate"]) < conf.infiniband_rate:
            text = "port {} has {}".format(name, values["rate"])
            results.append(CheckResult("infiniband", severity, text))
    if not ports and not wanted:
        return _skipped("infiniband", "no InfiniBand"), {}
    return results or [CheckResult("infiniband", "ok", f"{len(ports)} ports")], {}


def read_line(path: Path) -> str:
    """Return what a small file has; nothing if it cannot be read."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _number_of(text: str) -> float:
    match = re.match(r"[\d.]+", text)
    return float(match.group()) if match else 0.0


def read_tmp(conf: CheckSettings, state: "State") -> "Found":
    """Ask each file system how much room it has, for an unprivileged user; any can fill /tmp."""
    del state
    results = []
    for folder in conf.tmp:
        try:
            room = os.statvfs(folder)
        except OSError as error:
            results.append(CheckResult("tmp", "drain", f"{folder}: {error.strerror}"))
            continue
        free = room.f_bavail * room.f_frsize / 2**30
        if free < conf.tmp_free:
            text = f"{folder} has less than {conf.tmp_free:g} GiB free"
            results.append(CheckResult("tmp", "note", text))
        elif room.f_files and not room.f_favail:
            results.append(CheckResult("tmp", "note", f"{folder} has no free inodes"))
    return results or [CheckResult("tmp", "ok", "")], {}


def read_leftovers(conf: CheckSettings, state: "State") -> "Found":
    """Look for processes that name a job which is not on this node any more."""
    del state
    here = {path.name for path in Path(conf.records).glob("*/[0-9]*")}
    named = {}  # type: dict[str, set[str]]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            uid = _uid_of(folder)
            if command.startswith(b"slurmstepd: [") and uid == 0:  # anybody can have this title
                here |= set(re.findall(r"\[(\d+)", command.decode("ascii", "replace")))
            elif uid and _age_of(folder) > conf.leftover_age:
                named[folder.name] = _jobs_named(folder)
        except (OSError, ValueError, IndexError):  # it has ended, or is not ours to read
            continue
    # All components of a het job are named: that another one is here is enough.
    left = sorted(pid for pid, jobs in named.items() if jobs and not jobs & here)
    if not left:
        return [CheckResult("leftovers", "ok", "")], {}
    jobs = sorted({min(named[pid]) for pid in left})
    text = "processes of ended jobs {}: {}".format(" ".join(jobs[:5]), " ".join(left[:8]))
    return [CheckResult("leftovers", "note", text)], {}


def _jobs_named(folder: Path) -> "set[str]":
    text = (folder / "environ").read_bytes().decode("ascii", "replace")
    pattern = r"(?:^|\0)SLURM_JOB_ID(?:_HET_GROUP_\d+)?=(\d{1,10})(?=\0|$)"
    return set(re.findall(pattern, text))


def _uid_of(folder: Path) -> int:
    """Return the real user id of a process; the owner of its folder may be root all the same."""
    status = (folder / "status").read_text("ascii", "replace")
    return int(status.partition("\nUid:")[2].split()[0])


def _age_of(folder: Path) -> float:
    """Return for how many seconds a process runs."""
    started = int((folder / "stat").read_text("ascii", "replace").rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text("ascii").split()[0])
    return uptime - started / os.sysconf("SC_CLK_TCK")


def read_expected(conf: CheckSettings, state: "State") -> "Found":
    """Ask `slurmd -G` how many GPUs Slurm believes to be here.

    With AutoDetect that is less when a GPU is lost, so the most since the boot counts.
    """
    del conf
    code, output = _run(_ask_slurmd()) if shutil.which("slurmd") else (1, "")
    return [], {} if code else {"expected": max(count_gres(output), state.get("expected") or 0)}


def _ask_slurmd() -> "list[str]":
    """Return `slurmd -G`; with auth/slurm, where it cannot reach the socket of the node's slurmd.

    That of 24.11 takes the socket's place, and then no command of the node can be certified, nor
    can a job end.
    """
    if os.geteuid() == 0 and _SACK.is_socket():
        return ["unshare", "--mount", "sh", "-c", _HIDE_SACK]
    return ["slurmd", "-G"]


def count_gres(text: str) -> int:
    """Count the device files of whole GPUs in what `slurmd -G` prints."""
    files = set()
    for line in text.splitlines():
        match = re.search(r"Gres Name=gpu .*\bFile=(\S+)", line)
        for name in _expand(match.group(1)) if match else ():
            if re.match(r"/dev/(nvidia|dri/renderD)\d+$", name):
                files.add(name)
    return len(files)


def _expand(text: str) -> "list[str]":
    """Expand `/dev/nvidia[0-3,6]`; for MIG there are several files, with commas between."""
    match = re.match(r"(.*)\[([\d,-]+)\]$", text)
    if not match:
        return text.split(",")
    found = []
    for part in match.group(2).split(","):
        first, _, last = part.partition("-")
        found += [match.group(1) + str(at) for at in range(int(first), int(last or first) + 1)]
    return found


def _run(argv: "list[str]") -> "tuple[int, str]":
    """Run a command. Its output goes into a pipe of our own: slurmd waits for the end of ours."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = process.communicate()[0]
    return process.returncode, output.decode("utf-8", "replace")


def _first_line(text: str) -> str:
    """Return the first line of a failed nvidia-smi that is no XML: it has the cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = [line for line in lines if not line.startswith("<")] or lines
    return words[0][:120] if words else "no output"


def _last_line(text: str) -> str:
    """Return the last line of a failed command: where it is a Python program, it has the cause."""
    return _first_line("\n".join(reversed(text.splitlines())))


def _skipped(source: str, why: str) -> "list[CheckResult]":
    return [
        CheckResult(name, "skipped", why) for name, info in CHECKS.items() if info.source == source
    ]


SOURCES = {
    "smi": read_smi,
    "nvlink": read_nvlink,
    "kernel_log": read_kernel_log,
    "infiniband": read_infiniband,
    "tmp": read_tmp,
    "leftovers": read_leftovers,
    "diag": read_diag,
    "expected": read_expected,
}
HANGS = {
    "smi": "nvidia-smi",
    "nvlink": "nvidia-smi nvlink",
    "kernel_log": "/dev/kmsg",
    "infiniband": "sysfs",
    "tmp": "a file system of CHECK_TMP",
    "leftovers": "/proc",
    "diag": "dcgmi diag",
}
