//! About imgctl itself: `version`, `completion`, `man`, and the hidden `help-all`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use clap_complete::Shell;
use serde::Serialize;

use crate::cli::{completion, overview};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::image::Platform;
use imgctl_base::text::escape;
use imgctl_frontend::context::Context;
use imgctl_ops::maintain;

/// Show the version, and with --cluster those of Kubernetes and the container runtimes
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl version --short
  imgctl version --cluster default -o yaml")]
pub(crate) struct VersionArgs {
    /// Also ask this cluster for the versions that its Nodes run
    #[arg(short, long, value_name = "NAME")]
    cluster: Option<String>,

    /// Print only the version number
    #[arg(long)]
    short: bool,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Output>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Json,
    Yaml,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    version: &'static str,
    platform: String,
    store_format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterVersion>,
}

/// Versions of a cluster, each once.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterVersion {
    name: String,
    nodes: usize,
    kubernetes: BTreeSet<String>,
    container_runtimes: BTreeSet<String>,
}

impl ClusterVersion {
    fn ask(name: &str, context: &Context) -> Result<Self> {
        let found = maintain::status(name, &context.plain_session()?)?.status.nodes;
        if found.is_empty() {
            return Err(Error::network(format!("the API of cluster {name} does not answer"))
                .hint(format!("run `imgctl status --cluster {name}` to see its hosts")));
        }
        Ok(Self {
            name: name.to_owned(),
            nodes: found.len(),
            kubernetes: found.iter().map(|node| node.version.clone()).collect(),
            container_runtimes: found
                .into_iter()
                .map(|node| node.container_runtime)
                .filter(|runtime| !runtime.is_empty())
                .collect(),
        })
    }

    fn yaml(&self) -> String {
        let list = |versions: &BTreeSet<String>| -> String {
            versions.iter().map(|version| format!("  - {}\n", escape(version))).collect()
        };
        format!(
            "cluster:\n  name: {}\n  nodes: {}\n  kubernetes:\n{}  containerRuntimes:\n{}",
            self.name,
            self.nodes,
            list(&self.kubernetes),
            list(&self.container_runtimes)
        )
    }

    fn text(&self) -> String {
        let join = |versions: &BTreeSet<String>| {
            versions.iter().map(|version| escape(version)).collect::<Vec<_>>().join(", ")
        };
        format!(
            "cluster {}: Kubernetes {}, {} ({} nodes)\n",
            self.name,
            join(&self.kubernetes),
            join(&self.container_runtimes),
            self.nodes
        )
    }
}

pub(crate) fn version(args: &VersionArgs, context: &Context) -> Result<()> {
    let cluster = args.cluster.as_deref().map(|name| ClusterVersion::ask(name, context));
    let version = Version {
        cluster: cluster.transpose()?,
        version: env!("CARGO_PKG_VERSION"),
        platform: Platform::host().to_string(),
        store_format: "oci-image-layout 1.0.0",
    };
    if args.output == Some(Output::Json) || (context.ui.is_json() && args.output.is_none()) {
        return context.ui.json(&version);
    }
    if args.short {
        return context.ui.line(version.version);
    }
    let cluster = version.cluster.as_ref();
    let text = match args.output {
        Some(_) => format!(
            "version: {}\nplatform: {}\nstoreFormat: {}\n{}",
            version.version,
            version.platform,
            version.store_format,
            cluster.map(ClusterVersion::yaml).unwrap_or_default()
        ),
        None => format!(
            "imgctl {} ({})\n{}",
            version.version,
            version.platform,
            cluster.map(ClusterVersion::text).unwrap_or_default()
        ),
    };
    context.ui.print(&text.lines().collect())
}

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl completion bash > /etc/bash_completion.d/imgctl
  imgctl completion fish > ~/.config/fish/completions/imgctl.fish
  source <(imgctl completion zsh)")]
pub(crate) struct CompletionArgs {
    /// Shell to print the script for
    shell: Shell,
}

pub(crate) fn completion(
    args: &CompletionArgs,
    mut command: clap::Command,
    context: &Context,
) -> Result<()> {
    if let Some(script) = completion::script(args.shell) {
        return context.ui.content(script);
    }
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "imgctl", &mut script);
    context.ui.content(&script)
}

/// Print what fits an unfinished command line, for completion scripts
#[derive(Args, Debug)]
pub(crate) struct CompleteArgs {
    /// Words of the command line; the last one is unfinished
    #[arg(last = true, value_name = "WORD")]
    words: Vec<OsString>,
}

pub(crate) fn complete(
    args: &CompleteArgs,
    command: clap::Command,
    context: &Context,
) -> Result<()> {
    context.ui.content(completion::offers(&args.words, command, context)?)
}

/// Print a manual page, or write the pages of all commands into a directory
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl man | man -l -
  imgctl man build | man -l -
  imgctl man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// A verb, or a directory for one page per command; created if missing
    #[arg(value_name = "VERB|DIR")]
    directory: Option<PathBuf>,
}

pub(crate) fn man(args: &ManArgs, command: clap::Command, context: &Context) -> Result<()> {
    let show = |command: clap::Command| {
        let mut page = Vec::new();
        clap_mangen::Man::new(command)
            .render(&mut page)
            .doing(|| "cannot render the manual page".to_owned())?;
        context.ui.content(&page)
    };
    let Some(directory) = &args.directory else { return show(command) };
    // As `man VERB` does, unless a directory of that name is there.
    let verb = directory.to_str().and_then(|name| command.find_subcommand(name));
    if let Some(verb) = verb.filter(|_| !directory.exists()) {
        let name = format!("imgctl-{}", verb.get_name());
        return show(verb.clone().display_name(name));
    }
    std::fs::create_dir_all(directory).path("create", directory)?;
    clap_mangen::generate_to(command, directory).path("write manual pages to", directory)?;
    context.ui.say(&format!("wrote the pages of all commands into {}", directory.display()));
    Ok(())
}

/// Write the reference of all commands as Markdown
#[derive(Args, Debug)]
pub(crate) struct DocsArgs {
    /// Directory to write imgctl.md into; created if missing
    #[arg(short, long, value_name = "DIR", default_value = "docs")]
    path: PathBuf,
}

pub(crate) fn docs(args: &DocsArgs, command: clap::Command, context: &Context) -> Result<()> {
    let file = args.path.join("imgctl.md");
    std::fs::create_dir_all(&args.path).path("create", &args.path)?;
    let text = whole_help(command).replace("\n# ", "\n```\n\n# ");
    // Each heading is followed by the help as it is printed.
    let mut fenced = String::new();
    for line in text.lines() {
        fenced.push_str(line);
        fenced.push_str(if line.starts_with("# imgctl") { "\n\n```text\n" } else { "\n" });
    }
    fenced.push_str("```\n");
    std::fs::write(&file, fenced).path("write", &file)?;
    context.ui.say(&format!("wrote {}", file.display()));
    Ok(())
}

/// Print the options of all commands
#[derive(Args, Debug)]
pub(crate) struct OptionsArgs {}

pub(crate) fn options(_: &OptionsArgs, context: &Context) -> Result<()> {
    context.ui.content(overview::options().to_string())
}

/// Print the help of all commands
#[derive(Args, Debug)]
pub(crate) struct HelpAllArgs {}

/// Prints the help of the program and then of each command, each global flag once.
pub(crate) fn help_all(_: &HelpAllArgs, command: clap::Command, context: &Context) -> Result<()> {
    context.ui.content(whole_help(command))
}

fn whole_help(command: clap::Command) -> String {
    let mut command = command.term_width(100);
    command.build();
    let mut text = format!("# imgctl\n\n{}\n", command.render_help());
    // Global flags appear only in the help of the program.
    let globals: Vec<clap::Id> = command
        .get_arguments()
        .filter(|argument| argument.is_global_set())
        .map(|argument| argument.get_id().clone())
        .collect();
    verbs(&command, "imgctl", &globals, &mut text);
    text
}

/// Adds the help of the subcommands of `command`, each followed by that of its own subcommands.
fn verbs(command: &clap::Command, path: &str, globals: &[clap::Id], text: &mut String) {
    let mut inner: Vec<&clap::Command> = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
        .collect();
    inner.sort_by_key(|verb| (verb.get_display_order(), verb.get_name()));
    for verb in inner {
        let path = format!("{path} {}", verb.get_name());
        let mut shown = verb.clone().mut_args(|argument| {
            let global = argument.is_global_set() && globals.contains(argument.get_id());
            let hidden = argument.is_hide_set();
            argument.hide(global || hidden)
        });
        text.push_str(&format!("# {path}\n\n{}\n", shown.render_help()));
        verbs(verb, &path, globals, text);
    }
}
