#!/bin/bash -e
# kubeadm upgrade
# IMGCTL_ARGUMENTS: its arguments, separated by blanks. IMGCTL_PATCHES: the directory of patches; if empty, that of the
# tree. IMGCTL_TREE: see target.rs. IMGCTL_APPLIED: the mark that it has succeeded. IMGCTL_RESTART: yes if the kubelet
# restarts first: kubeadm restarts etcd even if only its certificates change. The kubelet delays that restart longer each
# time, soon for longer than kubeadm waits; a kubelet that has just started does not.

if [ "$IMGCTL_RESTART" = yes ]; then systemctl restart kubelet; fi
patches=$IMGCTL_PATCHES
if [ -z "$patches" ] && [ -d "$IMGCTL_TREE/patches" ]; then patches=$IMGCTL_TREE/patches; fi
read -r -a arguments <<<"$IMGCTL_ARGUMENTS"
kubeadm upgrade "${arguments[@]}" ${patches:+--patches "$patches"}
: >"$IMGCTL_APPLIED"
sync -f "$IMGCTL_APPLIED"
