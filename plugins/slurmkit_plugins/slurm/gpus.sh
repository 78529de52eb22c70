# What prolog and epilog share: the node's GPU devices, who holds them, and the records in
# /run/slurmkit/gpus/INDEX/JOBID (job, user, uid, partition and start, one NAME=VALUE a line).
# shellcheck shell=bash disable=SC2034 # its variables are the scripts'
#
# Only processes that hold the job's own GPUs are looked at, all in one pass: a job must not wait
# longer because somebody has thousands of processes. Where the settings do not name each GPU's
# device file, these are the processes on any GPU.
# A process is a job's when its environment names it (SLURM_JOB_ID), whoever its parent is: that
# needs no cgroups. Users may name any job there, or none, so it counts only for a record of the
# same user.
# Those of a het job name its first component there, and all in SLURM_JOB_ID_HET_GROUP_n; on a node
# Slurm knows each component by its own number.

RECORDS=/run/slurmkit/gpus
# slurmkit_node.conf, beside slurm.conf, may set GPU_DEVICE: the path of a GPU's device file
# without its number, which must be Slurm's index. Only then are missing files looked for: with
# MIG under AutoDetect the indices are no device numbers.
GPU_DEVICE=
# Or the paths themselves, in the order of Slurm's indices. AMD's have other numbers, e.g.
# GPU_DEVICES=(/dev/dri/renderD128 /dev/dri/renderD136): what slurmd -G prints as File.
GPU_DEVICES=()
KFD=/dev/kfd # through it programs compute on AMD's GPUs
# It may also set folders for others' exporters, which then know the job on each GPU:
# dcgm-exporter's --hpc-job-mapping-dir, and /run/gpustat of jobstats. Where these call a GPU by
# another name than Slurm's index, the array has the names in the order of Slurm's indices, e.g.
# DCGM_GPUS=(3 2 1 0), with MIG DCGM_GPUS=(0.1 0.2). jobstats names MIG instances by UUID, as Slurm.
DCGM_JOB_DIR=
DCGM_GPUS=()
JOBSTATS_DIR=
JOBSTATS_GPUS=()
# With KILL_UNNAMED=no processes on GPUs that name no job are left alone. By default those of users
# are ended on the job's own GPUs, unless they belong to a login or to a service of systemd.
KILL_UNNAMED=yes
# Where CHECK_IN names prolog, epilog or both, that one also runs node_check.py, which has further
# settings (CHECK_…) in the same file.
CHECK_IN=
NODE_CHECKS=${SLURMKIT_NODE_CHECKS:-/run/slurmkit/node_check}
NODE_CONF=${SLURMKIT_NODE_CONF:-/etc/slurm/slurmkit_node.conf}
# shellcheck source=/dev/null
[[ ! -r $NODE_CONF ]] || source "$NODE_CONF"

# To the system's log; what a script prints is in slurmd's log from 24.11 on, when it failed.
say() {
    echo "$*"
    logger -t "slurmkit-$(basename "$0")" -- "job $SLURM_JOB_ID: $*" 2>/dev/null || true
}

# drain CHECK TEXT: leaves the reason for which the script fails; slurmd drains the node for that,
# but keeps no reason. node_check.py as HealthCheckProgram gives it to slurmctld: scripts on the way
# of jobs should run no command of Slurm. Where it has not run for two hours, nobody else would, so
# a node without a reason gets it here.
drain() {
    say "${*:2}"
    if [[ $(find "$NODE_CHECKS/health.json" -mmin -120 2>/dev/null) ]]; then
        echo "$1: ${*:2}" >>"$NODE_CHECKS/faults"
    elif ! may_have_reason; then
        timeout 5 scontrol update "NodeName=$SLURMD_NODENAME" State=DRAIN \
            "Reason=slurmkit: $1: ${*:2}" || true
    fi
}

# An administrator's reason stays.
may_have_reason() {
    local shown
    shown=$(timeout 5 scontrol -o show node "$SLURMD_NODENAME" 2>/dev/null) || return 0
    [[ $shown == *" Reason="* ]]
}

# check_node prolog|epilog: fails where node_check.py has found a fault. A job is not lost because
# the check itself does not work.
check_node() {
    [[ " $CHECK_IN " == *" $1 "* ]] || return 0
    local said code=0
    said=$("$(dirname "$(readlink -f "$0")")/node_check.py" --context "$1" 2>&1) || code=$?
    ((code)) || return 0
    if [[ $said != *"CRITICAL: "* ]]; then
        say "node_check.py ends with code $code: $said"
        return 0
    fi
    said=${said##*CRITICAL: }
    drain "${said%%: *}" "${said#*: }"
    return 1
}

indices() { tr ',' ' ' <<<"${SLURM_JOB_GPUS:-}"; }

# device_of INDEX: the device file of a GPU; nothing where the configuration has none.
device_of() { echo "${GPU_DEVICES[$1]:-${GPU_DEVICE:+$GPU_DEVICE$1}}"; }

# names JOB NUMBER…: is it among them?
names() { [[ " ${*:2} " == *" $1 "* ]]; }

# By process that holds a GPU: its user, the jobs that it names (its user may have put anything
# there), and whether it is of a login or of a service. By job that has a record here: its user;
# SHARING has only those on the same GPUs as this job.
declare -A USER_OF=() JOBS_OF=() OUTSIDE=() RECORDED=() SHARING=()
KNOWN_DEVICES=yes # is the device file of each of the job's GPUs known?
STEPS=            # the jobs that have steps here

# Fills them, with no command for each process.
look() {
    local index device line pids wanted=()
    for index in $(indices); do
        device=$(device_of "$index")
        [[ $device ]] || KNOWN_DEVICES=no
        wanted+=(-o -lname "$device")
    done
    [[ $KNOWN_DEVICES == yes ]] || wanted=(-o -lname '/dev/nvidia[0-9]*' -o -lname '/dev/dri/renderD[0-9]*')
    mapfile -t pids < <(find /proc/[0-9]*/fd \( "${wanted[@]:1}" \) -printf '%h\n' 2>/dev/null | cut -d/ -f3 | sort -un)
    ((${#pids[@]})) || return 0
    # Its real user: the owner of /proc/PID is root for a setuid program.
    while read -r line; do
        [[ $line =~ ^/proc/([0-9]+)/status:Uid:[[:space:]]+([0-9]+) ]] && USER_OF[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
    done < <(grep_each status '^Uid:')
    while read -r line; do
        [[ $line =~ ^/proc/([0-9]+)/environ:SLURM_JOB_ID.*=([0-9]+)$ ]] && JOBS_OF[${BASH_REMATCH[1]}]+="${BASH_REMATCH[2]} "
    done < <(grep_each environ -azxEm 128 'SLURM_JOB_ID(_HET_GROUP_[0-9]+)?=[0-9]{1,10}' | tr '\0' '\n')
    while IFS=/ read -r _ _ pid line; do
        # Jobs are in slurmd's own service, or in slurmstepd.scope; other services may be slurmkit-….
        [[ $line == */session-*.scope* || $line == */user@*.service* || $line == */system.slice/* && ! $line =~ slurm(d|stepd)[^a-z] ]] &&
            OUTSIDE[$pid]=yes
    done < <(grep_each cgroup /)
    look_at_records
    STEPS=$(steps | cut -d' ' -f1 | paste -sd' ')
}

# grep_each NAME OPTION…: searches this file of each of the processes.
grep_each() { printf "/proc/%s/$1\0" "${pids[@]}" | xargs -0 grep -sH "${@:2}"; }

look_at_records() {
    local record job index name value own
    own=$(indices)
    for record in "$RECORDS"/*/[0-9]*; do
        job=${record##*/} index=${record%/*}
        while IFS='=' read -r name value; do
            [[ $name == uid ]] || continue
            RECORDED[$job]=$value
            if [[ $KNOWN_DEVICES == no ]] || names "${index##*/}" "$own"; then SHARING[$job]=$value; fi
        done 2>/dev/null <"$record"
    done
}

# is_recorded JOB…: has any of these jobs a record here?
is_recorded() {
    local job
    for job; do [[ ! ${RECORDED[$job]:-} ]] || return 0; done
    return 1
}

# shares UID JOB…: is any of these jobs that user's (or anybody's, for any), and on the same GPUs?
shares() {
    local job
    for job in "${@:2}"; do
        [[ ! ${SHARING[$job]:-} || ( $1 != any && ${SHARING[$job]} != "$1" ) ]] || return 0
    done
    return 1
}

# has_job_here UID: has this user another job that may be on the same GPUs? One without a record
# has only steps.
has_job_here() {
    local steps
    ! names "$1" "${SHARING[@]}" || return 0
    [[ $KNOWN_DEVICES == no ]] || return 1
    steps=$(steps | grep -v "^$SLURM_JOB_ID " | cut -d' ' -f2 | paste -sd,)
    [[ $steps ]] && pgrep -u "$1" -P "$steps" >/dev/null
}

# Job and process of each step here. Anybody can give a process this title, and have sudo run under
# it as root, so the program counts, too.
steps() {
    local pid title programs
    mapfile -t programs < <(pgrep -U 0 -f '^slurmstepd: \[' | sed 's|.*|/proc/&/exe|')
    ((${#programs[@]})) || return 0
    find "${programs[@]}" -maxdepth 0 \( -lname '*/slurmstepd' -o -lname '*/slurmstepd (deleted)' \) 2>/dev/null |
        while IFS=/ read -r _ _ pid _; do
            read -rd "" title 2>/dev/null <"/proc/$pid/cmdline" || true
            [[ ! $title =~ ^"slurmstepd: ["([0-9]+)[].] ]] || echo "${BASH_REMATCH[1]} $pid"
        done
}

# has_step JOB…: has any of these jobs a step here? One from before this was installed has no record.
has_step() {
    local job
    for job; do ! names "$job" "$STEPS" || return 0; done
    return 1
}

# several PID…: names the first.
several() { echo "${*:1:20}$( (($# <= 20)) || echo " and $(($# - 20)) more")"; }

# kill_and_wait PID…: prints those that are there after KILL_SECONDS.
kill_and_wait() {
    kill -KILL "$@" 2>/dev/null || true
    local end=$((SECONDS + KILL_SECONDS)) pid left=("$@")
    while ((${#left[@]} && SECONDS < end)); do
        left=()
        for pid in "$@"; do
            ! is_alive "$pid" || left+=("$pid")
        done
        ((${#left[@]} == 0)) || sleep 0.1
    done
    ((${#left[@]} == 0)) || several "${left[@]}"
}

# A zombie holds nothing.
is_alive() {
    local stat=""
    read -rd "" stat 2>/dev/null <"/proc/$1/stat" || true
    [[ $stat && ${stat##*) } != Z* ]]
}

# Writes what others' exporters read about the job's GPUs anew, from the records: a job that shares
# a GPU is not alone there. Says what it could not write, and goes on.
write_job_maps() {
    [[ $DCGM_JOB_DIR$JOBSTATS_DIR ]] || return 0
    local indices index at=0 visible lock="" text why
    if ! mkdir -p "$RECORDS" || ! { exec {lock}>"$RECORDS/.lock"; } || ! flock -w 10 "$lock"; then
        say "others' exporters are not told its GPUs: cannot lock $RECORDS/.lock"
        return
    fi
    read -ra indices <<<"$(indices)"
    IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES:-}"
    for index in "${indices[@]}"; do
        local name=$index
        [[ ${visible[at]:-} != MIG-* ]] || name=${visible[at]}
        why=$({ text=$(newest_first "$index" job) &&
            map_file "$DCGM_JOB_DIR" "${DCGM_GPUS[index]:-$index}" "$text"; } 2>&1) ||
            say "dcgm-exporter is not told who has GPU $index: $why"
        why=$({ text=$(newest_first "$index" job uid) &&
            map_file "$JOBSTATS_DIR" "${JOBSTATS_GPUS[index]:-$name}" "${text%%$'\n'*}"; } 2>&1) ||
            say "jobstats is not told who has GPU $index: $why"
        at=$((at + 1))
    done
    exec {lock}>&-
}

# newest_first INDEX FIELD…: these fields of the records on a GPU, a job a line.
newest_first() {
    local index=$1 record
    shift
    for record in "$RECORDS/$index"/[0-9]*; do
        [[ -e $record ]] || continue
        awk -F= -v fields="start $*" '{ value[$1] = $2 } END {
            count = split(fields, name, " ")
            for (at = 1; at <= count; at++) printf "%s%s", value[name[at]], at < count ? " " : "\n"
        }' "$record"
    done | sort -k1,1nr -k2,2nr | cut -d' ' -f2-
}

# map_file FOLDER NAME TEXT: without a text there is no file.
map_file() {
    [[ $1 ]] || return 0
    if [[ ! $3 ]]; then rm -f "$1/$2"; return; fi
    mkdir -p "$1" && printf '%s\n' "$3" >"$RECORDS/.map" && mv -T "$RECORDS/.map" "$1/$2"
}
