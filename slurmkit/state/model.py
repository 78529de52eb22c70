"""Types for what a cluster is and has, and for one user's associations, QOS and limits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from slurmkit.formats.tres import Gres, Tres

_UNUSABLE = frozenset(
    "DOWN DRAIN DRAINING DRAINED FAIL FUTURE ERROR UNKNOWN NOT_RESPONDING INVAL INVALID_REG".split()
)

# A node in one of these does not answer, and comes back by itself.
_SILENT_FOR_NOW = frozenset("POWERING_UP POWERED_DOWN POWERING_DOWN REBOOT_ISSUED".split())


def states_that_count(states: Iterable[str]) -> frozenset[str]:
    """Return a node's states without NOT_RESPONDING where nothing can respond, e.g. at its boot."""
    counted = frozenset(states)
    return counted - {"NOT_RESPONDING"} if counted & _SILENT_FOR_NOW else counted


class Node(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node's shape, and its state when it was read.

    Attributes:
        states: base state first, then flags, as Slurm names them: `("IDLE", "DRAIN")`.
        cpus: CPUs that jobs can use.
        memory: MiB that jobs can use (RealMemory less MemSpecLimit).
        features: active features, which `--constraint` selects.
        architecture: the kernel's name of it, `x86_64`; empty when slurmd has not reported it.
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
        """Whether jobs can start on the node, now or once others end."""
        return _UNUSABLE.isdisjoint(states_that_count(self.states))

    def count(self, name: str, type_: str | None = None) -> int:
        """Return the number of resources of that name, of one type or of all types."""
        return sum(g.count for g in self.gres if g.name == name and type_ in (None, g.type))


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as `scontrol show partition` prints it; None means no limit or not set.

    Attributes:
        state: UP, DOWN, DRAIN or INACTIVE.
        max_time: minutes; the same for `default_time`.
        def_mem_per_cpu: MiB; the same for the other memory values.
        allow_accounts: None for all; the same for `allow_qos` and `allow_groups`. From Slurm
            23.02 on an account includes those below it, also in `deny_accounts`. Both apply
            only where associations are enforced.
        qos: the partition's own QOS, whose limits apply to every job in it.
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
    """A cluster's release, settings and nodes, which change by the day, not by the minute.

    Attributes:
        taken: epoch seconds at which Slurm was asked.
        release: `(24, 11, 5)`.
        config: `scontrol show config`, KEY to value as printed.
        mpi: plugin names of `srun --mpi=list`, None when srun could not say.
        container_options: srun's container options (`container-image` with pyxis).
        licenses: license name to total.
        hidden: what could not be read and why; nodes or partitions named here are unknown, not
            absent.
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
        """Return the partition of that name; None if there is none."""
        return next((p for p in self.partitions if p.name == name), None)

    @property
    def default_partition(self) -> Partition | None:
        """The partition of jobs without `--partition`."""
        return next((p for p in self.partitions if p.default), None)

    def nodes_of(self, *partitions: str) -> tuple[Node, ...]:
        """Return the nodes in any of these partitions."""
        wanted = set(partitions)
        return tuple(node for node in self.nodes if wanted & set(node.partitions))

    def enforces(self, what: str) -> bool:
        """Return whether AccountingStorageEnforce names `what`, e.g. `limits` or `safe`."""
        return what in self.config.get("AccountingStorageEnforce", "").lower().split(",")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an association or QOS; None or an empty TRES is no limit.

    Minutes are minutes of wall time; `*_mins` are TRES × minutes.

    In a chain of associations every `grp_*` applies, but only the nearest `max_*`: Slurm copies an
    account's `max_*` to the associations below that have none.

    Attributes:
        max_jobs: running jobs; in an association, or per user of a QOS. The same for `max_submit`.
        max_tres_per_job: MaxTRES of an association, MaxTRESPJ of a QOS. The other `max_tres*`
            are named alike.
        max_tres_run_mins_per_user: MaxTRESRunMinsPU, whose use 22.05 does not show. The same for
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


class LimitUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The current use that limits are compared with.

    Attributes:
        tres: TRES held by running jobs.
        tres_mins: decayed TRES-minutes charged so far (compared with GrpTRESMins).
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
    """An account, or a user's association with it; with limits and their use.

    Attributes:
        user: empty for the account itself.
        partition: empty for all partitions.
        parent: account above this one; empty for the root. A user's parent is its account.
        default_qos: for a user: the QOS of jobs that name none; empty if unknown. Jobs are refused
            if they may not use it.
        qos: for a user: the QOS that jobs may name; empty if unknown.
    """

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    default_qos: str = ""
    qos: tuple[str, ...] = ()
    limits: Limits = Limits()
    usage: LimitUsage = LimitUsage()

    @property
    def name(self) -> str:
        """The name for people: `alice in vision`, `account vision`."""
        where = f" (partition {self.partition})" if self.partition else ""
        return f"{self.user} in {self.account}{where}" if self.user else f"account {self.account}"


class Qos(msgspec.Struct, frozen=True, kw_only=True):
    """A quality of service, with its limits and their use.

    Attributes:
        flags: e.g. `DenyOnLimit`, `NoDecay`, `OverPartQOS`.
        usage_factor: the charge for TRES-minutes of its jobs is multiplied by this.
        limit_factor: associations' GrpTRES and MaxTRES are multiplied by this for its jobs.
        grace_time: seconds its jobs have to end once preempted.
        user_usage: of the asking user; compared with the per-user limits.
        account_usage: account to use; compared with the per-account limits.
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
    usage: LimitUsage = LimitUsage()
    user_usage: LimitUsage = LimitUsage()
    account_usage: dict[str, LimitUsage] = msgspec.field(default_factory=dict)


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """An advance reservation; start and end in epoch seconds.

    Attributes:
        users: who may use it; a name after `-` may not. The same for `groups`, `accounts`, `qos`
            and `allowed_partitions`.
        partition: partition of its nodes.
        nodes: empty while Slurm has not chosen them, and for a reservation of licenses only.
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
        """Return whether a job may use the reservation, as far as user and account decide.

        From src/slurmctld/reservation.c, _set_assoc_list and _valid_job_access_resv.

        Args:
            user: the job's.
            accounts: the job's, and those above it.
            groups: names of the user's Unix groups.
        """
        named = any(not name.startswith("-") for name in (*self.users, *self.groups))
        own = accounts[:1] if named else accounts  # named users need one of these very accounts
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
    """One user's associations, QOS, limits and reservations, read live for each plan.

    Attributes:
        taken: epoch seconds at which slurmctld was asked.
        user: login name.
        host: the submitting machine, without its domain, for AllocNodes.
        groups: names of the user's Unix groups, for AllowGroups.
        associations: the user's own and every account above them up to root.
        default_account: the user's; None if there is none, or slurmctld does not show it.
        qos: every QOS of the cluster.
        reservations: current and future ones.
        hidden: what could not be read and why (PrivateData, slurmdbd down); limits named here are
            unknown, not absent.
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
        """Return the QOS of that name; None if there is none."""
        return next((qos for qos in self.qos if qos.name == name), None)

    def association(self, account: str, partition: str = "") -> Association | None:
        """Return the user's association with an account; one for the partition comes first."""
        own = [a for a in self.associations if a.user == self.user and a.account == account]
        fits = [a for a in own if a.partition in ("", partition)]
        return max(fits, key=lambda a: a.partition, default=None)

    def chain(self, association: Association) -> tuple[Association, ...]:
        """Return the association, its account, and the accounts above, nearest first."""
        chain = [association]
        while above := self._account(chain[-1]):
            chain.append(above)
        return tuple(chain)

    def _account(self, below: Association) -> Association | None:
        name = below.account if below.user else below.parent
        return next((a for a in self.associations if not a.user and a.account == name), None)


class GresKind(msgspec.Struct, frozen=True, kw_only=True):
    """Generic resources of one name and type on a cluster.

    Attributes:
        name: `gpu`, `shard`, `mps` or any other of GresTypes.
        type: as nodes declare it, None for untyped ones.
        is_mig: whether the type is that of MIG slices.
        count: number on the whole cluster.
        per_node: the different numbers on a node, smallest first.
        nodes: names of the nodes.
        partitions: names of the partitions that have such nodes.
    """

    name: str
    type: str | None
    is_mig: bool
    count: int
    per_node: tuple[int, ...]
    nodes: tuple[str, ...]
    partitions: tuple[str, ...]


def gres_kinds(nodes: Iterable[Node]) -> tuple[GresKind, ...]:
    """Sum up the GRES of nodes: GPUs first, then parts of GPUs, then the rest."""
    held: dict[tuple[str, str | None], list[tuple[Gres, Node]]] = {}
    for node in nodes:
        for gres in node.gres:
            held.setdefault((gres.name, gres.type), []).append((gres, node))
    order = {"gpu": 0, "shard": 1, "mps": 2}
    kinds = sorted(held, key=lambda kind: (order.get(kind[0], 3), kind[0], kind[1] or ""))
    return tuple(_kind(held[kind]) for kind in kinds)


def _kind(held: list[tuple[Gres, Node]]) -> GresKind:
    first = held[0][0]
    partitions = (name for _, node in held for name in node.partitions)
    return GresKind(
        name=first.name,
        type=first.type,
        is_mig=first.is_mig,
        count=sum(gres.count for gres, _ in held),
        per_node=tuple(sorted({gres.count for gres, _ in held})),
        nodes=tuple(node.name for _, node in held),
        partitions=tuple(dict.fromkeys(partitions)),
    )


def reserved_gpus(reservation: Reservation, capabilities: Capabilities) -> int | None:
    """Return the GPUs that a reservation holds; None when Slurm does not tell.

    Slurm counts GPUs only where the reservation asks for them; whole nodes hold all of theirs.
    """
    if "gres/gpu" in reservation.tres:
        return reservation.tres["gres/gpu"]
    nodes = [node for node in capabilities.nodes if node.name in set(reservation.nodes)]
    if len(nodes) != len(reservation.nodes):
        return None
    gpus = sum(node.count("gpu") for node in nodes)
    whole = reservation.tres.get("cpu", 0) >= sum(node.cpus for node in nodes)
    return gpus if whole or not gpus else None
