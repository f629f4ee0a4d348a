#!/bin/bash -e
# Nodes of the former hosts with their Pods, and the passwords of all hosts
# IMGCTL_NODE: the Node of this host, which stays.

for secret in $(k3s kubectl get secrets -n kube-system -o name); do
  case $secret in *.node-password.k3s) k3s kubectl delete -n kube-system "$secret" --ignore-not-found ;; esac
done
for node in $(k3s kubectl get nodes -o name); do
  name=${node#node/}
  [ "$name" != "$IMGCTL_NODE" ] || continue
  k3s kubectl delete node "$name" --ignore-not-found
  k3s kubectl delete pods -A --field-selector "spec.nodeName=$name" --force --grace-period=0 --ignore-not-found
done
