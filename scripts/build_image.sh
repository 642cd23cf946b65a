#!/usr/bin/env bash
# usage: build_image.sh [gpu|cpu]      builds the image of that compose file; gpu by default
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-gpu} in
    gpu) file=docker-compose.yml ;;
    cpu) file=docker-compose-cpu.yml ;;
    *)
        echo "usage: build_image.sh [gpu|cpu]" >&2
        exit 2
        ;;
esac
if ! docker compose version >/dev/null 2>&1; then
    echo "error: docker compose is not installed: install Docker, or serve without it with ./triton_start.sh" >&2
    exit 1
fi
# The compose file has the build's arguments; a second list of them here would drift.
exec docker compose -f "$file" build triton
