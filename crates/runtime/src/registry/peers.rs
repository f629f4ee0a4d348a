//! The service by which hosts share images: `imgctl agent peers` as a systemd unit on each host, named first in
//! `hosts.toml`. Whatever it cannot provide, containerd gets from a registry host.

use std::path::PathBuf;

use crate::action::{Line, Site};
use crate::registry::hosts_toml::Login;
use crate::registry::lines;
use crate::registry::peer_access::{port, token};
use crate::{Action, own_binary, units};
use imgctl_base::error::{Error, Result};
use imgctl_base::quote::quote;
use imgctl_host::agent::Agent;
use imgctl_host::agent::peers::Settings;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_host::containerd::SOCKET;
use imgctl_model::context::{ClusterContext, Host, RegistryAccess};

/// Directory of containerd's content below its root.
const CONTENT: &str = "io.containerd.content.v1.content";

/// Returns containerd's directory on a host whose containerd reads `hosts.toml`.
pub(crate) type ContentRoot = fn(&dyn Agent, &RegistryAccess) -> Result<Option<String>>;

fn unit(context: &ClusterContext) -> String {
    format!("imgctl-peers-{}.service", context.name)
}

fn directory(context: &ClusterContext) -> String {
    format!("{}/peers", context.paths.root())
}

/// Returns the action that starts the service on `host`, with the login that containerd uses.
pub(crate) fn start(
    name: &str,
    context: &ClusterContext,
    access: &RegistryAccess,
    host: &Host,
    login: Option<&Login>,
    root: ContentRoot,
) -> Action {
    let (unit, directory, port) = (unit(context), directory(context), port(context));
    let says = format!("start {unit}: images from other hosts, on port {port}");
    let settings = Settings {
        cluster: context.name.clone(),
        domain: access.domain.clone(),
        address: host.ip().to_owned(),
        port,
        // Filled in on execution: a plan with a list for each host would be too large in a large cluster.
        peers: Vec::new(),
        token: token(context, login.map(|login| &login.password))
            .map(|token| token.expose().to_owned()),
        socket: PathBuf::from(SOCKET),
        content: PathBuf::new(),
    };
    // Not the token: a digest of the inputs is in the journal.
    let user = login.map(|login| login.user.as_str()).unwrap_or_default();
    let inputs = format!("{user} {}", context.hosts.len());
    let access = access.clone();
    Action::depending_on(name, says, &inputs, move |site| {
        let Some(root) = root(site.agent, &access)? else {
            site.say("no containerd that reads hosts.toml: this host gets its images from registry hosts");
            return Ok(());
        };
        let content = PathBuf::from(format!("{root}/{CONTENT}"));
        let peers = site.context.hosts.iter().map(|other| other.ip().to_owned()).collect();
        write(site, &directory, &unit, &Settings { content, peers, ..settings.clone() })
    })
}

fn write(site: &Site<'_>, directory: &str, unit: &str, settings: &Settings) -> Result<()> {
    let program = format!("{directory}/imgctl");
    site.run(&Line::repeatable(format!("mkdir -p -m 0700 {0}; chmod 0700 {0}", quote(directory))))?;
    let path = format!("{directory}/settings.json");
    let content = serde_json::to_vec_pretty(settings)
        .map_err(|error| Error::failed("cannot write the settings").caused_by(error))?;
    let file = |path: String, mode: u32, content: Vec<u8>| {
        site.agent.write_file(&FileToWrite { path, mode, content })
    };
    let text = unit_text(&settings.cluster, &program, &path).into_bytes();
    let mut changed = file(path, 0o600, content)?;
    changed |= file(format!("/etc/systemd/system/{unit}"), 0o644, text)?;
    let environment = lines::variables([
        ("IMGCTL_UNIT", unit.to_owned()),
        ("IMGCTL_BINARY", program),
        ("IMGCTL_CHANGED", if changed { "1" } else { "" }.to_owned()),
    ]);
    let own = own_binary("\"$IMGCTL_BINARY\"").line;
    let line = format!(
        "if ! [ /proc/$PPID/exe -ef \"$IMGCTL_BINARY\" ] && ! cmp -s /proc/$PPID/exe \"$IMGCTL_BINARY\"; then\n\
         {own}\nIMGCTL_CHANGED=1\nfi\n\
         systemctl daemon-reload\nsystemctl enable -q \"$IMGCTL_UNIT\"\n\
         if [ -n \"$IMGCTL_CHANGED\" ] || ! systemctl is-active -q \"$IMGCTL_UNIT\"; then\n\
         systemctl restart \"$IMGCTL_UNIT\"\nfi"
    );
    site.run(&Line { environment, ..Line::repeatable(line) }).map(drop)
}

/// Returns the unit. It reads containerd's content and one file, and writes nothing.
fn unit_text(cluster: &str, program: &str, settings: &str) -> String {
    format!(
        "# Written by imgctl.\n[Unit]\nDescription=Images from other hosts of cluster {cluster}\n\
         Documentation=https://github.com/team/imgctl/blob/main/docs/cluster-registry.md\n\
         Wants=network-online.target\nAfter=network-online.target containerd.service\n\n[Service]\n\
         ExecStart=\"{program}\" agent peers \"{settings}\"\nRestart=always\nRestartSec=2\nUMask=0077\n\
         LimitNOFILE=65536\nMemoryMax=1G\nNoNewPrivileges=yes\nProtectSystem=full\nPrivateTmp=yes\n\
         CapabilityBoundingSet=\n\n[Install]\nWantedBy=multi-user.target\n"
    )
}

/// Returns the action that removes the service from a host, if it is there.
pub fn stop(context: &ClusterContext) -> Action {
    let (unit, directory) = (unit(context), directory(context));
    let line = format!("{}\nrm -rf {}", units::removal(&[&unit]), quote(&directory));
    Action::command("registry-peers-clean", Line::repeatable(line))
        .saying(format!("remove {unit}, if it is there"))
}

/// Returns the line that succeeds if the service answers on the host.
pub fn answers(context: &ClusterContext, access: &RegistryAccess) -> Line {
    let token = token(context, access.needs_login().then_some(&access.password));
    let mut environment = lines::variables([(lines::PORT, port(context).to_string())]);
    if let Some(token) = token {
        environment.insert("IMGCTL_TOKEN".to_owned(), token.expose().to_owned());
    }
    Line { environment, ..Line::query(ANSWERS) }
}

const ANSWERS: &str = r#"ask() {
  exec 3<>"/dev/tcp/127.0.0.1/$IMGCTL_PORT" || exit 1
  printf 'GET /v2/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n' "$IMGCTL_TOKEN" >&3
  IFS= read -r -t 5 line <&3 || exit 1
  case $line in HTTP/1.?\ 200*) exit 0 ;; esac
  exit 1
}
export -f ask
timeout 8 bash -c ask 2>/dev/null"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_has_no_secret_and_runs_this_hosts_settings() {
        let text = unit_text("c", "/d/imgctl", "/d/settings.json");
        assert!(
            text.contains("ExecStart=\"/d/imgctl\" agent peers \"/d/settings.json\"\n"),
            "{text}"
        );
    }
}
