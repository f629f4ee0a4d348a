#!/bin/bash -e
# the new programs in the tree of the image
# IMGCTL_TREE: see target.rs. IMGCTL_FILES: what must be in it, separated by blanks.

status=0
for file in $IMGCTL_FILES; do
  [ -f "$IMGCTL_TREE/$file" ] || {
    echo "$file is not in the rootfs image" >&2
    status=1
  }
done
exit $status
