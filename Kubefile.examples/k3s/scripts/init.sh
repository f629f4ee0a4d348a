#!/usr/bin/env bash
# Puts the binary, its names and its unit in place; imgctl writes config.yaml and starts it.
source "$(dirname "$0")/common.sh"

put 0755 ../bin/k3s /usr/local/bin/k3s
for name in kubectl crictl ctr; do
  [[ -e /usr/local/bin/$name ]] || ln -s k3s "/usr/local/bin/$name"
done
put 0600 ../etc/registries.yaml /etc/rancher/k3s/registries.yaml
put 0644 ../etc/90-k3s.conf /etc/sysctl.d/90-k3s.conf
sysctl --quiet --load /etc/sysctl.d/90-k3s.conf || say "sysctl could not be set"
put 0644 ../etc/k3s.service /etc/systemd/system/k3s.service
systemctl daemon-reload
say "ready: $(/usr/local/bin/k3s --version | sed -n 1p)"
