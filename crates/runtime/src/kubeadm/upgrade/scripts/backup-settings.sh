#!/bin/bash -e
# the files that settings change, with checksums
# IMGCTL_BACKUP: see target.rs. IMGCTL_FILES: paths, separated by blanks.
# shellcheck source=keep-files.sh
. "$(dirname "$0")/keep-files.sh"

begin_files
# shellcheck disable=SC2086
keep files.new $IMGCTL_FILES
# A line that always holds: a host may have no file that changes.
: >files.new/.imgctl
list_files
done_with_files
