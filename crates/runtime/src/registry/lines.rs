//! Programs that run on a registry host, and imgctl's own registry as a systemd unit, for images
//! without one. The login is never in an argument list.

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{Action, action::Line, shell::OWN_BINARY, units};
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_model::context::{ClusterContext, RegistryAccess};
use imgctl_model::registry_access::HTPASSWD;

pub(super) const PORT: &str = "IMGCTL_PORT";
const LOGIN: &str = "IMGCTL_LOGIN";
const DATA: &str = "IMGCTL_DATA";
const TREE: &str = "IMGCTL_REGISTRY";
const UNIT: &str = "IMGCTL_UNIT";

const LOST_DIRECTORY: &str = include_str!("scripts/lost-directory.sh");

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
    Line::script(&[include_str!("scripts/link-data.sh")])
        .with([(DATA, &access.data), (TREE, &context.paths.registry())])
}

/// Removes that link if it belongs to this cluster or is dangling.
pub(super) fn unlink_data(context: &ClusterContext, access: &RegistryAccess) -> Line {
    Line::script(&[include_str!("scripts/unlink-data.sh")])
        .with([(DATA, &access.data), (TREE, &context.paths.registry())])
}

/// Waits until the registry accepts the login.
pub(super) fn wait(access: &RegistryAccess, unit: &str) -> Line {
    asking(access, "wait").with([(UNIT, unit)])
}

/// Asks once whether the registry accepts the login, and whether it serves the current directory.
pub(super) fn answers(context: &ClusterContext, access: &RegistryAccess) -> Line {
    Line { quiet: true, ..asking(access, "once") }.with([(UNIT, &unit_name(context))])
}

/// Requests every image in the registry's tree and reports those that fail.
pub(super) fn verify(context: &ClusterContext, access: &RegistryAccess) -> Line {
    asking(access, "images").with([(TREE, &context.paths.registry())])
}

fn asking(access: &RegistryAccess, question: &str) -> Line {
    let line = Line::script(&[LOST_DIRECTORY, include_str!("scripts/ask-registry.sh")])
        .with([("IMGCTL_ASK", question), (PORT, &access.port.to_string())]);
    if !access.needs_login() {
        return line;
    }
    let login = format!("{}:{}", access.username, access.password.expose());
    line.with([(LOGIN, &STANDARD.encode(login))])
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
    let (unit, binary) = (unit_name(context), binary(context));
    let inputs = text.clone();
    Action::depending_on("registry-start", says, &inputs, move |site| {
        let changed = site.agent.write_file(&FileToWrite {
            path: path.clone(),
            mode: 0o644,
            content: text.clone().into_bytes(),
        })?;
        site.run(&start(&unit, &binary, changed)).map(|_| ())
    })
}

/// Returns the line that puts the program of a service in its place and starts the service. `changed`: its
/// unit or its settings are new.
pub(super) fn start(unit: &str, binary: &str, changed: bool) -> Line {
    let changed = if changed { "1" } else { "" };
    Line::script(&[OWN_BINARY, LOST_DIRECTORY, include_str!("scripts/start-unit.sh")]).with([
        (UNIT, unit),
        (BINARY, binary),
        (CHANGED, changed),
    ])
}

pub(super) fn stop_unit(context: &ClusterContext) -> Action {
    let binary = binary(context);
    let line = units::removal(&[&unit_name(context)], &[&binary, &format!("{binary}.new")]);
    let says = format!("stop and remove {}", unit_name(context));
    let inputs = line.environment.identity();
    Action::depending_on("registry-clean", says, &inputs, move |site| site.run(&line).map(|_| ()))
}
