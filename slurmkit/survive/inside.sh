# shellcheck shell=bash disable=SC2154
# Jobs that survive: this shell stays outside the work, and decides what becomes of the job when it
# ends. Signals only set marks; nothing is done in a trap. docs/survive.md says what it does.
# A trap that runs while bash still reads a script breaks its parser, so all of it is read first.
trap '' USR1 USR2 TERM ALRM
slurmkit_warned='' slurmkit_killed='' slurmkit_asked='' slurmkit_written='' slurmkit_code='' slurmkit_unsure=''
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
  trap : ALRM
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
# --- its own number on the shared home, and one that finds a later number stops itself.

slurmkit_is_stale() {
  local each
  for each in "$slurmkit_state"/lease.*; do
    [ "${each##*.}" -le "$slurmkit_run" ] 2>/dev/null || [ ! -e "$each" ] || return 0
  done
  return 1
}

slurmkit_pids() { # of the work on this node, also those that srun has lost sight of
  local each
  grep -lszxF "SLURMKIT_RUN=$slurmkit_id.$slurmkit_run" /proc/[0-9]*/environ |
    while read -r each; do
      grep -qszxF "SLURM_JOB_ID=$SLURM_JOB_ID" "$each" || continue # a job sent from it has the first
      each=${each#/proc/}
      echo "${each%/environ}"
    done
}

slurmkit_stop_all() {
  local each
  kill -s KILL -- "-$slurmkit_pid" 2>/dev/null
  for each in $(slurmkit_pids); do kill -s KILL "$each" 2>/dev/null; done
}

slurmkit_clear() { # srun may be over and its tasks not: it ends when it hears of a lost node
  local end
  slurmkit_now
  end=$((slurmkit_time + slurmkit_kill_wait))
  while [ -n "$(slurmkit_pids)" ]; do
    slurmkit_now
    if slurmkit_is_stale || [ "$slurmkit_time" -ge "$end" ]; then slurmkit_stop_all; fi
    slurmkit_rest
  done
}

slurmkit_watch() { # beside the work: renew the lease, and look whose turn it is
  trap - USR1 USR2 TERM ALRM
  local left=0
  while kill -0 "$$" 2>/dev/null; do
    if slurmkit_is_stale; then
      slurmkit_stop_all
      touch "$slurmkit_state/stopped.$slurmkit_run" 2>/dev/null
      kill -s ALRM "$$" 2>/dev/null
      return
    fi
    if [ "$left" -le 0 ]; then
      touch "$slurmkit_state/lease.$slurmkit_run" 2>/dev/null
      left=$slurmkit_beats
    fi
    left=$((left - 1))
    sleep "$slurmkit_tick"
    kill -s ALRM "$$" 2>/dev/null # so that no signal is overlooked that came just before a wait
  done
}

slurmkit_age() { # seconds for which a lease was not renewed, by the clock of the shared home
  local own old
  own=$(stat -c %Y "$slurmkit_state/lease.$slurmkit_run" 2>/dev/null) || return 1
  old=$(stat -c %Y "$1" 2>/dev/null) || return 1
  slurmkit_time=$((own - old))
}

slurmkit_await_turn() { # until no earlier run can still write
  local each number said=''
  for each in "$slurmkit_state"/lease.*; do
    number=${each##*.}
    [ "$number" -lt "$slurmkit_run" ] 2>/dev/null || continue
    until [ -e "$slurmkit_state/stopped.$number" ] || ! slurmkit_age "$each" ||
      [ "$slurmkit_time" -ge "$slurmkit_lease" ] || [ -n "$slurmkit_killed" ]; do
      [ -n "$said" ] || slurmkit_say "run $number may still be at work; waiting until it is not"
      said=1
      slurmkit_rest
      touch "$slurmkit_state/lease.$slurmkit_run" 2>/dev/null
    done
    [ -n "$slurmkit_killed" ] || rm -f "$each" "$slurmkit_state/stopped.$number"
  done
}

# --- What Slurm says of this job.

slurmkit_look() { # its facts; fails where slurmctld does not answer
  slurmkit_facts=$(scontrol -o show job "$slurmkit_id" 2>/dev/null) || return 1
  slurmkit_facts=${slurmkit_facts%%$'\n'*}
  [ -n "$slurmkit_facts" ]
}

slurmkit_fact() { # the value of a key in them
  [[ " $slurmkit_facts" =~ \ $1=([^\ ]*) ]] && slurmkit_value=${BASH_REMATCH[1]}
}

slurmkit_end_time() { # when Slurm means to end it: at its limit, or when the grace is over
  slurmkit_fact EndTime && slurmkit_value=$(date -d "$slurmkit_value" +%s 2>/dev/null)
}

slurmkit_is_preempted() {
  slurmkit_fact JobState && [ "$slurmkit_value" = PREEMPTED ] && return 0
  slurmkit_fact PreemptTime && case $slurmkit_value in None | Unknown | '(null)') false ;; esac
}

slurmkit_is_requeued() { # by Slurm or by somebody else: it is not running this run any more
  slurmkit_fact Restarts && [ "$slurmkit_value" -gt "$slurmkit_run" ] && return 0
  slurmkit_fact JobState && case $slurmkit_value in PENDING | REQUEUE*) ;; *) false ;; esac
}

slurmkit_outputs() { # where what it writes begins in the files of its output
  local at
  slurmkit_logs=("$(readlink "/proc/$$/fd/1")" "$(readlink "/proc/$$/fd/2")")
  slurmkit_logs+=("${slurmkit_logs[0]}.rank0")
  for at in 0 1 2; do slurmkit_sizes[at]=$(stat -c %s "${slurmkit_logs[at]}" 2>/dev/null); done
}

slurmkit_said() { # whether the end of this run's output has a pattern
  local at
  for at in 0 1 2; do
    [ -f "${slurmkit_logs[at]}" ] || continue
    tail -c "+$((${slurmkit_sizes[at]:-0} + 1))" "${slurmkit_logs[at]}" 2>/dev/null |
      tail -c 65536 | grep -aEq "$1" && return 0
  done
  return 1
}

slurmkit_is_out_of_memory() {
  local words='error: (Step|Job)Id=.* exceeded memory limit|[Oo][Oo][Mm]([ _-]?[Kk]ill)'
  slurmkit_said "(^|: )(slurmstepd[^ ]*|srun): .*($words|Out Of Memory)" && return 0
  timeout 20 sacct -nPj "$SLURM_JOB_ID" -o State 2>/dev/null | grep -q OUT_OF_ME
}

slurmkit_is_node_lost() {
  slurmkit_said '(^|: )srun: error: .*(Node failure on|[Ii]o error with slurmstepd|[Nn]ode.* died)' &&
    return 0
  sinfo -hN -n "$SLURM_JOB_NODELIST" -o %T 2>/dev/null | grep -Eiq 'down|fail|unk|\*'
}

slurmkit_why_ended() { # of work that nobody warned: sets slurmkit_reason
  local left=5
  slurmkit_reason=error
  [ "$slurmkit_code" != 0 ] || [ -n "$slurmkit_on_preempt" ] || return 0
  until slurmkit_look; do
    left=$((left - 1))
    if [ "$left" = 0 ]; then
      [ "$slurmkit_code" = 0 ] || slurmkit_say 'slurmctld does not say whether the job was preempted'
      break
    fi
    slurmkit_rest
  done
  if [ "$left" -gt 0 ] && slurmkit_fact JobState && [ "$slurmkit_value" != RUNNING ]; then
    slurmkit_killed=1 # its steps have heard of it first
    slurmkit_why_killed
  elif slurmkit_is_preempted; then
    slurmkit_reason=preempt
  elif [ "$slurmkit_code" = 0 ]; then
    [ "$left" -gt 0 ] || slurmkit_unsure=unsure
  elif slurmkit_is_out_of_memory; then
    slurmkit_reason=oom
  elif slurmkit_is_node_lost; then
    slurmkit_reason=node-fail
  fi
}

slurmkit_why_killed() { # of a run that Slurm ends: sets slurmkit_reason
  slurmkit_reason=cancelled
  if ! slurmkit_look; then
    slurmkit_reason=unknown
  elif slurmkit_is_preempted; then
    slurmkit_reason=preempt
  elif slurmkit_fact Reason && [ "$slurmkit_value" = TimeLimit ]; then
    slurmkit_reason=timeout
  elif slurmkit_is_requeued; then
    slurmkit_reason=requeued
  elif slurmkit_is_node_lost; then
    slurmkit_reason=node-fail
  fi
}

# --- Asking the work for a checkpoint.

slurmkit_ask() {
  slurmkit_reason=timeout
  if [ "$slurmkit_warned" = rehearsed ] || { slurmkit_look && slurmkit_is_preempted; }; then
    slurmkit_reason=preempt
  fi
  slurmkit_asked=$slurmkit_reason
  if { : >"$SLURMKIT_CHECKPOINT_FILE"; } 2>/dev/null; then
    slurmkit_written=1
  else
    slurmkit_say "cannot write $SLURMKIT_CHECKPOINT_FILE"
  fi
  slurmkit_note asked "$slurmkit_reason"
  slurmkit_say "$slurmkit_reason: the work is asked for a checkpoint, and has $slurmkit_grace s"
  slurmkit_told=' '
  slurmkit_now
  slurmkit_deadline=$((slurmkit_time + slurmkit_grace))
  slurmkit_end_time && [ $((slurmkit_value - slurmkit_margin)) -lt "$slurmkit_deadline" ] &&
    slurmkit_deadline=$((slurmkit_value - slurmkit_margin))
}

slurmkit_tell() { # the signal, once to each process of the work that catches it: none dies of it
  local each fields number mask key
  [ -n "$slurmkit_signal" ] || return 0
  number=$(kill -l "$slurmkit_signal")
  for each in /proc/[0-9]*; do
    { fields=$(<"$each/stat"); } 2>/dev/null || continue
    # shellcheck disable=SC2086 # state, parent, process group; no here-string, which needs a disk
    set -- ${fields##*) }
    [ "$3" = "$slurmkit_pid" ] || continue
    case $slurmkit_told in *" ${each#/proc/} "*) continue ;; esac
    while read -r key mask; do
      case $key in SigBlk: | SigCgt:) ;; *) continue ;; esac
      ((16#$mask >> (number - 1) & 1)) || continue
      kill -s "$slurmkit_signal" "${each#/proc/}" 2>/dev/null &&
        slurmkit_told="$slurmkit_told${each#/proc/} "
      break
    done 2>/dev/null <"$each/status"
  done
}

# --- Back to the queue.

slurmkit_scontrol() { # try until Slurm has taken it; fails where it refuses, or is away too long
  local pause=1 end at
  slurmkit_now
  end=$((slurmkit_time + slurmkit_patience))
  # Slurm's SIGTERM is for all of the batch step, and would end scontrol itself.
  until slurmkit_answer=$(trap '' TERM && exec scontrol "$@" 2>&1); do
    case $slurmkit_answer in
      *'is pending execution'* | *'already pending'*) return 0 ;;
      *disabled* | *denied* | *'Invalid user'* | *'Invalid job id'* | *'already complet'*) return 1 ;;
    esac
    if slurmkit_is_stale; then return 1; fi
    # A job that is requeued twice runs once more after its last run.
    case $1 in requeue*) if slurmkit_look && slurmkit_is_requeued; then return 0; fi ;; esac
    slurmkit_now
    [ "$slurmkit_time" -lt "$end" ] || return 1
    [ "$pause" -gt 1 ] || slurmkit_say "scontrol $1: $slurmkit_answer; trying again"
    for ((at = 0; at < pause; at++)); do [ -n "$slurmkit_killed" ] || slurmkit_rest; done
    [ -z "$slurmkit_killed" ] || slurmkit_rest # there is not much time left
    pause=$((pause < 16 ? pause * 2 : 16))
  done
}

slurmkit_more() { # twice the memory, up to what the job may ask for
  local now=${SLURM_MEM_PER_NODE:-${SLURM_MEM_PER_CPU:-0}} key=MinMemoryNode
  [ -n "${SLURM_MEM_PER_NODE:-}" ] || key=MinMemoryCPU
  slurmkit_memory=$((now * 2 < slurmkit_most ? now * 2 : slurmkit_most))
  slurmkit_update=$key=$slurmkit_memory
  [ "$now" -gt 0 ] && [ "$slurmkit_memory" -gt "$now" ]
}

slurmkit_go_back() { # why, and whether to requeue or to hold
  local how=requeue words="$1: back to the queue"
  if [ "$2" = hold ]; then how=requeuehold words="$1: held; slurmkit release $slurmkit_id lets it go on"; fi
  if [ "$2" = requeue ] && [ "$slurmkit_run" -ge "$slurmkit_restarts" ]; then
    slurmkit_end_noted "$1" limit "$1: not requeued, for it was $slurmkit_restarts times already"
    return 1
  fi
  slurmkit_update=''
  if [ "$1" = oom ] && [ "$2" = requeue ] && [ "$slurmkit_most" -gt 0 ]; then
    if ! slurmkit_more; then
      slurmkit_end_noted oom limit "oom: not requeued, for it had the most that it may ask for"
      return 1
    fi
    how=requeuehold # so it never starts with too little; released once it has more
  fi
  if ! slurmkit_scontrol "$how" "$slurmkit_id"; then
    slurmkit_end_noted "$1" refused "$1: could not be requeued: $slurmkit_answer"
    return 1
  fi
  slurmkit_gone=1
  if [ -n "$slurmkit_update" ]; then
    slurmkit_note end "oom hold ${slurmkit_code:--} oom: held, for it was too late to give it more memory"
    if slurmkit_scontrol update "JobId=$slurmkit_id" "$slurmkit_update" &&
      slurmkit_scontrol release "$slurmkit_id"; then
      words="oom: back to the queue, with $slurmkit_memory MiB (${slurmkit_update%=*})"
    else
      set -- oom hold
      words="oom: held, for it could not be given more memory: $slurmkit_answer"
    fi
  fi
  [ "$2" = hold ] || slurmkit_back_off
  slurmkit_end_noted "$1" "$2" "$words"
}

slurmkit_back_off() { # a run that was short waits the longer, the more there were
  local at=$((slurmkit_run < 6 ? slurmkit_run : 6))
  slurmkit_now
  [ "$slurmkit_delay" -gt 0 ] && [ $((slurmkit_time - slurmkit_began)) -lt "$slurmkit_short" ] ||
    return 0
  scontrol update "JobId=$slurmkit_id" "StartTime=now+$((slurmkit_delay << at))" >/dev/null 2>&1 ||
    slurmkit_say 'its next start could not be put off'
}

# --- The course of one run.

slurmkit_over() {
  ! kill -0 "$slurmkit_pid" 2>/dev/null
}

slurmkit_policy() { # sets slurmkit_action to what is wanted at an ending
  case $1 in
    timeout) slurmkit_action=$slurmkit_on_timeout ;;
    preempt) slurmkit_action=$slurmkit_on_preempt ;;
    node-fail) slurmkit_action=$slurmkit_on_node_fail ;;
    oom) slurmkit_action=$slurmkit_on_oom ;;
    *) slurmkit_action='' ;;
  esac
}

slurmkit_before() { # why the run before this one ended, and what came of it
  local run what words
  slurmkit_reason='' slurmkit_action=''
  while IFS=$'\t' read -r run _ what words; do
    if [ "$run" != $((slurmkit_run - 1)) ] || [ "$what" != end ]; then continue; fi
    slurmkit_reason=${words%% *} words=${words#* }
    slurmkit_action=${words%% *}
  done 2>/dev/null <"$slurmkit_state/history"
  case $slurmkit_reason in '' | requeued | unknown | done) ;; *) return 0 ;; esac
  slurmkit_sure=$slurmkit_action slurmkit_action=slurm # for a reason that slurmdbd alone knows
  case $slurmkit_reason:$(timeout 20 sacct -nPDXj "$SLURM_JOB_ID" -o State 2>/dev/null |
    tail -n 2 | head -n 1) in
    done:PREEMPTED*) [ "$slurmkit_sure" = - ] && slurmkit_action=again ;;
    done:*) slurmkit_action='' ;;
    *:NODE_FAIL*) slurmkit_reason=node-fail ;;
    *:PREEMPTED*) slurmkit_reason=preempt ;;
    *:REQUEUED*) slurmkit_reason=requeued ;;
    *) slurmkit_reason=${slurmkit_reason:-unknown} ;;
  esac
}

slurmkit_begin() { # fails where this run is not to be
  local lost=''
  [ "$slurmkit_run" != 0 ] || rm -rf "$slurmkit_state" # of an older job of this number
  mkdir -p "$slurmkit_state" 2>/dev/null && chmod 700 "$slurmkit_state" 2>/dev/null &&
    touch "$slurmkit_state/lease.$slurmkit_run" 2>/dev/null || lost=1
  [ -z "$lost" ] || slurmkit_say "cannot write $slurmkit_state: there is no history, nor a guard against stale runs"
  rm -f "$SLURMKIT_CHECKPOINT_FILE"
  slurmkit_outputs
  slurmkit_say "run $slurmkit_run of job $slurmkit_id begins on $SLURM_JOB_NODELIST"
  slurmkit_now
  slurmkit_began=$slurmkit_time
  slurmkit_note begin "$SLURM_JOB_NODELIST"
  [ "$slurmkit_run" -gt 0 ] || return 0
  slurmkit_before
  SLURMKIT_RESTART_REASON=$slurmkit_reason
  slurmkit_note after "$slurmkit_reason"
  slurmkit_may_begin || return 1
  slurmkit_await_turn
}

slurmkit_may_begin() { # what Slurm requeued by itself may not be wanted
  local reason=$slurmkit_reason
  if [ "$slurmkit_run" -gt "$slurmkit_restarts" ]; then
    slurmkit_end_noted "$reason" limit "not run again, for it was $slurmkit_restarts times already"
    return 1
  fi
  if [ "$slurmkit_action" = again ]; then # Slurm 24.11 remembers a grace for too long
    slurmkit_code=0
    slurmkit_end_noted 'done' - 'the work was done before; Slurm ran the job again for an old preemption'
    return 1
  fi
  [ "$slurmkit_action" = slurm ] || return 0
  slurmkit_policy "${reason/unknown/node-fail}"
  case $slurmkit_action in
    fail) slurmkit_end_noted "$reason" fail "$reason: not run again (--on-$reason fail)" ;;
    hold) slurmkit_go_back "$reason" hold && slurmkit_leave ;;
    *) return 0 ;;
  esac
  return 1
}

slurmkit_leave() { # Slurm now ends this run
  local end
  slurmkit_now
  end=$((slurmkit_time + slurmkit_kill_wait + 30))
  until [ -n "$slurmkit_killed" ] && { [ -z "$slurmkit_pid" ] || slurmkit_over; }; do
    slurmkit_now
    [ "$slurmkit_time" -lt "$end" ] || break
    slurmkit_rest
  done
}

slurmkit_await_kill() { # Slurm requeues a preempted job when its grace is over
  slurmkit_say 'preempt: Slurm puts the job back in the queue'
  slurmkit_now
  slurmkit_look && slurmkit_end_time || slurmkit_value=$slurmkit_time
  until [ -n "$slurmkit_killed" ]; do
    slurmkit_now
    [ "$slurmkit_time" -lt $((slurmkit_value + slurmkit_slack)) ] || return 1
    slurmkit_rest
  done
  return 0
}

slurmkit_is_finished() { # a run that was asked, and ends well: because it was, or because it is done?
  [ "$slurmkit_code" = 0 ] || return 1
  [ "$slurmkit_reason" != error ] || return 0
  [ -n "$slurmkit_asked" ] || return 1 # the step heard the SIGTERM of a preemption
  [ -z "$slurmkit_signal" ] || { [ -n "$slurmkit_written" ] && [ ! -e "$SLURMKIT_CHECKPOINT_FILE" ]; }
}

slurmkit_settle() { # the work is over, or Slurm ends it
  [ -n "$slurmkit_asked" ] ||
    if [ -n "$slurmkit_killed" ]; then slurmkit_why_killed; else slurmkit_why_ended; fi
  if slurmkit_is_finished; then
    slurmkit_note end "done ${slurmkit_unsure:--} 0 the work is done"
  elif slurmkit_is_left; then
    slurmkit_end_noted "$slurmkit_reason" slurm "$slurmkit_reason: left to Slurm"
  elif [ "$slurmkit_reason" = error ]; then
    slurmkit_note end "error fail $slurmkit_code the command failed"
  else
    slurmkit_back || [ -n "$slurmkit_refused" ] ||
      slurmkit_end_noted "$slurmkit_reason" fail "$slurmkit_reason: not requeued"
  fi
}

slurmkit_is_left() { # whether Slurm puts it back, or not, by itself
  case $slurmkit_reason in
    requeued | unknown) return 0 ;;
    node-fail) [ -n "$slurmkit_killed" ] ;;
    preempt) [ "$slurmkit_preempt" = requeue ] && [ "$slurmkit_warned" != rehearsed ] &&
      { [ -n "$slurmkit_killed" ] || slurmkit_await_kill; } ;;
    *) return 1 ;;
  esac
}

slurmkit_back() { # as the policy says; fails where it stays as it is
  slurmkit_policy "$slurmkit_reason"
  case $slurmkit_refused$slurmkit_action in
    requeue | hold) slurmkit_go_back "$slurmkit_reason" "$slurmkit_action" && return 0 ;;
    *) return 1 ;;
  esac
  slurmkit_refused=1
  return 1
}

slurmkit_await() { # until the work is over, Slurm ends it, or a mark of that name is set
  local mark=${1:-slurmkit_killed}
  until slurmkit_over || [ -n "$slurmkit_killed${!mark}" ]; do wait "$slurmkit_pid"; done
}

slurmkit_give_grace() { # to work that is asked; what has not ended then goes back as it is
  slurmkit_ask
  until slurmkit_over || [ -n "$slurmkit_killed" ] || [ "$slurmkit_time" -ge "$slurmkit_deadline" ]; do
    slurmkit_tell
    slurmkit_rest
    slurmkit_now
  done
  slurmkit_over || [ -n "$slurmkit_killed" ] && return 0
  if [ "$slurmkit_reason" = preempt ] && [ "$slurmkit_preempt" = requeue ] &&
    [ "$slurmkit_warned" != rehearsed ]; then
    slurmkit_await # Slurm does it
  else
    slurmkit_back || slurmkit_await
  fi
}

slurmkit_survive() { # run slurmkit_work; ends with its exit code
  local watcher
  slurmkit_pid='' slurmkit_gone='' slurmkit_refused=''
  slurmkit_begin || return "${slurmkit_code:-1}"
  set -m # process groups of their own
  (export SLURMKIT_RUN="$slurmkit_id.$slurmkit_run" && slurmkit_work) &
  slurmkit_pid=$!
  slurmkit_watch &
  watcher=$!
  set +m
  slurmkit_await slurmkit_warned
  if [ -z "$slurmkit_killed" ] && ! slurmkit_over; then slurmkit_give_grace; fi
  if slurmkit_over; then
    wait "$slurmkit_pid"
    slurmkit_code=$?
  fi
  if slurmkit_is_stale; then
    slurmkit_end_noted stale stopped 'a later run has begun: this one has stopped'
  elif [ -z "$slurmkit_gone" ]; then
    slurmkit_settle
  fi
  [ -z "$slurmkit_gone$slurmkit_killed" ] || slurmkit_leave
  kill -- "-$watcher" 2>/dev/null
  if [ "$slurmkit_reason:$slurmkit_code" != error:0 ] && slurmkit_over; then
    slurmkit_clear
    touch "$slurmkit_state/stopped.$slurmkit_run" 2>/dev/null
  fi
  return "${slurmkit_code:-1}"
}
