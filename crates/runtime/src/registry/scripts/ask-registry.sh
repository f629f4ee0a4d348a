#!/bin/bash -e
# the registry of this host: whether it answers, now or within a minute, and whether it has its images
# IMGCTL_ASK names the question; IMGCTL_PORT is the port, IMGCTL_LOGIN the login in base64 if it needs one,
# IMGCTL_UNIT its unit, IMGCTL_REGISTRY its tree.
# shellcheck source=lost-directory.sh
. "$(dirname "$0")/lost-directory.sh"

# ask METHOD PATH prints the status line of the response. Only bash: hosts can lack curl.
ask() (
  exec 3<>"/dev/tcp/127.0.0.1/$IMGCTL_PORT" || exit 1
  printf '%s %s HTTP/1.1\r\nHost: 127.0.0.1:%s\r\n%sAccept: application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.v1+prettyjws, */*\r\nConnection: close\r\n\r\n' \
    "$1" "$2" "$IMGCTL_PORT" "${IMGCTL_LOGIN:+Authorization: Basic $IMGCTL_LOGIN$'\r\n'}" >&3
  IFS= read -r -t 20 line <&3 || exit 1
  printf '%s' "${line%$'\r'}"
)

# Waits until the registry accepts the login.
wait_for_answer() {
  answer=
  for ((i = 0; i < 240; i++)); do
    answer=$(ask GET /v2/ 2>/dev/null) || answer=
    case $answer in
      HTTP/1.?\ 200*) exit 0 ;;
      HTTP/1.?\ 401*) ((i < 20)) || break ;;
    esac
    sleep 0.25
  done
  echo "the registry on port $IMGCTL_PORT of this host does not answer: ${answer:-no answer}" >&2
  case $answer in
    *\ 401*) echo "it does not know the user, or another password: etc/registry_htpasswd is not what it reads" >&2 ;;
  esac
  if command -v journalctl >/dev/null; then
    journalctl --no-pager -q -n 20 -u registry -u "$IMGCTL_UNIT" >&2 2>/dev/null || true
  fi
  exit 1
}

# Asks once whether the registry accepts the login. One that serves a directory that is gone does not count.
answers() {
  ! has_lost_directory "$IMGCTL_UNIT" || exit 1
  export -f ask
  case $(timeout 5 bash -c 'ask GET /v2/' 2>/dev/null) in
    HTTP/1.?\ 200*) exit 0 ;;
  esac
  exit 1
}

# Requests every image in the registry's tree and reports those that fail.
images() {
  cd "$IMGCTL_REGISTRY/docker/registry/v2/repositories" 2>/dev/null || exit 0
  count=0 bad=0
  check() {
    count=$((count + 1))
    local answer
    answer=$(ask HEAD "/v2/$1/manifests/$2" 2>/dev/null) || answer=
    case $answer in
      HTTP/1.?\ 200*) return ;;
    esac
    bad=$((bad + 1))
    ((bad > 20)) || echo "image $1$3$2 does not answer: ${answer:-no answer}" >&2
  }
  while IFS= read -r manifests; do
    manifests=${manifests#./} repository=${manifests#./}
    repository=${repository%/_manifests}
    tags=0
    for tag in "$manifests"/tags/*/current/link; do
      [ -e "$tag" ] || continue
      tags=1 tag=${tag%/current/link}
      check "$repository" "${tag##*/}" :
    done
    ((tags)) && continue
    for revision in "$manifests"/revisions/sha256/*/link; do
      [ -s "$revision" ] || continue
      revision=${revision%/link}
      check "$repository" "sha256:${revision##*/}" @
    done
  done < <(find . -type d -name _manifests | sort)
  if ((bad)); then
    echo "$bad of $count images of the embedded registry do not answer; try: imgctl registry scrub $IMGCTL_REGISTRY" >&2
    exit 1
  fi
  echo "$count images answer"
}

case $IMGCTL_ASK in
  wait) wait_for_answer ;;
  once) answers ;;
  images) images ;;
esac
