#!/usr/bin/env bash
# Kubernetes, helm and the Spark operator's custom resource definitions out of Go modules, into $KUBE_CACHE. Half an hour of
# processor time the first time, nothing when they are there.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
export GOFLAGS="-mod=mod -buildvcs=false" CGO_ENABLED=0
names="kubectl kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy"
if [ "$(cat "$BIN/kubernetes.version" 2>/dev/null)" != "$KUBE" ]; then
    began=$SECONDS
    mkdir -p "$KUBE_CACHE/src/kubernetes" && cd "$KUBE_CACHE/src/kubernetes"
    # The module of an earlier run would be read by go mod download.
    rm -f go.mod go.sum
    go mod init example.org/kubernetes 2>/dev/null
    go mod download "k8s.io/kubernetes@v$KUBE"
    module=$(go env GOMODCACHE)/k8s.io/kubernetes@v$KUBE
    python3 "$HERE/kubernetes_module.py" "$module/go.mod" "$KUBE" >go.mod
    flags="-s -w"
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X $package.gitVersion=v$KUBE -X $package.gitMajor=${KUBE%%.*} -X $package.gitMinor=$(cut -d. -f2 <<<"$KUBE")"
        flags+=" -X $package.gitTreeState=clean -X $package.buildDate=2026-01-01T00:00:00Z -X $package.gitCommit=none"
    done
    for name in $names; do
        mkdir -p "cmd/$name"
        cp "$module/cmd/$name"/*.go "cmd/$name/"
        rm -f "cmd/$name"/*_test.go
        chmod u+w "cmd/$name"/*
    done
    # One command for all of them: a package that several need is compiled once.
    # shellcheck disable=SC2046
    go build -trimpath -ldflags "$flags" -o "$BIN/" $(printf './cmd/%s ' $names)
    echo "$KUBE" >"$BIN/kubernetes.version"
    echo "Kubernetes $KUBE built in $((SECONDS - began)) s" | tee "$BIN/kubernetes.seconds"
fi
if [ ! -x "$BIN/helm" ]; then
    # The tests of the chart install helm by the same script, once for both.
    (cd "$SOURCE" && bash scripts/chart-tools.sh && ln -sf "$(cat .venv/helm-path)" "$BIN/helm")
fi
if [ ! -d "$KUBE_CACHE/spark-operator-$OPERATOR" ]; then
    cd "$KUBE_CACHE/src" && mkdir -p operator && cd operator && rm -f go.mod && go mod init example.org/operator 2>/dev/null
    go mod download "github.com/kubeflow/spark-operator/v2@v$OPERATOR"
    cp -r "$(go env GOMODCACHE)/github.com/kubeflow/spark-operator/v2@v$OPERATOR/config/crd/bases" "$KUBE_CACHE/spark-operator-$OPERATOR"
fi
