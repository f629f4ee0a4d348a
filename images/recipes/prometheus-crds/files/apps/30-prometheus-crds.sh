#!/usr/bin/env bash
# The resource definitions of the Prometheus operator. They are too long for a client-side apply.
set -euo pipefail
kubectl apply --server-side --force-conflicts -f manifests/prometheus-crds
