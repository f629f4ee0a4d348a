#!/bin/bash -e
# the kubelet, or the container of a static Pod, which restarts
# The kubelet starts containers that were stopped. IMGCTL_COMPONENT: its name.

if [ "$IMGCTL_COMPONENT" = kubelet ]; then
  systemctl restart kubelet
elif command -v crictl >/dev/null 2>&1; then
  crictl ps --name "^$IMGCTL_COMPONENT\$" --state Running -q | xargs -r crictl stop
else
  pkill -TERM -f "^$IMGCTL_COMPONENT " || true
fi
