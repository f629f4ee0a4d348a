//! Copies the backups of the first control plane to a second host and to the controller, so that a
//! rollback remains possible after the loss of one machine.

use std::io::Write;

use imgctl_base::error::{Error, IoContext, Result};
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::{ReadPart, WritePart};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::state_files::PrivateFile;
use imgctl_runtime::Action;
use imgctl_runtime::action::{Line, Site};
use imgctl_workflow::pipeline::files_of_hosts::PART;

/// Copies the files at the top level of `directory` (subdirectories belong to the host) to the same
/// path on `second` and into `here` below the state directory of the controller. `is_made`: the cluster has a backup.
pub(super) fn copy(
    context: &ClusterContext,
    directory: &str,
    second: Option<&Host>,
    here: &str,
    is_made: bool,
) -> Action {
    let directory = directory.to_owned();
    let second = second.cloned();
    let here = context.state.path(here);
    let mut says = format!("copy the backup in {directory} to {}", here.display());
    if let Some(second) = &second {
        says.push_str(&format!(" and to {}", second.id()));
    }
    if !is_made {
        "copy nothing, because no backup is made".clone_into(&mut says);
    }
    Action::new("keep-backup", says, move |site| {
        for file in files(site, &directory)? {
            let other = second.as_ref().map(|host| site.pool.agent(host)).transpose()?;
            let path = format!("{directory}/{}", file.name);
            let own = site.state().create(&here.join(&file.name))?;
            carry(site.agent, &path, file.size, other.as_deref(), own)?;
        }
        Ok(())
    })
}

struct Found {
    name: String,
    size: u64,
}

fn files(site: &Site<'_>, directory: &str) -> Result<Vec<Found>> {
    let line = Line::query(format!(
        "cd '{directory}' 2>/dev/null || exit 0; find . -maxdepth 1 -type f -printf '%s %f\\n'"
    ));
    let mut found = Vec::new();
    for line in site.run(&line)?.lines() {
        let Some((size, name)) = line.split_once(' ') else {
            continue;
        };
        let size = size.parse().map_err(|_| {
            Error::bad_content(format!("{}: `{line}` is not a size and a name", site.agent.host()))
        })?;
        // Names are used as paths here.
        if name.contains('/') || name.starts_with('.') || is_own(name) {
            continue;
        }
        found.push(Found { name: name.to_owned(), size });
    }
    Ok(found)
}

/// Returns whether a file describes the host itself: its progress and the checksums of its files.
/// The second host has its own such files, which must not be overwritten.
fn is_own(name: &str) -> bool {
    const OWN: [&str; 7] = [
        "kubeadm-flags",
        "host.sha256",
        "touched",
        "restored",
        "kubelet-started",
        "k3s-runs",
        "etcd-members.json",
    ];
    OWN.contains(&name.trim_end_matches(".new")) || name.starts_with("kubeadm-v")
}

/// Copies one file, part by part, to both destinations; each receives it completely or not at all.
fn carry(
    from: &dyn Agent,
    path: &str,
    size: u64,
    other: Option<&dyn Agent>,
    mut here: PrivateFile,
) -> Result<()> {
    let mut offset = 0;
    loop {
        let part = ReadPart { path: path.to_owned(), offset, length: PART, compress: false };
        let content = from.read_part(&part)?;
        let length = content.len() as u64;
        let is_last = offset + length >= size || length == 0;
        here.write_all(&content).doing(|| format!("cannot write the copy of {path}"))?;
        if let Some(other) = other {
            other.write_part(&WritePart {
                path: path.to_owned(),
                mode: 0o600,
                offset,
                content,
                compressed: false,
                is_last,
            })?;
        }
        offset += length;
        if is_last {
            break;
        }
    }
    if offset != size {
        return Err(Error::failed(format!("{}: {path} changed while it was copied", from.host()))
            .hint("resume the upgrade: it repeats the backup"));
    }
    here.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the second control plane could not be rolled back, because it had the checksums
    /// of the first.
    #[test]
    fn what_tells_of_the_host_itself_is_not_carried_away() {
        for name in ["host.sha256", "host.sha256.new", "touched", "kubeadm-v1.34.9"] {
            assert!(is_own(name), "{name}");
        }
        for name in ["snapshot.db", "snapshot.sha256", "snapshot.json", "data.tar"] {
            assert!(!is_own(name), "{name}");
        }
    }
}
