#!/usr/bin/env bash
# The Pod network. Nodes are Ready once it runs on them. The cluster's registry has the images by their tags, and imgctl.lock the digests.
set -euo pipefail
helm upgrade --install cilium charts/cilium.tgz --namespace kube-system \
  --set ipam.mode=kubernetes --set operator.replicas=1 \
  --set image.useDigest=false --set envoy.image.useDigest=false --set operator.image.useDigest=false \
  --wait --timeout 10m
kubectl wait nodes --all --for=condition=Ready --timeout=5m
