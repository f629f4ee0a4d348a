#!/bin/bash -e
# services that read a login only when they start
# IMGCTL_UNITS: their units, separated by blanks; those that run are restarted.

command -v systemctl >/dev/null || exit 0
for unit in $IMGCTL_UNITS; do
  if systemctl is-active -q "$unit"; then systemctl restart "$unit"; fi
done
