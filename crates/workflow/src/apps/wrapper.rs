//! What `kubectl` and `helm` in the commands of images really call: a program of the same name whose
//! input has new names of pushed images in it, and whose objects are recorded.
//!
//! kubectl: the files of `apply`, `create` and `replace` become one text on stdin. Helm 3: `install`
//! and `upgrade` get a post-renderer. Everything else is passed through. Must not depend on clusters.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

use crate::apps::arguments::{parse, words};
use crate::apps::{images::Pushed, manifest};
use imgctl_base::error::{Error, IoContext, Kind, Result};
use imgctl_base::fs::directory;
use imgctl_base::quote::quote;
use imgctl_kube::objects::ObjectName;

/// Maximum size of all manifests of one call, in bytes.
const LARGEST: u64 = 64 << 20;
const KUBECTL: &str = "kubectl";
/// Maximum size of the settings, in bytes.
const LONGEST_SETTINGS: u64 = 64 << 20;

/// Variables by which a wrapped program finds its settings.
pub const SETTINGS: &str = "IMGCTL_WRAPPER";
/// File that the objects are appended to.
pub const OBJECTS: &str = "IMGCTL_OBJECTS";
/// Namespace of a Helm release, for its post-renderer.
pub const RELEASE_NAMESPACE: &str = "IMGCTL_NAMESPACE";

/// Settings of one application, in a file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Settings {
    /// Namespace of objects that name none.
    pub namespace: String,
    /// Images whose names are replaced.
    pub images: Option<Pushed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    Kubectl,
    Helm,
    PostRenderer,
    /// Programs that contain a kubectl: `k3s kubectl`.
    K3s,
    K0s,
}

impl Tool {
    /// The tools that commands for any cluster need.
    pub const ALL: [Self; 3] = [Self::Kubectl, Self::Helm, Self::PostRenderer];
    /// Programs of hosts that contain a kubectl.
    pub const CARRIERS: [Self; 2] = [Self::K3s, Self::K0s];

    /// Returns the file name of the wrapper, and of the program if there is one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kubectl => KUBECTL,
            Self::Helm => "helm",
            Self::PostRenderer => "post-renderer",
            Self::K3s => "k3s",
            Self::K0s => "k0s",
        }
    }
}

/// One call of a wrapped program.
#[derive(Clone)]
pub struct Call {
    pub tool: Tool,
    pub arguments: Vec<OsString>,
    /// Directory of the wrappers themselves, which is not searched for the programs.
    pub own: PathBuf,
    /// Search path for programs.
    pub path: Vec<PathBuf>,
    pub settings: Option<PathBuf>,
    pub objects: Option<PathBuf>,
    /// `RELEASE_NAMESPACE`, and the one that Helm's own variable names.
    pub namespace: Option<String>,
}

/// Executes the call. Returns only if the wrapped program is not executed in place of this one.
pub fn run(call: &Call, input: &mut dyn Read, output: &mut dyn Write) -> Result<()> {
    match call.tool {
        Tool::Kubectl => kubectl(call, input),
        Tool::Helm => helm(call),
        Tool::K3s | Tool::K0s => match call.arguments.split_first() {
            Some((first, rest)) if first == KUBECTL => {
                kubectl(&Call { arguments: rest.to_vec(), ..call.clone() }, input)
            }
            _ => {
                let mut command = Command::new(call.program()?);
                command.args(&call.arguments);
                call.become_program(command)
            }
        },
        Tool::PostRenderer => {
            let text = limited(input, "the chart's manifests")?;
            let settings = call.settings()?;
            let namespace = call.namespace.clone().unwrap_or_else(|| settings.namespace.clone());
            call.record(&text, &namespace)?;
            let text = settings.rewritten(&text);
            output.write_all(text.as_bytes()).doing(|| "cannot write the manifests".to_owned())
        }
    }
}

impl Settings {
    fn rewrites(&self) -> bool {
        self.images.as_ref().is_some_and(|images| !images.is_empty())
    }

    fn rewritten(&self, text: &str) -> String {
        match &self.images {
            Some(images) => images.rewrite(text).into_owned(),
            None => text.to_owned(),
        }
    }
}

impl Call {
    fn settings(&self) -> Result<Settings> {
        let Some(path) = &self.settings else { return Ok(Settings::default()) };
        match directory::read_text(path, LONGEST_SETTINGS)? {
            None => Ok(Settings::default()),
            Some(text) => serde_json::from_str(&text).map_err(|error| {
                Error::bad_content(format!("cannot use {}", path.display())).caused_by(error)
            }),
        }
    }

    /// Appends the objects of a text to the record.
    fn record(&self, text: &str, namespace: &str) -> Result<()> {
        let Some(path) = &self.objects else { return Ok(()) };
        // The program reports what is wrong with them.
        let Ok(objects) = manifest::objects(text, namespace) else {
            tracing::warn!("manifests that cannot be read are not recorded");
            return Ok(());
        };
        let mut lines = String::new();
        for object in &objects {
            let line = serde_json::to_string(object)
                .map_err(|error| Error::failed("cannot record an object").caused_by(error))?;
            lines.push_str(&line);
            lines.push('\n');
        }
        let file = File::options().append(true).create(true).mode(0o600).open(path);
        let mut file = file.path("open", path)?;
        file.write_all(lines.as_bytes()).path("write", path)
    }

    /// Returns the real program.
    fn program(&self) -> Result<PathBuf> {
        let name = self.tool.name();
        let own = self.own.canonicalize().unwrap_or_else(|_| self.own.clone());
        self.path
            .iter()
            .filter(|directory| directory.canonicalize().is_ok_and(|real| real != own))
            .map(|directory| directory.join(name))
            .find(|file| {
                rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file()
            })
            .ok_or_else(|| {
                Error::not_found(format!("there is no {name} in the image and on this machine"))
                    .hint(format!(
                        "install {name} on this machine, or put it into the image's opt/ or bin/"
                    ))
            })
    }

    fn command(&self) -> Result<Command> {
        let mut command = Command::new(self.program()?);
        if Tool::CARRIERS.contains(&self.tool) {
            command.arg(KUBECTL);
        }
        Ok(command)
    }

    /// Replaces this process by the real program.
    fn become_program(&self, mut command: Command) -> Result<()> {
        Err(Error::io(format!("cannot run {}", self.tool.name()), command.exec()))
    }

    fn pass_through(&self) -> Result<()> {
        let mut command = self.command()?;
        command.args(&self.arguments);
        self.become_program(command)
    }
}

/// Reads a list of objects that calls have written.
pub fn read_objects(path: &Path) -> Result<Vec<ObjectName>> {
    Ok(objects(&directory::read_text(path, LARGEST)?.unwrap_or_default()))
}

/// Returns the objects of such a list, each once, in its order; a line that was cut off is left out.
pub(super) fn objects(text: &str) -> Vec<ObjectName> {
    let mut seen = BTreeSet::new();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<ObjectName>(line).ok());
    lines.filter(|one| one.is_clean() && seen.insert(one.clone())).collect()
}

/// Returns the script that takes a tool's place: it lies in the directory `own`.
pub(super) fn script(tool: Tool, program: &str, own: &str) -> String {
    format!(
        "#!/bin/sh\nexec {} kube-wrapper {} {} -- \"$@\"\n",
        quote(program),
        tool.name(),
        quote(own)
    )
}

fn limited(input: &mut dyn Read, what: &str) -> Result<String> {
    let mut text = String::new();
    input.take(LARGEST + 1).read_to_string(&mut text).doing(|| format!("cannot read {what}"))?;
    if text.len() as u64 > LARGEST {
        return Err(Error::bad_content(format!("{what} have more than {} MiB", LARGEST >> 20)));
    }
    Ok(text)
}

fn kubectl(call: &Call, input: &mut dyn Read) -> Result<()> {
    let Some(parsed) = words(&call.arguments).map(|words| parse(&words)) else {
        return call.pass_through();
    };
    let is_ours = matches!(parsed.verb.as_str(), "apply" | "create" | "replace")
        && !parsed.noun.as_deref().is_some_and(|noun| noun.ends_with("-last-applied"));
    if !is_ours || parsed.files.is_empty() && parsed.kustomizations.is_empty() {
        return call.pass_through();
    }
    let mut text = String::new();
    let mut at_urls = String::new();
    let mut piped = None;
    let mut arguments = parsed.rest.clone();
    for file in &parsed.files {
        if file.starts_with("http://") || file.starts_with("https://") {
            arguments.extend(["-f".to_owned(), file.clone()]);
            if !parsed.dry_run {
                add(&mut at_urls, &manifests_at(call, file))?;
            }
            continue;
        }
        match file.as_str() {
            "-" => {
                let read = limited(input, "the manifests on stdin")?;
                add(&mut text, &read)?;
                piped = Some(read);
            }
            file => match files(Path::new(file), parsed.recursive) {
                Ok(files) => {
                    for file in files {
                        let mut opened = File::open(&file).path("open", &file)?;
                        add(&mut text, &limited(&mut opened, &file.display().to_string())?)?;
                    }
                }
                // kubectl says it in its own words, and knows patterns.
                Err(_) => return call.pass_through(),
            },
        }
    }
    for directory in &parsed.kustomizations {
        let made = output(call.command()?.args(["kustomize", directory]), "kubectl kustomize")?;
        add(&mut text, &made)?;
    }
    if text.trim().is_empty() && at_urls.is_empty() {
        return call.pass_through();
    }
    let settings = call.settings()?;
    let namespace = parsed.namespace.as_ref().unwrap_or(&settings.namespace);
    let mut command = call.command()?;
    if settings.rewrites() && !text.trim().is_empty() {
        command.args(arguments).args(["-f", "-"]).stdin(in_memory(&settings.rewritten(&text))?);
    } else {
        // Only recorded: kubectl reads its files itself, and the stdin that was read here.
        command.args(&call.arguments);
        if let Some(piped) = &piped {
            command.stdin(in_memory(piped)?);
        }
    }
    if parsed.dry_run {
        return call.become_program(command);
    }
    if parsed.verb == "apply" {
        // It adopts objects that exist, and a part of them may be there after a failure.
        call.record(&at_urls, namespace)?;
        call.record(&text, namespace)?;
        return call.become_program(command);
    }
    // An object that could not be created belongs to somebody else.
    let status = command.status().doing(|| "cannot run kubectl".to_owned())?;
    if !status.success() {
        return Err(failed(&format!("kubectl {}", parsed.verb)));
    }
    call.record(&at_urls, namespace)?;
    call.record(&text, namespace)
}

/// Returns the manifests at a URL, which are recorded only: kubectl fetches them without contacting a cluster, and
/// adds an annotation. Empty if that fails: the call itself will say why.
fn manifests_at(call: &Call, url: &str) -> String {
    let arguments = ["annotate", "--local", "-o", "yaml", "-f", url, "imgctl.io/recorded=true"];
    let fetched = call
        .command()
        .and_then(|mut command| output(command.args(arguments).stderr(Stdio::null()), "kubectl"));
    fetched.unwrap_or_else(|error| {
        tracing::warn!("the objects of {url} are not recorded: it cannot be read ({error})");
        String::new()
    })
}

/// Returns the output of a program.
fn output(command: &mut Command, what: &str) -> Result<String> {
    let doing = || format!("cannot run {what}");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().doing(doing)?;
    // Closed after it has been read. If there is too much, the program fails on the closed pipe.
    let text = match child.stdout.take() {
        Some(mut pipe) => limited(&mut pipe, &format!("the manifests of {what}")),
        None => Ok(String::new()),
    };
    let status = child.wait().doing(doing)?;
    let text = text?;
    if status.success() { Ok(text) } else { Err(failed(what)) }
}

/// Returns the error for a program that has said why it failed.
fn failed(what: &str) -> Error {
    Error::new(Kind::CommandFailed, format!("{what} failed, for the reason shown above"))
}

fn add(text: &mut String, more: &str) -> Result<()> {
    if text.len() as u64 + more.len() as u64 > LARGEST {
        return Err(Error::bad_content(format!(
            "the manifests have more than {} MiB",
            LARGEST >> 20
        )));
    }
    if !text.is_empty() {
        text.push_str("\n---\n");
    }
    text.push_str(more.trim_start_matches('\u{feff}'));
    Ok(())
}

/// Returns the file itself, or the manifests in a directory, as kubectl chooses them.
fn files(path: &Path, recursive: bool) -> Result<Vec<PathBuf>> {
    if std::fs::metadata(path).path("read", path)?.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let is_manifest = |path: &Path| {
        path.extension().is_some_and(|end| end == "json" || end == "yaml" || end == "yml")
    };
    let mut found = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(directory) = open.pop() {
        let mut below = Vec::new();
        for entry in directory::list(&directory)? {
            // Not through links: they may lead back.
            if entry.symlink_metadata().is_ok_and(|one| one.is_dir()) {
                below.push(entry);
            } else if is_manifest(&entry) && entry.is_file() {
                found.push(entry);
            }
        }
        if recursive {
            open.extend(below);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns a text as a program's stdin, without a file on disk: it may contain Secrets.
fn in_memory(text: &str) -> Result<Stdio> {
    let doing = || "cannot keep manifests in memory".to_owned();
    let file = rustix::fs::memfd_create("manifests", MemfdFlags::CLOEXEC).doing(doing)?;
    let mut file = File::from(file);
    file.write_all(text.as_bytes()).doing(doing)?;
    std::io::Seek::rewind(&mut file).doing(doing)?;
    Ok(Stdio::from(file))
}

fn helm(call: &Call) -> Result<()> {
    let Some(parsed) = words(&call.arguments).map(|words| parse(&words)) else {
        return call.pass_through();
    };
    if !matches!(parsed.verb.as_str(), "install" | "upgrade") || call.settings.is_none() {
        return call.pass_through();
    }
    let mut command = call.command()?;
    let rewrites = call.settings()?.rewrites();
    let why = if parsed.post_renderer {
        Some("the command has a post-renderer of its own")
    } else if version_is_4(call)? {
        Some("Helm 4 takes post-renderers from its plugins only")
    } else {
        None
    };
    if let Some(why) = why {
        if rewrites {
            return Err(Error::failed(format!("cannot rewrite images: {why}"))
                .hint("use Helm 3 without --post-renderer, or install without --rewrite-images"));
        }
        tracing::warn!("the objects of this release are not recorded: {why}");
        command.args(&call.arguments);
        return call.become_program(command);
    }
    let namespace = parsed.namespace.clone().or_else(|| call.namespace.clone());
    command.args(&call.arguments).arg("--post-renderer");
    command.arg(call.own.join(Tool::PostRenderer.name()));
    match namespace {
        Some(namespace) => command.env(RELEASE_NAMESPACE, namespace),
        None => command.env_remove(RELEASE_NAMESPACE),
    };
    if parsed.dry_run {
        command.env_remove(OBJECTS);
    }
    call.become_program(command)
}

fn version_is_4(call: &Call) -> Result<bool> {
    let asked = call.command()?.args(["version", "--short"]).stderr(Stdio::null()).output();
    let asked = asked.doing(|| "cannot run helm".to_owned())?;
    Ok(asked.stdout.starts_with(b"v4"))
}
