#!/bin/bash -e
# the control plane of this host, which stops
# The kubelet stops static Pods whose manifests are gone; the runtime stops the remaining ones.
# IMGCTL_BACKUP: where the manifests go.

stopped=$IMGCTL_BACKUP/stopped
manifests=/etc/kubernetes/manifests
mkdir -p -m 0700 "$stopped"
for name in kube-controller-manager kube-scheduler kube-apiserver etcd; do
  if [ -e "$manifests/$name.yaml" ]; then mv -f "$manifests/$name.yaml" "$stopped/"; fi
done
sync -f "$stopped"
running() {
  if command -v crictl >/dev/null 2>&1; then
    crictl ps --state Running -q --name '^(etcd|kube-apiserver|kube-controller-manager|kube-scheduler)$'
  else
    for port in 2379 6443; do
      (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && echo "port $port"
    done
    true
  fi
}
for second in $(seq 120); do
  left=$(running)
  if [ -z "$left" ]; then
    echo 'the control plane of this host is stopped'
    exit 0
  fi
  if [ "$second" = 60 ] && command -v crictl >/dev/null 2>&1; then
    # shellcheck disable=SC2086
    crictl stop $left || true
  fi
  sleep 1
done
echo "still running: $left" >&2
exit 1
