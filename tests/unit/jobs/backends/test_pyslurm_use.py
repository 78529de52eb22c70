"""When PySlurm is used, when it is not and why, and what is done instead, with stand-ins for it."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from slurmkit.errors import BadInput, BrokenPlugin, ControllerDown
from slurmkit.jobs.backends import choice, pyslurm, pyslurm_usable
from slurmkit.jobs.backends.choice import DefaultBackend
from slurmkit.jobs.backends.commands import NO_OVERRIDES
from slurmkit.jobs.backends.pyslurm import SENT, PyslurmBackend
from slurmkit.jobs.backends.pyslurm_usable import PyslurmCheck
from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit.spec.sbatch_options import option_lines
from slurmkit.spec.submission import Submission

OPTIONS = (("job-name", "x"), ("partition", "cpu"))
CONFIG = "ClusterName = lab\nSLURM_VERSION = 26.05.5\nCliFilterPlugins = {filters}\n"


def job(*more: tuple[str, str]) -> Submission:
    options = (*OPTIONS, *more)
    return Submission("\n".join(["#!/bin/bash", *option_lines(options), "true", ""]), options)


class Site:
    """Slurm's commands, slurm.conf and a PySlurm on the disk of this test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = monkeypatch
        (folder / "bin").mkdir()
        monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", f"{folder}/lib")
        monkeypatch.setenv("XDG_CACHE_HOME", f"{folder}/cache")
        monkeypatch.setenv("SLURM_CONF", f"{folder}/slurm.conf")
        monkeypatch.syspath_prepend(f"{folder}/lib")
        for name in ("SLURMKIT_BACKEND", "SLURMKIT_CONFIG"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("XDG_CONFIG_HOME", f"{folder}/config")
        (folder / "slurm.conf").write_text("ClusterName=lab\nSlurmctldHost=ctld\n")
        self.controller()
        self.command("srun", "true")
        self.command(
            "sbatch",
            f'[[ $1 != --version ]] || {{ echo "slurm-wlm 26.05.5"; exit; }}; cat >{folder}/sent;'
            f" echo x >>{folder}/sbatches; echo 7",
        )

    def controller(self, filters: str = "(null)", version: str = "26.05.5") -> None:
        text = CONFIG.format(filters=filters).replace("26.05.5", version)
        self.command("scontrol", f"[[ $* != 'show config' ]] || cat <<'E'\n{text}E")

    def command(self, name: str, body: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/bash\n{body}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    def pyslurm(self, version: str = "26.5.0", body: str = "") -> None:
        """Install a PySlurm; `body` is its __init__."""
        info = self.folder / "lib" / f"pyslurm-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: pyslurm\nVersion: {version}\n"
        )
        package = self.folder / "lib" / "pyslurm"
        package.mkdir()
        fine = "class slurmctld:\n    ping_primary = print\n"
        (package / "__init__.py").write_text(body or fine)

    @property
    def sbatches(self) -> int:
        file = self.folder / "sbatches"
        return len(file.read_text().split()) if file.exists() else 0


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    SENT.clear()
    yield Site(tmp_path, monkeypatch)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyslurm"]:
        del sys.modules[name]


def test_it_is_usable(site: Site) -> None:
    site.pyslurm()
    found = pyslurm_usable.check_pyslurm(LocalSlurmCommands())
    assert (found.why_not, found.version) == ("", "26.5.0")
    assert "pyslurm" not in sys.modules


def test_it_is_not_installed(site: Site) -> None:
    assert pyslurm_usable.check_pyslurm(LocalSlurmCommands()).why_not == "PySlurm is not installed"


def test_another_release_is_not_even_imported(site: Site) -> None:
    site.pyslurm("25.11.2", body=f"open({str(site.folder / 'imported')!r}, 'w')")
    found = pyslurm_usable.check_pyslurm(LocalSlurmCommands())
    assert found.why_not == "PySlurm 25.11.2 is not for Slurm 26.05.5"
    assert not (site.folder / "imported").exists()


def test_a_machine_of_another_release_than_the_cluster(site: Site) -> None:
    site.pyslurm("25.11.2")
    site.controller(version="25.11.1")
    found = pyslurm_usable.check_pyslurm(LocalSlurmCommands())
    assert found.why_not == "this machine has slurm-wlm 26.05.5, the cluster Slurm 25.11.1"


def test_torch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.pyslurm()
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert "torch is loaded" in pyslurm_usable.check_pyslurm(LocalSlurmCommands()).why_not


def test_no_slurm_conf(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.pyslurm()
    monkeypatch.setattr(pyslurm_usable, "conf_path", lambda: "")
    assert "no slurm.conf" in pyslurm_usable.check_pyslurm(LocalSlurmCommands()).why_not


def test_what_a_site_has_sbatch_do(site: Site) -> None:
    site.pyslurm()
    site.controller(filters="cli_filter/lua")
    assert (
        "CliFilterPlugins=cli_filter/lua"
        in pyslurm_usable.check_pyslurm(LocalSlurmCommands()).why_not
    )


def test_what_jobs_of_pyslurm_would_be_without(site: Site) -> None:
    site.pyslurm()
    site.controller(filters="(null)\nTaskPluginParam = OOMKillStep")
    assert "OOMKillStep" in pyslurm_usable.check_pyslurm(LocalSlurmCommands()).why_not


def test_spank_plugins(site: Site) -> None:
    site.pyslurm()
    (site.folder / "plugstack.conf").write_text("# none\ninclude more.d/*.conf\n")
    assert pyslurm_usable.check_pyslurm(LocalSlurmCommands()).why_not == ""
    (site.folder / "more.d").mkdir()
    (site.folder / "more.d" / "pyxis.conf").write_text("required /usr/lib/spank_pyxis.so\n")
    assert (
        "required /usr/lib/spank_pyxis.so"
        in pyslurm_usable.check_pyslurm(LocalSlurmCommands()).why_not
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import os, sys; print('fatal: no source', file=sys.stderr); os._exit(1)",
         "(exit code 1): fatal: no source"),
        ("import os; os.abort()", "(signal 6): no message"),
        ("import nonesuch_of_pyslurm", "No module named 'nonesuch_of_pyslurm'"),
    ],
)  # fmt: skip
def test_it_ends_a_process(site: Site, body: str, says: str) -> None:
    site.pyslurm(body=body)
    assert says in pyslurm_usable.check_pyslurm(LocalSlurmCommands()).why_not


def test_it_hangs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.pyslurm(body="import time; time.sleep(60)")
    monkeypatch.setattr(pyslurm_usable, "_TIMEOUT", 1)
    assert (
        pyslurm_usable.check_pyslurm(LocalSlurmCommands()).why_not
        == "PySlurm gave no answer in 1 s"
    )


def test_it_is_tried_once(site: Site) -> None:
    tried = site.folder / "tried"
    site.pyslurm(body=f"open({str(tried)!r}, 'a').write('x'); raise SystemExit(3)")
    first, again = (
        pyslurm_usable.check_pyslurm(LocalSlurmCommands()),
        pyslurm_usable.check_pyslurm(LocalSlurmCommands()),
    )
    assert first == again
    assert tried.read_text() == "x"
    pyslurm_usable.check_pyslurm(LocalSlurmCommands(), refresh=True)
    assert tried.read_text() == "xx"


def test_its_flags_for_libraries_go_no_further(site: Site) -> None:
    site.pyslurm(body="import os, sys; sys.setdlopenflags(sys.getdlopenflags() | os.RTLD_GLOBAL)")
    for name in ("core", "core/job"):
        folder = site.folder / "lib" / "pyslurm" / name
        folder.mkdir()
        (folder / "__init__.py").write_text("")
    (site.folder / "lib/pyslurm/core/job/submission.py").write_text("pyenviron = 'all'")
    before = sys.getdlopenflags()
    pyslurm_usable.import_pyslurm()
    assert sys.getdlopenflags() == before
    assert sys.modules["pyslurm.core.job.submission"].pyenviron == {}  # type: ignore[attr-defined]


class RPCError(Exception):
    def __init__(self, errno: int, msg: str) -> None:
        self.errno = errno
        super().__init__(msg)


class Library:
    """A PySlurm that answers as told."""

    RPCError = RPCError

    def __init__(self, answer: int | Exception) -> None:
        self.answer = answer
        self.asked: list[dict[str, object]] = []

    def JobSubmitDescription(self, **fields: object) -> SimpleNamespace:  # noqa: N802
        self.asked.append(fields)
        return SimpleNamespace(submit=self._submit)

    def _submit(self) -> int:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def library(site: Site, monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library(12)
    monkeypatch.setattr(pyslurm, "import_pyslurm", lambda: made)
    monkeypatch.setattr(pyslurm, "check_pyslurm", lambda _: PyslurmCheck())
    monkeypatch.setattr(pyslurm_usable, "check_pyslurm", lambda _: PyslurmCheck())
    return made


def test_submit(site: Site, library: Library) -> None:
    assert PyslurmBackend(LocalSlurmCommands()).submit(job()) == "12"
    (asked,) = library.asked
    assert (asked["script"], asked["name"]) == (job().script, "x")
    assert isinstance(asked["environment"], dict)
    assert asked["environment"]["SLURM_SUBMIT_DIR"] == str(Path.cwd())
    assert (site.sbatches, SENT) == (0, {"libslurm": 1})


def test_what_it_cannot_say_goes_by_sbatch_and_says_so(
    site: Site, library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert PyslurmBackend(LocalSlurmCommands()).submit(job(("hint", "nomultithread"))) == "7"
    assert (site.sbatches, library.asked) == (1, [])
    assert "PySlurm cannot express --hint exactly" in caplog.text
    (way,) = SENT
    assert way.startswith("sbatch: ")


def test_a_refusal_is_said_by_sbatch(site: Site, library: Library) -> None:
    library.answer = RPCError(2000, "Invalid partition name specified")
    assert PyslurmBackend(LocalSlurmCommands()).submit(job()) == "7"
    assert site.sbatches == 1


def test_when_slurmctld_may_have_taken_it_nothing_is_sent_again(
    site: Site, library: Library
) -> None:
    words = "Unable to contact slurm controller (connect failure)"
    library.answer = RPCError(1800, words)
    with pytest.raises(ControllerDown, match="connect failure"):
        PyslurmBackend(LocalSlurmCommands()).submit(job())
    assert site.sbatches == 0


def test_what_it_does_not_take(site: Site, library: Library) -> None:
    library.answer = ValueError("Invalid Time Specification: x")
    assert PyslurmBackend(LocalSlurmCommands()).submit(job()) == "7"


def test_asked_for_by_name_and_not_usable(site: Site) -> None:
    site.pyslurm("25.11.2")
    with pytest.raises(BrokenPlugin, match=r"25\.11\.2 is not for Slurm 26\.05\.5; install"):
        PyslurmBackend(LocalSlurmCommands()).submit(job())
    assert site.sbatches == 0


def test_by_itself_after_many_submits(
    site: Site, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_SUBMITS_WORTH_PYSLURM", 3)
    backend = DefaultBackend(LocalSlurmCommands())
    assert [backend.submit(job(), NO_OVERRIDES) for _ in range(4)] == ["7", "7", "12", "12"]


def test_not_by_itself_where_it_cannot_be_used(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(choice, "_SUBMITS_WORTH_PYSLURM", 2)
    backend = DefaultBackend(LocalSlurmCommands())
    assert [backend.submit(job()) for _ in range(3)] == ["7"] * 3
    assert caplog.text.count("PySlurm is not used: PySlurm is not installed") == 1


def test_named(site: Site, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.folder / "config" / "slurmkit").mkdir(parents=True)
    file = site.folder / "config" / "slurmkit" / "config.toml"
    file.write_text('[submit]\nbackend = "commands"\n')
    monkeypatch.setattr(choice, "_SUBMITS_WORTH_PYSLURM", 1)
    assert DefaultBackend(LocalSlurmCommands()).submit(job()) == "7"
    monkeypatch.setenv("SLURMKIT_BACKEND", "nonesuch")
    with pytest.raises(BadInput, match="no plugin 'nonesuch'"):
        DefaultBackend(LocalSlurmCommands()).submit(job())
    monkeypatch.setenv("SLURMKIT_BACKEND", "auto")
    assert DefaultBackend(LocalSlurmCommands()).submit(job()) == "12"
    assert DefaultBackend(LocalSlurmCommands(), "commands").submit(job()) == "7"
