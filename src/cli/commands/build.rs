//! `imgctl build`.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

pub(crate) use crate::cli::commands::build_args::BuildArgs;
use crate::cli::commands::build_reports::Reports;
use crate::cli::commands::{build_embedding, build_options, build_output};
use crate::cli::{context::Context, registry_options::RegistryArgs};
use crate::ui::edge::Stdout;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_build::build::deliver::{Delivery, deliver, export_cache};
use imgctl_build::build::{self, Built};
use imgctl_transfer::transfer::publish::Published;

/// Builds the image and brings it where it is wanted, or checks the Kubefile.
pub(crate) fn run(args: &BuildArgs, context: &Context) -> Result<()> {
    let reports = Reports::resolve(&args.reports, context)?;
    let outcome = build(args, &reports, context);
    if let Err(error) = &outcome {
        reports.failed(error, context);
    }
    outcome
}

fn build(args: &BuildArgs, reports: &Reports, context: &Context) -> Result<()> {
    let mut options = build_options::resolve(args, context)?;
    if args.checks()? {
        return check(&options, reports, context);
    }
    let store = context.store()?;
    let grouped = reports.reporter(context);
    let reporter = grouped.as_deref().unwrap_or(context.ui.reporter());
    if args.embed.images_report {
        let report = build::embedding::report(store, &options, reporter)?;
        return build_embedding::show(&report, context);
    }
    let outputs = build_output::resolve(&args.output, &mut options, context)?;
    let one = options.platforms.len() < 2 && !options.all_platforms;
    if outputs.sbom.is_some() && !one {
        return Err(Error::usage(
            "--sbom FILE supports only one platform, as each has its own contents",
        )
        .hint("attach one to each with --attest type=sbom, or run `imgctl sbom --platform`"));
    }
    let client = match outputs.insecure && args.registry.tls_verify.is_none() {
        true => {
            let registry = RegistryArgs { tls_verify: Some(false), ..args.registry.clone() };
            registry.client(context)?
        }
        false => match &options.base_images.client {
            Some(client) => client.clone(),
            None => args.registry.client(context)?,
        },
    };
    options.lint = reports.want_findings();
    let before = reports.before(&options, context)?;
    let built = build::build(store, &options, reporter)?;
    outputs.write_documents(&built, context)?;
    let stdout = || -> Box<dyn Write + Send> { Box::new(Stdout::new()) };
    let delivery = &outputs.delivery;
    let published = deliver(store, &client, &built, delivery, &stdout, reporter)?;
    if let Some(path) = &args.iidfile {
        write(path, &built.image_id.to_string())?;
    }
    let metadata = metadata(&built, &published);
    if let Some(path) = &args.metadata_file {
        let text = serde_json::to_string_pretty(&metadata)
            .map_err(|error| Error::failed("cannot write the metadata").caused_by(error))?;
        write(path, &format!("{text}\n"))?;
    }
    export_cache(store, &options, &built, reporter)?;
    let compared = reports.built(&built, before.as_ref(), &metadata, context)?;
    show(&built, &published, compared.as_ref(), delivery, context)
}

fn show(
    built: &Built,
    published: &[Published],
    compared: Option<&Value>,
    delivery: &Delivery,
    context: &Context,
) -> Result<()> {
    if context.ui.is_json() {
        let pushed = |place: &Published| {
            json!({
                "name": place.name.to_string(),
                "digest": place.report.root.digest,
                "upToDate": place.report.up_to_date,
                "bytesCopied": place.report.moved.bytes,
            })
        };
        return context.ui.json(&json!({
            "id": built.image_id,
            "digest": built.descriptor.digest,
            "mediaType": built.descriptor.media_type,
            "size": built.descriptor.size,
            "names": names(built),
            "stored": built.is_stored(),
            "manifests": built.manifests,
            "file": built.file,
            "steps": built.steps.total,
            "cachedSteps": built.steps.cached,
            "pushed": published.iter().map(pushed).collect::<Vec<_>>(),
            "compared": compared,
        }));
    }
    for name in names(built).iter().filter(|_| built.is_stored()) {
        context.ui.say(&format!("named {name}"));
    }
    for place in published.iter().filter(|place| place.name.tag().is_some()) {
        let digest = &place.report.root.digest;
        context.ui.say(&match place.report.up_to_date {
            true => format!("{} is up to date ({digest})", place.name),
            false => format!("pushed {} ({digest})", place.name),
        });
    }
    if delivery.uses_stdout() {
        return Ok(());
    }
    let mut by_digest = published.iter().filter(|place| place.name.digest().is_some()).peekable();
    if by_digest.peek().is_some() {
        // For `imgctl manifest create LIST $(imgctl build -q …)`.
        return by_digest.try_for_each(|place| context.ui.line(&place.name.to_string()));
    }
    // Scripts written for buildah expect the image ID on the last line of stdout.
    context.ui.line(built.image_id.hex())
}

fn check(options: &build::Options, reports: &Reports, context: &Context) -> Result<()> {
    let checked = build::check(context.store()?, options)?;
    reports.checked(&checked, context)?;
    if checked.fails {
        return Err(Error::new(Kind::CheckFailed, "the Kubefile has errors"));
    }
    Ok(())
}

fn names(built: &Built) -> Vec<String> {
    built.names.iter().map(ToString::to_string).collect()
}

/// Returns the members that BuildKit writes, for scripts that look them up.
fn metadata(built: &Built, published: &[Published]) -> Value {
    let mut names = names(built);
    for name in published.iter().map(|place| place.name.to_string()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    json!({
        "containerimage.config.digest": built.image_id,
        "containerimage.descriptor": built.descriptor,
        "containerimage.digest": built.descriptor.digest,
        "image.name": names.join(","),
    })
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).path("write", path)
}
