//! Shell lines of k3s hosts that an upgrade and a change of settings have in common: backup, start.

use std::time::Duration;

use crate::k3s::host::{DATA, UNIT};
use crate::upgrade::{Move, Place};
use crate::{Action, load_balancer};
use crate::{action, action::Line};

pub(super) const LIMIT: Duration = Duration::from_secs(440);
pub(super) const SNAPSHOT: Duration = Duration::from_secs(15 * 60);

/// Starts the service and waits until it is up. `server` is yes or no. Writes the start time to
/// `$started`.
pub(super) const START: &str = r#"systemctl daemon-reload
date -u +%Y-%m-%dT%H:%M:%S >"$started.new"; mv -f "$started.new" "$started"
systemctl restart --no-block "$unit"
sleep 1
for second in $(seq 150); do
  if systemctl is-active --quiet "$unit" && { [ "$server" = no ] || "$k3s" kubectl get --raw /readyz >/dev/null 2>&1; }; then
    sha256sum <"$k3s" >"$backup/k3s-runs"
    echo "k3s runs: $("$k3s" --version | sed -n 1p)"; exit 0
  fi
  sleep 2
done
systemctl --no-pager --lines=20 status "$unit" >&2 || true
echo "k3s does not come up; see journalctl -u $unit" >&2
exit 1
"#;

/// Returns the variables and functions that every line uses.
pub(super) fn prelude(step: &Move<'_>) -> String {
    format!(
        "{functions}backup={backup} root={root} tree={tree} started={backup}/kubelet-started server={server}\n\
         k3s=$(type -P k3s || echo /usr/local/bin/k3s)\n{UNIT}{DATA}",
        functions = action::PUT,
        backup = step.backup(),
        root = step.to.paths.root(),
        tree = step.tree,
        server = if step.place == Place::Worker { "no" } else { "yes" },
    )
}

/// Creates an idempotent action; `says` is what a plan shows.
pub(super) fn line(name: &str, says: String, line: String, limit: Duration) -> Action {
    Action::command(name, Line::repeatable(line)).within(limit).saying(says)
}

/// Redirects workers to other servers before `action` restarts this one.
pub(super) fn out_of_service(step: &Move<'_>, action: Action) -> Action {
    match step.place {
        Place::Worker => action,
        _ if step.to.is_adopted() => action,
        _ => load_balancer::taken_out_before(step.to, action),
    }
}

/// Backs up the host's k3s files before the host is changed.
pub(super) fn keep(step: &Move<'_>) -> Action {
    let text = format!(
        "{prelude}mkdir -p \"$backup\"; chmod 0700 \"$backup\"; cd \"$backup\"\n\
         if [ -e touched ] && [ -s host.sha256 ]; then sha256sum --quiet -c host.sha256; echo 'what the host was before it was touched is kept'; exit 0; fi\n\
         rm -rf files.new host.sha256; mkdir -m 0700 files.new\n\
         for file in \"$k3s\" /etc/rancher \"/etc/systemd/system/$unit.service\" \"/etc/systemd/system/$unit.service.d\" \
         \"/etc/systemd/system/$unit.service.env\" \"$data/server/token\" \"$data/server/agent-token\"; do\n\
         if [ -e \"$file\" ]; then (cd / && cp -a --parents \".$file\" \"$backup/files.new/\"); fi\n\
         done\n\
         [ -e \"files.new$k3s\" ] || {{ echo \"there is no k3s at $k3s\" >&2; exit 1; }}\n\
         rm -rf files; mv files.new files\n\
         find files -type f -print0 | sort -z | xargs -0 sha256sum >host.sha256.new\n\
         sha256sum --quiet -c host.sha256.new; sync -f .; mv host.sha256.new host.sha256; sync -f .\n\
         echo \"$(wc -l <host.sha256) files are kept in $backup/files\"",
        prelude = prelude(step),
    );
    let says = format!(
        "back up to {}/files: k3s, its unit, configuration and tokens; with checksums",
        step.backup()
    );
    line("backup", says, text, LIMIT)
}

/// Writes `snapshot.db` to the backup: a bbolt file with more than its first pages, or nothing.
pub(super) fn take_snapshot(step: &Move<'_>) -> Action {
    let text = format!(
        "{prelude}mkdir -p \"$backup\"; cd \"$backup\"\n\
         if [ -e touched ] && [ -s snapshot.sha256 ]; then sha256sum --quiet -c snapshot.sha256; echo 'the snapshot from before the host was touched is kept'; exit 0; fi\n\
         if [ ! -d \"$data/server/db/etcd\" ]; then\n\
         if [ -f \"$data/server/db/state.db\" ]; then echo 'k3s keeps its data in a file: it is copied when k3s stops'\n\
         else echo 'k3s keeps its data elsewhere: make a backup there' >&2; fi\n\
         exit 0\n\
         fi\n\
         rm -rf snapshot.new snapshot.db snapshot.sha256; mkdir -m 0700 snapshot.new\n\
         \"$k3s\" etcd-snapshot save --name imgctl --dir \"$backup/snapshot.new\"\n\
         file=$(find snapshot.new -maxdepth 1 -type f -name 'imgctl*' | head -n 1)\n\
         [ -s \"$file\" ] || {{ echo 'k3s etcd-snapshot save left no snapshot' >&2; exit 1; }}\n\
         case $file in *.zip) ;; *)\n\
         if [ \"$(od -An -tx4 -j16 -N4 \"$file\" | tr -d ' ')\" != ed0cdaed ] || [ \"$(stat -c %s \"$file\")\" -le 16384 ]; then\n\
         echo \"$file is no database of etcd\" >&2; exit 1\n\
         fi ;;\n\
         esac\n\
         chmod 0600 \"$file\"; sync \"$file\"; mv -f \"$file\" snapshot.db; rm -rf snapshot.new\n\
         sha256sum snapshot.db >snapshot.sha256; sync -f .\n\
         echo \"$backup/snapshot.db: $(stat -c %s snapshot.db) bytes\"",
        prelude = prelude(step),
    );
    let says = format!("k3s etcd-snapshot save, as {}/snapshot.db", step.backup());
    line("backup-etcd", says, text, SNAPSHOT)
}
