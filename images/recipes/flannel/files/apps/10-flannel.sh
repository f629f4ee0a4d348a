#!/usr/bin/env bash
# The Pod network. Nodes are Ready once it runs on them.
set -euo pipefail
kubectl apply -f manifests/flannel
kubectl -n kube-flannel rollout status daemonset/kube-flannel --timeout=10m
kubectl wait nodes --all --for=condition=Ready --timeout=5m
