# Starting the services and waiting until each one does its work.
# shellcheck shell=bash disable=SC2154 # set by docker/cluster

ONE_SHOTS=" init people accounts "
DEADLINE=240 # seconds; a cluster is ready in 20 to 40

# One line per container: service, state, exit code, when it ended, health, when it started.
service_states() {
    local ids
    ids=$(docker ps -aq --filter "label=com.docker.compose.project=$PROJECT" \
        --filter label=com.docker.compose.oneoff=False)
    [[ -n $ids ]] || return 0
    # shellcheck disable=SC2086 # one id a word
    docker inspect -f '{{index .Config.Labels "com.docker.compose.service"}} {{.State.Status}} {{.State.ExitCode}} {{.State.FinishedAt}} {{with .State.Health}}{{.Status}}{{else}}-{{end}} {{.State.StartedAt}}' $ids 2>/dev/null || true
}

# Shows a service's last words and fails.
service_failed() {
    local service=$1 why=$2
    printf -- '--- the last lines of %s:\n' "$service" >&2
    docker logs --tail 20 "$PROJECT-$service" >&2 2>&1 || true
    [[ $why != unhealthy ]] || docker inspect -f '{{with .State.Health}}{{range .Log}}{{.Output}}{{end}}{{end}}' \
        "$PROJECT-$service" | tail -n 5 >&2
    die "cluster $CLUSTER: $service failed ($why)"
}

# Compose starts services in the order of their health; meanwhile we show each as it is ready.
start_services() {
    local since log
    # Compose leaves a running but unhealthy container as it is: it must begin anew.
    docker ps -aq --filter "label=com.docker.compose.project=$PROJECT" --filter health=unhealthy |
        xargs -r docker rm -f >/dev/null
    since=$(date -u +%FT%T.%N)
    log=$(mktemp)
    "${compose_command[@]}" up -d --remove-orphans >"$log" 2>&1 &
    compose_pid=$!
    # Compose must not go on after we are gone: it would be in the way of the next `up`.
    trap 'stop_compose; exit 130' INT TERM
    trap stop_compose EXIT
    wait_for_services "$since" "$log"
    trap - INT TERM EXIT
    rm -f "$log"
}

stop_compose() {
    kill "$compose_pid" 2>/dev/null || return 0
    for _ in {1..20}; do
        kill -0 "$compose_pid" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL "$compose_pid" 2>/dev/null || true
}

# Ready is what compose has finished with and every service says of itself: an old container
# that compose is about to replace is healthy too.
wait_for_services() {
    local since=$1 log=$2 service state code ended health begun waiting composing=1
    local -A shown=()
    while true; do
        if [[ $composing ]] && ! kill -0 "$compose_pid" 2>/dev/null; then
            wait "$compose_pid" || compose_failed "$log"
            composing=
        fi
        waiting=
        while read -r service state code ended health begun; do
            if is_ready; then
                [[ ${shown[$service $begun]:-} ]] || step "$service $(readiness "$service")"
                shown[$service $begun]=1
            else
                check_failed
                waiting+=" $service"
            fi
        done < <(service_states)
        [[ $composing || $waiting ]] || return 0
        (($(elapsed | cut -d. -f1) < DEADLINE + built_at)) ||
            die "not ready after $DEADLINE s:$waiting (see docker/cluster logs SERVICE)"
        sleep 0.3
    done
}

readiness() { if [[ $ONE_SHOTS == *" $1 "* ]]; then echo "done"; else echo ready; fi; }

check_failed() {
    [[ $health != unhealthy || $state != running ]] || service_failed "$service" unhealthy
    # A service that ended before we began is started by compose.
    [[ $state != exited || $code == 0 || $ended < $since ]] ||
        service_failed "$service" "exit status $code"
}

# Compose gives up when a service that others wait for fails; that one's words say why.
compose_failed() {
    local service state code ended health begun
    while read -r service state code ended health begun; do
        is_ready || check_failed
    done < <(service_states)
    tail -n 20 "$1" >&2
    die "compose could not start the services: its last lines are above"
}

is_ready() {
    if [[ $ONE_SHOTS == *" $service "* ]]; then
        [[ $state == exited && $code == 0 && ! $ended < $since ]]
    else
        [[ $state == running && $health == healthy ]]
    fi
}

# A slurmctld that was started again does not know at once how its nodes are.
wait_for_nodes() {
    local end=$((SECONDS + 60)) silent
    while true; do
        silent=$(docker exec "$PROJECT-ctld" sinfo -h -N -o '%N %t' | awk '$2 ~ /^unk|\*$/ { print $1 }')
        [[ $silent ]] || return 0
        ((SECONDS < end)) || die "nodes that do not answer slurmctld: ${silent//$'\n'/ } (see docker/cluster logs NODE)"
        sleep 0.5
    done
}
