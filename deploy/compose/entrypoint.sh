#!/usr/bin/env bash
# usage: triton-sam-entrypoint healthy          whether the service in this container says that it serves
#        triton-sam-entrypoint ARGUMENTS...     `triton-sam ARGUMENTS`; the token may stand in TRITON_SAM_TOKEN_FILE
set -euo pipefail

if [ "${1:-}" = healthy ]; then
    # No curl in the image is relied on, and no proxy of the environment is asked about this very container. Its
    # certificate is in the name that others know it by, not in that of the loopback.
    exec python3 - "${SERVICE_PORT:-8080}" <<'ASK'
import os
import ssl
import sys
import urllib.request

context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
scheme = "https" if os.environ.get("TRITON_SAM_TLS_CERTIFICATE") else "http"
try:
    opener.open(f"{scheme}://127.0.0.1:{sys.argv[1]}/health", timeout=4).close()
except OSError as error:
    sys.exit(f"not serving: {error}")
ASK
fi

# A secret is a file in a container; /dev/null means that there is none. The variable wins where both are given.
if [ -z "${TRITON_SAM_TOKEN:-}" ] && [ -n "${TRITON_SAM_TOKEN_FILE:-}" ]; then
    if ! TRITON_SAM_TOKEN=$(cat "$TRITON_SAM_TOKEN_FILE"); then
        echo "error: the token's file $TRITON_SAM_TOKEN_FILE cannot be read: make it readable for user $(id -u)" >&2
        exit 1
    fi
    # A file that somebody named and nothing stands in: were that no token, the service would be open to everybody.
    if [ -f "$TRITON_SAM_TOKEN_FILE" ] && [[ $TRITON_SAM_TOKEN != *[![:space:]]* ]]; then
        echo "error: the token's file $TRITON_SAM_TOKEN_FILE is empty: write the token into it, or name no file" >&2
        exit 1
    fi
    export TRITON_SAM_TOKEN
fi
exec triton-sam "$@"
