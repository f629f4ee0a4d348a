//! Rotation of kubeadm's authorities: what changes on a host, and in the API.
//!
//! While both authorities are trusted, `ca.crt` and its siblings contain both. The controller manager signs
//! with exactly one certificate: it gets a file of its own then. API servers, kubelets and etcd read the
//! files of authorities when they start, or do so without a promise; they are restarted.

use std::time::Duration;

use serde_json::json;

use crate::action::{Action, Line, Site};
use crate::certificates::authority::Authority;
use crate::certificates::kubeconfig::{with_authority, with_client};
use crate::certificates::{again, control_plane, host_kubeconfig};
use crate::certificates::{
    rotation,
    rotation::{Pair, Signs, Trust},
};
use crate::kubeadm::{Kubeadm, health, place, renew, settings};
use crate::kubectl::{ADMIN_CONF, Kubectl, api_port, is_true};
use crate::rotation::{Rotator, Which};
use crate::wait::{until_well, waiting};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::{ClusterContext, Host};

const PKI: &str = "/etc/kubernetes/pki";
/// Certificate of the authority that the controller manager signs with, while `ca.crt` has two.
const SIGNING: &str = "/etc/kubernetes/pki/ca-signing.crt";
const SIGNING_FLAG: &str = "--cluster-signing-cert-file=";
const MANAGER: &str = "/etc/kubernetes/manifests/kube-controller-manager.yaml";
const KUBECONFIGS: [&str; 5] =
    ["admin.conf", "super-admin.conf", "controller-manager.conf", "scheduler.conf", "kubelet.conf"];
const KUBELET_PEM: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";
const KUBELET_SERVER_PEM: &str = "/var/lib/kubelet/pki/kubelet-server-current.pem";
/// A kubeconfig that trusts the new authority alone.
const PROBE: &str = "rotation.conf";
const PATIENCE: Duration = Duration::from_secs(300);
const HINT: &str = "on the host: `crictl ps -a`, `crictl logs` of the container, `journalctl -u kubelet`; \
then run the same command again, or go back with --undo";
/// Longest time that a workload has for its new Pods.
const ROLLOUT: &str = "10m";

/// Returns the file below `pki/`, without extension.
fn file(which: Which) -> &'static str {
    match which {
        Which::Etcd => "etcd/ca",
        Which::FrontProxy => "front-proxy-ca",
        Which::Kubernetes | Which::Declared => "ca",
    }
}

/// Returns the certificates that an authority signs, below `pki/`.
fn leaves(which: Which) -> &'static [&'static str] {
    match which {
        Which::Kubernetes => &["apiserver", "apiserver-kubelet-client"],
        Which::Etcd => {
            &["apiserver-etcd-client", "etcd/server", "etcd/peer", "etcd/healthcheck-client"]
        }
        Which::FrontProxy => &["front-proxy-client"],
        Which::Declared => &[],
    }
}

fn has(site: &Site<'_>, path: &str) -> Result<bool> {
    Ok(place::read(site.agent, path)?.is_some())
}

/// Writes what a host trusts.
fn write_trust(site: &Site<'_>, which: &[Which], text: &dyn Fn(&Pair) -> String) -> Result<()> {
    for one in which {
        let path = format!("{PKI}/{}.crt", file(*one));
        // Workers have the authority of the cluster alone, and not every control plane has an etcd.
        if has(site, &path)? {
            let pair = Pair::of(site.state(), file(*one))?;
            place::write(site.agent, &path, 0o644, &text(&pair))?;
        }
    }
    Ok(())
}

/// Has the kubeconfigs of a host trust `authorities`.
fn write_kubeconfigs(site: &Site<'_>, authorities: &str) -> Result<()> {
    for name in KUBECONFIGS {
        let path = format!("/etc/kubernetes/{name}");
        if let Some(text) = place::read(site.agent, &path)? {
            place::write(site.agent, &path, 0o600, &with_authority(&text, authorities))?;
        }
    }
    let home = "/root/.kube/config";
    if let (Some(text), Some(admin)) =
        (place::read(site.agent, home)?, place::read(site.agent, "/etc/kubernetes/admin.conf")?)
        && control_plane::read_kubeconfig(&text).is_ok_and(|own| {
            control_plane::read_kubeconfig(&admin).is_ok_and(|admin| own.server == admin.server)
        })
    {
        place::write(site.agent, home, 0o600, &admin)?;
    }
    Ok(())
}

/// Has the controller manager sign with the certificate of `signer`, in `path`.
fn sign_with(site: &Site<'_>, path: &str) -> Result<()> {
    let Some(text) = place::read(site.agent, MANAGER)? else { return Ok(()) };
    let mut new = String::new();
    for line in text.lines() {
        match line.split_once(SIGNING_FLAG) {
            Some((before, _)) => new.push_str(&format!("{before}{SIGNING_FLAG}{path}")),
            None => new.push_str(line),
        }
        new.push('\n');
    }
    if new == text { Ok(()) } else { place::write(site.agent, MANAGER, 0o600, &new) }
}

fn restart(site: &Site<'_>, component: &str) -> Result<()> {
    let line = renew::restart_line(component);
    site.run_on(site.agent, &line, &format!("-restart-{component}")).map(|_| ())
}

fn trust(site: &Site<'_>, which: &[Which], trust: Trust) -> Result<()> {
    let is_master = site.host.is_control_plane();
    let of_cluster = which.contains(&Which::Kubernetes);
    if is_master && of_cluster && trust == Trust::Both {
        let pair = Pair::of(site.state(), file(Which::Kubernetes))?;
        place::write(site.agent, SIGNING, 0o644, &pair.former.certificate)?;
        sign_with(site, SIGNING)?;
    }
    write_trust(site, which, &|pair| pair.bundle(trust))?;
    if of_cluster {
        let pair = Pair::of(site.state(), file(Which::Kubernetes))?;
        write_kubeconfigs(site, &pair.bundle(trust))?;
        if is_master && trust != Trust::Both {
            sign_with(site, &format!("{PKI}/ca.crt"))?;
            site.remove(&SIGNING.to_owned())?;
        }
    }
    if is_master {
        if which.contains(&Which::Etcd) && has(site, &format!("{PKI}/etcd/server.crt"))? {
            restart(site, "etcd")?;
        }
        restart(site, "kube-apiserver")?;
        if of_cluster {
            restart(site, "kube-controller-manager")?;
            restart(site, "kube-scheduler")?;
        }
    }
    if of_cluster { restart(site, "kubelet") } else { Ok(()) }
}

/// Signs the certificates of a host again.
fn sign(site: &Site<'_>, which: &[Which], signs: Signs) -> Result<()> {
    for one in which {
        let pair = Pair::of(site.state(), file(*one))?;
        let signer = pair.signer(signs);
        for name in leaves(*one) {
            let path = format!("{PKI}/{name}.crt");
            let Some(old) = place::read(site.agent, &path)? else { continue };
            if again::is_signed_by(&old, signer) {
                continue;
            }
            let key = place::read(site.agent, &format!("{PKI}/{name}.key"))?.ok_or_else(|| {
                Error::not_found(format!("{}: there is no {PKI}/{name}.key", site.agent.host()))
            })?;
            let new = again::renew(signer, &old, &key, None)?;
            place::write(site.agent, &path, 0o644, &new.certificate)?;
        }
        let path = format!("{PKI}/{}", file(*one));
        if has(site, &format!("{path}.crt"))? {
            place::write(site.agent, &format!("{path}.crt"), 0o644, &pair.signed_bundle(signs))?;
        }
        if has(site, &format!("{path}.key"))? {
            let key = signer.key.pem.expose();
            place::write(site.agent, &format!("{path}.key"), 0o600, key)?;
        }
    }
    if !which.contains(&Which::Kubernetes) {
        return Ok(());
    }
    let pair = Pair::of(site.state(), file(Which::Kubernetes))?;
    let signer = pair.signer(signs);
    for name in KUBECONFIGS {
        let path = format!("/etc/kubernetes/{name}");
        let Some(text) = place::read(site.agent, &path)? else { continue };
        let Some(old) = control_plane::read_kubeconfig(&text)?.certificate else { continue };
        if !again::is_signed_by(&old, signer) {
            let new = again::renew_with_new_key(signer, &old, None)?;
            let text = with_client(&text, &new.certificate, new.key.pem.expose());
            place::write(site.agent, &path, 0o600, &text)?;
        }
    }
    write_kubeconfigs(site, &pair.signed_bundle(signs))?;
    for pem in [KUBELET_PEM, KUBELET_SERVER_PEM] {
        kubelets(site, pem, signer)?;
    }
    if site.host.is_control_plane() {
        place::write(site.agent, SIGNING, 0o644, &signer.certificate)?;
        restart(site, "kube-controller-manager")?;
        restart(site, "kube-scheduler")?;
    }
    restart(site, "kubelet")
}

/// Signs a certificate of the kubelet again, as it keeps them: certificate and key in a file, and a link.
fn kubelets(site: &Site<'_>, pem: &str, signer: &Authority) -> Result<()> {
    // The kubelet's own rotation can have replaced the file meanwhile: the link decides.
    let line = Line::query(format!("readlink -e {pem} || true"));
    let target = site.run_on(site.agent, &line, "-pem")?;
    let Some(old) = place::read(site.agent, target.trim()).ok().flatten() else { return Ok(()) };
    if again::is_signed_by(&old, signer) {
        return Ok(());
    }
    let new = again::renew_with_new_key(signer, &old, None)?;
    let base = pem.trim_end_matches("-current.pem");
    let path = format!("{base}-{}.pem", jiff::Timestamp::now().as_second());
    place::write(
        site.agent,
        &path,
        0o600,
        &format!("{}{}", new.certificate, new.key.pem.expose()),
    )?;
    let line = Line::repeatable(format!("ln -sfn {path} {pem}.new && mv -Tf {pem}.new {pem}"));
    site.run_on(site.agent, &line, "-link").map(|_| ())
}

/// Waits until the API server of this host presents a certificate of the signing authority: it looks at
/// its files once a minute.
fn presented(signs: Signs) -> Action {
    let says = "wait until the API server presents a certificate of that authority";
    waiting("presented", says, PATIENCE, HINT, move |site| {
        let pair = Pair::of(site.state(), file(Which::Kubernetes))?;
        let Some(admin) = place::read(site.agent, "/etc/kubernetes/admin.conf")? else {
            return Ok(None);
        };
        let path = settings::etc(site.context, PROBE);
        let only = with_authority(&admin, &pair.signer(signs).certificate);
        place::write(site.agent, &path, 0o600, &only)?;
        let mut line =
            format!("kubectl --kubeconfig {path} get --raw /readyz --request-timeout=10s");
        if site.context.is_adopted() {
            // Its admin.conf may name a load balancer, behind which any server answers.
            let port = api_port(&site.context.documents);
            line.push_str(&format!(
                " --server https://127.0.0.1:{port} --tls-server-name kubernetes"
            ));
        }
        let line = Line::query(line);
        site.run_on(site.agent, &line, "-presented")?;
        site.remove(&path)?;
        Ok(None)
    })
}

/// Waits until all static Pods of all control planes are Ready.
fn all_static_pods() -> Action {
    let says = "wait until the static Pods of all control planes are Ready";
    waiting("static-pods", says, PATIENCE, HINT, |site| {
        let kubectl = Kubectl::anywhere(site)?;
        let pods = kubectl.get(&["pods", "-n", "kube-system", "-l", "tier=control-plane"])?;
        let pods = pods["items"].as_array().into_iter().flatten();
        let waiting = pods.into_iter().find(|pod| !is_true(pod, "Ready"));
        Ok(waiting.map(|pod| {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            format!("Pod {name} is not Ready")
        }))
    })
}

/// Writes the authorities that joining hosts trust.
fn cluster_info(trust: Trust) -> Action {
    let says = "write the authorities into the ConfigMap kube-public/cluster-info";
    Action::new("cluster-info", says, move |site| {
        until_well(site, PATIENCE, HINT, &|| {
            let pair = Pair::of(site.state(), file(Which::Kubernetes))?;
            let kubectl = Kubectl::anywhere(site)?;
            let found = kubectl.find(&["configmap", "cluster-info", "-n", "kube-public"])?;
            let Some(found) = found else { return Ok(None) };
            let text = found["data"]["kubeconfig"].as_str().unwrap_or_default();
            let new = with_authority(text, &pair.bundle(trust));
            if new != text {
                let patch = json!({"data": {"kubeconfig": new}}).to_string();
                kubectl.run(&[
                    "patch",
                    "configmap",
                    "cluster-info",
                    "-n",
                    "kube-public",
                    "-p",
                    &patch,
                ])?;
            }
            Ok(None)
        })
    })
    .within(PATIENCE * 2)
}

/// Waits until every namespace has the authorities for its Pods, which the controller manager writes.
fn root_authorities(trust: Trust) -> Action {
    let says = "wait until the ConfigMaps kube-root-ca.crt have the authorities";
    waiting("root-ca", says, PATIENCE, HINT, move |site| {
        let pair = Pair::of(site.state(), file(Which::Kubernetes))?;
        let wanted = pair.bundle(trust);
        let maps = Kubectl::anywhere(site)?.get(&[
            "configmaps",
            "-A",
            "--field-selector",
            "metadata.name=kube-root-ca.crt",
        ])?;
        let maps = maps["items"].as_array().into_iter().flatten();
        let stale = maps.into_iter().find(|map| {
            let text = map["data"]["ca.crt"].as_str().unwrap_or_default();
            again::certificates_of(text) != again::certificates_of(&wanted)
        });
        Ok(stale.map(|map| {
            let namespace = map["metadata"]["namespace"].as_str().unwrap_or_default();
            format!("ConfigMap {namespace}/kube-root-ca.crt has other authorities still")
        }))
    })
}

/// Replaces the Pods of all workloads, which read authorities when they start.
fn restart_pods() -> Vec<Action> {
    let kubectl = "export KUBECONFIG=/etc/kubernetes/admin.conf\n";
    let list = "kubectl get daemonsets,deployments,statefulsets -A --no-headers \
                -o custom-columns=:metadata.namespace,:kind,:metadata.name";
    let restart = format!(
        "{kubectl}{list} | while read -r namespace kind name; do \
         kubectl -n \"$namespace\" rollout restart \"$kind/$name\" </dev/null; done"
    );
    let wait = format!(
        "{kubectl}{list} | while read -r namespace kind name; do \
         kubectl -n \"$namespace\" rollout status \"$kind/$name\" --timeout={ROLLOUT} </dev/null || exit 1; done"
    );
    vec![
        Action::command("pods", Line::new(restart))
            .saying("kubectl rollout restart: all DaemonSets, Deployments and StatefulSets"),
        Action::command("pods-ready", Line::repeatable(wait))
            .saying("wait until they are rolled out"),
    ]
}

impl Rotator for Kubeadm<'_> {
    fn authorities(&self, context: &ClusterContext) -> Vec<Which> {
        let has_etcd = context
            .first()
            .and_then(|first| self.of(context, first).ok())
            .is_none_or(|(_, planned)| planned.has_local_etcd());
        let mut all = vec![Which::Kubernetes, Which::FrontProxy];
        if has_etcd {
            all.push(Which::Etcd);
        }
        all
    }

    fn begin(&self, which: &[Which]) -> Action {
        let which = which.to_vec();
        Action::new("begin", "make new authorities, on the controller", move |site| {
            for one in &which {
                let pair = Pair::of(site.state(), file(*one))?;
                let path = format!("{PKI}/{}.crt", file(*one));
                let here = place::read(site.agent, &path)?.unwrap_or_default();
                let is_ours = again::certificates_of(&here)
                    .iter()
                    .any(|one| one.trim() == pair.former.certificate.trim());
                if !is_ours {
                    return Err(Error::check_failed(format!(
                        "{}: {path} is not the authority that this controller has",
                        site.agent.host()
                    ))
                    .hint("run the command on the controller whose pki directory is that of the cluster"));
                }
            }
            rotation::open(site.state())
        })
    }

    fn trust(
        &self,
        _context: &ClusterContext,
        host: &Host,
        which: &[Which],
        trusts: Trust,
    ) -> Result<Vec<Action>> {
        if !host.is_control_plane() && !which.contains(&Which::Kubernetes) {
            return Ok(Vec::new());
        }
        let what = match trusts {
            Trust::Both => "the former and the new authorities",
            Trust::New => "the new authorities alone",
            Trust::Former => "the former authorities alone",
        };
        let services = if host.is_control_plane() { "the control plane and " } else { "" };
        let says =
            format!("write {what} into {PKI} and the kubeconfigs; restart {services}the kubelet");
        let which = which.to_vec();
        Ok(vec![
            Action::new("trust", says, move |site| trust(site, &which, trusts)).within(PATIENCE),
        ])
    }

    fn sign(
        &self,
        _context: &ClusterContext,
        host: &Host,
        which: &[Which],
        signs: Signs,
    ) -> Result<Vec<Action>> {
        let of_cluster = which.contains(&Which::Kubernetes);
        if !host.is_control_plane() && !of_cluster {
            return Ok(Vec::new());
        }
        let who = match signs {
            Signs::New => "new",
            Signs::Former => "former",
        };
        let says = format!(
            "sign the certificates in {PKI}, kubeconfigs and that of the kubelet by the {who} authorities; \
             restart what reads them only when it starts"
        );
        let named = which.to_vec();
        let mut actions =
            vec![Action::new("sign", says, move |site| sign(site, &named, signs)).within(PATIENCE)];
        if of_cluster && host.is_control_plane() {
            actions.push(presented(signs));
        }
        Ok(actions)
    }

    fn announce(&self, which: &[Which], trust: Trust, restart: bool) -> Vec<Action> {
        if !which.contains(&Which::Kubernetes) {
            return Vec::new();
        }
        let mut actions = vec![cluster_info(trust), root_authorities(trust)];
        if restart {
            actions.extend(restart_pods());
        }
        actions
    }

    fn gate(&self, _context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        let mut actions = health::actions(host);
        if host.is_control_plane() {
            actions.push(all_static_pods());
        }
        Ok(actions)
    }

    fn end(&self, which: &[Which], signs: Signs) -> Action {
        let says = match signs {
            Signs::New => "the new authorities are those of the cluster; forget the former ones",
            Signs::Former => "forget the new authorities",
        };
        let files: Vec<String> = which.iter().map(|one| file(*one).to_owned()).collect();
        Action::new("end", says, move |site| {
            if let Some(admin) = place::read(site.agent, ADMIN_CONF)? {
                host_kubeconfig::keep(site.state(), &admin, site.agent, ADMIN_CONF)?;
            }
            match signs {
                Signs::New => rotation::finish(site.state(), &files),
                Signs::Former => rotation::discard(site.state()),
            }
        })
    }
}
