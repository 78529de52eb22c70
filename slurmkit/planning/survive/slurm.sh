# shellcheck shell=bash disable=SC2154,SC2034,SC2006
# --- What Slurm says of this job.

slurmkit_look() { # its facts; fails where slurmctld does not answer
  # Text of the user's, as the job's name, is not asked for. A user's SQUEUE_* would choose jobs.
  local lines fact='\|([^|]*)'
  slurmkit_job_state='' slurmkit_job_restarts=0 slurmkit_job_end='' slurmkit_job_preempted=''
  slurmkit_job_reason=''
  lines=`unset "${!SQUEUE_@}" && SLURM_TIME_FORMAT=standard \
    timeout --foreground -s KILL "$slurmkit_within" squeue -h -t all -j "$slurmkit_id" \
    -O 'JobID:|,State:|,RestartCnt:|,EndTime:|,PreemptTime:|,Reason:|' 2>/dev/null` || return 1
  # A het job has a line for each component; this shell runs in the first.
  [[ $'\n'$lines =~ $'\n'$SLURM_JOB_ID$fact$fact$fact$fact$fact'|' ]] || return 1
  slurmkit_job_state=${BASH_REMATCH[1]} slurmkit_job_restarts=${BASH_REMATCH[2]}
  slurmkit_job_end=${BASH_REMATCH[3]} slurmkit_job_preempted=${BASH_REMATCH[4]}
  slurmkit_job_reason=${BASH_REMATCH[5]}
}

slurmkit_end_time() { # when Slurm means to end it: at its limit, or when the grace is over
  [ -n "$slurmkit_job_end" ] || return 1
  slurmkit_value=`date -d "$slurmkit_job_end" +%s 2>/dev/null` || return 1
  slurmkit_now
  [ "$slurmkit_value" -gt "$slurmkit_time" ] # or it was not understood
}

slurmkit_is_preempted() {
  case $slurmkit_job_state:$slurmkit_job_preempted in
    PREEMPTED:*) ;;
    *: | *:N/A | *:NOT_SET | *:UNLIMITED) return 1 ;;
  esac
}

slurmkit_is_requeued() { # by Slurm or by somebody else: it is not running this run any more
  [ "$slurmkit_job_restarts" -gt "$slurmkit_run" ] && return 0
  case $slurmkit_job_state in PENDING | REQUEUE*) ;; *) false ;; esac
}

slurmkit_outputs() { # where what it writes begins in the files of its output
  local at
  for at in 0 1; do slurmkit_logs[at]=`readlink "/proc/$$/fd/$((at + 1))"`; done
  slurmkit_logs+=("${slurmkit_logs[0]}.rank0")
  for at in 0 1 2; do slurmkit_sizes[at]=`stat -c %s "${slurmkit_logs[at]}" 2>/dev/null`; done
}

slurmkit_said() { # whether the end of this run's output has a pattern, other than of another job
  local at id='(StepId=|JobId=|[Ss]tep )'
  for at in 0 1 2; do
    [ -f "${slurmkit_logs[at]}" ] || continue
    tail -c "+$((${slurmkit_sizes[at]:-0} + 1))" "${slurmkit_logs[at]}" 2>/dev/null |
      tail -c 65536 | sed -E "s/$id($SLURM_JOB_ID|$slurmkit_id)([^0-9_]|\$)/its own\3/g" |
      grep -aEv "${id}[0-9]" | grep -aEq "$1" && return 0
  done
  return 1
}

slurmkit_oom_kills() { # how many processes in the batch step's cgroup were killed for memory, if known
  local key at file
  slurmkit_value=''
  while IFS=: read -r _ key at; do
    case $key in
      '') file=$slurmkit_cgroups$at/memory.events ;;
      memory) file=$slurmkit_cgroups/memory$at/memory.oom_control ;;
      *) continue ;;
    esac
    while read -r key at; do
      [ "$key" != oom_kill ] || slurmkit_value=$at
    done 2>/dev/null <"$file"
  done 2>/dev/null </proc/self/cgroup
  [ -n "$slurmkit_value" ]
}

slurmkit_is_out_of_memory() {
  local words='error: its own.* exceeded memory limit|[Oo][Oo][Mm]([ _-]?[Kk]ill)'
  # Of the batch step itself slurmstepd tells when this shell is over.
  slurmkit_oom_kills && [ "$slurmkit_value" -gt "${slurmkit_ooms:-$slurmkit_value}" ] && return 0
  # slurmstepd's lines begin with its name, since 26.05 with the time in brackets.
  slurmkit_said "(^|: )((slurmstepd[^ ]*|srun):|\[[-0-9T:.]+\]) .*($words|Out Of Memory)" && return 0
  timeout 20 sacct -nPj "$slurmkit_id" -o State 2>/dev/null | grep -q OUT_OF_ME
}

slurmkit_is_node_lost() {
  slurmkit_said '(^|: )srun: error: .*(Node failure on|[Ii]o error with slurmstepd|[Nn]ode.* died)' &&
    return 0
  (unset "${!SINFO_@}" && exec sinfo -hN -n "$SLURM_JOB_NODELIST" -o %T 2>/dev/null) | grep -Eiq 'down|fail|unk|\*'
}

slurmkit_why_ended() { # of work that nobody warned: sets slurmkit_reason
  local left=5
  slurmkit_reason=error
  if [ -n "$slurmkit_stopped" ]; then
    slurmkit_say 'stopped, for the job runs elsewhere'
    slurmkit_reason=node-fail
    slurmkit_on_node_fail=${slurmkit_on_node_fail:-requeue} # as Slurm did with a lost node
    return
  fi
  [ "$slurmkit_code" != 0 ] || [ -n "$slurmkit_on_preempt" ] || return 0
  until slurmkit_look; do
    left=$((left - 1))
    if [ "$left" = 0 ]; then
      [ "$slurmkit_code" = 0 ] || slurmkit_say 'slurmctld does not say whether the job was preempted'
      break
    fi
    slurmkit_rest
  done
  if [ "$left" -gt 0 ] && [ "$slurmkit_job_state" != RUNNING ]; then
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
  elif [ "$slurmkit_code" = 75 ]; then # EX_TEMPFAIL: somebody sent it the signal, with scancel
    slurmkit_policy checkpoint
    case $slurmkit_action in requeue | hold) slurmkit_reason=checkpoint ;; esac
  fi
}

slurmkit_why_killed() { # of a run that Slurm ends: sets slurmkit_reason
  slurmkit_reason=cancelled
  if ! slurmkit_look; then
    slurmkit_reason=unknown
  elif slurmkit_is_preempted; then
    slurmkit_reason=preempt
  elif [ "$slurmkit_job_reason" = TimeLimit ]; then
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

slurmkit_processes() { # of the work on this node, but for the tasks of srun
  local each fields own session
  { fields=`<"/proc/$$/stat"`; } 2>/dev/null || return 0
  # shellcheck disable=SC2086 # state, parent, process group, session; no here-string, which needs a disk
  set -- ${fields##*) }
  own=$3 session=$4
  for each in /proc/[0-9]*; do
    { fields=`<"$each/stat"`; } 2>/dev/null || continue
    # shellcheck disable=SC2086 # likewise
    set -- ${fields##*) }
    # Work may make process groups of its own, as timeout does.
    case $4:$3 in
      "$session:$own" | "$session:$slurmkit_watcher") ;;
      "$session":*) echo "${each#/proc/}" ;;
    esac
  done
}

slurmkit_catches() { # whether a process catches a signal of that number, or keeps it for later
  local key mask
  while read -r key mask; do
    case $key in SigBlk: | SigCgt:) ;; *) continue ;; esac
    ((16#$mask >> ($2 - 1) & 1)) && return 0
  done 2>/dev/null <"/proc/$1/status"
  return 1
}

slurmkit_tell() { # the signal, once to each process of the work that catches it: none dies of it
  local each number catching=''
  [ -n "$slurmkit_signal" ] || return 0
  number=`kill -l "$slurmkit_signal"`
  for each in `slurmkit_processes`; do
    case $slurmkit_told in *" $each "*) continue ;; esac
    slurmkit_catches "$each" "$number" && catching="$catching $each"
  done
  [ -n "$catching" ] || return 0
  # What was just forked has its parent's handlers until it begins, and would die of it then.
  sleep 0.2
  for each in $catching; do
    slurmkit_catches "$each" "$number" && kill -s "$slurmkit_signal" "$each" 2>/dev/null &&
      slurmkit_told="$slurmkit_told$each "
  done
}

# --- Back to the queue.

slurmkit_scontrol() { # try until Slurm has taken it; fails where it refuses, or is away too long
  local pause=1 end at
  slurmkit_now
  end=$((slurmkit_time + slurmkit_patience))
  if slurmkit_is_elsewhere "$1"; then return 0; fi
  # Slurm's SIGTERM is for all of the batch step, and would end scontrol itself.
  until slurmkit_answer=`trap '' TERM && exec scontrol "$@" 2>&1`; do
    case $slurmkit_answer in
      *'is pending execution'* | *'already pending'*) return 0 ;;
      *disabled* | *denied* | *'Invalid user'* | *'Invalid job id'* | *'already complet'*) return 1 ;;
    esac
    slurmkit_now
    [ "$slurmkit_time" -lt "$end" ] || return 1
    [ "$pause" -gt 1 ] || slurmkit_say "scontrol $1: $slurmkit_answer; trying again"
    for ((at = 0; at < pause; at++)); do [ -n "$slurmkit_killed" ] || slurmkit_rest; done
    [ -z "$slurmkit_killed" ] || slurmkit_rest # there is not much time left
    pause=$((pause < 16 ? pause * 2 : 16))
    if slurmkit_is_stale; then return 1; fi
    if slurmkit_is_elsewhere "$1"; then return 0; fi
  done
}

slurmkit_is_elsewhere() { # whether a requeue was before: one more would end a later run
  case $1 in requeue*) slurmkit_look && slurmkit_is_requeued ;; *) return 1 ;; esac
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
  local try at=$((slurmkit_run < 6 ? slurmkit_run : 6))
  slurmkit_now
  [ "$slurmkit_delay" -gt 0 ] && [ $((slurmkit_time - slurmkit_began)) -lt "$slurmkit_short" ] ||
    return 0
  for try in 1 2; do # what is forked may die of the requeue's SIGTERM before it ignores that
    slurmkit_answer=`trap '' TERM &&
      exec scontrol update "JobId=$slurmkit_id" "StartTime=now+$((slurmkit_delay << at))" 2>&1` && return
    [ $? = 143 ] || break
  done
  slurmkit_say "its next start could not be put off: ${slurmkit_answer:-Slurm ended this run first}"
}
