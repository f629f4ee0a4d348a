//! `RUN --mount`: binds, caches, secrets, SSH agents and tmpfs mounts, converted for the sandbox.
//!
//! A bind mounts a copy of its source, made for the step and removed with it, unless the source is
//! in the context, the mount is read-only and no ignore rules apply. `ssh_mount` forwards agents.

use std::collections::HashMap;
use std::io::BufReader;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use crate::build::context::ContextTree;
use crate::build::items::{Opened, SourceTree, clamp, follow};
use crate::build::options::SecretSource;
use crate::build::plan::SCRATCH;
use crate::build::ssh_mount::ForwardedAgent;
use crate::build::stage::Stage;
use crate::build::step_cache::Key;
use imgctl_base::error::{Error, IoContext as _, Kind, Result};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_base::fs::metadata::Metadata;
use imgctl_base::fs::root::Root;
use imgctl_kubefile::ast::{CacheMount, CacheSharing, Mount, MountKind};
use imgctl_layer::LayerPath;
use imgctl_layer::unpack::{Form, NoLowerFiles, Privilege, Unpacker};
use imgctl_sandbox::spec::{MountKind as SandboxKind, SandboxMount};
use imgctl_store::store::ScratchDirectory;

const SSH_AUTH_SOCK: &str = "SSH_AUTH_SOCK";
/// Maximum size of a secret, in bytes (BuildKit's limit).
const MAX_SECRET: u64 = 500 << 10;

/// The mounts of one RUN step; files created for them are removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Mounts {
    pub mounts: Vec<SandboxMount>,
    /// Environment variables for the command: secrets, and the SSH agent's socket.
    pub env: Vec<(String, String)>,
    directory: ScratchDirectory,
    count: usize,
    caches: Caches,
    agents: Vec<ForwardedAgent>,
}

impl Mounts {
    /// Prepares all mounts of a step.
    pub(super) fn new(stage: &Stage<'_>, mounts: &[Mount]) -> Result<Self> {
        let mut made = Self {
            mounts: Vec::new(),
            env: Vec::new(),
            directory: stage.shared.store.scratch_directory()?,
            count: 0,
            caches: Caches::default(),
            agents: Vec::new(),
        };
        let names = made.caches.lock(stage, mounts)?;
        for (mount, name) in mounts.iter().zip(names) {
            made.add(stage, mount, &name)?;
        }
        // A mount hides earlier mounts below its target, so parents come first (as in BuildKit).
        made.mounts.sort_by_key(|mount| clamp(&mount.target.0).unwrap_or_default());
        Ok(made)
    }

    /// Adds one mount; `name` is that of its cache.
    fn add(&mut self, stage: &Stage<'_>, mount: &Mount, name: &str) -> Result<()> {
        let target = mount.target.as_ref().map(|target| {
            if target.starts_with('/') {
                target.clone()
            } else {
                format!("{}/{target}", stage.workdir())
            }
        });
        let place = target.clone().unwrap_or_else(|| stage.workdir());
        let kind = match &mount.kind {
            MountKind::Bind { from, source } => {
                let path = self.bind(stage, from.as_deref(), source.as_deref(), mount.read_only)?;
                bind_kind(&path, mount.read_only)?
            }
            MountKind::Cache(cache) => {
                let mut caches = std::mem::take(&mut self.caches);
                let opened = caches.open(stage, cache, name, &mut || match &cache.from {
                    Some(from) => self.bind(stage, Some(from), cache.source.as_deref(), false),
                    None => self.fresh(),
                });
                self.caches = caches;
                let (path, inode) = opened?;
                SandboxKind::Bind {
                    source: path.as_path().into(),
                    read_only: mount.read_only,
                    inode: Some(inode),
                }
            }
            MountKind::Tmpfs { size, mode } => {
                SandboxKind::Tmpfs { size: *size, mode: *mode, read_only: mount.read_only }
            }
            MountKind::Secret { .. } => return self.secret(stage, &mount.kind, target),
            MountKind::Ssh { .. } => return self.ssh(stage, &mount.kind, target),
        };
        self.mounts.push(SandboxMount { target: place.as_str().into(), kind });
        Ok(())
    }

    /// Creates a directory that is removed with the step.
    fn fresh(&mut self) -> Result<PathBuf> {
        self.count += 1;
        let path = self.directory.path().join(self.count.to_string());
        std::fs::create_dir(&path).path("make", &path)?;
        Ok(path)
    }

    /// Returns the source of a bind: the path in the context itself, or a copy.
    fn bind(
        &mut self,
        stage: &Stage<'_>,
        from: Option<&str>,
        source: Option<&str>,
        read_only: bool,
    ) -> Result<PathBuf> {
        let path = clamp(source.unwrap_or("/").as_bytes())?;
        match from {
            // An empty directory (BuildKit).
            Some(SCRATCH) if path.is_root() => self.fresh(),
            Some(name) => {
                let tree = stage.source(name)?;
                self.copy(tree.as_ref(), &path)
            }
            None => {
                let context = stage.shared.context()?;
                match context.as_it_is(&path)? {
                    Some(path) if read_only => Ok(path),
                    _ => self.copy(context, &path),
                }
            }
        }
    }

    /// Copies a file or directory of a tree; returns the path of the copy.
    fn copy(&mut self, tree: &dyn SourceTree, path: &LayerPath) -> Result<PathBuf> {
        let real = follow(path, &|path| tree.node(path))?;
        if tree.node(&real)?.is_none() {
            return Err(Error::not_found(format!("{path} is not in {}", tree.name())));
        }
        let directory = self.fresh()?;
        let root = Root::open(&directory)?;
        let privilege =
            if rustix::process::geteuid().is_root() { Privilege::Root } else { Privilege::User };
        let mut unpacker =
            Unpacker::new(root.open_directory(Path::new("."))?, Form::Flat, privilege)?;
        for mut item in tree.below(&real)? {
            let mut reader = BufReader::new(Opened::open(&mut item)?);
            unpacker.apply(&item.entry, &mut reader, &NoLowerFiles)?;
        }
        unpacker.finish()?;
        Ok(directory.join(real.as_path()))
    }

    fn secret(
        &mut self,
        stage: &Stage<'_>,
        kind: &MountKind,
        target: Option<String>,
    ) -> Result<()> {
        let MountKind::Secret { id, env, required, mode, uid, gid } = kind else {
            return Err(Error::failed("not a secret"));
        };
        let Some(source) = stage.shared.options.secrets.get(id) else {
            if *required {
                return Err(Error::not_found(format!("secret `{id}` was not given"))
                    .about(id)
                    .hint(format!(
                        "pass it with --secret id={id},src=FILE or --secret id={id},env=NAME"
                    )));
            }
            return Ok(());
        };
        let content = read_secret(source)?;
        if let Some(name) = env {
            let value = String::from_utf8(content.clone()).map_err(|_| {
                Error::usage(format!("secret `{id}` is not text, so it cannot be a variable"))
                    .about(id)
            })?;
            self.env.push((name.clone(), value));
        }
        if target.is_some() || env.is_none() {
            let target = target.unwrap_or_else(|| format!("/run/secrets/{id}"));
            let kind =
                SandboxKind::File { content: content.into(), mode: *mode, uid: *uid, gid: *gid };
            self.mounts.push(SandboxMount { target: target.as_str().into(), kind });
        }
        Ok(())
    }

    fn ssh(&mut self, stage: &Stage<'_>, kind: &MountKind, target: Option<String>) -> Result<()> {
        let MountKind::Ssh { id, required, mode, uid, gid } = kind else {
            return Err(Error::failed("not an SSH mount"));
        };
        let Some(socket) = stage.shared.options.ssh.get(id) else {
            if *required {
                return Err(Error::not_found(format!("SSH agent `{id}` was not given"))
                    .about(id)
                    .hint(format!("pass it with --ssh {id}=SOCKET")));
            }
            return Ok(());
        };
        let number = self.agents.len();
        let target = target.unwrap_or_else(|| format!("/run/buildkit/ssh_agent.{number}"));
        let agent = std::fs::canonicalize(socket).path("find the SSH agent", socket)?;
        if !std::fs::metadata(&agent).path("look at", &agent)?.file_type().is_socket() {
            return Err(Error::usage(format!("{} is not the socket of an SSH agent", socket.display()))
                .about(id)
                .hint("load a key into an agent: ssh-agent sh -c 'ssh-add KEY && imgctl build --ssh default …'"));
        }
        let socket = self.fresh()?.join("agent");
        self.agents.push(ForwardedAgent::start(&agent, &socket, (*uid, *gid), *mode)?);
        self.mounts.push(SandboxMount {
            target: target.as_str().into(),
            kind: bind_kind(&socket, false)?,
        });
        // Of several agents, the first counts, and none over an ENV (BuildKit).
        let is_set = stage.scope.env().iter().any(|(name, _)| name == SSH_AUTH_SOCK);
        if number == 0 && !is_set {
            self.env.push((SSH_AUTH_SOCK.to_owned(), target));
        }
        Ok(())
    }
}

/// Returns the value of a secret.
pub(super) fn read_secret(source: &SecretSource) -> Result<Vec<u8>> {
    let path = match source {
        SecretSource::Value(value) => return Ok(value.clone()),
        SecretSource::File(path) => path,
    };
    let size = std::fs::metadata(path).path("examine secret", path)?.len();
    if size > MAX_SECRET {
        let path = path.display();
        return Err(Error::usage(format!("secret {path} is larger than 500 KiB")));
    }
    std::fs::read(path).path("read secret", path)
}

fn bind_kind(path: &Path, read_only: bool) -> Result<SandboxKind> {
    let path = std::fs::canonicalize(path).path("find", path)?;
    let inode = Some(identity(&path)?);
    Ok(SandboxKind::Bind { source: path.as_path().into(), read_only, inode })
}

/// Adds to the key what the step's result depends on: the content of binds, and the names of other
/// mounts.
pub(crate) fn mount_key(stage: &Stage<'_>, mount: &Mount, key: &mut Key) -> Result<()> {
    key.add(format!("{:?} {}", mount.target, mount.read_only).as_bytes());
    match &mount.kind {
        MountKind::Bind { from, source } => {
            stage.add_source(from.as_deref(), source.as_deref(), key)
        }
        MountKind::Cache(cache) => {
            key.add(format!("cache {}", cache.id).as_bytes());
            if let (None, Some(source)) = (&cache.from, &cache.source) {
                key.add(format!("inside {source}").as_bytes());
            }
            add_base(stage, cache, key)
        }
        MountKind::Tmpfs { size, mode } => {
            key.add(format!("tmpfs {size:?} {mode:o}").as_bytes());
            Ok(())
        }
        MountKind::Secret { id, env, mode, uid, gid, .. } => {
            key.add(format!("secret {id} {env:?}").as_bytes());
            add_owner((*uid, *gid, *mode), (0, 0, 0o400), key);
            Ok(())
        }
        MountKind::Ssh { id, mode, uid, gid, .. } => {
            key.add(format!("ssh {id}").as_bytes());
            add_owner((*uid, *gid, *mode), (0, 0, 0o600), key);
            Ok(())
        }
    }
}

/// Adds owner and mode of a mount to the key, unless they are the default.
fn add_owner(owner: (u32, u32, u32), default: (u32, u32, u32), key: &mut Key) {
    if owner != default {
        key.add(format!("{owner:?}").as_bytes());
    }
}

impl ContextTree {
    /// Returns the path on disk, unless the context has ignore rules.
    fn as_it_is(&self, path: &LayerPath) -> Result<Option<PathBuf>> {
        if self.has_rules() {
            return Ok(None);
        }
        let real = follow(path, &|path| self.node(path))?;
        Ok(self.node(&real)?.is_some().then(|| self.path().join(real.as_path())))
    }
}

/// Returns device and inode of a file that is bound into a sandbox; an error contains its name.
pub(super) fn identity(path: &Path) -> Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::symlink_metadata(path).path("look at", path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The build argument that keeps caches of the same name apart (BuildKit).
pub(super) const CACHE_MOUNT_NS: &str = "BUILDKIT_CACHE_MOUNT_NS";
/// Mode of a cache that starts empty, unless `mode=` says otherwise (BuildKit).
const DEFAULT_MODE: u32 = 0o755;

/// The caches of one step, by name. They stay locked for the lifetime of this value.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    open: HashMap<String, (PathBuf, Lock)>,
}

impl Caches {
    /// Locks all caches of a step, in the order of their names: two steps that each waited for a cache of the
    /// other would wait for ever. Returns the name of each mount's cache; other mounts have none.
    fn lock(&mut self, stage: &Stage<'_>, mounts: &[Mount]) -> Result<Vec<String>> {
        let named = |mount: &Mount| match &mount.kind {
            MountKind::Cache(cache) => name(stage, cache),
            _ => Ok(String::new()),
        };
        let names = mounts.iter().map(named).collect::<Result<Vec<_>>>()?;
        let mut caches: Vec<_> = names.iter().zip(mounts).collect();
        caches.sort_by_key(|(name, _)| *name);
        for (name, mount) in caches {
            if let MountKind::Cache(cache) = &mount.kind {
                self.hold(stage, cache, name)?;
            }
        }
        Ok(names)
    }

    /// Locks a cache and returns its directory. Two mounts in one step share the lock that the step holds;
    /// otherwise it would wait for itself.
    fn hold(&mut self, stage: &Stage<'_>, cache: &CacheMount, name: &str) -> Result<PathBuf> {
        if let Some((path, _)) = self.open.get(name) {
            return Ok(path.clone());
        }
        let (path, lock) = acquire(stage, cache, name)?;
        self.open.insert(name.to_owned(), (path.clone(), lock));
        Ok(path)
    }

    /// Finds or creates the directory of a cache; `content` provides the content of a new one.
    /// Returns the path to mount, with its device and inode.
    pub(super) fn open(
        &mut self,
        stage: &Stage<'_>,
        cache: &CacheMount,
        name: &str,
        content: &mut dyn FnMut() -> Result<PathBuf>,
    ) -> Result<(PathBuf, (u64, u64))> {
        let path = self.hold(stage, cache, name)?;
        if !path.try_exists().path("look at", &path)? {
            put(cache, &content()?, &path)?;
        }
        match &cache.source {
            Some(source) if cache.from.is_none() => inside(&path, source, &cache.id),
            _ => {
                let path = std::fs::canonicalize(&path).path("find", &path)?;
                let metadata = std::fs::symlink_metadata(&path).path("look at", &path)?;
                Ok((path, (metadata.dev(), metadata.ino())))
            }
        }
    }
}

/// Adds the initial content and the owner of a cache to a key. A cache with defaults adds nothing.
pub(crate) fn add_base(stage: &Stage<'_>, cache: &CacheMount, key: &mut Key) -> Result<()> {
    if let Some(from) = &cache.from {
        key.add(b"from");
        stage.add_source(Some(from), cache.source.as_deref(), key)?;
        key.add(format!("{:?} {:?} {:?}", cache.uid, cache.gid, cache.mode).as_bytes());
    } else {
        add_owner(owner(cache), (0, 0, DEFAULT_MODE), key);
    }
    Ok(())
}

fn name(stage: &Stage<'_>, cache: &CacheMount) -> Result<String> {
    let mut key = Key::new("cache mount");
    if let Some(space) = stage.shared.options.build_args.get(CACHE_MOUNT_NS) {
        key.add(format!("space {space}").as_bytes());
    }
    key.add(cache.id.as_bytes());
    add_base(stage, cache, &mut key)?;
    let mut name = key.finish();
    name.truncate(32);
    Ok(name)
}

/// Returns owner and mode of a cache that starts empty.
fn owner(cache: &CacheMount) -> (u32, u32, u32) {
    (cache.uid.unwrap_or(0), cache.gid.unwrap_or(0), cache.mode.unwrap_or(DEFAULT_MODE))
}

/// Returns the directory for this step, locked: the cache itself or, if a private cache is in use,
/// the first additional copy that is free.
fn acquire(stage: &Stage<'_>, cache: &CacheMount, name: &str) -> Result<(PathBuf, Lock)> {
    let all = stage.shared.store.cache_directory().join("mounts");
    std::fs::create_dir_all(&all).path("make", &all)?;
    let first = all.join(name);
    let lock = first.with_extension("lock");
    let exclusive = || {
        Lock::acquire(&lock, Mode::Exclusive, &mut || {
            let id = &cache.id;
            stage.shared.reporter.note(&format!("waiting for another build that uses cache {id}"));
        })
    };
    // Once per build: its later steps share what its earlier ones leave.
    let empties = || {
        let emptied = &stage.shared.emptied;
        stage.forgets()
            && emptied.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned())
    };
    let held = match cache.sharing {
        CacheSharing::Shared => {
            if empties() {
                let _alone = exclusive()?;
                empty(stage, &first)?;
            }
            Lock::acquire(&lock, Mode::Shared, &mut || {})?
        }
        CacheSharing::Locked => {
            let held = exclusive()?;
            if empties() {
                empty(stage, &first)?;
            }
            held
        }
        CacheSharing::Private => {
            let mut number = 0;
            loop {
                let path = match number {
                    0 => first.clone(),
                    number => all.join(format!("{name}-{number}")),
                };
                let lock = path.with_extension("lock");
                if let Some(lock) = Lock::try_acquire(&lock, Mode::Exclusive)? {
                    if empties() {
                        empty(stage, &path)?;
                    }
                    return Ok((path, lock));
                }
                number += 1;
            }
        }
    };
    Ok((first, held))
}

/// Removes a cache, whose lock the caller holds alone.
fn empty(stage: &Stage<'_>, cache: &Path) -> Result<()> {
    if cache.try_exists().path("look at", cache)? {
        let away = stage.shared.store.scratch_directory()?;
        std::fs::rename(cache, away.path().join("cache")).path("empty the cache", cache)?;
    }
    Ok(())
}

/// Sets owner and mode of a new cache and renames it into place, so that it never appears
/// half-made.
fn put(cache: &CacheMount, new: &Path, path: &Path) -> Result<()> {
    if cache.from.is_some() {
        dress(new, cache.uid, cache.gid, cache.mode)?;
    } else {
        let (uid, gid, mode) = owner(cache);
        dress(new, Some(uid), Some(gid), Some(mode))?;
    }
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    // A plain rename would replace an empty directory, which another step that shares the cache may have mounted.
    match renameat_with(CWD, new, CWD, path, RenameFlags::NOREPLACE) {
        Err(_) if path.exists() => Ok(()),
        renamed => renamed.map_err(std::io::Error::from).path("create the cache", path),
    }
}

fn dress(path: &Path, uid: Option<u32>, gid: Option<u32>, mode: Option<u32>) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path, uid, gid).path("set the owner of", path)?;
    }
    match mode {
        Some(mode) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .path("set the mode of", path),
        None => Ok(()),
    }
}

/// Returns a directory inside a cache. Symlinks left there by commands resolve inside the cache
/// only; the inode number detects a directory that is replaced before it is mounted.
fn inside(cache: &Path, source: &str, id: &str) -> Result<(PathBuf, (u64, u64))> {
    let root = Root::open(cache)?;
    let source = source.trim_start_matches('/');
    let directory = root.open_directory(Path::new(source)).map_err(|error| {
        if error.kind() != Kind::NotFound {
            return error;
        }
        Error::not_found(format!("cache `{id}` has no directory `{source}`"))
            .about(id)
            .hint("a cache without from= starts empty: create the directory in an earlier RUN")
    })?;
    let metadata = Metadata::of(&directory).path("look at", cache)?;
    let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let path = std::fs::read_link(&link).path("find", cache)?;
    Ok((path, (metadata.dev, metadata.ino)))
}
