#!/bin/bash -e
# how often the kubelet and the containers of static Pods were started

systemctl show -p NRestarts --value kubelet 2>/dev/null || true
echo
crictl ps -a -o json --name '^(etcd|kube-apiserver|kube-controller-manager|kube-scheduler)$' 2>/dev/null || true
