#!/bin/bash -e
# a hook of the image, in its directory
# One that leads out of the tree is refused. IMGCTL_ROOTFS: the tree. IMGCTL_PHASE: the moment. IMGCTL_HOOK: its name.

cd -- "$IMGCTL_ROOTFS/hooks/$IMGCTL_PHASE.d" 2>/dev/null || exit 10
hook=./$IMGCTL_HOOK
if [ ! -e "$hook" ] && [ ! -L "$hook" ]; then
  echo "the image for this host has no such hook"
  exit 10
fi
top=$(readlink -f -- "$IMGCTL_ROOTFS")
real=$(readlink -f -- "$hook") || real=
case $real in
  "$top"/*) ;;
  *)
    echo "it leads out of the image's files, to ${real:-nowhere}: it is not run" >&2
    exit 1
    ;;
esac
if [ ! -f "$hook" ]; then
  echo "it is no file: it is not run" >&2
  exit 1
fi
if [ -x "$hook" ]; then exec "$hook"; fi
exec bash "$hook"
