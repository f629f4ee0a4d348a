#!/bin/bash -e
# images of the new version
# Behind a helper that rewrites names (image-cri-shim), images have the registry's names; kubeadm queries the container
# runtime directly, so the images also get their own names.
# IMGCTL_TREE: see target.rs. IMGCTL_CONFIG: the cluster's configuration with the new version. IMGCTL_SOCKET: socket of the
# container runtime. IMGCTL_CONTROL_PLANE: true if this host runs its components. IMGCTL_SANDBOX: another image, or empty.
# IMGCTL_REGISTRY: HOST:PORT by whose names images are pulled, or empty. IMGCTL_HOSTS: directory of hosts.toml that leads to
# the cluster's registry, for a container runtime that does not know it, or empty.

# Fetches from the cluster's registry under the image's own name, without a change of containerd's configuration. Where
# that does not succeed, it is pulled in the host's own way.
fetch() {
  command -v ctr >/dev/null 2>&1 || return 0
  ctr -n k8s.io images pull --hosts-dir "$IMGCTL_HOSTS" "$1" >/dev/null ||
    echo "the cluster's registry did not give $1" >&2
  for _ in 1 2 3 4 5; do
    if crictl inspecti -q "$1" >/dev/null 2>&1; then return 0; fi
    sleep 1
  done
}

kubeadm=$IMGCTL_TREE/bin/kubeadm
images=$("$kubeadm" config images list --config "$IMGCTL_CONFIG")
# Workers run no components of the control plane.
[ "$IMGCTL_CONTROL_PLANE" = true ] || images=$(grep -E '/(kube-proxy|coredns|pause):' <<<"$images")
if ! command -v crictl >/dev/null 2>&1; then
  "$kubeadm" config images pull --config "$IMGCTL_CONFIG" --cri-socket "$IMGCTL_SOCKET"
  exit
fi
for image in $images $IMGCTL_SANDBOX; do
  if crictl inspecti -q "$image" >/dev/null 2>&1; then continue; fi
  if [ -n "$IMGCTL_HOSTS" ]; then fetch "$image"; fi
  if crictl inspecti -q "$image" >/dev/null 2>&1; then continue; fi
  name=$image
  if [ -n "$IMGCTL_REGISTRY" ]; then name=$IMGCTL_REGISTRY/${image#*/}; fi
  for try in 1 2 3; do
    if crictl pull "$name"; then
      if [ "$name" != "$image" ] && command -v ctr >/dev/null 2>&1; then
        ctr -n k8s.io images tag --force "$name" "$image" || echo "$image is known as $name alone"
      fi
      continue 2
    fi
    sleep "$try"
  done
  echo "cannot pull $name: is it in the cluster's registry, and does the registry answer?" >&2
  exit 1
done
