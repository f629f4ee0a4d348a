//! RUN in a stage: runs the command in a sandbox over the stage's snapshots; the upper directory
//! becomes the new layer. `run_mounts` provides everything else that the command sees.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::build::items::{Content, Item};
use crate::build::layer_step::StageLayer;
use crate::build::options::Network;
use crate::build::run_mounts::{Mounts, mount_key};
use crate::build::shared::DEFAULT_PATH;
use crate::build::stage::Stage;
use crate::build::step_cache::{Basis, Key};
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::fs::root::Root;
use imgctl_base::progress::Reporter;
use imgctl_kubefile::ast::{Mount, Run, RunCommand, RunNetwork, RunSecurity};
use imgctl_kubefile::check::PROXY_ARGS;
use imgctl_kubefile::expand;
use imgctl_layer::{EntryKind, snapshot_diff};
use imgctl_sandbox::idmap::Inside;
use imgctl_sandbox::passwd;
use imgctl_sandbox::spec::{self, Exit, MountKind, RunSpec, SandboxMount, Security, Stream};
use imgctl_store::mount::BuildMount;
use imgctl_store::mount::layers::LayerOf;

/// The build argument that names the host of RUN (BuildKit).
pub(super) const HOSTNAME: &str = "BUILDKIT_SANDBOX_HOSTNAME";

/// Directory of a heredoc with its own `#!` line while it runs (same as BuildKit's).
const SCRIPTS: &str = "/dev/pipes";

impl Stage<'_> {
    /// Executes RUN.
    pub(super) fn run(&mut self, step: &Run, text: &str) -> Result<()> {
        let network = self.network(step)?;
        if step.security == Some(RunSecurity::Insecure) && !self.shared.options.allow_insecure {
            return Err(Error::new(Kind::Denied, "RUN --security=insecure is not allowed").hint(
                "if you trust this Kubefile with full access to this machine: --allow \
                     security.insecure",
            ));
        }
        if !step.devices.is_empty() {
            return Err(Error::new(Kind::Denied, "RUN --device is not supported"));
        }
        self.make_workdir()?;
        let mounts: Vec<Mount> = step
            .mounts
            .iter()
            .map(|mount| {
                let lookup = |name: &str| self.scope.get(name);
                let escape = self.scope.escape();
                mount.resolve(&|word| expand::expand(word, escape, &lookup)).map_err(|problem| {
                    Error::usage(format!("--mount={}: {}", mount.raw, problem.message))
                })
            })
            .collect::<Result<_>>()?;
        for option in mounts.iter().flat_map(|mount| &mount.ignored) {
            self.shared.reporter.note(&format!("option {option} of --mount has no effect here"));
        }
        let key = self.run_key(step, &mounts, network)?;
        let turn = self.shared.options.turns.take(&key);
        // What another stage has executed in this command is fresh, even where no cache is wanted. A step that
        // the same stage repeats is another one.
        let is_made = self.executed.insert(key.clone()) && turn.is_made;
        let reading = is_made.then(|| self.shared.cache.reading());
        let cache = reading.as_ref().unwrap_or(self.shared.cache);
        let known = match cache.get(self.shared.store, self.shared.lease, &key)? {
            _ if self.forgets() && !is_made => None,
            None => self.layer_maker().fetched(&key, Basis::Run, None),
            known => known,
        };
        if let Some(layers) = known {
            cache.used(&key, Basis::Run, &layers);
            cache.put(&key, &layers)?;
            let cached = |layer| StageLayer { layer, from_cache: true };
            return self.add_layers(layers.into_iter().map(cached).collect(), text);
        }
        let layers = self.execute_run(step, &mounts, network)?;
        let records: Vec<_> = layers.iter().map(|layer| layer.layer.clone()).collect();
        cache.used(&key, Basis::Run, &records);
        cache.put(&key, &records)?;
        turn.made();
        self.add_layers(layers, text)
    }

    fn network(&self, step: &Run) -> Result<spec::Network> {
        let granted = self.shared.options.network;
        Ok(match (step.network, granted) {
            (Some(RunNetwork::None), _) => spec::Network::None,
            (Some(RunNetwork::Host), Network::Host) => spec::Network::Host,
            (Some(RunNetwork::Host), _) if self.shared.options.allow_host_network => {
                spec::Network::Host
            }
            (Some(RunNetwork::Host), _) => {
                return Err(Error::new(Kind::Denied, "RUN --network=host is not allowed").hint(
                    "allow it with --allow network.host, or give all steps the host's network with \
                     --network host",
                ));
            }
            (_, Network::Default) => spec::Network::Default,
            (_, Network::None) => spec::Network::None,
            (_, Network::Host) => spec::Network::Host,
        })
    }

    /// A base image may name a working directory that it does not contain. The directory then
    /// belongs to root, regardless of the user (BuildKit).
    fn make_workdir(&mut self) -> Result<()> {
        let path = crate::build::items::clamp(self.workdir().as_bytes())?;
        if self.has_directory(&path)? {
            return Ok(());
        }
        let workdir = self.workdir();
        self.add_directories(&path, (0, 0), &format!("WORKDIR {workdir}"))
    }

    /// Returns a key of everything that the step's result depends on.
    fn run_key(&mut self, step: &Run, mounts: &[Mount], network: spec::Network) -> Result<String> {
        let mut key = Key::new("run");
        for layer in &self.image.layers {
            key.add(layer.diff_id.to_string().as_bytes());
        }
        key.add(format!("{:?} {:?}", self.command_line(step), step.heredocs).as_bytes());
        key.add(format!("{:?} {:?}", self.scope.env(), self.scope.run_args()).as_bytes());
        let config = &self.image.config.config;
        key.add(format!("{:?} {:?} {:?}", config.user, config.working_dir, network).as_bytes());
        key.add(format!("{:?} {}", step.security, self.plan.platform).as_bytes());
        let options = self.shared.options;
        key.add(
            format!("{:?} {:?} {:?}", options.compression, options.format, options.timestamp)
                .as_bytes(),
        );
        if let Some(name) = options.build_args.get(HOSTNAME) {
            key.add(format!("hostname {name}").as_bytes());
        }
        if !options.add_hosts.is_empty() {
            key.add(format!("hosts {:?}", options.add_hosts).as_bytes());
        }
        for mount in mounts {
            mount_key(self, mount, &mut key)?;
        }
        Ok(key.finish())
    }

    fn command_line(&self, step: &Run) -> (Vec<String>, Option<(String, String)>) {
        match step.command() {
            RunCommand::Exec(words) => (words, None),
            RunCommand::Shell(text) => {
                let mut words = self.shell();
                words.push(text);
                (words, None)
            }
            RunCommand::Script { name, body } => {
                let path = format!("{SCRIPTS}/{name}");
                (vec![path.clone()], Some((path, body)))
            }
        }
    }

    fn execute_run(
        &mut self,
        step: &Run,
        mounts: &[Mount],
        network: spec::Network,
    ) -> Result<Vec<StageLayer>> {
        let shared = self.shared;
        let layers: Vec<LayerOf> = self
            .image
            .layers
            .iter()
            .map(|layer| LayerOf { blob: layer.descriptor.clone(), diff_id: layer.diff_id.clone() })
            .collect();
        for layer in &layers {
            shared.cache.remotes().bring(&layer.blob.digest, shared.reporter)?;
        }
        let build_mount = BuildMount::new(shared.store, layers, shared.reporter)?;
        let mut made = Mounts::new(self, mounts)?;
        let (argv, script) = self.command_line(step);
        if let Some((path, body)) = script {
            made.mounts.push(SandboxMount {
                target: path.as_str().into(),
                kind: MountKind::File {
                    content: body.into_bytes().into(),
                    mode: 0o755,
                    uid: 0,
                    gid: 0,
                },
            });
        }
        let user = self.user()?;
        let env = self.run_env(&user, &made.env);
        let spec = RunSpec {
            rootfs: build_mount.merged().as_path().into(),
            overlay: Some(build_mount.spec().clone()),
            argv: argv.iter().map(|word| word.as_str().into()).collect(),
            env: env
                .iter()
                .map(|(name, value)| (name.as_str().into(), value.as_str().into()))
                .collect(),
            cwd: self.workdir().as_str().into(),
            user: user.identity,
            network,
            mounts: std::mem::take(&mut made.mounts),
            hostname: self.hostname().to_owned(),
            resolv_conf: resolv_conf(network).map(Into::into),
            hosts: Some(self.hosts().into_bytes().into()),
            limits: Vec::new(),
            security: match step.security {
                Some(RunSecurity::Insecure) => Security::Insecure,
                _ => Security::Sandbox,
            },
            stdin: None,
        };
        let mut lines = Lines::new(shared.reporter);
        let outcome =
            imgctl_sandbox::run(&spec, &shared.options.executable, &mut |stream, bytes| {
                lines.add(stream == Stream::Err, bytes);
            })?;
        lines.finish();
        drop(made);
        for note in &outcome.notes {
            shared.reporter.note(note);
        }
        match outcome.exit {
            Exit::Code(0) => {}
            Exit::Code(code) => {
                let why = outcome.message.map_or_else(String::new, |why| format!(": {why}"));
                return Err(Error::new(
                    Kind::CommandFailed,
                    format!("the command exited with {code}{why}"),
                ));
            }
            Exit::Signal(signal) => {
                return Err(Error::new(
                    Kind::CommandFailed,
                    format!("the command was killed by signal {signal}"),
                ));
            }
        }
        let items = self.changed(&build_mount.upper())?;
        self.layer_maker().make(items)
    }

    /// Returns the command's changes as items. Mount points that had to be created are gone by now,
    /// except for directories in which the command left something.
    fn changed(&mut self, upper: &Path) -> Result<Vec<Item>> {
        let root = Arc::new(Root::open(upper)?);
        let mut items: Vec<Item> = Vec::new();
        let ids = Inside::current();
        snapshot_diff::upper_entries(&root, &mut |mut entry, _| {
            if let Some(ids) = &ids {
                (entry.uid, entry.gid) = ids.owner(entry.uid, entry.gid);
            }
            let is_file = matches!(entry.kind, EntryKind::File { size } if size > 0);
            let content = if is_file {
                Content::Upper { root: Arc::clone(&root), path: entry.path.clone() }
            } else {
                Content::None
            };
            items.push(Item {
                content,
                digest: (!is_file).then_some([0; 32]),
                ..Item::bare(entry)
            });
            Ok(())
        })?;
        items.retain(|item| !item.entry.path.is_root());
        unlink_across_kinds(&mut items);
        self.drop_untouched(&mut items)?;
        Ok(items)
    }

    /// Removes directories that were only copied up, because something in them was mounted over or
    /// deleted again: they are not changes.
    fn drop_untouched(&mut self, items: &mut Vec<Item>) -> Result<()> {
        let tree = self.tree()?;
        let mut keep = vec![true; items.len()];
        for index in (0..items.len()).rev() {
            let item = &items[index];
            let has_content = items[index + 1..]
                .iter()
                .zip(&keep[index + 1..])
                .take_while(|(below, _)| below.entry.path.starts_with(&item.entry.path))
                .any(|(_, kept)| *kept);
            if !item.entry.is_directory() || has_content {
                continue;
            }
            keep[index] = !tree.lookup(&item.entry.path).is_some_and(|found| {
                let (old, new) = (found.entry(), &item.entry);
                old.is_directory()
                    && (old.mode, old.uid, old.gid, old.mtime.seconds)
                        == (new.mode, new.uid, new.gid, new.mtime.seconds)
                    && old.xattrs == new.xattrs
            });
        }
        let mut keep = keep.into_iter();
        items.retain(|_| keep.next().unwrap_or(true));
        Ok(())
    }

    fn user(&mut self) -> Result<passwd::User> {
        let (passwd, group) = self.accounts()?;
        let user = self.image.config.config.user.clone();
        passwd::resolve(user.as_bytes(), &passwd, &group)
    }

    fn run_env(&self, user: &passwd::User, secrets: &[(String, String)]) -> Vec<(String, String)> {
        let options = self.shared.options;
        let mut env = vec![
            ("PATH".to_owned(), DEFAULT_PATH.to_owned()),
            ("HOME".to_owned(), String::from_utf8_lossy(&user.home).into_owned()),
        ];
        env.extend(in_both_cases(&options.proxy_env));
        let args = self.scope.run_args();
        let is_argument = |name: &String| args.iter().any(|(argument, _)| argument == name);
        if let Some(timestamp) = options.timestamp {
            env.push(("SOURCE_DATE_EPOCH".to_owned(), timestamp.to_string()));
        }
        let own = self.scope.env().iter().filter(|(name, _)| !is_argument(name)).cloned();
        env.extend(own.collect::<Vec<_>>());
        env.extend(args);
        // Over ENV, too: what a proxy is, the caller knows (BuildKit).
        env.extend(in_both_cases(&options.build_args));
        env.extend(secrets.iter().cloned());
        env
    }

    fn hostname(&self) -> &str {
        let given = self.shared.options.build_args.get(HOSTNAME);
        given.filter(|name| !name.is_empty()).map_or("buildkitsandbox", String::as_str)
    }

    fn hosts(&self) -> String {
        let mut hosts = format!(
            "127.0.0.1\tlocalhost {}\n::1\tlocalhost ip6-localhost ip6-loopback\n",
            self.hostname()
        );
        for (name, address) in &self.shared.options.add_hosts {
            hosts.push_str(&format!("{address}\t{name}\n"));
        }
        hosts
    }
}

/// Returns the proxy variables among `values` under both of their names: curl reads only the
/// lower-case one, other programs only the upper-case one. A lower-case value wins (BuildKit).
fn in_both_cases(values: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let mut env = Vec::new();
    for name in PROXY_ARGS.iter().filter(|name| name.bytes().all(|b| !b.is_ascii_lowercase())) {
        let lower = name.to_lowercase();
        if let Some(value) = values.get(&lower).or_else(|| values.get(*name)) {
            env.push(((*name).to_owned(), value.clone()));
            env.push((lower, value.clone()));
        }
    }
    env
}

/// Returns the host's resolv.conf, for a command with a network.
fn resolv_conf(network: spec::Network) -> Option<Vec<u8>> {
    match network {
        spec::Network::None => None,
        _ => std::fs::read("/etc/resolv.conf").ok(),
    }
}

/// Turns a hard link whose target belongs to a layer of another kind into a separate file.
fn unlink_across_kinds(items: &mut [Item]) {
    for index in 0..items.len() {
        let EntryKind::HardLink { target } = &items[index].entry.kind else {
            continue;
        };
        if target.layer_kind() == items[index].entry.path.layer_kind() {
            continue;
        }
        let Ok(place) = items.binary_search_by(|item| item.entry.path.cmp(target)) else {
            continue;
        };
        let path = items[index].entry.path.clone();
        items[index] = items[place].clone();
        items[index].entry.path = path;
    }
}

/// Splits output into lines for the reporter.
struct Lines<'a> {
    reporter: &'a dyn Reporter,
    /// Unfinished lines of standard output and standard error.
    open: [Vec<u8>; 2],
}

/// Maximum length of a line, in bytes; longer lines are passed on in pieces.
const MAX_LINE: usize = 64 << 10;

impl<'a> Lines<'a> {
    fn new(reporter: &'a dyn Reporter) -> Self {
        Self { reporter, open: [Vec::new(), Vec::new()] }
    }

    fn add(&mut self, is_error: bool, bytes: &[u8]) {
        let open = &mut self.open[usize::from(is_error)];
        for byte in bytes {
            if *byte != b'\n' {
                open.push(*byte);
            }
            if *byte == b'\n' || open.len() >= MAX_LINE {
                self.reporter.output(open, is_error);
                open.clear();
            }
        }
    }

    fn finish(self) {
        for (is_error, open) in [false, true].into_iter().zip(&self.open) {
            if !open.is_empty() {
                self.reporter.output(open, is_error);
            }
        }
    }
}
