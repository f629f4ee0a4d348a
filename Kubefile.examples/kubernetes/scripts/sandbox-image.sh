#!/usr/bin/env bash
# Prints the pause image in the cluster's registry: the variable sandboxImage, else the one that this
# version's kubeadm names.
source "$(dirname "$0")/common.sh"
if [[ -n ${sandboxImage:-} ]]; then
  echo "$sandboxImage"
  exit
fi
lists=(../images/shim/kubernetes-*)
name=$(sed -n '/\/pause:/ { s|^[^/]*/||p; q }' "${lists[@]}")
[[ -n $name ]] || die "no pause image in ${lists[*]}"
echo "$name"
