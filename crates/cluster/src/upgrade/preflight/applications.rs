//! Checks that installed images support the target version.

use super::look::{Look, error, warning};
use crate::upgrade::document::Finding;
use imgctl_base::semver::{Version, satisfies};

pub(super) fn supported(look: &Look<'_>) -> Vec<Finding> {
    let target = &look.document.target().version;
    let Some(mut version) = Version::parse(target) else {
        return Vec::new();
    };
    // The range refers to releases.
    version.prerelease.clear();
    let mut found = Vec::new();
    for image in &look.observation.installed {
        let Some(range) = &image.supports else {
            continue;
        };
        match satisfies(range, &version) {
            Some(true) => {}
            Some(false) => found.push(
                error(
                    "application-versions",
                    format!(
                        "{} supports Kubernetes {range}, but the target is {target}",
                        image.name
                    ),
                )
                .hint("install a newer release of it first (`imgctl run`), or skip this check"),
            ),
            None => found.push(warning(
                "application-versions",
                format!(
                    "{} declares support for `{range}`, which is not a version range",
                    image.name
                ),
            )),
        }
    }
    found
}
