#!/usr/bin/env bash
# The network namespaces and a bridge in that of the control plane. The machine's own network is not touched.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
[ -e "/run/netns/$CP_NET" ] && exit 0
ip netns add "$CP_NET"
in_cp ip link set lo up
in_cp ip link add br0 type bridge
in_cp ip addr add "$CP/24" dev br0
in_cp ip link set br0 up
in_cp sysctl -qw net.ipv4.ip_forward=1
for node in $NODES; do
    ip netns add "$(node_net "$node")"
    in_cp ip link add "v-$node" type veth peer name eth0 netns "$(node_net "$node")"
    in_cp ip link set "v-$node" master br0 up
    inside() { nsenter --net="/run/netns/$(node_net "$node")" "$@"; }
    inside ip link set lo up
    inside ip addr add "$(node_ip "$node")/24" dev eth0
    inside ip link set eth0 up
    inside ip route add default via "$CP"
    inside sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1 || true
    for other in $NODES; do
        [ "$other" = "$node" ] || inside ip route add "$(node_pods "$other").0/24" via "$(node_ip "$other")"
    done
done
for node in $NODES; do in_cp ip route replace "$(node_pods "$node").0/24" via "$(node_ip "$node")"; done
