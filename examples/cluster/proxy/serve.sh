#!/usr/bin/env bash
# Serve the caching proxy: fills in nginx.conf.template, and starts nginx in the foreground. Each variable may be set.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=${PROXY_STATE:-$PWD/kernels-proxy}

export PROXY_LISTEN=${PROXY_LISTEN:-8080}                     # port, or address:port
export PROXY_UPSTREAM=${PROXY_UPSTREAM:-https://huggingface.co}
export PROXY_CACHE=${PROXY_CACHE:-$state/cache}
export PROXY_CACHE_SIZE=${PROXY_CACHE_SIZE:-200g}             # of files and listings of commits
export PROXY_MOVING_SIZE=${PROXY_MOVING_SIZE:-10g}            # of branches
export PROXY_BRANCHES=${PROXY_BRANCHES:-minute}               # how old they may be: a second, minute, hour or day
export PROXY_LOG=${PROXY_LOG:-/dev/stdout}                    # one line a request
export PROXY_RUN=${PROXY_RUN:-$state/run}                     # sockets: at most some 90 characters
export PROXY_RESOLVER=${PROXY_RESOLVER:-$(awk '/^nameserver/ { print ($2 ~ /:/) ? "[" $2 "]" : $2 }' /etc/resolv.conf | xargs)}
export PROXY_CA=${PROXY_CA:-/etc/ssl/certs/ca-certificates.crt}
# Where the Hub's redirects of large files may lead (https://huggingface.co/docs/hub/models-downloading).
export PROXY_FILE_HOSTS=${PROXY_FILE_HOSTS:-'^https://([a-z0-9-]+\.)+(hf\.co|huggingface\.co)'}

mkdir -p "$PROXY_CACHE" "$PROXY_RUN"
rm -f "$PROXY_RUN"/*.sock  # left by a proxy that was killed
names=$(sed -n 's/^export \(PROXY_[A-Z_]*\)=.*/$\1/p' "${BASH_SOURCE[0]}" | xargs)
envsubst "$names" < "$here/nginx.conf.template" > "$PROXY_RUN/nginx.conf"
exec nginx -e stderr -p "$PROXY_RUN" -c "$PROXY_RUN/nginx.conf" "$@"
