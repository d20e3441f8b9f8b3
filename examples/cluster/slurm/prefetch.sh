#!/usr/bin/env bash
# On a login node, which has a network and no GPU. Run it again when the lock has changed: only what is new is fetched.
set -euo pipefail

PROJECT=${PROJECT:-$PWD}
KERNELS_FOLDER=${KERNELS_FOLDER:-$PROJECT/kernels}
TARGETS=${TARGETS:-torch2.9-cu128-x86_64-linux+sm_90} # one or more, with spaces between them

arguments=()
for target in $TARGETS; do
    arguments+=(--target "$target")
done
kernels download --lockfile "$PROJECT/kernels.lock" "${arguments[@]}" --to "$KERNELS_FOLDER"
kernels mirror "$KERNELS_FOLDER" --verify # everything arrived
