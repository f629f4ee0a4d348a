//! The settings of a container that an image's config has, as names and values that can be compared.

use std::collections::BTreeMap;

use crate::cut;
use imgctl_base::image::ImageConfig;

/// Maximum length of a value, in bytes.
const LONGEST_VALUE: usize = 1024;

/// Returns all settings under familiar names: `label version`, `variable PATH`, `command`.
pub(super) fn settings(config: &ImageConfig) -> BTreeMap<String, String> {
    let inner = &config.config;
    let mut all = BTreeMap::new();
    for (name, value) in &inner.labels {
        all.insert(format!("label {name}"), cut(value, LONGEST_VALUE));
    }
    for variable in &inner.env {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        all.insert(format!("variable {name}"), cut(value, LONGEST_VALUE));
    }
    let words = |words: &[String]| serde_json::to_string(words).unwrap_or_default();
    let keys = |keys: Vec<&String>| keys.into_iter().cloned().collect::<Vec<_>>().join(" ");
    for (name, value) in [
        ("architecture", config.platform().to_string()),
        ("user", inner.user.clone()),
        ("working directory", inner.working_dir.clone()),
        ("stop signal", inner.stop_signal.clone()),
        ("entrypoint", inner.entrypoint.as_deref().map(words).unwrap_or_default()),
        ("command", inner.cmd.as_deref().map(words).unwrap_or_default()),
        ("shell", inner.shell.as_deref().map(words).unwrap_or_default()),
        ("ports", keys(inner.exposed_ports.keys().collect())),
        ("volumes", keys(inner.volumes.keys().collect())),
        ("ONBUILD", inner.on_build.join("; ")),
        (
            "health check",
            inner.healthcheck.as_ref().map(|check| words(&check.test)).unwrap_or_default(),
        ),
    ] {
        if !value.is_empty() {
            all.insert(name.to_owned(), cut(&value, LONGEST_VALUE));
        }
    }
    all
}
