#!/usr/bin/env bash
# Preflight, changes nothing; says everything that is in the way.
source "$(dirname "$0")/common.sh"
problems=0
problem() {
  say "$*" >&2
  problems=$((problems + 1))
}

[[ $EUID -eq 0 ]] || problem "must run as root"
command -v systemctl >/dev/null || problem "this host has no systemd"
for tool in iptables ip mount; do
  command -v "$tool" >/dev/null || problem "$tool is missing (packages iptables, iproute2, util-linux)"
done
for port in 6443 10250; do
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    problem "port $port is in use"
  fi
done
[[ -e /sys/fs/cgroup/cgroup.controllers || -d /sys/fs/cgroup/memory ]] || problem "no memory cgroup"
((problems == 0)) || exit 1
say "ok"
