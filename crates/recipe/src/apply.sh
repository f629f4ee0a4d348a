#!/usr/bin/env bash
# Runs the scripts of apps/, in the order of their names, on the first control plane. The image's CMD calls it on
# every new host, and a hook after an upgrade. Safe to repeat, and so is each of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
first=${MASTER_IPS-}
[[ ${HOST_IP-} == "${first%%,*}" ]] || exit 0
# What the host has comes first: imgctl records what its kubectl and helm send.
PATH=$PATH:$PWD/bin:/usr/local/bin
if [[ -z ${KUBECONFIG-} && -e /etc/rancher/k3s/k3s.yaml ]]; then
  export KUBECONFIG=/etc/rancher/k3s/k3s.yaml
fi
for app in apps/*.sh; do
  echo "$app"
  bash "$app"
done
