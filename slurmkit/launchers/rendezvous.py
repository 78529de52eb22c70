"""Where the tasks of a job meet: shell lines that the batch shell, on the first node, runs.

The port is checked by binding it where a Python runs, else by the kernel's list of listeners.
It depends on the job and its restart, so that jobs that start together on one node try different
ones first.
"""

from __future__ import annotations

_TEXT = r"""
# Where the tasks meet: this node, the job's first, and a TCP port of it that is free, beyond
# those that the kernel gives to anybody (ip_local_port_range).
slurmkit_bind='import socket, sys; socket.create_server(("", int(sys.argv[1])))'
python3 -IS -c 'import socket' 2>/dev/null || slurmkit_bind=
slurmkit_port_is_free() {
  if [ "$slurmkit_bind" ]; then
    python3 -IS -c "$slurmkit_bind" "$1" 2>/dev/null
  else
    ! grep -qsi ":$(printf %04X "$1") [0-9A-F]*:0000 0A" /proc/net/tcp /proc/net/tcp6
  fi
}
read -r slurmkit_low slurmkit_high </proc/sys/net/ipv4/ip_local_port_range
slurmkit_first=$((slurmkit_high + 1)) slurmkit_count=$((65535 - slurmkit_high))
if ((slurmkit_count < 1000)); then
  slurmkit_first=$((slurmkit_low > 12000 ? slurmkit_low - 2000 : 20000)) slurmkit_count=2000
fi
slurmkit_start=$((SLURM_JOB_ID + 7 * ${SLURM_RESTART_COUNT:-0}))
for ((slurmkit_try = 0; slurmkit_try < 200; slurmkit_try++)); do
  MASTER_PORT=$((slurmkit_first + (slurmkit_start + slurmkit_try) % slurmkit_count))
  slurmkit_port_is_free "$MASTER_PORT" && break
done
if ((slurmkit_try == 200)); then
  echo "slurmkit: none of 200 ports up to $MASTER_PORT of $HOSTNAME is free" >&2
  exit 1
fi
MASTER_ADDR=$HOSTNAME
export MASTER_ADDR MASTER_PORT
"""
LINES = tuple(_TEXT.strip().split("\n"))
"""They export MASTER_ADDR, a host name, and MASTER_PORT."""

ID = '"$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"'
"""Of a rendezvous, as a shell word: a run that was requeued never meets what is left of one."""
