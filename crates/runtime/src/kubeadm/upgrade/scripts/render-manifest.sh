#!/bin/bash -e
# the manifest that kubeadm would install for a component
# It is rendered into a separate directory, and printed.
# IMGCTL_TREE: see target.rs. IMGCTL_COMPONENT: name of the static Pod. IMGCTL_CONFIG: kubeadm's configuration.
# IMGCTL_PATCHES: the directory of patches; if empty, that of the tree.

tree=$IMGCTL_TREE component=$IMGCTL_COMPONENT patches=$IMGCTL_PATCHES
phase=(control-plane all)
if [ "$component" = etcd ]; then phase=(etcd local); fi
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
if [ -z "$patches" ] && [ -d "$tree/patches" ]; then patches=$tree/patches; fi
# kubeadm refuses `--patches` beside `--config`.
umask 077
awk -v patches="$patches" '{ print } patches != "" && /^kind: InitConfiguration$/ { print "patches:"; print "  directory: \x27" patches "\x27" }' "$IMGCTL_CONFIG" >"$scratch/config.yaml"
kubeadm=$tree/bin/kubeadm; [ -x "$kubeadm" ] || kubeadm=$(type -P kubeadm)
if ! KUBEADM_INIT_DRYRUN_DIR=$scratch "$kubeadm" init phase "${phase[@]}" --dry-run --config "$scratch/config.yaml" >"$scratch/said" 2>&1; then
  tail -n 3 "$scratch/said" >&2; exit 1
fi
# kubeadm before 1.32 makes a directory of its own below it: tmp/kubeadm-init-dryrun1234.
file=$(find "$scratch" -type f -name "$component.yaml" | head -n 1)
[ -n "$file" ] || { echo "kubeadm rendered no manifest of $component" >&2; exit 1; }
cat "$file"
