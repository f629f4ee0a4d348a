//! A backup of a cluster for other hosts, and the cluster from it.
//!
//! Of embedded etcd, k3s makes the snapshot, and restores it as a single member (`--cluster-reset`): with
//! the token of then, the snapshot has everything, authorities included. SQLite is copied while k3s
//! is stopped, together with the authorities and passwords, which only files have. In both cases k3s
//! issues certificates for the host's addresses when it starts.

use std::time::Duration;

use crate::Action;
use crate::action::{Line, Site};
use crate::k3s::config::{AGENT_TOKEN, SERVER_TOKEN};
use crate::k3s::{host::HOST, node_name, password};
use crate::upgrade::Move;
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::protocol::FileToWrite;

const LIMIT: Duration = Duration::from_secs(600);
const LONG: Duration = Duration::from_secs(60 * 60);
/// Seconds after which the host starts k3s by itself, if the command that stopped it is gone.
const PATIENCE: &str = "300";

/// Returns the actions that save a cluster on one of its servers; `snapshot` is that of etcd.
pub(super) fn saved(step: &Move<'_>, snapshot: Action) -> Vec<Action> {
    vec![save_files(step), snapshot, copy_database(step)]
}

/// Returns the line of a program that gets the directory of a backup.
pub(super) fn on_host(script: &str, backup: &str) -> Line {
    Line::script(&[HOST, script]).with([("IMGCTL_BACKUP", backup)])
}

/// Saves what is not in the datastore: tokens, configuration, manifests, and the authorities.
fn save_files(step: &Move<'_>) -> Action {
    let line = on_host(include_str!("scripts/save-files.sh"), &step.backup());
    Action::command("save-files", line).within(LIMIT).saying(format!(
        "copy to {}: /etc/rancher/k3s, the service; server/{{token,tls,cred,manifests}}",
        step.backup()
    ))
}

/// Copies a database other than etcd. Nothing may write to it meanwhile: with k3s stopped, its files
/// belong together. Its containers keep running.
fn copy_database(step: &Move<'_>) -> Action {
    let line = on_host(include_str!("scripts/copy-database.sh"), &step.backup())
        .with([("IMGCTL_PATIENCE", PATIENCE)]);
    let says = format!(
        "if k3s keeps its data in SQLite: systemctl stop k3s, copy the data to {}/db, systemctl \
         start k3s; containers go on",
        step.backup()
    );
    Action::command("backup-sqlite", line).within(LIMIT).saying(says)
}

/// Returns what comes between the configuration of the first server and its start: the data.
pub(super) fn data(folder: &str) -> Action {
    let says = format!(
        "k3s server --cluster-reset --cluster-reset-restore-path={folder}/snapshot.db, or the data \
         of SQLite in {folder}/files.tar"
    );
    let line = on_host(include_str!("scripts/restore-data.sh"), folder);
    Action::command("restore-data", line).within(LONG).saying(says)
}

/// Makes the host's etcd a single member at the address that its configuration has now. SQLite has no
/// addresses.
pub(super) fn reset_member() -> Action {
    let line = Line::script(&[HOST, include_str!("scripts/reset-member.sh")]);
    let says = "systemctl stop k3s; k3s server --cluster-reset, which takes the new address";
    Action::command("k3s-reset", line).within(LIMIT).saying(says)
}

/// Takes the tokens of the backup: the data is encrypted with that of servers, and the controller may
/// never have had them.
pub(super) fn tokens(folder: &str) -> Action {
    let says = format!("the tokens of the backup, to etc/ and to {SERVER_TOKEN} and {AGENT_TOKEN}");
    let folder = folder.to_owned();
    Action::new("restore-token", says, move |site| {
        let line = Line::script(&[include_str!("scripts/unpack-tokens.sh")]);
        site.run(&line.with([("IMGCTL_BACKUP", &folder)]))?;
        let text = |name: &str| -> Result<String> {
            let bytes = site.agent.read_file(&format!("{folder}/server/{name}"), 4 << 10)?;
            Ok(String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned())
        };
        let servers = text("token")?;
        let servers = password(servers.trim());
        if servers.is_empty() {
            return Err(Error::bad_content(format!("the backup in {folder} has no token of k3s")));
        }
        let agents = text("agent-token")?;
        let agents = Some(password(agents.trim())).filter(|token| !token.is_empty());
        for (name, path, token) in [
            ("token", SERVER_TOKEN, servers),
            ("agent-token", AGENT_TOKEN, agents.unwrap_or(servers)),
        ] {
            site.state().write(format!("etc/{name}"), token)?;
            let content = token.as_bytes().to_vec();
            site.agent.write_file(&FileToWrite { path: path.to_owned(), mode: 0o600, content })?;
        }
        Ok(())
    })
}

/// Removes the Nodes of the former hosts with their Pods, and the passwords of all: a host proves with
/// its own that it has its Node's name, and new hosts have new ones.
pub(super) fn remove_former() -> Action {
    let says = "kubectl delete node <those of the former hosts>, and the Pods that were there; \
                kubectl delete secret -n kube-system <*.node-password.k3s>";
    Action::new("former-nodes", says, |site: &Site<'_>| {
        let own = node_name(site, site.host)?;
        let line = Line::script(&[include_str!("scripts/remove-former.sh")]);
        site.run(&line.with([("IMGCTL_NODE", &own)])).map(drop)
    })
    .within(LIMIT)
}
