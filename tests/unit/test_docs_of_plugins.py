"""docs/plugins.md and docs/configuration.md: their examples work, and they leave nothing out."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from slurmkit.capabilities.model import Capabilities
from slurmkit.config import SECTIONS
from slurmkit.configcheck import survey
from slurmkit.plugins import KINDS, Plugin
from slurmkit.policies import Change, review
from slurmkit.sections import declared
from slurmkit.spec import JobSpec

DOCS = Path(__file__).parents[2] / "docs"
PLUGINS = (DOCS / "plugins.md").read_text("utf-8")
CONFIGURATION = (DOCS / "configuration.md").read_text("utf-8")
CLUSTER = Capabilities(
    taken=0, release=(24, 11, 5), cluster_name="lab", config={}, nodes=(), partitions=()
)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_policy_of_the_guide_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (code,), (registers,) = blocks(PLUGINS, "python"), blocks(PLUGINS, "toml")
    module = ModuleType("our_site.policy")
    monkeypatch.setitem(sys.modules, "our_site", ModuleType("our_site"))
    monkeypatch.setitem(sys.modules, "our_site.policy", module)
    exec(compile(code, "policy.py", "exec"), module.__dict__)  # noqa: S102 - the guide's own code
    groups = tomllib.loads(registers)["project"]["entry-points"]
    found = tuple(
        Plugin(group.removeprefix("slurmkit."), name, target, "our-site", "1")
        for group, entries in groups.items()
        for name, target in entries.items()
    )
    monkeypatch.setattr("slurmkit.plugins.registered", lambda: found)
    config = tmp_path / "site.toml"
    config.write_text("[policy.night]\nmost_nodes = 8\n", "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))

    done = review(JobSpec(command=("x",), nodes=9), CLUSTER)
    assert done.changes == (Change("night", "begin", "", "20:00"),)
    assert [finding.code for finding in done.findings] == ["night"]
    assert not review(JobSpec(command=("x",), nodes=8), CLUSTER).changes
    assert survey().problems == ()


@pytest.mark.parametrize("block", blocks(CONFIGURATION, "toml"))
def test_every_example_of_configuration_is_right(
    block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "site.toml"
    config.write_text(block, "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    assert survey().problems == ()


@pytest.mark.parametrize("name", sorted(SECTIONS.keys() - {"ldap"}))
def test_every_key_is_in_the_guide(name: str) -> None:
    tables = {
        "gpu.*": "gpu.TYPE",
        "partition.*": "partition.NAME",
        "fabric.*": "fabric.PARTITION",
        "containers.catalogue.*": "containers.catalogue.NAME",
        "clusters.*": "clusters.NAME",
    }
    header = tables.get(name, name)
    _, found, after = CONFIGURATION.partition(f"| `[{header}]` ")
    assert found
    rows = re.match(r".*\n(\| \| .*\n)*", after)
    assert rows
    for key in declared()[name].__struct_fields__:
        assert f"| `{key}` |" in rows[0]


def test_every_kind_is_in_the_guide() -> None:
    for kind in KINDS:
        assert f"| `slurmkit.{kind}` |" in PLUGINS
