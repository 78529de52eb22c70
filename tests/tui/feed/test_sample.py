"""The recording that is part of the package: every view of it, and a job with its log and why."""

from __future__ import annotations

import os
import pwd
import re
import socket
from pathlib import Path

import msgspec
import pytest
from fake_queue import expect_text, text, until
from sample_app import sample_app
from slurmkit_tui.feed.recording import _load_records
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.views import VIEWS

SEEN = {
    "home": ("24 of 32 held", "llama-pretrain", "it waits for another job", "TIMEOUT", "c7"),
    "mine": ("llama-pretrain", "tokenize", "FAILED", "TIMEOUT"),
    "queue": ("alice", "bob", "carol", "hyperparam-sweep", "(Resources)", "(Dependency)"),
    "gpus": ("vogel: 8", "a100_3g.20gb", "h100", "untyped", "share"),
    "nodes": ("c7", "drained", "fan 2 is loud"),
    "utilization": ("GPUs held (", "GPU-hours"),
    "fairshare": ("ACCOUNT / USER", "alice", "genomics"),
    "usage": ("MONTH", "alice", "ledger"),
    "health": ("SEVERITY", "slurmctld"),
}
HERE = Path(__file__).parents[3] / "tui" / "slurmkit_tui" / "sample.rec"


@pytest.mark.parametrize("view", [each.name for each in VIEWS])
async def test_every_view(view: str) -> None:
    app = sample_app(view)
    async with app.run_test(size=(160, 60)) as pilot:
        await expect_text(pilot, *SEEN[view])
        assert "nobody looked" not in text(app)
        assert "RECORDED" in text(app)


async def test_a_job_with_its_log_and_why() -> None:
    app = sample_app("mine")
    async with app.run_test(size=(140, 40)) as pilot:
        await expect_text(pilot, "llama-pretrain")
        await pilot.press("slash", *"pretrain", "enter", "enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen) and "GPU " in text(app))
        await pilot.press("l")
        await expect_text(pilot, "epoch")
        await pilot.press("g")
        await expect_text(pilot, "epoch 1 step 100")
        await pilot.press("s")
        await expect_text(pilot, "#!/bin/sh")
        await pilot.press("w")
        await expect_text(pilot, " runs on c[1-2]")


async def test_why_one_waits_and_why_one_failed() -> None:
    app = sample_app("mine")
    async with app.run_test(size=(140, 40)) as pilot:
        await expect_text(pilot, "llama-eval")
        for name, words in {
            "eval": "Reason",
            "70b": "Sooner",
            "tokenize": "FileNotFoundError",
        }.items():
            await pilot.press("slash", *name, "enter", "w")
            await expect_text(pilot, words)
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 1)
            await pilot.press("escape")


def test_it_is_small_and_of_the_demo_alone() -> None:
    assert HERE.stat().st_size < 300_000
    whole = b"\n".join(_load_records(HERE)).decode("utf-8", "replace")
    people = {"vogel", "alice", "bob", "carol", "root"}
    assert people - {"root"} <= set(re.findall(r"[a-z]+", whole))
    for name in (socket.gethostname(), str(Path(__file__).parents[3]), "/tmp/bash"):
        assert name not in whole
    own = pwd.getpwuid(os.getuid()).pw_name
    assert own in people or not re.search(rf"\b{own}\b", whole)
    assert msgspec.msgpack.decode(next(iter(_load_records(HERE))))["me"] == "vogel"
