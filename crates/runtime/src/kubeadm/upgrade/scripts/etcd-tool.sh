#!/bin/bash -e
# `find_tool` and `find_tool_anywhere`: what restores a snapshot of etcd, in the array `tool`
# Programs of the version that wrote the snapshot come first. IMGCTL_BACKUP, IMGCTL_TREE, IMGCTL_ROOTFS: see target.rs.
# shellcheck disable=SC2034

export ETCDCTL_API=3
tool=()
NO_TOOL='nothing on this host restores a snapshot of etcd: neither etcdutl nor an etcdctl up to 3.5, and none in the image of etcd; put etcdutl of the version of etcd into /usr/local/bin here'

can() { { "$@" snapshot restore --help 2>&1 || true; } | grep -e --data-dir >/dev/null; }

# Leaves `tool` empty if there is none.
find_tool() {
  local folder program
  for folder in "$IMGCTL_BACKUP/bin" "$IMGCTL_TREE/bin" /usr/local/bin /usr/bin /opt/bin "$IMGCTL_ROOTFS/bin"; do
    for program in etcdutl etcdctl; do
      if [ -x "$folder/$program" ] && can "$folder/$program"; then
        tool=("$folder/$program")
        return
      fi
    done
  done
  for program in etcdutl etcdctl; do
    if command -v $program >/dev/null 2>&1 && can $program; then
      tool=("$program")
      return
    fi
  done
}

inside() {
  ctr -n k8s.io run --rm --mount "type=bind,src=$folder,dst=$folder,options=rbind:ro" \
    --mount "type=bind,src=$parent,dst=$parent,options=rbind:rw" "$image" "imgctl-etcd-restore-$$-$RANDOM" "$@"
}

# find_tool_anywhere SNAPSHOT DATA IMAGE also searches the image of etcd, and fails if there is none.
find_tool_anywhere() {
  local program
  folder=$(dirname "$1") parent=$(dirname "$2") image=$3
  find_tool
  if [ "${#tool[@]}" = 0 ] && command -v ctr >/dev/null 2>&1; then
    if ! ctr -n k8s.io images ls -q | grep -xF "$image" >/dev/null; then crictl pull "$image" >/dev/null || true; fi
    for program in etcdutl etcdctl; do
      if can inside $program; then
        tool=(inside "$program")
        break
      fi
    done
  fi
  [ "${#tool[@]}" != 0 ] || {
    echo "$NO_TOOL" >&2
    return 1
  }
}

# restore_into SNAPSHOT NEW ARGUMENT... restores into the directory NEW. If the tool can, revisions are raised, so that
# watchers do not mistake old objects for new ones.
restore_into() {
  local snapshot=$1 new=$2
  shift 2
  rm -rf "$new"
  set -- "$@" --data-dir "$new"
  if "${tool[@]}" snapshot restore --help 2>&1 | grep -e --bump-revision >/dev/null; then
    set -- "$@" --bump-revision 1000000000 --mark-compacted
  fi
  "${tool[@]}" snapshot restore "$snapshot" "$@"
  [ -d "$new/member" ] || {
    echo 'nothing was restored' >&2
    return 1
  }
}
