//! `imgctl render`.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::json;

use crate::cli::cluster_options::{
    DesiredArgs, ValuesArgs, data_root, images, state, with_surroundings,
};
use crate::cli::context::Context;
use crate::cli::image_tree::whole_tree;
use crate::cli::registry_options::RegistryArgs;
use imgctl_base::error::{Context as _, Error, IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_cluster::cluster::clusterfile::{Clusterfile, Ssh};
use imgctl_cluster::cluster::context::ClusterContext;
use imgctl_cluster::cluster::desired::{self, HostFlags};
use imgctl_cluster::cluster::host::Host;
use imgctl_cluster::cluster::image::{ClusterImage, ImageKind};
use imgctl_cluster::cluster::name;
use imgctl_cluster::cluster::paths::Paths;
use imgctl_host::agent::protocol::Facts;
use imgctl_host::render::{self, BuiltIn, ConfigEdit, ImageInputs, Inputs, Rendered};
use imgctl_store::layer::{ContentReader, EntryKind, LayerPath};
use imgctl_store::store::Store;

/// Show the files that templates render to on a host
#[derive(Args, Debug)]
#[command(
    after_help = "Changes nothing and queries no host, so the host's own name (HOST_NAME) is not known.
Without -o, prints the files one after another.

Examples:
  imgctl render --host 10.0.0.2 --cluster default
  imgctl render --host 10.0.0.2 etcd-cluster:v1 --path etc/etcd.conf
  imgctl render --host 10.0.0.2 -f Clusterfile -o preview"
)]
pub(crate) struct RenderArgs {
    /// Images to render as if they were run [default: the cluster's images]
    #[arg(value_name = "IMAGE", conflicts_with_all = ["cluster", "file"])]
    images: Vec<String>,

    /// Host to render for
    #[arg(long, value_name = "HOST")]
    host: String,

    /// Name of an existing cluster [default: default]
    #[arg(short, long, value_name = "NAME", conflicts_with = "file")]
    cluster: Option<String>,

    /// Path of the Clusterfile; `-` is stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Render only this file, given as etc/x or etc/x.tmpl
    #[arg(long, value_name = "PATH")]
    path: Option<String>,

    /// Directory to write the files into, readable only by its owner
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Fail on templates that use an undefined variable
    #[arg(long)]
    strict_templates: bool,

    #[command(flatten)]
    desired: DesiredArgs,

    #[command(flatten)]
    values: ValuesArgs,

    #[command(flatten)]
    registry: RegistryArgs,
}

/// Directories whose templates are rendered.
const RENDERED: [&str; 3] = ["etc/", "scripts/", "manifests/"];
/// Maximum size of a template, in bytes.
const MAX_TEMPLATE: u64 = 16 << 20;

/// Prints or writes the files.
pub(crate) fn run(args: &RenderArgs, context: &Context) -> Result<()> {
    let (scene, host, configs) = scene(args, context)?;
    let files = files(&scene, &host, &configs, args, context)?;
    if files.is_empty() {
        return Err(match &args.path {
            Some(path) => Error::not_found(format!("no template produces {path} on {}", host.id())),
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
        context.ui.say(&format!("{} files in {}", files.len(), directory.display()));
        return Ok(());
    }
    if context.ui.is_json() {
        let object = |(path, text): (&String, &String)| json!({"path": path, "content": text});
        return context.ui.json(&files.iter().map(object).collect::<Vec<_>>());
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

/// Returns the cluster context, and the host in it.
fn scene(args: &RenderArgs, context: &Context) -> Result<(ClusterContext, Host, Vec<ConfigEdit>)> {
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
    let name = &clusterfile.cluster.name;
    let images = images(&clusterfile.cluster.images, name, None, &args.registry, context)?;
    let data_root = data_root(&context.environment)?;
    let directory = state(name, context)?.directory().to_owned();
    with_surroundings(context, |surroundings| {
        let scene = ClusterContext::new(&clusterfile, images, &data_root, directory, surroundings)?;
        let mut hosts = desired::choose(&clusterfile, &args.host, surroundings)?;
        match (hosts.pop(), hosts.is_empty()) {
            (Some(host), true) => Ok((scene, host, clusterfile.configs.clone())),
            _ => Err(Error::usage(format!("--host {} is not a single host", args.host))),
        }
    })
}

/// Returns the rendered files by path below the cluster's directory on the host. The same code
/// renders them on the host; here it works in a directory with the images' text files.
fn files(
    scene: &ClusterContext,
    host: &Host,
    configs: &[ConfigEdit],
    args: &RenderArgs,
    context: &Context,
) -> Result<BTreeMap<String, String>> {
    let store = context.store()?;
    let (base, applications): (Vec<&ClusterImage>, Vec<&ClusterImage>) =
        scene.images.iter().partition(|image| image.kind != ImageKind::Application);
    let mut trees = vec![("rootfs".to_owned(), base)];
    if scene.first() == Some(host) {
        trees.extend(
            applications
                .into_iter()
                .map(|image| (Paths::application_tree(&image.mount_name), vec![image])),
        );
    }
    let mut all = BTreeMap::new();
    for (tree, images) in trees {
        let scratch = store.scratch_directory()?;
        let inputs = inputs(scene, host, &images, configs, args.strict_templates);
        let rendered = preview(store, scratch.path(), &images, &inputs)
            .context(|| format!("cannot render {tree} for {}", host.id()))?;
        for note in &rendered.notes {
            context.ui.note(note);
        }
        for path in rendered.files {
            let wanted = args.path.as_deref().map(|path| path.trim_start_matches('/'));
            if wanted.is_some_and(|wanted| wanted.trim_end_matches(".tmpl") != path) {
                continue;
            }
            let file = scratch.path().join(&path);
            let bytes = std::fs::read(&file).path("read", &file)?;
            all.insert(format!("{tree}/{path}"), String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    Ok(all)
}

/// Returns the inputs of one tree's files, as sync passes them to the host.
fn inputs(
    scene: &ClusterContext,
    host: &Host,
    images: &[&ClusterImage],
    configs: &[ConfigEdit],
    strict: bool,
) -> Inputs {
    let is_ours = |name: &str| images.iter().any(|image| image.name == name);
    Inputs {
        images: images
            .iter()
            .map(|image| ImageInputs {
                name: image.name.clone(),
                environment: image.environment.clone(),
            })
            .collect(),
        environment: scene.environment_on(host, None),
        facts: scene.facts_on(host, &Facts::default()),
        configs: configs
            .iter()
            .filter(|config| config.image.as_deref().is_none_or(is_ours))
            .cloned()
            .collect(),
        strict,
    }
}

/// Writes the text files of `images` into the empty directory `root` and renders them there.
fn preview(
    store: &Store,
    root: &Path,
    images: &[&ClusterImage],
    inputs: &Inputs,
) -> Result<Rendered> {
    let mut origins: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    let mut built_in = Vec::new();
    for (index, image) in images.iter().enumerate() {
        for (path, bytes) in texts(store, image, inputs)? {
            if path == render::BUILT_IN {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                built_in.push(BuiltIn { image: index, text });
            }
            let file = root.join(&path);
            if let Some(parent) = file.parent() {
                std::fs::create_dir_all(parent).path("make", parent)?;
            }
            std::fs::write(&file, &bytes).path("write", &file)?;
            origins.insert(path.into_bytes(), index);
        }
    }
    let origin = |path: &[u8]| origins.get(path).copied();
    render::tree(root, inputs, &built_in, &origin)
}

/// Returns the files of an image that rendering reads: those below the rendered directories, the
/// built-in Config list, and the files that Config documents change.
fn texts(
    store: &Store,
    image: &ClusterImage,
    inputs: &Inputs,
) -> Result<BTreeMap<String, Vec<u8>>> {
    let read = store.image(&image.name, None)?;
    let tree = whole_tree(store, &read)?;
    let mut found = BTreeMap::new();
    let root = LayerPath::root();
    for (path, listed) in tree.walk(&root) {
        let Some(name) = str::from_utf8(path.as_bytes()).ok() else {
            continue;
        };
        let is_read = RENDERED.iter().any(|top| name.starts_with(top))
            || name == render::BUILT_IN
            || inputs.configs.iter().any(|config| config.path == name);
        let EntryKind::File { size, .. } = listed.entry().kind else {
            continue;
        };
        if !is_read || size > MAX_TEMPLATE || !is_inside(name) {
            continue;
        }
        let layer = listed.layer.and_then(|index| read.layers().nth(index));
        let Some((layer, diff_id)) = layer else {
            continue;
        };
        let toc = Arc::new(store.toc(&layer.digest, diff_id)?);
        let mut reader = ContentReader::new(store.open_blob(&layer.digest)?, toc)?;
        let mut bytes = Vec::new();
        reader
            .open(listed.entry)?
            .take(MAX_TEMPLATE)
            .read_to_end(&mut bytes)
            .doing(|| format!("cannot read {name} of {}", image.name))?;
        found.insert(name.to_owned(), bytes);
    }
    Ok(found)
}

/// Whether a name stays below the directory it is joined to.
fn is_inside(name: &str) -> bool {
    Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)))
}
