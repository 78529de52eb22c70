# Where the pages for PIs are on this host (docker/cluster up --with portal).
# shellcheck shell=bash disable=SC2153,SC2154 # set by docker/cluster

# The pages of the cluster with the addresses A.B.C.0/24 have this port and C more.
PORTAL_PORTS=21300

# The pages are for one address, which the service must know before it starts. It stays the same as
# long as the cluster has its network.
choose_portal_address() {
    local kept
    [[ ,${COMPOSE_PROFILES:-}, == *,portal,* ]] || return 0
    kept=$(docker inspect -f '{{(index (index .HostConfig.PortBindings "80/tcp") 0).HostPort}}' \
        "$PROJECT-portal" 2>/dev/null || true)
    export PORTAL_PORT=${SLURMKIT_PORTAL_PORT:-${kept:-$((PORTAL_PORTS + ${SUBNET##*.}))}}
    export PORTAL_URL=http://127.0.0.1:$PORTAL_PORT
}

# The address of the pages; nothing where they are not up.
portal_page() { { docker port "$PROJECT-portal" 80 2>/dev/null || true; } | sed -n '1s|^|http://|p'; }

# A line of the summary, begun anew.
portal_line() {
    local page
    page=$(portal_page)
    [[ -z $page ]] ||
        printf '\n  portal     %s as alice, or as vogel, a PI; each has a password as in the last line' "$page"
}
