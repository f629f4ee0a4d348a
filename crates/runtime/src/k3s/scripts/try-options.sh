#!/bin/bash -e
# whether k3s knows options
# It passes over those that it does not know, with a warning, and then ends at `--help`.
# IMGCTL_VERB: server or agent. IMGCTL_NEW: path of the configuration. IMGCTL_OPTIONS: names, separated by blanks.
# shellcheck source=host.sh
. "$(dirname "$0")/host.sh"

said=$(timeout -k 5 60 "$k3s" "$IMGCTL_VERB" --config "$IMGCTL_NEW" --help 2>&1) || {
  tail -n 5 <<<"$said" >&2
  exit 1
}
for option in $IMGCTL_OPTIONS; do
  if grep -qE "([uU]nknown flag|not defined:) -*$option( |$)" <<<"$said"; then
    echo "k3s $IMGCTL_VERB has no option $option" >&2
    exit 1
  fi
done
