#!/usr/bin/env bash
# Replaces this host's etcd by the image's, one host at a time: the caller goes to the next host only
# when health.sh is content. Nothing to do when the version runs; safe to repeat.
#   upgrade.sh DATA_DIR
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}

[[ -d $data/member ]] || die "$data holds no member: nothing to upgrade here"
new=$(version_of "$rootfs/bin/etcd")
old=$(version_of "$etcdBin/etcd" 2>/dev/null) || old=none
if [[ $old == "$new" ]] && runs "$new"; then
  say "etcd $new runs here already"
  exit 0
fi
if [[ $old != none ]]; then
  (($(minor_of "$new") >= $(minor_of "$old"))) || die "this is the way to newer versions; from $old to $new it is a rollback"
  (($(minor_of "$new") <= $(minor_of "$old") + 1)) ||
    die "from $old to $new skips a minor version: upgrade to the one in between first"
fi
hand_over
install_files
start_and_wait
runs "$new" || die "etcd $new was installed and another one answers"
say "etcd $old -> $new"
