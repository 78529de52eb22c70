# What the scripts say: steps with the time since the start, and one line for an error.
# shellcheck shell=bash

started=${started:-$EPOCHREALTIME}

elapsed() {
    local micro=$((${EPOCHREALTIME//[!0-9]/} - ${started//[!0-9]/}))
    printf '%d.%d' $((micro / 1000000)) $((micro / 100000 % 10))
}

step() { printf '[%6s s] %s\n' "$(elapsed)" "$*" >&2; }
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}
usage_error() {
    printf '%s: %s (see %s --help)\n' "${0##*/}" "$*" "$0" >&2
    exit 2
}
