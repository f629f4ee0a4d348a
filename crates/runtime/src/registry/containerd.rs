//! Where a host's containerd looks for the settings of a registry, according to its configuration. Only
//! text; must not know hosts.

use imgctl_base::error::{Error, Result};

/// Where containerd looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Looks {
    /// In these directories, each with one directory for a registry; the first that exists counts.
    In(Vec<String>),
    /// Nowhere: an old containerd, or `config_path` is not set.
    Nowhere,
}

/// The file that containerd reads.
pub(crate) const CONFIG: &str = "/etc/containerd/config.toml";
/// Maximum size of it, in bytes.
pub(crate) const LONGEST: u64 = 1 << 20;

/// Plugins whose table `registry` has `config_path`: of configuration version 2 (containerd 1.5 and
/// later), of version 1, and of version 3 (containerd 2).
pub(crate) const PLUGINS: [&str; 3] =
    ["io.containerd.grpc.v1.cri", "cri", "io.containerd.cri.v1.images"];

/// Reads containerd's configuration.
pub(crate) fn looks(text: &str) -> Result<Looks> {
    let read: toml::Table = toml::from_str(text).map_err(|error| {
        Error::bad_content(format!("{CONFIG} cannot be read: {}", error.message()))
            .hint("containerd itself would not start with it; correct it")
    })?;
    let plugins = read.get("plugins");
    let of = |plugin: &str| {
        plugins?.get(plugin)?.get("registry")?.get("config_path")?.as_str().map(str::to_owned)
    };
    let path = PLUGINS.iter().find_map(|plugin| of(plugin)).unwrap_or_default();
    // As containerd splits it. What is not absolute depends on containerd's working directory.
    let directories: Vec<String> = path
        .split(':')
        .filter(|one| one.starts_with('/') && !one.split('/').any(|part| part == ".."))
        .map(|one| one.trim_end_matches('/').to_owned())
        .collect();
    Ok(if directories.is_empty() { Looks::Nowhere } else { Looks::In(directories) })
}

/// Returns containerd's directory, with its content.
pub(crate) fn root(text: &str) -> String {
    let read: toml::Table = toml::from_str(text).unwrap_or_default();
    let root = read.get("root").and_then(toml::Value::as_str).unwrap_or_default();
    let is_plain = root.starts_with('/') && !root.split('/').any(|part| part == "..");
    if is_plain { root.trim_end_matches('/').to_owned() } else { ROOT.to_owned() }
}

/// Default of containerd's directory.
const ROOT: &str = "/var/lib/containerd";

/// Returns the names of a registry's directory, in the order in which containerd tries them.
pub(crate) fn names(domain: &str, port: u16) -> [String; 2] {
    [format!("{domain}_{port}_"), format!("{domain}:{port}")]
}

/// Returns whether a `hosts.toml` that imgctl did not write requires TLS. Such a file stays as it is, because
/// registry hosts have no certificates for their addresses.
pub(crate) fn uses_tls(text: &str) -> bool {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines.into_iter().any(|line| {
        line.contains("https://")
            || ["ca", "client"].iter().any(|key| {
                line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_the_configuration_is_understood() {
        let certs = || Looks::In(vec!["/etc/containerd/certs.d".to_owned()]);
        for (text, expected) in [
            ("", Looks::Nowhere),
            ("version = 2\n", Looks::Nowhere),
            (
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\nconfig_path = \"/etc/containerd/certs.d\"\n",
                certs(),
            ),
            (
                "[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    [plugins.\"io.containerd.grpc.v1.cri\".registry]\n      config_path = \"/etc/containerd/certs.d/\"\n      [plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"sealos.hub:5000\".auth]\n        username = \"admin\"\n        password = \"x\"\n",
                certs(),
            ),
            (
                "version = 3\n[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '/a:/b'\n",
                Looks::In(vec!["/a".to_owned(), "/b".to_owned()]),
            ),
            ("[plugins.cri.registry]\nconfig_path = \"\"\n", Looks::Nowhere),
            ("[plugins.cri.registry]\nconfig_path = \"certs.d:/a/../b\"\n", Looks::Nowhere),
            ("[plugins.cri.registry.mirrors.\"x\"]\nendpoint = [\"http://x\"]\n", Looks::Nowhere),
        ] {
            assert_eq!(looks(text).unwrap(), expected, "{text}");
        }
        assert!(looks("[plugins").unwrap_err().to_string().contains(CONFIG));
    }

    #[test]
    fn files_with_tls_are_recognised() {
        for (text, expected) in [
            (
                "server = \"http://sealos.hub:5000\"\n[host.\"http://sealos.hub:5000\"]\n  skip_verify = true\n",
                false,
            ),
            ("server = \"https://sealos.hub:5000\"\n", true),
            ("[host.\"http://x\"]\n  ca = \"/x\"\n", true),
            ("# server = \"https://x\"\n  capabilities = []\n", false),
        ] {
            assert_eq!(uses_tls(text), expected, "{text}");
        }
    }

    /// The file is a host's.
    #[test]
    fn any_configuration_of_a_host_is_read_or_refused() {
        let valid = "root = \"/r\"\n[plugins.cri.registry]\nconfig_path = \"/a:/b\"\n";
        bolero::check!().for_each(|input: &[u8]| {
            for text in [input.to_vec(), imgctl_base::testing::damaged(valid.as_bytes(), input)] {
                let text = String::from_utf8_lossy(&text);
                let is_inside = |path: &str| {
                    path.is_empty()
                        || (path.starts_with('/') && !path.split('/').any(|part| part == ".."))
                };
                if let Ok(Looks::In(directories)) = looks(&text) {
                    assert!(directories.iter().all(|one| is_inside(one)), "{directories:?}");
                }
                assert!(is_inside(&root(&text)));
                let _ = uses_tls(&text);
            }
        });
    }
}
