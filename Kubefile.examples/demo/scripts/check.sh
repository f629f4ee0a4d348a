#!/usr/bin/env bash
# Reports what would make init.sh fail; changes nothing.
set -euo pipefail
command -v busybox >/dev/null || { echo "busybox is not installed: apt-get install busybox-static"; exit 1; }
busybox --list | grep -x httpd >/dev/null || { echo "this busybox has no httpd: apt-get install busybox-static"; exit 1; }
