//! Snapshots of a k3s cluster's etcd, and restoring one.

use std::time::Duration;

use crate::runtime::Action;
use crate::runtime::k3s::upgrade::{START, line, prelude, put_back};
use crate::runtime::kubectl::quoted;
use crate::runtime::upgrade::{Move, Place};

const LONG: Duration = Duration::from_secs(15 * 60);

/// Shell code that sets `data` to the k3s data directory on this host.
pub(super) const DATA: &str = r#"data=$(sed -nE 's/^"?data-dir"?: *"?([^"]*)"?$/\1/p' /etc/rancher/k3s/config.yaml 2>/dev/null | head -n 1)
data=${data:-/var/lib/rancher/k3s}
"#;

/// Shell code that copies a database other than etcd, which is only safe while nothing writes to
/// it.
pub(super) const KEEP_STOPPED: &str = r#"if [ "$server" = yes ] && [ -f "$data/server/db/state.db" ] && [ ! -d "$data/server/db/etcd" ] && [ ! -e "$backup/db" ]; then
  systemctl stop k3s
  rm -rf "$backup/db.new"; cp -a "$data/server/db" "$backup/db.new"; sync -f "$backup"; mv "$backup/db.new" "$backup/db"
  echo "the database is kept in $backup/db"
fi
"#;

/// Writes `snapshot.db` to the backup: a bbolt file with more than its first pages, or nothing.
pub(super) fn take(step: &Move<'_>) -> Action {
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
    line("backup-etcd", says, text, LONG)
}

/// Stops all servers, restores the first, removes the data of the others so that they rejoin, and
/// starts all servers.
pub(super) fn restore(step: &Move<'_>, snapshot: &str) -> [Vec<Action>; 3] {
    let prelude = prelude(step);
    let stop = line(
        "restore-stop",
        "systemctl stop k3s".to_owned(),
        "systemctl stop k3s; echo 'k3s is stopped; its containers go on'".to_owned(),
        LONG,
    );
    let restore = if step.place == Place::First {
        let text = format!(
            "{prelude}snapshot={snapshot}\n\
             digest=$(sha256sum <\"$snapshot\")\n\
             if [ \"$(cat \"$backup/restored\" 2>/dev/null)\" = \"$digest\" ]; then echo 'restored already'; exit 0; fi\n\
             if systemctl is-active --quiet k3s; then echo 'k3s still runs here' >&2; exit 1; fi\n\
             {put_back}\
             rm -f \"$data/server/db/reset-flag\"\n\
             if [ -d \"$backup/db\" ] && [ ! -d \"$data/server/db/etcd\" ]; then\n\
             rm -rf \"$backup/db-before\"; mv \"$data/server/db\" \"$backup/db-before\"; cp -a \"$backup/db\" \"$data/server/db\"\n\
             else \"$k3s\" server --cluster-reset --cluster-reset-restore-path=\"$snapshot\"; fi\n\
             sync -f \"$data\"; printf '%s\\n' \"$digest\" >\"$backup/restored\"; sync -f \"$backup\"",
            snapshot = quoted(snapshot),
            put_back = put_back(":"),
        );
        let says = format!(
            "restore k3s; k3s server --cluster-reset --cluster-reset-restore-path={snapshot}"
        );
        line("restore-etcd", says, text, LONG)
    } else {
        let text = format!(
            "{prelude}if systemctl is-active --quiet k3s; then echo 'k3s still runs here' >&2; exit 1; fi\n\
             {put_back}\
             if [ -e \"$backup/restored\" ]; then exit 0; fi\n\
             if [ -d \"$data/server/db\" ]; then rm -rf \"$backup/db-before\"; mv \"$data/server/db\" \"$backup/db-before\"; fi\n\
             : >\"$backup/restored\"; sync -f \"$backup\"",
            put_back = put_back(":"),
        );
        let says = format!(
            "restore k3s; its member's data moves to {}/db-before, and it joins again",
            step.backup()
        );
        line("restore-etcd", says, text, LONG)
    };
    let start = line(
        "restore-start",
        "systemctl start k3s; wait until its API is ready".to_owned(),
        format!("{prelude}rm -f \"$backup/restored\"\n{START}"),
        LONG,
    );
    [vec![stop], vec![restore], vec![start]]
}
