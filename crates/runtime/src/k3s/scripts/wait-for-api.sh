#!/bin/bash -e
# the API of this host, which answers

for _ in $(seq 150); do
  k3s kubectl get --raw /readyz >/dev/null 2>&1 && exit 0
  sleep 2
done
systemctl --no-pager --lines=20 status k3s || true
echo 'the API does not answer after 300 s; see journalctl -u k3s' >&2
exit 1
