#!/bin/bash -e
# running containers
# If one ends between the two commands, the next attempt no longer lists it.

command -v crictl >/dev/null 2>&1 || {
  echo "there is no crictl" >&2
  exit 1
}
for _ in 1 2 3; do
  ids=$(crictl ps --quiet --state Running)
  [ -n "$ids" ] || exit 0
  # shellcheck disable=SC2086
  if all=$(crictl inspect --output json $ids); then
    printf '%s\n' "$all"
    exit 0
  fi
done
exit 1
