#!/bin/bash -e
# container images of the control plane
# If the kubelet requests images through a helper that rewrites names (image-cri-shim), the images have the registry's
# names; otherwise they keep their own names and the container runtime tries the registry first.
# IMGCTL_CONFIG: kubeadm's configuration. IMGCTL_SOCKET: socket of the container runtime. IMGCTL_REGISTRY: HOST:PORT by whose
# names images are pulled, or empty. IMGCTL_AGAIN: yes if images that are there are pulled again: they can differ from
# embedded images of the same names. IMGCTL_TRIAL: yes if the pause image alone is pulled.

images=$(kubeadm config images list --config "$IMGCTL_CONFIG")
if [ "$IMGCTL_TRIAL" = yes ]; then images=$(grep /pause: <<<"$images"); fi
if ! command -v crictl >/dev/null 2>&1; then
  if [ "$IMGCTL_TRIAL" = yes ]; then
    echo 'there is no crictl: nothing is tried out'
  else
    kubeadm config images pull --config "$IMGCTL_CONFIG" --cri-socket "$IMGCTL_SOCKET"
  fi
  exit
fi
for image in $images; do
  if [ "$IMGCTL_AGAIN" = no ] && crictl inspecti -q "$image" >/dev/null 2>&1; then continue; fi
  name=$image
  if [ -n "$IMGCTL_REGISTRY" ]; then name=$IMGCTL_REGISTRY/${image#*/}; fi
  for try in 1 2 3; do
    if crictl pull "$name"; then continue 2; fi
    sleep "$try"
  done
  echo "cannot pull $name: is it in the cluster's registry, and does the registry answer?" >&2
  exit 1
done
