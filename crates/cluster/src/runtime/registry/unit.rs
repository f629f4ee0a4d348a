//! imgctl's own registry as a systemd unit, for images without one. Its binary is a copy of the
//! host's agent beside the cluster's data, because agents are replaced.

use crate::cluster::context::{ClusterContext, RegistryAccess};
use crate::cluster::registry_access::HTPASSWD;
use crate::runtime::Action;
use crate::runtime::action::Line;
use crate::runtime::registry::lines::variables;
use imgctl_host::agent::protocol::FileToWrite;

const BINARY: &str = "IMGCTL_BINARY";
const UNIT: &str = "IMGCTL_UNIT";
const CHANGED: &str = "IMGCTL_CHANGED";

/// Returns the unit's name. Each cluster has its own, because a host can belong to several.
pub(super) fn name(context: &ClusterContext) -> String {
    format!("imgctl-registry-{}.service", context.name)
}

fn path(context: &ClusterContext) -> String {
    format!("/etc/systemd/system/{}", name(context))
}

fn binary(context: &ClusterContext) -> String {
    format!("{}/bin/imgctl", context.paths.root())
}

/// Returns the unit file.
pub(super) fn text(context: &ClusterContext, access: &RegistryAccess) -> String {
    let users = if access.needs_login() {
        let path = format!("{}/{HTPASSWD}", context.paths.rootfs());
        format!(" --htpasswd {}", word(&path))
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

pub(super) fn start(context: &ClusterContext, access: &RegistryAccess) -> Action {
    let (path, text) = (path(context), text(context, access));
    let says = format!(
        "write {path} and start it: imgctl registry serve {} on port {}",
        context.paths.registry(),
        access.port
    );
    let environment = variables([(BINARY, binary(context)), (UNIT, name(context))]);
    let inputs = text.clone();
    Action::new("registry-start", says, &inputs, move |site| {
        let changed = site.agent.write_file(&FileToWrite {
            path: path.clone(),
            mode: 0o644,
            content: text.clone().into_bytes(),
        })?;
        let mut line = Line { environment: environment.clone(), again: true, ..Line::new(START) };
        let changed = if changed { "1" } else { "" };
        line.environment.insert(CHANGED.to_owned(), changed.to_owned());
        site.run(&line).map(|_| ())
    })
}

const START: &str = r#"# imgctl's own registry
command -v systemctl >/dev/null || {
  echo "this host has no systemd, and the image brings no init-registry script" >&2
  exit 1
}
mkdir -p "${IMGCTL_BINARY%/*}"
# Our parent is imgctl itself; else the newest agent that was brought here.
for from in "/proc/$PPID/exe" $(ls -t /var/lib/imgctl/agent/imgctl-agent-* 2>/dev/null); do
  case $("$from" --version 2>/dev/null) in imgctl\ *) break ;; esac
  from=
done
[ -n "$from" ] || {
  echo "there is no imgctl on this host to serve the registry" >&2
  exit 1
}
if [ "$(sha256sum <"$from")" != "$(sha256sum <"$IMGCTL_BINARY" 2>/dev/null)" ]; then
  cp "$from" "$IMGCTL_BINARY.new"
  chmod 0755 "$IMGCTL_BINARY.new"
  mv -f "$IMGCTL_BINARY.new" "$IMGCTL_BINARY"
  IMGCTL_CHANGED=1
fi
systemctl daemon-reload
systemctl enable -q "$IMGCTL_UNIT"
if [ -n "$IMGCTL_CHANGED" ] || ! systemctl is-active -q "$IMGCTL_UNIT"; then
  systemctl restart "$IMGCTL_UNIT"
fi"#;

pub(super) fn stop(context: &ClusterContext) -> Action {
    let line = Line {
        environment: variables([(UNIT, name(context)), (BINARY, binary(context))]),
        again: true,
        ..Line::new(
            r#"# imgctl's own registry
file=/etc/systemd/system/$IMGCTL_UNIT
if [ -e "$file" ]; then
  systemctl disable -q --now "$IMGCTL_UNIT"
  rm -f "$file"
  systemctl daemon-reload
fi
rm -f "$IMGCTL_BINARY" "$IMGCTL_BINARY.new""#,
        )
    };
    let says = format!("stop and remove {}", name(context));
    let inputs = line.line.clone();
    Action::new("registry-clean", says, &inputs, move |site| site.run(&line).map(|_| ()))
}
