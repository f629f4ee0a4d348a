//! `imgctl build`.

use std::path::{Path, PathBuf};

use serde_json::json;

pub(crate) use crate::cli::commands::build_options::BuildArgs;
use crate::cli::commands::{build_embedding, build_options};
use crate::cli::context::Context;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::image::Digest;
use imgctl_build::build::{self, Built};
use imgctl_transfer::trust::provenance::{self, Invocation};
use imgctl_transfer::trust::sbom::{self, SbomOptions};

/// Builds the image, or checks the Kubefile.
pub(crate) fn run(args: &BuildArgs, context: &Context) -> Result<()> {
    let options = build_options::resolve(args, context)?;
    if args.check {
        return check(&options, context);
    }
    if args.embed.images_report {
        let report = build::embedding::report(context.store()?, &options, context.ui.reporter())?;
        return build_embedding::show(&report, context);
    }
    if args.sbom.is_some() && options.platforms.len() > 1 {
        return Err(Error::usage(
            "--sbom supports only one platform, as each has its own contents",
        )
        .hint("run `imgctl sbom --platform` on the built image"));
    }
    let built = build::build(context.store()?, &options, context.ui.reporter())?;
    if let Some(path) = &args.iidfile {
        write(path, &built.image_id.to_string())?;
    }
    if let Some(path) = &args.metadata_file {
        let text = serde_json::to_string_pretty(&metadata(&built))
            .map_err(|error| Error::failed("cannot write the metadata").caused_by(error))?;
        write(path, &format!("{text}\n"))?;
    }
    if let Some(path) = &args.provenance {
        let invocation = Invocation {
            file_digest: kubefile_digest(args, &built.file),
            file: built.file.clone(),
            build_args: options.build_args.clone(),
            target: options.target.clone(),
        };
        let store = context.store()?;
        let text = provenance::statement(store, &built.descriptor, &built.names, &invocation)?;
        std::fs::write(path, text).path("write", path)?;
    }
    if let Some(path) = &args.sbom {
        write_sbom(path, &built, context)?;
    }
    if context.ui.is_json() {
        return context.ui.json(&json!({
            "id": built.image_id,
            "digest": built.descriptor.digest,
            "mediaType": built.descriptor.media_type,
            "size": built.descriptor.size,
            "names": names(&built),
            "manifests": built.manifests,
            "file": built.file,
            "steps": built.steps,
            "cachedSteps": built.cached_steps,
        }));
    }
    for name in names(&built) {
        context.ui.say(&format!("named {name}"));
    }
    // Scripts written for buildah expect the image ID on the last line of stdout.
    context.ui.line(built.image_id.hex())
}

/// Writes the same document as `imgctl sbom`.
fn write_sbom(path: &Path, built: &Built, context: &Context) -> Result<()> {
    let store = context.store()?;
    let mut image = store.image_at(&built.descriptor, None)?;
    image.reference = built.names.first().cloned();
    let options = SbomOptions { files: true, timestamp: None };
    let text = sbom::document(store, &image, &options, context.ui.reporter())?;
    std::fs::write(path, text).path("write", path)
}

/// Returns the digest of the Kubefile if it is a file that can be read again.
fn kubefile_digest(args: &BuildArgs, name: &str) -> Option<Digest> {
    let here = args.file.as_ref().map(|_| PathBuf::from(name));
    here.into_iter()
        .chain([args.context.join(name)])
        .find_map(|path| std::fs::read(path).ok())
        .map(|bytes| Digest::of(&bytes))
}

fn check(options: &build::Options, context: &Context) -> Result<()> {
    let colour = context.ui.colours_stdout();
    let (findings, is_bad) = build::check(context.store()?, options, colour)?;
    context.ui.print(&findings)?;
    if is_bad {
        return Err(Error::new(Kind::CheckFailed, "the Kubefile has errors"));
    }
    Ok(())
}

fn names(built: &Built) -> Vec<String> {
    built.names.iter().map(ToString::to_string).collect()
}

/// Returns the members that BuildKit writes, for scripts that look them up.
fn metadata(built: &Built) -> serde_json::Value {
    json!({
        "containerimage.config.digest": built.image_id,
        "containerimage.descriptor": built.descriptor,
        "containerimage.digest": built.descriptor.digest,
        "image.name": names(built).join(","),
    })
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).path("write", path)
}
