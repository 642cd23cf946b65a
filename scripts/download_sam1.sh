#!/usr/bin/env bash
set -euo pipefail
# shellcheck source=scripts/_cli.sh
source "$(dirname "${BASH_SOURCE[0]}")/_cli.sh"
download "download_sam1.sh [vit_b|vit_l|vit_h|mobile]    a checkpoint of SAM 1; vit_h by default" sam1 vit_h "$@"
