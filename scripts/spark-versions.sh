#!/usr/bin/env bash
# Runs the tests of all that uses Spark on other releases of PySpark than the locked one: spark-versions.sh VERSION… -- PYTEST…
# Each is put beside the virtual environment, in front of its PySpark, and removed afterwards. Ends with 1 if any run failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

versions=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    versions+=("$1")
    shift
done
[ $# -eq 0 ] || shift

place=$PWD/build/spark-versions
trap 'rm -rf "$place"' EXIT
failed=()
for version in "${versions[@]}"; do
    rm -rf "$place"
    # As released there, and so not held against a hash: nothing of it is kept.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-binary pyspark \
        --target "$place" "pyspark==$version.*" || {
        echo "error: pip could not install PySpark $version" >&2
        echo "what to do: see its message above; without a network nothing can be installed" >&2
        exit 1
    }
    found=$(PYTHONPATH=$place .venv/bin/python -c 'import pyspark; print(pyspark.__version__)')
    [[ $found == "$version".* ]] || {
        echo "error: Python takes PySpark $found instead of $version" >&2
        exit 1
    }
    echo "==> PySpark $found"
    PYTHONPATH=$place .venv/bin/pytest tests/integration -m "spark and not slow" "$@" || failed+=("$found")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "error: tests failed on PySpark ${failed[*]}" >&2
    exit 1
fi
