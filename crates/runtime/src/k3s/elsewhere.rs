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
use crate::k3s::host::{DATA, UNIT};
use crate::k3s::{KUBECTL, node_name, password};
use crate::kubectl::quoted;
use crate::upgrade::Move;
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::protocol::FileToWrite;

const LIMIT: Duration = Duration::from_secs(600);
const LONG: Duration = Duration::from_secs(60 * 60);
/// Seconds after which the host starts k3s by itself, if the command that stopped it is gone.
const PATIENCE: u32 = 300;

/// Returns the actions that save a cluster on one of its servers; `snapshot` is that of etcd.
pub(super) fn saved(step: &Move<'_>, snapshot: Action) -> Vec<Action> {
    vec![save_files(step), snapshot, copy_database(step)]
}

fn prelude(backup: &str) -> String {
    format!(
        "backup={}; mkdir -p -m 0700 \"$backup\"; chmod 0700 \"$backup\"; cd \"$backup\"\n\
         k3s=$(type -P k3s || echo /usr/local/bin/k3s)\n{UNIT}{DATA}",
        quoted(backup)
    )
}

/// Saves what is not in the datastore: tokens, configuration, manifests, and the authorities.
fn save_files(step: &Move<'_>) -> Action {
    let line = format!(
        "{prelude}rm -rf files server; mkdir -m 0700 files server\n\
         for file in /etc/rancher/k3s /etc/systemd/system/k3s.service /etc/systemd/system/k3s.service.d /etc/systemd/system/k3s.service.env; do\n\
         if [ -e \"$file\" ]; then (cd / && cp -a --parents \".$file\" \"$backup/files/\"); fi\n\
         done\n\
         [ -s \"$data/server/token\" ] || {{ echo \"there is no token of k3s in $data/server\" >&2; exit 1; }}\n\
         for name in token agent-token; do\n\
         if [ -s \"$data/server/$name\" ]; then cp -L --preserve=mode,timestamps \"$data/server/$name\" server/; fi\n\
         done\n\
         for name in tls cred manifests; do\n\
         if [ -d \"$data/server/$name\" ]; then cp -a \"$data/server/$name\" server/; fi\n\
         done\n\
         sync -f .",
        prelude = prelude(&step.backup()),
    );
    Action::command("save-files", Line::repeatable(line)).within(LIMIT).saying(format!(
        "copy to {}: /etc/rancher/k3s, the service; server/{{token,tls,cred,manifests}}",
        step.backup()
    ))
}

/// Copies a database other than etcd. Nothing may write to it meanwhile: with k3s stopped, its files
/// belong together. Its containers keep running.
fn copy_database(step: &Move<'_>) -> Action {
    let text = format!(
        "{prelude}if [ -d \"$data/server/db/etcd\" ]; then exit 0; fi\n\
         if [ ! -f \"$data/server/db/state.db\" ]; then\n\
         echo 'k3s keeps its data in an external database: a backup would be without it' >&2; exit 1\n\
         fi\n\
         timer=imgctl-start-k3s\n\
         back() {{\n\
         systemctl start \"$unit\"; systemctl stop \"$timer.timer\" 2>/dev/null || true\n\
         }}\n\
         systemctl stop \"$timer.timer\" 2>/dev/null || true\n\
         systemd-run --quiet --collect --unit \"$timer\" --on-active={PATIENCE} systemctl start \"$unit\"\n\
         trap back EXIT\n\
         systemctl stop \"$unit\"\n\
         rm -rf db.new db; cp -a --reflink=auto \"$data/server/db\" db.new\n\
         if systemctl is-active --quiet \"$unit\"; then\n\
         rm -rf db.new; echo 'k3s was started while its data was copied: run the command again' >&2; exit 1\n\
         fi\n\
         back; trap - EXIT\n\
         if [ \"$(head -c 15 db.new/state.db)\" != 'SQLite format 3' ]; then echo \"$data/server/db/state.db is no database of SQLite\" >&2; exit 1; fi\n\
         sync -f .; mv db.new db; sync -f .\n\
         for second in $(seq 150); do \"$k3s\" kubectl get --raw /readyz >/dev/null 2>&1 && exit 0; sleep 2; done\n\
         echo \"k3s does not come up; see journalctl -u $unit\" >&2; exit 1",
        prelude = prelude(&step.backup()),
    );
    let says = format!(
        "if k3s keeps its data in SQLite: systemctl stop k3s, copy the data to {}/db, systemctl \
         start k3s; containers go on",
        step.backup()
    );
    Action::command("backup-sqlite", Line::repeatable(text)).within(LIMIT).saying(says)
}

/// Returns what comes between the configuration of the first server and its start: the data.
pub(super) fn data(folder: &str) -> Action {
    let says = format!(
        "k3s server --cluster-reset --cluster-reset-restore-path={folder}/snapshot.db, or the data \
         of SQLite in {folder}/files.tar"
    );
    Action::command("restore-data", Line::repeatable(restore_line(folder)))
        .within(LONG)
        .saying(says)
}

/// Returns the shell line of the restore. Data that it did not make itself stays as it is.
fn restore_line(folder: &str) -> String {
    format!(
        "folder={folder}; cd \"$folder\"\n\
         k3s=$(type -P k3s || echo /usr/local/bin/k3s)\n{DATA}\
         part=snapshot.db; [ -s \"$part\" ] || part=files.tar\n\
         [ -s \"$part\" ] || {{ echo \"there is no backup of k3s in $folder on this host\" >&2; exit 1; }}\n\
         digest=$(sha256sum <\"$part\")\n\
         if [ \"$(cat restored 2>/dev/null)\" = \"$digest\" ] && [ -d \"$data/server/db\" ]; then echo 'restored already'; exit 0; fi\n\
         if systemctl is-active --quiet k3s; then echo 'a k3s runs here' >&2; exit 1; fi\n\
         if [ -e \"$data/server/db\" ] && [ ! -e restoring ]; then\n\
         echo \"$data/server/db holds the data of another k3s: move it away\" >&2; exit 1\n\
         fi\n\
         : >restoring; rm -rf \"$data/server/db\" \"$data/server/tls\" \"$data/server/cred\"\n\
         mkdir -p -m 0700 \"$data/server\"\n\
         rm -rf unpacked; mkdir -m 0700 unpacked; tar -C unpacked --no-same-owner -xpf files.tar\n\
         if [ -d unpacked/server/manifests ]; then mkdir -p -m 0700 \"$data/server/manifests\"; cp -a unpacked/server/manifests/. \"$data/server/manifests/\"; fi\n\
         if [ \"$part\" = snapshot.db ]; then\n\
         # k3s knows a compressed snapshot by its name.\n\
         path=$folder/snapshot.db; if [ \"$(head -c 2 \"$path\")\" = PK ]; then path=$folder/unpacked/snapshot.zip; ln -f \"$folder/snapshot.db\" \"$path\"; fi\n\
         arguments=(server --cluster-reset --cluster-reset-restore-path=\"$path\")\n\
         if grep -qE '^\"?etcd-s3\"?: *true' /etc/rancher/k3s/config.yaml; then arguments+=(--etcd-s3=false); fi\n\
         \"$k3s\" \"${{arguments[@]}}\"\n\
         else\n\
         [ -f unpacked/db/state.db ] || {{ echo 'the backup has no data of k3s' >&2; exit 1; }}\n\
         # Certificates are issued again, for the addresses of this host; authorities and keys stay.\n\
         (cd unpacked/server && find tls -type f \\( -name '*-ca.*' -o -name 'service*.key' \\) -print0 | tar --null -T - -cf -) | tar -C \"$data/server\" -xpf -\n\
         mkdir -p -m 0700 \"$data/server/cred\"\n\
         for name in passwd ipsec.psk encryption-config.json encryption-state.json; do\n\
         if [ -f \"unpacked/server/cred/$name\" ]; then cp -a \"unpacked/server/cred/$name\" \"$data/server/cred/\"; fi\n\
         done\n\
         cp -a unpacked/db \"$data/server/db\"\n\
         fi\n\
         rm -rf unpacked; sync -f \"$data\"; printf '%s\\n' \"$digest\" >restored; sync -f .\n\
         echo 'the data of k3s is that of the backup'",
        folder = quoted(folder),
    )
}

/// Makes the host's etcd a single member at the address that its configuration has now. SQLite has no
/// addresses.
pub(super) fn reset_member() -> Action {
    let text = format!(
        "k3s=$(type -P k3s || echo /usr/local/bin/k3s)\n{DATA}\
         if [ ! -d \"$data/server/db/etcd\" ]; then exit 0; fi\n\
         systemctl stop k3s; rm -f \"$data/server/db/reset-flag\"\n\
         \"$k3s\" server --cluster-reset"
    );
    let says = "systemctl stop k3s; k3s server --cluster-reset, which takes the new address";
    Action::command("k3s-reset", Line::repeatable(text)).within(LIMIT).saying(says)
}

/// Takes the tokens of the backup: the data is encrypted with that of servers, and the controller may
/// never have had them.
pub(super) fn tokens(folder: &str) -> Action {
    let says = format!("the tokens of the backup, to etc/ and to {SERVER_TOKEN} and {AGENT_TOKEN}");
    let folder = folder.to_owned();
    Action::new("restore-token", says, move |site| {
        // Through files: what a command prints is in its log.
        let line = format!(
            "cd {}; for name in token agent-token; do\n\
             tar --no-same-owner -xf files.tar \"./server/$name\" 2>/dev/null || true\n\
             done",
            quoted(&folder)
        );
        site.run(&Line::repeatable(line))?;
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
        let line = format!(
            "own={own}\n\
             for secret in $({KUBECTL} get secrets -n kube-system -o name); do\n\
             case $secret in *.node-password.k3s) {KUBECTL} delete -n kube-system \"$secret\" --ignore-not-found ;; esac\n\
             done\n\
             for node in $({KUBECTL} get nodes -o name); do\n\
             name=${{node#node/}}; [ \"$name\" != \"$own\" ] || continue\n\
             {KUBECTL} delete node \"$name\" --ignore-not-found\n\
             {KUBECTL} delete pods -A --field-selector \"spec.nodeName=$name\" --force --grace-period=0 --ignore-not-found\n\
             done",
            own = quoted(&own),
        );
        site.run(&Line::repeatable(line)).map(drop)
    })
    .within(LIMIT)
}
