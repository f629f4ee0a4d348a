#!/bin/bash -e
# `start_k3s`, `touch_backup` and `put_back`
# IMGCTL_BACKUP, IMGCTL_TREE, IMGCTL_STARTED, IMGCTL_SERVER: see steps.rs.
# shellcheck source=../../scripts/files.sh
. "$(dirname "$0")/../../scripts/files.sh"
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"

# Restarts the service and waits until it is up.
start_k3s() {
  systemctl daemon-reload
  date -u +%Y-%m-%dT%H:%M:%S >"$IMGCTL_STARTED.new"
  mv -f "$IMGCTL_STARTED.new" "$IMGCTL_STARTED"
  systemctl restart --no-block "$unit"
  sleep 1
  for _ in $(seq 150); do
    if systemctl is-active --quiet "$unit" && { [ "$IMGCTL_SERVER" = no ] || "$k3s" kubectl get --raw /readyz >/dev/null 2>&1; }; then
      sha256sum <"$k3s" >"$IMGCTL_BACKUP/k3s-runs"
      echo "k3s runs: $("$k3s" --version | sed -n 1p)"
      return 0
    fi
    sleep 2
  done
  systemctl --no-pager --lines=20 status "$unit" >&2 || true
  echo "k3s does not come up; see journalctl -u $unit" >&2
  return 1
}

# Marks the host as changed since its backup.
touch_backup() {
  mkdir -p "$IMGCTL_BACKUP"
  [ -e "$IMGCTL_BACKUP/touched" ] || {
    : >"$IMGCTL_BACKUP/touched"
    sync -f "$IMGCTL_BACKUP"
  }
}

# Reports whether the running k3s is the program that is there.
is_current() {
  systemctl is-active --quiet "$unit" && [ "$(cat "$IMGCTL_BACKUP/k3s-runs" 2>/dev/null)" = "$(sha256sum <"$k3s")" ]
}

# Restores the files of the backup. Sets `in_place` to yes if nothing differs and k3s is running.
# shellcheck disable=SC2034
put_back() {
  local backup=$IMGCTL_BACKUP differ=() file there
  in_place=no
  if [ ! -s "$backup/host.sha256" ]; then
    # A host that was unreachable during the upgrade: its backup comes before any change.
    cmp -s "$k3s" "$IMGCTL_TREE/bin/k3s" || {
      echo "there is no backup in $backup, and k3s is not that of $IMGCTL_TREE: the backup is gone" >&2
      exit 1
    }
    echo 'the upgrade has not touched this host'
    in_place=yes
    return
  fi
  cd "$backup"
  sha256sum --quiet -c host.sha256
  while IFS= read -r -d '' file; do
    case $file in files"$data"/*) continue ;; esac
    cmp -s "$file" "${file#files}" || differ+=("${file#files}")
  done < <(find files -type f -print0)
  rm -f touched
  if [ "${#differ[@]}" = 0 ] && is_current; then
    echo 'everything is in place already'
    in_place=yes
    return
  fi
  rm -f k3s-runs
  for there in "${differ[@]}"; do put "files$there" "$there"; done
}
