#!/bin/bash -e
# an API server, which this host's load balancer no longer uses
# This waits until the server has no more connections. A load balancer of an earlier imgctl version does not report its
# state, so it does not wait for that one.
# IMGCTL_FILE: the list of servers. IMGCTL_SERVERS: its new content. IMGCTL_SERVER: HOST:PORT of the one that is out.
# IMGCTL_UNIT: the load balancer's unit. IMGCTL_STATE: the file with what it reports.

file=$IMGCTL_FILE
[ -e "$file" ] || exit 0
printf '%s' "$IMGCTL_SERVERS" >"$file.new"
mv -f "$file.new" "$file"
pid=$(systemctl show -p MainPID --value "$IMGCTL_UNIT" || true)
for _ in $(seq 100); do
  [ "$(head -n 1 "$IMGCTL_STATE" 2>/dev/null)" = "pid $pid" ] || exit 0
  while read -r server state connections _; do
    [ "$server" = "$IMGCTL_SERVER" ] && [ "$connections" = 0 ] || continue
    case $state in out | unready | down) exit 0 ;; esac
  done < <(cat "$IMGCTL_STATE" 2>/dev/null)
  sleep 0.25
done
echo "connections to $IMGCTL_SERVER are still open"
