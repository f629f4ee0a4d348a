#!/bin/bash -e
# units that imgctl installed, and their files
# Nothing remains, not even a failed unit in `systemctl --failed`. It continues where it was killed before.
# IMGCTL_UNITS: names of units, separated by blanks. IMGCTL_FILES: other paths that go, one a line.

if command -v systemctl >/dev/null; then
  gone=
  for unit in $IMGCTL_UNITS; do
    [ -e "/etc/systemd/system/$unit" ] || systemctl is-active -q "$unit" || systemctl is-failed -q "$unit" || continue
    systemctl disable --quiet "$unit" 2>/dev/null || true
    systemctl stop "$unit" || true
    if systemctl is-active -q "$unit"; then
      echo "$unit does not stop; see systemctl status $unit" >&2
      exit 1
    fi
    rm -f "/etc/systemd/system/$unit"
    gone="$gone $unit"
  done
  if [ -n "$gone" ]; then
    systemctl daemon-reload
    for unit in $gone; do systemctl reset-failed "$unit" 2>/dev/null || true; done
  fi
fi
while IFS= read -r path; do
  [ -z "$path" ] || rm -rf "$path"
done <<<"$IMGCTL_FILES"
