//! Certificates of a running cluster: expiry dates, renewal, and additional names for the API.

use serde_json::Value;

use crate::action::{Action, Line, Site};
use crate::certificates::{control_plane, host_kubeconfig, inspect};
use crate::kubeadm::settings::{ALT_NAMES, Settings, alt_names, etc};
use crate::kubeadm::{Kubeadm, config::has_balancers, health, init, place};
use crate::{
    certificates::authority::canonical, kubeadm::documents::set, kubectl::Kubectl, load_balancer,
};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_template::yaml;

/// Paths below `/etc/kubernetes`.
const CERTIFICATES: [&str; 10] = [
    "pki/ca.crt",
    "pki/apiserver.crt",
    "pki/apiserver-kubelet-client.crt",
    "pki/front-proxy-ca.crt",
    "pki/front-proxy-client.crt",
    "pki/etcd/ca.crt",
    "pki/apiserver-etcd-client.crt",
    "pki/etcd/server.crt",
    "pki/etcd/peer.crt",
    "pki/etcd/healthcheck-client.crt",
];
const KUBECONFIGS: [&str; 5] =
    ["admin.conf", "super-admin.conf", "controller-manager.conf", "scheduler.conf", "kubelet.conf"];
const COMPONENTS: [&str; 4] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Certificates that `imgctl cert --renew` renews.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    All,
    /// Name such as `admin.conf` or `apiserver`.
    One(String),
}

impl Wanted {
    pub fn parse(text: &str) -> Result<Self> {
        if text == "all" {
            return Ok(Self::All);
        }
        let leaf = |file: &str| !file.ends_with("ca.crt") && certificate_name(file) == text;
        if KUBECONFIGS.contains(&text) || CERTIFICATES.iter().any(|file| leaf(file)) {
            return Ok(Self::One(text.to_owned()));
        }
        let leaves = CERTIFICATES.iter().filter(|file| !file.ends_with("ca.crt"));
        let names: Vec<&str> =
            KUBECONFIGS.into_iter().chain(leaves.map(|file| certificate_name(file))).collect();
        Err(Error::usage(format!("there is no certificate `{text}` to renew"))
            .hint(format!("all, {}", names.join(", "))))
    }

    fn names(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::One(one) => one == name,
        }
    }
}

/// Returns a certificate's name: `etcd/server` for `pki/etcd/server.crt`.
fn certificate_name(file: &str) -> &str {
    file.trim_start_matches("pki/").trim_end_matches(".crt")
}

/// Stores names for the API's certificate, so that later joins and renewals include them.
pub fn remember(context: &ClusterContext, names: &[String]) -> Result<()> {
    let mut all = alt_names(context)?;
    for name in names.iter().map(|name| canonical(name)) {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    let text: String = all.iter().map(|name| format!("{name}\n")).collect();
    context.state.write(ALT_NAMES, &text)
}

impl Kubeadm<'_> {
    /// Returns the actions that add names, for each control plane in turn after a call to
    /// [`remember`]: they add the names to its certificate and, on the first control plane, to the
    /// cluster's configuration in the API.
    pub fn add_names(
        &self,
        context: &ClusterContext,
        host: &Host,
        names: &[String],
    ) -> Result<Vec<Action>> {
        let settings = self.settings(context)?;
        let list = names.join(", ");
        let mut actions = vec![Action::new(
            "api-certificate",
            format!("re-sign pki/apiserver.crt with {list}"),
            move |site| names_into_certificate(site, &settings),
        )];
        actions.extend(restarts(context, &["kube-apiserver"], host));
        if context.first().is_some_and(|first| first.address == host.address) {
            let names: Vec<String> = names.iter().map(|name| canonical(name)).collect();
            actions.push(Action::new(
                "api-configuration",
                format!(
                    "kubeadm init phase upload-config kubeadm --config <kubeadm-config with {list}>"
                ),
                move |site| names_into_configuration(site, &names),
            ));
        }
        Ok(actions)
    }

    /// Returns the actions that renew certificates on one control plane and restart the components
    /// that use them.
    pub fn renew(
        &self,
        context: &ClusterContext,
        host: &Host,
        wanted: &Wanted,
    ) -> Result<Vec<Action>> {
        let settings = self.settings(context)?;
        let first = context.first().is_some_and(|first| first.address == host.address);
        let wanted = wanted.clone();
        let says = match &wanted {
            Wanted::All => "re-sign all certificates and kubeconfigs".to_owned(),
            Wanted::One(name) => format!("re-sign {name}"),
        };
        let restarted = restarted_by(&wanted);
        let inputs = format!("{wanted:?}");
        let mut actions = vec![Action::depending_on("renew", says, &inputs, move |site| {
            renew(site, &settings, first, &wanted)
        })];
        actions.extend(restarts(context, &restarted, host));
        // Other programs may have written the users' kubeconfigs of an adopted cluster.
        if !context.is_adopted() {
            actions.push(init::kubeconfig());
        }
        Ok(actions)
    }
}

/// Restarts components and waits until the control plane is well. Workers use other API servers while
/// this one or its etcd restarts: an API server that has just started refuses requests that it allows later.
fn restarts(context: &ClusterContext, components: &[&str], host: &Host) -> Vec<Action> {
    if components.is_empty() {
        return Vec::new();
    }
    let serves = |component: &str| matches!(component, "etcd" | "kube-apiserver");
    let has_balancers = has_balancers(context) && components.iter().any(|one| serves(one));
    let mut actions: Vec<Action> = Vec::new();
    for component in components {
        let action = restart(component);
        actions.push(if has_balancers && serves(component) {
            load_balancer::taken_out_before(context, action)
        } else {
            action
        });
    }
    actions.extend(health::actions(host));
    if has_balancers {
        actions.extend(load_balancer::put_back(context));
    }
    actions
}

/// Returns the components that do not reload their certificates.
fn restarted_by(wanted: &Wanted) -> Vec<&'static str> {
    match wanted {
        Wanted::All => COMPONENTS.to_vec(),
        Wanted::One(name) => match name.as_str() {
            "controller-manager.conf" => vec!["kube-controller-manager"],
            "scheduler.conf" => vec!["kube-scheduler"],
            "etcd/server" | "etcd/peer" => vec!["etcd"],
            name if name.ends_with(".conf") || name == "etcd/healthcheck-client" => Vec::new(),
            _ => vec!["kube-apiserver"],
        },
    }
}

fn names_into_certificate(site: &Site<'_>, settings: &Settings) -> Result<()> {
    let (_, config) = settings.config(site)?;
    let pki = settings.pki(site.context, &config)?;
    let mut member = config.member(is_first(site), &init::hostname(site)?)?;
    // Keep all names in the current certificate, even those without a record.
    if let Some(old) = place::read(site.agent, "/etc/kubernetes/pki/apiserver.crt")? {
        member.api_names.extend(inspect::read(&old)?.names);
    }
    place::certificates(site.agent, settings, &config, &pki, &member, &|_| false).map(|_| ())
}

fn renew(site: &Site<'_>, settings: &Settings, first: bool, wanted: &Wanted) -> Result<()> {
    let (_, config) = settings.config(site)?;
    let pki = settings.pki(site.context, &config)?;
    let mut member = config.member(first, &init::hostname(site)?)?;
    if let Some(old) = place::read(site.agent, "/etc/kubernetes/pki/apiserver.crt")? {
        member.api_names.extend(inspect::read(&old)?.names);
    }
    let again = |name: &str| wanted.names(name);
    place::certificates(site.agent, settings, &config, &pki, &member, &again)?;
    for identity in member.identities(true) {
        let path = format!("/etc/kubernetes/{}", identity.file);
        let Some(text) = place::read(site.agent, &path)? else {
            continue;
        };
        // A kubelet that has joined renews its own certificate.
        if wanted.names(identity.file)
            && control_plane::read_kubeconfig(&text)?.certificate.is_some()
        {
            place::place_identity(site.agent, settings, &config, &pki, &identity, true)?;
            if first && identity.file == "admin.conf" {
                let text = place::read(site.agent, &path)?.unwrap_or_default();
                host_kubeconfig::keep(site.state(), &text, site.agent, &path)?;
            }
        }
    }
    Ok(())
}

fn is_first(site: &Site<'_>) -> bool {
    let first = site.context.first();
    first.is_some_and(|first| first.address == site.host.address)
}

/// Adds names to the configuration from the API, because the Clusterfile can be incomplete.
fn names_into_configuration(site: &Site<'_>, names: &[String]) -> Result<()> {
    let kubectl = Kubectl::here(site)?;
    let map = kubectl.get(&["configmap", "kubeadm-config", "-n", "kube-system"])?;
    let text = map["data"]["ClusterConfiguration"].as_str().ok_or_else(|| {
        Error::not_found("the ConfigMap kubeadm-config has no ClusterConfiguration")
    })?;
    let text = with_names(text, names)?;
    let file = etc(site.context, "kubeadm-update.yaml");
    place::write(site.agent, &file, 0o600, &text)?;
    site.run(&Line::repeatable(format!("kubeadm init phase upload-config kubeadm --config {file}")))
        .map(|_| ())
}

fn with_names(text: &str, names: &[String]) -> Result<String> {
    let mut document = yaml::parse(text)?;
    let list = document["apiServer"]["certSANs"].as_array();
    let mut all: Vec<Value> = list.cloned().unwrap_or_default();
    for name in names {
        if !all.iter().any(|known| known == name.as_str()) {
            all.push(name.as_str().into());
        }
    }
    set(&mut document, &["apiServer", "certSANs"], all.into())?;
    let mut text = yaml::write(&document)?;
    text.push('\n');
    Ok(text)
}

/// Stops the component's container; the kubelet restarts it immediately.
pub(super) fn restart(component: &str) -> Action {
    Action::command(&format!("restart-{component}"), restart_line(component))
        .saying(format!("restart the static Pod {component}"))
}

/// Returns the line that restarts the kubelet or a static Pod.
pub(crate) fn restart_line(component: &str) -> Line {
    Line::script(&[include_str!("scripts/restart-component.sh")])
        .with([("IMGCTL_COMPONENT", component)])
}

#[cfg(test)]
pub(crate) mod expiry {
    use super::*;
    use crate::certificates::inspect::Certificate;
    use imgctl_base::error::Context as _;
    use imgctl_host::agent::Agent;

    /// One certificate of one host.
    #[derive(Clone, Debug)]
    pub(crate) struct Expiry {
        /// Path relative to `/etc/kubernetes`.
        pub file: String,
        pub certificate: Certificate,
    }

    /// Returns all certificates of a control plane, in a fixed order.
    pub(crate) fn expiries(agent: &dyn Agent) -> Result<Vec<Expiry>> {
        let mut found = Vec::new();
        for file in CERTIFICATES.into_iter().chain(KUBECONFIGS) {
            let path = format!("/etc/kubernetes/{file}");
            let Some(text) = place::read(agent, &path)? else {
                continue;
            };
            let text = if file.ends_with(".conf") {
                control_plane::read_kubeconfig(&text)
                    .context(|| format!("{}: {path}", agent.host()))?
                    .certificate
            } else {
                Some(text)
            };
            // The kubelet stores its own certificate in a file that it renews itself.
            let text = match text {
                Some(text) => Some(text),
                None => place::read(agent, "/var/lib/kubelet/pki/kubelet-client-current.pem")?,
            };
            if let Some(text) = text {
                let certificate =
                    inspect::read(&text).context(|| format!("{}: {path}", agent.host()))?;
                found.push(Expiry { file: file.to_owned(), certificate });
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_renewed() {
        assert_eq!(Wanted::parse("all").unwrap(), Wanted::All);
        for name in ["admin.conf", "apiserver", "etcd/server", "front-proxy-client"] {
            assert_eq!(Wanted::parse(name).unwrap(), Wanted::One(name.to_owned()));
        }
        let error = Wanted::parse("ca").unwrap_err();
        assert!(error.hints()[0].contains("super-admin.conf"), "{error}");
        assert_eq!(restarted_by(&Wanted::All).len(), 4);
        assert!(restarted_by(&Wanted::One("admin.conf".to_owned())).is_empty());
    }

    #[test]
    fn names_are_added_and_the_rest_of_the_configuration_stays() {
        let text = "apiServer:\n  certSANs:\n  - a\n  extraArgs:\n  - name: x\n    value: \"1\"\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n";
        let names = ["a".to_owned(), "test.sealoshub.io".to_owned()];
        assert_eq!(
            with_names(text, &names).unwrap(),
            "apiServer:\n  certSANs:\n  - a\n  - test.sealoshub.io\n  extraArgs:\n  - name: x\n    value: \"1\"\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n"
        );
    }
}
