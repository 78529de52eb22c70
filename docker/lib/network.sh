# The network of a cluster: a /24 that no other cluster, and no route of this host, uses.
# shellcheck shell=bash disable=SC2153,SC2154 # set by docker/cluster

# Prints the first three numbers of the cluster's addresses: those it has, else free ones.
subnet() {
    local taken number prefix
    prefix=$(docker network inspect -f '{{(index .IPAM.Config 0).Subnet}}' "${PROJECT}_default" 2>/dev/null || true)
    prefix=${prefix:-${SLURMKIT_SUBNET:-}}
    if [[ -n $prefix ]]; then
        echo "${prefix%.*}"
        return
    fi
    taken=$(docker network ls -q --filter driver=bridge | xargs -r docker network inspect \
        -f '{{range .IPAM.Config}}{{.Subnet}} {{end}}')
    taken+=$(ip -4 route 2>/dev/null || true)
    for number in {0..255}; do
        if [[ $taken != *"10.213.$number."* ]]; then
            echo "10.213.$number"
            return
        fi
    done
    die "no free subnet in 10.213.0.0/16: name one with SLURMKIT_SUBNET=A.B.C.0/24"
}

# Two first `up`s at once must not choose the same addresses: the lock is held from the choice until
# the network is there. It is on a folder, which needs no file and is free when its holder dies.
lock_network() {
    exec {network_lock}<"${TMPDIR:-/tmp}"
    flock "$network_lock"
}

unlock_network_when_made() {
    until docker network inspect "${PROJECT}_default" >/dev/null 2>&1; do
        kill -0 "$compose_pid" 2>/dev/null || break
        sleep 0.2
    done
    exec {network_lock}<&-
}
