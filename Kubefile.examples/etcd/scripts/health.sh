#!/usr/bin/env bash
# Exit 0 when this host's member serves, takes part in a quorum and raises no alarm.
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"

systemctl is-active --quiet etcd || die "the unit etcd is not active"
here endpoint health >/dev/null 2>&1 || die "no answer, or no quorum, at $(client_url "$HOST_IP")"
alarms=$(here alarm list)
[[ -z $alarms ]] || die "alarm: $alarms"
status=$(here endpoint status)
say "${status#*, }"
