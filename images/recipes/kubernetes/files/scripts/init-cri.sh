#!/usr/bin/env bash
# Installs and starts containerd; images are asked for at the cluster's registry first.
#   init-cri.sh REGISTRY_DOMAIN REGISTRY_PORT
source "$(dirname "$0")/common.sh"
domain=${1:?the registry domain}
port=${2:?the registry port}

for binary in ../cri/*; do
  put 0755 "$binary" "/usr/local/bin/$(basename "$binary")"
done
sandbox=$(bash sandbox-image.sh)
sed "s|SANDBOX_IMAGE|$sandbox|" ../etc/config.toml | put 0600 /dev/stdin /etc/containerd/config.toml
put 0600 ../etc/hosts.toml /etc/containerd/certs.d/_default/hosts.toml
put 0600 ../etc/hosts.toml "/etc/containerd/certs.d/$domain:$port/hosts.toml"
put 0644 ../etc/crictl.yaml /etc/crictl.yaml
put 0644 ../etc/containerd.service /etc/systemd/system/containerd.service
start_service containerd
for ((second = 0; second < 30; second++)); do
  if ctr version >/dev/null 2>&1; then
    say "containerd answers"
    exit 0
  fi
  sleep 1
done
die "containerd does not answer; see journalctl -u containerd"
