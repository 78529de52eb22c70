"""Lay out the files of a .deb or an .rpm around the private environment in /opt/slurmkit.

    /opt/slurmkit/bin/python packaging/stage.py ROOT SOURCE {debian,redhat} {slurmkit,slurmkit-node}

Everything but the environment itself: man pages and completions are made from slurmkit's commands,
the other files are copied from SOURCE, a checkout. SOURCE_DATE_EPOCH gives their times.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from man import man_pages

from slurmkit.version import __version__

ENVIRONMENT = "/opt/slurmkit"
_ASSETS = "accounting/slurmkit_accounting/assets"
_DOC = "usr/share/doc/@PACKAGE@"
_COPIED_TO_ALL = {
    "etc/slurmkit/config.toml": "packaging/files/config.toml",
    "usr/lib/systemd/system/slurmkit-gpu-exporter.service": (
        "plugins/slurmkit_plugins/assets/slurmkit-gpu-exporter.service"
    ),
    "usr/lib/sysusers.d/slurmkit.conf": f"{_ASSETS}/slurmkit.sysusers.conf",
    "usr/lib/tmpfiles.d/slurmkit.conf": f"{_ASSETS}/slurmkit.tmpfiles.conf",
    f"{_DOC}/README.md": "README.md",
    f"{_DOC}/examples/login-node.toml": "packaging/files/login-node.toml",
}
COPIED = {
    "slurmkit": {
        **_COPIED_TO_ALL,
        **{
            f"usr/lib/systemd/system/{name}": f"{_ASSETS}/{name}"
            for name in (
                "slurmkit-ledger.service",
                "slurmkit-ingest.service",
                "slurmkit-ingest.timer",
            )
        },
        f"{_DOC}/examples/accounting-host.toml": "packaging/files/accounting-host.toml",
    },
    "slurmkit-node": _COPIED_TO_ALL,
}
"""Name of a package -> its files -> files of the checkout."""
COMPLETIONS = {
    "debian": {
        "bash": "usr/share/bash-completion/completions/slurmkit",
        "fish": "usr/share/fish/vendor_completions.d/slurmkit.fish",
        "zsh": "usr/share/zsh/vendor-completions/_slurmkit",
    },
    "redhat": {
        "bash": "usr/share/bash-completion/completions/slurmkit",
        "fish": "usr/share/fish/vendor_completions.d/slurmkit.fish",
        "zsh": "usr/share/zsh/site-functions/_slurmkit",
    },
}
"""Where each family of distributions looks for completions."""
MODULE_FILES = {
    "debian": "usr/share/modules/modulefiles/slurmkit",
    "redhat": "usr/share/modulefiles/slurmkit",
}


def stage(root: Path, source: Path, family: str, package: str, modules: Path) -> None:
    """Write all files but the environment below a folder, with fixed modes.

    Args:
        root: the folder that stands for `/`; it may have files already.
        source: a checkout of slurmkit.
        family: a key of `COMPLETIONS`.
        package: a key of `COPIED`.
        modules: the installed folder, absolute, that holds `slurmkit_plugins`.
    """
    for target, origin in COPIED[package].items():
        _write(root / target.replace("@PACKAGE@", package), source.joinpath(origin).read_bytes())
    (root / "etc/slurmkit/conf.d").mkdir(mode=0o755, exist_ok=True)
    _write(root / f"usr/share/doc/{package}/changelog.gz", _zip(source / "CHANGELOG.md"))
    for name, text in man_pages(without_extras=package == "slurmkit-node"):
        page = gzip.compress(text.encode(), mtime=0)
        _write(root / f"usr/share/man/man1/{name}.gz", page)
    for shell, target in COMPLETIONS[family].items():
        _write(root / target, _completion(shell))
    module = source.joinpath("packaging/files/modulefile").read_text("utf-8")
    versioned = root / MODULE_FILES[family] / __version__
    _write(versioned, module.replace("@VERSION@", __version__).encode())
    for name, target in _links(package, modules):
        link = root / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _links(package: str, modules: Path) -> Iterator[tuple[str, str]]:
    """Yield the symbolic links, and where each leads.

    /opt/slurmkit/bin also has a `python3`, so the module puts another folder on the PATH.
    """
    yield "usr/bin/slurmkit", f"{ENVIRONMENT}/bin/slurmkit"
    yield f"{ENVIRONMENT[1:]}/command/slurmkit", "../bin/slurmkit"
    yield "usr/share/slurmkit/slurm", str(modules / "slurmkit_plugins/slurm")
    if package == "slurmkit":
        yield "usr/share/slurmkit/monitoring", str(modules / "slurmkit_accounting/assets")


def _completion(shell: str) -> bytes:
    argv = [sys.executable, "-m", "slurmkit", "completion", shell]
    return subprocess.run(argv, check=True, capture_output=True).stdout


def _zip(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), mtime=0)


def _write(path: Path, text: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    path.chmod(0o644)


def main() -> None:
    """Stage as the command line says; the umask decides the modes of folders."""
    root, source, family, package = sys.argv[1:]
    os.umask(0o022)
    import slurmkit_plugins  # noqa: PLC0415 - only to find where it is installed

    stage(Path(root), Path(source), family, package, Path(slurmkit_plugins.__path__[0]).parent)


if __name__ == "__main__":
    main()
