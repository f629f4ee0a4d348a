//! The grammar of the command line: all verbs and the global flags.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{
    ArgMatches, Args, ColorChoice, Command, CommandFactory, FromArgMatches, Parser, Subcommand,
};

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
struct Arguments {
    #[command(flatten)]
    globals: Globals,
}

/// Declares the verbs: name, variant, arguments and function. `@hide` leaves a verb out of the help,
/// `owned` passes the arguments by value, `grammar` also passes the complete grammar.
macro_rules! verbs {
    (@call $run:path, $args:ident, $context:ident) => { $run(&$args, $context) };
    (@call $run:path, $args:ident, $context:ident, owned) => { $run($args, $context) };
    (@call $run:path, $args:ident, $context:ident, grammar) => { $run(&$args, command(), $context) };
    ($(
        $(#[cfg($condition:meta)])?
        $name:literal $(@$hide:ident)?: $verb:ident($args:ty) => $run:path $(, $how:ident)?;
    )*) => {
        // One verb with its arguments. Not a doc comment: that would become the help's first line.
        #[derive(Debug, Subcommand)]
        pub(crate) enum Verb {
            $($(#[cfg($condition)])? #[command(name = $name $(, $hide = true)?)] $verb($args),)*
        }

        impl Verb {
            /// Runs the verb.
            pub(crate) fn run(self, context: &Context) -> Result<()> {
                match self {
                    $($(#[cfg($condition)])?
                    Self::$verb(args) => verbs!(@call $run, args, context $(, $how)?),)*
                }
            }

            /// Returns the grammar of the verb `name` alone, if there is one.
            fn grammar(name: &str) -> Option<Command> {
                match name {
                    $($(#[cfg($condition)])?
                    $name => Some(<$args as Args>::augment_args(Command::new($name))),)*
                    _ => None,
                }
            }
        }
    };
}

verbs! {
    "build": Build(Box<build::BuildArgs>) => build::run;
    "images": Images(images::ImagesArgs) => images::run;
    "pull": Pull(pull::PullArgs) => pull::run;
    "copy": Copy(copy::CopyArgs) => copy::run;
    "tags": Tags(tags::TagsArgs) => tags::run;
    "search" @hide: Search(tags::SearchArgs) => tags::search;
    "tag": Tag(tag::TagArgs) => tag::run;
    "rmi": Rmi(rmi::RmiArgs) => rmi::run;
    "inspect": Inspect(inspect::InspectArgs) => inspect::run;
    "history": History(history::HistoryArgs) => history::run;
    "tree": Tree(tree::TreeArgs) => tree::run;
    "ls": Ls(ls::LsArgs) => ls::run;
    "cat": Cat(cat::CatArgs) => cat::run;
    "diff": Diff(diff::DiffArgs) => diff::run;
    "mount": Mount(mount::MountArgs) => mount::run;
    "umount": Umount(umount::UmountArgs) => umount::run;
    "mounts": Mounts(mounts::MountsArgs) => mounts::run;
    "create": Create(create::CreateArgs) => create::run;
    "export": Export(export::ExportArgs) => export::run;
    "merge": Merge(merge::MergeArgs) => merge::run;
    "rebase": Rebase(rebase::RebaseArgs) => rebase::run;
    "annotate": Annotate(annotate::AnnotateArgs) => annotate::run;
    "bundle": Bundle(bundle::BundleArgs) => bundle::run;
    "save": Save(save::SaveArgs) => save::run;
    "load": Load(load::LoadArgs) => load::run;
    "push": Push(Box<push::PushArgs>) => push::run;
    "manifest": Manifest(manifest::ManifestArgs) => manifest::run;
    "login": Login(Box<login::LoginArgs>) => login::run;
    "logout": Logout(logout::LogoutArgs) => logout::run;
    "sign": Sign(Box<sign::SignArgs>) => sign::run;
    "verify": Verify(Box<verify::VerifyArgs>) => verify::run;
    "key": Key(key::KeyArgs) => key::run;
    "sbom": Sbom(Box<sbom::SbomArgs>) => sbom::run;
    "attach": Attach(Box<attach::AttachArgs>) => attach::run;
    "exec": Exec(Box<exec::ExecArgs>) => exec::run;
    "scp": Scp(Box<scp::ScpArgs>) => scp::run;
    "prune": Prune(prune::PruneArgs) => prune::run;
    "df": Df(df::DfArgs) => df::run;
    "scrub": Scrub(scrub::ScrubArgs) => scrub::run;
    "cert": Cert(cert::CertArgs) => cert::run;
    "registry": Registry(registry::RegistryCommand) => registry::run;
    "agent" @hide: Agent(agent::AgentArgs) => agent::run;
    "run": Run(Box<run::RunArgs>) => run::run;
    "apply": Apply(Box<apply::ApplyArgs>) => apply::run;
    "add": Add(Box<add::AddArgs>) => add::run;
    "delete": Delete(Box<delete::DeleteArgs>) => delete::run;
    "upgrade": Upgrade(Box<upgrade::UpgradeArgs>) => upgrade::run;
    "rollback": Rollback(Box<rollback::RollbackArgs>) => rollback::run;
    "reset": Reset(Box<reset::ResetArgs>) => reset::run;
    "uninstall": Uninstall(Box<uninstall::UninstallArgs>) => uninstall::run;
    "status": Status(Box<status::StatusArgs>) => status::run;
    "inplace": Inplace(inplace::InplaceArgs) => inplace::run;
    "plan": Plan(plan::PlanArgs) => plan::run, owned;
    "gen": Gen(Box<r#gen::GenArgs>) => r#gen::run;
    "render": Render(Box<render::RenderArgs>) => render::run;
    "env": Env(env::EnvArgs) => env::run;
    "journal": Journal(journal::JournalArgs) => journal::run;
    #[cfg(feature = "testing")]
    "simulate" @hide: Simulate(simulate::SimulateArgs) => simulate::run;
    "version": Version(version::VersionArgs) => version::run;
    "completion": Completion(completion::CompletionArgs) => completion::run, grammar;
    "man": Man(man::ManArgs) => man::run, grammar;
    "host-action" @hide: HostAction(host_action::HostActionArgs) => host_action::run;
    "help-all" @hide: HelpAll(help_all::HelpAllArgs) => help_all::run, grammar;
}

/// Returns the complete grammar, including the flags accepted for compatibility with existing
/// scripts.
pub(crate) fn command() -> Command {
    let command = Verb::augment_subcommands(Arguments::command());
    overview::extend(accepted::extend(command))
}

/// Parses a command line. Only the grammar of its verb is built, which is most of the time that
/// imgctl takes to start; the whole grammar is needed for help, aliases and errors alone.
pub(crate) fn parse(
    arguments: &[OsString],
    colour: ColorChoice,
) -> Result<(Globals, Verb, ArgMatches), clap::Error> {
    let mut words = arguments.iter().skip(1).filter_map(|word| word.to_str());
    let verb = words.find_map(Verb::grammar);
    let command = accepted::extend(Arguments::command().subcommands(verb)).color(colour);
    let matches = match command.try_get_matches_from(arguments) {
        Err(error) if error.kind() != ErrorKind::DisplayVersion => {
            self::command().color(colour).try_get_matches_from(arguments)
        }
        parsed => parsed,
    }?;
    let globals = Arguments::from_arg_matches(&matches)?.globals;
    Ok((globals, Verb::from_arg_matches(&matches)?, matches))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<String, String> {
        let words: Vec<OsString> =
            std::iter::once(&"imgctl").chain(words).map(Into::into).collect();
        let parsed = super::parse(&words, ColorChoice::Never);
        let whole = command().color(ColorChoice::Never).try_get_matches_from(&words);
        let whole = whole.and_then(|matches| Verb::from_arg_matches(&matches));
        let parsed = parsed.map(|(_, verb, _)| format!("{verb:?}")).map_err(|e| e.to_string());
        assert_eq!(parsed, whole.map(|v| format!("{v:?}")).map_err(|e| e.to_string()), "{words:?}");
        parsed
    }

    #[test]
    fn the_grammar_of_one_verb_understands_what_the_whole_one_does() {
        for words in [
            &["images"][..],
            &["--root", "run", "tag", "a", "b"],
            &["build", "--pull=always", "-t", "x", "run"],
            &["bud", "run"],
            &["registry", "ls", "dir", "--json"],
            &["plan", "reset"],
        ] {
            parse(words).unwrap();
        }
        for words in [
            &[][..],
            &["--help"],
            &["--version"],
            &["help", "build"],
            &["build", "--help"],
            &["buidl", "."],
            &["tag", "a"],
            &["run", "--no-such-flag"],
            &["--root", "run"],
            &["no-such-verb"],
        ] {
            parse(words).unwrap_err();
        }
    }
}
