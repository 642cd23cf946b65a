#!/usr/bin/env bash
# usage: health_check.sh [HOST] [PORT]      exit code 0 if masks are served; default: localhost and the service's port 8080
# On Triton's own port (8000) Triton is queried, which does not notice that a model's process has died.
# With TRITON_SAM_TLS_CERTIFICATE set, as for the service, https is tried first; on loopback any certificate is accepted.
set -euo pipefail

if [ $# -gt 2 ] || [[ ${1:-} == -* ]]; then
    sed -n 's/^# \{0,1\}//; 2,4p' "${BASH_SOURCE[0]}" >&2
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0
    exit 2
fi
host=${1:-localhost} port=${2:-8080}
url=http://$host:$port trust=()
case $host in localhost | 127.* | "[::1]") trust=(--insecure) ;; esac
command -v curl >/dev/null || {
    echo "error: curl is not installed: install it (Debian: apt-get install curl)" >&2
    exit 2
}

ask() {
    curl --silent ${trust[@]+"${trust[@]}"} --noproxy '*' --max-time 5 --output "$answer" --write-out '%{http_code}' "$url$1" || true
}

answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
if [ -n "${TRITON_SAM_TLS_CERTIFICATE:-}" ]; then
    url=https://$host:$port
    status=$(ask /health)
    if [ "$status" = 000 ]; then
        url=http://$host:$port
        status=$(ask /health)
        [ "$status" != 000 ] || url=https://$host:$port
    fi
else
    status=$(ask /health)
fi
if [ "$status" = 200 ]; then
    echo "ready: the service at $url says $(cat "$answer")"
elif [ "$status" = 000 ]; then
    echo "not ready: nothing answers at $url" >&2
    exit 1
elif [ "$status" = 503 ]; then
    echo "not ready: the service at $url says $(cat "$answer")" >&2
    exit 1
elif status=$(ask /v2/health/ready) && [ "$status" = 200 ]; then
    echo "ready: Triton at $url; query the service's port to check that its models are alive"
else
    echo "not ready: $url answers $status to /v2/health/ready" >&2
    exit 1
fi
