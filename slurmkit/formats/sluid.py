"""SLUIDs, Slurm's ids of runs since 24.11: the DBIndex in base 32.

sacct prints one number as DBIndex and as SLUID (src/sacct/print.c). Form and digits are those of
src/common/sluid.c. The upper 12 bits are the number of the cluster, from 2 on; a DBIndex of an
older slurmctld has none there.
"""

from __future__ import annotations

import re

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)} | {"O": 0, "I": 1, "L": 1}
_LENGTH = 13
_SLUID = re.compile(r"[sS][0-9A-Za-z]{13}")
_LEAST = 2 << 52


def format_sluid(db_index: int | None) -> str | None:
    """Return the SLUID of a run, by its DBIndex without a sign; None if it has none."""
    if db_index is None or db_index < _LEAST:
        return None
    digits = (_DIGITS[db_index >> 5 * place & 31] for place in reversed(range(_LENGTH)))
    return f"s{''.join(digits)}"


def parse_sluid(text: str) -> int | None:
    """Parse a SLUID to the DBIndex without a sign; None if the text is no SLUID."""
    if not _SLUID.fullmatch(text):
        return None
    db_index = 0
    for digit in text[1:].upper():
        if digit not in _VALUES:
            return None
        db_index = db_index << 5 | _VALUES[digit]
    return db_index if _LEAST <= db_index < 1 << 64 else None
