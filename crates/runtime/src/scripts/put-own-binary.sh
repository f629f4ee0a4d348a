#!/bin/bash -e
# imgctl, which the services of this host run
# IMGCTL_BINARY: its path.
# shellcheck source=own-binary.sh
. "$(dirname "$0")/own-binary.sh"

put_own "$IMGCTL_BINARY"
