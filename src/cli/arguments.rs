//! The grammar of the command line: all verbs and the global flags.

use std::ffi::OsString;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{
    ArgMatches, Args, ColorChoice, Command, CommandFactory, FromArgMatches, Parser, Subcommand,
};

#[cfg(feature = "testing")]
use crate::cli::commands::simulate;
use crate::cli::commands::{
    about, adopt, agent, apply, archives, attach, backup, bake, blobs, build, bundle, cache, cert,
    cluster, clusters, diff, edit, files, history, hosts, images, init, inplace, inspect, keys,
    kube_wrapper, lock, login, manifest, mounts, plan, preview, pull, push, recipe, records,
    registry, rehearse, renumber, report, rmi, sign, state, status, store, support_bundle, testbed,
    ui, update, upgrade, working,
};
use crate::cli::{accepted, habits, home_paths, overview};
use imgctl_base::error::Result;
use imgctl_frontend::{context::Context, settings::Globals};

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
    "init": Init(Box<init::InitArgs>) => init::run;
    "recipe": Recipe(recipe::RecipeCommand) => recipe::run;
    "build": Build(Box<build::BuildArgs>) => build::run;
    "bake": Bake(Box<bake::BakeArgs>) => bake::run;
    "update": Update(Box<update::UpdateArgs>) => update::run;
    "lock": Lock(Box<lock::LockArgs>) => lock::run;
    "images": Images(images::ImagesArgs) => images::run;
    "pull": Pull(pull::PullArgs) => pull::pull;
    "copy": Copy(pull::CopyArgs) => pull::copy;
    "tags": Tags(pull::TagsArgs) => pull::tags;
    "search" @hide: Search(pull::SearchArgs) => pull::search;
    "tag": Tag(store::TagArgs) => store::tag;
    "rmi": Rmi(rmi::RmiArgs) => rmi::rmi;
    "inspect": Inspect(inspect::InspectArgs) => inspect::run;
    "history": History(history::HistoryArgs) => history::history;
    "tree": Tree(history::TreeArgs) => history::tree;
    "ls": Ls(files::LsArgs) => files::ls;
    "cat": Cat(files::CatArgs) => files::cat;
    "diff": Diff(diff::DiffArgs) => diff::run;
    "mount": Mount(mounts::MountArgs) => mounts::mount;
    "umount": Umount(mounts::UmountArgs) => mounts::umount;
    "mounts": Mounts(mounts::MountsArgs) => mounts::mounts;
    "create": Create(mounts::CreateArgs) => mounts::create;
    "export": Export(archives::ExportArgs) => archives::export;
    "merge": Merge(edit::MergeArgs) => edit::merge;
    "rebase": Rebase(edit::RebaseArgs) => edit::rebase;
    "annotate": Annotate(edit::AnnotateArgs) => edit::annotate;
    "bundle": Bundle(bundle::BundleArgs) => bundle::bundle;
    "save": Save(archives::SaveArgs) => archives::save;
    "load": Load(archives::LoadArgs) => archives::load;
    "push": Push(Box<push::PushArgs>) => push::push;
    "manifest": Manifest(manifest::ManifestArgs) => manifest::run;
    "login": Login(Box<login::LoginArgs>) => login::login;
    "logout": Logout(login::LogoutArgs) => login::logout;
    "sign": Sign(Box<sign::SignArgs>) => sign::sign;
    "verify": Verify(Box<sign::VerifyArgs>) => sign::verify;
    "attest-blob": AttestBlob(Box<blobs::AttestBlobArgs>) => blobs::attest;
    "verify-blob-attestation": VerifyBlob(Box<blobs::VerifyBlobArgs>) => blobs::verify;
    "key": Key(keys::KeyArgs) => keys::key;
    "sbom": Sbom(Box<attach::SbomArgs>) => attach::sbom;
    "attach": Attach(Box<attach::AttachArgs>) => attach::attach;
    "exec": Exec(Box<hosts::ExecArgs>) => hosts::exec;
    "scp": Scp(Box<hosts::ScpArgs>) => hosts::scp;
    "prune": Prune(store::PruneArgs) => store::prune;
    "cache": Cache(cache::CacheCommand) => cache::run;
    "df": Df(store::DfArgs) => store::df;
    "scrub": Scrub(store::ScrubArgs) => store::scrub;
    "cert": Cert(cert::CertArgs) => cert::cert;
    "registry": Registry(registry::RegistryCommand) => registry::run;
    "agent" @hide: Agent(agent::AgentArgs) => agent::agent;
    "run": Run(Box<cluster::RunArgs>) => cluster::run;
    "apply": Apply(Box<apply::ApplyArgs>) => apply::apply;
    "add": Add(Box<cluster::AddArgs>) => cluster::add;
    "adopt": Adopt(Box<adopt::AdoptArgs>) => adopt::adopt;
    "delete": Delete(Box<cluster::DeleteArgs>) => cluster::delete;
    "renumber": Renumber(Box<renumber::RenumberArgs>) => renumber::run;
    "upgrade": Upgrade(Box<upgrade::UpgradeArgs>) => upgrade::upgrade;
    "rehearse": Rehearse(rehearse::RehearseArgs) => rehearse::run;
    "rollback": Rollback(Box<upgrade::RollbackArgs>) => upgrade::rollback;
    "reset": Reset(Box<cluster::ResetArgs>) => cluster::reset;
    "uninstall": Uninstall(Box<cluster::UninstallArgs>) => cluster::uninstall;
    "backup": Backup(Box<backup::BackupArgs>) => backup::backup;
    "restore": Restore(Box<backup::RestoreArgs>) => backup::restore;
    "clusters": Clusters(clusters::ClustersArgs) => clusters::run;
    "status": Status(Box<status::StatusArgs>) => status::status;
    "state": State(state::StateCommand) => state::run;
    "support-bundle": SupportBundle(Box<support_bundle::SupportBundleArgs>) => support_bundle::support_bundle;
    "testbed": Testbed(testbed::TestbedArgs) => testbed::run;
    "inplace": Inplace(inplace::InplaceArgs) => inplace::run;
    "plan": Plan(plan::PlanArgs) => plan::plan, owned;
    "gen": Gen(Box<preview::GenArgs>) => preview::generate;
    "render": Render(Box<preview::RenderArgs>) => preview::render;
    "report": Report(report::ReportArgs) => report::report;
    "ui": Ui(ui::UiArgs) => ui::run;
    "env": Env(records::EnvArgs) => records::env;
    "journal": Journal(records::JournalArgs) => records::journal;
    #[cfg(feature = "testing")]
    "simulate" @hide: Simulate(simulate::SimulateArgs) => simulate::run;
    "from" @hide: From(Box<working::FromArgs>) => working::from;
    "unshare" @hide: Unshare(working::UnshareArgs) => working::unshare;
    "docs" @hide: Docs(about::DocsArgs) => about::docs, grammar;
    "options" @hide: Options(about::OptionsArgs) => about::options;
    "version": Version(about::VersionArgs) => about::version;
    "completion": Completion(about::CompletionArgs) => about::completion, grammar;
    "complete" @hide: Complete(about::CompleteArgs) => about::complete, grammar;
    "man": Man(about::ManArgs) => about::man, grammar;
    "kube-wrapper" @hide: KubeWrapper(kube_wrapper::WrapperArgs) => kube_wrapper::run;
    "host-action" @hide: HostAction(agent::HostActionArgs) => agent::host_action;
    "help-all" @hide: HelpAll(about::HelpAllArgs) => about::help_all, grammar;
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
    home: Option<&Path>,
) -> Result<(Globals, Verb, ArgMatches), clap::Error> {
    let mut words = arguments.iter().skip(1).filter_map(|word| word.to_str());
    let verb = words.find_map(Verb::grammar);
    let grammar = |command: Command| home_paths::expanding(command, home).color(colour);
    let command = grammar(accepted::extend(Arguments::command().subcommands(verb)));
    let matches = match command.try_get_matches_from(arguments) {
        Err(error) if error.kind() != ErrorKind::DisplayVersion => {
            let whole = grammar(self::command());
            let parsed = whole.clone().try_get_matches_from(arguments);
            parsed.map_err(|error| habits::corrected(error, &whole, arguments))
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
        let parsed = super::parse(&words, ColorChoice::Never, None);
        let whole = command().color(ColorChoice::Never).try_get_matches_from(&words);
        let whole = whole.and_then(|matches| Verb::from_arg_matches(&matches));
        let parsed = parsed.map(|(_, verb, _)| format!("{verb:?}")).map_err(|e| e.to_string());
        assert_eq!(parsed, whole.map(|v| format!("{v:?}")).map_err(|e| e.to_string()), "{words:?}");
        parsed
    }

    #[test]
    fn options_before_the_command_of_exec_are_its_own() {
        let text = parse(&["exec", "-uops", "-ikey", "--ips=h", "uptime", "-p"]).unwrap();
        for part in ["\"ops\"", "\"key\"", "\"h\"", "[\"uptime\", \"-p\"]"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(parse(&["exec", "--ips=h", "--", "-x"]).unwrap().contains("[\"-x\"]"));
        for typo in ["--no-such", "-Z"] {
            let told = parse(&["exec", "--ips=h", typo, "reboot"]).unwrap_err();
            assert!(told.contains(typo), "{told}");
        }
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
