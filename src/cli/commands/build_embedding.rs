//! Flags of `build` for container images inside the image, and `--images-report`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_build::build::embedding::{Report, ReportedImage};
use imgctl_build::build::options::{EmbedOptions, LockUse};
use imgctl_embed::search::{self, SearchOptions};
use imgctl_embed::{Skipped, plan::Naming};
use imgctl_frontend::context::Context;
use imgctl_ui::table::{Table, human};

/// Kubernetes version that charts are rendered for unless `--kube-version` sets another one.
const KUBERNETES: &str = "v1.34.0";

/// Flags for container images in the image.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Embedded images")]
pub(crate) struct EmbedArgs {
    /// Also embed this container image (may be repeated)
    #[arg(long = "image", value_name = "NAME")]
    images: Vec<String>,

    #[command(flatten)]
    charts: ChartArgs,

    /// List the container images to be embedded or skipped, without building; ask their registries only
    /// with --update-lock
    #[arg(long)]
    pub(crate) images_report: bool,

    /// Fail if imgctl.lock would have to change: resolve no image again, accept no other file of an address
    #[arg(long, conflicts_with = "update_lock")]
    locked: bool,

    /// Resolve all container images and addresses again, write imgctl.lock, and say what has changed
    #[arg(long)]
    update_lock: bool,

    /// Lock file [default: imgctl.lock in the context]
    #[arg(long, value_name = "FILE")]
    lock_file: Option<PathBuf>,

    /// Embed the container images that the context names [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = true, default_missing_value = "true", hide_default_value = true,
        action = clap::ArgAction::Set)]
    save_image: bool,

    /// Embed every platform of each container image, not only the platforms being built
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_default_value = true,
        action = clap::ArgAction::Set)]
    all: bool,

    /// Number of container images to fetch in parallel
    #[arg(long, value_name = "N", default_value_t = 5)]
    max_pull_procs: usize,

    /// Keep the registry name in embedded repositories: quay.io/a/b instead of a/b
    #[arg(long)]
    registry_namespace: bool,
}

/// Flags for rendering the charts of a context.
#[derive(Args, Clone, Debug)]
pub(crate) struct ChartArgs {
    /// Values file for all charts of the context, or for one chart (may be repeated)
    #[arg(long, value_name = "[CHART=]FILE")]
    values: Vec<String>,

    /// Kubernetes version to render charts for
    #[arg(long, value_name = "VERSION", default_value = KUBERNETES, hide_default_value = true)]
    kube_version: String,
}

impl ChartArgs {
    /// Returns the flags as they were given.
    pub(crate) fn flags(&self) -> Vec<String> {
        let values = self.values.iter().map(|text| format!("--values={text}"));
        values.chain([format!("--kube-version={}", self.kube_version)]).collect()
    }

    /// Returns the search options; reads the values files.
    pub(crate) fn search(&self) -> Result<SearchOptions> {
        let values = self.values.iter().map(|text| values(text));
        Ok(SearchOptions {
            images: Vec::new(),
            values: values.collect::<Result<_>>()?,
            kubernetes: kubernetes(&self.kube_version)?,
        })
    }
}

impl EmbedArgs {
    /// Returns the builder's options; reads the values files.
    pub(crate) fn options(&self) -> Result<EmbedOptions> {
        Ok(EmbedOptions {
            save: self.save_image,
            search: SearchOptions { images: self.images.clone(), ..self.charts.search()? },
            lock: match (self.locked, self.update_lock) {
                (true, _) => LockUse::Insist,
                (false, true) => LockUse::Update,
                (false, false) => LockUse::IfThere,
            },
            lock_file: self.lock_file.clone(),
            all: self.all,
            pulls: self.max_pull_procs.clamp(1, 64),
            naming: if self.registry_namespace {
                Naming::WithRegistry
            } else {
                Naming::WithoutRegistry
            },
        })
    }
}

/// Returns `v1.34.0` for `1.34`, the form that `helm template` takes.
fn kubernetes(text: &str) -> Result<String> {
    let bare = text.strip_prefix('v').unwrap_or(text);
    let numbers = bare.split(['-', '+']).next().unwrap_or_default();
    let parts: Vec<&str> = numbers.split('.').collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match (parts.len(), parts.iter().all(is_number)) {
        (2, true) => Ok(format!("v{bare}.0")),
        (3, true) => Ok(format!("v{bare}")),
        _ => Err(Error::usage(format!("`{text}` is not a Kubernetes version"))
            .hint("a version looks like v1.34.0")),
    }
}

/// Parses one `--values`: the optional chart name, and the content of the file.
fn values(text: &str) -> Result<(Option<String>, Value)> {
    let (chart, file) = match text.split_once('=') {
        Some((chart, file)) if !chart.is_empty() && !chart.contains('/') => {
            (Some(chart.to_owned()), file)
        }
        _ => (None, text),
    };
    let content = std::fs::read_to_string(file).path("read the values in", file)?;
    let values = search::values(&content).context(|| format!("cannot use the values in {file}"))?;
    Ok((chart, values))
}

/// Shows the images that would be embedded.
pub(crate) fn show(report: &Report, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        let images: Vec<Value> = report.images.iter().map(image_object).collect();
        let skipped: Vec<Value> = report.skipped.iter().map(skipped_object).collect();
        return context.ui.json(&json!({"images": images, "skipped": skipped}));
    }
    let mut table = Table::new(&["IMAGE", "DIGEST", "SIZE", "FOUND IN"]).right(2);
    for image in &report.images {
        let (digest, size) = match &image.resolved {
            Some(Ok(resolved)) => (resolved.root.digest.short().to_owned(), human(resolved.size())),
            Some(Err(_)) => ("?".to_owned(), "?".to_owned()),
            None => {
                let digest = image.digest.as_ref().map_or("-", |digest| digest.short());
                (digest.to_owned(), "-".to_owned())
            }
        };
        let places: Vec<String> = image.found.places.iter().map(ToString::to_string).collect();
        let name = image.found.reference.to_string();
        table.row(vec![name, digest, size, places.join(", ")]);
    }
    context.ui.print(&table.render(true))?;
    if !report.skipped.is_empty() {
        let mut table = Table::new(&["LEFT OUT", "FOUND IN", "WHY"]);
        for skipped in &report.skipped {
            let (text, reason) = (skipped.text.clone(), skipped.reason.clone());
            table.row(vec![text, skipped.place.to_string(), reason]);
        }
        context.ui.line("")?;
        context.ui.print(&table.render(true))?;
    }
    for image in &report.images {
        if let Some(Err(error)) = &image.resolved {
            context.ui.note(&error.to_string());
        }
    }
    Ok(())
}

fn image_object(image: &ReportedImage) -> Value {
    let places =
        image.found.places.iter().map(
            |place| json!({"file": place.file, "line": place.line, "how": place.how.as_str()}),
        );
    let mut object = json!({
        "name": image.found.reference.to_string(),
        "repository": image.repository,
        "places": places.collect::<Vec<_>>(),
    });
    match &image.resolved {
        Some(Ok(resolved)) => {
            let platforms = resolved.platforms.iter().map(
                |(platform, digest)| json!({"platform": platform.to_string(), "digest": digest}),
            );
            object["digest"] = json!(resolved.root.digest);
            object["mediaType"] = json!(resolved.root.media_type);
            object["size"] = json!(resolved.size());
            object["platforms"] = json!(platforms.collect::<Vec<_>>());
        }
        Some(Err(error)) => object["error"] = json!(error.to_string()),
        None => {
            if let Some(digest) = &image.digest {
                object["digest"] = json!(digest);
            }
        }
    }
    object
}

fn skipped_object(skipped: &Skipped) -> Value {
    json!({
        "text": skipped.text,
        "file": skipped.place.file,
        "line": skipped.place.line,
        "reason": skipped.reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_out() {
        for (text, full) in
            [("1.34", "v1.34.0"), ("v1.34.2", "v1.34.2"), ("1.30.1+k3s1", "v1.30.1+k3s1")]
        {
            assert_eq!(kubernetes(text).unwrap(), full, "{text}");
        }
        for wrong in ["", "latest", "1", "v1.x", "1.2.3.4"] {
            assert!(kubernetes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_may_be_for_one_chart() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "a: 0\nb: {c: 1}\na: 1\n---\nb: {d: 2}\n").unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(values(path).unwrap(), (None, json!({"a": 1, "b": {"c": 1, "d": 2}})));
        std::fs::write(&file, "a: 1\n").unwrap();
        let one = values(&format!("web={path}")).unwrap();
        assert_eq!(one, (Some("web".to_owned()), json!({"a": 1})));
        assert!(values("web=/nowhere").is_err());
    }
}
