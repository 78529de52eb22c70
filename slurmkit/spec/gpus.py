"""The GPUs a job asks for, written the same way for every cluster."""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from slurmkit.errors import BadInput

Per = Literal["node", "task", "job"]

_TYPE = re.compile(r"[A-Za-z0-9][\w.\-+]*", re.ASCII)
_PROFILE = re.compile(r"(\d+c\.)?\d+g\.\d+gb(\+\w+)*", re.IGNORECASE)
_COUNT = re.compile(r"\d{1,6}", re.ASCII)
_FRACTION = re.compile(r"\d{0,6}\.\d{1,6}", re.ASCII)
_BIND = re.compile(
    r"(verbose,)?(none|closest|(per_task|single):\d+|map:\d+(,\d+)*|mask:(0x)?[\da-fA-F]+"
    r"(,(0x)?[\da-fA-F]+)*)"
)
_FORMS = "2, a100:2, a100, 0.5, shard:3, mps:50, 3g.20gb:1"


class Gpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """GPUs, or a part of one, for each node, each task or the whole job.

    They are whole GPUs unless `shard`, `mps`, `mig` or `fraction` is set.

    Attributes:
        count: whole GPUs or MIG slices, at least 1.
        type: GRES type, matched against the cluster's types without case; None for any.
        per: what `count` is for; a part of a GPU is always per node.
        shard: number of shards of one GPU; the site sets how much a shard is.
        mps: number of MPS units of one GPU, usually percent.
        mig: MIG profile (`3g.20gb`), completed to the type the cluster has.
        fraction: part of one GPU between 0 and 1; becomes shards where the cluster has them.
        bind: srun's `--gpu-bind`, e.g. `closest` or `per_task:1`; by default every task sees
            all GPUs that the job has on its node.
        sockets: sockets of each node over which its GPUs are spread evenly, as `--gpus-per-socket`
            does; None leaves their places to Slurm.
    """

    count: int = 1
    type: str | None = None
    per: Per = "node"
    shard: int | None = None
    mps: int | None = None
    mig: str | None = None
    fraction: float | None = None
    bind: str | None = None
    sockets: int | None = None

    def __post_init__(self) -> None:
        parts = [name for name in ("shard", "mps", "mig", "fraction") if getattr(self, name)]
        _require(len(parts) <= 1, f"{' and '.join(parts)} cannot be combined; give one of them")
        _require(
            self.count >= 1,
            f"the number of GPUs must be at least 1, not {self.count}; for a job without GPUs"
            " leave the option out",
        )
        for name in ("shard", "mps"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{name} must be at least 1, not {value}")
        if self.fraction is not None:
            fits = math.isfinite(self.fraction) and 0 < self.fraction < 1
            _require(fits, f"a fraction of a GPU must be between 0 and 1, not {self.fraction:g}")
        _require(
            self.count == 1 or not self.is_part,
            f"a job can use {'/'.join(parts)} of one GPU on each node, not of {self.count} GPUs",
        )
        _require(
            self.per == "node" or not self.is_part,
            "ask for a part of a GPU per node: --gpus-per-node",
        )
        _check_sockets(self)
        _check_type(self.type)
        if self.mig is not None and not re.fullmatch(r"[\w.\-+]+", self.mig):
            raise BadInput(f"MIG profile {self.mig!r} is not of the form 3g.20gb")
        if self.bind is not None and not _BIND.fullmatch(self.bind):
            raise BadInput(
                f"GPU binding {self.bind!r} is not one of none, closest, per_task:N, single:N,"
                " map:LIST, mask:LIST"
            )

    @property
    def is_part(self) -> bool:
        """Whether this is a part of a GPU that other jobs may share; MIG slices are not."""
        return bool(self.shard or self.mps or self.fraction)

    @property
    def option(self) -> str:
        """The long option that asks for `count` GPUs per node, per task or per job."""
        return {"node": "gpus-per-node", "task": "gpus-per-task", "job": "gpus"}[self.per]

    @classmethod
    def parse(cls, text: str, per: Per = "node") -> Gpus:
        """Parse `[TYPE:]COUNT`, a TYPE, a fraction, `shard:N`, `mps:N` or `PROFILE[:N]`.

        Raises:
            BadInput: for any other form.
        """
        words = text.strip().removeprefix("gpu:")
        name, _, number = words.rpartition(":") if _ends_in_number(words) else (words, "", "1")
        if name in ("shard", "mps") and _COUNT.fullmatch(number) and ":" in words:
            amount = int(number)
            return cls(shard=amount, per=per) if name == "shard" else cls(mps=amount, per=per)
        known = not name or _TYPE.fullmatch(name) or _PROFILE.fullmatch(name)
        if name in ("shard", "mps") or not known or words.startswith(":") or not words:
            raise BadInput(f"cannot read GPUs {text!r}; give one of these forms: {_FORMS}")
        if _FRACTION.fullmatch(number):
            return cls(type=name or None, fraction=float(number), per=per)
        if _PROFILE.fullmatch(name):
            return cls(int(number), mig=name, per=per)
        return cls(int(number), name or None, per)

    def __str__(self) -> str:
        if self.shard or self.mps:
            return f"shard:{self.shard}" if self.shard else f"mps:{self.mps}"
        amount = f"{self.fraction:g}" if self.fraction else str(self.count)
        kind = self.mig or self.type
        return f"{kind}:{amount}" if kind else amount


def _ends_in_number(text: str) -> bool:
    last = text.rpartition(":")[2]
    return bool(_COUNT.fullmatch(last) or _FRACTION.fullmatch(last))


def _check_sockets(gpus: Gpus) -> None:
    if gpus.sockets is None:
        return
    _require(gpus.sockets >= 1, f"sockets must be at least 1, not {gpus.sockets}")
    _require(
        gpus.per == "node" and not gpus.is_part and gpus.count % gpus.sockets == 0,
        f"only whole GPUs per node can be spread over {gpus.sockets} sockets, and their number must"
        " be a multiple of it",
    )


def _check_type(name: str | None) -> None:
    if name is not None and not _TYPE.fullmatch(name):
        raise BadInput(f"GPU type {name!r} may hold only letters, digits, '.', '_', '-' and '+'")


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise BadInput(otherwise)
