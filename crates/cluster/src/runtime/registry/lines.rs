//! Bash lines that run on a registry host. Values are passed in variables, so that none is part of
//! a command; the login is never in an argument list.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::cluster::context::{ClusterContext, RegistryAccess};
use crate::runtime::action::Line;

pub(super) const PORT: &str = "IMGCTL_PORT";
const LOGIN: &str = "IMGCTL_LOGIN";
const DATA: &str = "IMGCTL_DATA";
const TREE: &str = "IMGCTL_REGISTRY";
const UNIT: &str = "IMGCTL_UNIT";

/// Links the registry's data directory to the cluster's. Never removes data of others.
pub(super) fn link_data(context: &ClusterContext, access: &RegistryAccess) -> Line {
    Line {
        environment: variables([(DATA, access.data.clone()), (TREE, context.paths.registry())]),
        again: true,
        ..Line::new(LINK_DATA)
    }
}

const LINK_DATA: &str = r#"# the registry's data: a link to the cluster's
data=$IMGCTL_DATA tree=$IMGCTL_REGISTRY
refuse() {
  echo "$data $1" >&2
  echo "move it away, or give the registry another directory (-e registryData=DIR)" >&2
  exit 1
}
mkdir -p "$tree" "$(dirname "$data")"
[ "$(readlink -f "$data")" = "$(readlink -f "$tree")" ] && exit 0
if [ -L "$data" ]; then
  [ ! -e "$data" ] || refuse "is a link to $(readlink "$data"), which is not this cluster's registry"
  rm -f "$data"
elif [ -d "$data" ]; then
  rmdir "$data" 2>/dev/null || refuse "is a directory that holds data, and not this cluster's"
elif [ -e "$data" ]; then
  refuse "is not a directory"
fi
ln -sT "$tree" "$data""#;

/// Removes that link if it belongs to this cluster or is dangling.
pub(super) fn unlink_data(context: &ClusterContext, access: &RegistryAccess) -> Line {
    Line {
        environment: variables([(DATA, access.data.clone()), (TREE, context.paths.registry())]),
        again: true,
        ..Line::new(
            r#"# the link to the registry's data
[ -L "$IMGCTL_DATA" ] || exit 0
if [ ! -e "$IMGCTL_DATA" ] || [ "$(readlink -f "$IMGCTL_DATA")" = "$(readlink -f "$IMGCTL_REGISTRY")" ]; then
  rm -f "$IMGCTL_DATA"
fi"#,
        )
    }
}

/// Defines `ask METHOD PATH`, which prints the status line of the response. Uses only bash, because
/// hosts can lack curl.
const ASK: &str = r#"ask() (
  exec 3<>"/dev/tcp/127.0.0.1/$IMGCTL_PORT" || exit 1
  printf '%s %s HTTP/1.1\r\nHost: 127.0.0.1:%s\r\n%sAccept: application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.v1+prettyjws, */*\r\nConnection: close\r\n\r\n' \
    "$1" "$2" "$IMGCTL_PORT" "${IMGCTL_LOGIN:+Authorization: Basic $IMGCTL_LOGIN$'\r\n'}" >&3
  IFS= read -r -t 20 line <&3 || exit 1
  printf '%s' "${line%$'\r'}"
)
"#;

/// Waits until the registry accepts the login.
pub(super) fn wait(access: &RegistryAccess, unit: String) -> Line {
    let mut line = asking(access, WAIT);
    line.environment.insert(UNIT.to_owned(), unit);
    line
}

const WAIT: &str = r#"answer=
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
exit 1"#;

/// Requests every image in the registry's tree and reports those that fail.
pub(super) fn verify(context: &ClusterContext, access: &RegistryAccess) -> Line {
    let mut line = asking(access, VERIFY);
    line.environment.insert(TREE.to_owned(), context.paths.registry());
    line
}

const VERIFY: &str = r#"cd "$IMGCTL_REGISTRY/docker/registry/v2/repositories" 2>/dev/null || exit 0
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
echo "$count images answer""#;

fn asking(access: &RegistryAccess, line: &str) -> Line {
    let mut variables = variables([(PORT, access.port.to_string())]);
    if access.needs_login() {
        let login = format!("{}:{}", access.username, access.password.expose());
        variables.insert(LOGIN.to_owned(), STANDARD.encode(login));
    }
    Line { environment: variables, again: true, ..Line::new(format!("{ASK}{line}")) }
}

/// Quotes one shell word.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns variables for a line.
pub(super) fn variables<const N: usize>(pairs: [(&str, String); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
