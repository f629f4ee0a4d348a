//! Settings that Config documents of a Clusterfile make in files of the image, which its scripts put in
//! place when a host joins: the configuration of containerd.
//!
//! Scripts may change a file on its way, so the file on a host is a variant of the image's.

use imgctl_base::error::{Error, Result};
use imgctl_host::render::ConfigEdit;

use crate::setting::{Component, Setting};

/// The image's configuration of containerd, and the file on hosts.
pub(crate) const IN_IMAGE: &str = "etc/config.toml";
pub(crate) const ON_HOST: &str = "/etc/containerd/config.toml";
/// Longest text of a value in a plan, in characters.
const SHOWN: usize = 60;

/// Returns the settings of hosts that differ between two lists of Config documents. Other files are
/// rendered again and put in place by nobody.
///
/// # Errors
/// For a change of `etc/kubeadm.yml`, whose settings belong in kubeadm's own documents.
pub fn of_configs(
    old: &[ConfigEdit],
    new: &[ConfigEdit],
    hosts: &[String],
) -> Result<Vec<Setting>> {
    let mut all = Vec::new();
    let mut names: Vec<&str> = old.iter().chain(new).map(|config| config.name.as_str()).collect();
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(*name));
    for name in names {
        let find =
            |configs: &'_ [ConfigEdit]| configs.iter().find(|config| config.name == name).cloned();
        let (before, after) = (find(old), find(new));
        if before == after {
            continue;
        }
        let path = after.as_ref().or(before.as_ref()).map(|config| config.path.clone());
        let path = path.unwrap_or_default();
        let path = path.trim_end_matches(".tmpl").trim_end_matches(".tera");
        if path == "etc/kubeadm.yml" {
            return Err(Error::usage(format!(
                "Config {name} changes {path}, which hosts read when they join"
            ))
            .hint("put the settings in documents of kubeadm in the Clusterfile: ClusterConfiguration, KubeletConfiguration, …"));
        }
        if path != IN_IMAGE {
            continue;
        }
        let shown =
            |config: &Option<ConfigEdit>| config.as_ref().map(|config| short(&config.data).into());
        all.push(Setting {
            document: path.to_owned(),
            name: name.to_owned(),
            old: shown(&before),
            new: shown(&after),
            component: Component::Containerd,
            hosts: hosts.to_vec(),
        });
    }
    Ok(all)
}

fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut short: String = line.chars().take(SHOWN).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    short
}

/// Returns the host's file for the image's `new` file: lines that the image's scripts replaced on this
/// host, compared with `old`, stay replaced.
///
/// # Errors
/// If the host's file has other lines than `old` has: somebody changed it by hand.
pub(crate) fn merged(old: &str, live: &str, new: &str) -> Result<String> {
    let (before, own): (Vec<&str>, Vec<&str>) = (old.lines().collect(), live.lines().collect());
    if before.len() != own.len() {
        return Err(Error::check_failed(format!(
            "{ON_HOST} was changed on this host: it has {} lines, and {IN_IMAGE} of the image {}",
            own.len(),
            before.len()
        ))
        .hint("put what was changed by hand into a Config document for etc/config.toml, and the image's file back in place on that host"));
    }
    let mut text = String::new();
    for line in new.lines() {
        let replaced =
            before.iter().zip(&own).find(|(before, own)| **before == line && before != own);
        text.push_str(replaced.map_or(line, |(_, own)| own));
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_host::render::Strategy;

    fn config(name: &str, path: &str, data: &str) -> ConfigEdit {
        ConfigEdit {
            name: name.to_owned(),
            path: path.to_owned(),
            image: None,
            strategy: Strategy::Append,
            data: data.to_owned(),
        }
    }

    #[test]
    fn only_the_configuration_of_containerd_is_a_setting() {
        let hosts = ["a".to_owned()];
        let old =
            [config("c", "etc/config.toml.tmpl", "x = 1"), config("m", "manifests/a.yaml", "1")];
        let new =
            [config("c", "etc/config.toml.tmpl", "x = 2\n"), config("m", "manifests/a.yaml", "2")];
        let found = of_configs(&old, &new, &hosts).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].old.clone(), found[0].new.clone()),
            (Some("x = 1".into()), Some("x = 2".into()))
        );
        assert_eq!(found[0].component, Component::Containerd);
        assert_eq!(of_configs(&old, &[], &hosts).unwrap()[0].new, None);
        assert!(of_configs(&[], &[config("k", "etc/kubeadm.yml", "x")], &hosts).is_err());
    }

    #[test]
    fn what_scripts_replaced_on_the_host_stays_replaced() {
        let old = "version = 2\nsandbox_image = \"SANDBOX\"\nmax = 3\n";
        let live = "version = 2\nsandbox_image = \"pause:3.10\"\nmax = 3\n";
        let new = "version = 2\nsandbox_image = \"SANDBOX\"\nmax = 5\nmore = 1\n";
        let wanted = "version = 2\nsandbox_image = \"pause:3.10\"\nmax = 5\nmore = 1\n";
        assert_eq!(merged(old, live, new).unwrap(), wanted);
        assert!(merged(old, "version = 2\n", new).is_err());
    }
}
