#!/bin/bash -e
# the files of the image's statics/, below /etc/kubernetes
# IMGCTL_STATICS: the former directory. IMGCTL_KUBERNETES: the latter. What kubeadm and imgctl write there themselves is never
# replaced.

cd -- "$IMGCTL_STATICS" 2>/dev/null || exit 0
umask 077
mkdir -p -- "$IMGCTL_KUBERNETES"
for file in *; do
  case $file in
    audit-policy.yml | *.conf) continue ;;
  esac
  if [ ! -f "$file" ] || [ -L "$file" ] || cmp -s -- "$file" "$IMGCTL_KUBERNETES/$file"; then continue; fi
  cp -- "$file" "$IMGCTL_KUBERNETES/.$file.new"
  chmod 0600 "$IMGCTL_KUBERNETES/.$file.new"
  mv -fT -- "$IMGCTL_KUBERNETES/.$file.new" "$IMGCTL_KUBERNETES/$file"
  echo "wrote $IMGCTL_KUBERNETES/$file"
done
