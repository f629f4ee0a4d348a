#!/bin/bash -e
# the API load balancer of this host
# It is restarted if its program or command line has changed. That it serves is what it reports itself: an open port is no
# proof. An earlier imgctl version's load balancer holds the port itself.
# IMGCTL_UNIT: its unit, without suffix. IMGCTL_BINARY: its program. IMGCTL_COMMAND: its command line. IMGCTL_STATE: the file
# with what it reports. IMGCTL_LISTENS: HOST:PORT.

unit=$IMGCTL_UNIT
systemctl daemon-reload
systemctl enable --quiet "$unit.socket" "$unit.service"
if ! systemctl is-active --quiet "$unit.socket"; then
  systemctl stop "$unit.service" || true
  systemctl start "$unit.socket" || {
    journalctl --no-pager -q -n 20 -u "$unit.socket" >&2
    echo "the API load balancer cannot listen on $IMGCTL_LISTENS; see ss -ltnp" >&2
    exit 1
  }
fi
pid=$(systemctl show -p MainPID --value "$unit.service")
if [ "${pid:-0}" != 0 ] && cmp -s "/proc/$pid/exe" "$IMGCTL_BINARY" &&
  [ "$(tr '\0' ' ' <"/proc/$pid/cmdline")" = "$IMGCTL_COMMAND " ]; then
  systemctl start "$unit.service"
else
  systemctl restart "$unit.service"
fi
for _ in $(seq 80); do
  pid=$(systemctl show -p MainPID --value "$unit.service")
  if [ "${pid:-0}" != 0 ] && [ "$(head -n 1 "$IMGCTL_STATE" 2>/dev/null)" = "pid $pid" ]; then exit 0; fi
  sleep 0.25
done
journalctl --no-pager -q -n 20 -u "$unit.service" >&2
echo "the API load balancer does not serve $IMGCTL_LISTENS after 20 s; see journalctl -u $unit" >&2
exit 1
