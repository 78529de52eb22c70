"""Policies: all called in order of names, changes visible, a broken one skipped."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from slurmkit_plugins.gpu_hours import GpuHours

from slurmkit.config.plugins import Plugin
from slurmkit.planning.policies import PolicyChange, Review, apply_policies
from slurmkit.spec.findings import Finding
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Capabilities

CLUSTER = Capabilities(
    taken=0, release=(24, 11, 5), cluster_name="lab", config={}, nodes=(), partitions=()
)
SPEC = JobSpec(command=("x",), gpus=Gpus(8), nodes=2)


class Adds:
    """A policy that writes its mark into the comment, and says so."""

    mark = "a"

    def review(self, spec: JobSpec, capabilities: Capabilities) -> Review:
        comment = (spec.comment or "") + self.mark
        note = Finding(severity="note", code="marked", message=f"now {comment}")
        return Review(msgspec.structs.replace(spec, comment=comment), (note,))


class AddsB(Adds):
    """The same with another mark."""

    mark = "b"


class Tells:
    """A policy that gives jobs a secret of the site."""

    def review(self, spec: JobSpec, capabilities: Capabilities) -> Review:
        return Review(msgspec.structs.replace(spec, environment={"A": "1", "API_TOKEN": "s3cr"}))


class Raises:
    """A policy with a defect."""

    def review(self, spec: JobSpec, capabilities: Capabilities) -> Review:
        raise ZeroDivisionError("by nought")


class Quits:
    """A policy that would end the program."""

    def review(self, spec: JobSpec, capabilities: Capabilities) -> Review:
        raise SystemExit(3)


class Forgets:
    """A policy that returns nothing."""

    def review(self, spec: JobSpec, capabilities: Capabilities) -> None:
        pass


class NoPolicy:
    """Lacks what a policy must have."""


def install(monkeypatch: pytest.MonkeyPatch, **policies: str) -> None:
    """Register policies of this module, and others by target."""
    found = tuple(
        Plugin("policies", name, target if ":" in target else f"{__name__}:{target}", "site", "1")
        for name, target in policies.items()
    )
    monkeypatch.setattr("slurmkit.config.plugins.registered_plugins", lambda: found)


def test_policies_are_called_in_order_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, second="AddsB", first="Adds")
    done = apply_policies(SPEC, CLUSTER)
    assert done.spec.comment == "ab"
    assert done.changes == (
        PolicyChange("first", "comment", "", "a"),
        PolicyChange("second", "comment", "a", "ab"),
    )
    assert [finding.source for finding in done.findings] == ["policy first", "policy second"]


def test_a_secret_that_a_policy_adds_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tells="Tells")
    done = apply_policies(SPEC, CLUSTER)
    assert done.changes == (
        PolicyChange("tells", "environment", "{}", "{'A': '1', 'API_TOKEN': '***'}"),
    )
    assert done.spec.environment["API_TOKEN"] == "s3cr"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("Raises", "ZeroDivisionError: by nought"),
        ("Quits", "SystemExit: 3"),
        ("Forgets", "did not return a Review"),
        ("NoPolicy", "has no review"),
        ("Absent", "AttributeError"),
        ("no_such_module:X", "ModuleNotFoundError"),
    ],
)
def test_a_broken_policy_is_named_and_skipped(
    target: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, bad=target, good="Adds")
    done = apply_policies(SPEC, CLUSTER)
    assert done.spec.comment == "a"
    warning, note = done.findings
    assert (warning.severity, warning.code, note.code) == ("warning", "broken-policy", "marked")
    assert "'bad'" in warning.message
    assert says in warning.message


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text('[policy.gpu_hours]\ndefault_time = "4:00:00"\nmax_gpu_hours = 100\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(path))
    return path


def test_gpu_hours_is_off_without_its_section() -> None:
    assert GpuHours().review(SPEC, CLUSTER) == Review(SPEC)


@pytest.mark.usefixtures("site")
def test_gpu_hours_fills_in_the_default_time() -> None:
    done = GpuHours().review(SPEC, CLUSTER)
    assert done.spec == msgspec.structs.replace(SPEC, time="4:00:00")
    assert [finding.code for finding in done.findings] == ["time-filled-in"]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(command=("x",), nodes=64),
        JobSpec(command=("x",), nodes=64, gpus=Gpus(shard=2)),
        JobSpec(command=("x",), nodes=2, gpus=Gpus(8), time="6:15:00"),
        JobSpec(command=("x",), nodes=2, gpus=Gpus(50, per="job"), time="2:00:00"),
    ],
)
def test_gpu_hours_lets_pass_what_fits(spec: JobSpec) -> None:
    assert GpuHours().review(spec, CLUSTER) == Review(spec)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("spec", "says", "fix"),
    [
        (
            JobSpec(command=("x",), nodes=2, gpus=Gpus(8), time="6:16:00"),
            "16 GPUs for 6:16:00 are 100.3 GPU-hours, and this site allows 100 for one job",
            (("time", "6:15:00"),),
        ),
        (JobSpec(command=("x",), ntasks=4, gpus=Gpus(1, per="task"), time="2-0"), "192.0", None),
        (JobSpec(command=("x",), nodes=9000, gpus=Gpus(8), time="1"), "ask for fewer GPUs", ()),
    ],
)
def test_gpu_hours_refuses_what_is_over_the_cap(
    spec: JobSpec, says: str, fix: tuple[tuple[str, str], ...] | None
) -> None:
    (finding,) = GpuHours().review(spec, CLUSTER).findings
    assert (finding.severity, finding.code) == ("error", "gpu-hours-cap")
    assert says in finding.message
    assert fix is None or finding.fix == fix
    if finding.fix:
        fitting = msgspec.structs.replace(spec, time=finding.fix[0][1])
        assert GpuHours().review(fitting, CLUSTER).findings == ()


def test_gpu_hours_counts_a_slice_by_its_weight(site: Path) -> None:
    slices = JobSpec(command=("x",), gpus=Gpus(4, mig="3g.20gb"), time="1-16")
    assert GpuHours().review(slices, CLUSTER).findings
    with site.open("a") as file:
        file.write('[gpu."a100_3g.20gb"]\nweight = 0.5\n')
    assert not GpuHours().review(slices, CLUSTER).findings


def test_gpu_hours_says_which_setting_is_wrong(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write_text('[policy.gpu_hours]\ndefault_time = "soon"\n', "utf-8")
    install(monkeypatch, gpu_hours="slurmkit_plugins.gpu_hours:GpuHours")
    (warning,) = apply_policies(SPEC, CLUSTER).findings
    assert "default_time: time limit 'soon'" in warning.message
