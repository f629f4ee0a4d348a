#!/bin/bash -e
# `put_own TARGET`: the imgctl that runs the commands of this host, at TARGET.
# An agent that was uploaded is never written again, so a hard link is enough; any other binary is copied.

put_own() {
  local own
  [ "/proc/$PPID/exe" -ef "$1" ] && return 0
  mkdir -p "$(dirname "$1")"
  rm -f "$1.new"
  own=$(readlink "/proc/$PPID/exe")
  case $own in
    */imgctl-agent-*) ln "$own" "$1.new" 2>/dev/null || install -m 0755 "/proc/$PPID/exe" "$1.new" ;;
    *) install -m 0755 "/proc/$PPID/exe" "$1.new" ;;
  esac
  mv -f "$1.new" "$1"
}
