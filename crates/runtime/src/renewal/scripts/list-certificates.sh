#!/bin/bash -e
# certificates of this host: `== FILE` and the certificates of each file
# IMGCTL_RUNTIME: kubeadm, k3s or script. IMGCTL_ROOTFS: the image's tree. IMGCTL_FILES: paths of more certificates, one a line.
# shellcheck source=../../k3s/scripts/host.sh
. "$(dirname "$0")/../../k3s/scripts/host.sh"

# Prints the first client certificate of a kubeconfig: a word, or a block of YAML.
client() {
  awk '
    function show() { if (text != "") print "data " text }
    block && /:/ { show(); text = ""; exit }
    block { text = text $1; next }
    /^[ -]*client-certificate-data:/ { if ($NF ~ /^[>|]/) block = 1; else { gsub(/"/, "", $NF); text = $NF; exit } }
    END { show() }
  ' "$1"
}

shopt -s nullglob
files=()
case $IMGCTL_RUNTIME in
  kubeadm)
    pki=/etc/kubernetes/pki
    files+=("$pki"/{ca,apiserver,apiserver-kubelet-client,front-proxy-ca,front-proxy-client,apiserver-etcd-client}.crt)
    files+=("$pki"/etcd/{ca,server,peer,healthcheck-client}.crt)
    files+=(/etc/kubernetes/{admin,super-admin,controller-manager,scheduler,kubelet}.conf)
    files+=(/var/lib/kubelet/pki/{kubelet.crt,kubelet-client-current.pem,kubelet-server-current.pem})
    ;;
  k3s)
    files+=("$data"/server/tls/*.crt "$data"/server/tls/etcd/*.crt "$data"/agent/*.crt)
    ;;
esac
# Certificates that the image's own registry serves with.
registry=$IMGCTL_ROOTFS/etc/registry_config.yml
if [ -e "$registry" ]; then
  while IFS= read -r file; do files+=("$file"); done < <(sed -nE 's/^ +certificate: *([^ ]+) *$/\1/p' "$registry")
fi
while IFS= read -r file; do files+=("$file"); done <<<"$IMGCTL_FILES"
for file in "${files[@]}"; do
  [ -f "$file" ] || continue
  printf '== %s\n' "$file"
  case $file in
    *.conf) client "$file" ;;
    *) sed -n '/^-----BEGIN CERTIFICATE-----/,/^-----END CERTIFICATE-----/p' "$file" ;;
  esac
done
