#!/usr/bin/env bash
# Makes .venv with all packages and fetches the broker's jars; called by make, with the Python to use. The archives of
# classes with which Java starts faster are made in the background.
# Does nothing if pyproject.toml, the locks and that Python are the same as the last time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${1:-python3}
stamp=.venv/.ready

say() { echo "==> $*"; }
die() {
    echo "error: $1" >&2
    echo "what to do: $2" >&2
    exit 1
}

# What is missing is said before anything is downloaded.
command -v "$python" >/dev/null ||
    die "there is no $python" "install Python 3.11 or newer, or name yours: make PYTHON=/path/to/python3"
version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') ||
    die "$python does not run" "name another one: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$python is Python $version, too old" "install Python 3.11 or newer, or name it: make PYTHON=python3.12"

if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java; else java=java; fi
java_remedy="install a Java runtime 17 or newer (Debian: apt install openjdk-17-jre-headless), or point JAVA_HOME at one"
command -v "$java" >/dev/null || die "there is no $java" "$java_remedy"
java_version=$("$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1) || true
[ -n "$java_version" ] || die "$java does not run" "$java_remedy"
[ "$java_version" -ge 17 ] || die "$java is Java $java_version, too old" "$java_remedy"

wanted=$(echo "# Python $version"; cat pyproject.toml setup.py requirements/build.lock requirements/dev.lock sink/tandem/sink/transcode/*.pyx sink/tandem/sink/transcode/*.pxd sink/tandem/sink/transcode/*.h)
if [ ! -x .venv/bin/python ] || [ ! -e "$stamp" ] || [ "$wanted" != "$(cat "$stamp")" ]; then
    made_with=$(.venv/bin/python -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || true)
    if [ "$made_with" != "$version" ]; then
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            die "$python has no venv module" "install it (Debian: apt install python3-venv), or name another Python"
        say "virtual environment in .venv, Python $version"
        rm -rf .venv
        "$python" -m venv .venv
    fi
    say "packages, about a minute"
    bash scripts/install-locked.sh .venv/bin/python build dev || exit 1
    # Modules for one Python, of an earlier state, would be imported instead of those that are built now.
    rm -f sink/tandem/sink/transcode/*.cpython-*.so
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . ||
        die "pip could not install Tandem itself" "see its message above"
    lacks=$(.venv/bin/python -m pip --disable-pip-version-check check) ||
        die "requirements/ does not name all that is needed: $lacks" "write the locks anew: make lock"
    .venv/bin/python -c 'import tandem.sink.transcode._twin, tandem.sink.transcode._bodies' 2>/dev/null ||
        say "no C compiler: the transcoder in plain Python is used, which is slow; its tests will fail"
    echo "$wanted" >"$stamp"
fi

.venv/bin/python -m tandem.controller.sandbox.jars >/dev/null

{ .venv/bin/python -m tandem.controller.sandbox.broker_classes; .venv/bin/python -m tandem.spark_jobs.spark.spark_classes; } \
    </dev/null >/dev/null 2>&1 &
