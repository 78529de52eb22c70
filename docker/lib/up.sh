# Starting the services and waiting until each one does its work.
# shellcheck shell=bash disable=SC2154 # set by docker/cluster

ONE_SHOTS=" init people accounts "
DEADLINE=240 # seconds; a cluster is ready in 20 to 40

# One line per container: service, state, exit code, when it ended, health.
service_states() {
    local ids
    ids=$(docker ps -aq --filter "label=com.docker.compose.project=$PROJECT" \
        --filter label=com.docker.compose.oneoff=False)
    [[ -n $ids ]] || return 0
    # shellcheck disable=SC2086 # one id a word
    docker inspect -f '{{index .Config.Labels "com.docker.compose.service"}} {{.State.Status}} {{.State.ExitCode}} {{.State.FinishedAt}} {{with .State.Health}}{{.Status}}{{else}}-{{end}}' $ids 2>/dev/null || true
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
    since=$(date -u +%FT%T)
    log=$(mktemp)
    compose up -d --remove-orphans >"$log" 2>&1 &
    compose_pid=$!
    # Compose must not go on after we are gone.
    trap 'kill "$compose_pid" 2>/dev/null; exit 130' INT TERM
    wait_for_services "$since" "$log"
    trap - INT TERM
    rm -f "$log"
}

wait_for_services() {
    local since=$1 log=$2 service state code ended health waiting total
    local -A ready=()
    total=$(compose config --services | wc -l)
    while ((${#ready[@]} < total)); do
        waiting=
        while read -r service state code ended health; do
            [[ ! ${ready[$service]:-} ]] || continue
            if is_ready; then
                ready[$service]=1
                step "$service $([[ $ONE_SHOTS == *" $service "* ]] && echo "done" || echo ready)"
                continue
            fi
            [[ $health != unhealthy || $state != running ]] || service_failed "$service" unhealthy
            [[ $state != exited || $code == 0 || $ended < $since ]] ||
                service_failed "$service" "exit status $code"
            waiting+=" $service"
        done < <(service_states)
        if ! kill -0 "$compose_pid" 2>/dev/null && ! wait "$compose_pid"; then
            tail -n 20 "$log" >&2
            die "compose could not start the services: its last lines are above"
        fi
        (($(elapsed | cut -d. -f1) < DEADLINE + built_at)) ||
            die "not ready after $DEADLINE s:$waiting (see docker/cluster logs SERVICE)"
        sleep 0.3
    done
    wait "$compose_pid"
}

is_ready() {
    if [[ $ONE_SHOTS == *" $service "* ]]; then
        [[ $state == exited && $code == 0 && ! $ended < $since ]]
    else
        [[ $state == running && $health == healthy ]]
    fi
}
