"""A node for node_check: stand-ins for nvidia-smi, the kernel log, dcgmi, slurmd and scontrol."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from waiting import PATIENCE

SCRIPTS = Path(str(files("slurmkit_plugins"))) / "slurm"
FIRST, SECOND = "1320922000000", "1320922000001"  # serial numbers of its GPUs
# What a driver of release 550 prints of an A100, shortened to what a check might read.
GPU = """\
	<gpu id="00000000:{bus}:00.0">
		<product_name>{product_name}</product_name>
		<serial>{serial}</serial>
		<uuid>{uuid}</uuid>
		<minor_number>{minor}</minor_number>
		<gpu_recovery_action>{recovery}</gpu_recovery_action>
		<pci>
			<pci_bus_id>00000000:{bus}:00.0</pci_bus_id>
			<pci_gpu_link_info>
				<pcie_gen>
					<max_link_gen>4</max_link_gen>
					<current_link_gen>1</current_link_gen>
				</pcie_gen>
				<link_widths>
					<max_link_width>16x</max_link_width>
					<current_link_width>{width}</current_link_width>
				</link_widths>
			</pci_gpu_link_info>
		</pci>
		<{reasons}s>
			<{reasons}_gpu_idle>Active</{reasons}_gpu_idle>
			<{reasons}_hw_slowdown>Not Active</{reasons}_hw_slowdown>
			<{reasons}_hw_thermal_slowdown>{hot}</{reasons}_hw_thermal_slowdown>
			<{reasons}_sw_thermal_slowdown>Not Active</{reasons}_sw_thermal_slowdown>
		</{reasons}s>
		<ecc_mode>
			<current_ecc>Enabled</current_ecc>
		</ecc_mode>
		<ecc_errors>
			<volatile>
				<sram_correctable>0</sram_correctable>
				<sram_uncorrectable>{sram}</sram_uncorrectable>
				<dram_correctable>12</dram_correctable>
				<dram_uncorrectable>{dram}</dram_uncorrectable>
			</volatile>
			<aggregate>
				<dram_uncorrectable>1</dram_uncorrectable>
				<sram_threshold_exceeded>{threshold}</sram_threshold_exceeded>
			</aggregate>
			{repair}
		</ecc_errors>
		<retired_pages>
			<pending_blacklist>N/A</pending_blacklist>
			<pending_retirement>{retire}</pending_retirement>
		</retired_pages>
		<remapped_rows>
			<remapped_row_corr>0</remapped_row_corr>
			<remapped_row_unc>1</remapped_row_unc>
			<remapped_row_pending>{pending}</remapped_row_pending>
			<remapped_row_failure>{failure}</remapped_row_failure>
		</remapped_rows>
		<applications_clocks>
			<graphics_clock>{clock}</graphics_clock>
			<mem_clock>{mem_clock}</mem_clock>
		</applications_clocks>
		<default_applications_clocks>
			<graphics_clock>1275 MHz</graphics_clock>
			<mem_clock>1593 MHz</mem_clock>
		</default_applications_clocks>
	</gpu>
"""
FINE = {
    "product_name": "NVIDIA A100-SXM4-80GB", "recovery": "None", "width": "16x",
    "reasons": "clocks_event_reason", "hot": "Not Active", "sram": "0", "dram": "0",
    "threshold": "No", "retire": "N/A", "pending": "No", "failure": "No", "clock": "1275 MHz",
    "mem_clock": "1593 MHz", "repair": "",
}  # fmt: skip
GRES = "slurmd: Gres Name=gpu Type=a100 Count=2 Index=0 ID=7696487 File=/dev/nvidia[0-1] (null)\n"
NODE_LINE = (
    "NodeName=c1 Arch=x86_64 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 CfgTRES=cpu=64"
    " AllocTRES= CurrentWatts=0 AveWatts=0 Reason={reason} [root@2026-11-01T10:00:00]"
)


def smi_xml(*gpus: Mapping[str, str]) -> str:
    """Return what `nvidia-smi -q -x` prints: a GPU for each mapping, with what it changes."""
    body = "".join(
        GPU.format(
            **FINE
            | {
                "bus": f"{7 + 8 * at:02X}",
                "serial": f"132092200{at:04}",
                "uuid": f"GPU-{at}0000000-0000-0000-0000-00000000000{at}",
                "minor": str(at),
            }
            | gpu
        )
        for at, gpu in enumerate(gpus)
    )
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
    count = f"\t<attached_gpus>{len(gpus)}</attached_gpus>\n"
    return f"{head}<nvidia_smi_log>\n{count}{body}</nvidia_smi_log>\n"


def nvlink_text(*active: int, name: str = "NVIDIA A100-SXM4-80GB", most: int = 12) -> str:
    """Return what `nvidia-smi nvlink -s` prints for GPUs with so many active links."""
    lines = []
    for at, count in enumerate(active):
        lines.append(f"GPU {at}: {name} (UUID: GPU-{at}0000000-0000-0000-0000-00000000000{at})")
        links = ["25 GB/s"] * count + ["<inactive>"] * (most - count)
        lines += [f"\t Link {link}: {text}" for link, text in enumerate(links)]
    return "\n".join(lines) + "\n"


def diag_json(status: str = "Pass", release: int = 3) -> str:
    """Return what `dcgmi diag -r 1 -j` prints, of DCGM 3 or 4; test and GPU 1 have this status."""
    said = "Persistence mode for GPU 1 is disabled."
    if release == 3:
        bad: dict[str, Any] = {"gpu_id": "1", "status": status}
        fine: dict[str, Any] = {"gpu_id": "0", "status": "Pass"}
        warnings: Any = said
        body = "DCGM GPU Diagnostic"
    else:
        bad = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 1, "status": status}
        fine = bad | {"entity_id": 0, "status": "Pass"}
        warnings = [{"error_category": 8, "error_id": 29, "error_severity": 5, "warning": said}]
        body = "DCGM Diagnostic"
    if status != "Pass":
        bad["warnings"] = warnings
    tests = [{"name": "Persistence Mode", "results": [fine, bad]}]
    return json.dumps({body: {"test_categories": [{"category": "Deployment", "tests": tests}]}})


class NodeLab:
    """A folder with stand-ins for the commands of a node, and node_check to be run there.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.checks = folder / "checks"
        self.bin.mkdir(parents=True)
        self.configure(f"CHECK_SKIP=leftovers\nCHECK_TMP={folder}\nCHECK_TMP_FREE=0\n")
        self.kernel("[    0.000000] Linux version 6.1\n")
        self.gpus({}, {})
        self.says("slurmd", GRES)
        self.node("IDLE", "")

    def configure(self, text: str) -> None:
        """Write slurmkit_node.conf; PATH has nothing but the stand-ins and the shell.

        The checks have time: on a machine with many tests a stand-in may take seconds.
        """
        first = f"GPU_DEVICE=/dev/nvidia\nDCGM_GPUS=(1 0)\nCHECK_PATH={self.bin}:/usr/bin:/bin\n"
        times = "".join(f"CHECK_{name}_SECONDS=100\n" for name in ("PROLOG", "EPILOG", "HEALTH"))
        (self.folder / "node.conf").write_text(first + times + text, "utf-8")

    def script(self, name: str, body: str) -> None:
        """Put a command on the node's PATH."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n", "utf-8")
        path.chmod(0o755)

    def says(self, name: str, text: str, code: int = 0) -> None:
        """Let a command print a text and end with a code."""
        (self.folder / f"{name}.txt").write_text(text, "utf-8")
        self.script(name, f"cat {self.folder}/{name}.txt; exit {code}")

    def kernel(self, text: str) -> None:
        """Let the kernel log have what `dmesg` shows so, as /dev/kmsg has it."""
        (self.folder / "kmsg").write_text(kmsg(text), "utf-8")

    def gpus(self, *gpus: Mapping[str, str], nvlink: str = "", code: int = 0) -> None:
        """Let nvidia-smi show these GPUs."""
        (self.folder / "smi.xml").write_text(smi_xml(*gpus), "utf-8")
        (self.folder / "nvlink.txt").write_text(nvlink or nvlink_text(*[12] * len(gpus)), "utf-8")
        self.mig(*["Disabled"] * len(gpus), of_smi=code)

    def mig(self, *modes: str, said: str = "", code: int = 0, of_smi: int = 0) -> None:
        """Let nvidia-smi show the MIG mode of each GPU, or fail when it is asked for that."""
        rows = (
            f"GPU-{at}0000000-0000-0000-0000-00000000000{at}, {mode}\n"
            for at, mode in enumerate(modes)
        )
        (self.folder / "mig.txt").write_text(said or "".join(rows), "utf-8")
        show = f"[ $1 = nvlink ] && exec cat {self.folder}/nvlink.txt"
        mig = f"case $1 in --query-gpu=uuid,mig*) cat {self.folder}/mig.txt; exit {code};; esac"
        self.script("nvidia-smi", f"{show}\n{mig}\ncat {self.folder}/smi.xml; exit {of_smi}")

    def node(self, state: str, reason: str) -> None:
        """Let scontrol show this of the node, and note each of its calls."""
        line = NODE_LINE.format(state=state, reason=reason)
        line = line if reason else line.partition(" Reason=")[0]
        (self.folder / "node.txt").write_text(line + "\n", "utf-8")
        note = f'printf "%s|" "$@" >>{self.folder}/told; echo >>{self.folder}/told'
        self.script("scontrol", f'{note}\n[ "$1" = update ] || cat {self.folder}/node.txt')

    def told(self) -> list[str]:
        """Return and forget the updates that scontrol got, as `NAME=VALUE|NAME=VALUE`."""
        told = self.folder / "told"
        lines = told.read_text("utf-8").splitlines() if told.exists() else []
        told.unlink(missing_ok=True)
        return [line[len("update|") : -1] for line in lines if line.startswith("update|")]

    def run(
        self, *argv: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run node_check by hand, or with `--context`, and return what it printed."""
        return subprocess.run(
            [sys.executable, SCRIPTS / "node_check.py", *argv],
            env=self._own if env is None else env,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def command(self, *argv: str) -> str:
        """Return a line of shell that runs node_check as `run` does."""
        own = (f"{name}={value}" for name, value in self._own.items())
        words = ["env", "-i", *own, sys.executable, str(SCRIPTS / "node_check.py"), *argv]
        return shlex.join(words)

    @property
    def _own(self) -> dict[str, str]:
        return {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "SLURMD_NODENAME": "c1",
            "SLURM_JOB_ID": "41",
            "SLURMKIT_NODE_CONF": f"{self.folder}/node.conf",
            "SLURMKIT_NODE_CHECKS": str(self.checks),
            "SLURMKIT_SYS": f"{self.folder}/sys",
            "SLURMKIT_KMSG": f"{self.folder}/kmsg",
        }

    def wrong(self, *argv: str) -> list[str]:
        """Run node_check and return what is not fine: `CHECK STATE SERIAL TEXT`."""
        checks: Sequence[Mapping[str, str]] = json.loads(self.run("--json", *argv).stdout)["checks"]
        return [
            " ".join(filter(None, (each["check"], each["state"], each["serial"], each["text"])))
            for each in checks
            if each["state"] not in {"ok", "skipped"}
        ]

    def kept(self) -> dict[str, Any]:
        """Return what the last health check kept."""
        kept: dict[str, Any] = json.loads((self.checks / "state.json").read_text("utf-8"))
        return kept

    def port(self, name: str, **values: str) -> None:
        """Make a port of an InfiniBand device in sysfs, active but for these values."""
        fine = {
            "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "200 Gb/sec (4X HDR)",
            "link_layer": "InfiniBand",
        }  # fmt: skip
        folder = self.folder / "sys" / "class" / "infiniband" / name / "ports" / "1"
        folder.mkdir(parents=True, exist_ok=True)
        for key, value in (fine | values).items():
            (folder / key).write_text(value + "\n", "ascii")

    @property
    def environment(self) -> dict[str, str]:
        """What slurmd gives a health check: the name of the node, and no PATH."""
        return {
            "SLURMD_NODENAME": "c1",
            "SLURMKIT_NODE_CONF": f"{self.folder}/node.conf",
            "SLURMKIT_NODE_CHECKS": str(self.checks),
            "SLURMKIT_SYS": os.devnull,
            "SLURMKIT_KMSG": f"{self.folder}/kmsg",
        }


def xid(pci: str, number: int | str, text: str = "", seconds: float = 99.5) -> str:
    """Return a line of dmesg about an Xid."""
    return f"[{seconds:12.6f}] NVRM: Xid (PCI:{pci}): {number}, {text}\n"


def kmsg(text: str) -> str:
    """Return a text of dmesg as /dev/kmsg has it; dmesg indents the further lines of a record."""
    found = []
    for number, record in enumerate(re.sub(r"\n[ \t]+", r"\\x0a", text).splitlines()):
        stamp = re.match(r"\[ *([\d.]+)\](?:\[ *(\w+)\])? ", record)
        micro = round(float(stamp[1]) * 1e6) if stamp else 0
        caller = f",caller={stamp[2]}" if stamp and stamp[2] else ""
        found.append(f"4,{number},{micro},-{caller};{record[stamp.end() if stamp else 0 :]}\n")
    return "".join(found)
