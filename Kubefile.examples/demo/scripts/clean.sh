#!/usr/bin/env bash
# Removes what init.sh has made.
systemctl disable --now --quiet demo || true
rm -f /etc/systemd/system/demo.service
systemctl daemon-reload
