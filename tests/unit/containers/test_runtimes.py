"""Which runtime a job gets, and what every one of them keeps to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from container_lab import cluster

from slurmkit.config.plugins import Plugin, plugins
from slurmkit.errors import BadInput, BrokenPlugin
from slurmkit.planning.containers import RUNTIME_ORDER, choose_runtime, make_runtime
from slurmkit.spec.containers import UNSET_PYXIS, Container, ContainerLaunch


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "site.toml"
    path.write_text("", "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(path))
    return path


def says(site: Path, *runtimes: str, runtime: str = "") -> None:
    preferred = f'runtime = "{runtime}"\n' if runtime else ""
    site.write_text(f"[containers]\n{preferred}runtimes = {list(runtimes)}\n", "utf-8")


ALL = ("enroot", "apptainer", "oci")


@pytest.mark.parametrize(
    ("image", "pyxis", "installed", "chosen"),
    [
        ("ubuntu", "0.24", (), "pyxis"),
        ("ubuntu", "0.24", ALL, "pyxis"),
        ("ubuntu", None, ALL, "enroot"),
        ("ubuntu", None, ("apptainer", "oci"), "apptainer"),
        ("/x.sqsh", "0.11", ALL, "pyxis"),
        ("/x.sqsh", None, ("apptainer",), "apptainer"),
        ("/x.sif", "0.24", ALL, "apptainer"),
        ("/bundle", "0.24", ALL, "oci"),
        ("dockerd://x", None, ("enroot",), "enroot"),
    ],
)
def test_what_suits_image_and_cluster(
    image: str, pyxis: str | None, installed: tuple[str, ...], chosen: str, site: Path
) -> None:
    says(site, *installed)
    assert choose_runtime(Container(image=image), cluster(pyxis)) == chosen


def test_what_is_named_is_taken(site: Path) -> None:
    says(site, *ALL, runtime="apptainer")
    here = cluster("0.24")
    assert choose_runtime(Container(image="ubuntu"), here) == "apptainer"
    assert choose_runtime(Container(image="ubuntu", runtime="enroot"), here) == "enroot"
    assert choose_runtime(Container(image="/bundle"), here) == "oci"
    assert choose_runtime(Container(image="/bundle", runtime="pyxis"), here) == "pyxis"
    assert list(make_runtime("pyxis").needs(Container(image="/bundle"), here))


def test_what_is_named_must_be_there(site: Path) -> None:
    with pytest.raises(BadInput, match=r"apptainer cannot be used here: .containers. runtimes"):
        choose_runtime(Container(image="ubuntu", runtime="apptainer"), cluster("0.24"))
    with pytest.raises(BadInput, match=r"no plugin 'podman' of slurmkit.runtimes"):
        choose_runtime(Container(image="ubuntu", runtime="podman"), cluster("0.24"))
    says(site, runtime="pyxis")
    with pytest.raises(BadInput, match="pyxis cannot be used here: srun has no option"):
        choose_runtime(Container(image="ubuntu"), cluster())


def test_a_container_kept_by_its_name_is_pyxis_or_enroots(site: Path) -> None:
    assert choose_runtime(Container(name="train"), cluster("0.24")) == "pyxis"
    says(site, *ALL)
    assert choose_runtime(Container(name="train"), cluster()) == "enroot"
    says(site, "apptainer", runtime="apptainer")
    assert choose_runtime(Container(name="train"), cluster("0.24")) == "pyxis"
    with pytest.raises(
        BadInput, match=r"its name: pyxis: srun has no option .*; apptainer: apptainer has"
    ):
        choose_runtime(Container(name="train"), cluster())


def test_where_nothing_fits_every_runtime_says_why(site: Path) -> None:
    with pytest.raises(BadInput) as refused:
        choose_runtime(Container(image="/x.sif"), cluster("0.24"))
    assert str(refused.value) == (
        "no container runtime here can run a SIF file: pyxis: cannot run a SIF file; enroot:"
        " cannot run a SIF file; apptainer: [containers] runtimes in the configuration does not"
        " name apptainer; oci: cannot run a SIF file"
    )


def test_a_typing_error_in_the_configuration_is_an_error(site: Path) -> None:
    says(site, "enrot")
    with pytest.raises(BadInput, match=r"no plugin 'enrot'.*did you mean 'enroot'"):
        choose_runtime(Container(image="ubuntu"), cluster("0.24"))


def test_a_plugin_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Plugin("runtimes", "broken", "slurmkit.spec.containers:Container", "site", "1")
    monkeypatch.setattr("slurmkit.config.plugins.registered_plugins", lambda: (broken,))
    with pytest.raises(BrokenPlugin, match="has no runs"):
        make_runtime("broken")


def test_ours_are_registered_in_their_order() -> None:
    ours = [plugin.name for plugin in plugins("runtimes").values()]
    assert sorted(RUNTIME_ORDER) == ours


@pytest.mark.parametrize("name", RUNTIME_ORDER)
def test_every_runtime_takes_the_simplest_container(name: str) -> None:
    image = {"oci": "/bundle", "apptainer": "/x.sif"}.get(name, "ubuntu")
    made = make_runtime(name)
    container = Container(image=image)
    assert made.runs(container.source.kind if container.source else "")
    assert not made.runs("tape")
    assert not [f for f in made.needs(container, cluster("0.24")) if f.severity == "error"]
    step = made.step(container, gpus=False)
    assert isinstance(step, ContainerLaunch)
    assert step == made.step(container, gpus=False)


def test_variables_that_pyxis_would_take_for_options_are_unset() -> None:
    show = f"set -eu\n{UNSET_PYXIS}\nenv | grep -c ^PYXIS_ || true\n{UNSET_PYXIS}\necho done"
    given = {
        "PATH": os.environ["PATH"],
        "PYXIS_CONTAINER_IMAGE": "x",
        "PYXIS_CONTAINER_NAME": "a b\nc",
    }
    done = subprocess.run(["bash", "-c", show], capture_output=True, check=True, env=given)
    assert done.stdout == b"0\ndone\n"
