#!/usr/bin/env bash
# Makes the host ready for kubeadm.
source "$(dirname "$0")/common.sh"
bash init-kube.sh
