//! Renewal of the certificates of kubeadm's control planes and kubelets.
//!
//! API servers and etcd read certificates again while they run (client-go's dynamic certificates; etcd
//! at each handshake): they are restarted only if they do not show the new one. The controller manager,
//! the scheduler and kubelets read kubeconfigs when they start.

use std::time::{Duration, Instant};

use crate::certificates::kubeconfig::with_client;
use crate::certificates::{again, control_plane, inspect};
use crate::renewal::change::{Machine, NewFile, Pending};
use crate::renewal::inventory::Found;
use imgctl_base::error::{Context as _, Error, Result};

const PKI: &str = "/etc/kubernetes/pki";
/// The kubelet's own serving certificate: made when it starts without one, and never renewed by it.
const KUBELET_SERVING: &str = "/var/lib/kubelet/pki/kubelet.crt";
const KUBELETS_OWN: [&str; 2] = [
    "/var/lib/kubelet/pki/kubelet-client-current.pem",
    "/var/lib/kubelet/pki/kubelet-server-current.pem",
];
const API_MANIFEST: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
const HOME: &str = "/root/.kube/config";
/// API servers look at their files once a minute.
const NOTICED: Duration = Duration::from_secs(90);

/// What is done about a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// Signed by the authority of these files below `pki/`.
    Signed(&'static str),
    /// A kubeconfig, and what reads it only when it starts.
    Kubeconfig(Option<&'static str>),
    /// Made by the kubelet itself when it starts.
    KubeletServing,
    /// The kubelet renews it.
    Kubelets,
    Unknown,
}

pub(crate) fn care(file: &str) -> Care {
    if file == KUBELET_SERVING {
        return Care::KubeletServing;
    }
    if KUBELETS_OWN.contains(&file) {
        return Care::Kubelets;
    }
    match file.strip_prefix("/etc/kubernetes/") {
        Some("pki/apiserver.crt" | "pki/apiserver-kubelet-client.crt") => Care::Signed("ca"),
        Some("pki/front-proxy-client.crt") => Care::Signed("front-proxy-ca"),
        Some("pki/apiserver-etcd-client.crt") => Care::Signed("etcd/ca"),
        Some(file) if file.starts_with("pki/etcd/") => Care::Signed("etcd/ca"),
        Some("admin.conf" | "super-admin.conf") => Care::Kubeconfig(None),
        Some("controller-manager.conf") => Care::Kubeconfig(Some("kube-controller-manager")),
        Some("scheduler.conf") => Care::Kubeconfig(Some("kube-scheduler")),
        Some("kubelet.conf") => Care::Kubeconfig(Some("kubelet")),
        _ => Care::Unknown,
    }
}

/// Returns the certificates to renew, and what is due but is nobody's on this host.
pub(crate) fn due(found: &[Found], now: i64) -> (Vec<&Found>, Vec<String>) {
    let (mut due, mut problems) = (Vec::new(), Vec::new());
    for one in found.iter().filter(|one| one.is_due(now)) {
        let left = one.certificate.not_after - now;
        match care(&one.file) {
            // The kubelet begins when between 10 and 30 % of the life are left.
            Care::Kubelets if left.saturating_mul(20) < one.life => problems.push(format!(
                "the kubelet has not renewed {}: see `journalctl -u kubelet`, and `kubectl get csr`",
                one.file
            )),
            Care::Kubelets => {}
            Care::Unknown => problems.push(format!(
                "{} is due, and only the program that made it can renew it",
                one.file
            )),
            _ => due.push(one),
        }
    }
    (due, problems)
}

/// Signs the certificate in `file` again.
pub(crate) fn renew(machine: &Machine<'_>, pending: &mut Pending, file: &str) -> Result<()> {
    let validity = machine.settings.validity.map(Duration::from_secs);
    match care(file) {
        Care::Signed(authority) => {
            let signer = authority_of(machine, authority)?;
            let key = machine.need(&format!("{}.key", file.trim_end_matches(".crt")))?;
            let signed = again::renew(&signer, &machine.need(file)?, &key, validity)
                .context(|| file.to_owned())?;
            let text = Some(signed.certificate);
            machine.change(pending, &NewFile { path: file.to_owned(), mode: 0o644, text }, None)
        }
        Care::Kubeconfig(restart) => {
            let old = machine.need(file)?;
            let certificate = control_plane::read_kubeconfig(&old)?.certificate;
            let certificate = certificate
                .ok_or_else(|| Error::not_found(format!("{file} has no certificate")))?;
            let signer = authority_of(machine, "ca")?;
            let signed = again::renew_with_new_key(&signer, &certificate, validity)
                .context(|| file.to_owned())?;
            let text = with_client(&old, &signed.certificate, signed.key.pem.expose());
            let new = NewFile { path: file.to_owned(), mode: 0o600, text: Some(text) };
            // The administrator's copy of it.
            if file.ends_with("/admin.conf") && machine.read(HOME)?.as_deref() == Some(&old) {
                machine.change(pending, &NewFile { path: HOME.to_owned(), ..new.clone() }, None)?;
            }
            machine.change(pending, &new, restart)
        }
        Care::KubeletServing => {
            let key = KUBELET_SERVING.replace(".crt", ".key");
            for path in [key, file.to_owned()] {
                let new = NewFile { path, mode: 0o600, text: None };
                machine.change(pending, &new, Some("kubelet"))?;
            }
            Ok(())
        }
        Care::Kubelets | Care::Unknown => Ok(()),
    }
}

fn authority_of(
    machine: &Machine<'_>,
    name: &str,
) -> Result<crate::certificates::authority::Authority> {
    let key = machine.read(&format!("{PKI}/{name}.key"))?.ok_or_else(|| {
        Error::not_found(format!(
            "{PKI}/{name}.key is not on this host: its certificates are signed elsewhere"
        ))
        .hint("renew them where the key of the authority is")
    })?;
    again::authority_in(&machine.need(&format!("{PKI}/{name}.crt"))?, &key)
        .context(|| format!("{PKI}/{name}.crt"))
}

/// Restarts a component.
pub(crate) fn restart(machine: &Machine<'_>, component: &str) -> Result<()> {
    let line = crate::kubeadm::renew::restart_line(component);
    machine.run(&format!("restart-{component}"), &line).map(|_| ())
}

/// Waits until this host's servers show the certificates of their files; restarts one that does not.
pub(crate) fn shown(
    machine: &Machine<'_>,
    pending: &Pending,
    presented: &dyn Fn(u16) -> Result<Vec<u8>>,
    patience: Duration,
) -> Result<()> {
    for (file, component, port) in servers(machine)? {
        if !pending.files.iter().any(|one| one.path == file) {
            continue;
        }
        let wanted = inspect::read(&machine.need(&file)?)?.der;
        let wait = |limit: Duration| -> Option<String> {
            let end = Instant::now() + limit;
            loop {
                let complaint = match presented(port) {
                    Ok(der) if der == wanted => return None,
                    Ok(_) => format!("{component} still shows the former certificate"),
                    Err(error) => error.to_string(),
                };
                if Instant::now() >= end {
                    return Some(complaint);
                }
                std::thread::sleep(Duration::from_secs(1).min(limit / 10));
            }
        };
        if wait(NOTICED.min(patience)).is_none() {
            continue;
        }
        restart(machine, component)?;
        if let Some(complaint) = wait(patience) {
            return Err(Error::failed(format!("{complaint}, also after a restart")));
        }
    }
    Ok(())
}

/// Returns the files of serving certificates, with the component and the port.
fn servers(machine: &Machine<'_>) -> Result<Vec<(String, &'static str, u16)>> {
    let manifest = machine.read(API_MANIFEST)?.unwrap_or_default();
    let port = manifest.lines().find_map(|line| {
        line.trim().strip_prefix("- --secure-port=")?.trim_matches('"').parse().ok()
    });
    Ok(vec![
        (format!("{PKI}/apiserver.crt"), "kube-apiserver", port.unwrap_or(6443)),
        (format!("{PKI}/etcd/server.crt"), "etcd", 2379),
        (format!("{PKI}/etcd/peer.crt"), "etcd", 2380),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_its_care() {
        for (file, wanted) in [
            ("/etc/kubernetes/pki/apiserver.crt", Care::Signed("ca")),
            ("/etc/kubernetes/pki/etcd/peer.crt", Care::Signed("etcd/ca")),
            ("/etc/kubernetes/scheduler.conf", Care::Kubeconfig(Some("kube-scheduler"))),
            ("/var/lib/kubelet/pki/kubelet.crt", Care::KubeletServing),
            ("/var/lib/kubelet/pki/kubelet-client-current.pem", Care::Kubelets),
            ("/etc/registry/tls.crt", Care::Unknown),
        ] {
            assert_eq!(care(file), wanted, "{file}");
        }
    }
}
