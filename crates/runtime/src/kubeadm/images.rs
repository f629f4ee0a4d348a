//! The container images of a control plane, pulled before kubeadm needs them.

use std::time::Duration;

use crate::action::{Action, Line, Site};
use crate::kubeadm::host_state::{HostState, unix, variable};
use crate::kubeadm::settings::{Settings, etc};
use crate::kubeadm::{config::Config, place::write};
use imgctl_base::error::Result;
use imgctl_model::context::{ClusterContext, Host};

const FILE: &str = "kubeadm-cluster.yaml";

const LONG: Duration = Duration::from_secs(30 * 60);

/// Creates the action that pulls all images.
pub(super) fn action(context: &ClusterContext, settings: &Settings) -> Action {
    let says =
        format!("crictl pull each of `kubeadm config images list --config {}`", etc(context, FILE));
    let settings = settings.clone();
    Action::new("images", says, move |site| pull_those(site, &settings, Wanted::All))
        .bringing(&context.registry_content())
        .within(LONG)
}

/// Creates the action that tests a pull before a worker joins: a worker that cannot pull would join
/// and be counted, but run nothing. The test shows that the registry responds and accepts the
/// worker's login. It pulls an image that the kubelet needs anyway.
pub(super) fn try_out(settings: &Settings) -> Action {
    let settings = settings.clone();
    Action::new(
        "image-pull",
        "crictl pull the pause image, to check that the Node can",
        move |site| pull_those(site, &settings, Wanted::Pause),
    )
    .within(LONG)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    All,
    Pause,
}

fn pull_those(site: &Site<'_>, settings: &Settings, wanted: Wanted) -> Result<()> {
    let (state, config) = settings.config(site)?;
    let file = config_file(site, &config)?;
    let line = line(site.context, site.host, &state, &file, wanted);
    site.run_on(site.agent, &line, "").map(|_| ())
}

fn config_file(site: &Site<'_>, config: &Config) -> Result<String> {
    let file = etc(site.context, FILE);
    write(site.agent, &file, 0o600, &config.cluster_text()?)?;
    Ok(file)
}

/// Returns the line that pulls the images.
fn line(
    context: &ClusterContext,
    host: &Host,
    state: &HostState,
    file: &str,
    wanted: Wanted,
) -> Line {
    let shim = variable(context, host, "SEALOS_SYS_IMAGE_ENDPOINT")
        .is_some_and(|endpoint| !same_socket(&unix(endpoint), &state.cri_socket));
    let registry = context.registry.as_ref();
    let named = registry.filter(|_| shim);
    let named = named.map(|registry| format!("{}:{}", registry.domain, registry.port));
    let yes = |is: bool| if is { "yes" } else { "no" };
    Line::script(&[include_str!("scripts/pull-images.sh")]).with([
        ("IMGCTL_CONFIG", file),
        ("IMGCTL_SOCKET", &state.cri_socket),
        ("IMGCTL_REGISTRY", named.as_deref().unwrap_or_default()),
        // Without a registry of the cluster, a local image is enough and no other registry is queried.
        ("IMGCTL_AGAIN", yes(registry.is_some())),
        ("IMGCTL_TRIAL", yes(wanted == Wanted::Pause)),
    ])
}

/// Compares two sockets; `/var/run` equals `/run`.
pub(super) fn same_socket(a: &str, b: &str) -> bool {
    let plain = |path: &str| path.replace("///var/run/", "///run/");
    plain(a) == plain(b)
}
