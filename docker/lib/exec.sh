# Running commands in a service's container, arguments untouched.
# shellcheck shell=bash

# run_in SERVICE USER COMMAND…; an empty USER is root.
run_in() {
    local container=$PROJECT-$1 user=$2
    shift 2
    running "${container#"$PROJECT-"}" || not_running "${container#"$PROJECT-"}"
    [[ -z $user ]] || set -- /opt/lab/as-person "$user" "$@"
    if [[ -t 0 && -t 1 ]]; then
        # The terminal's own keys, Ctrl-C among them, reach the command.
        # Docker would keep Ctrl-P back, and leave the command at Ctrl-P Ctrl-Q.
        exec docker exec -it --detach-keys='ctrl-^,ctrl-^,ctrl-^' -e "TERM=${TERM:-dumb}" \
            -e "COLORTERM=${COLORTERM:-}" "$container" "$@"
    fi
    run_without_terminal "$container" "$@"
}

not_running() {
    local services
    select_cluster
    services=$(SUBNET=$(subnet) compose config --services | sort -V | xargs)
    [[ " $services " == *" $1 "* ]] || usage_error "there is no service $1; there are: $services"
    die "cluster $CLUSTER: $1 is not running (docker/cluster up$(option_name))"
}

# `docker exec` passes no signals on, so we send them ourselves.
run_without_terminal() {
    local container=$1 token=$$.$RANDOM client status signal interrupted
    shift
    docker exec -i "$container" /opt/lab/signal-command run "$token" "$@" <&0 &
    client=$!
    for signal in INT TERM HUP; do
        # shellcheck disable=SC2064 # the values of now
        trap "send_signal '$container' '$token' $signal" "$signal"
    done
    # A wait that a signal interrupts returns before the command has ended.
    while true; do
        interrupted='' status=0
        wait "$client" || status=$?
        [[ $interrupted ]] || break
    done
    exit "$status"
}

send_signal() {
    interrupted=1
    docker exec "$1" /opt/lab/signal-command send "$2" "$3" 2>/dev/null || true
}
