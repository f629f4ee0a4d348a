//! Installs certificates, kubeconfigs and the audit policy of a control plane on the host.
//!
//! Existing valid files are kept: a second run changes nothing.

use std::time::Duration;

use crate::action::{Line, Site};
use crate::certificates::pki::Pki;
use crate::certificates::{
    control_plane,
    control_plane::{Identity, Member},
};
use crate::kubeadm::{config::Config, defaults::AUDIT_POLICY, settings::Settings};
use imgctl_base::error::{Context, Result};
use imgctl_host::agent::{Agent, protocol::FileToWrite};

const PKI: &str = "/etc/kubernetes/pki";
const KUBERNETES: &str = "/etc/kubernetes";
const LONGEST_FILE: u64 = 1 << 20;
const MONTH: Duration = Duration::from_secs(30 * 86_400);

/// Audit policy if the API server needs one and no image provides it: logs metadata without
/// contents.
const PLAIN_POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n";

/// Writes all files that `kubeadm init` or `kubeadm join --control-plane` would otherwise create.
pub(super) fn control_plane(
    site: &Site<'_>,
    settings: &Settings,
    config: &Config,
    first: bool,
) -> Result<()> {
    let pki = settings.pki(site.context, config)?;
    let member = config.member(first, &site.agent.facts()?.hostname)?;
    for (name, text, secret) in pki.shared_files() {
        if name.starts_with("etcd/") && member.etcd.is_none() {
            continue;
        }
        let mode = if secret { 0o600 } else { 0o644 };
        write(site.agent, &format!("{PKI}/{name}"), mode, &text)?;
    }
    certificates(site.agent, settings, config, &pki, &member, &|_| false)?;
    for identity in member.identities(first) {
        place_identity(site.agent, settings, config, &pki, &identity, false)?;
    }
    Ok(())
}

/// Writes the certificates below `pki/`; always recreates those that `again` selects. Returns the
/// names of the changed ones.
pub(super) fn certificates(
    agent: &dyn Agent,
    settings: &Settings,
    config: &Config,
    pki: &Pki,
    member: &Member,
    again: &dyn Fn(&str) -> bool,
) -> Result<Vec<&'static str>> {
    let mut changed = Vec::new();
    for (name, signer, leaf) in member.certificates() {
        let authority = signer.of(pki);
        let paths = (format!("{PKI}/{name}.crt"), format!("{PKI}/{name}.key"));
        let kept = !again(name)
            && read(agent, &paths.0)?.is_some_and(|certificate| {
                authority.stands_behind(&certificate, &leaf, margin(settings))
            })
            && read(agent, &paths.1)?.is_some();
        if kept {
            continue;
        }
        let signed = authority.sign(&leaf, config.algorithm()?, settings.validity.leaves)?;
        // Write the key first: a certificate without its key would count as valid next time.
        write(agent, &paths.1, 0o600, signed.key.pem.expose())?;
        write(agent, &paths.0, 0o644, &signed.certificate)?;
        changed.push(name);
    }
    Ok(changed)
}

/// Writes one kubeconfig; returns `true` if it was written.
pub(super) fn place_identity(
    agent: &dyn Agent,
    settings: &Settings,
    config: &Config,
    pki: &Pki,
    identity: &Identity,
    again: bool,
) -> Result<bool> {
    let path = format!("{KUBERNETES}/{}", identity.file);
    if let (false, Some(text)) = (again, read(agent, &path)?)
        && is_good(&text, settings, pki, identity)
    {
        return Ok(false);
    }
    let lifetime = settings.validity.leaves;
    let signed = pki.ca.sign(&identity.leaf, config.algorithm()?, lifetime)?;
    let text = control_plane::write_kubeconfig(
        &pki.ca.certificate,
        &identity.server,
        &identity.user,
        &signed,
    )?;
    write(agent, &path, 0o600, &text)?;
    Ok(true)
}

fn is_good(text: &str, settings: &Settings, pki: &Pki, identity: &Identity) -> bool {
    let Ok(found) = control_plane::read_kubeconfig(text) else {
        return false;
    };
    if found.server != identity.server || found.authority != pki.ca.certificate {
        return false;
    }
    // A kubelet that has joined renews its certificate itself and stores it in a separate file.
    found.certificate.is_none_or(|certificate| {
        pki.ca.stands_behind(&certificate, &identity.leaf, margin(settings))
    })
}

/// Returns the remaining validity below which a certificate is recreated: a month, or a third of a
/// short validity.
fn margin(settings: &Settings) -> Duration {
    MONTH.min(settings.validity.leaves / 3)
}

/// Writes the API server's audit policy: the image's, or a minimal one if the host has none.
pub(super) fn audit_policy(site: &Site<'_>, config: &Config) -> Result<()> {
    if !config.wants_audit_policy() {
        return Ok(());
    }
    let path = format!("{}/statics/audit-policy.yml", site.context.paths.rootfs());
    let text = match read(site.agent, &path)? {
        Some(text) => text,
        None if read(site.agent, AUDIT_POLICY)?.is_some() => return Ok(()),
        None => PLAIN_POLICY.to_owned(),
    };
    write(site.agent, AUDIT_POLICY, 0o600, &text)
}

/// Writes the other files of the image's `statics/`, which settings of control planes may name.
pub(super) fn statics(site: &Site<'_>) -> Result<()> {
    let statics = format!("{}/statics", site.context.paths.rootfs());
    site.run(&statics_line(&statics, KUBERNETES)).map(drop)
}

fn statics_line(statics: &str, kubernetes: &str) -> Line {
    Line::script(&[include_str!("scripts/statics.sh")])
        .with([("IMGCTL_STATICS", statics), ("IMGCTL_KUBERNETES", kubernetes)])
}

pub(super) fn read(agent: &dyn Agent, path: &str) -> Result<Option<String>> {
    let bytes = agent.read_file(path, LONGEST_FILE)?;
    Ok(bytes.and_then(|bytes| String::from_utf8(bytes).ok()))
}

pub(super) fn write(agent: &dyn Agent, path: &str, mode: u32, text: &str) -> Result<()> {
    agent
        .write_file(&FileToWrite { path: path.to_owned(), mode, content: text.as_bytes().to_vec() })
        .map(|_| ())
        .context(|| format!("{}: cannot write {path}", agent.host()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_image_are_beside_those_of_kubeadm_and_replace_none() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        std::fs::create_dir_all(path("statics/folder")).unwrap();
        for name in ["admission.yml", "with a space", "admin.conf", "audit-policy.yml"] {
            std::fs::write(path("statics").join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("/etc/shadow", path("statics/link")).unwrap();
        std::fs::create_dir(path("kubernetes")).unwrap();
        std::fs::write(path("kubernetes/admin.conf"), "kubeadm's").unwrap();
        let text = |name: &str| path(name).to_str().unwrap().to_owned();
        for statics in ["statics", "statics", "nothing"] {
            let line = statics_line(&text(statics), &text("kubernetes"));
            let mut bash = std::process::Command::new("bash");
            bash.args(["-c", &line.line]);
            for (name, value) in line.environment.to_map() {
                bash.env(name, value);
            }
            assert!(bash.status().unwrap().success());
        }
        let found = std::fs::read_dir(path("kubernetes")).unwrap();
        let mut found: Vec<_> = found.map(|entry| entry.unwrap().file_name()).collect();
        found.sort();
        assert_eq!(found, ["admin.conf", "admission.yml", "with a space"]);
        assert_eq!(std::fs::read(path("kubernetes/admin.conf")).unwrap(), b"kubeadm's");
        let mode = std::fs::metadata(path("kubernetes/admission.yml")).unwrap().permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
    }
}
