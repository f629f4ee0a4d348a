#!/bin/bash -e
# `k3s`, `unit` and `data`: how k3s is set up on this host
# The installer of get.k3s.io names the service of agents otherwise than imgctl's images do.
# shellcheck disable=SC2034

k3s=$(type -P k3s || echo /usr/local/bin/k3s)
unit=k3s
if [ -e /etc/systemd/system/k3s-agent.service ] && [ ! -e /etc/systemd/system/k3s.service ]; then unit="k3s-agent"; fi
data=$(sed -nE 's/^"?data-dir"?: *"?([^"]*)"?$/\1/p' /etc/rancher/k3s/config.yaml 2>/dev/null | head -n 1)
data=${data:-/var/lib/rancher/k3s}
