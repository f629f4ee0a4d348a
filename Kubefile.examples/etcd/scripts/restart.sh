#!/usr/bin/env bash
# Restarts this host's etcd, which then trusts the authorities in /etc/etcd/pki/ca.crt. The others have a
# quorum without it, and one of them leads.
#   restart.sh
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"

[[ -s $etcdEtc/member.env ]] || die "there is no member on this host"
# A member that does not run has to start, whatever the others do.
! systemctl is-active --quiet etcd || bash "$(dirname "$0")/before.sh"
start_and_wait
say "etcd is restarted"
