#!/bin/bash -e
# an API server, which this host's load balancer uses again
# IMGCTL_FILE: the list of servers. IMGCTL_SERVERS: its new content. IMGCTL_SERVER: HOST:PORT of the one that was out.

file=$IMGCTL_FILE
[ -e "$file" ] || exit 0
if grep -qF "#out $IMGCTL_SERVER " "$file"; then
  printf '%s' "$IMGCTL_SERVERS" >"$file.new"
  mv -f "$file.new" "$file"
fi
