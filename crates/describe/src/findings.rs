//! What is noticeable about an image.

use crate::Described;
use crate::files::MOST_NOTED;
use imgctl_report::model::image::Attachment;
use imgctl_report::model::{Finding, Severity};

/// Share of a layer's content that is worth a note if higher layers hide it: one byte in this many.
const HIDDEN: u64 = 10;
/// Content below which it is not, in bytes.
const LEAST_HIDDEN: u64 = 1 << 20;

/// Returns the findings about an image itself.
pub(super) fn all(described: &Described<'_>, attachments: &[Attachment]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |severity, rule: &str, place: Option<String>, message: String, hint: &str| {
        let hint = (!hint.is_empty()).then(|| hint.to_owned());
        found.push(Finding { severity, rule: rule.to_owned(), message, place, hint });
    };
    for (image, digest) in described.inspected.embedded.missing.iter().take(MOST_NOTED) {
        add(
            Severity::Error,
            "MissingBlob",
            Some(image.clone()),
            format!("the embedded registry lacks blob {digest} of this image"),
            "build the image again: hosts cannot pull it",
        );
    }
    let platform = described.inspected.image.config.platform().to_string();
    for image in &described.inspected.embedded.images {
        if !image.platforms.is_empty() && !image.platforms.contains(&platform) {
            add(
                Severity::Warning,
                "EmbeddedPlatform",
                Some(image.name.clone()),
                format!(
                    "the embedded image is for {}, not for {platform}",
                    image.platforms.join(", ")
                ),
                "",
            );
        }
        if image.name.ends_with(":latest") {
            add(
                Severity::Warning,
                "FloatingTag",
                Some(image.name.clone()),
                "the embedded image has the tag `latest`, which says nothing about its version"
                    .to_owned(),
                "name a version in the manifest or chart",
            );
        }
    }
    for (index, layer) in described.layers.iter().enumerate() {
        if layer.hidden >= LEAST_HIDDEN && layer.hidden >= layer.content / HIDDEN {
            add(
                Severity::Note,
                "HiddenContent",
                Some(format!("layer {}", index + 1)),
                format!(
                    "higher layers replace or delete {} of {} bytes, which every pull transfers",
                    layer.hidden, layer.content
                ),
                "delete files in the instruction that creates them",
            );
        }
    }
    for path in &described.files.privileged {
        let message = "the file runs with the rights of its owner or group".to_owned();
        add(Severity::Note, "SetUserID", Some(path.clone()), message, "");
    }
    for path in &described.files.writable {
        let message = "every user may write the file".to_owned();
        add(Severity::Warning, "WorldWritable", Some(path.clone()), message, "");
    }
    if !attachments.iter().any(|attachment| attachment.kind == "signature") {
        add(
            Severity::Note,
            "NotSigned",
            None,
            "no signature is kept with the image in this store".to_owned(),
            "run `imgctl sign`",
        );
    }
    found
}
