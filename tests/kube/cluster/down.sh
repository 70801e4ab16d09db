#!/usr/bin/env bash
# Ends what up.sh started, by its process ids and its network namespace, and forgets the cluster. What was built stays.
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
for node in $NODES; do running "$node" && kill -9 "$(cat "$RUN/$node.pid")"; done
if [ -e "/run/netns/$CP_NET" ]; then
    inside() { ip netns pids "$CP_NET"; }
    # shellcheck disable=SC2046
    [ -z "$(inside)" ] || kill $(inside) 2>/dev/null
    for _ in $(seq 1 30); do [ -n "$(inside)" ] || break; sleep 1; done
    # shellcheck disable=SC2046
    [ -z "$(inside)" ] || kill -9 $(inside) 2>/dev/null
fi
sleep 1
for name in "$CP_NET" $(for node in $NODES; do node_net "$node"; done); do
    [ ! -e "/run/netns/$name" ] || ip netns del "$name"
done
for node in $NODES; do
    for hierarchy in /sys/fs/cgroup/*/tandem-"$node"; do
        [ ! -d "$hierarchy" ] || find "$hierarchy" -depth -type d -exec rmdir {} + 2>/dev/null
    done
    # The images that a node has imported stay with it.
    rm -rf "$KUBE_CACHE/$node/run" "$KUBE_CACHE/$node/cni"
done
rm -rf "$KUBE_CACHE"/{etcd,servers,pki,names,run} "$KUBE_CACHE/logs"
true
