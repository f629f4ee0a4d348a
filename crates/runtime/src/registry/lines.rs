//! Bash lines that run on a registry host, and imgctl's own registry as a systemd unit, for images
//! without one. Values are passed in variables, so that none is part of a command; the login is never
//! in an argument list.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{Action, action::Line, own_binary, units};
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_model::context::{ClusterContext, RegistryAccess};
use imgctl_model::registry_access::HTPASSWD;
use imgctl_model::variables::Variables;

pub(super) const PORT: &str = "IMGCTL_PORT";
const LOGIN: &str = "IMGCTL_LOGIN";
const DATA: &str = "IMGCTL_DATA";
const TREE: &str = "IMGCTL_REGISTRY";
const UNIT: &str = "IMGCTL_UNIT";

/// Returns the paths of the users file: the one that images' scripts expect, and the copy of imgctl's own
/// registry, which survives a switch to another tree.
pub(super) fn users_files(context: &ClusterContext) -> [String; 2] {
    [format!("{}/{HTPASSWD}", context.paths.rootfs()), own_users(context)]
}

/// Returns the file with the users of imgctl's own registry.
fn own_users(context: &ClusterContext) -> String {
    format!("{}/{HTPASSWD}", context.paths.root())
}

/// Links the registry's data directory to the cluster's. Never removes data of others.
pub(super) fn link_data(context: &ClusterContext, access: &RegistryAccess) -> Line {
    Line {
        environment: variables([(DATA, access.data.clone()), (TREE, context.paths.registry())]),
        ..Line::repeatable(LINK_DATA)
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
        ..Line::repeatable(
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

/// Asks once whether the registry accepts the login.
pub(super) fn answers(access: &RegistryAccess) -> Line {
    Line { quiet: true, ..asking(access, ANSWERS) }
}

const ANSWERS: &str = r#"export -f ask
case $(timeout 5 bash -c 'ask GET /v2/' 2>/dev/null) in
  HTTP/1.?\ 200*) exit 0 ;;
esac
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
    Line { environment: variables, ..Line::repeatable(format!("{ASK}{line}")) }
}

pub(super) fn variables<const N: usize>(pairs: [(&str, String); N]) -> Variables {
    let pairs = pairs.into_iter().map(|(key, value)| (key.to_owned(), value));
    pairs.collect::<BTreeMap<_, _>>().into()
}

const BINARY: &str = "IMGCTL_BINARY";
const CHANGED: &str = "IMGCTL_CHANGED";

/// Returns the unit's name. Each cluster has its own, because a host can belong to several.
pub(super) fn unit_name(context: &ClusterContext) -> String {
    format!("imgctl-registry-{}.service", context.name)
}

fn path(context: &ClusterContext) -> String {
    format!("/etc/systemd/system/{}", unit_name(context))
}

fn binary(context: &ClusterContext) -> String {
    format!("{}/bin/imgctl", context.paths.root())
}

pub(super) fn unit_text(context: &ClusterContext, access: &RegistryAccess) -> String {
    let users = if access.needs_login() {
        format!(" --htpasswd {}", word(&own_users(context)))
    } else {
        String::new()
    };
    format!(
        "[Unit]
Description=Embedded registry of cluster {name}
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={binary} registry serve {data} --port {port}{users}
Restart=always
RestartSec=2
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
",
        name = context.name,
        binary = word(&binary(context)),
        data = word(&context.paths.registry()),
        port = access.port,
    )
}

/// Quotes one word of a unit file's command line.
fn word(text: &str) -> String {
    let escaped =
        text.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    format!("\"{escaped}\"")
}

pub(super) fn start_unit(context: &ClusterContext, access: &RegistryAccess) -> Action {
    let (path, text) = (path(context), unit_text(context, access));
    let says = format!(
        "write {path} and start it: imgctl registry serve {} on port {}",
        context.paths.registry(),
        access.port
    );
    let environment = variables([(BINARY, binary(context)), (UNIT, unit_name(context))]);
    let inputs = text.clone();
    Action::depending_on("registry-start", says, &inputs, move |site| {
        let changed = site.agent.write_file(&FileToWrite {
            path: path.clone(),
            mode: 0o644,
            content: text.clone().into_bytes(),
        })?;
        let mut line = Line { environment: environment.clone(), ..Line::repeatable(start_line()) };
        let changed = if changed { "1" } else { "" };
        line.environment.insert(CHANGED.to_owned(), changed.to_owned());
        site.run(&line).map(|_| ())
    })
}

const NEEDS_SYSTEMD: &str = r#"# imgctl's own registry
command -v systemctl >/dev/null || {
  echo "this host has no systemd, and the image brings no init-registry script" >&2
  exit 1
}"#;

const START: &str = r#"systemctl daemon-reload
systemctl enable -q "$IMGCTL_UNIT"
if [ -n "$IMGCTL_CHANGED" ] || ! systemctl is-active -q "$IMGCTL_UNIT"; then
  systemctl restart "$IMGCTL_UNIT"
fi"#;

/// Returns the line that puts the binary in its place and starts the unit. A binary with the same content
/// stays, so that the registry is not restarted for it.
fn start_line() -> String {
    let own = own_binary("\"$IMGCTL_BINARY\"").line;
    format!(
        "{NEEDS_SYSTEMD}\n\
         if ! [ /proc/$PPID/exe -ef \"$IMGCTL_BINARY\" ] && ! cmp -s /proc/$PPID/exe \"$IMGCTL_BINARY\"; then\n\
         {own}\nIMGCTL_CHANGED=1\nfi\n{START}"
    )
}

pub(super) fn stop_unit(context: &ClusterContext) -> Action {
    let removed = units::removal(&[&unit_name(context)]);
    let line = Line {
        environment: variables([(BINARY, binary(context))]),
        ..Line::repeatable(format!(
            "# imgctl's own registry\n{removed}\nrm -f \"$IMGCTL_BINARY\" \"$IMGCTL_BINARY.new\""
        ))
    };
    let says = format!("stop and remove {}", unit_name(context));
    let inputs = line.line.clone();
    Action::depending_on("registry-clean", says, &inputs, move |site| site.run(&line).map(|_| ()))
}
