//! `rebase`: moves an image to another base without building. Replaces the base's layers, and the
//! settings that the image took over unchanged.

use crate::edit::document::{Draft, Edited, common_platform, history_by_layer, name_of, set_env};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{ContainerConfig, History};
use imgctl_store::store::{Image, Store};

/// Annotations from the image-spec (annotations.md).
pub const BASE_NAME: &str = "org.opencontainers.image.base.name";
pub const BASE_DIGEST: &str = "org.opencontainers.image.base.digest";

/// An image and its displayed name.
#[derive(Clone, Copy, Debug)]
pub struct Called<'a> {
    pub name: &'a str,
    pub image: &'a Image,
}

/// Moves `image`, which must start with the layers of `old`, to `new`.
pub fn rebase(
    store: &Store,
    image: Called<'_>,
    old: Called<'_>,
    new: Called<'_>,
) -> Result<Edited> {
    let ids = |image: &Image| image.config.rootfs.diff_ids.clone();
    let (own, base) = (ids(image.image), ids(old.image));
    if !own.starts_with(&base) {
        return Err(Error::usage(format!(
            "{} is not based on {}: its lowest {} layers differ",
            image.name,
            old.name,
            base.len()
        ))
        .hint(format!("compare: imgctl history {} and {}", image.name, old.name)));
    }
    common_platform(&[
        (image.name.to_owned(), &image.image.config),
        (new.name.to_owned(), &new.image.config),
    ])?;
    let mut draft = Draft::of(image.image);
    let above = draft.layers.split_off(base.len());
    draft.layers = Draft::of(new.image).layers;
    draft.layers.extend(above);
    draft.config.history = history(image.image, base.len(), new.image);
    draft.config.config =
        settings(&image.image.config.config, &old.image.config.config, &new.image.config.config);
    if !draft.docker {
        let digest = new.image.descriptor.digest.to_string();
        draft.annotations.insert(BASE_DIGEST.to_owned(), digest);
        match &new.image.reference {
            Some(name) => draft.annotations.insert(BASE_NAME.to_owned(), name.to_string()),
            None => draft.annotations.remove(BASE_NAME),
        };
    }
    draft.write(store)
}

/// Returns the new base's history, followed by the image's own.
fn history(image: &Image, base_layers: usize, new: &Image) -> Vec<History> {
    let own = history_by_layer(image);
    // Skip the entries up to the base's last layer, and the base's own empty entries.
    let start = match base_layers {
        0 => 0,
        layers => {
            own.iter().position(|(number, _)| *number == Some(layers - 1)).map_or(0, |at| at + 1)
        }
    };
    let mut all: Vec<History> = history_by_layer(new).into_iter().map(|(_, h)| h).collect();
    all.extend(own.into_iter().skip(start).map(|(_, entry)| entry));
    all
}

/// Replaces settings from the old base with those of the new one; keeps the image's own settings.
fn settings(
    own: &ContainerConfig,
    old: &ContainerConfig,
    new: &ContainerConfig,
) -> ContainerConfig {
    let mut all = own.clone();
    all.env = new.env.clone();
    for pair in own.env.iter().filter(|pair| !old.env.contains(pair)) {
        set_env(&mut all.env, pair.clone());
    }
    // Variables that the image removed.
    let has = |pair: &String| own.env.iter().any(|kept| name_of(kept) == name_of(pair));
    for gone in old.env.iter().filter(|pair| !has(pair)) {
        all.env.retain(|pair| name_of(pair) != name_of(gone));
    }
    all.labels = new.labels.clone();
    let set = own.labels.iter().filter(|(key, value)| old.labels.get(*key) != Some(*value));
    all.labels.extend(set.map(|(key, value)| (key.clone(), value.clone())));
    if own.entrypoint == old.entrypoint && own.cmd == old.cmd {
        all.entrypoint.clone_from(&new.entrypoint);
        all.cmd.clone_from(&new.cmd);
    }
    let same = |field: fn(&ContainerConfig) -> &String| field(own) == field(old);
    if same(|config| &config.user) {
        all.user.clone_from(&new.user);
    }
    if same(|config| &config.working_dir) {
        all.working_dir.clone_from(&new.working_dir);
    }
    if same(|config| &config.stop_signal) {
        all.stop_signal.clone_from(&new.stop_signal);
    }
    if own.shell == old.shell {
        all.shell.clone_from(&new.shell);
    }
    if own.healthcheck == old.healthcheck {
        all.healthcheck.clone_from(&new.healthcheck);
    }
    all.exposed_ports.extend(new.exposed_ports.clone());
    all.volumes.extend(new.volumes.clone());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(env: &[&str], labels: &[(&str, &str)], cmd: &str) -> ContainerConfig {
        ContainerConfig {
            env: env.iter().map(|pair| (*pair).to_owned()).collect(),
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            cmd: Some(vec![cmd.to_owned()]),
            ..ContainerConfig::default()
        }
    }

    #[test]
    fn what_came_from_the_old_base_comes_from_the_new() {
        let old = config(&["A=1", "B=1", "GONE=1"], &[("k", "old"), ("own", "x")], "sh");
        let own = config(&["A=1", "B=2", "C=3"], &[("k", "old"), ("own", "y")], "sh");
        let new = config(&["A=9", "B=9", "GONE=9", "N=1"], &[("k", "new")], "bash");
        let all = settings(&own, &old, &new);
        assert_eq!(all.env, ["A=9", "B=2", "N=1", "C=3"]);
        assert_eq!(all.labels["k"], "new");
        assert_eq!(all.labels["own"], "y");
        assert_eq!(all.cmd, Some(vec!["bash".to_owned()]));
    }
}
