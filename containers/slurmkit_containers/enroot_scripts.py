"""The constant shell texts that start enroot on a node; what users give are their arguments."""

from __future__ import annotations

_NAME = '[ -n "$name" ] || name=slurmkit_${SLURM_JOB_ID}_${SLURM_RESTART_COUNT:-0}\n'

# $1: image as enroot writes it, or nothing; $2: name of a container that is kept, or nothing.
# Locks: one where the containers lie, so that one is made once; while enroot imports, another one
# in the home directory, so that two nodes do not fill the same cache of layers at once. A mark says
# that a container is being made: one that is found with the lock free was left half done. Where
# containers lie is read as enroot reads it (its config::load): the environment, then its files.
CREATE = (
    """\
set -eu
image=$1 name=$2 work='' whole=''
"""
    + _NAME
    + """\
data=${ENROOT_DATA_PATH-}
for file in /etc/enroot/enroot.conf /etc/enroot/enroot.conf.d/*.conf; do
    if [ -n "$data" ] || [ ! -r "$file" ]; then continue; fi
    value=$(sed -n 's/^ENROOT_DATA_PATH[ =\t]*//p' "$file" | head -n 1)
    data=$(set +u; eval echo "$value")
done
data=${data:-${XDG_DATA_HOME:-$HOME/.local/share}/enroot}
locks=${XDG_CACHE_HOME:-$HOME/.cache}/slurmkit
mkdir -p "$data" "$locks"
exec 9>>"$data/.slurmkit.lock"
flock 9
making=$data/.slurmkit-making-$name
if enroot list | grep -Fqx -e "$name"; then
    [ -e "$making" ] || exit 0
    enroot remove --force "$name"
fi
rm -f -- "$making"
if [ -z "$image" ]; then
    echo "slurmkit: enroot has no container $name on $(hostname), and no image is named" >&2
    exit 1
fi
finish() {
    [ -z "$work" ] || rm -rf -- "$work"
    [ -n "$whole" ] || enroot remove --force "$name" >/dev/null 2>&1 || :
    rm -f -- "$making"
}
trap finish EXIT
case $image in
/* | .*) file=$image ;;
*)
    work=$(mktemp -d "${ENROOT_TEMP_PATH:-${TMPDIR:-/tmp}}/slurmkit.XXXXXX")
    file=$work/image.sqsh
    (flock 8 && enroot import --output "$file" "$image") 8>>"$locks/enroot.lock"
    ;;
esac
touch -- "$making"
enroot create --name "$name" "$file"
whole=yes"""
)

# $1: name, or nothing; $2: text of the configuration script; then options up to `--`; then the
# command. The script removes itself when enroot reads it.
START = (
    """\
name=$1
"""
    + _NAME
    + """\
config=$(mktemp "${TMPDIR:-/tmp}/slurmkit-enroot.XXXXXX") && printf %s "$2" >"$config" || exit
shift 2
options=()
while [ "$1" != -- ]; do options+=("$1"); shift; done
shift
exec enroot start --conf "$config" "${options[@]}" "$name" "$@\""""
)

REMOVE = "name=''\n" + _NAME + 'enroot remove --force "$name"'

# What describes the node itself stays outside: home and shell are set by enroot.
CONFIG = """\
rm -f -- "${BASH_SOURCE[0]}"
environ() {
    local name
    for name in $(compgen -e); do
        case $name in
        ENROOT_* | BASH* | LD_* | PATH | HOME | SHELL | TMPDIR | *PWD | SHLVL | _) continue ;;
        esac
        [[ ${!name} == *$'\\n'* ]] || grep -qs "^$name=" "$ENROOT_ROOTFS/etc/environment" ||
            printf '%s="%s"\\n' "$name" "${!name}"
    done
}
"""

# /etc/rc of an image reads /etc/rc.local before the entry point (enroot's src/docker.sh). Tasks of
# a node share the file: it is changed whole, and only where it says something else.
_HOOKS = """\
hooks() {
    local rc=$ENROOT_ROOTFS/etc/rc.local text='%s'
    if [ -f "$rc" ] && [ "$(cat "$rc")" = "$text" ]; then return; fi
    mkdir -p "${rc%%/*}"
    printf '%%s' "$text" >"$rc.$$"
    mv -f "$rc.$$" "$rc"
}
"""
ENTRYPOINTS = {False: _HOOKS % 'exec "$@"', True: _HOOKS % ""}

CHANGE_DIRECTORY = 'cd -- "$1" && shift && exec "$@"'
