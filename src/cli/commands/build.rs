//! `imgctl build`.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub(crate) use crate::cli::commands::build_args::BuildArgs;
use crate::cli::commands::build_inputs::Inputs;
use crate::cli::commands::build_reports::Reports;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::progress::Reporter;
use imgctl_build::build::deliver::{deliver, export_cache};
use imgctl_build::build::{self, Built};
use imgctl_frontend::context::Context;
use imgctl_store::store::Store;
use imgctl_transfer::transfer::publish::Published;
use imgctl_ui::edge::Stdout;

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
    /// An output has stdout.
    to_stdout: bool,
    /// What `--metadata-file` contains.
    pub(crate) metadata: Value,
}

/// Like [`run`], but shows only progress. Returns `None` if nothing was to be built.
pub(crate) fn make(args: &BuildArgs, context: &Context) -> Result<Option<Made>> {
    let Some(ready) = Ready::new(args, context)? else { return Ok(None) };
    let grouped = ready.reports.reporter(context);
    let reporter = grouped.as_deref().unwrap_or(context.ui.reporter());
    let built = ready.build(context.store()?, reporter);
    ready.finish(built, reporter, context).map(Some)
}

/// Returns the reporter for builds with these arguments, if it is not the usual one.
pub(crate) fn reporter<'a>(
    args: &BuildArgs,
    context: &'a Context,
) -> Result<Option<Box<dyn Reporter + 'a>>> {
    Ok(Reports::resolve(&args.reports, context)?.reporter(context))
}

/// A build that can begin: all inputs are resolved.
pub(crate) struct Ready {
    pub(crate) inputs: Inputs,
    reports: Reports,
    iidfile: Option<PathBuf>,
    metadata_file: Option<PathBuf>,
}

impl Ready {
    /// Resolves the inputs. Returns `None` if nothing is to be built, such as after a check.
    pub(crate) fn new(args: &BuildArgs, context: &Context) -> Result<Option<Self>> {
        let reports = Reports::resolve(&args.reports, context)?;
        let failed = |error: &Error| reports.failed(error, context);
        let inputs = Inputs::resolve(args, &reports, context).inspect_err(failed)?;
        Ok(inputs.map(|inputs| Self {
            inputs,
            reports,
            iidfile: args.iidfile.clone(),
            metadata_file: args.metadata_file.clone(),
        }))
    }

    /// Builds. Several may do so at the same time.
    pub(crate) fn build(&self, store: &Store, reporter: &dyn Reporter) -> Result<Built> {
        build::build(store, &self.inputs.options, reporter)
    }

    /// Brings the result where it is wanted, and reports it.
    pub(crate) fn finish(
        self,
        built: Result<Built>,
        reporter: &dyn Reporter,
        context: &Context,
    ) -> Result<Made> {
        let delivered = built.and_then(|built| self.deliver(built, reporter, context));
        delivered.inspect_err(|error| self.reports.failed(error, context))
    }

    fn deliver(&self, built: Built, reporter: &dyn Reporter, context: &Context) -> Result<Made> {
        let store = context.store()?;
        let Inputs { options, outputs, client, before } = &self.inputs;
        outputs.write_documents(&built, context)?;
        let stdout = || -> Box<dyn Write + Send> { Box::new(Stdout::open()) };
        let published = deliver(store, client, &built, &outputs.delivery, &stdout, reporter)?;
        if let Some(path) = &self.iidfile {
            write(path, &built.image_id.to_string())?;
        }
        let metadata = metadata(&built, &published);
        if let Some(path) = &self.metadata_file {
            let text = serde_json::to_string_pretty(&metadata)
                .map_err(|error| Error::failed("cannot write the metadata").caused_by(error))?;
            write(path, &format!("{text}\n"))?;
        }
        export_cache(store, options, &built, reporter)?;
        let compared = self.reports.built(&built, before.as_ref(), &metadata, context)?;
        let to_stdout = outputs.delivery.uses_stdout();
        Ok(Made { built, published, compared, to_stdout, metadata })
    }
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
        if self.to_stdout {
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
