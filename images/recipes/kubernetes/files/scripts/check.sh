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
for tool in iptables ip mount nsenter modprobe; do
  command -v "$tool" >/dev/null || problem "$tool is missing (packages iptables, iproute2, util-linux, kmod)"
done
for service in docker containerd; do
  if systemctl is-active --quiet "$service" 2>/dev/null; then
    problem "$service is running: this host belongs to something else"
  fi
done
for port in 6443 10248 10250 10256 10257 10259; do
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    problem "port $port is in use"
  fi
done
[[ -e /sys/fs/cgroup/cgroup.controllers || -d /sys/fs/cgroup/memory ]] || problem "no memory cgroup"
memory=$(awk '/^MemTotal/ {print int($2 / 1024)}' /proc/meminfo)
((memory >= 1700)) || problem "only $memory MiB of memory; a control plane needs 1700"
((problems == 0)) || exit 1
say "ok"
