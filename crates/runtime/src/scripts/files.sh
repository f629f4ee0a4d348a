#!/bin/bash -e
# Functions for files of a host.
# `put SOURCE TARGET [MODE]` does nothing if both are equal; `ours FILE ROOT RELATIVE` succeeds if FILE is identical to
# the one in some image tree below ROOT, which means that it was not modified on the host; `where PROGRAM` prints its path.

put() {
  if [ -e "$2" ] && [ ! -L "$2" ] && cmp -s "$1" "$2"; then return 0; fi
  mkdir -p "$(dirname "$2")"
  rm -rf "$2.imgctl-new"
  cp -L --preserve=mode,ownership,timestamps "$1" "$2.imgctl-new"
  if [ -n "${3:-}" ]; then chown 0:0 "$2.imgctl-new"; chmod "$3" "$2.imgctl-new"; fi
  sync "$2.imgctl-new"
  mv -f "$2.imgctl-new" "$2"
  sync "$(dirname "$2")"
  echo "$2 is replaced"
}
ours() {
  local tree
  for tree in "$2"/rootfs "$2"/rootfs.*; do
    if cmp -s "$1" "$tree/$3"; then return 0; fi
  done
  return 1
}
where() { type -P "$1" || echo "/usr/bin/$1"; }
