#!/bin/bash -e
# imgctl's own service
# IMGCTL_UNIT: its unit. IMGCTL_BINARY: its program; one with the same content stays, so that the service is not
# restarted for it. IMGCTL_CHANGED: not empty if the unit or its settings have changed.
# shellcheck source=../../scripts/own-binary.sh
. "$(dirname "$0")/../../scripts/own-binary.sh"
# shellcheck source=lost-directory.sh
. "$(dirname "$0")/lost-directory.sh"

command -v systemctl >/dev/null || {
  echo "this host has no systemd, which $IMGCTL_UNIT needs" >&2
  exit 1
}
changed=$IMGCTL_CHANGED
if ! [ "/proc/$PPID/exe" -ef "$IMGCTL_BINARY" ] && ! cmp -s "/proc/$PPID/exe" "$IMGCTL_BINARY"; then
  put_own "$IMGCTL_BINARY"
  changed=1
fi
systemctl daemon-reload
systemctl enable -q "$IMGCTL_UNIT"
if [ -n "$changed" ] || ! systemctl is-active -q "$IMGCTL_UNIT" || has_lost_directory "$IMGCTL_UNIT"; then
  systemctl restart "$IMGCTL_UNIT"
fi
