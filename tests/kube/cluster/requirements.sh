#!/usr/bin/env bash
# Fails with one line where a cluster cannot run.
set -euo pipefail
refuse() { echo "error: make kube-test: $1" >&2; exit 2; }
[ "$(uname -s)" = Linux ] || refuse "needs Linux"
[ "$(id -u)" = 0 ] || refuse "needs root, for namespaces, mounts and cgroups"
unshare --mount --pid --uts --ipc --net --fork true 2>/dev/null || refuse "this machine allows no new namespaces"
[ -d /sys/fs/cgroup/memory ] || refuse "needs cgroup v1 (/sys/fs/cgroup/memory); cgroup v2 was not tried"
missing=
for program in containerd runc etcd conntrack iptables ipset dnsmasq jq debootstrap buildah go gcc openssl ip nsenter; do
    command -v "$program" >/dev/null || missing+=" $program"
done
[ -x /usr/lib/cni/bridge ] || missing+=" /usr/lib/cni/bridge"
packages="containerd runc etcd-server containernetworking-plugins conntrack iptables ipset dnsmasq-base jq debootstrap buildah"
[ -z "$missing" ] || refuse "not found:$missing; on Debian 12: apt-get install --no-install-recommends $packages"
