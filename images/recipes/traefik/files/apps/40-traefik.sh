#!/usr/bin/env bash
# The controller of Ingresses. Its chart waits for Pods only: an address comes when something gives one.
set -euo pipefail
helm upgrade --install traefik charts/traefik.tgz --namespace traefik --create-namespace \
  --set "service.spec.type=${traefikService:-LoadBalancer}"
kubectl -n traefik rollout status deployment/traefik --timeout=5m
