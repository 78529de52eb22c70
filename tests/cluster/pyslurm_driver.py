"""Runs on the login node: sends each submission of standard input by sbatch and by PySlurm.

python pyslurm_driver.py < [{"script": …, "options": [[…]]}, …]; prints both ids of each, or why
PySlurm cannot say it.
"""

from __future__ import annotations

import json
import sys

import msgspec

from slurmkit.jobs.backends import pyslurm
from slurmkit.jobs.backends.commands import CommandsBackend
from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit.spec.submission import Submission

slurm = LocalSlurmCommands()
commands, ours = CommandsBackend(slurm), pyslurm.PyslurmBackend(slurm)
answers = []
for each in json.load(sys.stdin):
    submission = msgspec.convert(each, Submission)
    pyslurm.SENT.clear()
    ids = (commands.submit(submission), ours.submit(submission))
    answers.append([*ids, *pyslurm.SENT])
json.dump(answers, sys.stdout)
