//! `imgctl build`.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

pub(crate) use crate::cli::commands::build_args::BuildArgs;
use crate::cli::commands::build_call::{self, Call, Method};
use crate::cli::commands::build_reports::Reports;
use crate::cli::commands::{build_options, build_output};
use crate::cli::{context::Context, registry_options::RegistryArgs};
use crate::ui::edge::Stdout;
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_build::build::deliver::{Delivery, deliver, export_cache};
use imgctl_build::build::{self, Built};
use imgctl_transfer::transfer::publish::Published;

/// Builds the image and brings it where it is wanted, or checks the Kubefile.
pub(crate) fn run(args: &BuildArgs, context: &Context) -> Result<()> {
    match make(args, context)? {
        Some(made) => made.show(context),
        None => Ok(()),
    }
}

/// A finished build.
pub(crate) struct Made {
    pub(crate) built: Built,
    published: Vec<Published>,
    compared: Option<Value>,
    delivery: Delivery,
    /// What `--metadata-file` contains.
    pub(crate) metadata: Value,
}

/// Like [`run`], but shows only progress. Returns `None` if nothing was to be built.
pub(crate) fn make(args: &BuildArgs, context: &Context) -> Result<Option<Made>> {
    let reports = Reports::resolve(&args.reports, context)?;
    let outcome = build(args, &reports, context);
    if let Err(error) = &outcome {
        reports.failed(error, context);
    }
    outcome
}

fn build(args: &BuildArgs, reports: &Reports, context: &Context) -> Result<Option<Made>> {
    let mut options = build_options::resolve(args, context)?;
    let call = args.call.as_deref().map(Call::parse).transpose()?;
    match call {
        Some(Call { method: Method::Targets, is_json, .. }) => {
            return build_call::targets(&options, is_json, context).map(|()| None);
        }
        Some(Call { method: Method::Outline, is_json, .. }) => {
            return build_call::outline(&options, is_json, context).map(|()| None);
        }
        Some(call) if call.method == Method::Check => {
            return check(&options, Some(call), reports, context).map(|()| None);
        }
        _ if args.check => return check(&options, None, reports, context).map(|()| None),
        _ => {}
    }
    let store = context.store()?;
    let grouped = reports.reporter(context);
    let reporter = grouped.as_deref().unwrap_or(context.ui.reporter());
    if args.embed.images_report {
        return build_call::images(&options, reporter, context).map(|()| None);
    }
    let outputs = build_output::resolve(&args.output, &mut options, context)?;
    let one = options.platforms.len() < 2 && !options.all_platforms;
    if outputs.sbom.is_some() && !one {
        return Err(Error::usage(
            "--sbom FILE supports only one platform, as each has its own contents",
        )
        .hint("attach one to each with --attest type=sbom, or run `imgctl sbom --platform`"));
    }
    let client = if outputs.insecure && args.registry.tls_verify.is_none() {
        let registry = RegistryArgs { tls_verify: Some(false), ..args.registry.clone() };
        registry.client(context)?
    } else {
        match &options.base_images.client {
            Some(client) => client.clone(),
            None => args.registry.client(context)?,
        }
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
    let delivery = outputs.delivery;
    Ok(Some(Made { built, published, compared, delivery, metadata }))
}

impl Made {
    /// Returns the result as `--json` shows it.
    pub(crate) fn json(&self) -> Value {
        let pushed = |place: &Published| {
            json!({
                "name": place.name.to_string(),
                "digest": place.report.root.digest,
                "upToDate": place.report.up_to_date,
                "bytesCopied": place.report.moved.bytes,
            })
        };
        let built = &self.built;
        json!({
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
            "pushed": self.published.iter().map(pushed).collect::<Vec<_>>(),
            "compared": self.compared,
        })
    }

    /// Says where the image is.
    pub(crate) fn tell(&self, context: &Context) {
        for name in names(&self.built).iter().filter(|_| self.built.is_stored()) {
            context.ui.say(&format!("named {name}"));
        }
        for place in self.published.iter().filter(|place| place.name.tag().is_some()) {
            let digest = &place.report.root.digest;
            context.ui.say(&if place.report.up_to_date {
                format!("{} is up to date ({digest})", place.name)
            } else {
                format!("pushed {} ({digest})", place.name)
            });
        }
    }

    fn show(&self, context: &Context) -> Result<()> {
        if context.ui.is_json() {
            return context.ui.json(&self.json());
        }
        self.tell(context);
        if self.delivery.uses_stdout() {
            return Ok(());
        }
        let mut by_digest =
            self.published.iter().filter(|place| place.name.digest().is_some()).peekable();
        if by_digest.peek().is_some() {
            // For `imgctl manifest create LIST $(imgctl build -q …)`.
            return by_digest.try_for_each(|place| context.ui.line(&place.name.to_string()));
        }
        // Scripts written for buildah expect the image ID on the last line of stdout.
        context.ui.line(self.built.image_id.hex())
    }
}

fn check(
    options: &build::Options,
    call: Option<Call>,
    reports: &Reports,
    context: &Context,
) -> Result<()> {
    let checked = build::check(context.store()?, options)?;
    if call.is_some_and(|call| call.is_json) {
        build_call::checked(&checked, context)?;
    } else {
        reports.checked(&checked, context)?;
    }
    if call.is_some_and(|call| call.ignores_status) {
        return Ok(());
    }
    if checked.has_mistakes() {
        return Err(Error::usage(format!("{} has mistakes", checked.name)));
    }
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
