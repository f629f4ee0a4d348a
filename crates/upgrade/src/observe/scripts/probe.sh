#!/bin/bash -e
# what this host is: `key<TAB>value…` lines, and files between their own markers
# IMGCTL_PATCHES: the directory from which `kubeadm upgrade` will take patches, as currently configured.

for directory in /var/lib/etcd /var/lib/containerd /var/lib/kubelet; do
  [ -d "$directory" ] || continue
  df -Pk "$directory" | { read -r _; read -r _ _ _ free _; printf 'free\t%s\t%s\n' "$directory" "$free"; }
done
n=0; while read -r _; do n=$((n + 1)); done < /proc/swaps
[ "$n" -le 1 ] || printf 'swap\tyes\n'
for comm in /proc/[0-9]*/comm; do
  read -r name < "$comm" || continue
  case $name in kubelet|k3s-server|k3s-agent) ;; *) continue ;; esac
  before=
  while IFS= read -r -d '' word; do
    printf 'word\t%s\n' "$word"
    case $word in
      --hostname-override=*|--node-name=*) printf 'name\t%s\n' "${word#*=}" ;;
    esac
    case $before in --hostname-override|--node-name) printf 'name\t%s\n' "$word" ;; esac
    before=$word
  done < "${comm%comm}cmdline" || true
done
if [ -r /etc/containerd/config.toml ]; then
  while read -r key equals value _; do
    case $key in sandbox_image|sandbox) [ "$equals" = = ] && printf 'sandbox\t%s\n' "$value" ;; esac
  done < /etc/containerd/config.toml
fi
if [ -r /var/lib/kubelet/kubeadm-flags.env ]; then
  while read -r line; do
    for word in $line; do printf 'kubeadm\t%s\n' "$word"; done
  done < /var/lib/kubelet/kubeadm-flags.env
fi
if [ -r /var/lib/kubelet/config.yaml ]; then
  printf 'settings\t\n'; cat /var/lib/kubelet/config.yaml; printf '\nend\n'
fi
for name in kube-apiserver kube-controller-manager kube-scheduler etcd; do
  file=/etc/kubernetes/manifests/$name.yaml
  if [ -r "$file" ]; then printf 'manifest\t%s\n' "$name"; cat "$file"; printf '\nend\n'; fi
done
for name in kube-apiserver kube-controller-manager kube-scheduler etcd kubeletconfiguration; do
  for file in "$IMGCTL_PATCHES/$name"*; do
    if [ -r "$file" ]; then printf 'patch\t%s\n' "$name"; cat "$file"; printf '\nend\n'; fi
  done
done
for file in /usr/bin/kube*.new /usr/local/bin/kube*.new /usr/local/bin/k3s.new; do
  [ -e "$file" ] && printf 'left\t%s\n' "$file"
done
for file in /etc/kubernetes/pki/*.crt /etc/kubernetes/pki/etcd/*.crt \
            /var/lib/rancher/k3s/server/tls/*.crt; do
  [ -r "$file" ] || continue
  key=no; [ -e "${file%.crt}.key" ] && key=yes
  printf 'certificate\t%s\t%s\n' "$file" "$key"; cat "$file"; printf '\nend\n'
done
exit 0
