//! `imgctl render`.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::agent::protocol::Facts;
use crate::cli::cluster_options::{
    DesiredArgs, ValuesArgs, data_root, images, state, with_surroundings,
};
use crate::cli::context::Context;
use crate::cli::image_tree::whole_tree;
use crate::cli::registry_options::RegistryArgs;
use crate::cluster::clusterfile::{Clusterfile, Ssh};
use crate::cluster::desired::{self, HostFlags};
use crate::cluster::host::Host;
use crate::cluster::image::{ClusterImage, ImageKind};
use crate::cluster::name;
use crate::cluster::scene::Scene;
use crate::error::{Context as _, Error, IoContext, Result};
use crate::fs::atomic::{self, Durability};
use crate::layer::{ContentReader, EntryKind, LayerPath};
use crate::store::Store;
use crate::template::{Dialect, Missing, Template, value};

/// Show the files that templates become on a host
#[derive(Args, Debug)]
#[command(
    after_help = "Nothing is changed and no host is asked, so the host's own name (HOST_NAME) is not known.
Without -o the files are printed, one after another.

Examples:
  imgctl render --host 10.0.0.2 --cluster default
  imgctl render --host 10.0.0.2 etcd-cluster:v1 --path etc/etcd.conf
  imgctl render --host 10.0.0.2 -f Clusterfile -o preview"
)]
pub(crate) struct RenderArgs {
    /// Images as they would be run [default: those of the cluster]
    #[arg(value_name = "IMAGE", conflicts_with_all = ["cluster", "file"])]
    images: Vec<String>,

    /// The host
    #[arg(long, value_name = "HOST")]
    host: String,

    /// Name of a cluster that is there [default: default]
    #[arg(short, long, value_name = "NAME", conflicts_with = "file")]
    cluster: Option<String>,

    /// Clusterfile; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Only this file, as etc/x or etc/x.tmpl
    #[arg(long, value_name = "PATH")]
    path: Option<String>,

    /// Directory to write the files into; for its owner alone to read
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Refuse templates that use a variable that is not there
    #[arg(long)]
    strict_templates: bool,

    #[command(flatten)]
    desired: DesiredArgs,

    #[command(flatten)]
    values: ValuesArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Where templates are rendered.
const RENDERED: [&str; 3] = ["etc", "scripts", "manifests"];
const SUFFIX: &str = ".tmpl";
/// Longest template, in bytes.
const MAX_TEMPLATE: u64 = 16 << 20;

/// Prints or writes the files.
pub(crate) fn run(args: &RenderArgs, context: &Context) -> Result<()> {
    let (scene, host) = scene(args, context)?;
    let files = files(&scene, &host, args, context)?;
    if files.is_empty() {
        return Err(match &args.path {
            Some(path) => Error::not_found(format!("no template makes {path} on {}", host.id())),
            None => Error::not_found("the images have no templates".to_owned()),
        });
    }
    if let Some(directory) = &args.output {
        for (path, text) in &files {
            let path = directory.join(path);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).path("make", parent)?;
            }
            atomic::write(&path, text.as_bytes(), 0o600, Durability::Atomic)?;
        }
        context
            .ui
            .say(&format!("{} files in {}", files.len(), directory.display()));
        return Ok(());
    }
    if context.ui.is_json() {
        let object = |(path, text): (&String, &String)| json!({"path": path, "content": text});
        return context
            .ui
            .json(&files.iter().map(object).collect::<Vec<_>>());
    }
    if args.path.is_some() {
        return files.values().try_for_each(|text| context.ui.print(text));
    }
    for (path, text) in &files {
        context.ui.line(&format!("==> {path} <=="))?;
        context.ui.print(text)?;
        if !text.ends_with('\n') {
            context.ui.line("")?;
        }
    }
    Ok(())
}

/// The cluster that is meant, and the host in it.
fn scene(args: &RenderArgs, context: &Context) -> Result<(Scene, Host)> {
    let cluster = args.cluster.as_deref().unwrap_or(name::DEFAULT);
    let mut clusterfile = match (&args.file, args.images.is_empty()) {
        (Some(file), _) => args.values.clusterfile(file, context)?,
        (None, true) => state(cluster, context)?.require()?.0,
        (None, false) => {
            let flags = HostFlags {
                masters: Some(args.host.clone()),
                ssh: Ssh::default(),
                ..HostFlags::default()
            };
            let own = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
            Clusterfile::new(cluster, &args.images, &flags, own)?
        }
    };
    let environment = args.desired.environment()?;
    clusterfile.cluster.set_flag_environment(&environment);
    args.desired.add_documents(&mut clusterfile, context)?;
    if !clusterfile.configs.is_empty() {
        context
            .ui
            .note("Config documents are not part of this preview");
    }
    let name = &clusterfile.cluster.name;
    let images = images(
        &clusterfile.cluster.images,
        name,
        None,
        &args.registry,
        context,
    )?;
    let data_root = data_root(&context.environment)?;
    let directory = state(name, context)?.directory().to_owned();
    with_surroundings(context, |surroundings| {
        let scene = Scene::new(&clusterfile, images, &data_root, directory, surroundings)?;
        let mut hosts = desired::choose(&clusterfile, &args.host, surroundings)?;
        match (hosts.pop(), hosts.is_empty()) {
            (Some(host), true) => Ok((scene, host)),
            _ => Err(Error::usage(format!(
                "--host {} is not one host",
                args.host
            ))),
        }
    })
}

/// The rendered files by their place below the cluster's directory on the host.
fn files(
    scene: &Scene,
    host: &Host,
    args: &RenderArgs,
    context: &Context,
) -> Result<BTreeMap<String, String>> {
    let store = context.store()?;
    let missing = match args.strict_templates {
        true => Missing::Error,
        false => Missing::NoValue,
    };
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for image in &scene.images {
        let tree = match image.kind {
            ImageKind::Rootfs | ImageKind::Patch => "rootfs".to_owned(),
            ImageKind::Application if scene.first() == Some(host) => {
                format!("applications/{}", image.name.replace(['/', ':', '@'], "_"))
            }
            ImageKind::Application => continue,
        };
        let data = value::from(&Value::Object(data(scene, host, image)))?;
        for (path, text) in templates(store, image)? {
            let output = path.strip_suffix(SUFFIX).unwrap_or(&path);
            let wanted = args
                .path
                .as_deref()
                .map(|path| path.trim_start_matches('/'));
            if wanted.is_some_and(|wanted| wanted != path && wanted != output) {
                continue;
            }
            let rendered = Template::parse(&path, &text, Dialect::ClusterImage, missing)
                .and_then(|template| template.render(&data))
                .context(|| format!("cannot render {path} of {} for {}", image.name, host.id()))?;
            all.insert(format!("{tree}/{output}"), rendered);
        }
    }
    Ok(all)
}

/// What a template of `image` sees on `host`.
fn data(scene: &Scene, host: &Host, image: &ClusterImage) -> Map<String, Value> {
    let mut environment: BTreeMap<String, String> = BTreeMap::new();
    for other in &scene.images {
        environment.extend(other.environment.clone());
    }
    environment.extend(scene.environment_on(host, Some(image)));
    let mut data: Map<String, Value> = environment
        .iter()
        .map(|(name, value)| (name.clone(), Value::String(value.clone())))
        .collect();
    data.insert("Env".to_owned(), json!(environment));
    data.extend(scene.facts_on(host, &Facts::default()));
    data
}

/// All templates of an image by path.
fn templates(store: &Store, image: &ClusterImage) -> Result<BTreeMap<String, String>> {
    let read = store.image(&image.name, None)?;
    let tree = whole_tree(store, &read)?;
    let mut found = BTreeMap::new();
    for directory in RENDERED {
        let start = LayerPath::parse(directory.as_bytes())?;
        if tree.lookup(&start).is_none() {
            continue;
        }
        for (path, listed) in tree.walk(&start) {
            let Some(name) = str::from_utf8(path.as_bytes()).ok() else {
                continue;
            };
            let is_file = matches!(listed.entry().kind, EntryKind::File { .. });
            if !is_file || !name.ends_with(SUFFIX) || !is_inside(name) {
                continue;
            }
            let layer = listed.layer.and_then(|index| read.layers().nth(index));
            let Some((layer, diff_id)) = layer else {
                continue;
            };
            let toc = Arc::new(store.toc(&layer.digest, diff_id)?);
            let mut reader = ContentReader::new(store.open_blob(&layer.digest)?, toc)?;
            let mut text = String::new();
            reader
                .open(listed.entry)?
                .take(MAX_TEMPLATE)
                .read_to_string(&mut text)
                .doing(|| format!("cannot read {name} of {} as text", image.name))?;
            found.insert(name.to_owned(), text);
        }
    }
    Ok(found)
}

/// A name that stays below the directory it is joined to.
fn is_inside(name: &str) -> bool {
    Path::new(name)
        .components()
        .all(|part| matches!(part, std::path::Component::Normal(_)))
}
