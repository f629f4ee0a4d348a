#!/bin/bash -e
# all that watches the API of this host
# Revisions continue from the snapshot unless etcdutl can raise them. A watch from a later revision that resumes after
# the API server's restart receives no events until that revision is reached, so the kubelets and the Pods in
# kube-system must list all objects again.

systemctl restart kubelet
command -v crictl >/dev/null 2>&1 || exit 0
for id in $(crictl ps --state Running -q --label io.kubernetes.pod.namespace=kube-system); do
  name=$(crictl inspect -o go-template --template '{{.status.metadata.name}}' "$id" 2>/dev/null || true)
  case $name in etcd | kube-apiserver | kube-controller-manager | kube-scheduler | kube-lvscare) continue ;; esac
  crictl stop -t 10 "$id" >/dev/null || true
  echo "$name starts anew"
done
