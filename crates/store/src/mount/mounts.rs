//! `mount`: selects a backend, writes the record, and attaches the mount. `mounts`: lists the
//! mounts and their state.
//!
//! The process may die at any line: it writes the record before the mount and sets `ready` after
//! it, and `workspace::sweep` removes anything left in between.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::mount::layers::{LayerOf, distinct_layers};
use crate::mount::privilege::Privileges;
use crate::mount::shapes::Shapes;
use crate::mount::stack::{Snapshot, Stack};
use crate::mount::workspace::{self, Backend, MERGED, Record, UPPER, WORK, Workspace};
use crate::mount::{OverlaySpec, Upper, attach, checkout, erofs, mountinfo, snapshots};
use crate::store::Store;
use crate::store::images::Image;
use imgctl_base::error::{Context, Error, IoContext, Kind, Result};
use imgctl_base::image::{Digest, time};
use imgctl_base::progress::Reporter;
use imgctl_base::quote::quote;

/// Options of a mount.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Makes the mount read-only.
    pub read_only: bool,
    /// Directory to mount at, created if missing. Defaults to a directory in the store.
    pub target: Option<PathBuf>,
    /// Name by which commands find the mount.
    pub name: Option<String>,
    /// `None` selects the fastest backend that works here.
    pub backend: Option<Backend>,
}

/// A completed mount.
#[derive(Clone, Debug)]
pub struct Mounted {
    pub record: Record,
    /// Notes for the user, for example that a simpler backend was used or that owners could not be
    /// kept.
    pub notes: Vec<String>,
}

/// Whether the files of a record are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Mounted,
    /// A process is creating the mount, or died while creating it.
    Unfinished,
    /// A reboot or `umount(8)` ended the mount. Files written into it are kept.
    Stale,
    /// Mounted in another mount namespace. Holds the ID of a process in that namespace.
    Elsewhere(u32),
}

impl State {
    /// Returns the state as one word for tables and JSON.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Mounted => "mounted",
            Self::Unfinished => "unfinished",
            Self::Stale => "stale",
            Self::Elsewhere(_) => "elsewhere",
        }
    }
}

/// Mounts `image`. Each call creates a separate mount.
pub fn mount(
    store: &Store,
    image: &Image,
    options: &Options,
    reporter: &dyn Reporter,
) -> Result<Mounted> {
    let making = Making {
        store,
        image,
        options,
        reporter,
        privileges: Privileges::current(),
        digests: image.digests().cloned().collect(),
    };
    let lease = store.lease()?;
    lease.hold_all(&making.digests)?;
    workspace::sweep(store)?;
    if let Some(name) = &options.name {
        check_name(store, name)?;
    }
    match options.backend {
        Some(Backend::Checkout) => making.checkout(Vec::new()),
        Some(Backend::Overlay) => making.overlay()?.or_fail(),
        Some(Backend::Erofs) => making.erofs()?.or_fail(),
        None => making.whatever_works(),
    }
    .context(|| format!("cannot mount {}", image_name(image)))
}

/// Parameters of one `mount` call.
struct Making<'a> {
    store: &'a Store,
    image: &'a Image,
    options: &'a Options,
    reporter: &'a dyn Reporter,
    privileges: Privileges,
    digests: Vec<Digest>,
}

/// Result of an attempt with a backend that the kernel may refuse.
enum Attempt {
    Mounted(Box<Mounted>),
    /// Refused here, for example by a container, a security module, the wrong file system or an old
    /// kernel.
    Refused(Error),
}

impl Attempt {
    fn or_fail(self) -> Result<Mounted> {
        match self {
            Self::Mounted(mounted) => Ok(*mounted),
            Self::Refused(error) => Err(error),
        }
    }
}

impl Making<'_> {
    fn whatever_works(&self) -> Result<Mounted> {
        let refused = if !self.privileges.mount {
            Error::new(Kind::Denied, "mounting needs CAP_SYS_ADMIN")
        } else if erofs::is_better(self.store, self.image)?
            && let Attempt::Mounted(mounted) = self.erofs()?
        {
            return Ok(*mounted);
        } else {
            match self.overlay()? {
                Attempt::Mounted(mounted) => return Ok(*mounted),
                Attempt::Refused(error) => error,
            }
        };
        if self.options.target.is_some() {
            return Err(
                refused.hint("run `imgctl export -o DIRECTORY` to copy the files without mounting")
            );
        }
        let note = format!("the files have been copied into a plain directory: {refused}");
        self.checkout(vec![note])
    }

    fn overlay(&self) -> Result<Attempt> {
        let ensured = snapshots::ensure(self.store, self.image, self.privileges, self.reporter)?;
        let stack = Stack::new(ensured.snapshots, !self.privileges.trusted_xattrs)?;
        self.attach(Backend::Overlay, ensured.merged, ensured.notes, |_| Ok(stack))
    }

    fn erofs(&self) -> Result<Attempt> {
        let index = erofs::ensure(self.store, self.image, self.reporter)?;
        self.attach(Backend::Erofs, Vec::new(), Vec::new(), |workspace| {
            let lower = workspace.make("erofs")?;
            index.attach(&workspace.path(""), &lower)?;
            let snapshot = Snapshot { fs: lower, shapes: Shapes::new() };
            Stack::new(vec![snapshot], !self.privileges.trusted_xattrs)
        })
    }

    /// Mounts an overlay of the stack that `prepare` returns. `prepare` runs after the record is
    /// written.
    fn attach(
        &self,
        backend: Backend,
        more_digests: Vec<Digest>,
        notes: Vec<String>,
        prepare: impl FnOnce(&Workspace) -> Result<Stack>,
    ) -> Result<Attempt> {
        let workspace = Workspace::create(self.store, "")?;
        let target = match &self.options.target {
            Some(target) => own_target(target)?,
            None => workspace.make(MERGED)?,
        };
        let mut record = self.record(&workspace, &target, backend)?;
        record.digests.extend(more_digests);
        record.write(&workspace.path(""))?;
        let stack = match prepare(&workspace) {
            Ok(stack) => stack,
            Err(error) if error.kind() != Kind::BadContent => return Ok(Attempt::Refused(error)),
            Err(error) => return Err(error),
        };
        let spec = spec(&workspace, &stack, self.options.read_only)?;
        if let Err(error) = attach(&spec, &target) {
            return Ok(Attempt::Refused(error));
        }
        record.ready = true;
        record.write(&workspace.path(""))?;
        workspace.keep();
        Ok(Attempt::Mounted(Box::new(Mounted { record, notes })))
    }

    fn checkout(&self, mut notes: Vec<String>) -> Result<Mounted> {
        if self.options.target.is_some() {
            return Err(Error::usage("a checkout cannot be mounted at a directory of your choice")
                .hint("run `imgctl export -o DIRECTORY` to copy the files there"));
        }
        let workspace = Workspace::create(self.store, "")?;
        let merged = workspace.make(MERGED)?;
        let mut record = self.record(&workspace, &merged, Backend::Checkout)?;
        record.read_only = false;
        record.write(&workspace.path(""))?;
        notes.extend(checkout::to_directory(
            self.store,
            self.image,
            &merged,
            self.privileges,
            self.reporter,
        )?);
        record.ready = true;
        record.write(&workspace.path(""))?;
        workspace.keep();
        Ok(Mounted { record, notes })
    }

    fn record(&self, workspace: &Workspace, target: &Path, backend: Backend) -> Result<Record> {
        Ok(Record {
            id: workspace.id().to_owned(),
            name: self.options.name.clone(),
            image: image_name(self.image),
            manifest: self.image.descriptor.digest.clone(),
            digests: self.digests.clone(),
            path: std::fs::canonicalize(target).path("find", target)?,
            backend,
            read_only: self.options.read_only,
            created: time::rfc3339(now()),
            boot_id: mountinfo::boot_id()?,
            namespace: mountinfo::namespace()?,
            ready: false,
        })
    }
}

/// Returns the spec for one overlay of a workspace: the stack, its corrections, and an upper
/// directory unless `read_only`.
pub(super) fn spec(workspace: &Workspace, stack: &Stack, read_only: bool) -> Result<OverlaySpec> {
    let mut lowers = stack.lowers();
    let top = workspace.make("top")?;
    if stack.correct(&top)? {
        lowers.push(top);
    }
    if lowers.len() < 2 {
        lowers.insert(0, workspace.make("empty")?);
    }
    if lowers.len() < 2 && read_only {
        lowers.insert(0, workspace.make("empty2")?);
    }
    let upper = if read_only {
        None
    } else {
        let directory = workspace.make(UPPER)?;
        stack.dress_root(&directory)?;
        Some(Upper { directory, work: workspace.make(WORK)? })
    };
    Ok(OverlaySpec {
        source: workspace.source(),
        lowers,
        upper,
        user_xattrs: stack.user_xattrs(),
        volatile: false,
        no_devices: true,
    })
}

/// One entry of `mounts`.
#[derive(Clone, Debug)]
pub struct Listed {
    pub id: String,
    /// `None` if the record is missing (an unfinished mount) or unreadable.
    pub record: Option<Record>,
    pub state: State,
}

/// Lists all mounts of the store except those of running builds, oldest first.
pub fn list(store: &Store) -> Result<Vec<Listed>> {
    let ids = workspace::ids(store)?;
    if ids.is_empty() {
        // Without mounts, /proc is not needed; a minimal container may not have it.
        return Ok(Vec::new());
    }
    let mounts = mountinfo::read()?;
    let boot_id = mountinfo::boot_id()?;
    let namespace = mountinfo::namespace()?;
    let mut listed = Vec::new();
    for id in ids {
        if id.starts_with(workspace::BUILD) {
            continue;
        }
        let directory = workspace::directory(store).join(&id);
        let record = Record::read(&directory).unwrap_or_default();
        let state = match &record {
            None => State::Unfinished,
            Some(record) if !record.ready => State::Unfinished,
            Some(record) if record.backend == Backend::Checkout => {
                if record.path.is_dir() {
                    State::Mounted
                } else {
                    State::Stale
                }
            }
            Some(record) if record.boot_id != boot_id => State::Stale,
            Some(_) if mounts.iter().any(|mount| mountinfo::belongs(mount, &id, &directory)) => {
                State::Mounted
            }
            Some(record) if record.namespace == namespace => State::Stale,
            Some(record) => match mountinfo::process_in(&record.namespace) {
                Some(process) => State::Elsewhere(process),
                None => State::Stale,
            },
        };
        listed.push(Listed { id, record, state });
    }
    let created = |listed: &Listed| listed.record.as_ref().map(|record| record.created.clone());
    listed.sort_by_key(created);
    Ok(listed)
}

/// Returns the image's name, or the digest of its manifest.
pub(super) fn image_name(image: &Image) -> String {
    match &image.reference {
        Some(reference) => reference.to_string(),
        None => image.descriptor.digest.to_string(),
    }
}

fn own_target(target: &Path) -> Result<PathBuf> {
    let target = std::path::absolute(target).path("find", target)?;
    match std::fs::metadata(&target) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => {
            return Err(Error::usage(format!(
                "cannot mount at {}: it is not a directory",
                target.display()
            )));
        }
        Err(_) => std::fs::create_dir_all(&target).path("create", &target)?,
    }
    Ok(target)
}

fn check_name(store: &Store, name: &str) -> Result<()> {
    let taken = list(store)?.iter().any(|listed| {
        listed.record.as_ref().is_some_and(|record| record.name.as_deref() == Some(name))
    });
    if taken {
        return Err(Error::new(Kind::Busy, format!("a mount named `{name}` already exists"))
            .hint(format!("run `imgctl umount {}` to remove it", quote(name))));
    }
    Ok(())
}

fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|elapsed| i64::try_from(elapsed.as_secs()).ok())
        .unwrap_or(0)
}

/// The directories of one RUN step; removed on drop, or by the next command after a crash.
#[derive(Debug)]
pub struct BuildMount {
    workspace: Workspace,
    spec: OverlaySpec,
}

impl BuildMount {
    /// Unpacks the missing snapshots of `layers` (lowest first, with repetitions) and creates the
    /// directories. The caller holds a lease on the layers.
    pub fn new(store: &Store, layers: Vec<LayerOf>, reporter: &dyn Reporter) -> Result<Self> {
        workspace::sweep(store)?;
        let privileges = Privileges::current();
        let layers = distinct_layers(layers.into_iter());
        let ensured = snapshots::ensure_layers(store, &layers, privileges, reporter)?;
        let stack = Stack::new(ensured.snapshots, !privileges.trusted_xattrs)?;
        let prefix = format!("{}{}-", workspace::BUILD, std::process::id());
        let workspace = Workspace::create(store, &prefix)?;
        workspace.make(MERGED)?;
        let mut spec = spec(&workspace, &stack, false)?;
        spec.volatile = true;
        // The sandbox decides which devices can be opened, depending on the confinement of the
        // step.
        spec.no_devices = false;
        Ok(Self { workspace, spec })
    }

    /// Returns the argument for [`crate::mount::attach`] inside the sandbox.
    pub fn spec(&self) -> &OverlaySpec {
        &self.spec
    }

    /// Returns the directory where the sandbox attaches the file system.
    pub fn merged(&self) -> PathBuf {
        self.workspace.path(MERGED)
    }

    /// Returns the directory that holds the changes of the step after it has ended.
    pub fn upper(&self) -> PathBuf {
        self.workspace.path(UPPER)
    }
}
