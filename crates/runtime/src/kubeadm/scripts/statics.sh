#!/bin/bash -e
# the files of the image's statics/, below /etc/kubernetes
# IMGCTL_STATICS: that directory. What kubeadm and imgctl write there themselves is never replaced.

cd -- "$IMGCTL_STATICS" 2>/dev/null || exit 0
umask 077
mkdir -p /etc/kubernetes
for file in *; do
  case $file in
    audit-policy.yml | *.conf) continue ;;
  esac
  if [ ! -f "$file" ] || [ -L "$file" ] || cmp -s -- "$file" "/etc/kubernetes/$file"; then continue; fi
  cp -- "$file" "/etc/kubernetes/.$file.new"
  chmod 0600 "/etc/kubernetes/.$file.new"
  mv -fT -- "/etc/kubernetes/.$file.new" "/etc/kubernetes/$file"
  echo "wrote /etc/kubernetes/$file"
done
