#!/usr/bin/env bash
# The Pod network. Nodes are Ready once it runs on them. Its definitions are too long for a client-side apply.
set -euo pipefail
kubectl apply --server-side --force-conflicts -f manifests/calico
kubectl -n kube-system rollout status daemonset/calico-node --timeout=10m
kubectl wait nodes --all --for=condition=Ready --timeout=5m
