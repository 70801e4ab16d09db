#!/usr/bin/env bash
# Gets what the chart's tests need: helm, built from source with Go and kept in the cache, and the schemas of Kubernetes.
set -euo pipefail

helm_version=v3.22.0
tools=${XDG_CACHE_HOME:-$HOME/.cache}/tandem/helm-$helm_version

if [ ! -x "$tools/helm" ]; then
    if ! command -v go >/dev/null; then
        echo "go is not on the PATH: install Go 1.24 or newer, or put helm into $tools" >&2
        exit 1
    fi
    echo "==> building helm $helm_version (once, some minutes)"
    mkdir -p "$tools"
    GOBIN="$tools" go install "helm.sh/helm/v3/cmd/helm@$helm_version"
fi
if ! .venv/bin/python -c 'import kubernetes_validate' 2>/dev/null; then
    echo "==> schemas of Kubernetes"
    .venv/bin/pip install --quiet -e '.[chart]'
fi
echo "$tools/helm" > .venv/helm-path
