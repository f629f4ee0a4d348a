//! Checks a Kubefile against the files of its context and base images in the store. Must not show
//! the findings.

use std::collections::BTreeSet;
use std::path::Path;

use crate::build::checked::Checked;
use crate::build::context::ContextTree;
use crate::build::embedding;
use crate::build::file::{self, ContextDirectory, Source};
use crate::build::options::Options;
use crate::build::plan::{global_scope, stage_name};
use crate::build::{plan, scope};
use imgctl_base::error::Result;
use imgctl_base::image::{Platform, media_type};
use imgctl_kubefile::ast::Kubefile;
use imgctl_kubefile::check::{self as lint, BaseImage, CheckOptions};
use imgctl_kubefile::diagnostic::Diagnostic;
use imgctl_store::store::Store;

/// Checks the Kubefile of a build without building: the stages that a target needs, or all of them.
pub fn check(store: &Store, options: &Options) -> Result<Checked> {
    let (directory, source) = file::load(store, options)?;
    check_source(store, options, directory.as_ref(), &source)
}

/// Like [`check`], for a Kubefile that is here.
pub(super) fn check_source(
    store: &Store,
    options: &Options,
    directory: Option<&ContextDirectory>,
    source: &Source,
) -> Result<Checked> {
    let (kubefile, mut mistakes) = source.parse_leniently(options)?;
    let context = file::context_tree(options, directory, source)?;
    let mut stages = None;
    // Behind a mistake in the language, findings would be guesses.
    let readable = mistakes.first().map_or(usize::MAX, |first| first.span.line);
    if mistakes.is_empty() {
        match needed(options, source, &kubefile) {
            Ok(needed) => stages = options.target.is_some().then_some(needed),
            Err(error) => mistakes.push(Diagnostic::of_error(&error)),
        }
    }
    let mut checked = checked(store, options, context.as_ref(), source, &kubefile, stages)?;
    checked.findings.retain(|finding| finding.span.line < readable);
    checked.findings.extend(mistakes);
    checked.findings.sort_by_key(|finding| finding.span);
    checked.fails |= checked.has_mistakes();
    Ok(checked)
}

/// Returns the indices of the stages that the build needs.
pub(super) fn needed(
    options: &Options,
    source: &Source,
    kubefile: &Kubefile,
) -> Result<BTreeSet<usize>> {
    let platform = target_platform(options);
    let globals = global_scope(source, kubefile, options, &platform)?;
    let (target, contexts) = (options.target.as_deref(), &options.build_contexts);
    let plan = plan::plan(source, kubefile, target, contexts, &globals, &platform)?;
    Ok(plan.stages.iter().map(|stage| stage.index).collect())
}

/// Returns the platform that is checked: the first one of several.
pub(super) fn target_platform(options: &Options) -> Platform {
    options.platforms_or_own().first().cloned().unwrap_or_else(Platform::host)
}

/// Checks a Kubefile that has been read, with all stages or those that are given.
pub(super) fn checked(
    store: &Store,
    options: &Options,
    context: Option<&ContextTree>,
    source: &Source,
    kubefile: &Kubefile,
    stages: Option<BTreeSet<usize>>,
) -> Result<Checked> {
    let archives = match context.filter(|_| options.embed.save) {
        Some(context) => embedding::archives(context)?,
        None => Vec::new(),
    };
    let base_image = |name: &str, platform: &Platform| {
        let is_replaced = options.build_contexts.get(name).is_some();
        (!is_replaced).then(|| base_image(store, name, platform)).flatten()
    };
    let hides = |source: &str| context.is_some_and(|context| context.hides(source));
    let platform = target_platform(options);
    let name = stage_name(options, kubefile);
    let check_options = CheckOptions {
        labels: options.labels.keys().cloned().collect(),
        build_args: options.build_args.clone(),
        platform_args: scope::platform_args(&Platform::host(), &platform, name),
        platform: Some(platform),
        stages,
        base_image: Some(&base_image),
        archives,
        hides: Some(&hides),
    };
    let findings = lint::check(kubefile, &check_options);
    let fails = lint::fails(&kubefile.directives.check, &findings);
    Ok(Checked {
        name: source.name.clone(),
        path: source.file().map(Path::to_owned),
        text: source.bytes.clone(),
        findings,
        fails,
    })
}

/// Returns what is known of an image of the store. An image for one other platform stands for the one
/// that is wanted, as in a build.
pub(super) fn base_image(store: &Store, name: &str, platform: &Platform) -> Option<BaseImage> {
    let is_image = || {
        let named = store.resolve(name);
        named.is_ok_and(|named| media_type::is_manifest(&named.descriptor.media_type))
    };
    let image = match store.image(name, Some(platform)) {
        Ok(image) => image,
        Err(_) if is_image() => store.image(name, None).ok()?,
        Err(_) => return None,
    };
    let config = &image.config.config;
    Some(BaseImage {
        env: scope::split_env(&config.env),
        triggers: config.on_build.clone(),
        has_shell: config.shell.as_ref().is_some_and(|shell| !shell.is_empty()),
        platform: Some(image.config.platform()),
    })
}
