#!/bin/bash -e
# the hooks of a moment that the current tree has, one a line
# IMGCTL_ROOTFS: the tree. IMGCTL_PHASE: the moment.

cd -- "$IMGCTL_ROOTFS/hooks/$IMGCTL_PHASE.d" 2>/dev/null || exit 0
for hook in *; do
  if [ -f "$hook" ] || [ -L "$hook" ]; then printf '%s\n' "$hook"; fi
done
