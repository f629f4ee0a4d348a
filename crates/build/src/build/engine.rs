//! Executes a plan: runs every needed stage on its own thread; each waits for the stages it needs.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::build::addresses::Addresses;
use crate::build::attest;
use crate::build::checked::Checked;
use crate::build::context;
use crate::build::context_files;
use crate::build::embedding::{self, Embedding};
use crate::build::file::{self, Source};
use crate::build::lint;
use crate::build::lock_file;
use crate::build::materials::Materials;
use crate::build::options::{Attested, Built, MULTI_PLATFORM, Options, StepCounts};
use crate::build::output::{self, Written};
use crate::build::plan::{self, BuildPlan, From, StagePlan};
use crate::build::run_mounts::CACHE_MOUNT_NS;
use crate::build::run_step::HOSTNAME;
use crate::build::scope;
use crate::build::shared::{Results, Shared, StageImage};
use crate::build::stage::Stage;
use crate::build::step_cache::{StatCache, StepCache};
use crate::cache::export::Collected;
use crate::cache::records::Used;
use crate::cache::{import, inline};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, Platform, Reference, Verdict};
use imgctl_base::place::Place;
use imgctl_base::progress::Reporter;
use imgctl_base::settings::SETTINGS;
use imgctl_base::text::without_logins;
use imgctl_kubefile as kubefile;
use imgctl_kubefile::ast::{Instruction, InstructionKind, Kubefile};
use imgctl_kubefile::check::PROXY_ARGS;
use imgctl_kubefile::diagnostic::{self, Severity};
use imgctl_store::store::Store;
use imgctl_trust::provenance::Material;

/// The time of the build, as an argument.
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// Builds according to `options` and names the result. The error of a build that fails names the places of
/// what the checks have found, too.
pub fn build(store: &Store, options: &Options, reporter: &dyn Reporter) -> Result<Built> {
    let mut found = Vec::new();
    build_noting(store, options, reporter, &mut found).map_err(|error| error.at(found))
}

/// Builds, and adds what the checks find to `found`.
fn build_noting(
    store: &Store,
    options: &Options,
    reporter: &dyn Reporter,
    found: &mut Vec<Place>,
) -> Result<Built> {
    attest::check(options)?;
    let sources = if options.no_cache { &[] } else { options.cache.from.as_slice() };
    let importing = import::start(sources, store, options.base_images.client.as_ref());
    let (directory, source) = file::load(store, options)?;
    let mut kubefile = source.parse(options).inspect_err(|_| {
        // The error itself matters more than why the checks fail.
        if let Ok(checked) = lint::check_source(store, options, directory.as_ref(), &source) {
            found.extend(beside(&checked, &source));
        }
    })?;
    let options = &with_source_date_epoch(options, &source, &kubefile)?;
    if let (Some(image), Some(first)) = (&options.overrides.from, kubefile.stages.first_mut()) {
        first.from.image.clone_from(image);
    }
    reporter.note(&format!("building from {}", source.name));
    let mut context = file::context_tree(options, directory.as_ref(), &source)?;
    // A mistake in the plan is told below, with what the build knows.
    let stages = lint::needed(options, &source, &kubefile).ok();
    let checked = lint::checked(store, options, context.as_ref(), &source, &kubefile, stages)?;
    found.extend(beside(&checked, &source));
    if checked.fails {
        let why = format!("the checks of {} have findings, which it calls errors", source.name);
        return Err(Error::new(Kind::CheckFailed, why)
            .lines(checked.render(false).lines())
            .hint("correct them, or remove error=true from its `# check=` directive"));
    }
    let settings = context_files::settings(context.as_ref())?;
    let lease = store.lease()?;
    let files =
        Mutex::new(open_stat_cache(store, options, directory.as_ref().map(|d| d.path.as_path())));
    let platforms = &*platforms(store, options, &source, &kubefile, reporter)?;
    let mut lock = lock_file::read(options, context.as_ref())?;
    lock.check_charts(context.as_ref(), reporter)?;
    let embedding = embedding::prepare(
        store,
        options,
        context.as_ref(),
        platforms,
        &files,
        &mut lock,
        reporter,
    )?;
    if let (Some(_), Some(context)) = (&embedding, &mut context) {
        context.add_embedded_registry();
    }
    let imported = importing.finish(reporter);
    let cache = StepCache::new(store, !options.no_cache, imported, options.cache.leave);
    for name in &options.no_cache_stages {
        if !kubefile.stages.iter().any(|stage| stage.from.name.as_ref() == Some(name)) {
            reporter
                .note(&format!("--no-cache-filter {name} has no effect: there is no such stage"));
        }
    }
    let addresses = Addresses::new(&lock, &options.mirrors);
    let emptied = Mutex::default();
    let mut counts = StepCounts::default();
    let images = until_there(&cache, embedding.as_ref(), reporter, &mut || {
        counts = StepCounts::default();
        let mut images = Vec::new();
        for platform in platforms {
            let results = Results::default();
            let materials = Materials::default();
            let shared = Shared {
                store,
                options,
                source: &source,
                kubefile: &kubefile,
                context: context.as_ref(),
                platform,
                lease: &lease,
                cache: &cache,
                files: &files,
                reporter,
                results: &results,
                emptied: &emptied,
                materials: &materials,
                addresses: &addresses,
            };
            let built = build_platform(&shared, platform).map(|(mut image, counts)| {
                // The image is for the platform that was asked for, whatever its base is for (BuildKit).
                if options.all_platforms || !options.platforms.is_empty() {
                    image.set_platform(platform);
                }
                (image, counts)
            });
            let (mut image, own) = match platforms {
                [_] => built?,
                _ => built.context(|| format!("cannot build for {platform}"))?,
            };
            counts += own;
            if let Some(settings) = &settings {
                image.config.config.labels.insert(SETTINGS.to_owned(), settings.to_label());
            }
            if let Some(embedding) = &embedding {
                image = embedding.add_to(&shared, image)?;
            }
            images.push(Finished {
                image,
                used: cache.take_used(),
                materials: materials.into_set(),
            });
        }
        Ok(images)
    })?;
    save_stat_cache(files, reporter);
    let found = addresses.into_found();
    let names: Vec<String> = platforms.iter().map(ToString::to_string).collect();
    lock.update_addresses(options, found, &names, reporter)?;
    let layers = layers_of(&images);
    let (mut written, mut used) = (Vec::new(), Used::new());
    for Finished { mut image, used: now_used, materials } in images {
        if options.cache.inline {
            let own: Vec<_> = image.layers.iter().map(|layer| &layer.descriptor.digest).collect();
            inline::write(&mut image.config, &now_used, &own, &|key, basis, layers| {
                cache.recorded(store, key, basis, layers)
            })?;
        }
        used.extend(now_used);
        written.push(output::write_image(store, options, &image, materials)?);
    }
    let all = written.iter().flat_map(|image| image.materials.iter().cloned()).collect();
    let origins = cache.remotes().origins(&layers);
    let named = name_images(store, options, &source, &written, origins.is_empty(), reporter)?;
    let findings = match checked.findings.len() {
        0 => None,
        1 => Some("a finding; `imgctl build --check` shows it".to_owned()),
        more => Some(format!("{more} findings; `imgctl build --check` shows them")),
    };
    findings.into_iter().for_each(|what| reporter.note(&format!("the checks have {what}")));
    Ok(Built {
        descriptor: named.descriptor,
        image_id: named.image_id,
        is_list: options.is_list()? == Some(true),
        manifests: written.into_iter().map(|image| image.descriptor).collect(),
        names: named.names,
        origins,
        attested: named.attested,
        file: source.name.clone(),
        invocation: attest::invocation(options, &source, all),
        steps: counts,
        cache: Collected { used, result: layers },
        imported: Arc::clone(cache.imported()),
        checked: options.lint.then_some(checked),
    })
}

/// Returns the places of findings that are no mistakes.
fn beside(checked: &Checked, source: &Source) -> Vec<Place> {
    let findings = checked.findings.iter().filter(|found| found.severity == Severity::Warning);
    findings.filter_map(|found| source.place(found)).collect()
}

/// The image of one platform, and what its build took.
struct Finished {
    image: StageImage,
    used: Used,
    materials: BTreeSet<Material>,
}

/// Builds, and builds again without what a cache has lost, until every layer is in the store or in a
/// registry.
fn until_there(
    cache: &StepCache,
    embedding: Option<&Embedding>,
    reporter: &dyn Reporter,
    build: &mut dyn FnMut() -> Result<Vec<Finished>>,
) -> Result<Vec<Finished>> {
    loop {
        match build() {
            Ok(images) if cache.remotes().are_there(&layers_of(&images))? => return Ok(images),
            Ok(_) => {}
            Err(error) if cache.remotes().has_failed() => {
                tracing::warn!("{}", error.chain().join(": "));
            }
            Err(error) => return Err(error),
        }
        reporter.note("building again without these layers of the build cache");
        cache.restart();
        if let Some(embedding) = embedding {
            embedding.restart();
        }
    }
}

fn layers_of(images: &[Finished]) -> BTreeSet<Digest> {
    let layers = images.iter().flat_map(|finished| &finished.image.layers);
    layers.map(|layer| layer.descriptor.digest.clone()).collect()
}

/// The argument SOURCE_DATE_EPOCH, from the command line or declared before the first FROM, is
/// equivalent to the environment variable (reproducible-builds.org, as in BuildKit).
fn with_source_date_epoch(
    options: &Options,
    source: &Source,
    kubefile: &Kubefile,
) -> Result<Options> {
    let mut options = options.clone();
    if options.timestamp.is_none() {
        let globals = plan::global_scope(source, kubefile, &options, &Platform::host())?;
        let given = options.build_args.get(EPOCH).cloned().or_else(|| globals.get(EPOCH));
        // An empty value is none.
        options.timestamp = given
            .filter(|text| !text.is_empty())
            .map(|text| {
                text.parse().map_err(|_| {
                    Error::usage(format!("the build argument {EPOCH} is `{text}`"))
                        .hint("it must be a number of seconds since 1970")
                })
            })
            .transpose()?;
    }
    Ok(options)
}

/// What a build is called.
struct Named {
    descriptor: Descriptor,
    image_id: Digest,
    names: Vec<Reference>,
    attested: Vec<Attested>,
}

/// Describes the images of all platforms, and names the result. `is_here`: the store has all of it, and
/// names it.
fn name_images(
    store: &Store,
    options: &Options,
    source: &Source,
    written: &[Written],
    is_here: bool,
    reporter: &dyn Reporter,
) -> Result<Named> {
    let Some(first) = written.first() else {
        return Err(Error::usage("there is no platform to build for"));
    };
    let is_list = options.is_list()?;
    if is_list == Some(false) && written.len() > 1 {
        return Err(Error::usage(format!(
            "the build argument {MULTI_PLATFORM} is false, and {} platforms are built",
            written.len()
        )));
    }
    let image_id = first.config.clone();
    let names: Vec<_> = options.tags.iter().map(Reference::qualified).collect();
    let attested = attest::documents(store, options, source, &names, written, reporter)?;
    let entries = attest::entries(store, options, &attested)?;
    let descriptor = match written {
        [single] if entries.is_empty() && is_list != Some(true) => single.descriptor.clone(),
        several => output::write_index(store, options, several, entries)?,
    };
    if is_here {
        let verdict = Verdict::made_from(&options.base_images.verdicts());
        store.tag(&names, &descriptor, &verdict)?;
    }
    Ok(Named { descriptor, image_id, names, attested })
}

/// Returns the platforms to build for.
fn platforms<'a>(
    store: &Store,
    options: &'a Options,
    source: &Source,
    kubefile: &Kubefile,
    reporter: &dyn Reporter,
) -> Result<Cow<'a, [Platform]>> {
    if !options.all_platforms {
        return Ok(options.platforms_or_own());
    }
    let host = Platform::host();
    let globals = plan::global_scope(source, kubefile, options, &host)?;
    let target = options.target.as_deref();
    let plan = plan::plan(source, kubefile, target, &options.build_contexts, &globals, &host)?;
    let fixed = |stage: &&StagePlan| {
        kubefile.stages.get(stage.index).is_some_and(|stage| stage.from.platform.is_some())
    };
    let free: Vec<&StagePlan> = plan.stages.iter().filter(|stage| !fixed(stage)).collect();
    let bases: Vec<&str> = plan::images(&free, &options.build_contexts);
    let platforms = options.base_images.common_platforms(store, &bases)?;
    let list: Vec<String> = platforms.iter().map(ToString::to_string).collect();
    reporter.note(&format!("building for {}", list.join(", ")));
    Ok(Cow::Owned(platforms))
}

fn open_stat_cache(store: &Store, options: &Options, context: Option<&Path>) -> StatCache {
    let identity = context.and_then(|path| std::fs::canonicalize(path).ok());
    let identity = identity.map(|path| context::identity(&path)).unwrap_or_default();
    let name = blake3::hash(&identity).to_hex();
    StatCache::open(store.cache_directory().join("stat").join(&name.as_str()[..32]), options.now)
}

/// Failing to save the stat cache only slows down the next build.
fn save_stat_cache(files: Mutex<StatCache>, reporter: &dyn Reporter) {
    if let Ok(files) = files.into_inner()
        && let Err(error) = files.save()
    {
        reporter.note(&format!("cannot save the cache of file digests: {error}"));
    }
}

fn build_platform(shared: &Shared<'_>, platform: &Platform) -> Result<(StageImage, StepCounts)> {
    let kubefile = shared.kubefile;
    let globals = plan::global_scope(shared.source, kubefile, shared.options, platform)?;
    let plan = plan::plan(
        shared.source,
        kubefile,
        shared.options.target.as_deref(),
        &shared.options.build_contexts,
        &globals,
        platform,
    )?;
    warn_unused_args(shared, &plan);
    let target = plan.target().ok_or_else(|| Error::usage("the Kubefile has no stage"))?.index;
    let outcomes: Vec<Result<StepCounts>> = std::thread::scope(|threads| {
        let Some((last, others)) = plan.stages.split_last() else {
            return Vec::new();
        };
        let plan = &plan;
        let handles: Vec<_> = others
            .iter()
            .map(|stage| threads.spawn(move || run_stage(shared, plan, stage)))
            .collect();
        let mut outcomes = vec![run_stage(shared, plan, last)];
        for handle in handles {
            let died = |_| Err(Error::failed("the thread of a stage has panicked"));
            outcomes.push(handle.join().unwrap_or_else(died));
        }
        outcomes
    });
    let mut counts = StepCounts::default();
    for outcome in outcomes {
        counts += outcome?;
    }
    let image = shared.results.get(target)?;
    if shared.options.squash {
        return Ok((output::squash(shared, &image)?, counts));
    }
    Ok((image.as_ref().clone(), counts))
}

fn run_stage(shared: &Shared<'_>, plan: &BuildPlan, stage: &StagePlan) -> Result<StepCounts> {
    if !shared.results.wait(&stage.needs)? {
        // The failed stage reports the reason.
        shared.results.put(stage.index, None)?;
        return Ok(StepCounts::default());
    }
    let reporter = shared.reporter.sequence();
    let shared = &Shared { reporter: reporter.as_deref().unwrap_or(shared.reporter), ..*shared };
    match stage_image(shared, plan, stage) {
        Ok((image, counts)) => {
            shared.results.put(stage.index, Some(Arc::new(image)))?;
            Ok(counts)
        }
        Err(error) => {
            shared.results.put(stage.index, None)?;
            Err(error)
        }
    }
}

fn stage_image(
    shared: &Shared<'_>,
    plan: &BuildPlan,
    planned: &StagePlan,
) -> Result<(StageImage, StepCounts)> {
    let Some(written) = shared.kubefile.stages.get(planned.index) else {
        return Err(Error::failed("a planned stage is not in the Kubefile"));
    };
    let label = |number: usize, text: &str| {
        let total = written.instructions.len();
        let name = if plan.stages.len() > 1 { format!("{} ", planned.name) } else { String::new() };
        shared.reporter.step(&format!("[{name}{number}/{total}] {text}"));
    };
    label(0, &written.from.text);
    let (mut stage, triggers) = Stage::start(shared, planned, &plan.globals)
        .map_err(|error| scope::placed(shared.source, written.from.span, "FROM", error))?;
    if planned.is_replaced {
        return Ok((stage.finish(), StepCounts::default()));
    }
    let mut counts = StepCounts::default();
    for trigger in triggers {
        let escape = shared.kubefile.directives.escape;
        let instruction = kubefile::parse_instruction(&trigger, escape).map_err(|found| {
            diagnostic::into_error(
                &found,
                "an ONBUILD trigger of the base image",
                trigger.as_bytes(),
            )
        })?;
        counts += finish_sources(shared, plan, planned, &instruction)?;
        shared.reporter.step(&format!("[{} ONBUILD] {}", planned.name, without_logins(&trigger)));
        stage.execute(&instruction)?;
    }
    for (index, instruction) in written.instructions.iter().enumerate() {
        label(index + 1, &without_logins(&instruction.text));
        stage.execute(instruction)?;
    }
    counts += stage.counts;
    Ok((stage.finish(), counts))
}

/// Waits for the stages that an instruction takes files from, and builds those that are not in the
/// plan: the triggers of a base image are known only when it is here. Returns their steps.
fn finish_sources(
    shared: &Shared<'_>,
    plan: &BuildPlan,
    user: &StagePlan,
    instruction: &Instruction,
) -> Result<StepCounts> {
    let contexts = &shared.options.build_contexts;
    let mut counts = StepCounts::default();
    for name in plan::sources_of_one(instruction) {
        let source = plan::from_name(shared.kubefile, contexts, name, user.index)
            .map_err(|error| scope::at(shared.source, instruction, error))?;
        let From::Stage(index) = source else { continue };
        let stages = plan::stages_for(
            shared.source,
            shared.kubefile,
            index,
            contexts,
            &plan.globals,
            &plan.platform,
        )?;
        let is_planned = |stage: &StagePlan| plan.stages.iter().any(|one| one.index == stage.index);
        for stage in stages.iter().filter(|stage| !is_planned(stage)) {
            if !shared.results.has(stage.index)? {
                counts += run_stage(shared, plan, stage)?;
            }
        }
        shared.results.wait(&BTreeSet::from([index]))?;
    }
    Ok(counts)
}

/// Warns about build arguments that no ARG declares, which are probably misspelled.
fn warn_unused_args(shared: &Shared<'_>, plan: &BuildPlan) {
    let declared: BTreeSet<&str> = plan
        .stages
        .iter()
        .filter_map(|stage| shared.kubefile.stages.get(stage.index))
        .flat_map(|stage| &stage.instructions)
        .filter_map(|instruction| match &instruction.kind {
            InstructionKind::Arg(arguments) => Some(arguments),
            _ => None,
        })
        .flat_map(|arguments| arguments.iter().map(|(name, _)| name.as_str()))
        .collect();
    for name in shared.options.build_args.keys() {
        let is_known = declared.contains(name.as_str())
            || plan.globals.declared().contains(name)
            || plan.globals.values().contains_key(name)
            || PROXY_ARGS.contains(&name.as_str())
            || [EPOCH, HOSTNAME, CACHE_MOUNT_NS, MULTI_PLATFORM, file::CHECK]
                .contains(&name.as_str());
        if !is_known {
            shared.reporter.note(&format!("--build-arg {name} is not used: no ARG declares it"));
        }
    }
}
