# shellcheck shell=bash disable=SC2154,SC2034,SC2006
# Jobs that survive: this shell stays outside the work, and decides what becomes of the job when it
# ends. Signals only set marks; nothing is done in a trap. docs/survive.md says what it does.
# A trap that runs while bash still reads a script breaks its parser, so all of it is read first.
# Up to 5.2 bash also reads $(...) again when it runs it, and a signal may be lost meanwhile (its
# trap.c, mended in 5.3), hence the backticks.
trap '' USR1 USR2 TERM ALRM
slurmkit_warned='' slurmkit_killed='' slurmkit_asked='' slurmkit_written='' slurmkit_code='' slurmkit_unsure=''
slurmkit_stopped='' slurmkit_renewed='' slurmkit_within=0
slurmkit_cgroups=/sys/fs/cgroup
slurmkit_id=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_JOB_ID:-}" ] || slurmkit_id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
slurmkit_run=${SLURM_RESTART_COUNT:-0}
slurmkit_state=${XDG_STATE_HOME:-${HOME:-}/.local/state}/slurmkit/runs
slurmkit_state=$slurmkit_state/${SLURM_CLUSTER_NAME:-cluster}/$slurmkit_id
export SLURMKIT_RESTART=$slurmkit_run SLURMKIT_RESTART_REASON=''
export SLURMKIT_CHECKPOINT_FILE=$slurmkit_state/checkpoint

slurmkit_listen() {
  trap 'slurmkit_warned=${slurmkit_warned:-slurm}' USR1
  trap 'slurmkit_warned=rehearsed' USR2
  trap 'slurmkit_killed=1' TERM
  trap 'slurmkit_stopped=1' ALRM
}

slurmkit_say() {
  echo "slurmkit: $*" >&2 || :
}

slurmkit_now() {
  printf -v slurmkit_time '%(%s)T' -1
}

slurmkit_rest() { # a while, which a signal ends
  (trap '' TERM && exec sleep "$slurmkit_pause") & # or bash tells of its end
  wait "$!"
}

# The history: a line for the beginning and the end of each run. A full disk keeps nobody from
# being requeued.
slurmkit_note() {
  local words=$*
  slurmkit_now
  { printf '%s\t%s\t%s\t%s\n' "$slurmkit_run" "$slurmkit_time" "$1" "${words#"$1" }" \
    >>"$slurmkit_state/history"; } 2>/dev/null || :
}

slurmkit_end_noted() { # why this run ends, what comes of it, and in words
  slurmkit_note end "$1 $2 ${slurmkit_code:--} $3"
  slurmkit_say "$3"
}

# --- Whose turn it is. Slurm does not stop what runs on a node that it lost: each run has a file of
# --- its own number on the shared home, and one that finds a later number stops itself. One that
# --- reaches neither the home nor slurmctld for long cannot know, and pauses until it does.

slurmkit_soon() { # a command that may hang where a filesystem is away
  timeout --foreground -s KILL 5 "$@"
}

slurmkit_is_stale() {
  local each
  for each in `slurmkit_soon ls "$slurmkit_state" 2>/dev/null`; do
    case $each in lease.*) ;; *) continue ;; esac
    [ "${each#lease.}" -gt "$slurmkit_run" ] 2>/dev/null && return 0
  done
  return 1
}

slurmkit_renew() { # the lease; a home that refuses is one that is there
  local said
  slurmkit_now
  if ! said=`LC_ALL=C slurmkit_soon touch "$slurmkit_state/lease.$slurmkit_run" 2>&1`; then
    [ -n "$slurmkit_renewed" ] || return 1 # there is none
    case $said in
      *': Permission denied' | *': Operation not permitted' | *': Disk quota exceeded' | \
        *': No space left on device' | *'Key has expired' | *'key not available') ;;
      *) return 1 ;;
    esac
  fi
  slurmkit_renewed=$slurmkit_time
}

slurmkit_whose() { # sets slurmkit_turn: mine, over where a later run is to be, or unknown
  local age
  slurmkit_turn=mine
  if slurmkit_is_stale; then
    slurmkit_turn=over
    return
  fi
  [ -n "$slurmkit_renewed" ] && [ "$slurmkit_on_node_fail" != fail ] || return 0 # nothing runs then
  slurmkit_now
  age=$((slurmkit_time - slurmkit_renewed))
  [ "$age" -ge $((slurmkit_fence / 2)) ] || return 0
  if slurmkit_look; then
    if slurmkit_is_requeued; then slurmkit_turn=over; else slurmkit_renewed=$slurmkit_time; fi
    return 0
  fi
  slurmkit_now
  [ $((slurmkit_time - slurmkit_renewed)) -lt "$slurmkit_fence" ] || slurmkit_turn=unknown
}

slurmkit_pids() { # of the work on this node, also those that srun has lost sight of
  local each
  grep -lszxF "SLURMKIT_RUN=$slurmkit_state.$slurmkit_run" /proc/[0-9]*/environ |
    while read -r each; do
      grep -qszxF "SLURM_JOB_ID=$SLURM_JOB_ID" "$each" || continue # a job sent from it has the first
      each=${each#/proc/}
      echo "${each%/environ}"
    done
}

slurmkit_stop_all() {
  slurmkit_send_all KILL
}

slurmkit_send_all() {
  local each
  kill -s "$1" -- "-$slurmkit_pid" 2>/dev/null
  for each in `slurmkit_pids`; do kill -s "$1" "$each" 2>/dev/null; done
}

slurmkit_clear() { # srun may be over and its tasks not: it ends when it hears of a lost node
  local end
  slurmkit_now
  end=$((slurmkit_time + slurmkit_kill_wait))
  while [ -n "`slurmkit_pids`" ]; do
    slurmkit_now
    if slurmkit_is_stale || [ "$slurmkit_time" -ge "$end" ]; then slurmkit_stop_all; fi
    slurmkit_rest
  done
}

slurmkit_watch() { # beside the work: renew the lease, and look whose turn it is
  trap - USR1 USR2 TERM ALRM
  local left=0 slurmkit_within=10 slurmkit_turn paused=''
  while kill -0 "$$" 2>/dev/null; do
    if [ "$left" -le 0 ] && slurmkit_renew; then left=$slurmkit_beats; fi
    left=$((left - 1))
    slurmkit_whose
    case $slurmkit_turn$paused in
      over*)
        kill -s ALRM "$$" 2>/dev/null
        slurmkit_stop_all
        slurmkit_soon touch "$slurmkit_state/stopped.$slurmkit_run" 2>/dev/null
        return
        ;;
      unknown)
        paused=paused
        slurmkit_say 'paused: neither its home nor slurmctld is there, so it may run elsewhere'
        slurmkit_send_all STOP
        ;;
      minepaused)
        paused=''
        slurmkit_say 'it goes on'
        slurmkit_send_all CONT
        ;;
    esac
    sleep "$slurmkit_tick"
  done
}

slurmkit_age() { # seconds for which a lease was not renewed, by the clock of the shared home
  local own old
  if own=`stat -c %Y "$slurmkit_state/lease.$slurmkit_run" 2>/dev/null` &&
    old=`stat -c %Y "$1" 2>/dev/null`; then
    slurmkit_time=$((own - old))
  else # or where that cannot be read, for which this run has waited
    slurmkit_now
    slurmkit_time=$((slurmkit_time - slurmkit_began))
  fi
}

slurmkit_await_turn() { # until no earlier run can still write
  local each number said=''
  for each in "$slurmkit_state"/lease.*; do
    number=${each##*.}
    [ "$number" -lt "$slurmkit_run" ] 2>/dev/null || continue
    until [ -e "$slurmkit_state/stopped.$number" ] || [ -n "$slurmkit_killed" ] ||
      { slurmkit_age "$each" && [ "$slurmkit_time" -ge "$slurmkit_lease" ]; }; do
      [ -n "$said" ] || slurmkit_say "run $number may still be at work; waiting until it is not"
      said=1
      slurmkit_rest
      slurmkit_renew
    done
    [ -n "$slurmkit_killed" ] || rm -f "$each" "$slurmkit_state/stopped.$number"
  done
}
