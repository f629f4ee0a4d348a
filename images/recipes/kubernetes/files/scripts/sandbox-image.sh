#!/usr/bin/env bash
# Prints the pause image in the cluster's registry: the variable sandboxImage, else the one that this
# version's kubeadm starts.
source "$(dirname "$0")/common.sh"
if [[ -n ${sandboxImage:-} ]]; then
  echo "$sandboxImage"
  exit
fi
list=../images/shim/kubernetes
name=$(sed -n '/\/pause:/ { s|^[^/]*/||p; q }' "$list")
[[ -n $name ]] || die "no pause image in $list"
echo "$name"
