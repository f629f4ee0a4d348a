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
    site.run_on(site.agent, &Line::repeatable(line), "").map(|_| ())
}

fn config_file(site: &Site<'_>, config: &Config) -> Result<String> {
    let file = etc(site.context, FILE);
    write(site.agent, &file, 0o600, &config.cluster_text()?)?;
    Ok(file)
}

/// Returns the shell line that pulls the images. If the kubelet requests images through a helper
/// that rewrites names (image-cri-shim), the images have the registry's names; otherwise they keep
/// their own names and the container runtime tries the registry first.
fn line(
    context: &ClusterContext,
    host: &Host,
    state: &HostState,
    file: &str,
    wanted: Wanted,
) -> String {
    let shim = variable(context, host, "SEALOS_SYS_IMAGE_ENDPOINT")
        .is_some_and(|endpoint| !same_socket(&unix(endpoint), &state.cri_socket));
    let name = match &context.registry {
        Some(registry) if shim => {
            format!("{}:{}/${{image#*/}}", registry.domain, registry.port)
        }
        _ => "$image".to_owned(),
    };
    let filter = match wanted {
        Wanted::All => "",
        Wanted::Pause => " | grep /pause:",
    };
    // With a registry of the cluster, always pull: a local image can differ from the embedded image
    // of the same name. Without one, a local image is enough and no other registry is queried.
    let there = match &context.registry {
        None => "if crictl inspecti -q \"$image\" >/dev/null 2>&1; then continue; fi\n",
        Some(_) => "",
    };
    let without = match wanted {
        Wanted::All => {
            format!("kubeadm config images pull --config {file} --cri-socket {}", state.cri_socket)
        }
        Wanted::Pause => "echo 'there is no crictl: nothing is tried out'".to_owned(),
    };
    format!(
        "images=$(kubeadm config images list --config {file}{filter})\n\
         if command -v crictl >/dev/null 2>&1; then\n\
         for image in $images; do\n\
         {there}for try in 1 2 3; do\n\
         if crictl pull \"{name}\"; then continue 2; fi\n\
         sleep \"$try\"\n\
         done\n\
         echo \"cannot pull {name}: is it in the cluster's registry, and does the registry answer?\" >&2\n\
         exit 1\n\
         done\n\
         else\n\
         {without}\n\
         fi"
    )
}

/// Compares two sockets; `/var/run` equals `/run`.
pub(super) fn same_socket(a: &str, b: &str) -> bool {
    let plain = |path: &str| path.replace("///var/run/", "///run/");
    plain(a) == plain(b)
}
