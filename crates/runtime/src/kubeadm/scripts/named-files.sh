#!/bin/bash -e
# `named`: the regular files which the flags of static Pods name, except what every control plane has of its own
# Files of more than 1 MiB are no configuration.

named() {
  { sed -nE 's#^ *- "?--[a-z0-9-]+=(/[^" ]+)"?$#\1#p' /etc/kubernetes/manifests/*.yaml 2>/dev/null || true; } | sort -u |
    while read -r file; do
      case $file in
        /etc/kubernetes/pki/* | /var/lib/etcd/* | /var/log/* | /usr/* | /etc/ssl/* | /etc/pki/* | /tmp/* | /proc/* | /dev/* | */../*)
          continue ;;
      esac
      case ${file#/etc/kubernetes/} in
        */*) ;;
        *.conf) continue ;;
      esac
      if [ -f "$file" ] && [ "$(stat -c %s "$file")" -le 1048576 ]; then printf '%s\n' "$file"; fi
    done
}
