#!/bin/bash -e
# the Node of this host, which becomes Ready
# The Node object appears a few seconds after the service starts.
# IMGCTL_NODE: its name. IMGCTL_APPEARS, IMGCTL_READY: seconds to wait.

k3s kubectl get --raw /readyz --request-timeout=10s >/dev/null
until k3s kubectl get node "$IMGCTL_NODE" >/dev/null 2>&1; do
  ((SECONDS < IMGCTL_APPEARS)) || {
    echo "there is no Node $IMGCTL_NODE" >&2
    exit 1
  }
  sleep 1
done
k3s kubectl wait --for=condition=Ready "node/$IMGCTL_NODE" --timeout="${IMGCTL_READY}s"
