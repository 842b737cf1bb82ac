#!/usr/bin/env bash
# Builds the archives of a release, and their checksums. The same program and files give the same bytes, whatever
# the machine, the user and the time.
#
#   deploy/dist.sh [--program FILE] [--out DIRECTORY]
#
# --program FILE    package this program instead of building one with the profile `dist`
# --out DIRECTORY   where the archives go [default: dist]
#
# SOURCE_DATE_EPOCH sets the time of all files; the default is the time of the last commit.
set -euo pipefail
umask 022
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

program=
out=dist
while (($# > 0)); do
  case $1 in
    --program) program=${2:?--program needs a file}; shift 2 ;;
    --out) out=${2:?--out needs a directory}; shift 2 ;;
    *) echo "unknown argument: $1; see the head of $0" >&2; exit 2 ;;
  esac
done

if [[ -z $program ]]; then
  (cd "$root" && cargo build --profile dist --locked -p tollgate-cli)
  program=${CARGO_TARGET_DIR:-$root/target}/dist/tollgate
fi
version=$("$program" --version)
version=${version#tollgate }
target=$(rustc -vV | sed -n 's/^host: //p')
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}

# pack DIRECTORY NAME ARCHIVE: order, times, owners and modes do not depend on the machine.
pack() {
  tar --create --directory "$1" --sort=name --format=ustar --mtime="@$epoch" \
    --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX "$2" | gzip -9 --no-name > "$3"
}

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
name=tollgate-$version-$target
mkdir -p "$stage/$name" "$out"
install -m 0755 "$program" "$stage/$name/tollgate"
cp "$root"/{README.md,CHANGELOG.md,LICENSE-APACHE,LICENSE-MIT} "$stage/$name/"
cp -R "$root"/deploy/{systemd,prometheus,grafana} "$stage/$name/"
pack "$stage" "$name" "$out/$name.tar.gz"

# `helm install` takes this archive.
cp -R "$root/deploy/helm/tollgate" "$stage/tollgate"
rm -r "$stage/tollgate/ci"
pack "$stage" tollgate "$out/tollgate-chart-$version.tgz"

cd "$out"
sha256sum "$name.tar.gz" "tollgate-chart-$version.tgz" > SHA256SUMS
cat SHA256SUMS
