//! containerd's `hosts.toml` for the embedded registry: which registry hosts a host asks, and in which
//! order. Only text; must not know where the file lies.
//!
//! containerd reads the file for every pull, asks one host after the other, and continues a blob that
//! broke off at the next one. The login is a header of each host: containerd's own configuration has it
//! under the registry's name only, and is read only when containerd starts.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::registry::peer_access;
use imgctl_base::address::join_port;
use imgctl_base::secret::Secret;
use imgctl_model::context::{ClusterContext, Host, RegistryAccess};

/// User and password with which a host asks the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    pub(crate) user: String,
    pub(crate) password: Secret,
}

impl Login {
    /// Returns the login of `access`; `None` if the registry requires none.
    pub(crate) fn of(access: &RegistryAccess) -> Option<Self> {
        let own = || Self { user: access.username.clone(), password: access.password.clone() };
        access.needs_login().then(own)
    }

    /// Returns the value of the header `Authorization`.
    pub(crate) fn header(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.password.expose())))
    }
}

/// Returns the registry hosts in the order in which `host` asks them: itself if it is one. The others
/// begin at another one on each host, so that hosts without a registry share them.
pub(crate) fn order<'a>(context: &'a ClusterContext, host: &Host) -> Vec<&'a Host> {
    let mut serving = context.registry_hosts();
    if let Some(own) = serving.iter().position(|other| other.address == host.address) {
        serving.rotate_left(own);
    } else if !serving.is_empty() {
        let at = context.hosts.iter().position(|other| other.address == host.address);
        let from = at.unwrap_or(0) % serving.len();
        serving.rotate_left(from);
    }
    serving
}

/// First line of a file that this cluster's imgctl has written.
pub(crate) fn mark(cluster: &str) -> String {
    format!("# The registry hosts of cluster {cluster}. imgctl writes this file.")
}

/// Returns the addresses that the file names, in order: `10.0.0.1:5000`.
pub(crate) fn addresses(
    context: &ClusterContext,
    access: &RegistryAccess,
    host: &Host,
) -> Vec<String> {
    let hosts = order(context, host);
    hosts.into_iter().map(|other| join_port(other.ip(), access.port)).collect()
}

/// Returns the content of the file on `host`.
pub(crate) fn text(
    context: &ClusterContext,
    access: &RegistryAccess,
    host: &Host,
    login: Option<&Login>,
) -> String {
    let mut text = format!(
        "{}\n# What was here before is in hosts.toml{KEPT}.\nserver = {}\n",
        mark(&context.name),
        quoted(&format!("http://{}:{}", access.domain, access.port))
    );
    let mut add = |address: &str, capabilities: &str, header: Option<String>| {
        let place = quoted(&format!("http://{address}"));
        text.push_str(&format!("\n[host.{place}]\n  capabilities = [{capabilities}]\n"));
        if let Some(header) = header {
            text.push_str(&format!(
                "  [host.{place}.header]\n    Authorization = {}\n",
                quoted(&header)
            ));
        }
    };
    let registries = addresses(context, access, host);
    // A registry host has everything itself. Tags are for registry hosts to resolve.
    let before = usize::from(context.serves_registry(host));
    for (number, address) in registries.iter().enumerate() {
        if number == before && context.shares_images() {
            add_peers(&mut add, context, login);
        }
        add(address, "\"pull\", \"resolve\"", login.map(Login::header));
    }
    if before >= registries.len() && context.shares_images() {
        add_peers(&mut add, context, login);
    }
    text
}

/// Adds the service by which this host asks the other hosts.
fn add_peers(
    add: &mut dyn FnMut(&str, &str, Option<String>),
    context: &ClusterContext,
    login: Option<&Login>,
) {
    let token = peer_access::token(context, login.map(|login| &login.password));
    let header = token.map(|token| format!("Bearer {}", token.expose()));
    add(&format!("127.0.0.1:{}", peer_access::port(context)), "\"pull\"", header);
}

/// Suffix of the copy of a file that something else had written.
pub(crate) const KEPT: &str = ".before-imgctl";

/// Returns `text` as a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_model::testing::context;

    #[test]
    fn each_host_asks_itself_first_and_the_others_share_the_rest() {
        let context =
            context(&["master,registry", "node,registry", "node,registry", "node", "node"]);
        let of = |at: usize| -> Vec<String> {
            let access = context.registry.as_ref().unwrap();
            let all = addresses(&context, access, &context.hosts[at]);
            all.iter().map(|one| one["10.0.0.".len()..].replace(":5000", "")).collect()
        };
        assert_eq!(of(0), ["1", "2", "3"]);
        assert_eq!(of(1), ["2", "3", "1"]);
        assert_eq!(of(2), ["3", "1", "2"]);
        assert_eq!(of(3), ["1", "2", "3"]);
        assert_eq!(of(4), ["2", "3", "1"]);
    }

    #[test]
    fn other_hosts_are_asked_before_registry_hosts_and_never_for_tags() {
        let mut context = context(&["master,registry", "node,registry", "node"]);
        context.share_images = Some(true);
        let access = context.registry.clone().unwrap();
        let login = Login { user: "admin".into(), password: Secret::new("passw0rd") };
        for (host, expected) in [
            (0, ["10.0.0.1:5000", "127.0.0.1:5051", "10.0.0.2:5000"]),
            (2, ["127.0.0.1:5051", "10.0.0.1:5000", "10.0.0.2:5000"]),
        ] {
            let text = text(&context, &access, &context.hosts[host], Some(&login));
            let places =
                expected.map(|place| text.find(&format!("[host.\"http://{place}\"]")).unwrap());
            assert!(places.is_sorted(), "{text}");
            let read: toml::Table = toml::from_str(&text).unwrap();
            let peers = &read["host"]["http://127.0.0.1:5051"];
            assert_eq!(peers["capabilities"].as_array().unwrap().len(), 1);
            let header = peers["header"]["Authorization"].as_str().unwrap();
            assert!(header.starts_with("Bearer ") && header != login.header(), "{header}");
        }
        let only = imgctl_model::testing::context(&["master"]);
        let only = ClusterContext { share_images: Some(true), ..only };
        assert!(text(&only, &access, &only.hosts[0], None).contains("127.0.0.1:5051"));
    }

    #[test]
    fn the_file_is_toml_with_a_login_for_each_host() {
        let context = context(&["master", "node"]);
        let access = context.registry.as_ref().unwrap();
        let login = Login { user: "ad\"min".into(), password: Secret::new("p\\w") };
        let text = text(&context, access, &context.hosts[1], Some(&login));
        let read: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(read["server"].as_str(), Some("http://sealos.hub:5000"));
        let one = &read["host"]["http://10.0.0.1:5000"];
        assert_eq!(one["header"]["Authorization"].as_str(), Some(&*login.header()));
        assert_eq!(one["capabilities"].as_array().unwrap().len(), 2);
        assert!(text.starts_with(&mark("test")) && !text.contains("p\\w"), "{text}");
        let open = super::text(&context, access, &context.hosts[1], None);
        assert!(!open.contains("Authorization"), "{open}");
    }
}
