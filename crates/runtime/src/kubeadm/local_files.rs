//! Files that static Pods of the control plane name and kubeadm does not copy: the configuration of
//! encryption and of admission, audit policies, keys of service accounts. A control plane that lacks
//! them does not start, and without the keys of an encrypted etcd its Secrets cannot be read.

use crate::action::{Action, Line, Site};
use crate::kubectl::Kubectl;
use imgctl_base::error::{Context as _, Result};
use imgctl_host::agent::protocol::FileToWrite;

/// Shell function that prints the regular files which the flags of static Pods name, except what
/// every control plane has of its own. Files of more than 1 MiB are no configuration.
pub(super) const NAMED: &str = "named() { { sed -nE 's#^ *- \"?--[a-z0-9-]+=(/[^\" ]+)\"?$#\\1#p' /etc/kubernetes/manifests/*.yaml 2>/dev/null || true; } | sort -u | while read -r file; do\n\
     case $file in /etc/kubernetes/pki/* | /var/lib/etcd/* | /var/log/* | /usr/* | /etc/ssl/* | /etc/pki/* | /tmp/* | /proc/* | /dev/* | */../*) continue ;; esac\n\
     case ${file#/etc/kubernetes/} in */*) ;; *.conf) continue ;; esac\n\
     if [ -f \"$file\" ] && [ \"$(stat -c %s \"$file\")\" -le 1048576 ]; then printf '%s\\n' \"$file\"; fi\n\
     done; }\n";
const LONGEST_FILE: u64 = 1 << 20;

/// Brings the files of a control plane that answers to one that joins. Existing files stay.
pub(super) fn bring() -> Action {
    let says = "copy what the static Pods of another control plane name (configuration of \
                encryption, admission, audit), unless it is here";
    Action::new("local-files", says, |site: &Site<'_>| {
        let kubectl = Kubectl::elsewhere(site)?;
        let line = Line::query(format!("{NAMED}named"));
        let names = site.run_on(kubectl.agent(), &line, "-named")?;
        for path in names.lines().map(str::trim).filter(|path| path.starts_with('/')) {
            copy(site, &kubectl, path)?;
        }
        Ok(())
    })
}

fn copy(site: &Site<'_>, kubectl: &Kubectl<'_>, path: &str) -> Result<()> {
    if site.agent.read_file(path, LONGEST_FILE)?.is_some() {
        return Ok(());
    }
    if let Some(content) = kubectl.agent().read_file(path, LONGEST_FILE)? {
        let file = FileToWrite { path: path.to_owned(), mode: 0o600, content };
        site.agent
            .write_file(&file)
            .context(|| format!("{}: cannot write {path}", site.agent.host()))?;
        site.say(&format!("{path} is that of {}", kubectl.address()));
    }
    Ok(())
}
