//! The parts of an image that a cluster needs: type, labels and their variables, environment,
//! commands, layers.

use std::collections::BTreeMap;

use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::{Descriptor, Digest, LayerKind, Platform};
use imgctl_base::settings::{SETTINGS, Settings};
use imgctl_store::store::{Store, images::Image};

/// Labels for the type of an image; the first non-empty one counts.
pub(crate) const TYPE_LABELS: [&str; 2] = ["sealos.io.type", "apps.sealos.io/type"];
/// Labels for the contract that a rootfs follows.
pub(crate) const VERSION_LABELS: [&str; 2] = ["sealos.io.version", "apps.sealos.io/version"];
/// Labels for the runtime that creates the cluster.
pub(crate) const DISTRIBUTION_LABELS: [&str; 2] =
    ["sealos.io.distribution", "apps.sealos.io/distribution"];
/// Known contracts.
const VERSIONS: [&str; 2] = ["v1beta1", "v1beta2"];

/// Type of an image: label `sealos.io.type` or `apps.sealos.io/type` (docs/cluster-image.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    Rootfs,
    Patch,
    Application,
}

impl ImageKind {
    /// Returns the name in labels and `status.mounts[].type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rootfs => "rootfs",
            Self::Patch => "patch",
            Self::Application => "application",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::Rootfs, Self::Patch, Self::Application]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ImageLayer {
    pub descriptor: Descriptor,
    pub diff_id: Digest,
    /// Whether the layer contains only `registry/`.
    pub registry: bool,
}

impl ImageLayer {
    /// Whether the layer can hold `registry/`, alone or beside other files. Layers of other tools do not say so.
    pub fn may_hold_registry(&self) -> bool {
        self.registry || self.descriptor.layer_kind().is_none()
    }
}

/// An image for one platform, as pipelines use it.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterImage {
    /// Name as in `spec.image`.
    pub name: String,
    /// Name of its directories: `<cluster>-<8 characters of the manifest's digest>`.
    pub mount_name: String,
    pub kind: ImageKind,
    pub digest: Digest,
    pub labels: BTreeMap<String, String>,
    /// `ENV` of the image, without `PATH`, and the defaults of its settings.
    pub environment: BTreeMap<String, String>,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    pub layers: Vec<ImageLayer>,
}

impl ClusterImage {
    /// Returns the first non-empty label of `names`.
    pub fn label(&self, names: &[&str]) -> Option<&str> {
        names
            .iter()
            .filter_map(|name| self.labels.get(*name))
            .map(String::as_str)
            .find(|value| !value.is_empty())
    }

    /// Returns whether this is an image; otherwise it stands for an adopted cluster, which has none.
    pub fn has_files(&self) -> bool {
        !self.mount_name.is_empty()
    }

    /// Reads the image named `name` (as in `spec.image`) for `platform` from the store.
    pub fn load(
        store: &Store,
        cluster: &str,
        name: &str,
        platform: Option<&Platform>,
    ) -> Result<Self> {
        Self::new(cluster, name, &store.image(name, platform)?)
    }

    /// Returns the layers of `image` whose files the controller itself reads: settings, hooks and
    /// patches of rootfs and patch images. Only hosts read embedded images and applications.
    pub fn layers_read(image: &Image) -> Result<Vec<Digest>> {
        let read = Self::new("", &image.descriptor.digest.to_string(), image)?;
        if read.kind == ImageKind::Application {
            return Ok(Vec::new());
        }
        let layers = read.layers.into_iter().filter(|layer| !layer.registry);
        Ok(layers.map(|layer| layer.descriptor.digest).collect())
    }

    /// Extracts the parts of `image` that a cluster needs; `name` is its name in `spec.image`.
    /// Fails for an unknown type or version label.
    pub fn new(cluster: &str, name: &str, image: &Image) -> Result<Self> {
        let config = &image.config.config;
        let digest = image.descriptor.digest.clone();
        let mut read = Self {
            name: name.to_owned(),
            mount_name: format!("{cluster}-{}", &digest.hex()[..8]),
            kind: ImageKind::Application,
            digest,
            labels: config.labels.clone(),
            environment: config
                .env
                .iter()
                .map(|entry| entry.split_once('=').unwrap_or((entry, "")))
                .filter(|(variable, _)| *variable != "PATH")
                .map(|(variable, value)| (variable.to_owned(), value.to_owned()))
                .collect(),
            entrypoint: config.entrypoint.clone().unwrap_or_default(),
            command: config.cmd.clone().unwrap_or_default(),
            layers: image
                .layers()
                .map(|(descriptor, diff_id)| ImageLayer {
                    descriptor: descriptor.clone(),
                    diff_id: diff_id.clone(),
                    registry: descriptor.layer_kind() == Some(LayerKind::Registry),
                })
                .collect(),
        };
        read.kind = read.kind_of_labels()?;
        // What is wrong with settings is told where they count: a cluster can always be removed.
        for setting in read.settings().ok().flatten().iter().flat_map(Settings::list) {
            if let Some(default) = setting.default {
                read.environment.entry(setting.name).or_insert(default);
            }
        }
        Ok(read)
    }

    /// Returns the image's own description of its variables.
    pub fn settings(&self) -> Result<Option<Settings>> {
        Settings::of_labels(&self.labels)
            .context(|| format!("cannot use the label {SETTINGS} of {}", self.name))
    }

    /// Returns the variables that the image describes as secret.
    pub fn secret_variables(&self) -> Vec<String> {
        let settings = self.settings().ok().flatten();
        let all = settings.iter().flat_map(Settings::list);
        all.filter(|setting| setting.is_secret).map(|setting| setting.name).collect()
    }

    fn kind_of_labels(&self) -> Result<ImageKind> {
        let Some(text) = self.label(&TYPE_LABELS) else {
            return Ok(ImageKind::Application);
        };
        let kind = ImageKind::parse(text).ok_or_else(|| {
            Error::bad_content(format!(
                "image {} is of type `{text}`, which cannot be run",
                self.name
            ))
            .hint(format!("set its label {} to rootfs, patch or application", TYPE_LABELS[0]))
        })?;
        let version = self.label(&VERSION_LABELS);
        if kind == ImageKind::Rootfs && !version.is_some_and(|v| VERSIONS.contains(&v)) {
            let is = version.map_or("missing".to_owned(), |version| format!("`{version}`"));
            return Err(Error::bad_content(format!(
                "image {} is a rootfs, but its label {} is {is}",
                self.name, VERSION_LABELS[0]
            ))
            .hint(format!(
                "imgctl supports {}: set it with `imgctl build --label {}={}` or in the Kubefile",
                VERSIONS.join(" and "),
                VERSION_LABELS[0],
                VERSIONS[0]
            )));
        }
        Ok(kind)
    }

    /// Returns `kubernetes` (also for `kubeadm` and for no label), `k3s` or `script`, as the image
    /// specifies.
    pub fn distribution(&self) -> &str {
        match self.label(&DISTRIBUTION_LABELS) {
            None | Some("kubeadm") => "kubernetes",
            Some(distribution) => distribution,
        }
    }

    /// Returns a label whose value may name variables (`vip`, `image`), with those of `environment`
    /// substituted.
    pub(crate) fn rendered_label(
        &self,
        name: &str,
        environment: &BTreeMap<String, String>,
    ) -> Option<String> {
        let value = render_label(self.label(&[name])?, environment);
        (!value.is_empty()).then_some(value)
    }
}

/// Checks the images of a cluster together: exactly one must be a rootfs. A newer rootfs and the
/// one it replaces coexist only while an upgrade is planned, which does not happen here.
pub fn check_together(images: &[ClusterImage]) -> Result<()> {
    let rootfs: Vec<&str> = images
        .iter()
        .filter(|image| image.kind == ImageKind::Rootfs)
        .map(|image| image.name.as_str())
        .collect();
    match &rootfs[..] {
        [_] => Ok(()),
        [] => {
            let names: Vec<String> = images
                .iter()
                .map(|image| format!("{} ({})", image.name, image.kind.as_str()))
                .collect();
            Err(Error::usage(format!(
                "none of the images is a rootfs, which a new cluster needs: {}",
                names.join(", ")
            ))
            .hint("name a rootfs image first, or the cluster to install on with --cluster"))
        }
        several => Err(Error::usage(format!(
            "a cluster has exactly one rootfs image, not {}: {}",
            several.len(),
            several.join(", ")
        ))),
    }
}

/// Substitutes the variables of `environment` in `text`. The longest matching name counts
/// (`$registryPort` is not `$registry` and `Port`); unknown names stay unchanged.
fn render_label(text: &str, environment: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        match variable(&rest[1..], environment) {
            Some((value, length)) => {
                out.push_str(value);
                rest = &rest[1 + length..];
            }
            None => {
                out.push('$');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// Returns the value of the variable at the start of `text`, and the length of its name as written.
fn variable<'a>(text: &str, environment: &'a BTreeMap<String, String>) -> Option<(&'a str, usize)> {
    for (open, close) in [('(', ')'), ('{', '}')] {
        if let Some(inside) = text.strip_prefix(open) {
            let (name, _) = inside.split_once(close)?;
            return Some((environment.get(name)?, name.len() + 2));
        }
    }
    environment
        .iter()
        .filter(|(name, _)| !name.is_empty() && text.starts_with(name.as_str()))
        .max_by_key(|(name, _)| name.len())
        .map(|(name, value)| (value.as_str(), name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::image;

    #[test]
    fn types_and_versions_are_checked() {
        for (labels, expected) in [
            (&[][..], Ok(ImageKind::Application)),
            (&[("sealos.io.type", "")], Ok(ImageKind::Application)),
            (&[("sealos.io.type", "patch")], Ok(ImageKind::Patch)),
            (
                &[
                    ("sealos.io.type", ""),
                    ("apps.sealos.io/type", "rootfs"),
                    ("apps.sealos.io/version", "v1beta2"),
                ],
                Ok(ImageKind::Rootfs),
            ),
            (&[("sealos.io.type", "rootfs")], Err("is missing")),
            (&[("sealos.io.type", "rootfs"), ("sealos.io.version", "v2")], Err("is `v2`")),
            (&[("sealos.io.type", "addons")], Err("`addons`")),
        ] {
            let mut image = image("a:v1", ImageKind::Application);
            for (name, value) in labels {
                image.labels.insert((*name).into(), (*value).into());
            }
            match (image.kind_of_labels(), expected) {
                (Ok(kind), Ok(expected)) => assert_eq!(kind, expected, "{labels:?}"),
                (Err(error), Err(expected)) => {
                    assert!(error.to_string().contains(expected), "{error}");
                }
                (other, _) => panic!("{labels:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_cluster_has_one_rootfs() {
        let of = |kinds: &[ImageKind]| -> Vec<ClusterImage> {
            kinds.iter().map(|kind| image("a:v1", *kind)).collect()
        };
        use ImageKind::{Application, Patch, Rootfs};
        assert!(check_together(&of(&[Rootfs, Patch, Application])).is_ok());
        assert!(check_together(&of(&[Patch, Application])).is_err());
        assert!(check_together(&of(&[Rootfs, Rootfs])).is_err());
        assert!(check_together(&[]).is_err());
    }

    #[test]
    fn the_longest_name_counts_and_values_are_not_rendered_again() {
        let environment: BTreeMap<String, String> = [
            ("registry", "R"),
            ("registryPort", "5000"),
            ("defaultVIP", "10.103.97.2"),
            ("x", "$registry"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        for (text, expected) in [
            ("$defaultVIP", "10.103.97.2"),
            ("$registry:$registryPort", "R:5000"),
            ("${registry}/$(registryPort)/x", "R/5000/x"),
            ("$registryPorts", "5000s"),
            ("$x $no ${no} $(no) $ ${registry", "$registry $no ${no} $(no) $ ${registry"),
            ("literal", "literal"),
        ] {
            assert_eq!(render_label(text, &environment), expected, "{text}");
        }
    }
}
