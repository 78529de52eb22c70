"""The folder of a kernel for Jupyter: `kernel.json`, and `job.toml` with the job it runs in.

Jupyter lists the folders of `kernels` in its data folders. What starts the job is the kernel
provisioner of slurmkit, in the Python environment of the Jupyter server.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import msgspec

from slurmkit.config.paths import describe_write_error, write_private_file
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.spec.jobfile import format_job_file
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.survival import Survive

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
NO_COMMAND = ("true",)
"""Stands for the kernel, which is in `kernel.json`."""
JOB_FILE = "job.toml"
_KERNEL = "kernel.json"


class KernelSpec(msgspec.Struct, frozen=True):
    """A kernel in Jupyter's launcher.

    Attributes:
        name: the user's name for it.
        folder: its files.
    """

    name: str
    folder: Path

    @property
    def job_file(self) -> Path:
        """The job file, which the user may edit."""
        return self.folder / JOB_FILE


def find_kernel(name: str) -> KernelSpec:
    """Return a kernel of the user, which may not exist.

    Raises:
        BadInput: for a name that Jupyter does not take.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is no name for a kernel: small letters, digits, '.', '_' and '-', at most"
            " 32, with a letter or digit first; for example gpu"
        )
    return KernelSpec(name, _jupyter_data() / "kernels" / f"slurmkit-{name}")


def _jupyter_data() -> Path:
    """Return the user's data folder of Jupyter, as `jupyter --data-dir`."""
    if own := os.environ.get("JUPYTER_DATA_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "jupyter"


def check_kernel_job(spec: JobSpec) -> None:
    """Refuse what makes no sense for a kernel.

    Raises:
        BadInput: naming it.
    """
    for name, unset in (("array", None), ("sweep", None), ("hold", False), ("survive", Survive())):
        if getattr(spec, name) != unset:
            what = "--on-timeout and the like" if name == "survive" else name
            raise BadInput(f"{what} does not work in the job of a kernel; leave it out")
    if spec.container is not None:
        raise BadInput(
            "the job of a kernel cannot be in a container; start the container in argv of"
            " kernel.json, before the kernel, e.g. apptainer exec IMAGE python3 ..."
        )


def write_kernel(kernel: KernelSpec, spec: JobSpec, python: str) -> None:
    """Write the files of a kernel.

    Args:
        kernel: its name and place.
        spec: the job, with the command `NO_COMMAND`.
        python: with ipykernel; Jupyter takes `python3` for its own.

    Raises:
        SlurmkitError: when they cannot be written.
    """
    table = {
        "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": f"{kernel.name} (Slurm job)",
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {
            "debugger": True,
            "kernel_provisioner": {
                "provisioner_name": "slurmkit",
                "config": {"start_timeout": 600},
            },
        },
    }
    job = format_job_file(spec).replace('command = ["true"]\n', "", 1)
    try:
        kernel.folder.mkdir(parents=True, exist_ok=True)
        write_private_file(kernel.job_file, job.encode())
        write_private_file(kernel.folder / _KERNEL, f"{json.dumps(table, indent=2)}\n".encode())
    except OSError as error:
        raise SlurmkitError(
            f"cannot write {error.filename or kernel.folder}: {describe_write_error(error)}"
        ) from error
