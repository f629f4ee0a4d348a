#!/bin/bash -e
# the virtual address, interfaces and rules that kube-proxy and network plugins leave
# IMGCTL_SERVICE: HOST:PORT of the virtual address, or empty. IMGCTL_HELPER: path of sealctl.

if [ -n "$IMGCTL_SERVICE" ]; then
  if [ -x "$IMGCTL_HELPER" ]; then
    "$IMGCTL_HELPER" ipvs --vs "$IMGCTL_SERVICE" -C >/dev/null 2>&1 || true
  elif command -v ipvsadm >/dev/null 2>&1; then
    ipvsadm -D -t "$IMGCTL_SERVICE" >/dev/null 2>&1 || true
  fi
fi
if command -v ip >/dev/null 2>&1; then
  for interface in ${IMGCTL_SERVICE:+lvscare} kube-ipvs0 cni0 flannel.1; do
    ip link delete "$interface" >/dev/null 2>&1 || true
  done
fi
for tables in iptables ip6tables; do
  command -v "$tables-save" >/dev/null 2>&1 || continue
  rules=$("$tables-save" 2>/dev/null || true)
  case $rules in
    *KUBE-*)
      printf '%s\n' "$rules" | grep -v KUBE- | "$tables-restore" || echo "$tables: kube-proxy's chains are left" >&2
      ;;
  esac
done
