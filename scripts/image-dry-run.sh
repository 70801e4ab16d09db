#!/usr/bin/env bash
# Goes through the steps of the Dockerfile without an engine, for the whole image and for the one without Spark: the wheel
# from what .dockerignore lets through, a fresh environment with it and nothing else, the list of its parts, and then what
# pods do, as user 10001 on a read-only root file system where this machine lets us (as root on Linux). Uses build/image,
# which it makes anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$PWD/build/image
python=$PWD/.venv/bin/python
say() { echo "==> $*"; }
die() {
    echo "error: $*" >&2
    exit 1
}

rm -rf "$work"
mkdir -p "$work/src" "$work/wheels"
chmod 755 "$work"

say "lint"
bash scripts/release-tools.sh
build/release-tools/bin/hadolint Dockerfile
bash -n image/entrypoint.sh

say "context"
# The sources of COPY lines that don't come from another stage.
copied=$(sed -n 's/^COPY \([^-].*\) [^ ]*$/\1/p' Dockerfile | tr ' ' '\n' | sort -u)
for name in $copied; do
    grep -qx "!${name%%/*}" .dockerignore || die "$name is copied by the Dockerfile and kept out by .dockerignore"
done
# shellcheck disable=SC2086 # names without spaces, one word each
git ls-files -co --exclude-standard -- $copied | tar -cf - -T - | tar -xf - -C "$work/src"

say "wheels"
pip=("$work/build/bin/pip" --quiet --disable-pip-version-check)
"$python" -m venv "$work/build"
"${pip[@]}" install --require-hashes --no-deps --requirement "$work/src/requirements/build.lock"
"${pip[@]}" wheel --require-hashes --no-deps --no-build-isolation --wheel-dir "$work/wheels" \
    --requirement "$work/src/requirements/runtime.lock"
epoch=$(sed -n 's/^ARG SOURCE_DATE_EPOCH=//p' Dockerfile)
(cd "$work/src" && SOURCE_DATE_EPOCH=$epoch "$work/build/bin/python" -m build --no-isolation --wheel \
    --outdir "$work/wheels" >"$work/build.log" 2>&1) ||
    { tail -n 30 "$work/build.log" >&2 && die "the wheel can't be built"; }

# The image's Python is anybody's to read; one in somebody's home is not.
base=$("$python" -c 'import sys; print(sys._base_executable)')
runner=()
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null && command -v unshare >/dev/null; then
    runner=(setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all)
    wanted=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    for candidate in "$base" "/usr/bin/$wanted" "/usr/local/bin/$wanted"; do
        # By a shell in between: setpriv itself still has root's way through folders.
        if "${runner[@]}" sh -c "$candidate -c ''" 2>/dev/null; then found=$candidate && break; fi
    done
    if [ -n "${found:-}" ]; then base=$found; else runner=(); fi
fi

"$python" -m venv "$work/sbom"
"$work/sbom/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps \
    --requirement "$work/src/requirements/sbom.lock"
# The Dockerfile's own words for which Java is installed.
java_rule=$(sed -n 's/^RUN \(case .* java= ;; esac\) \\$/\1/p' Dockerfile)
[ -n "$java_rule" ] || die "the Dockerfile does not say for which EXTRAS it installs Java"

# environment EXTRAS: makes $opt, which is /opt/tandem of the image with these extras.
environment() {
    local part=--without-spark java found
    say "environment with [$1], by $base"
    mkdir -p "$opt/classes"
    "$base" -m venv --without-pip "$opt/venv"
    "${pip[@]}" --python "$opt/venv/bin/python" install --no-index --find-links "$work/wheels" "tandem-kafka-backup[$1]"
    "${pip[@]}" --python "$opt/venv/bin/python" check
    "$opt/venv/bin/python" -c 'import tandem.sink.transcode._twin, tandem.sink.transcode._bodies'
    if "$opt/venv/bin/python" -c 'import pytest' 2>/dev/null; then die "the environment has packages for developers"; fi
    cp image/main.py image/entrypoint.sh "$opt/"
    java=$(EXTRAS=$1 bash -c "$java_rule; echo \$java")
    case ",$1," in
        *,spark,*)
            part=
            [ -n "$java" ] || die "the Dockerfile installs no Java for EXTRAS=$1"
            say "archive of Spark's classes"
            TANDEM_CLASS_ARCHIVE="$opt/classes" "$opt/venv/bin/python" -m tandem.spark_jobs.spark.spark_classes
            ;;
        *)
            [ -z "$java" ] || die "the Dockerfile installs $java for EXTRAS=$1"
            found=$(find "$opt" -iname 'pyspark*' -o -iname 'py4j*' -o -name '*.jar' -o -name 'libjvm.*' -o -name java)
            [ -z "$found" ] || die "an image without Spark has $(head -1 <<<"$found")"
            ;;
    esac
    chmod -R a+rX "$opt/classes"
    say "list of its parts"
    # shellcheck disable=SC2086 # one option or none
    (cd "$work/src" && "$work/sbom/bin/python" -m supply_chain.sbom $part --python "$opt/venv/bin/python" \
        --output "$opt/sbom.cdx.json")
    say "/opt/tandem with [$1]: $(du -sm "$opt" | cut -f1) MB; beside it: ${java:-no Java}"
}

say "a backup to look at"
mkdir -p "$work/tmp/backup"
PYTHONPATH=tests "$python" - "$work/tmp/backup" <<'EOF'
import sys
from pathlib import Path
from support.backups.build_backup import Backup, TopicSpec, records
from tandem.sink.store.file_store import FileStore
store = FileStore(Path(sys.argv[1]))
backup = Backup.claim(store, instance="a", topics=[TopicSpec("orders", partitions=2)])
backup.commit(records("orders", 0, range(1000)))
backup.complete()
EOF
cat >"$work/tandem.yaml" <<EOF
pair: shop
topics: {include: [orders]}
kafka: {bootstrap.servers: "127.0.0.1:9"}
store: {root: "file://$work/tmp/backup"}
EOF

cat >"$work/inside.sh" <<'EOF'
set -euo pipefail
tmp=$work/tmp # the only place that can be written, like the image's /tmp
export PATH="$opt/venv/bin:$PATH" PYSPARK_PYTHON="$opt/venv/bin/python" TANDEM_CONFIG="$work/tandem.yaml"
export TANDEM_CLASS_ARCHIVE="$opt/classes"
export PYTHONDONTWRITEBYTECODE=1 HOME=$tmp TMPDIR=$tmp SPARK_LOCAL_DIRS=$tmp JAVA_TOOL_OPTIONS=-Djava.io.tmpdir=$tmp
writable() { (: >"$1") 2>/dev/null && rm -f "$1" && echo "can be written" || echo "read-only"; }
# Spark's driver has one stream for results and progress, which comes first.
findings() { sed -n '/^{/,$p' "$1" | python -c 'import json, sys; print("findings:", len(json.load(sys.stdin)["findings"]))'; }
cd "$work"
echo "==> user $(id -u); root file system: $(writable /a-file); working directory: $(writable ./a-file)"
"$opt/entrypoint.sh" --version
"$opt/entrypoint.sh" run --help >"$tmp/help" && grep -q SIGTERM "$tmp/help"
"$opt/entrypoint.sh" check
"$opt/entrypoint.sh" version -o json >"$tmp/version.json"
"$opt/entrypoint.sh" config show -o json |
    python -c 'import json, sys; assert json.load(sys.stdin)["config"]["pair"] == "shop"'
python -c 'import tandem.sink.transcode._twin, tandem.sink.transcode._bodies'
if python -c 'import json, sys; sys.exit(json.load(open(sys.argv[1]))["extras"]["spark"])' "$tmp/version.json"; then
    echo "==> verify, where there is no Spark"
    code=0
    "$opt/entrypoint.sh" verify >"$tmp/verify.log" 2>&1 || code=$?
    { [ $code = 2 ] && grep "extra \[spark\]" "$tmp/verify.log"; } || { cat "$tmp/verify.log" >&2 && exit 1; }
    exit 0
fi
python -c 'import os; from tandem.spark_jobs.spark.spark_classes import find_spark_archive as find; assert find(os.environ, {}).ready()'
echo "==> verify, by Spark"
"$opt/entrypoint.sh" verify --master "local[1,4]" -o json >"$tmp/verify.json"
findings "$tmp/verify.json"
echo "==> verify, as Spark starts a driver on Kubernetes"
printf 'spark.master=local[1,4]\nspark.ui.enabled=false\n' >"$tmp/spark.properties"
SPARK_DRIVER_BIND_ADDRESS=127.0.0.1 "$opt/entrypoint.sh" driver --properties-file "$tmp/spark.properties" \
    --class org.apache.spark.deploy.PythonRunner "local://$opt/main.py" verify --master "local[1,4]" -o json \
    >"$tmp/verify.json" 2>"$tmp/driver.log" || { tail -n 30 "$tmp/driver.log" >&2 && exit 1; }
findings "$tmp/verify.json"
echo "==> an executor, as Spark starts it on Kubernetes, up to the driver that it does not find"
export SPARK_DRIVER_URL=spark://CoarseGrainedScheduler@127.0.0.1:9 SPARK_EXECUTOR_ID=1 SPARK_EXECUTOR_CORES=1
export SPARK_EXECUTOR_MEMORY=256m SPARK_APPLICATION_ID=app SPARK_EXECUTOR_POD_IP=127.0.0.1 SPARK_EXECUTOR_POD_NAME=pod
export SPARK_JAVA_OPT_1=-Dsecond=2 SPARK_JAVA_OPT_0="-Dfirst=1 and more"
! timeout 120 "$opt/entrypoint.sh" executor >"$tmp/executor.log" 2>&1
grep -q "Failed to connect to /127.0.0.1:9" "$tmp/executor.log" || { tail -n 30 "$tmp/executor.log" >&2 && exit 1; }
EOF

as_a_pod() {
    if [ ${#runner[@]} -gt 0 ]; then
        chown -R 10001:10001 "$work/tmp"
        # Spark wants to know its user's name and home, as the image does by useradd.
        { cat /etc/passwd && echo "tandem:x:10001:10001::$work/tmp:/usr/sbin/nologin"; } >"$work/passwd"
        # shellcheck disable=SC2016 # for the inner shell
        unshare --mount bash -c '
            set -e
            mount --make-rprivate /
            mount --bind "$work/tmp" "$work/tmp"
            mount --bind "$work/passwd" /etc/passwd
            mount -o remount,bind,ro /
            exec "$@"' -- "${runner[@]}" bash "$work/inside.sh"
    else
        say "not root, or no Python that others may read: as this user"
        bash "$work/inside.sh"
    fi
}

export work opt
for extras in spark,msk,cloud msk,cloud; do
    opt=$work/${extras%%,*}/opt/tandem
    environment "$extras"
    as_a_pod
done
say "done"
