#!/bin/bash -e
# what backups on a timer need
# IMGCTL_CALENDAR: when they are made. IMGCTL_BACKUP: the directory of the timer's files. IMGCTL_PLACE: a directory of backups
# that are not encrypted, which other users may not enter, or empty. The backup itself would fail only when the timer
# runs it.

systemd-analyze calendar "$IMGCTL_CALENDAR" >/dev/null
place=$IMGCTL_PLACE
is_open() { [ -n "$(find "$1" -maxdepth 0 -perm /077)" ]; }
if [ -n "$place" ] && [ -d "$place" ] && is_open "$place" && [ -n "$(ls -A "$place")" ] &&
  { [ ! -d "$place/blobs" ] || is_open "$place/blobs"; }; then
  echo "others may enter $place on this host, and backups are not encrypted: chmod 700 it there, or pass --encrypt-to" >&2
  exit 1
fi
mkdir -p -m 0700 "$IMGCTL_BACKUP"
chmod 0700 "$IMGCTL_BACKUP"
