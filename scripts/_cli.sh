# shellcheck shell=bash
# For the download scripts. The project's own triton-sam comes first: it is the version that these scripts belong to.
triton_sam() {
    local own
    own=$(dirname "${BASH_SOURCE[0]}")/../.venv/bin/triton-sam
    if [ -x "$own" ]; then
        "$own" "$@"
    elif command -v triton-sam >/dev/null; then
        triton-sam "$@"
    else
        echo "error: triton-sam is not installed: run \`make demo ONCE=1\` in the project's folder first" >&2
        return 1
    fi
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
