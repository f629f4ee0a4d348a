#!/bin/bash -e
# the programs, the kubelet's files and the manifests of the backup
# Nothing is stopped if everything is in place. Certificates and kubeconfigs stay: renewed ones are valid and from the
# same authority.
# IMGCTL_BACKUP, IMGCTL_STARTED, IMGCTL_TREE, IMGCTL_VERSION: see target.rs. IMGCTL_KEEP_ETCD: true if the manifest of
# etcd stays.
# shellcheck source=../../../scripts/files.sh
. "$(dirname "$0")/../../../scripts/files.sh"
# shellcheck source=services.sh
. "$(dirname "$0")/services.sh"

backup=$IMGCTL_BACKUP
if [ ! -s "$backup/host.sha256" ]; then
  # A host that was unreachable during the upgrade: its backup comes before any change.
  kubelet=$(where kubelet)
  if cmp -s "$kubelet" "$IMGCTL_TREE/bin/kubelet" || [ "$("$kubelet" --version)" = "Kubernetes $IMGCTL_VERSION" ]; then
    echo 'the upgrade has not touched this host'
    exit 0
  fi
  echo "there is no backup in $backup, and the kubelet of this host is not $IMGCTL_VERSION: the backup is gone" >&2
  exit 1
fi
cd "$backup"
sha256sum --quiet -c host.sha256
wanted() {
  local manifests=/etc/kubernetes/manifests
  case $1 in
    "$manifests/etcd.yaml") [ "$IMGCTL_KEEP_ETCD" = false ] ;;
    "$manifests/kube-apiserver.yaml" | "$manifests/kube-controller-manager.yaml" | "$manifests/kube-scheduler.yaml") true ;;
    /etc/kubernetes/* | /etc/containerd/* | /etc/crictl.yaml | /etc/docker/* | /etc/crio/*) false ;;
    *) true ;;
  esac
}
differ=() runtime=no
while IFS= read -r -d '' file; do
  there=${file#files}
  wanted "$there" || continue
  if ! cmp -s "$file" "$there"; then
    differ+=("$there")
    case $(basename "$there") in containerd | containerd-shim* | runc) runtime=yes ;; esac
  fi
done < <(find files -type f -print0)
pid=$(systemctl show -p MainPID --value kubelet)
if [ "${#differ[@]}" = 0 ] && systemctl is-active --quiet kubelet && cmp -s "/proc/${pid:-0}/exe" "$(where kubelet)"; then
  rm -f touched kubeadm-v*
  echo 'everything is in place already'
  exit 0
fi
systemctl stop kubelet
for there in "${differ[@]}"; do put "files$there" "$there"; done
if [ "$runtime" = yes ]; then restart_runtime; fi
rm -f kubeadm-v*
start_kubelet
# Last: until then the backup is not made anew.
rm -f "$backup/touched"
