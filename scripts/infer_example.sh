#!/usr/bin/env bash
# usage: infer_example.sh HOST PORT [IMAGE_B64] [PROMPT_JSON]      one mask from Triton's HTTP port (8000), printed as JSON
#   IMAGE_B64: an image file as base64, or @FILE that contains it; by default a small photograph of a cup of coffee
#   PROMPT_JSON: what to segment, by default a click on its spoon; an empty one ('' or '{}') shows the error response
#   MODEL (sam2): Triton's name of the model
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

if [ $# -lt 2 ] || [ $# -gt 4 ]; then
    sed -n 's/^# \{0,1\}//; 2,5p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
url=http://$1:$2/v2/models/${MODEL:-sam2}/infer
image=${3:-}
if [ -z "$image" ]; then
    image=$(base64 -w0 "$here/example.jpg")
elif [ "${image:0:1}" = @ ]; then
    image=$(cat "${image:1}")
fi
image=${image//[$'\n\r']/}
prompt=${4-'{"points": [[146, 116]], "labels": [1], "boxes": []}'}

[[ $prompt == *[![:space:]]* ]] || prompt='{}'

# The prompt is sent as a string inside JSON.
prompt=${prompt//\\/\\\\}
prompt=${prompt//\"/\\\"}
prompt=${prompt//[$'\n\r\t']/ }

answer=$(mktemp)
trap 'rm -f "$answer"' EXIT
# Sent through a pipe: an image may exceed the maximum length of a command line.
if ! status=$(
    curl --silent --show-error --noproxy '*' --max-time 120 --output "$answer" --write-out '%{http_code}' \
        --header 'Content-Type: application/json' --data-binary @- "$url" <<REQUEST
{"inputs": [
  {"name": "image_b64", "datatype": "BYTES", "shape": [1], "data": ["$image"]},
  {"name": "prompt_json", "datatype": "BYTES", "shape": [1], "data": ["$prompt"]}
]}
REQUEST
); then
    echo "error: nothing answers at $url: start the server first (./triton_start.sh)" >&2
    exit 1
fi
cat "$answer"
echo
echo "HTTP $status from $url" >&2
[ "$status" = 200 ]
