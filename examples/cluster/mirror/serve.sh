#!/usr/bin/env bash
# Serve a mirror's folder: fills in nginx.conf.template, and starts nginx in the foreground. Each variable may be set.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${MIRROR_ROOT:?expected the folder of the mirror}"

export MIRROR_ROOT
export MIRROR_LISTEN=${MIRROR_LISTEN:-8080}                      # port, or address:port
export MIRROR_LOG=${MIRROR_LOG:-/dev/stdout}                     # one line a request
export MIRROR_RUN=${MIRROR_RUN:-${TMPDIR:-/tmp}/kernels-mirror}  # the process id

mkdir -p "$MIRROR_RUN"
names=$(sed -n 's/^export \(MIRROR_[A-Z]*\).*/$\1/p' "${BASH_SOURCE[0]}" | xargs)
envsubst "$names" < "$here/nginx.conf.template" > "$MIRROR_RUN/nginx.conf"
exec nginx -e stderr -p "$MIRROR_RUN" -c "$MIRROR_RUN/nginx.conf" "$@"
