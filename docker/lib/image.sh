# The image of a Slurm release: made when it is missing or when what goes into it has changed.
# shellcheck shell=bash disable=SC2154 # set by docker/cluster

# Which Debian has which Slurm.
declare -A SUITES=([22.05]=bookworm [24.11]=trixie [26.05]=forky)

# Where files of this run are kept; docker/cluster removes it however the run ends.
make_scratch() { scratch=$(mktemp -d); }

has_image() { docker image inspect "$1" >/dev/null 2>&1; }

# The base image: Debian's own where it is here or can be pulled, else made from Debian's packages.
ensure_base() {
    local suite=$1 base=slurmkit-base:$1
    ! has_image "$base" || return 0
    step "base image: debian:$suite"
    if has_image "debian:$suite" || timeout 60 docker pull -q "debian:$suite" >/dev/null 2>&1; then
        docker tag "debian:$suite" "$base"
        return
    fi
    step "base image: no registry has it; making it with debootstrap"
    if ! command -v debootstrap >/dev/null; then
        complain "debootstrap is missing: install it (Debian: apt-get install debootstrap), or load an image debian:$suite"
        return 1
    fi
    if ((EUID != 0)); then
        complain "debootstrap needs root: run this as root once, or load an image debian:$suite"
        return 1
    fi
    (umask 022 && make_root "$suite" "$scratch/root" >"$scratch/log" 2>&1) || return
    tar -C "$scratch/root" -c . | docker import -c 'CMD ["bash"]' - "$base" >/dev/null || return
    rm -rf --one-file-system "$scratch/root"
}

# Callers ask whether it worked, so `set -e` does not count here: every step says so itself.
make_root() {
    local suite=$1 root=$2 scripts=/usr/share/debootstrap/scripts script=()
    # A suite newer than this debootstrap is made as sid is.
    [[ -e $scripts/$suite ]] || script=("$scripts/sid")
    # The third argument of debootstrap, the mirror, is empty for its default.
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" \
        "${SLURMKIT_DEBIAN_MIRROR:-}" "${script[@]}" || return
    rm -f "$root"/var/cache/apt/archives/*.deb
}

# Gathers in one folder what the image is built from.
gather_context() {
    local context=$1 file
    mkdir -p "$context/packages" "$context/ca/host"
    cp -r "$docker_dir/Dockerfile" "$docker_dir/image" "$context"
    for file in "$docker_dir"/packages/*.deb; do
        [[ ! -e $file ]] || cp -L "$file" "$context/packages/"
    done
    for file in "$docker_dir"/ca/*.crt; do
        [[ ! -e $file ]] || cp -L "$file" "$context/ca/"
    done
    for file in /usr/local/share/ca-certificates/*.crt; do
        [[ ! -e $file ]] || cp -L "$file" "$context/ca/host/"
    done
    touch "$context/constraints.txt"
    [[ ! -e $docker_dir/../constraints.txt ]] || cp "$docker_dir/../constraints.txt" "$context"
    # The image must not depend on the umask of who made the checkout.
    chmod -R u=rwX,go=rX "$context"
}

# What an image was built from, in short. Without this host's certificates: an image that was made
# on another machine is as good.
context_hash() {
    (cd "$1" && find . -path ./ca/host -prune -o -type f -printf '%P %m\n' -exec sha256sum {} +) |
        sort | sha256sum | cut -c1-16
}

# Builds the image unless it was built from the same files.
ensure_image() {
    local release=$1 image=$2 suite=${SUITES[$1]} inputs
    make_scratch
    gather_context "$scratch/context"
    inputs=$(context_hash "$scratch/context")
    [[ $(image_label "$image") != "$inputs" ]] || return 0
    if ensure_base "$suite" && build "$release" "$image" "$suite" "$inputs"; then
        step "image: built"
    elif has_image "$image" && no_network; then
        step "image: no network to build it anew from what has changed: using $image as it is"
    else
        tail -n 20 "$scratch/log" >&2
        die "the image of Slurm $release could not be built: the last lines are above"
    fi
}

image_label() { docker image inspect -f '{{index .Config.Labels "slurmkit.inputs"}}' "$1" 2>/dev/null || true; }

build() {
    local release=$1 image=$2 suite=$3 inputs=$4 next=$((SECONDS + 60))
    [[ ${PIP_INDEX_URL:-} != *@* ]] ||
        die "PIP_INDEX_URL has a user name or a password, which the history of the image would show: use an index without one"
    step "image: building $image (Slurm $release from Debian $suite), once; this takes minutes"
    DOCKER_BUILDKIT=0 docker build --tag "$image" --label "slurmkit.inputs=$inputs" \
        --build-arg "BASE=slurmkit-base:$suite" --build-arg "SLURM=$release" \
        ${PIP_INDEX_URL:+--build-arg "PIP_INDEX_URL=$PIP_INDEX_URL"} \
        "$scratch/context" >"$scratch/log" 2>&1 &
    builder=$!
    while kill -0 "$builder" 2>/dev/null; do
        if ((SECONDS >= next)); then
            next=$((SECONDS + 60))
            step "image: $(grep -a '^Step ' "$scratch/log" | tail -n 1 | cut -c1-80)"
        fi
        sleep 1
    done
    wait "$builder" || return
    builder=
}

# Did the build fail for want of a network? The words are those of apt, debootstrap and pip.
no_network() {
    grep -qiE "temporary failure resolving|could ?n[o']t (resolve|connect)|network is unreachable|no route to host|connection (timed out|refused)|name resolution|failed to establish a new connection|getting Release file|debootstrap (is missing|needs root)" "$scratch/log"
}

# An error that is not yet the end.
complain() { echo "$*" >>"$scratch/log"; }
