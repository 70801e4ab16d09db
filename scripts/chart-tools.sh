#!/usr/bin/env bash
# Gets what the chart's tests need: helm and promtool, built from source with Go and kept in the cache, and the schemas of
# Kubernetes. Go holds every module, these two and what they need, against its checksum database (GOSUMDB).
set -euo pipefail

helm_version=v3.22.0
prometheus_version=v0.305.0
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tandem
helm=$cache/helm-$helm_version/helm
promtool=$cache/promtool-$prometheus_version/promtool

need_go() {
    if ! command -v go >/dev/null; then
        echo "go is not on the PATH: install Go 1.24 or newer, or put $(basename "$1") into $(dirname "$1")" >&2
        exit 1
    fi
    mkdir -p "$(dirname "$1")"
}

if [ ! -x "$helm" ]; then
    need_go "$helm"
    echo "==> building helm $helm_version (once, some minutes)"
    GOBIN=$(dirname "$helm") go install "helm.sh/helm/v3/cmd/helm@$helm_version"
fi
if [ ! -x "$promtool" ]; then
    need_go "$promtool"
    echo "==> building promtool $prometheus_version (once, some minutes)"
    # `go install` refuses modules that replace others, so it is built from a module that needs it.
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
    (
        cd "$build"
        go mod init promtool-build
        go get "github.com/prometheus/prometheus/cmd/promtool@$prometheus_version"
        go build -o promtool.new github.com/prometheus/prometheus/cmd/promtool
    )
    mv "$build/promtool.new" "$promtool"
fi
if ! .venv/bin/python -c 'import kubernetes_validate' 2>/dev/null; then
    echo "==> schemas of Kubernetes"
    bash scripts/install-locked.sh .venv/bin/python chart
fi
echo "$helm" > .venv/helm-path
echo "$promtool" > .venv/promtool-path
