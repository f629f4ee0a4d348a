#!/usr/bin/env bash
# The controller of certificates, its webhook, and its resource definitions.
set -euo pipefail
kubectl apply -f manifests/cert-manager
for name in cert-manager cert-manager-cainjector cert-manager-webhook; do
  kubectl -n cert-manager rollout status "deployment/$name" --timeout=5m
done
