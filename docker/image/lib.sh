# Shared by the roles: secrets, templates, and the two small daemons most of them stand on.
# shellcheck shell=bash disable=SC2034 # templates name their variables

CONF=/opt/lab/conf
SECRETS=/secrets
INTO_SLURM=/opt/lab/slurm
BASE_DN=dc=lab,dc=example

log() { printf '%s: %s\n' "${ROLE:-lab}" "$*" >&2; }
die() { log "$*"; exit 1; }

secret() { cat "$SECRETS/$1"; }

# wait_for SECONDS WHAT COMMAND…: polls, and says what never came.
wait_for() {
    local seconds=$1 what=$2 end=$((SECONDS + $1))
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || die "$what did not come within $seconds s"
        sleep 0.2
    done
}

# render TEMPLATE FILE OWNER MODE [NAME…]: copies a template, each @NAME@ replaced by the variable
# NAME. The file is replaced in one step, so a reader never sees half of it.
render() {
    local template=$1 file=$2 owner=$3 mode=$4 text name
    shift 4
    text=$(cat "$CONF/$template")
    for name in "$@"; do
        text=${text//"@$name@"/"${!name}"}
    done
    install -D -o "${owner%:*}" -g "${owner#*:}" -m "$mode" /dev/null "$file.new"
    printf '%s\n' "$text" >"$file.new"
    mv "$file.new" "$file"
}

run_dir() { install -d -o "$2" -g "$2" -m 0755 "$1"; }

# The Slurm configuration, rendered alike in every container of the cluster.
render_slurm() {
    local file folder=${1:-/etc/slurm}
    for file in slurm.conf nodes.conf gres.conf topology.conf slurmkit.conf; do
        render "slurm/$file" "$folder/$file" root:root 0644 CLUSTER
    done
    for file in "$CONF/slurm/$RELEASE"/*.conf; do
        render "${file#"$CONF/"}" "$folder/${file##*/}" root:root 0644 CLUSTER
    done
    render "slurm/auth-$AUTH.conf" "$folder/auth.conf" root:root 0644
}

# Fails, with Slurm's own words, where Slurm's commands cannot read the edited configuration.
check_slurm() {
    local folder=/run/lab/slurm-check
    rm -rf "$folder"
    cp -r /etc/slurm "$folder"
    render_slurm "$folder"
    sed -i "s|^Include /etc/slurm/|Include $folder/|" "$folder"/*.conf
    SLURM_CONF=$folder/slurm.conf scontrol version >/dev/null
}

# install_into_slurm FILE…: what slurmkit puts into Slurm, to where Slurm looks for it.
install_into_slurm() {
    local file
    if [[ ! -e $INTO_SLURM/$1 ]]; then # docker/ without the rest of the repository
        echo '# nothing of slurmkit is in this Slurm' >/etc/slurm/slurmkit.conf
        return
    fi
    for file in "$@"; do
        install -m 0755 "$INTO_SLURM/$file" "/etc/slurm/$file.new"
        mv "/etc/slurm/$file.new" "/etc/slurm/$file"
    done
}

# give_slurm SECRET: a file of its daemons.
give_slurm() { install -o slurm -g slurm -m 0600 "$SECRETS/$1" "/etc/slurm/$1"; }

# What Slurm certifies with: munged, or a key that only its daemons have.
start_auth() {
    [[ ! -e $SECRETS/munge.key ]] || start_munge
    [[ ! -e $SECRETS/slurm.key ]] || give_slurm slurm.key
}

start_munge() {
    # What a killed container left behind would stop munged.
    rm -rf /run/munge
    run_dir /run/munge munge
    install -d -o munge -g munge -m 0700 /etc/munge /var/lib/munge /var/log/munge
    install -o munge -g munge -m 0400 "$SECRETS/munge.key" /etc/munge/munge.key
    runuser -u munge -- munged
    wait_for 10 "munge" munge -n -o /dev/null
}

install_ca() { install -D -m 0644 "$SECRETS/ca.pem" /etc/ldap/tls/ca.pem; }

people_resolve() { getent passwd | awk -F: '$3 >= 10001 && $3 < 60000 { found = 1 } END { exit !found }'; }

start_nslcd() {
    local LDAP_READER_PASSWORD
    LDAP_READER_PASSWORD=$(secret ldap-reader.password)
    install_ca
    render ldap/nslcd.conf /etc/nslcd.conf root:nslcd 0640 LDAP_READER_PASSWORD
    rm -rf /run/nslcd
    run_dir /run/nslcd nslcd
    nslcd
}

# People of LDAP become accounts of this container; from here on they are there.
start_people() {
    start_nslcd
    wait_for 30 "people from LDAP" people_resolve
}

gone() { ! kill -0 "$1"; }

# The old one removes the socket when it goes: not before it is gone may the new one make its own.
restart_nslcd() {
    local pid
    pid=$(cat /run/nslcd/nslcd.pid 2>/dev/null || true)
    if [[ $pid ]] && kill "$pid" 2>/dev/null; then
        wait_for 10 "the end of nslcd" gone "$pid"
    fi
    start_people
}
