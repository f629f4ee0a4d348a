#!/usr/bin/env bash
# Registry hosts only: serves the image's registry/ folder.
#   init-registry.sh DATA CONFIG
source "$(dirname "$0")/common.sh"
data=${1:?the data directory}
config=${2:?the configuration directory}

# The blobs are in the rootfs already; a folder that someone else filled is never touched.
mkdir -p ../registry
here=$(cd .. && pwd)
if [[ -e $data && ! -L $data ]]; then
  die "$data exists and is not a link of ours"
fi
mkdir -p "$(dirname "$data")"
ln -sfn "$here/registry" "$data"

put 0755 ../cri/docker-registry /usr/local/bin/docker-registry
put 0600 ../etc/registry_config.yml "$config/registry_config.yml"
# Written by imgctl before this script runs: user and bcrypt hash of etc/registry.yml's password.
put 0600 ../etc/registry_htpasswd "$config/registry_htpasswd"
put 0644 ../etc/registry.service /etc/systemd/system/registry.service
start_service registry
say "the registry serves $here/registry"
