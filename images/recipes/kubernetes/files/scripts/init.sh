#!/usr/bin/env bash
# Makes the host ready for kubeadm: containerd first, then what the kubelet needs.
source "$(dirname "$0")/common.sh"
bash init-cri.sh "${registryDomain:?}" "${registryPort:?}"
bash init-kube.sh
