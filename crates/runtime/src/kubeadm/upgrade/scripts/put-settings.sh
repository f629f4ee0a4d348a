#!/bin/bash -e
# the files of this host that settings are in
# Where the kubelet's own files change, it is down meanwhile: a run that was killed finds it stopped.
# IMGCTL_BACKUP, IMGCTL_STARTED: see target.rs. IMGCTL_BACK: yes if the files are those of the backup, and no if they are
# the new ones. IMGCTL_FILES: their paths, separated by blanks. IMGCTL_KUBELET, IMGCTL_CONTAINERD: yes if these read them.
# shellcheck source=../../../scripts/files.sh
. "$(dirname "$0")/../../../scripts/files.sh"
# shellcheck source=services.sh
. "$(dirname "$0")/services.sh"

backup=$IMGCTL_BACKUP source=$IMGCTL_BACKUP/new
if [ "$IMGCTL_BACK" = yes ]; then
  source=$backup/files
  if [ ! -s "$backup/host.sha256" ] && [ ! -e "$backup/touched" ]; then
    echo 'the settings of this host were not touched'
    exit 0
  fi
  cd "$backup"
  sha256sum --quiet -c host.sha256
  # Last: until then the backup is not made anew.
  finished() { [ "$?" != 0 ] || rm -f "$backup/touched"; }
  trap finished EXIT
else
  mkdir -p "$backup"
  [ -e "$backup/touched" ] || {
    : >"$backup/touched"
    sync -f "$backup"
  }
fi
differ=()
for there in $IMGCTL_FILES; do
  [ -e "$source$there" ] || continue
  cmp -s "$source$there" "$there" || differ+=("$there")
done
runs=yes
[ "$IMGCTL_KUBELET" = no ] || { [ -e "$IMGCTL_STARTED" ] && systemctl is-active --quiet kubelet; } || runs=no
# A run that was killed between the file and the restart leaves this mark.
[ "$IMGCTL_CONTAINERD" = no ] || [ ! -e "$backup/containerd-restarts" ] || runs=no
if [ "${#differ[@]}" = 0 ] && [ "$runs" = yes ]; then
  echo 'everything is in place already'
  exit 0
fi
[ "$IMGCTL_KUBELET" = no ] || systemctl stop kubelet
if [ "$IMGCTL_CONTAINERD" = yes ]; then
  : >"$backup/containerd-restarts"
  sync -f "$backup"
fi
for there in "${differ[@]}"; do put "$source$there" "$there"; done
if [ "$IMGCTL_CONTAINERD" = yes ]; then
  restart_runtime
  rm -f "$backup/containerd-restarts"
fi
if [ "$IMGCTL_KUBELET" = yes ]; then start_kubelet; fi
