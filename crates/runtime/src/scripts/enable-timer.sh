#!/bin/bash -e
# a timer of imgctl, which is enabled and starts anew
# IMGCTL_UNIT: its name, without suffix.

systemctl daemon-reload
systemctl enable --quiet "$IMGCTL_UNIT.timer"
systemctl restart "$IMGCTL_UNIT.timer"
