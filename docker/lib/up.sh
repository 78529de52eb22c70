# Starting the services and waiting until each one does its work.
# shellcheck shell=bash disable=SC2154 # set by docker/cluster

ONE_SHOTS=" init people accounts "
# Seconds without any progress after which the start has failed, and seconds in all. A cluster is
# ready in 20 to 40; on a machine that is busy with other things each step takes minutes.
PATIENCE=180
DEADLINE=1800

# One line per container: service, state, exit code, when it ended, health, when it started.
service_states() {
    local ids
    ids=$(docker ps -aq --filter "label=com.docker.compose.project=$PROJECT" \
        --filter label=com.docker.compose.oneoff=False)
    [[ -n $ids ]] || return 0
    # shellcheck disable=SC2086 # one id a word
    docker inspect -f '{{index .Config.Labels "com.docker.compose.service"}} {{.State.Status}} {{.State.ExitCode}} {{.State.FinishedAt}} {{with .State.Health}}{{.Status}}{{else}}-{{end}} {{.State.StartedAt}}' $ids 2>/dev/null || true
}

last_lines() {
    printf -- '--- the last lines of %s:\n' "$1"
    docker logs --tail 20 "$PROJECT-$1" 2>&1 || true
}

# Shows a service's last words and fails.
service_failed() {
    local service=$1 why=$2
    last_lines "$service" >&2
    [[ $why != "not ready"* ]] || docker inspect -f '{{with .State.Health}}{{range .Log}}{{.Output}}{{end}}{{end}}' \
        "$PROJECT-$service" | uniq | tail -n 5 >&2
    die "cluster $CLUSTER: $service failed ($why)"
}

# Compose leaves a running but unhealthy container as it is: it must begin anew. Not so a node with
# jobs: they outlive an outage of slurmctld or LDAP, and so does the node, which gets well after it.
remove_unhealthy() {
    local service
    for service in $(service_states | awk '$5 == "unhealthy" { print $1 }'); do
        if [[ $service != c[0-9]* ]] || ! docker exec "$PROJECT-$service" pgrep slurmstepd; then
            docker rm -f "$PROJECT-$service"
        fi >/dev/null 2>&1
    done
}

# Compose starts services in the order of their health; meanwhile we show each as it is ready.
start_services() {
    local since log=$scratch/compose
    remove_unhealthy
    since=$(date -u +%FT%T.%N)
    start_compose
    unlock_network_when_made
    wait_for_services
    compose_pid=
}

start_compose() {
    "${compose_command[@]}" up -d --remove-orphans >"$log" 2>&1 {network_lock}<&- &
    compose_pid=$!
}

# Compose must not go on after we are gone: it would be in the way of the next `up`.
stop_compose() {
    [[ ${compose_pid:-} ]] || return 0
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
    local service state code ended health begun waiting composing=1
    local seen='' last='' said='' checks='' moved=$SECONDS began=$SECONDS told=$SECONDS asked=0
    local -A shown=()
    while true; do
        if [[ $composing ]] && ! kill -0 "$compose_pid" 2>/dev/null; then
            if wait "$compose_pid"; then
                composing=
            else
                compose_failed
                sleep 1
                start_compose
            fi
        fi
        waiting=() seen=$(service_states)
        while read -r service state code ended health begun; do
            [[ $service ]] || continue
            if is_ready; then
                [[ ${shown[$service $begun]:-} ]] || step "$service $(readiness "$service")"
                shown[$service $begun]=1
            else
                check_exit
                waiting+=("$service")
            fi
        done <<<"$seen"
        [[ $composing || ${waiting[*]} ]] || return 0
        # Health counts its tries, and gives up on a busy machine; here what counts is progress.
        ((SECONDS - asked < 5)) || { asked=$SECONDS && checks=$(last_checks "${waiting[@]}"); }
        said=$(printf '%s\n' "$said" "$(cat "$log")" | sort -u) # by all tries of compose
        seen+=$said$checks
        [[ $seen == "$last" ]] || moved=$SECONDS
        last=$seen
        ((SECONDS - moved < PATIENCE && SECONDS - began < DEADLINE)) || not_ready "${waiting[@]}"
        if ((SECONDS - told >= 60)); then
            told=$SECONDS
            step "waiting for ${waiting[*]:-compose}; the last answers: ${checks//$'\n'/; }"
        fi
        sleep 0.3
    done
}

readiness() { if [[ $ONE_SHOTS == *" $1 "* ]]; then echo "done"; else echo ready; fi; }

# What each service that is not ready said when Docker last asked it.
last_checks() {
    (($#)) || return 0
    docker inspect -f '{{.Name}}:{{with .State.Health}}{{range .Log}} {{.Output}}{{end}}{{end}}' \
        "${@/#/$PROJECT-}" 2>/dev/null | sed "s|^/$PROJECT-||" | grep . | uniq | cut -c1-200 || true
}

not_ready() {
    ((SECONDS - moved < PATIENCE)) || step "nothing has moved for $PATIENCE s"
    (($#)) || { tail -n 20 "$log" >&2 && die "cluster $CLUSTER: compose does not end: its last lines are above"; }
    service_failed "$1" "not ready after $((SECONDS - began)) s; $CLUSTER goes on where it is: run docker/cluster up$(option_name) again"
}

# A service that ended before we began is started by compose.
check_exit() {
    [[ $state != exited || $code == 0 || $ended < $since ]] ||
        service_failed "$service" "exit status $code"
}

# Compose gives up when a service that others wait for is unhealthy for now. That one may get well:
# compose is worth another try as long as none of them has ended.
compose_failed() {
    local service state code ended health begun unhealthy=
    while read -r service state code ended health begun; do
        [[ $service ]] || continue
        is_ready || check_exit
        [[ $health != unhealthy || $state != running ]] || unhealthy=1
    done < <(service_states)
    [[ ! $unhealthy ]] || return 0
    tail -n 20 "$log" >&2
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
