"""Record what Slurm prints of nodes, partitions, limits, reservations and shares, on one release.

First as the cluster comes up, into `<release>/`; then with limits, into `<release>/limits/`.
Needs a cluster of its own, since the limits are not undone:

    docker/cluster up --slurm 22.05 --name cap2205
    python tests/recorded/record_capabilities.py --name cap2205
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from record import CLUSTER, Recorder

from slurmkit.planning.checks.live import SHOW_TOPOLOGY
from slurmkit.state import associations
from slurmkit.state.capabilities import CAPABILITY_COMMANDS
from slurmkit.state.fairshare import factors_command, shares_command

HERE = Path(__file__).parent
LIMITS = """
sacctmgr -i add account child parent=vision GrpTRES=gres/gpu=6 MaxJobs=7 \
 MaxTRESMins=cpu=1000 DefaultQOS=normal qos=normal,scavenger
sacctmgr -i modify account vision set GrpTRESMins=gres/gpu=1000,cpu=50000 GrpTRESRunMins=cpu=9000 \
 GrpJobs=50 GrpSubmitJobs=60 GrpWall=5000 MaxTRES=gres/gpu=4,mem=100G MaxTRESPerNode=gres/gpu=2 \
 MaxWall=2-00:00:00 MaxSubmitJobs=30
sacctmgr -i add user alice account=child
sacctmgr -i modify user where name=alice account=vision set MaxJobs=3 GrpTRES=cpu=20
sacctmgr -i add user alice account=vision partition=cpu
sacctmgr -i modify user where name=alice account=vision partition=cpu set MaxSubmitJobs=2
sacctmgr -i add qos limited set MaxTRESPU=gres/gpu=2,mem=64G MaxJobsPU=2 MaxSubmitJobsPU=5 \
 MaxTRESPA=gres/gpu=6 MaxJobsPA=10 MaxSubmitJobsPA=20 MaxTRESRunMinsPU=cpu=600 \
 MaxTRESRunMinsPA=cpu=6000 GrpTRES=gres/gpu=8 GrpTRESMins=gres/gpu=100 GrpWall=100 \
 MaxTRES=cpu=16 MaxTRESPerNode=cpu=8 MinTRES=gres/gpu=1 MaxWall=60 MaxTRESMins=cpu=1000 \
 Flags=DenyOnLimit,NoDecay,OverPartQOS UsageFactor=0.5 LimitFactor=2 GraceTime=30 \
 Preempt=scavenger Description='free text | and pipe'
sacctmgr -i add qos unused set MaxTRESPU=gres/gpu=3,mem=64G MaxJobsPU=0 MaxSubmitJobsPU=6 \
 MaxTRESPA=gres/gpu=6
sacctmgr -i add qos relative set Flags=Relative MaxTRESPU=gres/gpu=50 GrpTRES=cpu=10
sacctmgr -i modify user where name=alice set qos+=limited,unused
sacctmgr -i modify user where name=alice set qos+=relative
scontrol create reservation ReservationName=alice_res StartTime=now Duration=120 Nodes=c4 \
 Users=alice Flags=ignore_jobs
scontrol create reservation ReservationName=notbob StartTime=now+1hour Duration=60 NodeCnt=1 \
 PartitionName=cpu Users=-bob Accounts=vision
scontrol create reservation ReservationName=gpus StartTime=now+2hours Duration=60 \
 TRES=gres/gpu=4,cpu=8 Partition=gpu Accounts=vision
scontrol create reservation ReservationName=maint StartTime=now+3hours Duration=60 Nodes=ALL \
 Groups=vision,people Flags=MAINT,IGNORE_JOBS Comment='weekly  State=FORGED'
scontrol create reservation ReservationName=maint StartTime=now+3hours Duration=60 Nodes=ALL \
 Groups=vision,people Flags=MAINT,IGNORE_JOBS # 22.05 knows no comment
scontrol update NodeName=c6 State=DRAIN Reason='fan = 0 State=IDLE Gres=gpu:99'
scontrol update NodeName=c4 AvailableFeatures=h200,nvlink ActiveFeatures=h200
scontrol update PartitionName=mig AllowAccounts=vision,climate DenyQos=scavenger MaxNodes=1 \
 MaxTime=30 AllowGroups=vision QoS=high DefMemPerNode=2048
scontrol update PartitionName=mps DenyAccounts=genomics AllowQos=high,normal MinNodes=1 \
 MaxMemPerCPU=4096 DefMemPerCPU=1000 State=DRAIN MaxTime=UNLIMITED \
 MaxCPUsPerNode=32
"""
JOBS = (
    "-p cpu -n2 --qos=normal",
    "-A vision --qos=limited --gres=gpu:a100:1",
    "-A child --qos=scavenger --gres=gpu:a100:1",
    "-p mig --qos=high --nodelist=c5 --exclusive --gres=gpu:a100_1g.5gb:4",
    "-p mig --qos=high --nodelist=c5 --exclusive",
    "-p gpu --array=1-3 --nodelist=c7",
    "-p gpu --nodes=3 --exclusive",
)
CONF = "/etc/slurm/slurm.conf"


def on_ctld(name: str, script: str) -> None:
    command = [CLUSTER, "exec", "ctld", "--name", name, "--", "bash", "-s"]
    subprocess.run(command, input=script, text=True, check=False, stdout=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    name = parser.parse_args().name
    recorder = Recorder(name)
    release = ".".join(recorder.run("scontrol", "--version").stdout.split()[1].split(".")[:2])
    folder = HERE / release / "limits"
    folder.mkdir(parents=True, exist_ok=True)
    record(recorder, folder.parent)
    on_ctld(name, f"echo Licenses=matlab:10,ansys:2 >> {CONF}; scontrol reconfigure; sleep 3")
    on_ctld(name, LIMITS)
    for options in JOBS:
        recorder.run("sbatch", "--chdir=/tmp", "--time=30", *options.split(), "--wrap=sleep 400")
    time.sleep(8)
    record(recorder, folder)
    record_limits(recorder, folder)
    private = "accounts,events,jobs,nodes,partitions,reservations,usage,users"
    on_ctld(name, f"echo PrivateData={private} >> {CONF}; scontrol reconfigure; sleep 3")
    write(folder / "assoc_mgr-private.txt", recorder, assoc_mgr("alice"))
    done = recorder.run("scontrol", "show", "node")
    (folder / "scontrol-nodes-private.txt").write_text(done.stderr, "utf-8")
    on_ctld(name, f"sed -i '/^PrivateData/d;/^Licenses/d' {CONF}; scontrol reconfigure")
    recorder.run("scancel", "--user=alice")


def record(recorder: Recorder, folder: Path) -> None:
    """Write what each release prints, whatever is set; srun's words once."""
    for what, argv in CAPABILITY_COMMANDS.items():
        if argv[0] == "scontrol":
            write(folder / f"scontrol-{what}.txt", recorder, argv)
        elif folder.name != "limits":
            write(folder / f"srun-{'help' if what == 'srun' else what}.txt", recorder, argv)
    write(folder / "assoc_mgr.txt", recorder, assoc_mgr("alice"))
    if folder.name != "limits":
        write(folder / "scontrol-topology.txt", recorder, SHOW_TOPOLOGY)


def record_limits(recorder: Recorder, folder: Path) -> None:
    reservations = ("scontrol", "--all", "--oneliner", "show", "reservation")
    write(folder / "scontrol-reservations.txt", recorder, reservations)
    for what, argv in associations.sacctmgr_commands("alice").items():
        write(folder / f"sacctmgr-{what}.txt", recorder, argv)
    write(folder / "sshare.txt", recorder, shares_command(everybody=False))
    write(folder / "sshare-all.txt", recorder, shares_command(everybody=True))
    write(folder / "sprio.txt", recorder, factors_command("alice", "\x1frecorded"))


def assoc_mgr(user: str) -> tuple[str, ...]:
    return ("scontrol", "show", "assoc_mgr", f"users={user}", "flags=users,assoc,qos")


def write(path: Path, recorder: Recorder, argv: tuple[str, ...]) -> None:
    done = recorder.run(*argv)
    if done.returncode:
        print(f"{path.name}: {done.stderr}", file=sys.stderr)
    path.write_text(done.stdout, "utf-8")


if __name__ == "__main__":
    main()
