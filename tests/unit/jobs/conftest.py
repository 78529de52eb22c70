"""Jobs that the tests change."""

from __future__ import annotations

import pytest
from jobs_lab import FakeJobs


@pytest.fixture
def jobs() -> FakeJobs:
    return FakeJobs()
