# shellcheck shell=bash disable=SC2154,SC2034,SC2006
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
    checkpoint) slurmkit_action=${slurmkit_on_timeout:-$slurmkit_on_preempt} ;;
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
  case $slurmkit_reason:`timeout 20 sacct -nPDXj "$slurmkit_id" -o State 2>/dev/null |
    tail -n 2 | head -n 1` in
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
    slurmkit_renew || lost=1
  [ -z "$lost" ] || slurmkit_say "cannot write $slurmkit_state: there is no history, nor a guard against stale runs"
  rm -f "$SLURMKIT_CHECKPOINT_FILE"
  slurmkit_outputs
  slurmkit_oom_kills && slurmkit_ooms=$slurmkit_value
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
    slurmkit_back && return
    [ -n "$slurmkit_refused" ] ||
      slurmkit_end_noted "$slurmkit_reason" fail "$slurmkit_reason: not requeued"
    if [ "$slurmkit_code" = 0 ] && [ -n "$slurmkit_action" ]; then
      slurmkit_code=75 # EX_TEMPFAIL, or Slurm would take what has stopped for done
      slurmkit_say 'it ended well after it was asked for a checkpoint: not taken for done, exit code 75'
    fi
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

# Until the work is over, Slurm ends it, or a mark of that name is set. It is not waited for itself:
# bash loses the exit code of what ends in the moment in which a signal ends its wait.
slurmkit_await() {
  local mark=${1:-slurmkit_killed}
  until slurmkit_over || [ -n "$slurmkit_killed${!mark}" ]; do slurmkit_rest; done
}

slurmkit_collect() { # the exit code of work that is over; without another child no wait lasts
  trap '' USR1 USR2 TERM ALRM
  [ -z "$slurmkit_stopped" ] || slurmkit_stop_all # the watcher may not be through
  kill -- "-$1" 2>/dev/null
  wait "$1" 2>/dev/null
  wait "$slurmkit_pid"
  slurmkit_code=$?
  slurmkit_listen
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

slurmkit_goes_on() { # for Slurm: the SIGTERM was for this shell alone, by `scancel --batch`
  slurmkit_look && [ "$slurmkit_job_state" = RUNNING ] && [ "$slurmkit_job_reason" != TimeLimit ] &&
    ! slurmkit_is_preempted && ! slurmkit_is_requeued
}

slurmkit_end_work() { # as without this shell, where the script itself would end
  local each
  slurmkit_say 'SIGTERM came to the batch shell: the work is ended'
  for each in `slurmkit_processes`; do kill -s TERM "$each" 2>/dev/null; done
  slurmkit_now
  slurmkit_value=$((slurmkit_time + slurmkit_kill_wait))
  until slurmkit_over; do
    slurmkit_now
    [ "$slurmkit_time" -lt "$slurmkit_value" ] || slurmkit_stop_all
    slurmkit_rest
  done
}

slurmkit_survive() { # run slurmkit_work; ends with its exit code
  slurmkit_pid='' slurmkit_gone='' slurmkit_refused=''
  slurmkit_begin || return "${slurmkit_code:-1}"
  [ -z "$slurmkit_killed" ] || slurmkit_work() { return 75; } # the run before may still be at work
  set -m # process groups of their own
  (export SLURMKIT_RUN="$slurmkit_state.$slurmkit_run" && slurmkit_work) &
  slurmkit_pid=$!
  slurmkit_watch &
  slurmkit_watcher=$!
  set +m
  slurmkit_await slurmkit_warned
  if [ -z "$slurmkit_killed" ] && ! slurmkit_over; then slurmkit_give_grace; fi
  if [ -n "$slurmkit_killed" ] && ! slurmkit_over && slurmkit_goes_on; then slurmkit_end_work; fi
  if slurmkit_over; then slurmkit_collect "$slurmkit_watcher"; fi
  if slurmkit_is_stale; then
    slurmkit_end_noted stale stopped 'a later run has begun: this one has stopped'
  elif [ -z "$slurmkit_gone" ]; then
    slurmkit_settle
  fi
  [ -z "$slurmkit_gone$slurmkit_killed" ] || slurmkit_leave
  [ -n "$slurmkit_code" ] || kill -- "-$slurmkit_watcher" 2>/dev/null
  if [ "$slurmkit_reason:$slurmkit_code" != error:0 ] && slurmkit_over; then
    slurmkit_clear
    touch "$slurmkit_state/stopped.$slurmkit_run" 2>/dev/null
  fi
  return "${slurmkit_code:-1}"
}
