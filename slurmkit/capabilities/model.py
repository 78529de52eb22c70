"""What a cluster is and has, as typed values; read by `read.py`, kept on disk by `cache.py`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

Tres = dict[str, int]
"""TRES name to amount: `cpu`, `mem` (MiB), `node`, `billing`, `gres/gpu`, `gres/gpu:a100`, …"""

_UNUSABLE = frozenset(
    "DOWN DRAIN DRAINING DRAINED FAIL FUTURE ERROR UNKNOWN NOT_RESPONDING INVAL INVALID_REG".split()
)
_MIG = re.compile(r"(?:^|[_-])(\d+c\.)?\d+g\.\d+gb", re.IGNORECASE)


class Gres(msgspec.Struct, frozen=True, gc=False):
    """Generic resources of one name and type on a node.

    Attributes:
        name: `gpu`, `shard`, `mps` or any other of GresTypes.
        type: as the node declares it, or None for untyped ones.
        count: how many there are on the node.
    """

    name: str
    type: str | None
    count: int

    @property
    def is_mig(self) -> bool:
        """Whether the type is that of a MIG slice (`a100_3g.20gb`), not of a whole GPU."""
        return self.type is not None and _MIG.search(self.type) is not None


class Node(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node's shape, and its state when it was read.

    Attributes:
        states: base state first, then flags, as Slurm names them: `("IDLE", "DRAIN")`.
        cpus: CPUs that jobs can use.
        memory: MiB that jobs can use (RealMemory less MemSpecLimit).
        features: active features, which `--constraint` looks at.
        architecture: as the kernel calls it, `x86_64`; empty when slurmd has not said.
    """

    name: str
    states: tuple[str, ...]
    reason: str = ""
    cpus: int
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory: int
    tmp_disk: int = 0
    features: tuple[str, ...] = ()
    gres: tuple[Gres, ...] = ()
    partitions: tuple[str, ...] = ()
    architecture: str = ""

    @property
    def usable(self) -> bool:
        """Whether jobs can be started on it, now or once others end."""
        return _UNUSABLE.isdisjoint(self.states)

    def count(self, name: str, type_: str | None = None) -> int:
        """Resources of that name, of one type or of all types."""
        return sum(g.count for g in self.gres if g.name == name and type_ in (None, g.type))


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as `scontrol show partition` has it; None is no limit or not set.

    Attributes:
        state: UP, DOWN, DRAIN or INACTIVE.
        max_time: minutes; also `default_time`.
        def_mem_per_cpu: MiB; so are the other memory values.
        allow_accounts: None for all; also `allow_qos`, `allow_groups`. From Slurm 23.02 on an
            account stands for those below it, too, here and in `deny_accounts`, and both hold
            only where associations are enforced.
        qos: the partition's own QOS, whose limits hold for every job in it.
        billing_weights: TRESBillingWeights: TRES name to weight per unit; memory per MiB.
        nodes: names, in Slurm's order.
        settings: every other KEY=VALUE, as printed.
    """

    name: str
    default: bool = False
    state: str = "UP"
    max_time: int | None = None
    default_time: int | None = None
    min_nodes: int = 0
    max_nodes: int | None = None
    max_cpus_per_node: int | None = None
    def_mem_per_cpu: int | None = None
    def_mem_per_node: int | None = None
    max_mem_per_cpu: int | None = None
    max_mem_per_node: int | None = None
    allow_accounts: tuple[str, ...] | None = None
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] | None = None
    deny_qos: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] | None = None
    qos: str | None = None
    billing_weights: dict[str, float] = msgspec.field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    settings: dict[str, str] = msgspec.field(default_factory=dict)


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster's release, settings and shapes: what changes by the day, not by the minute.

    Attributes:
        taken: epoch seconds at which Slurm was asked.
        release: `(24, 11, 5)`.
        config: `scontrol show config`, KEY to value as printed.
        mpi: plugin names of `srun --mpi=list`, None when srun could not say.
        container_options: container options that srun knows (`container-image` with pyxis).
        licenses: license name to total.
        hidden: what could not be read and why; where nodes or partitions are, they are unknown
            here, not absent.
    """

    taken: float
    release: tuple[int, ...]
    cluster_name: str
    config: dict[str, str]
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    mpi: tuple[str, ...] | None = None
    container_options: tuple[str, ...] = ()
    licenses: dict[str, int] = msgspec.field(default_factory=dict)
    hidden: tuple[str, ...] = ()

    def partition(self, name: str) -> Partition | None:
        """The partition of that name."""
        return next((p for p in self.partitions if p.name == name), None)

    @property
    def default_partition(self) -> Partition | None:
        """The one that jobs without `--partition` go to."""
        return next((p for p in self.partitions if p.default), None)

    def nodes_of(self, *partitions: str) -> tuple[Node, ...]:
        """Nodes in any of these partitions."""
        wanted = set(partitions)
        return tuple(node for node in self.nodes if wanted & set(node.partitions))

    def enforces(self, what: str) -> bool:
        """Whether AccountingStorageEnforce names `what`, e.g. `limits` or `safe`."""
        return what in self.config.get("AccountingStorageEnforce", "").lower().split(",")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an association or QOS; an absent one is no limit.

    Minutes are minutes of wall time, `*_mins` are TRES × minutes.

    Of a chain of associations every `grp_*` holds, but only the nearest one's `max_*`: Slurm
    copies an account's down to those below that have none of their own.

    Attributes:
        max_jobs: running jobs; of an association in it, of a QOS per user. So `max_submit`.
        max_tres_per_job: MaxTRES (association, MaxTRESPJ in QOS). So the other `max_tres*`.
        max_tres_run_mins_per_user: MaxTRESRunMinsPU, whose use 22.05 does not show. So
            `max_tres_run_mins_per_account`.
    """

    grp_tres: Tres = msgspec.field(default_factory=dict)
    grp_tres_mins: Tres = msgspec.field(default_factory=dict)
    grp_tres_run_mins: Tres = msgspec.field(default_factory=dict)
    grp_jobs: int | None = None
    grp_submit: int | None = None
    grp_wall: int | None = None
    max_tres_per_job: Tres = msgspec.field(default_factory=dict)
    max_tres_per_node: Tres = msgspec.field(default_factory=dict)
    max_tres_mins_per_job: Tres = msgspec.field(default_factory=dict)
    max_tres_per_user: Tres = msgspec.field(default_factory=dict)
    max_tres_per_account: Tres = msgspec.field(default_factory=dict)
    max_tres_run_mins_per_user: Tres = msgspec.field(default_factory=dict)
    max_tres_run_mins_per_account: Tres = msgspec.field(default_factory=dict)
    min_tres_per_job: Tres = msgspec.field(default_factory=dict)
    max_jobs: int | None = None
    max_submit: int | None = None
    max_jobs_per_account: int | None = None
    max_submit_per_account: int | None = None
    max_wall: int | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What of the limits is used now.

    Attributes:
        tres: TRES held by running jobs.
        tres_mins: decayed TRES-minutes charged so far (what GrpTRESMins is compared with).
        tres_run_mins: TRES-minutes that running jobs may still use.
        wall: minutes of wall time charged so far.
    """

    tres: Tres = msgspec.field(default_factory=dict)
    tres_mins: Tres = msgspec.field(default_factory=dict)
    tres_run_mins: Tres = msgspec.field(default_factory=dict)
    jobs: int = 0
    submitted: int = 0
    wall: int = 0


class Association(msgspec.Struct, frozen=True, kw_only=True):
    """An account, or a user's place in one, with its limits and their use.

    Attributes:
        user: empty for the account itself.
        partition: empty for all partitions.
        parent: account above this one; empty for the root. A user's parent is its account.
        default_qos: of a user's: the QOS its jobs get when they name none; empty for unknown.
            It may be one that they may not use: then they are refused.
        qos: of a user's: the QOS its jobs may name; empty for unknown.
    """

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    default_qos: str = ""
    qos: tuple[str, ...] = ()
    limits: Limits = Limits()
    usage: Usage = Usage()

    @property
    def name(self) -> str:
        """For people: `alice in vision`, `account vision`."""
        where = f" (partition {self.partition})" if self.partition else ""
        return f"{self.user} in {self.account}{where}" if self.user else f"account {self.account}"


class Qos(msgspec.Struct, frozen=True, kw_only=True):
    """A quality of service, with its limits and their use.

    Attributes:
        flags: e.g. `DenyOnLimit`, `NoDecay`, `OverPartQOS`.
        usage_factor: what TRES-minutes of its jobs are charged with.
        limit_factor: what associations' GrpTRES and MaxTRES are multiplied with for its jobs.
        grace_time: seconds its jobs have to end once preempted.
        user_usage: of the asking user; what the per-user limits are compared with.
        account_usage: account to use; what the per-account limits are compared with.
        preempts: names of the QOS whose jobs it may preempt.
    """

    name: str
    priority: int = 0
    flags: tuple[str, ...] = ()
    preempts: tuple[str, ...] = ()
    preempt_mode: str = ""
    usage_factor: float = 1.0
    limit_factor: float = 1.0
    grace_time: int = 0
    limits: Limits = Limits()
    usage: Usage = Usage()
    user_usage: Usage = Usage()
    account_usage: dict[str, Usage] = msgspec.field(default_factory=dict)


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """An advance reservation; start and end in epoch seconds.

    Attributes:
        users: who may use it; a name after `-` is one who may not. So `groups`, `accounts`,
            `qos` and `allowed_partitions`.
        partition: which its nodes are of.
        nodes: empty while Slurm has not chosen them, and for one of licenses only.
        state: ACTIVE or INACTIVE.
    """

    name: str
    start: int
    end: int
    nodes: tuple[str, ...] = ()
    partition: str = ""
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    allowed_partitions: tuple[str, ...] = ()
    features: str = ""
    tres: Tres = msgspec.field(default_factory=dict)
    flags: tuple[str, ...] = ()
    state: str = "ACTIVE"

    def admits(self, user: str, accounts: Sequence[str], groups: Collection[str] = ()) -> bool:
        """Whether a job may use it, as far as user and account decide.

        By src/slurmctld/reservation.c, _set_assoc_list and _valid_job_access_resv.

        Args:
            user: the job's.
            accounts: the job's, and those above it.
            groups: names of the user's Unix groups.
        """
        named = any(not name.startswith("-") for name in (*self.users, *self.groups))
        own = accounts[:1] if named else accounts  # named people in these very accounts
        return (
            _admitted(self.users, [user])
            and _admitted(self.groups, groups)
            and _admitted(self.accounts, own)
        )


def _admitted(names: Sequence[str], own: Collection[str]) -> bool:
    allowed = {name for name in names if not name.startswith("-")}
    denied = {name[1:] for name in names if name.startswith("-")}
    return not denied & set(own) and (not allowed or bool(allowed & set(own)))


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where one user stands now: read live, from slurmctld, for each plan.

    Attributes:
        taken: epoch seconds at which slurmctld was asked.
        user: login name.
        host: the machine that submits, without its domain, for AllocNodes.
        groups: names of the user's Unix groups, for AllowGroups.
        associations: the user's own and every account above them up to root.
        default_account: the user's, or None when it has none or slurmctld cannot say.
        qos: every QOS of the cluster.
        reservations: current and future ones.
        hidden: what could not be read and why (PrivateData, slurmdbd down); limits that stand
            there are unknown, not absent.
    """

    taken: float
    user: str
    host: str = ""
    groups: tuple[str, ...] = ()
    associations: tuple[Association, ...] = ()
    default_account: str | None = None
    qos: tuple[Qos, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    hidden: tuple[str, ...] = ()

    def qos_named(self, name: str) -> Qos | None:
        """The QOS of that name."""
        return next((qos for qos in self.qos if qos.name == name), None)

    def association(self, account: str, partition: str = "") -> Association | None:
        """The user's association with an account; one for the partition goes before."""
        own = [a for a in self.associations if a.user == self.user and a.account == account]
        fits = [a for a in own if a.partition in ("", partition)]
        return max(fits, key=lambda a: a.partition, default=None)

    def chain(self, association: Association) -> tuple[Association, ...]:
        """The association, its account, and the accounts above, nearest first."""
        chain = [association]
        while above := self._account(chain[-1]):
            chain.append(above)
        return tuple(chain)

    def _account(self, below: Association) -> Association | None:
        name = below.account if below.user else below.parent
        return next((a for a in self.associations if not a.user and a.account == name), None)
