#!/usr/bin/env bash
# An authority, a certificate for each part of Kubernetes and for the broker, and kubeconfigs.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
mkdir -p "$PKI" && cd "$PKI"
[ -f ca.crt ] || openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 30 -subj /CN=tandem-kube 2>/dev/null
[ -f sa.key ] || { openssl genrsa -out sa.key 2048 2>/dev/null; openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null; }
certificate() { # file, subject, alternative names
    [ -f "$1.crt" ] && return
    openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2>/dev/null
    printf 'keyUsage=digitalSignature,keyEncipherment\nextendedKeyUsage=serverAuth,clientAuth\n%s\n' "${3:+subjectAltName=$3}" >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
}
kubeconfig() {
    [ -f "$1.conf" ] && return
    kc() { "$BIN/kubectl" config --kubeconfig="$1.new" "${@:2}" >/dev/null; }
    kc "$1" set-cluster tandem --server="https://$CP:6443" --certificate-authority=ca.crt --embed-certs
    kc "$1" set-credentials user --client-certificate="$1.crt" --client-key="$1.key" --embed-certs
    kc "$1" set-context tandem --cluster=tandem --user=user
    kc "$1" use-context tandem
    mv "$1.new" "$1.conf"
}
local_name=kubernetes.default.svc.cluster.local
certificate apiserver /CN=kube-apiserver "IP:$CP,IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:$local_name"
certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
certificate broker /CN=kafka.infra "DNS:kafka.infra,IP:$CP"
for each in admin:/O=system:masters/CN=admin controllers:/CN=system:kube-controller-manager scheduler:/CN=system:kube-scheduler \
    proxy:/CN=system:kube-proxy; do
    certificate "${each%%:/*}" "/${each#*:/}"
    kubeconfig "${each%%:/*}"
done
for node in $NODES; do
    certificate "$node" "/O=system:nodes/CN=system:node:$node" "IP:$(node_ip "$node"),DNS:$node"
    kubeconfig "$node"
done
cat broker.key broker.crt ca.crt >broker.pem
