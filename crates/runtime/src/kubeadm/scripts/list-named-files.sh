#!/bin/bash -e
# files that static Pods of the control plane name
# shellcheck source=named-files.sh
. "$(dirname "$0")/named-files.sh"

named
