"""How many examples Hypothesis tries: all in `make test-all`, a third of them in `make test`."""

import os


def examples(count: int) -> int:
    """Return how many of `count` examples this run tries, at least five."""
    return count if os.environ.get("SLURMKIT_TEST_ALL_EXAMPLES") else min(count, max(5, count // 3))
