#!/usr/bin/env bash
# Stops the registry. The blobs belong to the rootfs and go with it.
#   clean-registry.sh DATA CONFIG
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}
config=${2:?the configuration directory}

remove_service registry
[[ ! -L $data ]] || rm -f "$data"
rm -f "$config/registry_config.yml" "$config/registry_htpasswd" /usr/local/bin/docker-registry
rmdir --ignore-fail-on-non-empty "$config" 2>/dev/null || true
