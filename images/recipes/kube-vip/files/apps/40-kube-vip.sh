#!/usr/bin/env bash
# The address of the API outside of the cluster: that of the variable kubeVipAddress.
set -euo pipefail
# Beside another rootfs, nothing asks for it.
: "${kubeVipAddress:?the variable kubeVipAddress is not set}"
kubectl apply -f manifests/kube-vip
kubectl -n kube-system rollout status daemonset/kube-vip --timeout=5m
