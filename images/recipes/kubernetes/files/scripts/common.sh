# shellcheck shell=bash
# Sourced by every script here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }
die() {
  say "$*" >&2
  exit 1
}

# Copies a file, whole or not at all: a running binary keeps its old inode.
put() { # MODE SOURCE DESTINATION
  mkdir -p "$(dirname "$3")"
  install -m "$1" "$2" "$3.new"
  mv -f "$3.new" "$3"
}

start_service() {
  systemctl daemon-reload
  systemctl enable --quiet "$1"
  systemctl restart "$1"
  systemctl is-active --quiet "$1" || die "$1 does not start; see journalctl -u $1"
}

remove_service() {
  if systemctl cat "$1" >/dev/null 2>&1; then
    systemctl disable --now --quiet "$1" || true
  fi
  rm -f "/etc/systemd/system/$1.service"
  rm -rf "/etc/systemd/system/$1.service.d"
  systemctl daemon-reload
}
