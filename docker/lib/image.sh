# The image of a Slurm release: made when it is missing or when what goes into it has changed.
# shellcheck shell=bash disable=SC2154 # set by docker/cluster

# Which Debian has which Slurm.
declare -A SUITES=([22.05]=bookworm [24.11]=trixie [26.05]=forky)

# The base image: Debian's own where it can be pulled, else made from Debian's packages.
ensure_base() {
    local suite=$1 base=slurmkit-base:$1 root
    docker image inspect "$base" >/dev/null 2>&1 && return
    step "base image: debian:$suite"
    if timeout 60 docker pull -q "debian:$suite" >/dev/null 2>&1; then
        docker tag "debian:$suite" "$base"
        return
    fi
    step "base image: no registry has it; making it with debootstrap"
    command -v debootstrap >/dev/null || die "debootstrap is missing: install it (Debian: apt-get install debootstrap)"
    ((EUID == 0)) || die "debootstrap needs root: run this as root once, or load an image debian:$suite"
    root=$(mktemp -d)
    make_root "$suite" "$root" || {
        tail -n 20 "$root.log" >&2
        rm -rf "$root" "$root.log"
        die "debootstrap could not make Debian $suite: its last lines are above"
    }
    tar -C "$root" -c . | docker import -c 'CMD ["bash"]' - "$base" >/dev/null
    rm -rf "$root" "$root.log"
}

make_root() {
    local suite=$1 root=$2 scripts=/usr/share/debootstrap/scripts script=()
    # A suite newer than this debootstrap is made as sid is.
    [[ -e $scripts/$suite ]] || script=("$scripts/sid")
    # The third argument of debootstrap, the mirror, is empty for its default.
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" \
        "${SLURMKIT_DEBIAN_MIRROR:-}" "${script[@]}" >"$root.log" 2>&1
    rm -f "$root"/var/cache/apt/archives/*.deb
}

# What the image is built from, gathered in one folder; prints it.
build_context() {
    local context file
    context=$(mktemp -d)
    mkdir "$context/packages" "$context/ca"
    cp -r "$docker_dir/Dockerfile" "$docker_dir/image" "$context"
    for file in "$docker_dir"/packages/*.deb; do
        [[ ! -e $file ]] || cp -L "$file" "$context/packages/"
    done
    for file in "$docker_dir"/ca/*.crt /usr/local/share/ca-certificates/*.crt; do
        [[ ! -e $file ]] || cp -L "$file" "$context/ca/"
    done
    touch "$context/constraints.txt"
    [[ ! -e $docker_dir/../constraints.txt ]] || cp "$docker_dir/../constraints.txt" "$context"
    echo "$context"
}

# Builds the image unless it was built from the same files.
ensure_image() {
    local release=$1 image=$2 suite=${SUITES[$1]} context inputs
    context=$(build_context)
    inputs=$(cd "$context" && find . -type f -printf '%P %m\n' -exec sha256sum {} + | sort | sha256sum | cut -c1-16)
    if [[ $(docker image inspect -f '{{index .Config.Labels "slurmkit.inputs"}}' "$image" 2>/dev/null) == "$inputs" ]]; then
        rm -rf "$context"
        return
    fi
    ensure_base "$suite"
    step "image: building $image (Slurm $release from Debian $suite)"
    build "$release" "$image" "$suite" "$inputs" "$context"
    rm -rf "$context"
    step "image: built"
}

build() {
    local release=$1 image=$2 suite=$3 inputs=$4 context=$5
    DOCKER_BUILDKIT=0 docker build --tag "$image" --label "slurmkit.inputs=$inputs" \
        --build-arg "BASE=slurmkit-base:$suite" --build-arg "SLURM=$release" \
        ${PIP_INDEX_URL:+--build-arg "PIP_INDEX_URL=$PIP_INDEX_URL"} \
        "$context" >"$context.log" 2>&1 || {
        tail -n 20 "$context.log" >&2
        die "the image of Slurm $release could not be built: the last lines are above (log: $context.log)"
    }
    rm -f "$context.log"
}
