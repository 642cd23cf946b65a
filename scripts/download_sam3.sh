#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=scripts/_cli.sh
source "$(dirname "${BASH_SOURCE[0]}")/_cli.sh"
download "download_sam3.sh    the checkpoint of SAM 3, which needs a Hugging Face token with access" sam3 full "$@"
