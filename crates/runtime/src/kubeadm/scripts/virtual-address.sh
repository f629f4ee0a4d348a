#!/bin/bash -e
# the virtual address of the API, before the kubelet can start its static Pod
# IMGCTL_HELPER: path of sealctl; without it, the host's own ipvsadm is used. IMGCTL_SERVICE: HOST:PORT of the virtual
# address. IMGCTL_ADDRESS: ADDRESS/PREFIX of the interface. IMGCTL_SERVERS: HOST:PORT of each API server.

if [ -x "$IMGCTL_HELPER" ]; then
  servers=()
  for server in $IMGCTL_SERVERS; do servers+=(--rs "$server"); done
  "$IMGCTL_HELPER" ipvs --vs "$IMGCTL_SERVICE" "${servers[@]}" --health-path /readyz --health-schem https --run-once
elif command -v ipvsadm >/dev/null 2>&1; then
  ip link show lvscare >/dev/null 2>&1 || ip link add lvscare type dummy
  ip address replace "$IMGCTL_ADDRESS" dev lvscare
  ipvsadm -A -t "$IMGCTL_SERVICE" -s rr 2>/dev/null || true
  for server in $IMGCTL_SERVERS; do ipvsadm -a -t "$IMGCTL_SERVICE" -r "$server" -m 2>/dev/null || true; done
else
  echo "neither opt/sealctl of the image nor ipvsadm can set up the virtual address $IMGCTL_SERVICE" >&2
  exit 1
fi
