//! Builds the targets of a bake, side by side as far as none needs another's result. Must not read files of
//! definitions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use crate::cli::commands::bake_flags::{self, Common};
use crate::cli::commands::bake_rights::Rights;
use crate::cli::commands::build::{self, BuildArgs, Made, Ready};
use crate::cli::commands::{build_options, build_output};
use imgctl_bake::Target;
use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_base::progress::{Reporter, Task, Unit};
use imgctl_build::build::{Built, Turns};
use imgctl_frontend::context::Context;
use imgctl_frontend::mirror_options::MirrorArgs;
use imgctl_frontend::registry_options::RegistryArgs;

/// The targets of one command, in an order in which each follows those that it needs.
pub(crate) struct Builds<'a> {
    /// Each with whether it was asked for itself.
    pub(crate) targets: Vec<(&'a Target, bool)>,
    pub(crate) common: Common,
    pub(crate) registry: &'a RegistryArgs,
    pub(crate) mirror: &'a MirrorArgs,
    pub(crate) rights: &'a Rights<'a>,
}

/// A build that has ended.
struct Ended<'a> {
    target: &'a Target,
    ready: Ready,
    built: Result<Built>,
}

impl Builds<'_> {
    /// Builds all, and returns what was made by target. After a failure, none begins; those that run end.
    pub(crate) fn build(&self, context: &Context) -> Result<BTreeMap<String, Made>> {
        self.check_rights(context)?;
        let store = context.store()?;
        let grouped = build::reporter(&self.parsed(&[])?, context)?;
        let reporter = grouped.as_deref().unwrap_or(context.ui.reporter());
        let turns = Turns::default();
        let names: BTreeSet<&str> = self.targets.iter().map(|(target, _)| &*target.name).collect();
        let at_once = std::thread::available_parallelism().map_or(2, usize::from).max(2);
        let mut waiting = self.targets.clone();
        let mut finished = BTreeSet::new();
        let (mut made, mut digests) = (BTreeMap::new(), BTreeMap::new());
        let mut failure: Option<Error> = None;
        let mut running = 0;
        let (sender, receiver) = mpsc::channel::<Ended<'_>>();
        std::thread::scope(|threads| {
            loop {
                while failure.is_none() && running < at_once {
                    let is_free = |target: &Target| {
                        needs(target).all(|name| !names.contains(name) || finished.contains(name))
                    };
                    let Some(at) = waiting.iter().position(|(target, _)| is_free(target)) else {
                        break;
                    };
                    let (target, is_wanted) = waiting.remove(at);
                    let failed = || failed(target);
                    context.ui.say(&format!("target {}", target.name));
                    let prepared = self.prepare(target, is_wanted, &digests, context);
                    match prepared.context(failed) {
                        Ok(None) => drop(finished.insert(target.name.as_str())),
                        Ok(Some((mut ready, file))) => {
                            ready.inputs.options.turns = turns.clone();
                            let sender = sender.clone();
                            let names_all = names.len() > 1;
                            running += 1;
                            threads.spawn(move || {
                                let named = OfTarget { name: &target.name, to: To::All(reporter) };
                                let reporter: &dyn Reporter =
                                    if names_all { &named } else { reporter };
                                let build = || ready.build(store, reporter);
                                let built =
                                    catch_unwind(AssertUnwindSafe(build)).unwrap_or_else(|_| {
                                        Err(Error::failed("the thread of a target has panicked"))
                                    });
                                drop(file);
                                // The receiver waits for every thread.
                                let _ = sender.send(Ended { target, ready, built });
                            });
                        }
                        Err(error) => failure = Some(error),
                    }
                }
                if running == 0 {
                    break;
                }
                let Ok(ended) = receiver.recv() else { break };
                running -= 1;
                let (name, failed) = (&ended.target.name, || failed(ended.target));
                match ended.ready.finish(ended.built, reporter, context).context(failed) {
                    Ok(result) => {
                        result.tell(context);
                        finished.insert(name.as_str());
                        digests.insert(name.clone(), result.built.descriptor.digest.to_string());
                        made.insert(name.clone(), result);
                    }
                    // The first one is the reason.
                    Err(error) => drop(failure.get_or_insert(error)),
                }
            }
        });
        match failure {
            Some(error) => Err(error),
            None => Ok(made),
        }
    }

    /// Fails before the first build if one of them needs a right that is not given.
    fn check_rights(&self, context: &Context) -> Result<()> {
        let names = self.targets.iter().map(|(target, _)| (target.name.clone(), String::new()));
        let results: BTreeMap<String, String> = names.collect();
        let agent = context.environment.path("SSH_AUTH_SOCK");
        for (target, is_wanted) in &self.targets {
            // Standard input stands for the Kubefile that a target contains.
            let own = target.dockerfile_inline.as_ref().map(|_| "-");
            let flags = bake_flags::of(target, *is_wanted, &self.common, &results, own);
            let args = self.parsed(&flags)?;
            let resolved = || -> Result<_> {
                let mut options = build_options::resolve(&args, context)?;
                let outputs = build_output::resolve(&args.output, &mut options, context)?;
                Ok((options, outputs))
            };
            let (options, outputs) = resolved().context(|| failed(target))?;
            self.rights.check(&target.name, (&options, &outputs), agent.as_deref())?;
        }
        Ok(())
    }

    /// Resolves a target. The file with its own Kubefile must stay until it is built.
    fn prepare(
        &self,
        target: &Target,
        is_wanted: bool,
        digests: &BTreeMap<String, String>,
        context: &Context,
    ) -> Result<Option<(Ready, Option<File>)>> {
        let file = target.dockerfile_inline.as_deref().map(inline).transpose()?;
        let path = file.as_ref().map(|file| format!("/proc/self/fd/{}", file.as_raw_fd()));
        let flags = bake_flags::of(target, is_wanted, &self.common, digests, path.as_deref());
        let ready = Ready::new(&self.parsed(&flags)?, context)?;
        Ok(ready.map(|ready| (ready, file)))
    }

    fn parsed(&self, flags: &[String]) -> Result<BuildArgs> {
        let mut parsed = BuildArgs::of_flags(flags)?;
        parsed.registry = self.registry.clone();
        parsed.mirror = self.mirror.clone();
        Ok(parsed)
    }
}

fn failed(target: &Target) -> String {
    format!("cannot build the target `{}`", target.name)
}

/// Returns the targets whose results are contexts of `target`.
fn needs(target: &Target) -> impl Iterator<Item = &str> {
    target.contexts.values().filter_map(|source| source.strip_prefix("target:"))
}

/// Returns a file in memory with a Kubefile that a target contains.
fn inline(text: &str) -> Result<File> {
    let doing = || "cannot keep the Kubefile of a target".to_owned();
    let memory = rustix::fs::memfd_create("Kubefile", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(memory.map_err(std::io::Error::from).doing(doing)?);
    file.write_all(text.as_bytes()).doing(doing)?;
    Ok(file)
}

/// Names the target in everything that its build reports.
struct OfTarget<'a> {
    name: &'a str,
    to: To<'a>,
}

enum To<'a> {
    All(&'a dyn Reporter),
    Sequence(Box<dyn Reporter + 'a>),
}

impl OfTarget<'_> {
    fn to(&self) -> &dyn Reporter {
        match &self.to {
            To::All(reporter) => *reporter,
            To::Sequence(reporter) => &**reporter,
        }
    }
}

impl Reporter for OfTarget<'_> {
    fn start(&self, title: &str, unit: Unit, total: Option<u64>) -> Box<dyn Task> {
        self.to().start(&format!("{}: {title}", self.name), unit, total)
    }

    fn note(&self, message: &str) {
        self.to().note(&format!("{}: {message}", self.name));
    }

    fn output(&self, line: &[u8], error_stream: bool) {
        self.to().output(&[self.name.as_bytes(), b": ", line].concat(), error_stream);
    }

    /// `[stage 1/4] RUN` becomes `[target stage 1/4] RUN` (buildx).
    fn step(&self, title: &str) {
        self.to().step(&match title.strip_prefix('[') {
            Some(rest) => format!("[{} {rest}", self.name),
            None => format!("{}: {title}", self.name),
        });
    }

    fn sequence(&self) -> Option<Box<dyn Reporter + '_>> {
        let to = self.to().sequence()?;
        Some(Box::new(OfTarget { name: self.name, to: To::Sequence(to) }))
    }
}
