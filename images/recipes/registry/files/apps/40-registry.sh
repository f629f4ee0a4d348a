#!/usr/bin/env bash
# The registry of applications, on a volume.
set -euo pipefail
kubectl apply -f manifests/registry
kubectl -n registry rollout status deployment/registry --timeout=5m
