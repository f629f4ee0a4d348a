#!/usr/bin/env bash
# Whether this image can follow on what the cluster is; asked once, on the first host, before anything
# but files has come. Exit 0 is yes; else the last line says why not. Changes nothing. The plan on
# standard input is not needed: the members themselves are asked.
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"

contact=$(any_member) || die "no member answers with a quorum: repair the cluster first"
new=$(version_of "$rootfs/bin/etcd") || die "the image's etcd does not run on this host"
while read -r id state url learner; do
  [[ $state == started && $learner == false ]] || die "member $id is $state, learner: $learner"
  read -r running _ < <(versions_at "$(address_of "$url")") || die "member $id at $url does not answer"
  step=$(($(minor_of "$new") - $(minor_of "$running")))
  ((step >= 0)) || die "member $id runs $running, which is newer than the image's $new"
  ((step <= 1)) || die "from $running to $new skips a minor version: upgrade to the one in between first"
done < <(member_states "$contact")
say "etcd $new can follow"
