#!/usr/bin/env bash
# usage: run_triton.sh [MODEL_REPO]     serves until Ctrl-C; the default repository is that of `triton-sam setup`
#   HTTP_PORT (8000), GRPC_PORT (8001), METRICS_PORT (8002), SERVICE_PORT (8080): ports to listen on; 0 takes a free one
set -euo pipefail
# shellcheck source=scripts/_cli.sh
source "$(dirname "${BASH_SOURCE[0]}")/_cli.sh"

if [ $# -gt 1 ] || [[ ${1:-} == -* ]]; then
    sed -n 's/^# \{0,1\}//; 2,3p' "${BASH_SOURCE[0]}" >&2
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0
    exit 2
fi
options=(--http-port "${HTTP_PORT:-8000}" --grpc-port "${GRPC_PORT:-8001}")
options+=(--metrics-port "${METRICS_PORT:-8002}" --service-port "${SERVICE_PORT:-8080}")
if [ -n "${1:-}" ]; then
    options+=(--model-repository "$1")
fi
program=$(find_triton_sam)
# exec, so that signals to the script reach the server.
exec "$program" serve "${options[@]}"
