//! What a cluster would consist of: the files that templates render to on a host, and the
//! documents of its runtime. Asks no host.

use std::collections::BTreeMap;
use std::path::Path;

use crate::install::Additions;
use crate::session::{Needed, Session};
use crate::settings;
use imgctl_base::error::{Context as _, Error, IoContext, Result};
use imgctl_host::agent::protocol::Facts;
use imgctl_host::render::{self, BuiltIn, ConfigEdit, ImageInputs, Inputs, Rendered};
use imgctl_layer::{EntryKind, LayerPath};
use imgctl_model::context::{ClusterContext, Host, Paths};
use imgctl_model::image::{ClusterImage, ImageKind};
use imgctl_model::{clusterfile, clusterfile::Clusterfile};
use imgctl_model::{desired, desired::HostFlags};
use imgctl_runtime::certificates::validity::Validity;
use imgctl_runtime::{k3s::K3s, kubeadm::Kubeadm};
use imgctl_store::store::Store;
use imgctl_store::store::images::content;
use imgctl_store::store::remote_layers::tree_without_registry;

/// Directories whose templates are rendered.
const RENDERED: [&str; 3] = ["etc/", "scripts/", "manifests/"];
/// Maximum size of a template, in bytes.
const MAX_TEMPLATE: u64 = 16 << 20;

/// Where the images and variables come from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// The recorded cluster of this name.
    Cluster(String),
    Clusterfile(Box<Clusterfile>),
    /// Images, as if a cluster of this name ran them.
    Images {
        cluster: String,
        images: Vec<String>,
    },
}

#[derive(Clone, Debug)]
pub struct RenderRequest {
    pub origin: Origin,
    pub host: String,
    pub additions: Additions,
    /// The only file to render.
    pub path: Option<String>,
    /// Fail on templates that use an undefined variable.
    pub strict: bool,
}

/// Returns the rendered files by path below the cluster's directory on the host.
pub fn render(request: &RenderRequest, session: &Session<'_>) -> Result<BTreeMap<String, String>> {
    let view = View::of(request, session)?;
    let files = view.files()?;
    if !files.is_empty() {
        return Ok(files);
    }
    Err(match &request.path {
        Some(path) => {
            Error::not_found(format!("no template produces {path} on {}", view.host.id()))
        }
        None => Error::not_found("the images have no templates".to_owned()),
    })
}

/// Fails if the variables do not fit what the images of the cluster describe. `given` are those that the
/// user has named.
pub fn check_variables(
    cluster: &ClusterContext,
    given: &BTreeMap<String, String>,
    session: &Session<'_>,
) -> Result<()> {
    settings::tell_misspelled(given, &cluster.images, session.front.as_ref())?;
    settings::check(cluster)
}

/// A cluster as one of its hosts sees it.
struct View<'a> {
    context: ClusterContext,
    host: Host,
    configs: Vec<ConfigEdit>,
    request: &'a RenderRequest,
    session: &'a Session<'a>,
}

impl<'a> View<'a> {
    fn of(request: &'a RenderRequest, session: &'a Session<'_>) -> Result<Self> {
        let mut clusterfile = match &request.origin {
            Origin::Clusterfile(clusterfile) => (**clusterfile).clone(),
            Origin::Cluster(name) => session.state(name)?.require()?.0,
            Origin::Images { cluster, images } => {
                let masters = Some(request.host.clone());
                let flags = HostFlags { masters, ..HostFlags::default() };
                let own = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
                Clusterfile::new(cluster, images, &flags, own)?
            }
        };
        request.additions.add_to(&mut clusterfile);
        let cluster = &clusterfile.cluster;
        let images = session.images(&cluster.images, &cluster.name, None, Needed::Layers)?;
        let context = session.cluster_context(&clusterfile, images)?;
        check_variables(&context, &request.additions.environment, session)?;
        let mut hosts = session
            .with_surroundings(|around| desired::choose(&clusterfile, &request.host, around))?;
        match (hosts.pop(), hosts.is_empty()) {
            (Some(host), true) => {
                Ok(Self { context, host, configs: clusterfile.configs, request, session })
            }
            _ => Err(Error::usage(format!("--host {} is not a single host", request.host))),
        }
    }

    /// Returns the files of all trees. The same code renders them on the host; here it works in a
    /// directory with the images' text files.
    fn files(&self) -> Result<BTreeMap<String, String>> {
        let store = self.session.store()?;
        let (base, applications): (Vec<&ClusterImage>, Vec<&ClusterImage>) =
            self.context.images.iter().partition(|image| image.kind != ImageKind::Application);
        let mut trees = vec![("rootfs".to_owned(), base)];
        if self.context.first() == Some(&self.host) {
            let tree = |image: &'_ ClusterImage| Paths::application_tree(&image.mount_name);
            trees.extend(applications.into_iter().map(|image| (tree(image), vec![image])));
        }
        let wanted = self.request.path.as_deref().map(|path| path.trim_start_matches('/'));
        let mut all = BTreeMap::new();
        for (tree, images) in trees {
            let scratch = store.scratch_directory()?;
            let rendered = preview(store, scratch.path(), &images, &self.inputs(&images))
                .context(|| format!("cannot render {tree} for {}", self.host.id()))?;
            for note in &rendered.notes {
                self.session.front.note(note);
            }
            for path in rendered.files {
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
    fn inputs(&self, images: &[&ClusterImage]) -> Inputs {
        let is_ours = |name: &str| images.iter().any(|image| image.name == name);
        let of_image = |image: &&ClusterImage| ImageInputs {
            name: image.name.clone(),
            environment: image.environment.clone(),
        };
        let mut configs = self.configs.clone();
        configs.retain(|config| config.image.as_deref().is_none_or(is_ours));
        Inputs {
            images: images.iter().map(of_image).collect(),
            environment: self.context.environment_on(&self.host, None).to_map(),
            facts: self.context.facts_on(&self.host, &Facts::default()),
            configs,
            strict: self.request.strict,
        }
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
    let tree = tree_without_registry(store, &read)?;
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
        let what = || format!("cannot read {name} of {}", image.name);
        if let Some(bytes) = content(store, &read, &listed, MAX_TEMPLATE).context(what)? {
            found.insert(name.to_owned(), bytes);
        }
    }
    Ok(found)
}

/// Whether a name stays below the directory it is joined to.
fn is_inside(name: &str) -> bool {
    Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// Returns the documents with which the image's runtime would create this cluster.
pub fn default_documents(
    context: &ClusterContext,
    session: &Session<'_>,
) -> Result<Vec<serde_json::Value>> {
    let files = session.image_files()?;
    let rootfs = context.rootfs().map(ClusterImage::distribution);
    let text = match rootfs {
        Some("" | "kubernetes" | "kubeadm") => {
            Kubeadm::new(&files, Validity::default()).default_documents(context)?
        }
        Some("k3s") => K3s::new(&files).default_document(context)?,
        _ => return Ok(Vec::new()),
    };
    let (read, _) = clusterfile::read_additions(&text, "the runtime's defaults")?;
    Ok(read.documents)
}
