#!/bin/bash -e
# a kubeconfig for users who log in to this control plane
# An existing configuration of another cluster moves aside. IMGCTL_KUBECONFIG: path of the administrator's. IMGCTL_NAME: the
# name of the API in configurations of imgctl.

kube=$HOME/.kube
mkdir -p "$kube"
if [ -e "$kube/config" ] && ! grep -q "$IMGCTL_NAME" "$kube/config"; then
  mv -f "$kube/config" "$kube/config.before-imgctl"
fi
install -m 0600 "$IMGCTL_KUBECONFIG" "$kube/config"
