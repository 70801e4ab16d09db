#!/usr/bin/env bash
# node.sh NAME: a node in namespaces of its own (network, mounts, processes, host name) with containerd, kubelet and kube-proxy.
# A SIGKILL to the process in $RUN/NAME.pid ends everything on it at once, as a power cut does.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
node=$1
running "$node" && exit 0
D=$KUBE_CACHE/$node
mkdir -p "$D"/{containerd,kubelet,cni,run} /run/tandem-node
for hierarchy in /sys/fs/cgroup/*/; do
    hierarchy=${hierarchy%/}
    case $hierarchy in */unified) continue ;; esac
    [ -L "$hierarchy" ] || mkdir -p "$hierarchy/tandem-$node"
done
# A new cpuset has neither processors nor memory.
for file in cpuset.cpus cpuset.mems; do
    [ ! -f "/sys/fs/cgroup/cpuset/$file" ] || cat "/sys/fs/cgroup/cpuset/$file" >"/sys/fs/cgroup/cpuset/tandem-$node/$file"
done
cat >"$D/containerd.toml" <<TOML
version = 2
root = "$D/containerd/root"
state = "/run/tandem-node/containerd"
[grpc]
  address = "/run/tandem-node/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true # without CAP_SYS_RESOURCE
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$D/cni"
TOML
cat >"$D/cni/10-bridge.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/run/tandem-node/ipam", "ranges": [[{"subnet": "$(node_pods "$node").0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
echo "nameserver $CP" >"$D/resolv.conf"
# Two nodes count the memory of one machine, so each leaves more than half of it.
memory=$(awk '/^MemTotal/ { printf "%dMi", $2 * 0.55 / 1024 }' /proc/meminfo)
cat >"$D/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: /tandem-$node
containerRuntimeEndpoint: unix:///run/tandem-node/containerd.sock
imageServiceEndpoint: unix:///run/tandem-node/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
clusterDNS: [$CP]
clusterDomain: cluster.local
resolvConf: $D/resolv.conf
tlsCertFile: $PKI/$node.crt
tlsPrivateKeyFile: $PKI/$node.key
systemReserved: {memory: $memory}
evictionHard: {memory.available: 100Mi, nodefs.available: 2%, imagefs.available: 2%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
YAML
cat >"$D/proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: 10.244.0.0/16
hostnameOverride: $node
clientConnection: {kubeconfig: $PKI/proxy.conf}
conntrack: {maxPerCore: 0}
YAML
cat >"$D/init.sh" <<INIT
set -e
hostname $node
mount --make-rprivate /
mount --make-rshared /
# cgroup v1 alone: with v2 beside it runc takes it for a mixed one.
umount /sys/fs/cgroup/unified 2>/dev/null || true
mount -t tmpfs none /run/tandem-node -o mode=755
for folder in /var/lib/kubelet /var/log/pods /var/log/containers /var/lib/cni /run/netns; do
    mkdir -p \$folder $D/run\$folder
    if [ \$folder = /run/netns ]; then mount -t tmpfs none /run/netns; else mount --bind $D/run\$folder \$folder; fi
    mount --make-rshared \$folder
done
containerd --config $D/containerd.toml >>$LOGS/$node-containerd.log 2>&1 &
until ctr --address /run/tandem-node/containerd.sock version >/dev/null 2>&1; do sleep 0.2; done
for image in $KUBE_CACHE/images/*.tar; do
    mark=$D/\$(basename \$image).imported
    [ \$mark -nt \$image ] && continue
    ctr --address /run/tandem-node/containerd.sock -n k8s.io images import \$image >>$LOGS/$node-import.log 2>&1 && touch \$mark
done
$BIN/kube-proxy --config=$D/proxy.yaml >>$LOGS/$node-proxy.log 2>&1 &
$BIN/kubelet --config=$D/kubelet.yaml --kubeconfig=$PKI/$node.conf --hostname-override=$node --node-ip=$(node_ip "$node") \
    --root-dir=/var/lib/kubelet --node-labels=topology.kubernetes.io/zone=zone-${node#node} >>$LOGS/$node-kubelet.log 2>&1 &
wait
INIT
setsid nsenter --net="/run/netns/$(node_net "$node")" unshare --mount --pid --uts --ipc --fork --kill-child --mount-proc \
    bash "$D/init.sh" >>"$LOGS/$node.log" 2>&1 </dev/null &
echo $! >"$RUN/$node.pid"
