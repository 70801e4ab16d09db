#!/usr/bin/env bash
# Installs what a lock of requirements/ names, every file held against its hash: install-locked.sh PYTHON LOCK…
# What has to be built (PySpark) is built with what is there, which is locked too, and not with what pip would fetch for it.
# A lock names everything, so pip has nothing to resolve: it would look at newer releases than the locked ones where a package is
# wanted with an extra, and refuse them because they have no hash.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1
shift
for lock; do
    "$python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --no-build-isolation \
        --requirement "requirements/$lock.lock" || {
        echo "error: pip could not install requirements/$lock.lock" >&2
        echo "what to do: see its message above; without a network nothing can be installed, and for this Python or" \
            "machine some package may have no wheel: take another Python, such as make PYTHON=python3.11" >&2
        exit 1
    }
done
