//! The precedence of variables (docs/clusterfile.md): defaults of imgctl < the image's `ENV` <
//! `spec.env` < `hosts[].env` < `--env`. Facts that only imgctl knows override all of them except
//! `--env`.

use std::collections::BTreeMap;

use crate::context::{ClusterContext, Host};
use crate::image::ClusterImage;
use crate::variables::Variables;
use imgctl_host::agent::protocol::Facts;

/// sealos release whose behaviour scripts and templates expect.
pub const SEALOS_VERSION: &str = "5.1.0";

/// Facts that name all members of the cluster.
const LISTS: [&str; 2] = ["MASTER_IPS", "NODE_IPS"];

/// Source of a variable; later variants override earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Default of imgctl, for variables that are not set.
    Default,
    /// The image's `ENV`.
    Image,
    /// `spec.env`.
    Cluster,
    /// `hosts[].env`.
    Host,
    /// Known only to imgctl: addresses, roles, versions, the registry's login.
    Fact,
    /// `--env` of this or an earlier command.
    Flag,
}

impl Origin {
    /// Returns the name in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Image => "image",
            Self::Cluster => "spec.env",
            Self::Host => "hosts[].env",
            Self::Fact => "fact",
            Self::Flag => "--env",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub value: String,
    pub origin: Origin,
}

impl ClusterContext {
    /// Returns the variables that `image`'s scripts and commands see on `host`. Without an image,
    /// returns the variables that override the `ENV` of every image, for [`imgctl_host::render::Inputs`].
    pub fn environment_on(&self, host: &Host, image: Option<&ClusterImage>) -> Variables {
        let mut own = self.variables(host, image, None, false);
        // A fact overrides everything but `--env`.
        let is_flag = |name: &str| self.flag_environment.contains_key(name);
        let lists = || self.lists().into_iter().map(|(name, value)| (name.to_owned(), value));
        own.retain(|name, _| !LISTS.contains(&name.as_str()) || is_flag(name));
        let own = own.into_iter().map(|(name, variable)| (name, variable.value)).collect();
        Variables::new(own, self.shared.get(|| lists().collect()))
    }

    /// Returns the facts that name all members.
    fn lists(&self) -> [(&'static str, String); 2] {
        [(LISTS[0], joined(self.control_planes())), (LISTS[1], joined(self.workers()))]
    }

    /// Returns the variables with the origin of each. `known` are the facts that the host has
    /// reported, `HOST_NAME` and `ARCH` among them.
    pub fn variables_on(
        &self,
        host: &Host,
        image: Option<&ClusterImage>,
        known: Option<&Facts>,
    ) -> BTreeMap<String, Variable> {
        self.variables(host, image, known, true)
    }

    /// Returns the variables, with or without [`LISTS`].
    fn variables(
        &self,
        host: &Host,
        image: Option<&ClusterImage>,
        known: Option<&Facts>,
        lists: bool,
    ) -> BTreeMap<String, Variable> {
        let mut variables = BTreeMap::new();
        let mut set = |origin: Origin, name: &str, value: &str| {
            let value = value.to_owned();
            variables.insert(name.to_owned(), Variable { value, origin });
        };
        for (name, value) in self.defaults_on(host, known) {
            // A default would override an image's own value when the result is merged over all
            // images.
            let is_an_images = |image: &ClusterImage| image.environment.contains_key(name);
            if image.is_some() || !self.images.iter().any(is_an_images) {
                set(Origin::Default, name, &value);
            }
        }
        let none = BTreeMap::new();
        for (origin, layer) in [
            (Origin::Image, image.map_or(&none, |i| &i.environment)),
            (Origin::Cluster, &self.environment),
            (Origin::Host, &host.environment),
        ] {
            for (name, value) in layer {
                set(origin, name, value);
            }
        }
        for (name, value) in self.certain_on(host, known) {
            set(Origin::Fact, name, &value);
        }
        // Not for templates: the same files would otherwise give another tree for each digest.
        if let Some(image) = image {
            set(Origin::Fact, "IMGCTL_IMAGE", &image.name);
            set(Origin::Fact, "IMGCTL_IMAGE_DIGEST", &image.digest.to_string());
        }
        if lists {
            for (name, value) in self.lists() {
                set(Origin::Fact, name, &value);
            }
        }
        for (name, value) in &self.flag_environment {
            set(Origin::Flag, name, value);
        }
        variables
    }

    /// Returns variables whose names images may use for their own purposes: any other value
    /// overrides them.
    fn defaults_on(&self, host: &Host, known: Option<&Facts>) -> Vec<(&'static str, String)> {
        let mut facts = vec![("CLUSTER_NAME", self.name.clone())];
        if let Some(vip) = &self.vip {
            facts.push(("VIP", vip.clone()));
        }
        if let Some(architecture) = architecture(host, known) {
            facts.push(("ARCH", architecture.to_owned()));
        }
        if let Some(registry) = &self.registry {
            let ips: Vec<&str> = self.registry_hosts().iter().map(|h| h.ip()).collect();
            facts.extend([
                ("REGISTRY_DOMAIN", registry.domain.clone()),
                ("REGISTRY_PORT", registry.port.to_string()),
                ("REGISTRY_USERNAME", registry.username.clone()),
                ("REGISTRY_PASSWORD", registry.password.expose().to_owned()),
                ("REGISTRY_DATA", registry.data.clone()),
                ("REGISTRY_IPS", ips.join(",")),
            ]);
        }
        facts
    }

    /// Returns the facts that override images and the Clusterfile.
    fn certain_on(&self, host: &Host, known: Option<&Facts>) -> Vec<(&'static str, String)> {
        let roles = host.roles.join(",");
        let mut facts = vec![
            ("HOST_IP", host.ip().to_owned()),
            ("HOST_ROLES", roles.clone()),
            ("IMGCTL_VERSION", env!("CARGO_PKG_VERSION").to_owned()),
            ("SEALOS_SYS_SEALOS_VERSION", SEALOS_VERSION.to_owned()),
            ("SEALOS_SYS_RUN_MODE", roles),
        ];
        if let Some(known) = known.filter(|known| !known.hostname.is_empty()) {
            facts.push(("HOST_NAME", known.hostname.clone()));
        }
        if let Some(version) = self.rootfs().and_then(|rootfs| rootfs.label(&["version"])) {
            facts.push(("SEALOS_SYS_KUBE_VERSION", version.to_owned()));
        }
        if let Some(registry) = &self.registry {
            // Names that rootfs images of sealos use: the defaults in these images are wrong if the
            // password was generated.
            facts.extend([
                ("registryDomain", registry.domain.clone()),
                ("registryPort", registry.port.to_string()),
                ("registryUsername", registry.username.clone()),
                ("registryPassword", registry.password.expose().to_owned()),
                ("registryData", registry.data.clone()),
            ]);
        }
        facts
    }
}

/// Returns the architecture that the host reports, otherwise the one in its roles.
pub(super) fn architecture<'a>(host: &'a Host, known: Option<&'a Facts>) -> Option<&'a str> {
    known
        .map(|known| known.architecture.as_str())
        .filter(|architecture| !architecture.is_empty())
        .or_else(|| host.architecture())
}

fn joined<'a>(hosts: impl Iterator<Item = &'a Host>) -> String {
    let ips: Vec<&str> = hosts.map(Host::ip).collect();
    ips.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImageKind;
    use crate::testing::{context, image};

    fn value<'a>(variables: &'a BTreeMap<String, Variable>, name: &str) -> (&'a str, Origin) {
        let variable = &variables[name];
        (&variable.value, variable.origin)
    }

    #[test]
    fn each_beats_the_one_below() {
        let mut context = context(&["master", "node"]);
        let mut app = image("app:v1", ImageKind::Application);
        let layers = ["A", "B", "C", "D"];
        for (at, name) in layers.iter().enumerate() {
            let name = (*name).to_owned();
            app.environment.insert(name.clone(), "image".into());
            if at > 0 {
                context.environment.insert(name.clone(), "cluster".into());
            }
            if at > 1 {
                let of_host = &mut context.hosts[1].environment;
                of_host.insert(name.clone(), "host".into());
            }
            if at > 2 {
                context.flag_environment.insert(name, "flag".into());
            }
        }
        let host = context.hosts[1].clone();
        let variables = context.variables_on(&host, Some(&app), None);
        assert_eq!(value(&variables, "A"), ("image", Origin::Image));
        assert_eq!(value(&variables, "B"), ("cluster", Origin::Cluster));
        assert_eq!(value(&variables, "C"), ("host", Origin::Host));
        assert_eq!(value(&variables, "D"), ("flag", Origin::Flag));
        // Another host does not have the variables of this host.
        let other = context.environment_on(&context.hosts[0], Some(&app)).to_map();
        assert_eq!(other["C"], "cluster");
    }

    #[test]
    fn facts_stand_above_images_and_below_flags() {
        let mut context = context(&["master", "master", "node"]);
        let mut rootfs = image("root:v1", ImageKind::Rootfs);
        rootfs.labels.insert("version".into(), "v1.30.1".into());
        for (name, value) in [
            ("SEALOS_SYS_RUN_MODE", "master"),
            ("HOST_IP", "9.9.9.9"),
            ("registryPassword", "passw0rd"),
            ("VIP", "of the image"),
        ] {
            rootfs.environment.insert(name.into(), value.into());
        }
        context.images = vec![rootfs.clone()];
        context.vip = Some("10.103.97.2".into());
        let host = context.hosts[2].clone();
        let variables = context.variables_on(&host, Some(&rootfs), None);
        let node = host.roles.join(",");
        assert_eq!(value(&variables, "SEALOS_SYS_RUN_MODE"), (&*node, Origin::Fact));
        assert_eq!(value(&variables, "HOST_IP"), ("10.0.0.3", Origin::Fact));
        assert_eq!(value(&variables, "MASTER_IPS").0, "10.0.0.1,10.0.0.2");
        assert_eq!(value(&variables, "NODE_IPS").0, "10.0.0.3");
        assert_eq!(value(&variables, "SEALOS_SYS_KUBE_VERSION").0, "v1.30.1");
        assert_eq!(value(&variables, "IMGCTL_IMAGE"), ("root:v1", Origin::Fact));
        assert_eq!(value(&variables, "IMGCTL_IMAGE_DIGEST").0, rootfs.digest.to_string());
        // Trees of the same files stay the same.
        assert!(!context.environment_on(&host, None).to_map().contains_key("IMGCTL_IMAGE"));
        assert_eq!(value(&variables, "registryPassword").0, "drawn-pass");
        assert_eq!(value(&variables, "REGISTRY_IPS").0, "10.0.0.1");
        // A variable that an image sets itself keeps the image's value.
        assert_eq!(value(&variables, "VIP"), ("of the image", Origin::Image));
        assert!(!context.environment_on(&host, None).to_map().contains_key("VIP"));
        assert_eq!(context.environment_on(&host, None).to_map()["CLUSTER_NAME"], "test");

        context.flag_environment.insert("HOST_IP".into(), "1.1.1.1".into());
        assert_eq!(context.environment_on(&host, Some(&rootfs)).to_map()["HOST_IP"], "1.1.1.1");
    }

    #[test]
    fn a_host_that_is_known_says_its_name_and_architecture() {
        let context = context(&["master,arm64"]);
        let host = &context.hosts[0];
        let unknown = context.environment_on(host, None).to_map();
        assert_eq!(unknown["ARCH"], "arm64");
        assert!(!unknown.contains_key("HOST_NAME"));
        let facts =
            Facts { hostname: "one".into(), architecture: "amd64".into(), ..Facts::default() };
        let known = context.variables_on(host, None, Some(&facts));
        assert_eq!((value(&known, "HOST_NAME").0, value(&known, "ARCH").0), ("one", "amd64"));
    }
}
