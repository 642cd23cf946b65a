#!/usr/bin/env bash
# usage: SAM2_CHECKPOINT=finetuned.pt run_triton_custom.sh [MODEL_REPO]      serves your own checkpoint of SAM 2 or 2.1
#   SAM2_MODEL_CFG (sam2_hiera_l.yaml): its network; MODEL_REPO (custom_model_repository): the folder of its graphs
#   HTTP_PORT, GRPC_PORT, METRICS_PORT, SERVICE_PORT: as run_triton.sh. The conversion needs torch.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=scripts/_cli.sh
source "$here/_cli.sh"

if [ $# -gt 1 ] || [[ ${1:-} == -* ]]; then
    sed -n 's/^# \{0,1\}//; 2,4p' "${BASH_SOURCE[0]}" >&2
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0
    exit 2
fi
if [ -z "${SAM2_CHECKPOINT:-}" ]; then
    echo "error: SAM2_CHECKPOINT is not set: name the checkpoint's file with it" >&2
    exit 2
fi
if [ ! -e "$SAM2_CHECKPOINT" ]; then
    echo "error: $SAM2_CHECKPOINT does not exist: name the checkpoint's file with SAM2_CHECKPOINT" >&2
    exit 2
fi

# Meta's names of the networks: sam2_hiera_l.yaml, configs/sam2.1/sam2.1_hiera_b+.yaml
config=$(basename "${SAM2_MODEL_CFG:-sam2_hiera_l.yaml}" .yaml)
case ${config##*_} in
    t) size=tiny ;;
    s) size=small ;;
    b+) size=base_plus ;;
    l) size=large ;;
    *) size= ;;
esac
family=${config%_hiera_*}
if [ -z "$size" ] || [[ $family != sam2 && $family != sam2.1 ]]; then
    echo "error: SAM2_MODEL_CFG=${SAM2_MODEL_CFG:-} is not a network of SAM 2: use sam2_hiera_{t,s,b+,l}.yaml or" \
        "sam2.1_hiera_{t,s,b+,l}.yaml" >&2
    exit 2
fi
repository=${1:-custom_model_repository}
triton_sam setup "$family:$size" --checkpoint "$SAM2_CHECKPOINT" --model-repository "$repository"
exec "$here/run_triton.sh" "$repository"
