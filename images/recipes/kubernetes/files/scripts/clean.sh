#!/usr/bin/env bash
# Takes Kubernetes and containerd off the host; `kubeadm reset` has run before.
source "$(dirname "$0")/common.sh"
bash clean-kube.sh
bash clean-cri.sh "${criData:?the data directory of containerd}"
