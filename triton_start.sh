#!/usr/bin/env bash
# usage: triton_start.sh [auto|docker|embedded]      starts Triton and the service in the background, waits, says where
#   auto: in NVIDIA's container where a Docker engine answers, else the embedded server; a GPU is used where one is found
#   HTTP_PORT (8000), GRPC_PORT (8001), METRICS_PORT (8002), SERVICE_PORT (8080): where they listen on this machine
#   TRITON_SAM_DEVICES (every GPU): GPUs of the segmenters, like 0,1; cpu: none of them
#   READY_SECONDS (1200): how long to wait; the first start downloads weights, and builds the image in Docker
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/_cli.sh
source "$here/scripts/_cli.sh"

say() { echo "triton_start: $*"; }
fail() {
    echo "error: $*" >&2
    exit 1
}

has_gpu() { nvidia-smi -L >/dev/null 2>&1; }
wants_gpu() { [[ ${TRITON_SAM_DEVICES:-} != cpu* ]] && has_gpu; }
has_docker() { docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1; }
docker_has_gpu() { docker info --format '{{json .Runtimes}} {{json .CDISpecDirs}}' 2>/dev/null | grep -q nvidia; }

is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

check_ports() {
    local name
    for name in HTTP_PORT GRPC_PORT METRICS_PORT SERVICE_PORT; do
        if ! [[ ${!name} =~ ^[0-9]{1,5}$ ]] || [ "${!name}" -lt 1 ] || [ "${!name}" -gt 65535 ]; then
            fail "$name=${!name} is no port: use a number from 1 to 65535"
        fi
        if is_taken "${!name}"; then
            fail "port ${!name} is taken: stop what uses it, or choose another with $name=..."
        fi
    done
}

check_devices() {
    local chosen=${TRITON_SAM_DEVICES:-} there name
    there=$(nvidia-smi -L 2>/dev/null | sed -n 's/^GPU \([0-9]*\):.*/\1/p' | paste -sd,) || true
    for name in ${chosen//,/ }; do
        if [[ $name =~ ^[0-9]+$ && ,$there, != *,$name,* ]]; then
            fail "TRITON_SAM_DEVICES=$chosen names GPU $name, but this machine has ${there:-none}"
        fi
    done
    if wants_gpu; then say "GPUs to use: ${chosen:-all}"; fi
}

# wait_until_ready ALIVE LOG: ALIVE is a command that fails when there is nothing left to wait for, LOG shows why
wait_until_ready() {
    local deadline=$((SECONDS + READY_SECONDS))
    until "$here/scripts/health_check.sh" 127.0.0.1 "$SERVICE_PORT" >/dev/null 2>&1; do
        if ! "$1"; then
            "$2" >&2
            fail "the server ended before it was ready: its last words are above (\`$stop\` ends what may be left of it)"
        fi
        if [ "$SECONDS" -ge "$deadline" ]; then
            "$2" >&2
            fail "the server was not ready after $READY_SECONDS s: its last words are above. It goes on starting;" \
                "stop it with \`$stop\`, or wait longer with READY_SECONDS=..."
        fi
        sleep 0.5
    done
}

# The functions inside are called by their names.
# shellcheck disable=SC2317,SC2329
start_docker() {
    local file=docker-compose-cpu.yml
    if wants_gpu && docker_has_gpu; then
        file=docker-compose.yml
    elif wants_gpu; then
        say "a GPU is here but Docker cannot use it: install NVIDIA's container toolkit; going on with the processor"
    fi
    say "starting NVIDIA's container ($file)"
    # One that ends and is started again and again runs too, at times; once may be a download that broke off.
    container_runs() {
        local state
        state=$(docker inspect --format '{{.State.Running}} {{.RestartCount}}' sam2-triton-server 2>/dev/null) || return 1
        [ "${state% *}" = true ] && [ "${state#* }" -le 1 ]
    }
    container_log() { docker logs --tail 20 sam2-triton-server; }
    stop="docker compose -f $here/$file down"
    log="docker logs sam2-triton-server"
    docker compose -f "$here/$file" up --detach --build triton
    wait_until_ready container_runs container_log
}

# shellcheck disable=SC2317,SC2329
start_embedded() {
    local state pid
    # Here and not in the background: an error of this has to be seen.
    find_triton_sam >/dev/null
    state=${TRITON_SAM_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/triton-sam}/logs
    mkdir -p "$state"
    log=$state/start-$SERVICE_PORT.log
    if wants_gpu; then say "starting the embedded server"; else say "no GPU: starting the embedded server"; fi
    # A session of its own: it goes on when this terminal is closed.
    setsid "$here/scripts/run_triton.sh" >"$log" 2>&1 </dev/null &
    pid=$!
    stop="kill $pid"
    server_runs() { kill -0 "$pid" 2>/dev/null; }
    server_log() { tail -n 20 "$log"; }
    wait_until_ready server_runs server_log
}

mode=${1:-auto}
case $mode in
    auto | docker | embedded) ;;
    *)
        sed -n 's/^# \{0,1\}//; 2,6p' "${BASH_SOURCE[0]}" >&2
        [[ $mode == -h || $mode == --help ]] && exit 0
        exit 2
        ;;
esac
export HTTP_PORT=${HTTP_PORT:-8000} GRPC_PORT=${GRPC_PORT:-8001} METRICS_PORT=${METRICS_PORT:-8002}
export SERVICE_PORT=${SERVICE_PORT:-8080}
READY_SECONDS=${READY_SECONDS:-1200}
if [ "$mode" = docker ] && ! has_docker; then
    fail "no Docker engine with compose answers: start Docker, or use \`triton_start.sh embedded\`"
fi
if [ "$mode" = auto ]; then
    if has_docker; then mode=docker; else mode=embedded; fi
fi
command -v curl >/dev/null || fail "curl is not installed, which the wait needs: install it (Debian: apt-get install curl)"
check_ports
check_devices
"start_$mode"
scheme=http
[ "$mode" = docker ] || [ -z "${TRITON_SAM_TLS_CERTIFICATE:-}" ] || scheme=https
say "ready after $SECONDS s"
say "  service  $scheme://127.0.0.1:$SERVICE_PORT (the web page; documentation at /docs)"
say "  HTTP     http://127.0.0.1:$HTTP_PORT"
say "  gRPC     grpc://127.0.0.1:$GRPC_PORT"
say "  metrics  http://127.0.0.1:$METRICS_PORT/metrics"
say "  log      $log"
say "  stop     $stop"
