# Shared by the scripts of this folder. What is built lives below $KUBE_CACHE, what runs talks in network namespaces of its own.
KUBE_CACHE=${TANDEM_KUBE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem/kube}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SOURCE=$(cd "$HERE/../../.." && pwd)
BIN=$KUBE_CACHE/bin
RUN=$KUBE_CACHE/run       # process ids
LOGS=$KUBE_CACHE/logs
PKI=$KUBE_CACHE/pki
KUBE=1.34.4               # k8s.io/kubernetes; its staging modules have the same release as v0.34.4
HELM=3.22.0
OPERATOR=2.4.0            # github.com/kubeflow/spark-operator/v2, for its custom resource definitions
CP=10.88.0.1              # control plane, broker and store, in the network namespace tandem-cp
CP_NET=tandem-cp
NODES="node1 node2"       # 10.88.0.11 and 10.88.0.12, in tandem-node1 and tandem-node2; pods in 10.244.1.0/24 and 10.244.2.0/24
node_net() { echo "tandem-$1"; }
node_ip() { echo "10.88.0.1${1#node}"; }
node_pods() { echo "10.244.${1#node}"; }
in_cp() { nsenter --net="/run/netns/$CP_NET" "$@"; }
running() { [ -f "$RUN/$1.pid" ] && kill -0 "$(cat "$RUN/$1.pid")" 2>/dev/null; }
mkdir -p "$BIN" "$RUN" "$LOGS"
