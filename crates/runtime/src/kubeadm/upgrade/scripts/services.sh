#!/bin/bash -e
# `start_kubelet` and `restart_runtime`
# IMGCTL_STARTED: the file with the time when imgctl last started the kubelet.
# shellcheck source=../../../scripts/files.sh
. "$(dirname "$0")/../../../scripts/files.sh"

# Starts the kubelet and waits until the running program is the installed one.
start_kubelet() {
  local pid
  systemctl daemon-reload
  date -u +%Y-%m-%dT%H:%M:%S >"$IMGCTL_STARTED.new"
  mv -f "$IMGCTL_STARTED.new" "$IMGCTL_STARTED"
  systemctl start kubelet
  for _ in $(seq 60); do
    pid=$(systemctl show -p MainPID --value kubelet)
    if systemctl is-active --quiet kubelet && [ "${pid:-0}" != 0 ] && cmp -s "/proc/$pid/exe" "$(where kubelet)"; then
      echo "kubelet runs: $("$(where kubelet)" --version)"
      return 0
    fi
    sleep 1
  done
  systemctl --no-pager --lines=20 status kubelet >&2 || true
  echo 'kubelet does not start; see journalctl -u kubelet' >&2
  return 1
}

# Containers keep running, because their shims are separate processes of the old runtime.
restart_runtime() {
  systemctl daemon-reload
  systemctl restart containerd
  for _ in $(seq 60); do
    if ctr version >/dev/null 2>&1; then
      echo "containerd runs: $(containerd --version)"
      return 0
    fi
    sleep 1
  done
  echo 'containerd does not answer; see journalctl -u containerd' >&2
  return 1
}
