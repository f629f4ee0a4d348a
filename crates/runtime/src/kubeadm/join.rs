//! Joining hosts to an existing cluster. Bootstrap tokens are generated here, valid in the API for at
//! most two hours and removed afterwards.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::action::{Action, Line, Site};
use crate::kubeadm::config::{API_NAME, Config, lvscare_image};
use crate::kubeadm::settings::{Settings, etc};
use crate::kubeadm::{etcd, images, local_files, lvscare, place};
use crate::kubeadm::{
    init,
    init::{API_MANIFEST, IGNORED, Once},
};
use crate::kubectl::{Condition, Kubectl};
use crate::{certificates::pki::Pki, kubeadm::defaults::PAPERS, load_balancer};
use imgctl_base::address::join_port;
use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::registry_access::random;
use imgctl_template::yaml;

const LONG: Duration = Duration::from_secs(30 * 60);
const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";

fn file(control_plane: bool) -> &'static str {
    if control_plane { "kubeadm-join-master.yaml" } else { "kubeadm-join-node.yaml" }
}

/// Returns the actions that join an additional control plane.
pub(super) fn control_plane(
    context: &ClusterContext,
    host: &Host,
    settings: &Settings,
    planned: &Config,
) -> Result<Vec<Action>> {
    let mut actions = init::before(settings, planned, false);
    actions.push(local_files::bring());
    if context.is_adopted() {
        let Some(endpoint) = planned.shared_endpoint() else {
            return Err(Error::usage(format!(
                "kubeadm-config of cluster {} has no controlPlaneEndpoint: kubeadm adds no control \
                 plane to such a cluster",
                context.name
            ))
            .hint(
                "set up an endpoint as kubeadm's documentation describes, and add it to the \
                 ClusterConfiguration of the Clusterfile",
            ));
        };
        // Its policy is a file of the other control planes, not one of the image.
        actions.retain(|action| action.name != "audit-policy");
        actions.push(resolves(endpoint));
        actions.push(join(context, settings, planned, true)?);
    } else {
        actions.push(api_elsewhere());
        actions.push(join(context, settings, planned, true)?);
        actions.push(init::api_name(host));
    }
    actions.push(init::kubeconfig());
    Ok(actions)
}

/// Resolves the API name to another control plane until the joining host's own API responds.
fn api_elsewhere() -> Action {
    Action::new(
        "api-name-elsewhere",
        format!("hosts file: <a control plane that answers> {API_NAME}"),
        |site| {
            if init::is_done(site, API_MANIFEST)? {
                return Ok(());
            }
            let kubectl = Kubectl::elsewhere(site)?;
            init::set_api_name(site, kubectl.address())
        },
    )
}

pub(super) fn worker(
    context: &ClusterContext,
    host: &Host,
    settings: &Settings,
    planned: &Config,
) -> Result<Vec<Action>> {
    let mut actions = match lvscare_image(context) {
        Some(_) => vec![lvscare::bridge(context)?],
        None if context.is_adopted() => {
            planned.shared_endpoint().map(resolves).into_iter().collect()
        }
        None => load_balancer::actions(context, host, PAPERS),
    };
    actions.push(images::try_out(settings).bringing(&context.registry_content()));
    actions.push(join(context, settings, planned, false)?);
    if let Some(image) = lvscare_image(context) {
        actions.push(lvscare::pod(context, host, image)?);
    }
    Ok(actions)
}

/// Checks that this host can resolve the API's endpoint, which imgctl does not manage. Without it,
/// the kubelet would join and never report.
pub(super) fn resolves(endpoint: &str) -> Action {
    let name = endpoint.rsplit_once(':').map_or(endpoint, |(name, _)| name);
    let name = name.trim_matches(['[', ']']);
    let line = Line::script(&[include_str!("scripts/resolve-endpoint.sh")]);
    let line = Line { quiet: true, ..line.with([("IMGCTL_NAME", name)]) };
    Action::command("endpoint", line).saying(format!("check that {name} resolves"))
}

fn join(
    context: &ClusterContext,
    settings: &Settings,
    planned: &Config,
    control_plane: bool,
) -> Result<Action> {
    let path = etc(context, file(control_plane));
    let command = format!("kubeadm join --config {path} --ignore-preflight-errors={IGNORED}");
    let text = planned.join_text(
        control_plane,
        "<a control plane>:6443",
        "<token>",
        "<sha256 of pki/ca.crt>",
    )?;
    let shown: String = text.lines().map(|line| format!("    {line}\n")).collect();
    let settings = settings.clone();
    let says = format!("write {path} (mode 0600):\n{shown}{command}");
    let action = Action::depending_on("kubeadm-join", says, &text, move |site| {
        let joining = Joining { site, settings: &settings, control_plane };
        joining.run(&command)
    });
    Ok(action.within(LONG))
}

/// Returns the configuration that kubeadm gives the kubelets of hosts that join.
fn kubelet_configuration(kubectl: &Kubectl<'_>) -> Result<Option<Value>> {
    let map = kubectl.find(&["configmap", "kubelet-config", "-n", "kube-system"])?;
    let text = map.as_ref().and_then(|map| map["data"]["kubelet"].as_str());
    text.map(yaml::parse).transpose()
}

struct Joining<'a> {
    site: &'a Site<'a>,
    settings: &'a Settings,
    control_plane: bool,
}

impl Joining<'_> {
    fn run(&self, command: &str) -> Result<()> {
        let site = self.site;
        let proof = if self.control_plane { API_MANIFEST } else { KUBELET_CONF };
        if init::is_done(site, proof)? {
            return Ok(());
        }
        let (state, config) = self.settings.config(site)?;
        let kubectl = Kubectl::elsewhere(site)?;
        let cgroup_v2 = site.agent.facts()?.cgroup_v2;
        if config.refuses_cgroups(cgroup_v2) {
            // What kubeadm will give this kubelet, whatever the Clusterfile says.
            let written = kubelet_configuration(&kubectl)?;
            config.check_cgroups(cgroup_v2, site.agent.host(), written.as_ref())?;
        }
        let token = Token::generate()?;
        token.announce(&kubectl)?;
        let pin = Pki::load(site.state())?.ca.pin();
        let endpoint = join_port(kubectl.address(), config.port());
        let text = config.join_text(self.control_plane, &endpoint, token.text().expose(), &pin)?;
        let path = etc(site.context, file(self.control_plane));
        place::write(site.agent, &path, 0o600, &text)?;
        let joined = Once {
            proof,
            line: Line::new(command),
            again: &|| self.make_good(&kubectl, &config, &state.cri_socket, command),
        }
        .run(site);
        // The token has no further use, whether or not the join succeeded. If it cannot be
        // withdrawn, it expires.
        let withdrawn = token.withdraw(&kubectl);
        joined.and(withdrawn)
    }

    /// Resets a partially joined host, because kubeadm cannot resume a join. Leaves a host alone if
    /// its Node turns out to work.
    fn make_good(
        &self,
        kubectl: &Kubectl<'_>,
        config: &Config,
        socket: &str,
        command: &str,
    ) -> Result<Option<Line>> {
        let site = self.site;
        let node = config.node_name(false, &init::hostname(site)?);
        let condition = kubectl.condition(&node)?;
        let has_member = !self.control_plane
            || !config.has_local_etcd()
            || etcd::has_member(site, kubectl, config.address())?.unwrap_or(true);
        if matches!(condition, Condition::Ready | Condition::WaitsForNetwork) && has_member {
            return Ok(None);
        }
        let undo = Line::repeatable(format!("kubeadm reset -f --cri-socket {socket}"));
        site.run_on(site.agent, &undo, "-undo")?;
        if self.control_plane && config.has_local_etcd() {
            etcd::remove_member(site, kubectl, config.address())?;
        }
        kubectl.delete_node(&node)?;
        if self.control_plane {
            place::audit_policy(site, config)?;
            place::control_plane(site, self.settings, config, false)?;
        }
        Ok(Some(Line::new(command)))
    }
}

const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const LIFETIME: Duration = Duration::from_secs(2 * 3600);

/// A token such as `abcdef.0123456789abcdef`.
pub(super) struct Token {
    id: String,
    secret: Secret,
}

impl Token {
    pub(super) fn generate() -> Result<Self> {
        Ok(Self { id: random(ALPHABET, 6)?, secret: Secret::new(random(ALPHABET, 16)?) })
    }

    /// Returns the complete token: for configuration files only.
    pub(super) fn text(&self) -> Secret {
        Secret::new(format!("{}.{}", self.id, self.secret.expose()))
    }

    /// Registers the token with the API, as `kubeadm token create` does. That command takes the
    /// token as an argument, which every user on the host can read.
    pub(super) fn announce(&self, kubectl: &Kubectl<'_>) -> Result<()> {
        let lifetime = SignedDuration::try_from(LIFETIME)
            .map_err(|error| Error::failed("invalid duration").caused_by(error))?;
        let end = Timestamp::now()
            .checked_add(lifetime)
            .and_then(|end| end.round(jiff::Unit::Second))
            .map_err(|error| Error::failed("the clock is out of range").caused_by(error))?;
        kubectl.apply(&json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": self.object(), "namespace": "kube-system"},
            "stringData": {
                "token-id": self.id,
                "token-secret": self.secret.expose(),
                "expiration": end.to_string(),
                "usage-bootstrap-authentication": "true",
                "usage-bootstrap-signing": "true",
                "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
                "description": "imgctl: for one host to join",
            },
        }))
    }

    /// Deletes the token. Otherwise it would expire by itself.
    pub(super) fn withdraw(&self, kubectl: &Kubectl<'_>) -> Result<()> {
        let object = self.object();
        kubectl
            .run(&["delete", "secret", &object, "-n", "kube-system", "--ignore-not-found"])
            .map(|_| ())
    }

    fn object(&self) -> String {
        format!("bootstrap-token-{}", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_look_as_kubeadm_wants_them() {
        let token = Token::generate().unwrap();
        let text = token.text();
        let (id, secret) = text.expose().split_once('.').unwrap();
        assert_eq!((id.len(), secret.len()), (6, 16));
        assert!(
            (id.to_owned() + secret).chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        );
        assert_ne!(Token::generate().unwrap().text().expose(), text.expose());
    }
}
