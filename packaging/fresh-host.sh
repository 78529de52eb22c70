# Fresh hosts of a trial: containers that systemd runs, on the network of a Docker cluster.
# shellcheck shell=bash disable=SC2154 # project, cluster, suite and scratch are set by the trial

# A host with nothing on it but systemd, and the cluster's files where `scp ctld:` finds them. The hierarchy
# of Docker may be cgroup v1, which later releases of systemd refuse.
fresh_host() { # fresh_host NAME
    docker run --detach --name "$1" --hostname "$1" --network "slurmkit-${cluster}_default" \
        --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
        --cgroupns private --tmpfs /run --tmpfs /run/lock --tmpfs /tmp:exec --env container=docker \
        --stop-signal SIGRTMIN+3 --volume "$project/dist:/dist:ro" "slurmkit-base:$suite" bash -ec '
            printf "%s\n" "APT::Get::Assume-Yes true;" "Dpkg::Use-Pty 0;" >/etc/apt/apt.conf.d/90trial
            apt-get -qq -o Acquire::Check-Valid-Until=false update
            DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends systemd-sysv dbus curl man-db >/dev/null 2>&1
            umount -R /sys/fs/cgroup
            mount -t cgroup2 cgroup2 /sys/fs/cgroup
            exec /sbin/init' >/dev/null
    # The cluster's own files, where `scp ctld:` of the page finds them.
    docker cp -q "slurmkit-$cluster-ctld:/etc/slurm" "$scratch/$1"
    docker cp -q "slurmkit-$cluster-ctld:/etc/munge/munge.key" "$scratch/$1"
    docker exec "$1" mkdir -p /ctld/etc/munge
    docker cp -q "$scratch/$1" "$1:/ctld/etc/slurm"
    docker exec "$1" mv /ctld/etc/slurm/munge.key /ctld/etc/munge
    # The page copies slurm.conf; here it includes further files.
    docker exec "$1" sh -c 'mkdir /etc/slurm && cp -r /ctld/etc/slurm/* /etc/slurm && rm -f /etc/slurm/slurm.conf /etc/slurm/slurmdbd.conf
        chown -R root:root /ctld
        printf "%s\n" "#!/bin/sh" "exec cp /ctld/\${1#ctld:} \$2" >/usr/local/bin/scp && chmod 755 /usr/local/bin/scp'
    for _ in {1..120}; do
        [[ $(docker exec "$1" systemctl is-system-running 2>/dev/null) != running ]] || return 0
        sleep 1
    done
    docker logs "$1" >&2 || :
    docker exec "$1" systemctl --failed >&2 || :
    die "systemd does not come up in $1"
}
