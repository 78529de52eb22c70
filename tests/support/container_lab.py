"""Clusters with one container runtime or another, and a bash that shows what srun is given."""

from __future__ import annotations

import shlex
import subprocess

from slurmkit.state.capabilities import _CONTAINER_OPTION
from slurmkit.state.model import Capabilities

_SLURM = ("container", "container-id")  # srun(1), since 21.08

# Names of spank_opts[] in pyxis's args.c at the tags; each is a line `--NAME` of `srun --help`.
_PYXIS_0_11 = """
container-image container-mounts container-workdir container-name container-save
container-mount-home no-container-mount-home container-remap-root no-container-remap-root
container-entrypoint no-container-entrypoint container-writable container-readonly
""".split()
_OPTIONS = {
    "0.11": _PYXIS_0_11,
    "0.15": [*_PYXIS_0_11, "container-env"],
    "0.20": [*_PYXIS_0_11, "container-env", "container-entrypoint-log"],
    "0.24": [*_PYXIS_0_11, "container-env", "container-entrypoint-log", "container-unshare"],
}
RELEASES = tuple(_OPTIONS)


def help_of(release: str | None) -> str:
    """The part of `srun --help` that lists options for containers."""
    names = [*_SLURM, *_OPTIONS.get(release or "", [])]
    return "".join(
        f"      --{name}\n                              what it does\n" for name in names
    )


def cluster(pyxis: str | None = None, **config: str) -> Capabilities:
    """A cluster with a release of pyxis, or none; its options as `read.py` finds them."""
    return Capabilities(
        taken=0,
        release=(24, 11, 5),
        cluster_name="lab",
        config=config,
        nodes=(),
        partitions=(),
        container_options=tuple(_CONTAINER_OPTION.findall(help_of(pyxis))),
    )


SHOW = 'srun() { for word; do printf "%s\\0" "$word"; done; }\n'


def argv(*words: str) -> list[str]:
    """What srun gets of words that a launcher quotes for the batch script."""
    script = SHOW + shlex.join(["srun", *words])
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]
