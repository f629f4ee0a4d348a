#!/bin/bash -e
# a file with a login
# Standard input: its content. IMGCTL_FILE: its path.

umask 077
file=$(readlink -f "$IMGCTL_FILE")
rm -f "$file.imgctl-new"
cat >"$file.imgctl-new"
chown --reference="$file" "$file.imgctl-new"
chmod --reference="$file" "$file.imgctl-new"
sync "$file.imgctl-new"
mv -f "$file.imgctl-new" "$file"
