#!/usr/bin/env bash
# Puts the older etcd of this image back. Possible while a member of the older minor version is left,
# or none has ever agreed on more: etcd refuses to start below the version that its cluster has reached.
# Then nothing is changed here, and only a snapshot leads back. Safe to repeat.
#   rollback.sh DATA_DIR
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}

[[ -d $data/member ]] || die "$data holds no member: nothing to take back here"
new=$(version_of "$rootfs/bin/etcd")
if runs "$new"; then
  say "etcd $new runs here already"
  exit 0
fi
# Without a member that answers nobody tells; then etcd itself is asked, below.
if contact=$(any_member) && read -r _ agreed < <(versions_at "$(address_of "$contact")"); then
  (($(minor_of "$new") >= $(minor_of "$agreed"))) || too_new "$agreed" "$new"
fi
hand_over
former=$etcdBin/.etcd-former
rm -rf "$former"
install -d -m 0755 "$former"
cp -p "$etcdBin"/etcd{,ctl,utl} "$former/" 2>/dev/null || true
started=$(date +%s)
install_files
rm -f "$etcdBin/etcdutl"
[[ ! -f $rootfs/bin/etcdutl ]] || install -m 0755 "$rootfs/bin/etcdutl" "$etcdBin/etcdutl"
if ! (start_and_wait); then
  # Between the question and the start the others agreed on more: what ran before runs again.
  if journalctl -u etcd --since="@$started" -o cat | grep -q 'downgrade'; then
    cp -p "$former"/* "$etcdBin/"
    start_and_wait
    rm -rf "$former"
    too_new "more than $new" "$new"
  fi
  exit 1
fi
rm -rf "$former"
runs "$new" || die "etcd $new was installed and another one answers"
say "etcd $new again"
