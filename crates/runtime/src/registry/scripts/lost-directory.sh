#!/bin/bash -e
# whether a service works in a directory that is gone: what is in its place now is another one

has_lost_directory() { # UNIT
  local pid fd
  command -v systemctl >/dev/null || return 1
  pid=$(systemctl show -p MainPID --value "$1" 2>/dev/null) || return 1
  for fd in "/proc/${pid:-0}/fd"/*; do
    case $(readlink "$fd" 2>/dev/null) in
      *' (deleted)') [ ! -d "$fd" ] || return 0 ;;
    esac
  done
  return 1
}
