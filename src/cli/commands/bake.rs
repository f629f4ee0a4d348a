//! `imgctl bake`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::cli::commands::bake_builds::Builds;
use crate::cli::commands::bake_flags::Common;
use crate::cli::commands::bake_rights::Rights;
use imgctl_bake::{Bake, Form, Override, Source, Target, Variable};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic;
use imgctl_base::image::Platform;
use imgctl_frontend::context::Context;
use imgctl_frontend::mirror_options::MirrorArgs;
use imgctl_frontend::names::split;
use imgctl_frontend::registry_options::RegistryArgs;
use imgctl_ui::table::Table;

/// Maximum size of a bake file, in bytes.
const LONGEST: u64 = 4 << 20;

/// Build the targets of a bake file or of a compose file
#[derive(Args, Debug)]
#[command(
    after_help = "Without -f, these files count, later ones overriding earlier ones: compose.yaml, compose.yml,
docker-compose.yml, docker-compose.yaml, docker-bake.json, docker-bake.hcl,
docker-bake.override.json, docker-bake.override.hcl. docs/bake.md has the language and its
differences from buildx.

Examples:
  imgctl bake
  imgctl bake --print app
  imgctl bake -f docker-bake.hcl --set '*.platform=linux/amd64,linux/arm64' --push
  VERSION=1.2 imgctl bake cluster applications
  imgctl bake --list=targets"
)]
pub(crate) struct BakeArgs {
    /// Targets and groups to build [default: default]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,

    /// File to read, `-` is stdin (may be repeated)
    #[arg(short, long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Change an attribute of the targets that PATTERN matches; `+=` adds to a list (may be repeated)
    #[arg(long = "set", value_name = "PATTERN.ATTRIBUTE=VALUE")]
    sets: Vec<String>,

    /// Set a variable, as the environment does (may be repeated)
    #[arg(long = "var", value_name = "NAME=VALUE")]
    variables: Vec<String>,

    /// Show the targets with all settings as JSON, and build nothing
    #[arg(long)]
    print: bool,

    /// List what the files define, and build nothing
    #[arg(
        long,
        value_enum,
        value_name = "targets|variables",
        hide_possible_values = true,
        conflicts_with = "print"
    )]
    list: Option<List>,

    /// Check the Kubefiles without building
    #[arg(long)]
    check: bool,

    /// Push the images under all their names
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true, action = clap::ArgAction::Set)]
    push: bool,

    /// Keep the images in the store, as every build does (for scripts for docker)
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    load: Option<bool>,

    /// Run every step without the build cache
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true, action = clap::ArgAction::Set)]
    no_cache: bool,

    /// Pull the images of FROM and --from even if they are in the store
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true, action = clap::ArgAction::Set)]
    pull: bool,

    /// Allow targets what the files ask for: network.host, security.insecure, ssh, fs.read=PATH,
    /// fs.write=PATH, fs=PATH; `*` allows all
    #[arg(long = "allow", value_name = "ENTITLEMENT", value_delimiter = ',')]
    allow: Vec<String>,

    /// Write the digests and names of all results to a JSON file
    #[arg(long, value_name = "FILE")]
    metadata_file: Option<PathBuf>,

    #[command(flatten)]
    mirror: MirrorArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// What `--list` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum List {
    Targets,
    Variables,
}

/// Files that count without `-f` (buildx).
const FILES: [&str; 8] = [
    "compose.yaml",
    "compose.yml",
    "docker-compose.yml",
    "docker-compose.yaml",
    "docker-bake.json",
    "docker-bake.hcl",
    "docker-bake.override.json",
    "docker-bake.override.hcl",
];

/// Builds the targets, or shows what they are.
pub(crate) fn run(args: &BakeArgs, context: &Context) -> Result<()> {
    let rights = Rights::given(&args.allow)?;
    let bake = read(args, &rights, context)?;
    if let Some(list) = args.list {
        return show_list(list, &bake, context);
    }
    let wanted = bake.wanted(&args.targets)?;
    if args.print {
        let groups: BTreeMap<_, _> = wanted
            .groups
            .iter()
            .map(|(name, members)| (name.clone(), json!({"targets": members})))
            .collect();
        let targets: BTreeMap<_, _> = wanted
            .ordered
            .iter()
            .filter_map(|name| Some((name.clone(), bake.targets.get(name)?.to_json())))
            .collect();
        return context.ui.json(&json!({"group": groups, "target": targets}));
    }
    let mut builds = Vec::new();
    for name in &wanted.ordered {
        let target = bake
            .targets
            .get(name)
            .ok_or_else(|| Error::not_found(format!("there is no target `{name}`")))?;
        builds.push((target, wanted.requested.contains(name)));
    }
    build_all(builds, &rights, args, context)
}

fn read(args: &BakeArgs, rights: &Rights<'_>, context: &Context) -> Result<Bake> {
    let paths = if args.files.is_empty() {
        let there: Vec<PathBuf> =
            FILES.iter().map(PathBuf::from).filter(|path| path.is_file()).collect();
        if there.is_empty() {
            return Err(Error::not_found("there is no bake file here").hint(format!(
                "pass one with -f; without -f, imgctl looks for {}",
                FILES.join(", ")
            )));
        }
        there.iter().try_for_each(|path| rights.check_file(path))?;
        there
    } else {
        args.files.clone()
    };
    let sources = paths.iter().map(|path| source(path)).collect::<Result<Vec<_>>>()?;
    let mut given = BTreeMap::new();
    for variable in &args.variables {
        let (name, value) = split(variable, '=', "--var", "NAME=VALUE")?;
        given.insert(name, value);
    }
    let environment = &context.environment;
    // An empty variable is set, unlike those of imgctl.
    let outside =
        |name: &str| environment.get(name).and_then(|value| value.to_str()).map(str::to_owned);
    let from_file = if sources.iter().any(|source| source.form == Form::Compose) {
        let path = Path::new(".env");
        rights.check_file(path)?;
        dotenv(path, &outside)?
    } else {
        BTreeMap::new()
    };
    let lookup = |name: &str| {
        if name == "BAKE_LOCAL_PLATFORM" {
            return Some(Platform::host().to_string());
        }
        given.get(name).cloned().or_else(|| outside(name)).or_else(|| from_file.get(name).cloned())
    };
    let overrides = Override::parse_all(&args.sets, &lookup)?;
    imgctl_bake::read(&sources, &overrides, &lookup)
}

fn source(path: &Path) -> Result<Source> {
    let name = path.display().to_string();
    let text = if name == "-" {
        small(std::io::stdin(), path)?
    } else {
        let file = atomic::open_regular(path).path("read the bake file", path)?;
        small(file, path)?
    };
    let form = Form::of_name(&name).unwrap_or_else(|| Form::of_text(&text));
    Ok(Source { name, text, form })
}

/// Reads compose's file of variables, if there is one.
fn dotenv(
    path: &Path,
    outside: &dyn Fn(&str) -> Option<String>,
) -> Result<BTreeMap<String, String>> {
    match atomic::open_regular(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        file => {
            let text = small(file.path("read the variables", path)?, path)?;
            Ok(imgctl_bake::dotenv(&text, outside))
        }
    }
}

/// Reads a text that a person has written.
fn small(from: impl Read, path: &Path) -> Result<String> {
    let mut text = String::new();
    from.take(LONGEST + 1).read_to_string(&mut text).path("read", path)?;
    if text.len() as u64 > LONGEST {
        let most = LONGEST >> 20;
        return Err(Error::bad_content(format!("{} is larger than {most} MiB", path.display())));
    }
    Ok(text)
}

fn build_all(
    targets: Vec<(&Target, bool)>,
    rights: &Rights<'_>,
    args: &BakeArgs,
    context: &Context,
) -> Result<()> {
    let (push, no_cache, pull, check) = (args.push, args.no_cache, args.pull, args.check);
    let common = Common { push, no_cache, pull, check };
    let builds = Builds { targets, common, registry: &args.registry, mirror: &args.mirror, rights };
    let made = builds.build(context)?;
    if let Some(path) = &args.metadata_file {
        let metadata: BTreeMap<_, _> =
            made.iter().map(|(name, made)| (name, &made.metadata)).collect();
        let text = serde_json::to_string_pretty(&metadata)
            .map_err(|error| Error::failed("cannot write the metadata").caused_by(error))?;
        std::fs::write(path, format!("{text}\n")).path("write", path)?;
    }
    // Targets that were only checked have shown their findings.
    if context.ui.is_json() && !made.is_empty() {
        let documents: BTreeMap<_, _> =
            made.iter().map(|(name, made)| (name, made.json())).collect();
        return context.ui.json(&json!({"targets": documents}));
    }
    let wanted = builds.targets.iter().filter(|(_, is_wanted)| *is_wanted);
    for made in wanted.filter_map(|(target, _)| made.get_key_value(&target.name)) {
        let (name, made) = made;
        context.ui.line(&format!("{name} {}", made.built.image_id))?;
    }
    Ok(())
}

fn show_list(list: List, bake: &Bake, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        let variables = bake.variables.iter().map(|variable| {
            json!({"name": variable.name, "type": variable.kind, "value": variable.value,
                "description": variable.description})
        });
        let targets = bake
            .targets
            .values()
            .map(|target| json!({"name": target.name, "description": target.description}));
        let groups =
            bake.groups.iter().map(|(name, members)| json!({"name": name, "targets": members}));
        return context.ui.json(&match list {
            List::Variables => json!({"variables": variables.collect::<Vec<Value>>()}),
            List::Targets => json!({
                "targets": targets.collect::<Vec<Value>>(), "groups": groups.collect::<Vec<Value>>(),
            }),
        });
    }
    let rows: Vec<Vec<String>> = match list {
        List::Variables => bake
            .variables
            .iter()
            .map(|variable| {
                let Variable { name, kind, value, description } = variable.clone();
                vec![name, kind, value, description]
            })
            .collect(),
        List::Targets => {
            let groups =
                bake.groups.iter().map(|(name, members)| vec![name.clone(), members.join(", ")]);
            let targets = bake.targets.values().map(|target| {
                vec![target.name.clone(), target.description.clone().unwrap_or_default()]
            });
            let mut rows: Vec<_> = groups.chain(targets).collect();
            rows.sort();
            rows
        }
    };
    let mut table = Table::new(match list {
        List::Variables => &["VARIABLE", "TYPE", "VALUE", "DESCRIPTION"],
        List::Targets => &["TARGET", "DESCRIPTION"],
    });
    rows.into_iter().for_each(|row| table.row(row));
    context.ui.print(&table.render(true))
}
