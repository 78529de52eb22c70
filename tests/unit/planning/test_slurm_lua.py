"""The table for job_submit.lua: limits of each partition, and text that stays text."""

from __future__ import annotations

from slurmkit.formats.tres import Gres
from slurmkit.planning.refusals import REFUSAL_TEXTS
from slurmkit.planning.slurm_lua import site_lua
from slurmkit.state.model import Capabilities, Node, Partition


def node(name: str, partition: str, *gres: Gres) -> Node:
    return Node(
        name=name,
        states=("DOWN",),
        cpus=64,
        sockets=2,
        cores_per_socket=32,
        threads_per_core=1,
        memory=512000,
        gres=gres,
        partitions=(partition,),
    )


def lua(select: str = "CR_CORE_MEMORY", name: str = "gpu") -> str:
    return site_lua(
        Capabilities(
            taken=0,
            release=(24, 11, 5),
            cluster_name="lab",
            config={"SelectTypeParameters": select},
            nodes=(
                node("c1", name, Gres("gpu", "a100", 8)),
                node("c3", name, Gres("gpu", "h100", 4), Gres("shard", None, 16)),
                node("c7", "cpu"),
            ),
            partitions=(Partition(name=name), Partition(name="cpu"), Partition(name="empty")),
        )
    )


def squeezed(text: str) -> str:
    return "".join(text.split())


def test_the_most_on_one_node_of_each_partition() -> None:
    made = squeezed(lua())
    gpu = '["gpu"]={most={["gpu"]=8,["shard"]=4,["mps"]=0,},types={["a100"]=8,["h100"]=4,},},'
    none = 'most={["gpu"]=0,["shard"]=0,["mps"]=0,},types={},'
    assert gpu in made
    assert f'["cpu"]={{{none}}}' in made
    assert f'["empty"]={{{none}}}' in made


def test_shards_of_several_gpus_where_the_cluster_allows_that() -> None:
    assert '["shard"]=16' in squeezed(lua("CR_CORE_MEMORY,MULTIPLE_SHARING_GRES_PJ"))


def test_where_shards_may_come_from_several_gpus_the_words_say_so() -> None:
    several = lua("CR_CORE_MEMORY,MULTIPLE_SHARING_GRES_PJ")
    for words in ("come from one GPU", "comes from one GPU"):
        assert words in lua("CR_CORE_MEMORY")
        assert words not in several


def test_the_words_are_ours() -> None:
    made = lua()
    for code, text in REFUSAL_TEXTS.items():
        assert f'["{code}"] = "{text}",' in made


def test_a_name_cannot_leave_its_quotes() -> None:
    assert '["\\034]=os.exit()--\\010"]' in lua(name='"]=os.exit()--\n')
