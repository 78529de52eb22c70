# The network of a cluster: a /24 that no other cluster, and no route of this host, uses.
# shellcheck shell=bash disable=SC2153

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
