#!/usr/bin/env bash
# etcd, apiserver, controller manager, scheduler and names, in the network namespace of the control plane.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
mkdir -p "$KUBE_CACHE/etcd"
start() { # name, command
    local name=$1; shift
    running "$name" && return
    in_cp setsid "$@" >>"$LOGS/$name.log" 2>&1 </dev/null &
    echo $! >"$RUN/$name.pid"
}
etcd=http://127.0.0.1:2379
start etcd etcd --data-dir "$KUBE_CACHE/etcd" --listen-client-urls $etcd --advertise-client-urls $etcd --unsafe-no-fsync \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380
# WatchList asks for what etcd 3.4 does not have: with it Spark's client sees no change of a pod.
start apiserver "$BIN/kube-apiserver" --etcd-servers=$etcd --advertise-address="$CP" --bind-address=0.0.0.0 --secure-port=6443 \
    --client-ca-file="$PKI/ca.crt" --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
    --kubelet-client-certificate="$PKI/kubelet-client.crt" --kubelet-client-key="$PKI/kubelet-client.key" \
    --kubelet-certificate-authority="$PKI/ca.crt" --kubelet-preferred-address-types=InternalIP \
    --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local --service-cluster-ip-range=10.96.0.0/16 \
    --feature-gates=WatchList=false --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true
until in_cp "$BIN/kubectl" --kubeconfig="$PKI/admin.conf" get --raw /readyz >/dev/null 2>&1; do
    running apiserver || { tail -5 "$LOGS/apiserver.log" >&2; exit 1; }
    sleep 1
done
start controllers "$BIN/kube-controller-manager" --kubeconfig="$PKI/controllers.conf" --leader-elect=false --use-service-account-credentials \
    --service-account-private-key-file="$PKI/sa.key" --root-ca-file="$PKI/ca.crt" \
    --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key"
start scheduler "$BIN/kube-scheduler" --kubeconfig="$PKI/scheduler.conf" --leader-elect=false
mkdir -p "$KUBE_CACHE/names"
start names dnsmasq --keep-in-foreground --no-daemon --no-resolv --no-hosts --bind-interfaces --listen-address="$CP" \
    --hostsdir="$KUBE_CACHE/names" --local=/cluster.local/ --local=/infra/ --host-record="kafka.infra,$CP" --host-record="s3.infra,$CP" \
    --host-record=kubernetes.default.svc.cluster.local,10.96.0.1 --user=root --pid-file="$RUN/dnsmasq.pid"
start services python3 "$HERE/service_names.py" "$BIN/kubectl" "$PKI/admin.conf" "$KUBE_CACHE/names/hosts" "$RUN/dnsmasq.pid"
