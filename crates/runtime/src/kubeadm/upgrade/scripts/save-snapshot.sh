#!/bin/bash -e
# a snapshot of etcd: snapshot.db.new in the backup, and its status, or `kept`
# IMGCTL_BACKUP, IMGCTL_TREE, IMGCTL_ROOTFS: see target.rs. IMGCTL_EXTERNAL: true if etcd is external.

# Prints the value of a flag of the API server.
value() { sed -nE "s/^ *- --$1=//p" /etc/kubernetes/manifests/kube-apiserver.yaml | head -n 1; }

# Prints the flags for the files with which the API server connects to etcd. Without TLS, there are none.
papers() {
  local pair file
  for pair in cacert:etcd-cafile cert:etcd-certfile key:etcd-keyfile; do
    file=$(value "${pair#*:}")
    [ -z "$file" ] || echo "--${pair%%:*} $file"
  done
}

export ETCDCTL_API=3 PATH="$PATH:$IMGCTL_ROOTFS/bin:$IMGCTL_TREE/bin"
backup=$IMGCTL_BACKUP
mkdir -p "$backup"
cd "$backup"
if [ -e touched ] && [ -s snapshot.json ] && [ -s snapshot.db ]; then
  sha256sum --quiet -c snapshot.sha256 >&2
  echo kept
  exit 0
fi
rm -f snapshot.db.new
if [ "$IMGCTL_EXTERNAL" = true ]; then
  # shellcheck disable=SC2207
  flags=(--endpoints "$(value etcd-servers | cut -d, -f1)" $(papers))
else
  pki=/etc/kubernetes/pki/etcd
  flags=(--endpoints https://127.0.0.1:2379 --cacert "$pki/ca.crt" --cert "$pki/server.crt" --key "$pki/server.key")
fi
if command -v etcdctl >/dev/null 2>&1; then
  etcdctl "${flags[@]}" snapshot save "$backup/snapshot.db.new" >&2
  told=$(etcdutl snapshot status snapshot.db.new -w json 2>/dev/null || etcdctl snapshot status snapshot.db.new -w json)
else
  container=$(crictl ps --name '^etcd$' --state Running -q | head -n 1)
  if [ -z "$container" ]; then
    echo 'there is no etcdctl here, and no etcd container to find one in; put etcdctl and etcdutl into bin/ of the rootfs image' >&2
    exit 1
  fi
  data=$(sed -nE 's/^ *- --data-dir=//p' /etc/kubernetes/manifests/etcd.yaml | head -n 1)
  inside=${data:-/var/lib/etcd}/imgctl-snapshot.db
  rm -f "$inside"
  crictl exec "$container" etcdctl "${flags[@]}" snapshot save "$inside" >&2
  told=$(crictl exec "$container" etcdutl snapshot status "$inside" -w json 2>/dev/null ||
    crictl exec "$container" etcdctl snapshot status "$inside" -w json)
  mv -f "$inside" snapshot.db.new
fi
# etcdctl of 3.6 saves snapshots and tells nothing of them; the last 32 bytes are the sum of all others.
case $told in
  *'{'*) printf '%s\n' "$told" ;;
  *)
    size=$(stat -c %s snapshot.db.new)
    sum=$(tail -c 32 snapshot.db.new | od -An -v -tx1 | tr -d ' \n')
    if [ $((size % 512)) != 32 ] || [ "$(head -c -32 snapshot.db.new | sha256sum | cut -c 1-64)" != "$sum" ]; then
      echo 'the snapshot of etcd is not whole: its checksum is wrong' >&2
      exit 1
    fi
    printf '{"sha256":"%s","totalSize":%s}\n' "$sum" "$size"
    ;;
esac
chmod 0600 snapshot.db.new
sync snapshot.db.new
