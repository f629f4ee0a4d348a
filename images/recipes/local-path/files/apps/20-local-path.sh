#!/usr/bin/env bash
# The StorageClass `local-path`, and what makes its volumes.
set -euo pipefail
kubectl apply -f manifests/local-path
kubectl -n local-path-storage rollout status deployment/local-path-provisioner --timeout=5m
