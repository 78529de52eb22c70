"""Which GPUs of a cluster are meant."""

from __future__ import annotations

import msgspec
import pytest
from recorded_lab import capabilities

from slurmkit.formats.tres import Gres
from slurmkit.planning.gpu_request import GpuPool, GpuTypeNames, ResolvedGpus, resolve_gpus
from slurmkit.planning.shape import job_shape
from slurmkit.spec.gpus import Gpus, Per
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Node


def pool(*partitions: str, names: GpuTypeNames | None = None) -> GpuPool:
    nodes = capabilities().nodes_of(*partitions)
    return GpuPool(nodes, partitions, capabilities().nodes, names or GpuTypeNames())


def node(name: str, *gres: Gres, features: tuple[str, ...] = (), partition: str = "p") -> Node:
    return Node(
        name=name,
        states=("IDLE",),
        cpus=64,
        sockets=2,
        cores_per_socket=32,
        threads_per_core=1,
        memory=500_000,
        features=features,
        gres=gres,
        partitions=(partition,),
    )


def made(*nodes: Node, names: GpuTypeNames | None = None) -> GpuPool:
    return GpuPool(nodes, ("p",), nodes, names or GpuTypeNames())


def ask(text: str, where: GpuPool, *, many: bool = False) -> ResolvedGpus:
    return resolve_gpus(Gpus.parse(text), where, many=many)


def codes(kind: ResolvedGpus) -> list[str]:
    return [finding.code for finding in kind.findings]


def names_of(kind: ResolvedGpus) -> list[str]:
    return [n.name for n in kind.fitting]


@pytest.mark.parametrize("text", ["a100:2", "A100:2"])
def test_types_are_matched_without_case(text: str) -> None:
    kind = ask(text, pool("gpu"))
    assert (kind.type, names_of(kind), kind.findings) == ("a100", ["c1", "c2"], ())
    assert kind.most == 8


def test_an_alias_of_the_configuration_is_a_type() -> None:
    names = GpuTypeNames(aliases={"a100-sxm4": "a100"})
    assert ask("A100-SXM4:1", pool("gpu", names=names)).type == "a100"


def test_the_clusters_own_name_may_be_an_alias() -> None:
    names = GpuTypeNames(aliases={"nvidia_a100-sxm4": "a100", "nvidia_a100-pcie": "a100"})
    sxm, pcie = (node(n, Gres("gpu", f"nvidia_a100-{n}", 4)) for n in ("sxm4", "pcie"))
    assert ask("A100:2", made(sxm, names=names)).type == "nvidia_a100-sxm4"
    both = made(sxm, pcie, names=names)
    (finding,) = ask("a100:2", both).findings
    assert finding.fix == (("gpus-per-node", "nvidia_a100-sxm4:2"),)
    assert ask("nvidia_a100-pcie:2", both).type == "nvidia_a100-pcie"


def test_a_type_that_is_not_there_is_never_dropped_by_force() -> None:
    assert ask("v100:2", pool("untyped")).type == "v100"
    assert ask("7g.80gb:1", pool("mig")).type == "7g.80gb"
    assert all(finding.unsafe for finding in ask("0.5", pool("cpu")).findings)


@pytest.mark.parametrize(("per", "option"), [("task", "gpus-per-task"), ("job", "gpus")])
def test_what_fits_is_asked_for_in_the_same_way(per: Per, option: str) -> None:
    names = GpuTypeNames(aliases={"x": "big", "y": "big"})
    two = made(node("n1", Gres("gpu", "x", 4)), node("n2", Gres("gpu", "y", 4)), names=names)
    (several,) = resolve_gpus(Gpus(2, "big", per), two, many=True).findings
    assert several.fix == ((option, "x:2"),)
    option = option.replace("gpus", "gpus-per-node") if per == "job" else option
    (sliced,) = resolve_gpus(Gpus(2, per=per), pool("mig"), many=True).findings
    assert sliced.fix[0][0] == option


def test_nodes_that_are_not_shown() -> None:
    bare = GpuPool((), ("gpu",), ())
    kind = ask("a100:2", bare)
    assert (kind.type, [f.severity for f in kind.findings]) == ("a100", ["warning"])
    assert ask("shard:3", bare).units == 3
    assert ask("0.5", bare).findings[0].unsafe


def test_a_type_of_another_partition_is_offered_there() -> None:
    (finding,) = ask("h100:1", pool("mps")).findings
    assert finding.severity == "error"
    assert finding.fix == (("partition", "gpu"),)


def test_an_unknown_type_lists_what_exists_and_where() -> None:
    (finding,) = ask("a10:1", pool("gpu")).findings
    assert "did you mean 'a100'?" in finding.message
    assert "a100 on c[1-2,6], h100 on c3, GPUs without a type on c4" in finding.message


def test_no_gpus_at_all() -> None:
    assert codes(ask("2", pool("cpu"))) == ["gpu-none"]


def test_an_untyped_node_proves_its_type_by_a_feature() -> None:
    where = made(node("u1", Gres("gpu", None, 4), features=("V100", "ib")), node("u2"))
    kind = ask("v100:2", where)
    assert (kind.type, kind.constraint, names_of(kind)) == (None, "V100", ["u1"])
    assert codes(kind) == ["gpu-by-feature"]


def test_an_untyped_partition_is_what_the_configuration_says() -> None:
    where = pool("untyped", names=GpuTypeNames(by_partition={"untyped": "v100"}))
    kind = ask("V100:2", where)
    assert (kind.type, kind.constraint, names_of(kind)) == (None, None, ["c4"])


def test_without_proof_a_type_is_never_dropped() -> None:
    kind = ask("v100:2", pool("untyped"))
    assert codes(kind) == ["gpu-no-such-type"]
    assert "c4 have no type" in kind.findings[0].message


def test_typed_and_untyped_nodes_never_mix_in_one_job() -> None:
    where = made(node("t", Gres("gpu", "a100", 8)), node("u", Gres("gpu", None, 4)))
    many = ask("2", where, many=True)
    assert (names_of(many), many.exclude, codes(many)) == (["t"], ("u",), ["gpu-mixed-typing"])
    big = made(node("t", Gres("gpu", "a100", 8)), *(
        node(f"u{i}", Gres("gpu", None, 4)) for i in range(4)
    ))  # fmt: skip
    assert names_of(ask("2", big, many=True)) == ["u0", "u1", "u2", "u3"]
    assert names_of(resolve_gpus(Gpus(8), big, many=True, least=8)) == ["t"]
    alone = ask("2", where)
    assert (names_of(alone), alone.exclude) == (["t", "u"], ())


def test_a_plain_gpu_is_never_a_mig_slice() -> None:
    slices = Gres("gpu", "a100_3g.20gb", 2)
    apart = ask("1", made(node("w", Gres("gpu", "a100", 8)), node("m", slices)))
    assert (names_of(apart), apart.exclude) == (["w"], ("m",))
    dashed = ask(
        "1", made(node("w", Gres("gpu", "a100", 8)), node("m", Gres("gpu", "h100-1g.10gb", 7)))
    )
    assert (names_of(dashed), dashed.exclude) == (["w"], ("m",))
    beside = ask("1", made(node("b", Gres("gpu", "a100", 4), slices)))
    assert codes(beside) == ["gpu-name-a-type"]
    (finding,) = ask("1", pool("mig")).findings
    assert finding.fix == (("gpus-per-node", "a100_3g.20gb:1"),)


def test_a_mig_profile_is_completed() -> None:
    assert ask("3g.20gb:1", pool("mig")).type == "a100_3g.20gb"
    twice = made(
        node("x", Gres("gpu", "a100_3g.20gb", 2)), node("y", Gres("gpu", "h100_3g.20gb", 2))
    )
    (finding,) = ask("3g.20gb", twice).findings
    assert "gpu:a100_3g.20gb, gpu:h100_3g.20gb" in finding.message
    assert resolve_gpus(Gpus(mig="3g.20gb", type="H100"), twice, many=False).type == "h100_3g.20gb"
    (elsewhere,) = ask("1g.5gb:1", pool("gpu")).findings
    assert elsewhere.fix == (("partition", "mig"),)


def test_a_partition_with_the_number_is_proposed_first() -> None:
    """A partition was proposed that had the type, but not the number."""
    base = next(node for node in capabilities().nodes if node.name == "c1")
    nodes = tuple(
        msgspec.structs.replace(base, name=name, partitions=(name,), gres=(Gres("gpu", "v100", n),))
        for name, n in (("few", 2), ("many", 8))
    )
    away = GpuPool(capabilities().nodes_of("gpu"), ("gpu",), (*capabilities().nodes, *nodes))
    (finding,) = resolve_gpus(Gpus(4, "v100"), away, many=True).findings
    assert (finding.code, finding.fix) == ("gpu-type-elsewhere", (("partition", "many"),))
    assert finding.message.endswith("partition many has them")
    (finding,) = resolve_gpus(Gpus(9, "v100"), away, many=True).findings
    assert finding.message.endswith("partition few, many has them, at most 8 on a node")


def test_a_mig_profile_of_a_gpu_by_any_of_its_names() -> None:
    names = GpuTypeNames(aliases={"a100-sxm4-80gb": "a100"})
    there = pool("mig", names=names)
    for name in ("a100", "A100-SXM4-80GB"):
        kind = resolve_gpus(Gpus(type=name, mig="3g.20gb"), there, many=False)
        assert (kind.type, codes(kind)) == ("a100_3g.20gb", [])
    assert codes(resolve_gpus(Gpus(type="h100", mig="3g.20gb"), there, many=False))
    whole = made(node("n1", Gres("gpu", "a100-sxm4-80gb_3g.20gb", 4)), names=names)
    assert resolve_gpus(Gpus(type="a100", mig="3g.20gb"), whole, many=False).type


def test_shards_are_untyped_and_of_one_gpu() -> None:
    kind = ask("shard:3", pool("gpu"))
    assert (kind.gres, kind.type, kind.units, names_of(kind)) == ("shard", None, 3, ["c3"])
    (finding,) = ask("shard:5", pool("gpu")).findings
    assert finding.code == "shards-per-gpu"
    assert finding.fix == (("gres", "shard:4"),)
    typed = resolve_gpus(Gpus(shard=1, type="h100"), pool("gpu"), many=False)
    assert (typed.type, names_of(typed)) == (None, ["c3"])
    wrong = resolve_gpus(Gpus(shard=1, type="a100"), pool("gpu"), many=False)
    assert "no shard of a100 GPUs in partition gpu, nor in any other" in wrong.findings[0].message
    assert "shard comes from h100" in ask("a100:0.5", pool("gpu")).findings[0].message
    typed = resolve_gpus(Gpus(shard=5, type="h100"), pool("gpu"), many=False)
    assert typed.findings[0].fix == (("gres", "shard:h100:4"),)


def test_shards_of_several_gpus_where_the_site_lets_them() -> None:
    several = msgspec.structs.replace(pool("gpu"), several=True)
    there = max(node.count("shard") for node in several.nodes)
    assert codes(ask("shard:5", pool("gpu"))) == ["shards-per-gpu"]
    kind = ask("shard:5", several)
    assert (kind.units, names_of(kind)) == (5, names_of(ask("shard:1", several)))
    (finding,) = ask(f"shard:{there + 1}", several).findings
    assert finding.code == "shards-per-node"
    assert finding.fix == (("gres", f"shard:{there}"),)


def test_a_plan_asks_the_cluster_whether_it_lets_them() -> None:
    known = capabilities()
    config = known.config | {"SelectTypeParameters": "CR_CORE_MEMORY,MULTIPLE_SHARING_GRES_PJ"}
    several = msgspec.structs.replace(known, config=config)
    spec = JobSpec(command=("x",), gpus=Gpus(shard=5))
    for there, units in ((known, "shards-per-gpu"), (several, "shard-shared")):
        kind, _ = job_shape(spec, there, (there.partition("gpu"),), GpuTypeNames())  # type: ignore[arg-type]
        assert kind
        assert codes(kind) == [units]


def test_shards_of_the_other_type_are_kept_out() -> None:
    a = node("a", Gres("gpu", "a100", 2), Gres("shard", "a100", 8))
    h = node("h", Gres("gpu", "h100", 2), Gres("shard", "h100", 8))
    kind = resolve_gpus(Gpus(shard=1, type="H100"), made(a, h), many=False)
    assert (names_of(kind), kind.exclude) == (["h"], ("a",))


def test_mps_is_of_one_gpu() -> None:
    kind = ask("mps:50", pool("mps"))
    assert (kind.gres, kind.units, names_of(kind)) == ("mps", 50, ["c6"])
    (finding,) = ask("mps:150", pool("mps")).findings
    assert (finding.code, finding.fix) == ("mps-per-gpu", (("gres", "mps:100"),))


@pytest.mark.parametrize(("text", "units"), [("0.5", 2), ("0.25", 1), ("0.26", 2), ("0.9", 4)])
def test_fractions_become_shards(text: str, units: int) -> None:
    kind = ask(text, pool("gpu"))
    assert (kind.gres, kind.units) == ("shard", units)
    assert "without isolating memory" in kind.findings[0].message


def test_fractions_where_there_are_no_shards() -> None:
    assert ask("0.5", pool("cpu")).findings[0].fix == (("partition", "gpu"),)
    mps_only = tuple(n for n in capabilities().nodes if not n.count("shard"))
    where = GpuPool(capabilities().nodes_of("cpu"), ("cpu",), mps_only)
    assert ask("0.5", where).findings[0].fix == (("gres", "mps:50"), ("partition", "mps"))
    bare = GpuPool((), ("cpu",), (node("n"),))
    assert "has no GPUs at all" in ask("0.5", bare).findings[0].message


def test_an_amd_type_is_a_type_as_any_other() -> None:
    """AutoDetect=rsmi in gres.conf gives, for example, `gpu:mi300x:8`."""
    both = made(node("a1", Gres("gpu", "mi300x", 8)), node("n1", Gres("gpu", "h100", 8)))
    kind = ask("mi300x:4", both)
    assert (kind.type, names_of(kind), kind.most, kind.findings) == ("mi300x", ["a1"], 8, ())
    (unknown,) = ask("mi300:1", both).findings
    assert "did you mean 'mi300x'?" in unknown.message
