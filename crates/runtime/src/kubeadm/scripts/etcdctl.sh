#!/bin/bash -e
# etcdctl
# It is the host's own, or the one in the running container of etcd. Exit code 96: there is neither etcdctl nor crictl.
# IMGCTL_FOLDERS: directories where it is looked up last, separated by colons. IMGCTL_ARGUMENTS: its arguments, separated by
# blanks.

PATH=$PATH${IMGCTL_FOLDERS:+:$IMGCTL_FOLDERS}
pki=/etc/kubernetes/pki/etcd
read -r -a arguments <<<"$IMGCTL_ARGUMENTS"
flags=(--endpoints https://127.0.0.1:2379 --cacert "$pki/ca.crt" --cert "$pki/server.crt" --key "$pki/server.key")
if command -v etcdctl >/dev/null 2>&1; then
  ETCDCTL_API=3 etcdctl "${flags[@]}" "${arguments[@]}"
elif command -v crictl >/dev/null 2>&1; then
  container=$(crictl ps --name '^etcd$' --state Running -q | head -n 1)
  if [ -z "$container" ]; then
    echo 'etcd is not running here' >&2
    exit 1
  fi
  crictl exec "$container" etcdctl "${flags[@]}" "${arguments[@]}"
else
  exit 96
fi
