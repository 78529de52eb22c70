"""The constant shell texts that start enroot on a node; what users give are their arguments."""

from __future__ import annotations

_NAME = '[ -n "$name" ] || name=slurmkit_${SLURM_JOB_ID}_${SLURM_RESTART_COUNT:-0}\n'

# $1: image as enroot writes it, or nothing; $2: name of a container that is kept, or nothing.
# The lock keeps two jobs of one person from filling the same cache of layers at once, on all
# nodes where home directories are shared.
CREATE = (
    """\
set -eu
image=$1 name=$2 work='' whole=''
"""
    + _NAME
    + """\
locks=${XDG_CACHE_HOME:-$HOME/.cache}/slurmkit
mkdir -p "$locks"
exec 9>>"$locks/enroot.lock"
flock 9
if enroot list | grep -Fqx -e "$name"; then exit 0; fi
if [ -z "$image" ]; then
    echo "slurmkit: enroot has no container $name on $(hostname), and no image is named" >&2
    exit 1
fi
finish() {
    [ -z "$work" ] || rm -rf -- "$work"
    [ -n "$whole" ] || enroot remove --force "$name" >/dev/null 2>&1 || :
}
trap finish EXIT
case $image in
/* | .*) file=$image ;;
*)
    work=$(mktemp -d "${ENROOT_TEMP_PATH:-${TMPDIR:-/tmp}}/slurmkit.XXXXXX")
    file=$work/image.sqsh
    enroot import --output "$file" "$image"
    ;;
esac
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

# /etc/rc of an image reads /etc/rc.local before the entry point (enroot's src/docker.sh).
ENTRYPOINTS: dict[bool | None, str] = {
    None: "",
    False: """hooks() { printf '%s\\n' 'exec "$@"' >"$ENROOT_ROOTFS/etc/rc.local"; }\n""",
    True: """hooks() { : >"$ENROOT_ROOTFS/etc/rc.local"; }\n""",
}

CHANGE_DIRECTORY = 'cd -- "$1" && shift && exec "$@"'
