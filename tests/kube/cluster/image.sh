#!/usr/bin/env bash
# The images, without a registry: a base out of Debian's packages in place of python:3.11-slim-bookworm, the Dockerfile twice by
# buildah upon it, and a pause. They lie in $KUBE_CACHE/images, from which node.sh imports them.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$SOURCE/pyproject.toml" | head -1)
base=localhost/python-base:3.11
tandem=registry.example.org/tandem:$version
mkdir -p "$KUBE_CACHE/images"
policy=$KUBE_CACHE/policy.json
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$policy"
export STORAGE_DRIVER=overlay BUILDAH_ISOLATION=chroot
b() { buildah --root "$KUBE_CACHE/buildah" --runroot /run/tandem-buildah "$@"; }
signed() { local command=$1; shift; b "$command" --signature-policy "$policy" "$@"; }

if ! b images -q "$base" 2>/dev/null | grep -q .; then
    root=$KUBE_CACHE/base
    rm -rf "$root"
    debootstrap --variant=minbase \
        --include=ca-certificates,netbase,tzdata,python3.11,python3.11-venv,python3-distutils,python3-lib2to3,python3.11-dev,libpython3.11 \
        bookworm "$root" >"$LOGS/debootstrap.log"
    # The official base has Python in /usr/local/bin.
    for name in python python3 python3.11; do ln -s /usr/bin/python3.11 "$root/usr/local/bin/$name"; done
    # Whom this machine trusts for its packages, the build trusts too.
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    if [ -e /etc/apt/sources.list.d/debian.sources ]; then
        cp /etc/apt/sources.list.d/debian.sources "$root/etc/apt/sources.list.d/"
        rm -f "$root/etc/apt/sources.list"
    fi
    rm -rf "$root"/var/cache/apt/archives/*.deb
    container=$(signed from scratch)
    b add "$container" "$root" / >/dev/null
    b config --env PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin --cmd python3 "$container"
    signed commit --quiet "$container" "$base" && b rm "$container" >/dev/null
    rm -rf "$root"
fi
if [ ! -e "$KUBE_CACHE/images/pause.tar" ]; then
    cat >"$KUBE_CACHE/pause.c" <<'C'
#include <signal.h>
#include <unistd.h>
static void end(int ignored) { _exit(0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
C
    gcc -static -Os -o "$KUBE_CACHE/pause" "$KUBE_CACHE/pause.c"
    container=$(signed from scratch)
    b copy "$container" "$KUBE_CACHE/pause" /pause >/dev/null
    b config --entrypoint '["/pause"]' --user 65535:65535 "$container"
    signed commit --quiet "$container" localhost/pause:1 && b rm "$container" >/dev/null
    signed push --quiet localhost/pause:1 "docker-archive:$KUBE_CACHE/images/pause.tar:localhost/pause:1"
fi
# build TAG FILE [BUILD ARGUMENT]
build() {
    local tag=$1 file=$KUBE_CACHE/images/$2 began=$SECONDS identity; shift 2
    # The layers of the last build are used again as far as the files are the same; so the image names no revision.
    signed bud --quiet --layers --network host --build-arg PYTHON_IMAGE="$base" --build-arg VERSION="$version" "$@" \
        --tag "$tag" "$SOURCE" >"$LOGS/image.log" 2>&1 ||
        { tail -20 "$LOGS/image.log" >&2; exit 1; }
    identity=$(b images -q "$tag")
    if [ "$(cat "$file.id" 2>/dev/null)" != "$identity" ]; then
        rm -f "$file.tar"
        signed push --quiet "$tag" "docker-archive:$file.tar:$tag"
        echo "$identity" >"$file.id"
    fi
    echo "image $tag in $((SECONDS - began)) s"
}
build "$tandem" tandem
# Without Spark, for the instances.
build "$tandem-instance" tandem-instance --build-arg EXTRAS=msk,cloud
