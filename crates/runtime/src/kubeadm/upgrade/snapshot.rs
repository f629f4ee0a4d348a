//! Takes and verifies an etcd snapshot of the cluster before anything is changed.

use std::time::Duration;

use serde_json::Value;

use crate::action::{Action, Line, Site};
use crate::kubeadm::upgrade::target::Target;
use crate::kubeadm::{etcd, place};
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
    let line = line(target);
    let text = site.run_on(site.agent, &Line::query(line), "-save")?;
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

/// Prints the flags for the files with which the API server connects to etcd. Without TLS, there are none.
const PAPERS: &str = r#"papers() {
  for pair in cacert:etcd-cafile cert:etcd-certfile key:etcd-keyfile; do
    file=$(value "${pair#*:}"); [ -z "$file" ] || echo "--${pair%%:*} $file"
  done
}
"#;

/// Returns the shell line that saves a snapshot to `snapshot.db.new` and prints its status.
fn line(target: &Target) -> String {
    let flags = if target.external_etcd {
        "--endpoints \"$(value etcd-servers | cut -d, -f1)\" $(papers)".to_owned()
    } else {
        etcd::FLAGS.to_owned()
    };
    format!(
        "export ETCDCTL_API=3 PATH=\"$PATH:{rootfs}/bin:{tree}/bin\"\n\
         mkdir -p {backup}; cd {backup}\n\
         if [ -e {touched} ] && [ -s snapshot.json ] && [ -s snapshot.db ]; then\n\
         sha256sum --quiet -c snapshot.sha256 >&2; echo kept; exit 0\n\
         fi\n\
         value() {{ sed -nE \"s/^ *- --$1=//p\" /etc/kubernetes/manifests/kube-apiserver.yaml | head -n 1; }}\n\
         {PAPERS}\
         rm -f snapshot.db.new\n\
         if command -v etcdctl >/dev/null 2>&1; then\n\
         etcdctl {flags} snapshot save {backup}/snapshot.db.new >&2\n\
         told=$(etcdutl snapshot status snapshot.db.new -w json 2>/dev/null || etcdctl snapshot status snapshot.db.new -w json)\n\
         else\n\
         container=$(crictl ps --name '^etcd$' --state Running -q | head -n 1)\n\
         if [ -z \"$container\" ]; then\n\
         echo 'there is no etcdctl here, and no etcd container to find one in; put etcdctl and etcdutl into bin/ of the rootfs image' >&2; exit 1\n\
         fi\n\
         data=$(sed -nE 's/^ *- --data-dir=//p' /etc/kubernetes/manifests/etcd.yaml | head -n 1)\n\
         inside=${{data:-/var/lib/etcd}}/imgctl-snapshot.db\n\
         rm -f \"$inside\"\n\
         crictl exec \"$container\" etcdctl {flags} snapshot save \"$inside\" >&2\n\
         told=$(crictl exec \"$container\" etcdutl snapshot status \"$inside\" -w json 2>/dev/null ||\n\
         crictl exec \"$container\" etcdctl snapshot status \"$inside\" -w json)\n\
         mv -f \"$inside\" snapshot.db.new\n\
         fi\n\
         # etcdctl of 3.6 saves snapshots and tells nothing of them; the last 32 bytes are the sum of all others.\n\
         case $told in\n\
         *'{{'*) printf '%s\\n' \"$told\" ;;\n\
         *)\n\
         size=$(stat -c %s snapshot.db.new)\n\
         sum=$(tail -c 32 snapshot.db.new | od -An -v -tx1 | tr -d ' \\n')\n\
         if [ $((size % 512)) != 32 ] || [ \"$(head -c -32 snapshot.db.new | sha256sum | cut -c 1-64)\" != \"$sum\" ]; then\n\
         echo 'the snapshot of etcd is not whole: its checksum is wrong' >&2; exit 1\n\
         fi\n\
         printf '{{\"sha256\":\"%s\",\"totalSize\":%s}}\\n' \"$sum\" \"$size\" ;;\n\
         esac\n\
         chmod 0600 snapshot.db.new; sync snapshot.db.new",
        rootfs = target.rootfs,
        tree = target.tree,
        backup = target.backup,
        touched = target.touched(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_external_etcd_is_asked_with_the_files_that_it_has() {
        let line = "value() { case $1 in etcd-certfile) echo /pki/c.crt ;; etcd-keyfile) echo /pki/c.key ;; esac; }\n";
        let papers = |value: &str| {
            let shell = format!("{value}{PAPERS}papers | tr '\\n' ' '");
            let output = std::process::Command::new("sh").args(["-c", &shell]).output().unwrap();
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
