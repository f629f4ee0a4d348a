#!/bin/bash -e
# the tools of the running etcd, which go to the backup
# Its image can be gone when they are needed. IMGCTL_BACKUP, IMGCTL_TREE, IMGCTL_ROOTFS: see target.rs.
# shellcheck source=etcd-tool.sh
. "$(dirname "$0")/etcd-tool.sh"

backup=$IMGCTL_BACKUP
mkdir -p -m 0700 "$backup/bin"
if command -v crictl >/dev/null 2>&1; then
  container=$(crictl ps --name '^etcd$' --state Running -q | head -n 1)
  pid=$(crictl inspect -o go-template --template '{{.info.pid}}' "$container" 2>/dev/null || true)
  for program in etcdutl etcdctl; do
    file=/proc/${pid:-none}/root/usr/local/bin/$program
    [ -f "$file" ] || continue
    cp "$file" "$backup/bin/$program.new"
    chmod 0700 "$backup/bin/$program.new"
    if can "$backup/bin/$program.new"; then
      mv -f "$backup/bin/$program.new" "$backup/bin/$program"
    else
      rm -f "$backup/bin/$program.new"
    fi
  done
  sync -f "$backup"
fi
find_tool
if [ "${#tool[@]}" != 0 ]; then
  echo "${tool[0]} restores snapshots of etcd"
else
  echo "warning: $NO_TOOL, or \`imgctl rollback --from-snapshot\` is refused"
fi
