"""The wait for the job behind `ssh slurmkit-NAME`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from jobs_lab import FakeJobs

from slurmkit.errors import NotOver, SlurmkitError
from slurmkit.interactive import ssh_keeper
from slurmkit.interactive.ssh_job import wait_for_keeper
from slurmkit.interactive.ssh_profile import KeeperAddress, SshProfile, find_profile


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshProfile:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = find_profile("lab", "gpu")
    made.folder.mkdir(parents=True, mode=0o700)
    return made


def write_address(profile: SshProfile, job_id: str) -> KeeperAddress:
    address = KeeperAddress(job_id, "c1", "slurmkit", 1)
    path = profile.folder / ssh_keeper.ADDRESS
    path.write_bytes(msgspec.json.encode(address))
    path.chmod(0o600)
    return address


def test_the_address_of_an_earlier_job_is_not_taken(profile: SshProfile) -> None:
    jobs, notices = FakeJobs(), list[str]()
    write_address(profile, "11")

    def notice(line: str) -> None:
        notices.append(line)
        if "not free" in line:
            jobs.waits("12", Reason="Priority")
        else:
            jobs.runs_now("12")
            write_address(profile, "12")

    jobs.waits("12", Reason="Resources")
    found = wait_for_keeper(jobs.cluster().job("12"), profile, notice)
    assert found.job_id == "12"
    assert len(notices) == 2  # of the pending reasons; none when the job starts
    assert all(line.startswith("job 12 waits: ") for line in notices)


def test_a_job_that_ends_first_or_stays_silent(profile: SshProfile) -> None:
    jobs = FakeJobs()
    jobs.ends("12", "FAILED", ExitCode="127:0")
    with pytest.raises(SlurmkitError, match=r"^job 12 failed.*; see: slurmkit log 12$"):
        wait_for_keeper(jobs.cluster().job("12"), profile, lambda _: None)
    jobs.runs_now("13")
    silent = "job 13 runs, but has written no address within 0.01 s; see: slurmkit log 13"
    with pytest.raises(NotOver, match=f"^{silent}$"):
        wait_for_keeper(jobs.cluster().job("13"), profile, lambda _: None, patience=0.01)
