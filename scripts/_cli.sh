# shellcheck shell=bash
# Shared by the shell scripts of this folder. The triton-sam of the project's .venv is preferred: it is the version that
# the scripts belong to.
find_triton_sam() {
    local own
    own=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin/triton-sam
    if [ -x "$own" ]; then
        echo "$own"
    elif ! command -v triton-sam; then
        echo "error: triton-sam is not installed: run \`make demo ONCE=1\` in the project's folder first" >&2
        return 1
    fi
}

triton_sam() {
    local program
    program=$(find_triton_sam) || return 1
    "$program" "$@"
}

# download USAGE FAMILY DEFAULT [VARIANT]
download() {
    local usage=$1 family=$2 variant=${4:-$3}
    case $variant in
        -h | --help) echo "usage: $usage" && return ;;
    esac
    if [ $# -gt 4 ] || [[ $variant == -* ]]; then
        echo "usage: $usage" >&2
        return 2
    fi
    triton_sam pull "$family:$variant" --checkpoint
}
