//! Pulls images of the new version to the host before anything changes.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::action::{Line, Site};
use crate::kubeadm::host_state::{HostState, unix, variable};
use crate::kubeadm::upgrade::{apply::patches, trial};
use crate::kubeadm::upgrade::{target, target::Target};
use crate::kubeadm::{documents::set, images::same_socket, place, settings::etc};
use crate::{Action, kubectl::Kubectl, upgrade::Move};
use imgctl_base::address::join_port;
use imgctl_base::error::{Error, Result};
use imgctl_template::yaml;

const LONG: Duration = Duration::from_secs(30 * 60);
/// Label with the sandbox image, if it differs from the one that kubeadm uses.
const SANDBOX: &str = "imgctl.io/sandbox-image";

pub(super) fn actions(step: &Move<'_>, target: &Target) -> Result<Vec<Action>> {
    if !step.to.has_rootfs_image() {
        // The way back to a cluster without an image: what ran before is on the host.
        return Ok(Vec::new());
    }
    let sandbox = step.to.rootfs().and_then(|image| image.label(&[SANDBOX]));
    let sandbox = sandbox.map(str::to_owned);
    let runtime = target::wanted_runtime(step).map(str::to_owned);
    // Rollback takes the manifests from the backup.
    let patches = (!step.back).then(|| patches(step));
    let is_control_plane = target.is_control_plane();
    let says = format!(
        "test the new kubelet with {}; crictl pull the missing images of \
         `{}/bin/kubeadm config images list` for {}{}{}",
        if step.back {
            "the current settings"
        } else {
            "its flags and the configuration that kubeadm will write"
        },
        target.tree,
        target.version.text,
        sandbox.as_ref().map(|image| format!(", and {image}")).unwrap_or_default(),
        if is_control_plane && !step.back {
            "; test the new control plane with the flags that kubeadm gives it"
        } else {
            ""
        }
    );
    let target = target.clone();
    let action = Action::new("pull", says, move |site| {
        check(site, &target, runtime.as_deref())?;
        trial::check_kubelet(site, &target, patches.as_deref())?;
        let (configuration, socket) = pull(site, &target, sandbox.as_deref())?;
        match &patches {
            Some(patches) if is_control_plane => {
                trial::check(site, &target, &configuration, &socket, patches)
            }
            _ => Ok(()),
        }
    });
    Ok(vec![action.within(LONG)])
}

/// Checks that the tree contains the replacements for the running programs.
fn check(site: &Site<'_>, target: &Target, runtime: Option<&str>) -> Result<()> {
    let mut files = "bin/kubeadm bin/kubelet bin/kubectl".to_owned();
    if runtime.is_some() {
        files.push_str(" cri/containerd");
    }
    let line = target.script(&[include_str!("scripts/check-tree.sh")]);
    let line = Line { quiet: true, ..line.with([("IMGCTL_FILES", &files)]) };
    site.run_on(site.agent, &line, "-check").map(|_| ())
}

/// Returns the cluster's configuration with the new version. A custom image repository stays in
/// effect.
fn configuration(site: &Site<'_>, target: &Target) -> Result<String> {
    let kubectl = Kubectl::anywhere(site)?;
    let map = kubectl.get(&["configmap", "kubeadm-config", "-n", "kube-system"])?;
    let text = map["data"]["ClusterConfiguration"].as_str().ok_or_else(|| {
        Error::not_found("the ConfigMap kubeadm-config has no ClusterConfiguration")
    })?;
    let mut document = yaml::parse(text)?;
    set(&mut document, &["kubernetesVersion"], target.version.text.as_str().into())?;
    let mut text = yaml::write(&document)?;
    text.push('\n');
    Ok(text)
}

/// Pulls the images; returns the cluster's configuration with the new version, and the container
/// runtime's socket.
fn pull(site: &Site<'_>, target: &Target, sandbox: Option<&str>) -> Result<(String, String)> {
    let file = etc(site.context, "kubeadm-upgrade-images.yaml");
    let configuration = configuration(site, target)?;
    place::write(site.agent, &file, 0o600, &configuration)?;
    let state = HostState::observe(site)?;
    let shim = variable(site.context, site.host, "SEALOS_SYS_IMAGE_ENDPOINT")
        .is_some_and(|endpoint| !same_socket(&unix(endpoint), &state.cri_socket));
    let registry = match &site.context.registry {
        Some(registry) if shim => format!("{}:{}", registry.domain, registry.port),
        _ => String::new(),
    };
    let line = target.script(&[include_str!("scripts/pull-images.sh")]).with([
        ("IMGCTL_CONFIG", &file),
        ("IMGCTL_SOCKET", &state.cri_socket),
        ("IMGCTL_CONTROL_PLANE", &target.is_control_plane().to_string()),
        ("IMGCTL_REGISTRY", &registry),
        ("IMGCTL_SANDBOX", sandbox.unwrap_or_default()),
        ("IMGCTL_HOSTS", ""),
    ]);
    match hosts_toml(site) {
        Some(content) => {
            let directory = etc(site.context, "pull");
            let path = format!("{directory}/_default/hosts.toml");
            place::write(site.agent, &path, 0o600, &content)?;
            let pulled = site.run_on(site.agent, &line.with([("IMGCTL_HOSTS", &directory)]), "");
            site.remove(&directory)?;
            pulled?;
        }
        None => drop(site.run_on(site.agent, &line, "")?),
    }
    Ok((configuration, state.cri_socket))
}

/// Returns the way to the cluster's registry for hosts whose container runtime was set up by
/// another program and does not know that registry. It contains the login.
fn hosts_toml(site: &Site<'_>) -> Option<String> {
    let context = site.context;
    let registry = context.registry.as_ref().filter(|_| context.is_adopted())?;
    let hosts = context.registry_hosts();
    let own = hosts.iter().find(|other| other.address == site.host.address);
    let server = own.or(hosts.first())?.ip();
    let url = format!("http://{}", join_port(server, registry.port));
    let login = format!("{}:{}", registry.username, registry.password.expose());
    let header = if registry.username.is_empty() {
        String::new()
    } else {
        format!(
            "  [host.\"{url}\".header]\n    authorization = \"Basic {}\"\n",
            STANDARD.encode(login)
        )
    };
    Some(format!(
        "server = \"{url}\"\n[host.\"{url}\"]\n  capabilities = [\"pull\", \"resolve\"]\n{header}"
    ))
}
