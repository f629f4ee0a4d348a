//! Merging of configs: env lists, labels and history.

use imgctl_base::error::{Error, Result};
use imgctl_base::image::{History, ImageConfig, Platform};
use imgctl_store::store::Image;

/// Returns the name of an env entry.
pub(super) fn name_of(pair: &str) -> &str {
    pair.split('=').next().unwrap_or_default()
}

/// Sets one variable: replaces it if it exists, otherwise appends it.
pub(super) fn set_env(env: &mut Vec<String>, pair: String) {
    match env.iter_mut().find(|old| name_of(old) == name_of(&pair)) {
        Some(old) => *old = pair,
        None => env.push(pair),
    }
}

/// Returns the history entries, each with the index of the layer that it created; `None` for an
/// empty entry. If the config's history does not fit the layers, returns one generated entry per
/// layer instead.
pub(super) fn history_by_layer(image: &Image) -> Vec<(Option<usize>, History)> {
    let layers = image.manifest.layers.len();
    let history = &image.config.history;
    if history.iter().filter(|entry| !entry.empty_layer).count() != layers {
        let made_up = |number| {
            let entry = History { comment: Some("no history".to_owned()), ..History::default() };
            (Some(number), entry)
        };
        return (0..layers).map(made_up).collect();
    }
    let mut number = 0;
    let mut listed = Vec::new();
    for entry in history {
        if entry.empty_layer {
            listed.push((None, entry.clone()));
        } else {
            listed.push((Some(number), entry.clone()));
            number += 1;
        }
    }
    listed
}

/// Returns the platform of all images, which must be the same.
pub(super) fn common_platform(images: &[(String, &ImageConfig)]) -> Result<Platform> {
    let Some((first_name, first)) = images.first() else {
        return Err(Error::usage("there is no image"));
    };
    let platform = first.platform();
    for (name, config) in &images[1..] {
        let other = config.platform();
        if (&other.os, &other.architecture) != (&platform.os, &platform.architecture) {
            return Err(Error::usage(format!(
                "{first_name} is for {platform}, but {name} is for {other}"
            ))
            .hint("choose one with --platform, or use images of the same platform"));
        }
    }
    Ok(platform)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_keeps_its_place() {
        let mut env = vec!["A=1".to_owned(), "B=2".to_owned()];
        set_env(&mut env, "A=3".to_owned());
        set_env(&mut env, "C=4".to_owned());
        assert_eq!(env, ["A=3", "B=2", "C=4"]);
    }
}
