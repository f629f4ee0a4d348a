//! What a shell offers for an unfinished command line: verbs, flags, and names of images, clusters, hosts and
//! runs that this machine knows. Asks no host and no registry; what cannot be read is not offered.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};
use clap_complete::Shell;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter, complete,
};

use imgctl_base::error::{IoContext, Result};
use imgctl_base::image::reference::TREES_REGISTRY;
use imgctl_frontend::cluster_options::controller;
use imgctl_frontend::context::Context;
use imgctl_ops::clusters;
use imgctl_recipe::catalogue::Catalogue;
use imgctl_recipe::choice::NO_NETWORK;
use imgctl_recipe::declaration::Group;
use imgctl_store::store::Store;

/// Names of arguments with a cluster, and with images; archives of images are files.
const CLUSTER: &str = "cluster";
const IMAGES: [&str; 3] = ["IMAGE", "IMAGE[:PATH]", "NAME|FILE"];
const MEMBERS: &str = "HOST";
const RUN: &str = "RUN";
const RECIPE: &str = "RECIPE";
const NETWORK: &str = "NETWORK";

/// The scripts that ask imgctl for what to offer.
const BASH: &str = include_str!("completion/imgctl.bash");
const ZSH: &str = include_str!("completion/imgctl.zsh");
const FISH: &str = include_str!("completion/imgctl.fish");

/// Returns the script of a shell; `None` for those that have only a static one.
pub(crate) fn script(shell: Shell) -> Option<&'static str> {
    match shell {
        Shell::Bash => Some(BASH),
        Shell::Zsh => Some(ZSH),
        Shell::Fish => Some(FISH),
        _ => None,
    }
}

/// Returns what to offer for the last of `words`, the first of which is the program: lines of a value and,
/// behind a tab, its summary.
pub(crate) fn offers(words: &[OsString], command: Command, context: &Context) -> Result<String> {
    let mut command = with_names(command, &Known::read(context));
    let last = words.len().saturating_sub(1);
    let begun = words.last().map(OsString::as_os_str).unwrap_or_default();
    let found = complete(&mut command, words.to_vec(), last, None)
        .doing(|| "cannot complete the command line".to_owned())?;
    let mut found: Vec<CompletionCandidate> =
        found.into_iter().filter(|candidate| !candidate.is_hide_set()).collect();
    let is_flag =
        |candidate: &CompletionCandidate| candidate.get_value().to_string_lossy().starts_with('-');
    // Flags come when somebody begins one.
    if begun.is_empty() && found.iter().any(|candidate| !is_flag(candidate)) {
        found.retain(|candidate| !is_flag(candidate));
    }
    let line = |candidate: &CompletionCandidate| {
        let summary = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        let summary = summary.lines().next().unwrap_or_default().to_owned();
        format!("{}\t{summary}\n", candidate.get_value().to_string_lossy())
    };
    Ok(found.iter().map(line).collect())
}

/// What this machine knows.
#[derive(Clone, Default)]
struct Known {
    images: Vec<String>,
    clusters: Vec<String>,
    hosts: Vec<String>,
    runs: Vec<String>,
    recipes: Vec<String>,
    networks: Vec<String>,
}

impl Known {
    fn read(context: &Context) -> Self {
        // Completion creates no store.
        let store = context.settings.root.is_dir().then(|| context.store().ok()).flatten();
        let clusters = controller(context).and_then(|controller| clusters::list(&controller));
        let clusters = clusters.unwrap_or_default();
        let catalogue = Catalogue::shipped().ok();
        Self {
            images: store.map(names).unwrap_or_default(),
            hosts: clusters.iter().flat_map(|cluster| cluster.addresses.clone()).collect(),
            runs: clusters
                .iter()
                .filter_map(|one| Some(one.last_run.as_ref()?.id.clone()))
                .collect(),
            clusters: clusters.into_iter().map(|cluster| cluster.name).collect(),
            networks: catalogue.as_ref().map(networks_of).unwrap_or_default(),
            recipes: catalogue.as_ref().map(names_of).unwrap_or_default(),
        }
    }

    /// Returns the names for an argument, and whether it may be a file as well.
    fn of(&self, argument: &Arg) -> Option<(Vec<String>, bool)> {
        let value = argument.get_value_names()?.first()?.as_str();
        let is_long = |name: &str| argument.get_long() == Some(name);
        if argument.get_id() == CLUSTER {
            Some((self.clusters.clone(), false))
        } else if IMAGES.contains(&value) {
            Some((self.images.clone(), true))
        } else if value == MEMBERS || is_long("ips") {
            Some((self.hosts.clone(), false))
        } else if value == RECIPE {
            Some((self.recipes.clone(), false))
        } else if value == NETWORK {
            Some((self.networks.clone(), false))
        } else if value == RUN {
            let newest = std::iter::once("last".to_owned());
            Some((newest.chain(self.runs.clone()).collect(), false))
        } else {
            None
        }
    }
}

fn names_of(catalogue: &Catalogue) -> Vec<String> {
    catalogue.all().iter().map(|recipe| recipe.declaration.name.clone()).collect()
}

fn networks_of(catalogue: &Catalogue) -> Vec<String> {
    let networks = catalogue.of_group(Group::Network, None).into_iter();
    networks.chain([NO_NETWORK]).map(str::to_owned).collect()
}

/// Returns the names of images, as short as they may be typed.
fn names(store: &Store) -> Vec<String> {
    let named = store.names().unwrap_or_default();
    let references = named.iter().filter_map(|named| named.reference.as_ref());
    let shown = references.filter(|name| name.registry() != Some(TREES_REGISTRY));
    shown
        .map(|name| {
            let name = name.to_string();
            name.strip_prefix("localhost/").map_or_else(|| name.clone(), str::to_owned)
        })
        .collect()
}

fn with_names(command: Command, known: &Known) -> Command {
    let command = command.mut_args(|argument| match known.of(&argument) {
        Some((names, is_file)) => {
            argument.add(ArgValueCompleter::new(move |begun: &OsStr| offer(&names, is_file, begun)))
        }
        None => argument,
    });
    command.mut_subcommands(|inner| with_names(inner, known))
}

fn offer(names: &[String], is_file: bool, begun: &OsStr) -> Vec<CompletionCandidate> {
    let text = begun.to_string_lossy();
    let fitting = names.iter().filter(|name| name.starts_with(text.as_ref()));
    let mut found: Vec<CompletionCandidate> = fitting.map(CompletionCandidate::new).collect();
    if is_file && found.is_empty() {
        found = PathCompleter::any().complete(begun);
    }
    found
}
