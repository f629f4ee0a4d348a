#!/usr/bin/env bash
# Replaces this host's etcd by the image's, one host at a time: the caller goes to the next host
# only when this one is healthy. Takes a snapshot first. Nothing to do when the version is there.
#   upgrade.sh DATA_DIR
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}

# "etcd Version: 3.4.23" -> 3.4.23
version_of() { "$1" --version | awk '/^etcd Version/ {print $3}'; }
number() { awk -F. '{print $1 * 1000 + $2}' <<<"$1"; }

[[ -d $data/member ]] || die "$data holds no member: nothing to upgrade here"
old=$(version_of "$etcdBin/etcd")
new=$(version_of "$rootfs/bin/etcd")
if [[ $old == "$new" ]] && systemctl is-active --quiet etcd; then
  say "etcd $old is here already"
  exit 0
fi
(($(number "$new") >= $(number "$old"))) ||
  die "etcd cannot go from $old back to $new: restore a snapshot from $etcdSnapshotDir instead"
(($(number "$new") <= $(number "$old") + 1)) ||
  die "from $old to $new skips a minor version: upgrade to the one in between first"

install -d -m 0700 "$etcdSnapshotDir"
snapshot=$etcdSnapshotDir/before-$new.$(date -u +%Y%m%dT%H%M%SZ).db
patiently here snapshot save "$snapshot.part" >/dev/null || die "no snapshot, no upgrade"
mv "$snapshot.part" "$snapshot"
say "snapshot: $snapshot"

install_files
start_and_wait
say "etcd $old -> $new"
