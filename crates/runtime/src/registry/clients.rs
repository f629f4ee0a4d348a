//! What a host's container runtime knows of the embedded registry: actions that write it, remove it and
//! compare it. Names in the hosts file belong to pipeline/.

use crate::Action;
use crate::action::Site;
use crate::registry::{config_path, peer_access, peers};
use crate::registry::{
    containerd,
    containerd::{CONFIG, Looks},
};
use crate::registry::{
    hosts_toml,
    hosts_toml::{KEPT, Login},
};
use imgctl_base::error::Result;
use imgctl_base::image::Digest;
use imgctl_host::agent::Agent;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_model::context::{ClusterContext, Host, RegistryAccess};

/// Maximum size of a `hosts.toml`, in bytes.
const LONGEST: u64 = 1 << 20;

/// A `hosts.toml` of the registry on a host.
struct Found {
    path: String,
    /// Content; `None` if the file does not exist.
    text: Option<String>,
}

/// What there is on a host.
enum Place {
    /// No containerd with a configuration of its own.
    Absent,
    /// containerd reads no `hosts.toml`.
    Nowhere,
    At(Found),
}

fn place(agent: &dyn Agent, access: &RegistryAccess) -> Result<Place> {
    let Some(config) = agent.read_file(CONFIG, containerd::LONGEST)? else {
        return Ok(Place::Absent);
    };
    let directories = match containerd::looks(&String::from_utf8_lossy(&config))? {
        Looks::In(directories) => directories,
        Looks::Nowhere => return Ok(Place::Nowhere),
    };
    let names = containerd::names(&access.domain, access.port);
    let paths: Vec<String> = directories
        .iter()
        .flat_map(|directory| {
            names.iter().map(move |name| format!("{directory}/{name}/hosts.toml"))
        })
        .collect();
    for path in &paths {
        if let Some(bytes) = agent.read_file(path, LONGEST)? {
            let text = Some(String::from_utf8_lossy(&bytes).into_owned());
            return Ok(Place::At(Found { path: path.clone(), text }));
        }
    }
    // The form that images' scripts use.
    let path = paths.into_iter().nth(1).unwrap_or_default();
    Ok(Place::At(Found { path, text: None }))
}

impl Found {
    /// Returns whether this cluster's imgctl wrote the file.
    fn is_ours(&self, cluster: &str) -> bool {
        self.text.as_ref().is_some_and(|text| text.starts_with(&hosts_toml::mark(cluster)))
    }
}

/// Returns whether containerd on a host reads the file that this module writes.
pub(super) fn reads_hosts(agent: &dyn Agent, access: &RegistryAccess) -> Result<bool> {
    Ok(match place(agent, access)? {
        Place::At(found) => !found.text.as_deref().is_some_and(containerd::uses_tls),
        Place::Absent | Place::Nowhere => false,
    })
}

/// Returns containerd's directory on a host whose containerd reads the file that this module writes.
pub(super) fn content_root(agent: &dyn Agent, access: &RegistryAccess) -> Result<Option<String>> {
    if !reads_hosts(agent, access)? {
        return Ok(None);
    }
    let config = agent.read_file(CONFIG, containerd::LONGEST)?.unwrap_or_default();
    Ok(Some(containerd::root(&String::from_utf8_lossy(&config))))
}

/// Returns the actions that tell containerd on `host` all registry hosts, and the other hosts if they share
/// images. Safe to repeat.
pub fn actions(context: &ClusterContext, host: &Host) -> Vec<Action> {
    let Some(access) = &context.registry else {
        return Vec::new();
    };
    let login = Login::of(access);
    let mut actions = Vec::new();
    if context.shares_images() {
        actions.push(peers::start(
            "registry-peers",
            context,
            access,
            host,
            login.as_ref(),
            content_root,
        ));
    }
    actions.push(action("registry-clients", context, access, host, login));
    actions
}

/// Returns the same for a host on which no Pod runs yet: there containerd gets `config_path`, too.
pub fn joining(context: &ClusterContext, host: &Host) -> Vec<Action> {
    config_path::action(context).into_iter().chain(actions(context, host)).collect()
}

/// Returns the actions on a host after the sharing of images was turned on or off.
pub fn sharing(context: &ClusterContext, host: &Host) -> Vec<Action> {
    if context.shares_images() {
        return joining(context, host);
    }
    // containerd has stopped asking the service before the service is removed.
    let mut actions = actions(context, host);
    actions.push(peers::stop(context));
    actions
}

/// The same with another login than the cluster's.
pub(crate) fn action(
    name: &str,
    context: &ClusterContext,
    access: &RegistryAccess,
    host: &Host,
    login: Option<Login>,
) -> Action {
    let text = hosts_toml::text(context, access, host, login.as_ref());
    let mut says = format!(
        "containerd, hosts.toml of {}:{}: {}",
        access.domain,
        access.port,
        hosts_toml::addresses(context, access, host).join(", ")
    );
    if context.shares_images() {
        says.push_str(&format!(", and other hosts by way of port {}", peer_access::port(context)));
    }
    // The password is no input: a digest of it would be in the journal.
    let user = login.map(|login| login.user).unwrap_or_default();
    let access = access.clone();
    Action::depending_on(name, says, &user, move |site| write(site, &access, &text))
}

fn write(site: &Site<'_>, access: &RegistryAccess, text: &str) -> Result<()> {
    let cluster = &site.context.name;
    let found = match place(site.agent, access)? {
        Place::Absent => return Ok(()),
        Place::Nowhere => {
            site.say(&format!(
                "{CONFIG} sets no config_path: containerd knows the registry hosts by the hosts file only"
            ));
            return Ok(());
        }
        Place::At(found) => found,
    };
    if let Some(old) = found.text.as_ref().filter(|_| !found.is_ours(cluster)) {
        if containerd::uses_tls(old) {
            site.say(&format!(
                "{} uses TLS and stays as it is: containerd knows the registry hosts by the hosts file only",
                found.path
            ));
            return Ok(());
        }
        site.agent.write_file(&FileToWrite {
            path: format!("{}{KEPT}", found.path),
            mode: 0o600,
            content: old.clone().into_bytes(),
        })?;
    }
    let content = text.to_owned().into_bytes();
    site.agent.write_file(&FileToWrite { path: found.path, mode: 0o600, content }).map(drop)
}

/// Returns the action that removes what [`actions`] wrote, and puts back what was there before.
pub fn clean(context: &ClusterContext) -> Option<Action> {
    let access = context.registry.clone()?;
    let says = format!("containerd: remove hosts.toml of {}:{}", access.domain, access.port);
    Some(Action::new("registry-clients-clean", says, move |site| {
        // A configuration that cannot be read is no reason to keep the host.
        let Ok(Place::At(found)) = place(site.agent, &access) else {
            return Ok(());
        };
        if !found.is_ours(&site.context.name) {
            return Ok(());
        }
        let kept = format!("{}{KEPT}", found.path);
        match site.agent.read_file(&kept, LONGEST)? {
            Some(content) => {
                let file = FileToWrite { path: found.path.clone(), mode: 0o644, content };
                site.agent.write_file(&file)?;
                site.remove(&kept)
            }
            None => site.remove(&found.path),
        }
    }))
}

/// Returns what is wrong with the file on `host`, if anything.
pub fn complaint(
    context: &ClusterContext,
    host: &Host,
    agent: &dyn Agent,
) -> Result<Option<String>> {
    let Some(access) = &context.registry else {
        return Ok(None);
    };
    let Place::At(found) = place(agent, access)? else {
        return Ok(None);
    };
    // A file of the image names the registry, which is enough for one registry host.
    let is_enough = !found.is_ours(&context.name)
        && context.registry_hosts().len() < 2
        && !context.shares_images();
    if is_enough || found.text.as_deref().is_some_and(containerd::uses_tls) {
        return Ok(None);
    }
    let wanted = hosts_toml::text(context, access, host, Login::of(access).as_ref());
    let digest = |text: &str| Digest::of(text.as_bytes());
    if found.text.as_deref().map(digest) == Some(digest(&wanted)) {
        return Ok(None);
    }
    let addresses = hosts_toml::addresses(context, access, host);
    let known = found.text.unwrap_or_default();
    let missing: Vec<&str> = addresses
        .iter()
        .map(String::as_str)
        .filter(|address| !known.contains(&format!("http://{address}\"")))
        .collect();
    Ok(Some(if missing.is_empty() {
        format!("{} names other registry hosts or another login than the cluster has", found.path)
    } else {
        format!(
            "containerd does not know the registry on {}: see {}",
            missing.join(", "),
            found.path
        )
    }))
}
