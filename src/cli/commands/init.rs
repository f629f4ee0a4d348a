//! `imgctl init`: a folder for an image of one's own, made from recipes and charts.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::cli::commands::recipe;
use imgctl_base::error::Result;
use imgctl_base::suggest::closest;
use imgctl_frontend::context::Context;
use imgctl_frontend::registry_options::RegistryArgs;
use imgctl_recipe::catalogue::{Catalogue, Recipe};
use imgctl_recipe::chart::{Chart, Source};
use imgctl_recipe::choice::{CHART, DEFAULT, NO_NETWORK, Request, release};
use imgctl_recipe::declaration::Group;
use imgctl_recipe::init::{Made, Order, add, check_new, init};
use imgctl_registry::chart::{RemoteChart, is_address, take};
use imgctl_ui::table::counted;

/// Answers to the question for charts that mean none.
const NO_CHARTS: [&str; 3] = ["", "none", "-"];

/// Make a folder for an image of your own from recipes
#[derive(Args, Debug)]
#[command(
    after_help = "Writes a Kubefile, the files of the recipes, a Clusterfile, charts/ with a file of values for each
chart, a README, and the file of the CI system if the folder is a repository of GitHub or GitLab.
A chart from a server is in the folder as charts/NAME.tgz, and in imgctl.lock with its digests.
Writes everything or nothing, and replaces no existing file.

On a terminal it asks for the kind of cluster, the version, the network and charts; with any of
the flags --recipe, --version, --network, --chart, --from-helm and --yes it asks nothing.

Examples:
  imgctl init my-cluster
  imgctl init my-cluster --version 1.34 --network calico --chart ./web --chart ./api
  imgctl init my-etcd --recipe etcd
  imgctl init web-app --from-helm ./web
  imgctl init podinfo --from-helm oci://ghcr.io/stefanprodan/charts/podinfo:6.9.2
  imgctl init my-cluster --add metrics-server,gateway-api
  imgctl init --list"
)]
pub(crate) struct InitArgs {
    /// Folder to make the image's files in
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,

    /// Recipes: NAME or NAME@VERSION [default: kubernetes,helm,local-path]
    #[arg(long = "recipe", value_name = "RECIPE", value_delimiter = ',')]
    recipes: Vec<String>,

    /// Version of the cluster: 1.34 is the newest 1.34 of the recipe [default: the newest]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,

    /// Recipe for the Pod network: NAME, NAME@VERSION, or `none` [default: what the cluster's recipe suggests]
    #[arg(long, value_name = "NETWORK")]
    network: Option<String>,

    /// Helm chart to install on the cluster: a folder, a .tgz, or an address: https://HOST/FILE.tgz,
    /// oci://REGISTRY/REPOSITORY[:VERSION] (may be repeated)
    #[arg(long = "chart", value_name = "PATH|URL")]
    charts: Vec<String>,

    /// Make an image of a chart alone, for clusters that run
    #[arg(long, value_name = "PATH|URL", conflicts_with_all = ["recipes", "network", "add"])]
    from_helm: Option<String>,

    /// Name of the image and the cluster [default: that of the folder]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Architectures of the image [default: amd64,arm64]
    #[arg(long = "arch", value_name = "ARCH", value_delimiter = ',')]
    architectures: Vec<String>,

    /// Add recipes to a folder that `imgctl init` made
    #[arg(
        long,
        value_name = "RECIPE",
        value_delimiter = ',',
        conflicts_with_all = ["recipes", "version", "network", "name", "architectures"]
    )]
    add: Vec<String>,

    /// List the recipes
    #[arg(long, conflicts_with_all = ["recipes", "version", "network", "charts", "add", "from_helm"])]
    list: bool,

    #[command(flatten)]
    registry: RegistryArgs,
}

pub(crate) fn run(args: &InitArgs, context: &Context) -> Result<()> {
    if args.list {
        return recipe::list(None, true, context);
    }
    let catalogue = Catalogue::shipped()?;
    let words = args.charts.iter().chain(&args.from_helm);
    let charts: Result<Vec<Chart>> =
        words.map(|word| chart(word, &args.registry, context)).collect();
    let charts = charts?;
    if !args.add.is_empty() {
        let made = add(&catalogue, &args.folder, &args.add, &charts)?;
        return show(&made, &args.folder, context);
    }
    let recipes = match &args.from_helm {
        Some(_) => vec![CHART.to_owned()],
        None => args.recipes.clone(),
    };
    let mut order = Order {
        folder: args.folder.clone(),
        request: Request {
            recipes,
            version: args.version.clone(),
            network: args.network.clone(),
            charts: !charts.is_empty(),
        },
        architectures: args.architectures.clone(),
        name: args.name.clone(),
        charts,
    };
    let decided = !order.request.recipes.is_empty()
        || order.request.version.is_some()
        || order.request.network.is_some()
        || order.request.charts;
    if !decided && !context.settings.ui.assume_yes && context.ui.can_ask() {
        check_new(&args.folder)?;
        ask(&catalogue, &mut order, &args.registry, context)?;
    }
    show(&init(&catalogue, &order)?, &args.folder, context)
}

/// Reads a chart of this machine or of a server.
fn chart(word: &str, registry: &RegistryArgs, context: &Context) -> Result<Chart> {
    if is_address(word) {
        let RemoteChart { bytes, address, manifest } =
            take(word, &|| registry.client(context), context.ui.reporter())?;
        let chart = Chart::packed(&bytes, &address)?;
        return Ok(chart.from(Source { address, manifest }));
    }
    Chart::read(Path::new(word))
}

/// Asks what to make. Nothing has been written yet, so Ctrl-C leaves everything as it was.
fn ask(
    catalogue: &Catalogue,
    order: &mut Order,
    registry: &RegistryArgs,
    context: &Context,
) -> Result<()> {
    let mut clusters = catalogue.of_group(Group::Cluster, None);
    // The usual one first.
    clusters.sort_by_key(|name| *name != DEFAULT);
    let cluster = one_of("Cluster", &clusters, context)?;
    let recipe = catalogue.get(&cluster)?;
    order.request.version = Some(version_of(recipe, context)?);
    let mut networks = catalogue.of_group(Group::Network, Some(&cluster));
    if !networks.is_empty() {
        networks.sort_by_key(|name| !recipe.declaration.suggests.iter().any(|one| one == name));
        networks.push(NO_NETWORK);
        order.request.network = Some(one_of("Network", &networks, context)?);
    }
    let mut recipes = vec![cluster];
    for name in &recipe.declaration.suggests {
        if catalogue.get(name)?.declaration.group != Group::Network {
            recipes.push(name.clone());
        }
    }
    order.request.recipes = recipes;
    // Charts run on Kubernetes.
    while catalogue.get(CHART)?.declaration.runs_on.contains(&order.request.recipes[0]) {
        let question = "Charts (folders, .tgz files, addresses), separated by blanks [none]: ";
        let answer = context.ui.ask(question)?.unwrap_or_default();
        if NO_CHARTS.contains(&answer.as_str()) {
            break;
        }
        let read: Result<Vec<Chart>> =
            answer.split_whitespace().map(|word| chart(word, registry, context)).collect();
        match read {
            Ok(charts) => {
                order.charts = charts;
                break;
            }
            Err(error) => context.ui.note(&error.chain().join(": ")),
        }
    }
    Ok(())
}

/// Asks for a version of a recipe; Enter takes the newest, and `1.34` the newest 1.34.
fn version_of(recipe: &Recipe, context: &Context) -> Result<String> {
    let known: Vec<&str> =
        recipe.declaration.versions.iter().map(|release| release.version.as_str()).collect();
    let newest = known.first().copied().unwrap_or_default();
    loop {
        let question = format!("Version ({}) [{newest}]: ", known.join(", "));
        let answer = context.ui.ask(&question)?.unwrap_or_default();
        let wanted = Some(answer.as_str()).filter(|answer| !answer.is_empty());
        match release(recipe, wanted) {
            Ok(found) => return Ok(found.version.clone()),
            Err(error) => context.ui.note(error.message()),
        }
    }
}

/// Asks for one of `choices`; Enter takes the first.
fn one_of(question: &str, choices: &[&str], context: &Context) -> Result<String> {
    let first = choices.first().copied().unwrap_or_default();
    loop {
        let text = format!("{question} ({}) [{first}]: ", choices.join(", "));
        let answer = context.ui.ask(&text)?.unwrap_or_default();
        if answer.is_empty() {
            return Ok(first.to_owned());
        }
        if let Some(found) = choices.iter().find(|choice| **choice == answer) {
            return Ok((*found).to_owned());
        }
        let mut begun = choices.iter().filter(|choice| choice.starts_with(&answer));
        if let (Some(only), None) = (begun.next(), begun.next()) {
            return Ok((*only).to_owned());
        }
        let near = closest(&answer, choices.iter().copied());
        let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
        context.ui.note(&format!("`{answer}` is not one of {}{near}", choices.join(", ")));
    }
}

fn show(made: &Made, folder: &Path, context: &Context) -> Result<()> {
    for url in &made.unpinned {
        context.ui.note(&format!("no checksum of {url} is known; the first build records it"));
    }
    let value = json!({
        "directory": folder,
        "name": made.name,
        "parts": made.parts,
        "written": made.files.written,
        "kept": made.files.kept,
    });
    if context.ui.is_json() {
        return context.ui.json(&value);
    }
    let written = counted(made.files.written.len(), "file");
    let kept = match made.files.kept.len() {
        0 => String::new(),
        kept => format!(", {kept} there already"),
    };
    let parts = made.parts.join(", ");
    context.ui.line(&format!("{}: {parts} ({written}{kept})", folder.display()))?;
    context.ui.line(&format!("next: {}", made.next(folder)))
}
