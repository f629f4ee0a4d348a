#!/bin/bash -e
# what the new kubeadm will write to /var/lib/kubelet/config.yaml
# kubeadm says it, from the ConfigMap and the patches. Prints `rendered` if it did.
# IMGCTL_TREE: see target.rs. IMGCTL_PATCHES: the directory of patches; if empty, that of the tree. IMGCTL_FILE: where it
# is written.

tree=$IMGCTL_TREE patches=$IMGCTL_PATCHES file=$IMGCTL_FILE
mkdir -p "$(dirname "$file")"; rm -f "$file"
if [ -z "$patches" ] && [ -d "$tree/patches" ]; then patches=$tree/patches; fi
scratch=$(mktemp -d); touch "$scratch/begun"
# kubeadm leaves directories, in older releases with the files.
tidy() { find /etc/kubernetes/tmp -mindepth 1 -maxdepth 1 -name 'kubeadm-*' -newer "$scratch/begun" -exec rm -rf {} + 2>/dev/null || true; rm -rf "$scratch"; }
trap tidy EXIT
if ! KUBEADM_UPGRADE_DRYRUN_DIR=$scratch "$tree/bin/kubeadm" upgrade node phase kubelet-config --dry-run ${patches:+--patches "$patches"} </dev/null >"$scratch/said" 2>"$scratch/errors"; then
  echo "kubeadm does not say what it will write to /var/lib/kubelet/config.yaml: $(tail -n 1 "$scratch/errors" | cut -c 1-300)"; exit 0
fi
umask 077
# kubeadm before 1.34 indents the content with a tab.
awk '/^\[dryrun\] Would write file "\/var\/lib\/kubelet\/config.yaml"/ { inside = 1; next } /^\[/ { inside = 0 } inside { sub(/^\t/, ""); print }' "$scratch/said" >"$file"
if grep -q '^kind: KubeletConfiguration' "$file"; then echo rendered; else rm -f "$file"; fi
