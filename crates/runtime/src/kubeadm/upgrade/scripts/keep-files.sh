#!/bin/bash -e
# `keep` and `keep_kubernetes`
# IMGCTL_BACKUP: the directory of backups.

# keep FOLDER FILE... copies those that are there, with their paths, below FOLDER of the backup.
keep() {
  local folder=$1 file
  shift
  for file; do
    if [ -e "$file" ]; then (cd / && cp -a --parents ".$file" "$IMGCTL_BACKUP/$folder/"); fi
  done
}

# keep_kubernetes FOLDER keeps what kubeadm, imgctl and administrators wrote, except programs.
keep_kubernetes() {
  local directory
  keep "$1" /etc/kubernetes/pki /etc/kubernetes/manifests /etc/kubernetes/*.conf /etc/kubernetes/audit-policy.yml
  keep "$1" /var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env /var/lib/kubelet/instance-config.yaml
  keep "$1" /etc/default/kubelet /etc/sysconfig/kubelet
  for directory in /etc/systemd/system /usr/lib/systemd/system; do
    keep "$1" "$directory/kubelet.service" "$directory/kubelet.service.d"
  done
  keep "$1" /etc/containerd /etc/crictl.yaml /etc/docker/daemon.json /etc/crio
}

# list_files keeps the sums of files.new, which becomes `files`.
list_files() {
  rm -rf files
  mv files.new files
  find files -type f -print0 | sort -z | xargs -0 -r sha256sum >host.sha256.new
}

# done_with_files makes the list valid: from now on the backup counts.
done_with_files() {
  sync -f .
  mv host.sha256.new host.sha256
  sync -f .
  echo "$(find files -type f | wc -l) files are kept in $IMGCTL_BACKUP/files"
}

# begin_files ends the script if the host has been changed since its backup, and makes files.new otherwise.
begin_files() {
  mkdir -p "$IMGCTL_BACKUP"
  chmod 0700 "$IMGCTL_BACKUP"
  cd "$IMGCTL_BACKUP"
  if [ -e touched ] && [ -s host.sha256 ]; then
    sha256sum --quiet -c host.sha256
    echo 'the host has been touched since: what it was before is kept'
    exit 0
  fi
  rm -rf files.new host.sha256
  mkdir -m 0700 files.new
}
