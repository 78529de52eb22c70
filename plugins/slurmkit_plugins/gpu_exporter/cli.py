"""The command `slurmkit gpu-exporter`."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import click

from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit_plugins.gpu_exporter.amd import DEVICES, AmdReader
from slurmkit_plugins.gpu_exporter.holders import (
    RECORDS,
    JobFinder,
    load_gpu_map,
    read_slurm_gpus,
)
from slurmkit_plugins.gpu_exporter.metrics import GpuCollector
from slurmkit_plugins.gpu_exporter.nvml import NvmlReader
from slurmkit_plugins.gpu_exporter.readings import GpuReader
from slurmkit_plugins.gpu_exporter.server import load_token, serve

# There once the kernel has loaded AMD's driver, for a GPU or for the screen.
AMDGPU = Path("/sys/module/amdgpu")
_NVIDIA = ("0x10de", "0x03")  # vendor, and class of display controllers
DEFAULT_ADDRESS = "127.0.0.1:6832"


@click.command("gpu-exporter")
@click.option(
    "--listen", "address", default=DEFAULT_ADDRESS, show_default=True, metavar="HOST:PORT",
    help="Address to serve /metrics on.",
)  # fmt: skip
@click.option(
    "--token-file", type=click.Path(path_type=Path), metavar="FILE",
    help="Ask for the bearer token in FILE, which only its owner may read.",
)  # fmt: skip
@click.option("--node", metavar="NAME", help="This node's name in Slurm.  [default: its host name]")
@click.option(
    "--gpu-map", type=click.Path(path_type=Path), metavar="FILE",
    help="Slurm's indices: lines of INDEX and UUID or PCI address.  [default: from slurmd -G, or"
    " gres.conf]",
)  # fmt: skip
@click.option(
    "--slurmd-gres", type=click.Path(path_type=Path), metavar="FILE",
    help="What slurmd -G printed, where the exporter itself may not run it.",
)  # fmt: skip
@click.option(
    "--records", type=click.Path(path_type=Path), default=RECORDS, show_default=True,
    metavar="FOLDER", help="Where the prolog records which job has which GPU.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Print the page once, and end.")
def gpu_exporter_command(
    address: str,
    token_file: Path | None,
    node: str | None,
    gpu_map: Path | None,
    slurmd_gres: Path | None,
    records: Path,
    *,
    once: bool,
) -> None:
    """Serve what this node's GPUs do, for Prometheus and the ledger.

    It reads NVIDIA's driver, or else AMD's, at each request. Without a GPU or a driver it ends with
    exit code 69.

    \b
    Examples:
      slurmkit gpu-exporter --once
      slurmkit gpu-exporter --listen 0.0.0.0:332 --token-file /etc/slurmkit/gpu-exporter.token
      curl http://127.0.0.1:6832/metrics
    """
    token = load_token(token_file) if token_file else None
    name = node or socket.gethostname().partition(".")[0]
    reader: GpuReader = AmdReader(_log) if _has_amd_only() else NvmlReader(_log)
    reader.open()
    try:
        if gpu_map:
            gpus = load_gpu_map(gpu_map)
        else:
            gpus = read_slurm_gpus(name, LocalSlurmCommands(), _log, slurmd_gres)
        metrics = GpuCollector(name, reader, JobFinder(gpus, records))
        if once:
            click.echo(metrics.page("")[1], nl=False)
        else:
            serve(address, metrics.page, token, _log)
    finally:
        reader.close()


def _has_amd_only() -> bool:
    """Tell whose GPUs this node has; beside NVIDIA's, AMD's is for the screen."""
    return AMDGPU.exists() and not any(_is_nvidia(device) for device in DEVICES.glob("*"))


def _is_nvidia(device: Path) -> bool:
    vendor, kind = _NVIDIA
    try:
        is_display = (device / "class").read_text("ascii").startswith(kind)
        return is_display and (device / "vendor").read_text("ascii").strip() == vendor
    except OSError:
        return False


def _log(text: str) -> None:
    """Write one line; the systemd journal adds the time."""
    print(text, file=sys.stderr, flush=True)
