//! Files that static Pods of the control plane name and kubeadm does not copy: the configuration of
//! encryption and of admission, audit policies, keys of service accounts. A control plane that lacks
//! them does not start, and without the keys of an encrypted etcd its Secrets cannot be read.

use crate::action::{Action, Line, Site};
use crate::kubectl::Kubectl;
use imgctl_base::error::{Context as _, Result};
use imgctl_host::agent::protocol::FileToWrite;

/// The function `named`.
pub(super) const NAMED: &str = include_str!("scripts/named-files.sh");
const LONGEST_FILE: u64 = 1 << 20;

/// Brings the files of a control plane that answers to one that joins. Existing files stay.
pub(super) fn bring() -> Action {
    let says = "copy what the static Pods of another control plane name (configuration of \
                encryption, admission, audit), unless it is here";
    Action::new("local-files", says, |site: &Site<'_>| {
        let kubectl = Kubectl::elsewhere(site)?;
        let line = Line::script(&[NAMED, include_str!("scripts/list-named-files.sh")]);
        let line = Line { quiet: true, ..line };
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
