#!/usr/bin/env bash
# Starts the page of this host, or starts it anew for another version or other hosts. Safe to repeat.
set -euo pipefail
root=$(dirname "$PWD")
cat >/etc/systemd/system/demo.service <<UNIT
[Unit]
Description=The demonstration page of imgctl

[Service]
Environment="DEMO_IMAGE=${IMGCTL_IMAGE-}" "DEMO_DIGEST=${IMGCTL_IMAGE_DIGEST-}"
ExecStart=$(command -v busybox) httpd -f -p $demoPort -h $root/etc/www
Restart=always
DynamicUser=yes

[Install]
WantedBy=multi-user.target
UNIT
systemctl daemon-reload
systemctl enable --quiet demo
systemctl restart demo
