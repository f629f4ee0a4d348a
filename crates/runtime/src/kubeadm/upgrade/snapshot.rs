//! Takes and verifies an etcd snapshot of the cluster before anything is changed.

use std::time::Duration;

use serde_json::Value;

use crate::action::{Action, Line, Site};
use crate::kubeadm::place;
use crate::kubeadm::upgrade::target::Target;
use imgctl_base::error::{Error, IoContext, Result};

const LONG: Duration = Duration::from_secs(15 * 60);

pub(super) fn take(target: &Target) -> Action {
    let says = format!(
        "etcdctl snapshot save {0}/snapshot.db; etcdutl snapshot status {0}/snapshot.db",
        target.backup
    );
    let target = target.clone();
    Action::new("backup-etcd", says, move |site| save(site, &target)).within(LONG)
}

fn save(site: &Site<'_>, target: &Target) -> Result<()> {
    let line =
        target.script(&[SAVE]).with([("IMGCTL_EXTERNAL", &target.external_etcd.to_string())]);
    let text = site.run_on(site.agent, &Line { quiet: true, ..line }, "-save")?;
    if text.trim() == "kept" {
        site.say("the snapshot from before the host was touched is kept");
        return Ok(());
    }
    let status =
        text.lines().rev().find(|line| line.trim_start().starts_with('{')).unwrap_or_default();
    let what = describe(status)?;
    // Only now does it replace the snapshot of an earlier attempt.
    let line = format!(
        "cd {}; rm -f snapshot.json snapshot.sha256; mv -f snapshot.db.new snapshot.db; sync -f .",
        target.backup
    );
    site.run_on(site.agent, &Line::query(line), "-keep")?;
    // The agent is several times as fast as sha256sum.
    let digest = site.agent.file_digest(&format!("{}/snapshot.db", target.backup))?;
    let sum = format!("{}  snapshot.db\n", digest.hex());
    place::write(site.agent, &format!("{}/snapshot.sha256", target.backup), 0o600, &sum)?;
    let path = format!("{}/snapshot.json", target.backup);
    place::write(site.agent, &path, 0o600, status)?;
    site.say(&format!("{}/snapshot.db: {what}", target.backup));
    Ok(())
}

/// Describes the output of `snapshot status -w json`; fails if the snapshot cannot be restored.
fn describe(status: &str) -> Result<String> {
    let status: Value = serde_json::from_str(status)
        .doing(|| "etcd returned no status of its snapshot".to_owned())?;
    let number = |name: &str| status[name].as_u64().unwrap_or(0);
    if let Some(sum) = status["sha256"].as_str() {
        return Ok(format!(
            "sha256 {}, {} bytes; its revision is unknown without etcdutl",
            sum.get(..12).unwrap_or(sum),
            number("totalSize")
        ));
    }
    let (hash, revision, keys) = (number("hash"), number("revision"), number("totalKey"));
    if revision == 0 || keys == 0 {
        return Err(Error::bad_content(format!(
            "the snapshot of etcd has revision {revision} and {keys} keys: it is unusable"
        ))
        .hint("see `etcdctl endpoint status` on the control plane; nothing has been changed"));
    }
    Ok(format!("hash {hash:x}, revision {revision}, {keys} keys, {} bytes", number("totalSize")))
}

/// Saves a snapshot to `snapshot.db.new` and prints its status.
const SAVE: &str = include_str!("scripts/save-snapshot.sh");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_external_etcd_is_asked_with_the_files_that_it_has() {
        let line = "value() { case $1 in etcd-certfile) echo /pki/c.crt ;; etcd-keyfile) echo /pki/c.key ;; esac; }\n";
        let start = SAVE.find("papers() {").unwrap();
        let function = &SAVE[start..start + SAVE[start..].find("\n}\n").unwrap() + 3];
        let papers = |value: &str| {
            let shell = format!("{value}{function}papers | tr '\\n' ' '");
            let output = std::process::Command::new("bash").args(["-c", &shell]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(papers(line), "--cert /pki/c.crt --key /pki/c.key ");
        assert_eq!(papers("value() { :; }\n"), "");
    }

    #[test]
    fn an_empty_snapshot_is_refused() {
        let good = r#"{"hash":3474280699,"revision":4242,"totalKey":5151,"totalSize":9461760}"#;
        assert_eq!(
            describe(good).unwrap(),
            "hash cf1550fb, revision 4242, 5151 keys, 9461760 bytes"
        );
        let empty = r#"{"hash":1,"revision":0,"totalKey":0,"totalSize":20480}"#;
        assert!(describe(empty).is_err());
        assert!(describe("").is_err());
    }
}
