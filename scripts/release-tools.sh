#!/usr/bin/env bash
# Makes build/release-tools, the environment of what only releases need: uv, pip-audit, hadolint. Does nothing if it is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=build/release-tools
if ! cmp --silent requirements/release.lock "$tools/.ready"; then
    echo "==> tools for releases" >&2
    rm -rf "$tools"
    .venv/bin/python -m venv "$tools"
    bash scripts/install-locked.sh "$tools/bin/python" release
    cp requirements/release.lock "$tools/.ready"
fi
