//! One stage: its image, extended instruction by instruction.

use std::collections::HashSet;
use std::sync::Arc;

use crate::build::copy::node_of;
use crate::build::items::{Item, Node, SourceTree, clamp, follow};
use crate::build::layer_step::{LayerMaker, StageLayer};
use crate::build::options::StepCounts;
use crate::build::plan::{From, StagePlan};
use crate::build::scope::{self, Scope};
use crate::build::shared::{ImageLayer, Shared, StageImage};
use crate::build::step_cache::{CachedLayer, Key};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::History;
use imgctl_kubefile::ast::Instruction;
use imgctl_layer::LayerPath;
use imgctl_layer::tree::Tree;

/// Maximum size of an image's `/etc/passwd` or `/etc/group`, in bytes.
const MAX_ACCOUNTS: u64 = 16 << 20;

/// A stage that is being built.
pub(super) struct Stage<'a> {
    pub shared: &'a Shared<'a>,
    pub plan: &'a StagePlan,
    pub scope: Scope,
    pub image: StageImage,
    /// The merged tree; created on demand.
    tree: Option<Tree>,
    /// Layers that are not in the tree yet: after the last step that needs one, nobody reads their
    /// tables of contents.
    unapplied: Vec<ImageLayer>,
    /// Whether this stage has set `CMD`, so that `ENTRYPOINT` must not reset it.
    pub(crate) has_own_cmd: bool,
    pub(super) counts: StepCounts,
    /// The keys of its RUN steps so far.
    pub(super) executed: HashSet<String>,
}

impl<'a> Stage<'a> {
    /// Starts a stage on its base. Also returns the base's ONBUILD triggers, which must run first.
    pub(super) fn start(
        shared: &'a Shared<'a>,
        plan: &'a StagePlan,
        globals: &Scope,
    ) -> Result<(Self, Vec<String>)> {
        let mut image = base_image(shared, plan)?;
        image.complete_path();
        let triggers = std::mem::take(&mut image.config.config.on_build);
        let scope = Scope::new(
            shared.kubefile.directives.escape,
            shared.options.build_args.clone(),
            globals.values(),
            std::mem::take(&mut image.args),
            scope::split_env(&image.config.config.env),
        );
        let mut stage = Self {
            shared,
            plan,
            scope,
            image,
            tree: None,
            unapplied: Vec::new(),
            has_own_cmd: false,
            counts: StepCounts::default(),
            executed: HashSet::new(),
        };
        let files = shared.base_files(&plan.base)?;
        if !files.is_empty() {
            stage.add_items(files, &format!("FROM {}", plan.name))?;
        }
        Ok((stage, triggers))
    }

    /// Returns the stage's image.
    pub(super) fn finish(self) -> StageImage {
        StageImage { args: self.scope.into_args(), ..self.image }
    }

    /// Whether RUN starts anew: no results and no content of cache mounts of earlier builds.
    pub(super) fn forgets(&self) -> bool {
        let options = self.shared.options;
        options.no_cache || options.no_cache_stages.contains(&self.plan.name)
    }

    /// Returns the image's merged tree.
    pub(super) fn tree(&mut self) -> Result<&Tree> {
        let unapplied = std::mem::take(&mut self.unapplied);
        match &mut self.tree {
            Some(tree) => {
                for layer in &unapplied {
                    tree.apply(self.shared.toc_of(layer)?)?;
                }
            }
            None => self.tree = Some(Tree::from_layers(self.image.tocs(self.shared)?)?),
        }
        self.tree.as_ref().ok_or_else(|| Error::failed("the stage has no tree"))
    }

    /// Returns the merged tree as [`Stage::tree`] has last returned it, if it has been created.
    pub(crate) fn tree_made(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// Returns the absolute working directory for relative paths.
    pub(super) fn workdir(&self) -> String {
        match self.image.config.config.working_dir.as_str() {
            "" => "/".to_owned(),
            // Other tools may write one that no command can be started in.
            directory => clamp(directory.as_bytes())
                .map_or_else(|_| directory.to_owned(), |path| path.to_string()),
        }
    }

    /// Returns the image's account files, for `--chown` and `USER`.
    pub(super) fn accounts(&mut self) -> Result<(Vec<u8>, Vec<u8>)> {
        if self.image.layers.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let tree = self.image.tree(self.shared, "the stage")?;
        let read = |name: &[u8]| {
            let path = LayerPath::parse(name)?;
            Ok::<_, Error>(tree.read_small(&path, MAX_ACCOUNTS)?.unwrap_or_default())
        };
        Ok((read(b"etc/passwd")?, read(b"etc/group")?))
    }

    /// Returns the account files if `owner` (`user[:group]`) needs them: numbers do not.
    pub(crate) fn accounts_for(&mut self, owner: &str) -> Result<(Vec<u8>, Vec<u8>)> {
        let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if owner.split(':').all(is_number) {
            return Ok((Vec::new(), Vec::new()));
        }
        self.accounts()
    }

    /// Returns the layer maker with this build's options.
    pub(crate) fn layer_maker(&self) -> LayerMaker<'a> {
        self.shared.layer_maker()
    }

    /// Stores items as new layers on top.
    pub(crate) fn add_items(&mut self, items: Vec<Item>, created_by: &str) -> Result<()> {
        if items.is_empty() {
            self.add_history(created_by);
            return Ok(());
        }
        let layers = self.layer_maker().make(items)?;
        self.add_layers(layers, created_by)
    }

    /// Adds finished layers on top.
    pub(crate) fn add_layers(&mut self, layers: Vec<StageLayer>, created_by: &str) -> Result<()> {
        if layers.iter().all(|layer| layer.from_cache) {
            self.counts.cached += 1;
        }
        if layers.is_empty() {
            self.add_history(created_by);
        }
        for StageLayer { layer, .. } in layers {
            self.add_layer(layer, created_by)?;
        }
        Ok(())
    }

    fn add_layer(&mut self, layer: CachedLayer, created_by: &str) -> Result<()> {
        let kind = layer.descriptor.layer_kind().map(|kind| format!("{kind} layer"));
        let newest = layer.newest;
        let layer = ImageLayer { descriptor: layer.descriptor, diff_id: layer.diff_id };
        self.unapplied.push(layer.clone());
        self.image.newest = self.image.newest.max(Some(newest));
        self.image.layers.push(layer);
        self.image.config.history.push(History {
            created_by: Some(created_by.to_owned()),
            comment: kind,
            ..History::default()
        });
        Ok(())
    }

    /// Records an instruction that created no layer.
    pub(crate) fn add_history(&mut self, created_by: &str) {
        self.image.config.history.push(History {
            created_by: Some(created_by.to_owned()),
            empty_layer: true,
            ..History::default()
        });
    }

    /// Whether the image has a directory at `path`, following symlinks.
    pub(crate) fn has_directory(&mut self, path: &LayerPath) -> Result<bool> {
        let tree = self.tree()?;
        let real = tree.resolve(path)?;
        Ok(real.is_root() || node_of(tree, &real) == Some(Node::Directory))
    }

    /// Returns the tree that `--from=name` refers to in this stage.
    pub(super) fn source(&self, name: &str) -> Result<Arc<dyn SourceTree + Send + Sync>> {
        let shared = self.shared;
        let from = crate::build::plan::from_name(
            shared.kubefile,
            &shared.options.build_contexts,
            name,
            self.plan.index,
        )?;
        match from {
            From::Scratch => {
                let image = StageImage::empty(shared.platform);
                Ok(Arc::new(image.tree(shared, name)?))
            }
            From::Stage(index) => {
                let image = shared.results.get(index)?;
                Ok(Arc::new(image.tree(shared, &format!("stage {name}"))?))
            }
            // Its platform is that of the build, not that of this stage (BuildKit).
            From::Image(name) => {
                let image = shared.stored_image(&name, shared.platform)?;
                Ok(Arc::new(image.tree(shared, &format!("image {name}"))?))
            }
            From::Context(name) => shared.named_tree(&name, shared.platform),
        }
    }

    /// Adds the content of `source=` in `from=` to a key; without `from=`, the context is used.
    pub(crate) fn add_source(
        &self,
        from: Option<&str>,
        source: Option<&str>,
        key: &mut Key,
    ) -> Result<()> {
        let path = clamp(source.unwrap_or("/").as_bytes())?;
        let items = match from {
            Some(name) => items_at(self.source(name)?.as_ref(), &path)?,
            None => items_at(self.shared.context()?, &path)?,
        };
        self.layer_maker().add_content(items, key)
    }

    /// Adds the instruction's position to an error.
    pub(super) fn at(&self, instruction: &Instruction, error: Error) -> Error {
        scope::at(self.shared.source, instruction, error)
    }
}

fn items_at(tree: &dyn SourceTree, path: &LayerPath) -> Result<Vec<Item>> {
    let real = follow(path, &|path| tree.node(path))?;
    if tree.node(&real)?.is_none() {
        return Err(Error::not_found(format!("{path} is not in {}", tree.name())));
    }
    tree.below(&real)
}

fn base_image(shared: &Shared<'_>, plan: &StagePlan) -> Result<StageImage> {
    match &plan.base {
        From::Scratch => Ok(StageImage::empty(&plan.platform)),
        From::Stage(index) => Ok(shared.results.get(*index)?.as_ref().clone()),
        From::Image(name) => shared.stored_image(name, &plan.platform),
        From::Context(name) => shared.named_image(name, &plan.platform),
    }
}
