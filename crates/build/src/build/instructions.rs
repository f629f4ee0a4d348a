//! The effect of each instruction on a stage's image. RUN is in `run_step`; all but COPY
//! and ADD change only the config (WORKDIR may also add a directory).

use std::path::PathBuf;
use std::time::Duration;

use crate::build::chmod::Chmod;
use crate::build::copy::{Destination, Flags, Gathered, inline_file, node_of, refuse_marker};
use crate::build::items::{Item, NO_TIME, Node, clamp};
use crate::build::stage::Stage;
use crate::build::{archive, download, git};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Healthcheck;
use imgctl_base::image::config::Empty;
use imgctl_base::text::without_logins;
use imgctl_kubefile::ast::{
    self, CommandForm, Instruction, InstructionKind, Source, Transfer, TransferFlags,
};
use imgctl_kubefile::diagnostic::{self, Diagnostic};
use imgctl_kubefile::ignore::IgnoreRules;
use imgctl_kubefile::{expand, expose};
use imgctl_layer::tree::Tree;
use imgctl_layer::{Entry, EntryKind, LayerPath};
use imgctl_sandbox::passwd;

/// Shell of images that specify none (Dockerfile reference, SHELL).
const DEFAULT_SHELL: [&str; 2] = ["/bin/sh", "-c"];
const WINDOWS_SHELL: [&str; 3] = ["cmd", "/S", "/C"];

impl Stage<'_> {
    /// Executes one instruction; errors include its position.
    pub(super) fn execute(&mut self, instruction: &Instruction) -> Result<()> {
        self.counts.total += 1;
        self.dispatch(instruction).map_err(|error| self.at(instruction, error))
    }

    fn dispatch(&mut self, instruction: &Instruction) -> Result<()> {
        // Histories and messages must not contain the login of an ADD address.
        let shown = match &instruction.kind {
            InstructionKind::Add(_) => without_logins(&instruction.text),
            _ => instruction.text.as_str().into(),
        };
        let text = &*shown;
        match &instruction.kind {
            InstructionKind::Copy(transfer) => return self.transfer(transfer, false, text),
            InstructionKind::Add(transfer) => return self.transfer(transfer, true, text),
            InstructionKind::Run(run) => return self.run(run, text),
            InstructionKind::Workdir(raw) => return self.set_workdir(raw, text),
            InstructionKind::Arg(arguments) => {
                for (name, default) in arguments {
                    self.scope.declare(name, default.as_deref())?;
                }
            }
            InstructionKind::Env(pairs) => self.set_env(pairs)?,
            InstructionKind::Label(pairs) => {
                for (key, value) in self.expanded(pairs)? {
                    self.image.config.config.labels.insert(key, value);
                }
            }
            InstructionKind::Cmd(form) => {
                self.image.config.config.cmd = Some(self.command(form));
                self.has_own_cmd = true;
            }
            InstructionKind::Entrypoint(form) => {
                self.image.config.config.entrypoint = Some(self.command(form));
                // An inherited CMD would be the arguments of another program (Dockerfile
                // reference).
                if !self.has_own_cmd {
                    self.image.config.config.cmd = None;
                }
            }
            InstructionKind::Expose(words) => self.expose(words)?,
            InstructionKind::Healthcheck(check) => {
                self.image.config.config.healthcheck = Some(self.healthcheck(check));
            }
            InstructionKind::Maintainer(name) => self.image.config.author = Some(name.clone()),
            InstructionKind::Onbuild(onbuild) => {
                self.image.config.config.on_build.push(onbuild.trigger.clone());
            }
            InstructionKind::Shell(words) => {
                self.image.config.config.shell = Some(words.clone());
            }
            InstructionKind::StopSignal(raw) => {
                let signal = self.scope.word(raw)?;
                if !is_signal(&signal) {
                    return Err(Error::usage(format!("STOPSIGNAL `{signal}` is no signal"))
                        .about(raw)
                        .hint("write its name (SIGTERM, TERM, RTMIN+3) or its number from 1"));
                }
                self.image.config.config.stop_signal = signal;
            }
            // An empty USER means root (BuildKit, buildah).
            InstructionKind::User(raw) => {
                self.image.config.config.user = self.scope.word(raw)?;
            }
            InstructionKind::Volume(words) => {
                for raw in words {
                    let volume = self.scope.word(raw)?;
                    if volume.is_empty() {
                        return Err(Error::usage("VOLUME expands to nothing"));
                    }
                    self.image.config.config.volumes.insert(volume, Empty {});
                }
            }
        }
        self.add_history(text);
        Ok(())
    }

    /// Expands every pair with the variables as they were before the instruction (Dockerfile
    /// reference, "Environment replacement").
    fn expanded(&self, pairs: &[(String, String)]) -> Result<Vec<(String, String)>> {
        pairs
            .iter()
            .map(|(key, value)| Ok((self.scope.word(key)?, self.scope.word(value)?)))
            .collect()
    }

    fn set_env(&mut self, pairs: &[(String, String)]) -> Result<()> {
        for (name, value) in self.expanded(pairs)? {
            if name.is_empty() {
                return Err(Error::usage("ENV needs a name before `=`"));
            }
            self.scope.set_env(&name, &value);
        }
        self.write_env();
        Ok(())
    }

    /// Writes the scope's ENV to the config.
    pub(crate) fn write_env(&mut self) {
        self.image.config.config.env =
            self.scope.env().iter().map(|(name, value)| format!("{name}={value}")).collect();
    }

    /// Returns the stage's shell.
    pub(super) fn shell(&self) -> Vec<String> {
        let is_windows = self.image.config.os == "windows";
        let default = || {
            let words: &[&str] = if is_windows { &WINDOWS_SHELL } else { &DEFAULT_SHELL };
            words.iter().map(|word| (*word).to_owned()).collect()
        };
        self.image.config.config.shell.clone().unwrap_or_else(default)
    }

    fn command(&self, form: &CommandForm) -> Vec<String> {
        match form {
            CommandForm::Exec(words) => words.clone(),
            CommandForm::Shell(text) => {
                let mut words = self.shell();
                words.push(text.clone());
                words
            }
        }
    }

    fn expose(&mut self, words: &[String]) -> Result<()> {
        for raw in words {
            for word in self.scope.words(raw)? {
                for port in ports(&word)? {
                    self.image.config.config.exposed_ports.insert(port, Empty {});
                }
            }
        }
        Ok(())
    }

    fn healthcheck(&self, check: &ast::Healthcheck) -> Healthcheck {
        match check {
            ast::Healthcheck::None => {
                Healthcheck { test: vec!["NONE".to_owned()], ..Healthcheck::default() }
            }
            ast::Healthcheck::Cmd {
                interval,
                timeout,
                start_period,
                start_interval,
                retries,
                command,
            } => {
                let mut test = Vec::new();
                match command {
                    CommandForm::Exec(words) => {
                        test.push("CMD".to_owned());
                        test.extend(words.iter().cloned());
                    }
                    CommandForm::Shell(text) => test.extend(["CMD-SHELL".to_owned(), text.clone()]),
                }
                let nanoseconds = |time: &Option<Duration>| {
                    time.map_or(0, |time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX))
                };
                Healthcheck {
                    test,
                    interval: nanoseconds(interval),
                    timeout: nanoseconds(timeout),
                    start_period: nanoseconds(start_period),
                    start_interval: nanoseconds(start_interval),
                    retries: retries.map_or(0, i64::from),
                }
            }
        }
    }

    fn set_workdir(&mut self, raw: &str, text: &str) -> Result<()> {
        // An empty WORKDIR changes nothing (BuildKit, buildah).
        let word = self.scope.word(raw)?;
        let joined =
            if word.starts_with('/') { word } else { format!("{}/{word}", self.workdir()) };
        let path = clamp(joined.as_bytes())?;
        let shown = format!("/{}", String::from_utf8_lossy(path.as_bytes()));
        self.image.config.config.working_dir.clone_from(&shown);
        if self.has_directory(&path)? {
            self.add_history(text);
            return Ok(());
        }
        let user = self.image.config.config.user.clone();
        let (passwd, group) = self.accounts_for(&user)?;
        let (owner, known) = passwd::resolve_maker(user.as_bytes(), &passwd, &group);
        if !known {
            self.shared.reporter.note(&format!(
                "WORKDIR {shown} belongs to {}:{}: `{user}` is not in /etc/passwd and /etc/group of the image",
                owner.0, owner.1
            ));
        }
        self.add_directories(&path, owner, text)
    }

    /// Creates a directory and its missing parents, with mode 0755.
    pub(crate) fn add_directories(
        &mut self,
        path: &LayerPath,
        owner: (u32, u32),
        created_by: &str,
    ) -> Result<()> {
        let tree = self.tree()?;
        let path = tree.resolve(path)?;
        let mut items = Vec::new();
        let mut directory = Some(path);
        while let Some(path) = directory.filter(|path| !path.is_root()) {
            match node_of(tree, &path) {
                Some(Node::Directory) => break,
                Some(_) => {
                    return Err(Error::usage(format!(
                        "`{created_by}` needs a directory at {path}, but the image has a file there"
                    )));
                }
                None => {
                    refuse_marker(&path)?;
                    items.push(new_directory(path.clone(), owner));
                }
            }
            directory = path.parent();
        }
        items.reverse();
        self.add_items(items, created_by)
    }
}

fn new_directory(path: LayerPath, (uid, gid): (u32, u32)) -> Item {
    let mut entry = Entry::new(path, EntryKind::Directory, 0o755);
    (entry.uid, entry.gid) = (uid, gid);
    entry.mtime = NO_TIME;
    Item::bare(entry)
}

/// Whether `text` is a signal: a number from 1, or a name of Linux with or without `SIG` (moby/sys).
fn is_signal(text: &str) -> bool {
    if let Ok(number) = text.parse::<i64>() {
        return number > 0;
    }
    let upper = text.to_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let real_time = |base: &str, sign: char, greatest: u32| {
        name.strip_prefix(base).is_some_and(|rest| {
            let offset = rest.strip_prefix(sign).and_then(|offset| offset.parse().ok());
            rest.is_empty() || offset.is_some_and(|offset: u32| (1..=greatest).contains(&offset))
        })
    };
    SIGNALS.contains(&name) || real_time("RTMIN", '+', 15) || real_time("RTMAX", '-', 14)
}

/// Names of Linux' signals (signal(7)).
const SIGNALS: [&str; 35] = [
    "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL",
    "PIPE", "POLL", "PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP",
    "TTIN", "TTOU", "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ", "UNUSED",
];

/// Converts `80`, `80/udp` and `8000-8003/tcp` to keys of the config.
fn ports(word: &str) -> Result<Vec<String>> {
    let exposed = expose::parse(word).ok_or_else(|| {
        Error::usage(format!("`{word}` is not a port"))
            .about(word)
            .hint("EXPOSE takes PORT[-PORT][/tcp|udp|sctp]")
    })?;
    let protocol = exposed.protocol.to_lowercase();
    Ok(exposed.ports.map(|port| format!("{port}/{protocol}")).collect())
}

impl Stage<'_> {
    /// Executes COPY (or ADD, with `is_add`).
    pub(super) fn transfer(&mut self, transfer: &Transfer, is_add: bool, text: &str) -> Result<()> {
        let flags = self.flags(&transfer.flags)?;
        let dest = self.scope.word(&transfer.dest)?;
        let workdir = self.workdir();
        // A linked copy does not depend on the layers below it (COPY --link).
        let empty = Tree::new();
        if !flags.link {
            self.tree()?;
        }
        let tree = if flags.link { &empty } else { self.tree_made().unwrap_or(&empty) };
        let destination = Destination::new(tree, &workdir, &dest, flags.link)?;
        let mut gathered = Gathered::new(destination, flags);
        let (mut words, mut files) = (Vec::new(), Vec::new());
        for source in &transfer.sources {
            match source {
                Source::Heredoc(heredoc) => {
                    let body = if heredoc.expand {
                        let lookup = |name: &str| self.scope.get(name);
                        expand::expand_heredoc(&heredoc.body, &lookup).map_err(|error| {
                            Error::usage("cannot expand the heredoc").caused_by(error)
                        })?
                    } else {
                        heredoc.body.clone()
                    };
                    files.push((heredoc.name.as_bytes(), inline_file(body.into_bytes())));
                }
                Source::Path(raw) => {
                    let word = self.scope.word(raw)?;
                    if !is_add && download::is_url(&word) {
                        return Err(Error::usage("COPY takes no URLs")
                            .about(raw)
                            .hint("write ADD, which downloads them"));
                    }
                    if word.is_empty() {
                        // BuildKit and buildah copy everything here, which users do not expect.
                        self.shared.reporter.note(&format!(
                            "the source `{raw}` expands to an empty string, which would copy \
                             everything"
                        ));
                    }
                    words.push(word);
                }
            }
        }
        if is_add {
            self.gather_added(&mut gathered, &words, &transfer.flags)?;
        } else {
            match &transfer.flags.from {
                Some(name) => {
                    gathered.add_sources(self.source(name)?.as_ref(), &words, &mut |_| Ok(None))?;
                }
                None if words.is_empty() => {}
                None => gathered.add_sources(self.shared.context()?, &words, &mut |_| Ok(None))?,
            }
        }
        // Here-documents come over what is copied (BuildKit).
        for (name, file) in files {
            gathered.add_file(name, file)?;
        }
        let items = gathered.finish()?;
        self.add_items(items, text)
    }

    /// ADD: downloads URLs and extracts archives of the context, in the order of the words: what comes later
    /// comes over what is there.
    fn gather_added(
        &self,
        gathered: &mut Gathered<'_>,
        words: &[String],
        flags: &TransferFlags,
    ) -> Result<()> {
        let shared = self.shared;
        let mut local = Vec::new();
        let checksum = self.flag(flags.checksum.as_deref())?;
        if checksum.is_some() && words.len() > 1 {
            return Err(Error::usage("--checksum is for one source").hint("write an ADD for each"));
        }
        for word in words {
            let secrets = &shared.options.secrets;
            if let Some(repository) = git::Repository::parse(word)? {
                self.gather_local(gathered, &std::mem::take(&mut local), flags)?;
                let wanted = git::Wanted {
                    keep_git_dir: flags.keep_git_dir,
                    checksum: checksum.as_deref(),
                    secrets,
                    agent: shared.options.ssh.get("default").map(PathBuf::as_path),
                    addresses: shared.addresses,
                    platform: shared.platform,
                };
                let found = repository.files(shared.store, &wanted)?;
                shared.materials.add(found.material);
                gathered.add_checkout(found.items)?;
            } else if download::is_url(word) {
                self.gather_local(gathered, &std::mem::take(&mut local), flags)?;
                let checksum = checksum.as_deref().map(str::parse).transpose()?;
                let wanted = download::Wanted {
                    url: word,
                    checksum: checksum.as_ref(),
                    secrets,
                    addresses: shared.addresses,
                    platform: shared.platform,
                };
                let download::Fetched { name, item, file, material } =
                    download::fetch(shared.store, &wanted, shared.reporter)?;
                shared.materials.add(material);
                match flags.unpack {
                    Some(true) => match archive::to_extract(shared.store, file, word)? {
                        Some(items) => gathered.add_archive(items)?,
                        None => gathered.add_file(&name, item)?,
                    },
                    _ => gathered.add_file(&name, item)?,
                }
            } else if checksum.is_some() {
                return Err(Error::usage("--checksum is for URLs and git repositories only"));
            } else {
                local.push(word.clone());
            }
        }
        self.gather_local(gathered, &local, flags)
    }

    /// ADD: takes sources of the context.
    fn gather_local(
        &self,
        gathered: &mut Gathered<'_>,
        words: &[String],
        flags: &TransferFlags,
    ) -> Result<()> {
        if words.is_empty() {
            return Ok(());
        }
        let shared = self.shared;
        let context = shared.context()?;
        let mut unpack = |path: &LayerPath| {
            if flags.unpack == Some(false) {
                return Ok(None);
            }
            let file = context.open(path)?;
            archive::to_extract(shared.store, file, &path.to_string())
        };
        gathered.add_sources(context, words, &mut unpack)
    }

    fn flags(&mut self, raw: &TransferFlags) -> Result<Flags> {
        let chmod = self.flag(raw.chmod.as_deref())?.map(|mode| Chmod::parse(&mode)).transpose()?;
        let mut exclude = String::new();
        for pattern in &raw.exclude {
            exclude.push_str(&self.scope.word(pattern)?);
            exclude.push('\n');
        }
        let exclude = if exclude.is_empty() {
            None
        } else {
            let wrong = |found: Vec<Diagnostic>| {
                diagnostic::into_error(&found, "--exclude", exclude.as_bytes())
            };
            Some(IgnoreRules::parse(exclude.as_bytes()).map_err(wrong)?)
        };
        let owner = match self.flag(raw.chown.as_deref())? {
            Some(owner) => Some(self.owner(&owner)?),
            None => None,
        };
        Ok(Flags { owner, chmod, link: raw.link, parents: raw.parents, exclude })
    }

    /// Returns the value of a flag, expanded; one that expands to nothing is absent (BuildKit).
    fn flag(&self, raw: Option<&str>) -> Result<Option<String>> {
        let value = raw.map(|raw| self.scope.word(raw)).transpose()?;
        Ok(value.filter(|value| !value.is_empty()))
    }

    fn owner(&mut self, owner: &str) -> Result<(u32, u32)> {
        let (passwd, group) = self.accounts_for(owner)?;
        let (ids, unknown) = passwd::resolve_copied(owner.as_bytes(), &passwd, &group)?;
        if unknown {
            self.shared.reporter.note(&format!(
                "--chown={owner} is {}:{}: the name is not in /etc/passwd and /etc/group of the image",
                ids.0, ids.1
            ));
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_ranges() {
        assert_eq!(ports("80").unwrap(), ["80/tcp"]);
        assert_eq!(ports("53/UDP").unwrap(), ["53/udp"]);
        assert_eq!(ports("8000-8002").unwrap(), ["8000/tcp", "8001/tcp", "8002/tcp"]);
        assert_eq!(ports("127.0.0.1:8080:80").unwrap(), ["80/tcp"]);
        assert!(ports("localhost:80:80").is_err());
    }
}
