"""docs/plugins.md and docs/configuration.md: their examples work, and they leave nothing out."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from guide_text import code_blocks

from slurmkit.config.check import declared_sections, inspect_configuration
from slurmkit.config.files import SECTIONS
from slurmkit.config.plugins import KINDS, Plugin
from slurmkit.planning.policies import PolicyChange, apply_policies
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Capabilities

DOCS = Path(__file__).parents[3] / "docs"
PLUGINS = (DOCS / "plugins.md").read_text("utf-8")
CONFIGURATION = (DOCS / "configuration.md").read_text("utf-8")
CLUSTER = Capabilities(
    taken=0, release=(24, 11, 5), cluster_name="lab", config={}, nodes=(), partitions=()
)


def test_the_policy_of_the_guide_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (code,), (registers,) = code_blocks(PLUGINS, "python"), code_blocks(PLUGINS, "toml")
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
    monkeypatch.setattr("slurmkit.config.plugins.registered_plugins", lambda: found)
    config = tmp_path / "site.toml"
    config.write_text("[policy.night]\nmost_nodes = 8\n", "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))

    done = apply_policies(JobSpec(command=("x",), nodes=9), CLUSTER)
    assert done.changes == (PolicyChange("night", "begin", "", "20:00"),)
    assert [finding.code for finding in done.findings] == ["night"]
    assert not apply_policies(JobSpec(command=("x",), nodes=8), CLUSTER).changes
    assert inspect_configuration().problems == ()


@pytest.mark.parametrize("block", code_blocks(CONFIGURATION, "toml"))
def test_every_example_of_configuration_is_right(
    block: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "site.toml"
    config.write_text(block, "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    assert inspect_configuration().problems == ()


@pytest.mark.parametrize("name", sorted(SECTIONS.keys() - {"ldap"}))
def test_every_key_is_in_the_guide(name: str) -> None:
    tables = {
        "gpu.*": "gpu.TYPE",
        "partition.*": "partition.NAME",
        "fabric.*": "fabric.PARTITION",
        "containers.catalogue.*": "containers.catalogue.NAME",
        "clusters.*": "clusters.NAME",
        "reclaim.*": "reclaim.NAME",
        "project.*": "project.NAME",
    }
    header = tables.get(name, name)
    _, found, after = CONFIGURATION.partition(f"| `[{header}]` ")
    assert found
    rows = re.match(r".*\n(\| \| .*\n)*", after)
    assert rows
    for key in declared_sections()[name].__struct_fields__:
        assert f"| `{key}` |" in rows[0]


def test_every_kind_is_in_the_guide() -> None:
    for kind in KINDS:
        assert f"| `slurmkit.{kind}` |" in PLUGINS
