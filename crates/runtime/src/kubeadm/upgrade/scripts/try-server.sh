#!/bin/bash -e
# a program of the control plane, tried without a network and with read-only files
# It ends when the program reports a problem or gets as far as connecting to its server.
# Standard input, each ended by NUL: path on the host and path inside of each mount, an empty word, the words of the
# command. IMGCTL_COMPONENT: name of the program. IMGCTL_IMAGE: its image.

component=$IMGCTL_COMPONENT
mounts=() words=()
while IFS= read -r -d '' there && [ -n "$there" ]; do
  IFS= read -r -d '' inside
  if [ -e "$there" ]; then mounts+=(--mount "type=bind,src=$there,dst=$inside,options=rbind:ro"); fi
done
while IFS= read -r -d '' word; do words+=("$word"); done
command -v ctr >/dev/null 2>&1 || { echo "there is no ctr: the new $component is not tried"; exit 0; }
name=imgctl-try-$component-$$ scratch=$(mktemp -d)
ended() {
  ctr -n k8s.io tasks kill -s SIGKILL "$name" >/dev/null 2>&1 || true
  for _ in $(seq 20); do
    ctr -n k8s.io containers rm "$name" >/dev/null 2>&1 || true
    ctr -n k8s.io containers ls -q 2>/dev/null | grep -qxF "$name" || break
    sleep 0.25
  done
  kill -KILL "$pid" 2>/dev/null || true
  rm -rf "$scratch"
}
trap ended EXIT
try() { exec ctr -n k8s.io run --rm "${mounts[@]}" "$IMGCTL_IMAGE" "$name" "${words[@]}"; }
try </dev/null >"$scratch/said" 2>&1 & pid=$!
goes_on=0
for _ in $(seq 80); do
  kill -0 "$pid" 2>/dev/null || break
  # It takes its flags; files that they name are read while it looks for etcd or the API.
  if grep -qE 'createTransport failed|connection refused|network is unreachable|"Starting( Kubernetes Scheduler)?" version=' "$scratch/said"; then
    goes_on=$((goes_on + 1)); [ "$component" = kube-apiserver ] && [ "$goes_on" -lt 12 ] || break
  fi
  sleep 0.25
done
if kill -0 "$pid" 2>/dev/null; then echo "the new $component takes its flags"; exit 0; fi
problem=$(grep -E '"command failed" err=|^Error: |[uU]nknown (shorthand )?flag|invalid argument|unrecognized feature gate|^panic: |^F[0-9]{4} |flag provided but not defined|invalid value|error verifying flags' "$scratch/said" |
  grep -vE 'stat /var/lib/kube-proxy/|cannot assign requested address|network is unreachable|connection refused|context deadline exceeded|read-only file system|no such host|i/o timeout|dial (tcp|udp|unix)|createTransport' |
  sed -E 's/^.*"command failed" err="(.*)"$/\1/; s/^Error: //' | cut -c 1-500 | awk '!seen[$0]++' | tail -n 5 || true)
if [ -n "$problem" ]; then
  echo "$problem" >&2
  exit 1
fi
echo "the new $component did not say whether it takes its flags: $(tail -n 1 "$scratch/said" | cut -c 1-300)"
