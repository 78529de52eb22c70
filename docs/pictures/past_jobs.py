"""Print 30 days of invented runs on the demo cluster's GPUs, as `sacct --parsable2` would.

The sample (docs/pictures/sample) gives them to the ledger, so that curves and reports have a past:
    python3 past_jobs.py | slurmkit ledger ingest --file - --cluster lab --header --delimiter '|'
"""

import math
import random
import time
from collections.abc import Iterator
from typing import NamedTuple

DAYS, HOUR = 30, 3600
FIELDS = (
    "JobIDRaw", "User", "Account", "Partition", "QOS", "State", "Submit", "Eligible", "Start",
    "End", "AllocNodes", "AllocCPUS", "AllocTRES", "TimelimitRaw", "ExitCode", "NodeList",
    "JobName",
)  # fmt: skip
PEOPLE = {
    "alice": "vision", "bob": "vision", "vogel": "vision", "carol": "vision", "grace": "climate",
    "heidi": "climate", "chen": "climate", "dave": "genomics", "judy": "genomics",
    "erin": "genomics",
}  # fmt: skip
NAMES = ("llama-pretrain", "resnet50", "diffusion-ft", "era5-downscale", "notebook", "ablation",
         "basecalling", "finetune", "sam2-eval")  # fmt: skip
STATES = ("COMPLETED",) * 14 + ("FAILED", "FAILED", "TIMEOUT", "CANCELLED", "OUT_OF_MEMORY")


class Pool(NamedTuple):
    """Some GPUs of a type: node, partition, type as in gres.conf (or none), how many, how busy."""

    node: str
    partition: str
    kind: str
    count: int
    busy: float


POOLS = (
    Pool("c1", "gpu", "a100", 8, 0.95), Pool("c2", "gpu", "a100", 8, 0.8),
    Pool("c3", "gpu", "h100", 4, 0.9), Pool("c4", "untyped", "", 4, 0.5),
    Pool("c5", "mig", "a100_3g.20gb", 2, 0.6), Pool("c5", "mig", "a100_1g.5gb", 4, 0.5),
)  # fmt: skip


def runs_of(pool: Pool, chance: random.Random, begin: int, end: int) -> Iterator[dict[str, object]]:
    """Yield the runs of a pool: whoever comes takes free GPUs, more by day than at night."""
    free_at = [float(begin)] * pool.count
    now = float(begin)
    while now < end:
        by_day = 0.5 - 0.5 * math.cos((now - 3 * HOUR) % 86400 / 86400 * 2 * math.pi)
        now += chance.expovariate(1) * 3.5 * HOUR / pool.count / (0.2 + pool.busy * by_day)
        wanted = min(chance.choice((1, 1, 1, 2, 2, 4, 8)), pool.count)
        slots = sorted(range(pool.count), key=free_at.__getitem__)[:wanted]
        start = max(now + 5, *(free_at[slot] for slot in slots))
        lasts = min(chance.lognormvariate(9.2, 1.0), 20 * HOUR) * pool.busy
        if start - now > 6 * HOUR or start + lasts > end:
            continue
        for slot in slots:
            free_at[slot] = start + lasts
        user = chance.choice(list(PEOPLE))
        state = chance.choice(STATES)
        gpus = f"gres/gpu={wanted}" + (f",gres/gpu:{pool.kind}={wanted}" if pool.kind else "")
        yield {
            "User": user, "Account": PEOPLE[user], "Partition": pool.partition, "QOS": "normal",
            "State": state, "Submit": int(now), "Eligible": int(now), "Start": int(start),
            "End": int(start + lasts), "AllocNodes": 1, "AllocCPUS": 4 * wanted,
            "AllocTRES": f"billing={4 * wanted},cpu={4 * wanted},{gpus},mem={16 * wanted}G,node=1",
            "TimelimitRaw": 1440, "ExitCode": "1:0" if state == "FAILED" else "0:0",
            "NodeList": pool.node, "JobName": chance.choice(NAMES),
        }  # fmt: skip


def main() -> None:
    """Print the runs that ended until half an hour ago."""
    end = int(time.time()) - HOUR // 2
    begin = end - DAYS * 24 * HOUR
    chance = random.Random(2)  # noqa: S311 - a picture, no secret
    found = [run for pool in POOLS for run in runs_of(pool, chance, begin, end)]
    print("|".join(FIELDS))
    for number, run in enumerate(sorted(found, key=lambda run: str(run["Submit"])), 1_000_001):
        print("|".join(str(run.get(name, number)) for name in FIELDS))


main()
