#!/bin/bash -e
# what another program made of this host: a line `word<TAB>value…` for each finding
# IMGCTL_DATA: the directory that a cluster of imgctl would have. IMGCTL_CLUSTER: its name.

for file in pki/ca.crt pki/ca.key pki/etcd/ca.key pki/front-proxy-ca.key pki/sa.key \
            manifests/kube-apiserver.yaml manifests/etcd.yaml kubelet.conf patches; do
  [ ! -e "/etc/kubernetes/$file" ] || printf 'file\t%s\n' "$file"
done
for name in kubeadm kubelet kubectl crictl ctr containerd k3s; do
  path=$(type -P "$name") && printf 'program\t%s\t%s\n' "$name" "$path"
done
kubelet=$(type -P kubelet || true)
if [ -n "$kubelet" ]; then
  package=
  if command -v dpkg-query >/dev/null 2>&1; then
    package=$(dpkg-query -S "$(readlink -f "$kubelet")" 2>/dev/null || dpkg-query -S "$kubelet" 2>/dev/null || true)
  elif command -v rpm >/dev/null 2>&1; then package=$(rpm -qf "$kubelet" 2>/dev/null) || package=; fi
  package=${package%%$'\n'*}
  [ -z "$package" ] || printf 'package\t%s\n' "${package%%:*}"
fi
for file in "$IMGCTL_DATA/state/Clusterfile" "$HOME/.sealos/$IMGCTL_CLUSTER/Clusterfile"; do
  [ ! -f "$file" ] || printf 'record\t%s\n' "$file"
done
for file in "${IMGCTL_DATA%/*}"/*/state/Clusterfile; do
  [ ! -f "$file" ] || { name=${file%/state/Clusterfile}; printf 'cluster\t%s\n' "${name##*/}"; }
done
[ ! -e "$IMGCTL_DATA/state/upgrade/state.json" ] || printf 'upgrade\tyes\n'
if command -v systemctl >/dev/null 2>&1; then
  for unit in k3s k3s-agent; do
    systemctl is-active --quiet $unit || continue
    # Of the command line, which may have the token, nothing is told but the role.
    role=$(systemctl show --property ExecStart $unit | sed -nE 's/.*argv\[\]=[^ ]+ (server|agent)( .*)?$/\1/p' | head -n 1)
    data=$(sed -nE 's/^"?data-dir"?: *"?([^"]*)"?$/\1/p' /etc/rancher/k3s/config.yaml 2>/dev/null | head -n 1)
    data=${data:-/var/lib/rancher/k3s}
    printf 'k3s\t%s\t%s\t%s\n' "${role:-agent}" "$unit" "$data"
    if [ -d "$data/server/db/etcd" ]; then printf 'k3s-store\tetcd\n'
    elif [ -f "$data/server/db/state.db" ]; then printf 'k3s-store\tsqlite\n'; fi
    for file in server/token server/agent-token server/cred/encryption-config.json; do
      [ ! -e "$data/$file" ] || printf 'k3s-file\t%s\n' "$file"
    done
    for file in /etc/rancher/k3s/config.yaml.d/*.yaml /etc/rancher/k3s/config.yaml.d/*.yml /etc/systemd/system/$unit.service.d/*.conf; do
      [ ! -f "$file" ] || printf 'k3s-drop-in\t%s\n' "$file"
    done
    break
  done
  if systemctl is-active --quiet rke2-server || systemctl is-active --quiet rke2-agent; then printf 'rke2\tyes\n'; fi
fi
exit 0
