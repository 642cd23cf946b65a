#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=scripts/_cli.sh
source "$(dirname "${BASH_SOURCE[0]}")/_cli.sh"
download "download_sam2.sh [tiny|small|base_plus|large]    a checkpoint of SAM 2.1; base_plus by default" sam2.1 base_plus "$@"
