#!/usr/bin/env bash
# Addresses for Services of type LoadBalancer; the pool is that of the variable metallbAddresses.
set -euo pipefail
kubectl apply -f manifests/metallb
kubectl -n metallb-system rollout status deployment/controller --timeout=5m
kubectl -n metallb-system rollout status daemonset/speaker --timeout=5m
[[ -n ${metallbAddresses:-} ]] || exit 0
# The webhook answers some seconds after its Deployment is ready.
for _ in {1..24}; do
  if kubectl apply -f manifests/metallb-pool; then exit 0; fi
  sleep 5
done
echo "metallb does not accept the pool $metallbAddresses" >&2
exit 1
