//! Adds `config_path` to the configuration of a containerd that reads no `hosts.toml`: one line, tried with
//! containerd's own binary before anything is replaced, and removed again if containerd does not come up with it.
//!
//! containerd refuses `config_path` beside `mirrors` and TLS settings of registries in the same file; such a
//! file stays as it is.

use crate::Action;
use crate::action::{Line, Site};
use crate::registry::{
    containerd,
    containerd::{CONFIG, Looks, PLUGINS},
};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::ClusterContext;

/// The directory that images use.
const DIRECTORY: &str = "/etc/containerd/certs.d";
/// Suffix of the copy of the file as it was.
const KEPT: &str = ".before-imgctl";
/// Suffix of the marker which says that containerd has to read the file again.
const RESTART: &str = ".imgctl-restart";

/// What can be done with a configuration.
#[derive(Debug, PartialEq, Eq)]
enum Setting {
    /// It has `config_path`.
    Has,
    /// The configuration with the setting.
    With(String),
    /// It cannot have the setting, for this reason.
    Refused(String),
}

/// Adds the setting to a configuration and leaves everything else as it is.
fn with_setting(text: &str) -> Result<Setting> {
    if containerd::looks(text)? != Looks::Nowhere {
        return Ok(Setting::Has);
    }
    let read: toml::Table = toml::from_str(text)
        .map_err(|error| Error::bad_content(format!("{CONFIG}: {}", error.message())))?;
    let plugin = match read.get("version").and_then(toml::Value::as_integer).unwrap_or(1) {
        1 => PLUGINS[1],
        2 => PLUGINS[0],
        _ => PLUGINS[2],
    };
    let registry = read.get("plugins").and_then(|all| all.get(plugin)?.get("registry"));
    let table = |name: &str| registry.and_then(|registry| registry.get(name)?.as_table());
    if table("mirrors").is_some_and(|mirrors| !mirrors.is_empty()) {
        let names: Vec<&str> =
            table("mirrors").into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        return Ok(Setting::Refused(format!("registry.mirrors of {}", names.join(", "))));
    }
    let has_tls = |(_, one): &(&String, &toml::Value)| one.get("tls").is_some();
    if let Some((name, _)) = table("configs").into_iter().flatten().find(has_tls) {
        return Ok(Setting::Refused(format!("registry.configs of {name} with tls")));
    }
    let header = format!("[plugins.\"{plugin}\".registry]");
    let plain = |line: &str| line.replace(['\'', '"', ' ', '\t'], "");
    let is_header = |line: &str| plain(line) == plain(&header);
    let setting = format!("config_path = \"{DIRECTORY}\"");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    match lines.iter().position(|line| is_header(line)) {
        Some(at) => {
            let end = lines.iter().skip(at + 1).position(|line| line.trim().starts_with('['));
            let end = end.map_or(lines.len(), |count| at + 1 + count);
            let is_old = |line: &String| line.trim().starts_with("config_path");
            let old = (at + 1..end).find(|number| lines.get(*number).is_some_and(is_old));
            match old {
                Some(old) => lines[old] = format!("  {setting}"),
                None => lines.insert(at + 1, format!("  {setting}")),
            }
        }
        None => lines.extend([String::new(), header, format!("  {setting}")]),
    }
    let new = lines.join("\n") + "\n";
    match containerd::looks(&new) {
        Ok(Looks::In(directories)) if directories == [DIRECTORY] => Ok(Setting::With(new)),
        _ => Ok(Setting::Refused(
            "a form of the registry's table that imgctl cannot edit".to_owned(),
        )),
    }
}

/// Returns the action after which containerd on a host reads `hosts.toml`. Safe to repeat.
pub(crate) fn action(context: &ClusterContext) -> Option<Action> {
    context.registry.as_ref()?;
    let says = format!(
        "where {CONFIG} lacks it: set config_path, keep the former file as {CONFIG}{KEPT}, restart containerd"
    );
    Some(Action::new("registry-config-path", says, set))
}

fn set(site: &Site<'_>) -> Result<()> {
    let Some(bytes) = site.agent.read_file(CONFIG, containerd::LONGEST)? else { return Ok(()) };
    let new = match with_setting(&String::from_utf8_lossy(&bytes))? {
        // An earlier attempt ended before containerd had restarted.
        Setting::Has if site.agent.read_file(&format!("{CONFIG}{RESTART}"), 1)?.is_some() => None,
        Setting::Has => return Ok(()),
        Setting::With(new) => Some(new),
        Setting::Refused(why) => {
            site.say(&format!(
                "{CONFIG} has {why}: containerd cannot read hosts.toml beside it, and knows the registry hosts \
                 by the hosts file only. Move these settings to {DIRECTORY}/REGISTRY/hosts.toml"
            ));
            return Ok(());
        }
    };
    let line = |script: &str| {
        Line::script(&[script]).with([
            ("IMGCTL_FILE", CONFIG),
            ("IMGCTL_KEPT", &format!("{CONFIG}{KEPT}")),
            ("IMGCTL_RESTART", &format!("{CONFIG}{RESTART}")),
        ])
    };
    if new.is_some() {
        site.run(&Line { input: new, ..line(include_str!("scripts/write-config.sh")) })?;
    }
    site.run(&line(include_str!("scripts/restart-containerd.sh"))).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str) -> String {
        match with_setting(text).unwrap() {
            Setting::With(new) => new,
            other => panic!("{other:?}: {text}"),
        }
    }

    #[test]
    fn the_line_comes_where_it_belongs_and_nothing_else_changes() {
        let debian = "version = 2\n\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    [plugins.\"io.containerd.grpc.v1.cri\".cni]\n      bin_dir = \"/usr/lib/cni\"\n";
        let new = with(debian);
        assert!(new.starts_with(debian), "{new}");
        let table = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = \"\"\n\n  [plugins.\"io.containerd.grpc.v1.cri\".registry.mirrors]\n[debug]\nlevel = \"info\"\n";
        assert_eq!(with(table), table.replace("\"\"\n", "\"/etc/containerd/certs.d\"\n"));
        let logins = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"sealos.hub:5000\".auth]\n  username = \"admin\"\n";
        assert!(with(logins).contains("registry]\n  config_path"));
        assert!(with("").contains("[plugins.\"cri\".registry]"));
        assert!(
            with("version = 3\n").contains("[plugins.\"io.containerd.cri.v1.images\".registry]")
        );
        let single = "version = 3\n[plugins.'io.containerd.cri.v1.images'.registry]\n  x = 1\n";
        assert_eq!(with(single).matches("registry]").count(), 1);
        assert_eq!(with_setting(&new).unwrap(), Setting::Has);
    }

    #[test]
    fn what_containerd_does_not_accept_beside_it_is_named() {
        let mirrors = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry.mirrors.\"docker.io\"]\n  endpoint = [\"https://m\"]\n";
        let tls = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"r:5000\".tls]\n  ca_file = \"/x\"\n";
        for (text, part) in [(mirrors, "docker.io"), (tls, "r:5000")] {
            let Setting::Refused(why) = with_setting(text).unwrap() else { panic!("{text}") };
            assert!(why.contains(part), "{why}");
        }
    }

    /// Debian's containerd takes what is written, if it is installed.
    #[test]
    fn containerd_itself_takes_the_result() {
        let Ok(shown) = std::process::Command::new("containerd").arg("--version").output() else {
            return;
        };
        assert!(shown.status.success());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        let logins = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"sealos.hub:5000\".auth]\n  username = \"admin\"\n";
        std::fs::write(&path, with(logins)).unwrap();
        let dump = std::process::Command::new("containerd")
            .args(["--config", path.to_str().unwrap(), "config", "dump"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&dump.stdout).into_owned();
        assert!(
            dump.status.success() && text.contains("config_path = \"/etc/containerd/certs.d\""),
            "{text}"
        );
        assert!(text.contains("username = \"admin\""), "{text}");
    }
}
