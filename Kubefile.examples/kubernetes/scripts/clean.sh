#!/usr/bin/env bash
# Takes kubelet and the Kubernetes binaries off the host; `kubeadm reset` has run before.
source "$(dirname "$0")/common.sh"
bash clean-kube.sh
