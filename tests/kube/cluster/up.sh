#!/usr/bin/env bash
# up.sh: builds what is not built, then a cluster of two nodes, a broker and a store. Twenty seconds when all is built.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
"$HERE/requirements.sh"
"$HERE/build.sh"
"$HERE/image.sh"
began=$SECONDS
"$HERE/network.sh"
"$HERE/certificates.sh"
"$HERE/control_plane.sh"
if ! running servers; then
    mkdir -p "$KUBE_CACHE/servers"
    rm -f "$KUBE_CACHE/servers/ready"
    PYTHONPATH="$SOURCE/tests" in_cp setsid "$SOURCE/.venv/bin/python" -m kube.servers "$KUBE_CACHE" >>"$LOGS/servers.log" 2>&1 </dev/null &
    echo $! >"$RUN/servers.pid"
fi
for node in $NODES; do "$HERE/node.sh" "$node"; done
waited() { # seconds, what, command
    local until=$((SECONDS + $1)) what=$2; shift 2
    until "$@"; do
        [ $SECONDS -lt $until ] || { echo "error: $what does not come up; logs: $LOGS" >&2; exit 1; }
        sleep 1
    done
}
served() { [ -f "$KUBE_CACHE/servers/ready" ]; }
joined() { [ "$(in_cp "$BIN/kubectl" --kubeconfig="$PKI/admin.conf" get nodes --no-headers 2>/dev/null | grep -c ' Ready ')" = 2 ]; }
waited 90 "the broker or the store" served
waited 180 "a node" joined
echo "cluster up in $((SECONDS - began)) s"
