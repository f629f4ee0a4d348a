#!/bin/sh
# Installs imgctl from a release, after comparing checksums and, where it can, the signature.
#   sh install.sh [OPTIONS]
#     --version VERSION    version to install [default: that of this script, otherwise the latest]
#     --prefix DIR         installs DIR/bin/imgctl [default: /usr/local as root, otherwise ~/.local]
#     --base-url URL       directory with the release's files: https://…, or file:///…
#     --agents             also the programs for hosts of other architectures (DIR/lib/imgctl)
#     --key FILE           public key that must have signed the release
#     --certificate-identity NAME, --certificate-oidc-issuer URL, [--trusted-root FILE]
#                          identity that must have signed it; {version} in NAME is the version
#     --require-signature  fail without one of the options above
# With an option for a signer, nothing is installed unless imgctl, cosign or gh verified the signature.
set -eu

main() {
  releases='@RELEASES@'
  version='@VERSION@'
  case $releases in @* | '') releases=${IMGCTL_RELEASES:-} ;; esac
  case $version in @*) version=latest ;; esac
  prefix='' base='' agents='' key='' identity='' issuer='' root='' required=''
  while [ $# -gt 0 ]; do
    case $1 in
      --version) need "$@"; version=${2#v}; shift ;;
      --prefix) need "$@"; prefix=$2; shift ;;
      --base-url) need "$@"; base=${2%/}; shift ;;
      --key) need "$@"; key=$2; shift ;;
      --certificate-identity) need "$@"; identity=$2; shift ;;
      --certificate-oidc-issuer) need "$@"; issuer=$2; shift ;;
      --trusted-root) need "$@"; root=$2; shift ;;
      --agents) agents=1 ;;
      --require-signature) required=1 ;;
      -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
      *) fail "unknown argument $1; --help lists what there is" ;;
    esac
    shift
  done
  case $version in *[!0-9A-Za-z.+-]* | '') fail "\`$version\` is not a version" ;; esac
  signer

  case $(uname -sm) in
    'Linux x86_64') platform=linux-amd64 ;;
    'Linux aarch64' | 'Linux arm64') platform=linux-arm64 ;;
    *) fail "there is no imgctl for $(uname -sm): it runs on Linux, amd64 and arm64" ;;
  esac
  if [ -z "$prefix" ]; then
    prefix=/usr/local
    [ "$(id -u)" = 0 ] || prefix=${HOME:?}/.local
  fi
  if [ -z "$base" ]; then
    [ -n "$releases" ] || fail "where from? Pass --base-url URL, or set IMGCTL_RELEASES to the URL of the releases"
    base=$releases/download/v$version
    [ "$version" != latest ] || base=$releases/latest/download
  fi
  case $base in
    https://* | file:///*) ;;
    *) fail "$base is neither an https:// nor a file:/// URL" ;;
  esac

  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  trap 'exit 1' HUP INT TERM
  get SHA256SUMS || fail "cannot download $base/SHA256SUMS"
  archive=$(listed "$platform")
  found=${archive#imgctl-}
  found=${found%"-$platform.tar.gz"}
  [ "$version" = latest ] || [ "$version" = "$found" ] || fail "$base has version $found, not $version"
  signature
  fetch "$archive"
  unpack "$archive"
  "$work/$platform/imgctl" --version >/dev/null || fail "the imgctl of $archive does not run on this machine"
  if [ -n "$agents" ]; then
    for other in linux-amd64 linux-arm64; do
      [ "$other" = "$platform" ] || { fetch "$(listed "$other")"; unpack "$(listed "$other")"; }
    done
  fi

  if [ -n "$agents" ]; then
    for other in linux-amd64 linux-arm64; do
      place "$work/$other/imgctl" "$prefix/lib/imgctl" "imgctl-$other"
    done
  fi
  place "$work/$platform/imgctl" "$prefix/bin" imgctl
  echo "imgctl $found is installed in $prefix/bin"
  case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) echo "add $prefix/bin to PATH to call it by its name" ;;
  esac
}

fail() {
  echo "install.sh: $1" >&2
  exit 1
}

need() { [ $# -ge 2 ] || fail "$1 needs a value"; }

# get NAME: one file of the release
get() {
  case $base in
    file:///*) cp "${base#file://}/$1" "$work/$1" 2>/dev/null ;;
    *)
      if command -v curl >/dev/null 2>&1; then
        curl --fail --silent --show-error --location --proto '=https' --proto-redir '=https' --retry 3 \
          --output "$work/$1" "$base/$1"
      elif command -v wget >/dev/null 2>&1; then
        follow "$base/$1" "$work/$1"
      else
        fail "neither curl nor wget is there to download with"
      fi
      ;;
  esac
}

# follow URL FILE: downloads with wget, which would also follow a redirect to plain http
follow() {
  url=$1
  hops=0
  while [ "$hops" -lt 10 ]; do
    if said=$(wget --server-response --max-redirect=0 -O "$2" "$url" 2>&1); then return 0; fi
    url=$(printf '%s\n' "$said" | sed -n 's|^ *[Ll]ocation: *\(https://[^ ]*\).*|\1|p' | head -n 1)
    [ -n "$url" ] || return 1
    hops=$((hops + 1))
  done
  return 1
}

# listed PLATFORM: the archive's name in SHA256SUMS; a name with a slash would leave the directory
listed() {
  name=$(sed -n "s/^[0-9a-f]\{64\} [ *]\(imgctl-[0-9A-Za-z.+-]*-$1\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS")
  case $name in
    '') fail "SHA256SUMS of $base names no archive for $1" ;;
    *[!0-9A-Za-z.+-]*) fail "SHA256SUMS of $base names several archives for $1" ;;
  esac
  echo "$name"
}

digest() {
  if command -v sha256sum >/dev/null 2>&1; then
    sha256sum "$1"
  elif command -v openssl >/dev/null 2>&1; then
    openssl dgst -sha256 -r "$1"
  else
    fail "neither sha256sum nor openssl is there to compare checksums with"
  fi | cut -c 1-64
}

# fetch NAME: downloads an archive and compares its checksum
fetch() {
  get "$1" || fail "cannot download $base/$1"
  expected=$(sed -n "s/^\([0-9a-f]\{64\}\) [ *]$1\$/\1/p" "$work/SHA256SUMS")
  [ "$(digest "$work/$1")" = "$expected" ] || fail "$base/$1 does not have the checksum of SHA256SUMS; nothing was installed"
}

# unpack NAME: the binary of an archive, as PLATFORM/imgctl
unpack() {
  directory=${1%.tar.gz}
  to=$work/linux-${directory##*-linux-}
  mkdir "$to"
  tar -xzf "$work/$1" -C "$to" --strip-components=1 "$directory/imgctl"
}

# place FILE DIRECTORY NAME: replaces a program that may be running
place() {
  if ! { mkdir -p "$2" && cp "$1" "$2/.$3.new" && chmod 0755 "$2/.$3.new" && mv -f "$2/.$3.new" "$2/$3"; }; then
    fail "cannot write $2/$3: pass --prefix DIR, or run it as root"
  fi
}

# signer: whoever must have signed; to name one in part would be to name none
signer() {
  if [ -n "$key" ]; then
    [ -z "$identity$issuer$root" ] || fail "--key and --certificate-identity exclude each other"
    [ -r "$key" ] || fail "cannot read the key $key"
  elif [ -n "$identity$issuer$root" ]; then
    [ -n "$identity" ] || fail "--certificate-identity is missing: it says who must have signed"
    [ -n "$issuer" ] || fail "--certificate-oidc-issuer is missing: it says who vouches for the identity"
  elif [ -n "$required" ]; then
    fail "--require-signature needs a signer: pass --key, or --certificate-identity and --certificate-oidc-issuer"
  fi
}

# signature: verifies that the signer vouches for SHA256SUMS
signature() {
  if [ -z "$key$identity" ]; then
    echo "install.sh: the signature was not verified: pass --key, or --certificate-identity and --certificate-oidc-issuer" >&2
    return
  fi
  bundle=imgctl-$found.sigstore.json
  get "$bundle" 2>/dev/null || fail "the release has no signature; nothing was installed"
  if [ -n "$key" ]; then
    set -- --key "$key"
  else
    case $identity in *'{version}'*) identity=${identity%%'{version}'*}$found${identity#*'{version}'} ;; esac
    set -- --certificate-identity "$identity" --certificate-oidc-issuer "$issuer"
    [ -z "$root" ] || set -- "$@" --trusted-root "$root"
  fi
  set -- "$@" --type slsaprovenance1 --bundle "$work/$bundle"
  if command -v imgctl >/dev/null 2>&1 && imgctl verify-blob-attestation --help >/dev/null 2>&1 &&
    { [ -n "$key" ] || [ -n "$root" ]; }; then
    set -- imgctl verify-blob-attestation "$@" "$work/SHA256SUMS"
  elif command -v cosign >/dev/null 2>&1; then
    [ -z "$key" ] || set -- "$@" --insecure-ignore-tlog
    set -- cosign verify-blob-attestation "$@" "$work/SHA256SUMS"
  elif [ -z "$key$root" ] && command -v gh >/dev/null 2>&1; then
    owner=${identity#https://*/}
    set -- gh attestation verify "$work/SHA256SUMS" --bundle "$work/$bundle" --owner "${owner%%/*}" \
      --cert-identity "$identity" --cert-oidc-issuer "$issuer"
  else
    fail "the signature cannot be verified: neither cosign nor an imgctl that can is on this machine; nothing was installed"
  fi
  "$@" >/dev/null || fail "the signature is not valid; nothing was installed"
  echo "the signature is valid"
}

main "$@"
