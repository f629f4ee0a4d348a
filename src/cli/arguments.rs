//! The grammar of the command line: all verbs and the global flags.

use clap::{CommandFactory, Parser, Subcommand};

use crate::cli::accepted;
#[cfg(feature = "testing")]
use crate::cli::commands::simulate;
use crate::cli::commands::{
    add, agent, annotate, apply, attach, build, bundle, cat, cert, completion, copy, create,
    delete, df, diff, env, exec, export, r#gen, help_all, history, host_action, images, inplace,
    inspect, journal, key, load, login, logout, ls, man, manifest, merge, mount, mounts, plan,
    prune, pull, push, rebase, registry, render, reset, rmi, rollback, run, save, sbom, scp, scrub,
    sign, status, tag, tags, tree, umount, uninstall, upgrade, verify, version,
};
use crate::cli::context::Context;
use crate::cli::overview;
use crate::cli::settings::Globals;
use imgctl_base::error::Result;

/// Build, ship, mount and run whole Kubernetes clusters as one OCI image.
#[derive(Debug, Parser)]
#[command(
    name = "imgctl",
    version,
    disable_help_subcommand = false,
    subcommand_required = true,
    arg_required_else_help = true,
    propagate_version = false,
    max_term_width = 100,
    after_help = "Exit codes, environment variables and JSON formats: docs/cli.md"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Verb,
}

/// One verb with its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Build(Box<build::BuildArgs>),
    Images(images::ImagesArgs),
    Pull(pull::PullArgs),
    Copy(copy::CopyArgs),
    Tags(tags::TagsArgs),
    #[command(hide = true)]
    Search(tags::SearchArgs),
    Tag(tag::TagArgs),
    Rmi(rmi::RmiArgs),
    Inspect(inspect::InspectArgs),
    History(history::HistoryArgs),
    Tree(tree::TreeArgs),
    Ls(ls::LsArgs),
    Cat(cat::CatArgs),
    Diff(diff::DiffArgs),
    Mount(mount::MountArgs),
    Umount(umount::UmountArgs),
    Mounts(mounts::MountsArgs),
    Create(create::CreateArgs),
    Export(export::ExportArgs),
    Merge(merge::MergeArgs),
    Rebase(rebase::RebaseArgs),
    Annotate(annotate::AnnotateArgs),
    Bundle(bundle::BundleArgs),
    Save(save::SaveArgs),
    Load(load::LoadArgs),
    Push(Box<push::PushArgs>),
    Manifest(manifest::ManifestArgs),
    Login(Box<login::LoginArgs>),
    Logout(logout::LogoutArgs),
    Sign(Box<sign::SignArgs>),
    Verify(Box<verify::VerifyArgs>),
    Key(key::KeyArgs),
    Sbom(Box<sbom::SbomArgs>),
    Attach(Box<attach::AttachArgs>),
    Exec(Box<exec::ExecArgs>),
    Scp(Box<scp::ScpArgs>),
    Prune(prune::PruneArgs),
    Df(df::DfArgs),
    Scrub(scrub::ScrubArgs),
    Cert(cert::CertArgs),
    Registry(registry::RegistryCommand),
    #[command(hide = true)]
    Agent(agent::AgentArgs),
    Run(Box<run::RunArgs>),
    Apply(Box<apply::ApplyArgs>),
    Add(Box<add::AddArgs>),
    Delete(Box<delete::DeleteArgs>),
    Upgrade(Box<upgrade::UpgradeArgs>),
    Rollback(Box<rollback::RollbackArgs>),
    Reset(Box<reset::ResetArgs>),
    Uninstall(Box<uninstall::UninstallArgs>),
    Status(Box<status::StatusArgs>),
    Inplace(inplace::InplaceArgs),
    Plan(plan::PlanArgs),
    Gen(Box<r#gen::GenArgs>),
    Render(Box<render::RenderArgs>),
    Env(env::EnvArgs),
    Journal(journal::JournalArgs),
    #[cfg(feature = "testing")]
    #[command(hide = true)]
    Simulate(simulate::SimulateArgs),
    Version(version::VersionArgs),
    Completion(completion::CompletionArgs),
    Man(man::ManArgs),
    #[command(name = "host-action", hide = true)]
    HostAction(host_action::HostActionArgs),
    #[command(name = "help-all", hide = true)]
    HelpAll(help_all::HelpAllArgs),
}

impl Verb {
    /// Runs the verb.
    pub(crate) fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::Build(args) => build::run(&args, context),
            Self::Images(args) => images::run(&args, context),
            Self::Pull(args) => pull::run(&args, context),
            Self::Copy(args) => copy::run(&args, context),
            Self::Tags(args) => tags::run(&args, context),
            Self::Search(args) => tags::search(&args, context),
            Self::Tag(args) => tag::run(&args, context),
            Self::Rmi(args) => rmi::run(&args, context),
            Self::Inspect(args) => inspect::run(&args, context),
            Self::History(args) => history::run(&args, context),
            Self::Tree(args) => tree::run(&args, context),
            Self::Ls(args) => ls::run(&args, context),
            Self::Cat(args) => cat::run(&args, context),
            Self::Diff(args) => diff::run(&args, context),
            Self::Mount(args) => mount::run(&args, context),
            Self::Umount(args) => umount::run(&args, context),
            Self::Mounts(args) => mounts::run(&args, context),
            Self::Create(args) => create::run(&args, context),
            Self::Export(args) => export::run(&args, context),
            Self::Merge(args) => merge::run(&args, context),
            Self::Rebase(args) => rebase::run(&args, context),
            Self::Annotate(args) => annotate::run(&args, context),
            Self::Bundle(args) => bundle::run(&args, context),
            Self::Save(args) => save::run(&args, context),
            Self::Load(args) => load::run(&args, context),
            Self::Push(args) => push::run(&args, context),
            Self::Manifest(args) => manifest::run(&args, context),
            Self::Login(args) => login::run(&args, context),
            Self::Logout(args) => logout::run(&args, context),
            Self::Sign(args) => sign::run(&args, context),
            Self::Verify(args) => verify::run(&args, context),
            Self::Key(args) => key::run(&args, context),
            Self::Sbom(args) => sbom::run(&args, context),
            Self::Attach(args) => attach::run(&args, context),
            Self::Exec(args) => exec::run(&args, context),
            Self::Scp(args) => scp::run(&args, context),
            Self::Prune(args) => prune::run(&args, context),
            Self::Df(args) => df::run(&args, context),
            Self::Scrub(args) => scrub::run(&args, context),
            Self::Cert(args) => cert::run(&args, context),
            Self::Registry(args) => registry::run(&args, context),
            Self::Agent(args) => agent::run(&args, context),
            Self::Run(args) => run::run(&args, context),
            Self::Apply(args) => apply::run(&args, context),
            Self::Add(args) => add::run(&args, context),
            Self::Delete(args) => delete::run(&args, context),
            Self::Upgrade(args) => upgrade::run(&args, context),
            Self::Rollback(args) => rollback::run(&args, context),
            Self::Reset(args) => reset::run(&args, context),
            Self::Uninstall(args) => uninstall::run(&args, context),
            Self::Status(args) => status::run(&args, context),
            Self::Inplace(args) => inplace::run(&args, context),
            Self::Plan(args) => plan::run(args, context),
            Self::Gen(args) => r#gen::run(&args, context),
            Self::Render(args) => render::run(&args, context),
            Self::Env(args) => env::run(&args, context),
            Self::Journal(args) => journal::run(&args, context),
            #[cfg(feature = "testing")]
            Self::Simulate(args) => simulate::run(&args, context),
            Self::Version(args) => version::run(&args, context),
            Self::Completion(args) => completion::run(&args, command(), context),
            Self::Man(args) => man::run(&args, command(), context),
            Self::HostAction(args) => host_action::run(&args, context),
            Self::HelpAll(_) => help_all::run(command(), context),
        }
    }
}

/// Returns the complete grammar, including the flags accepted for compatibility with existing
/// scripts.
pub(crate) fn command() -> clap::Command {
    overview::extend(accepted::extend(Arguments::command()))
}
