//! Helm charts that are put into a folder: a directory or a packed chart. Reads them; renders nothing.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::directory;
use imgctl_base::image::Digest;
use serde::Deserialize;

use crate::File;

/// Largest chart, packed or not, in bytes: as in a build.
const LARGEST: u64 = 64 << 20;
/// Largest `Chart.yaml`, in bytes.
const LARGEST_HEAD: u64 = 1 << 20;
/// Most files of a chart.
const MOST_FILES: usize = 10_000;
const HEAD: &str = "Chart.yaml";
/// The part of the name of a script that decides when it runs: after the recipes.
const PLACE: &str = "50";

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// As its `Chart.yaml` says; also that of the release and its namespace.
    pub name: String,
    /// The file or folder of the context: `charts/web`, `charts/web-1.2.3.tgz`.
    pub place: String,
    content: Vec<File>,
    /// Where a packed chart came from, if from a server.
    source: Option<Source>,
    /// It is in the folder already, with values that are the user's.
    is_there: bool,
}

/// The server that gave a packed chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// With the version, without a login.
    pub address: String,
    /// Of a registry: the digest of the chart's manifest.
    pub manifest: Option<Digest>,
}

#[derive(Deserialize)]
struct Head {
    name: String,
    #[serde(default)]
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

impl Chart {
    /// Reads the chart at `path`: a directory with a `Chart.yaml`, or a `.tgz`.
    ///
    /// # Errors
    /// If there is no chart, it is not complete, or too large.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let is_directory = fs::metadata(path)
            .map_err(|error| {
                Error::not_found(format!("there is no chart {shown}"))
                    .caused_by(error)
                    .hint("a chart is a folder with a Chart.yaml, or a .tgz")
            })?
            .is_dir();
        if is_directory { Self::of_directory(path) } else { Self::of_archive(path) }
    }

    fn of_directory(path: &Path) -> Result<Self> {
        let shown = path.display();
        let head = directory::read_text(&path.join(HEAD), LARGEST_HEAD)?.ok_or_else(|| {
            Error::not_found(format!("{shown} has no {HEAD}"))
                .hint("a chart is a folder with a Chart.yaml, or a .tgz")
        })?;
        let head = parse(&head, &shown.to_string())?;
        let mut reading = Reading::default();
        reading.folder(path, &format!("charts/{}", head.name))?;
        for dependency in &head.dependencies {
            let inside = format!("charts/{}/charts/{}", head.name, dependency.name);
            let is_there = reading.files.iter().any(|file| {
                file.path.strip_prefix(&inside).is_some_and(|rest| rest.starts_with(['/', '-']))
            });
            if !is_there {
                let lacks = format!("the chart {shown} lacks its dependency {}", dependency.name);
                return Err(Error::usage(lacks).hint(format!("helm dependency build {shown}")));
            }
        }
        Ok(Self {
            place: format!("charts/{}", head.name),
            name: head.name,
            content: reading.files,
            source: None,
            is_there: false,
        })
    }

    fn of_archive(path: &Path) -> Result<Self> {
        let shown = path.display().to_string();
        let bytes = read(path, LARGEST)?;
        Self::packed(&bytes, &shown)
    }

    /// Reads a packed chart; `shown` is what errors call it.
    ///
    /// # Errors
    /// If it is not one.
    pub fn packed(bytes: &[u8], shown: &str) -> Result<Self> {
        let wrong = || Error::bad_content(format!("{shown} is not a packed chart"));
        let mut archive = tar::Archive::new(MultiGzDecoder::new(bytes).take(LARGEST));
        for entry in archive.entries().map_err(|error| wrong().caused_by(error))? {
            let mut entry = entry.map_err(|error| wrong().caused_by(error))?;
            let path = entry.path_bytes().into_owned();
            let path = String::from_utf8_lossy(&path);
            if path.split_once('/').is_none_or(|(_, inside)| inside != HEAD) {
                continue;
            }
            let mut text = String::new();
            let mut limited = entry.by_ref().take(LARGEST_HEAD);
            limited.read_to_string(&mut text).map_err(|error| wrong().caused_by(error))?;
            let name = parse(&text, shown)?.name;
            let place = format!("charts/{name}.tgz");
            let content = File { path: place.clone(), mode: 0o644, bytes: bytes.to_vec() };
            return Ok(Self { name, place, content: vec![content], source: None, is_there: false });
        }
        Err(wrong().hint(format!("it has no {HEAD}; `helm package` makes one")))
    }

    /// The same chart, from a server.
    #[must_use]
    pub fn from(self, source: Source) -> Self {
        Self { source: Some(source), ..self }
    }

    /// Returns the entry of `imgctl.lock` for a chart from a server.
    pub(crate) fn lock_entry(&self) -> Option<String> {
        let (source, content) = (self.source.as_ref()?, self.content.first()?);
        let text = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let manifest = source.manifest.as_ref();
        let manifest = manifest.map_or_else(String::new, |it| format!("manifest = \"{it}\"\n"));
        Some(format!(
            "\n[[chart]]\nfile = {}\nfrom = {}\n{manifest}digest = \"{}\"\n",
            text(&self.place),
            text(&source.address),
            Digest::of(&content.bytes)
        ))
    }

    /// The chart that a record names, and that is in the folder already.
    ///
    /// # Errors
    /// If it is not there any more.
    pub fn recorded(folder: &Path, place: &str) -> Result<Self> {
        let is_inside = place.strip_prefix("charts/").is_some_and(|name| {
            !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\''])
        });
        if !is_inside {
            return Err(Error::bad_content(format!("`{place}` is not a chart of the folder")));
        }
        let chart = Self::read(&folder.join(place))?;
        Ok(Self { place: place.to_owned(), is_there: true, ..chart })
    }

    /// Returns what a folder has for the chart.
    pub(crate) fn files(&self) -> Vec<File> {
        let (name, place) = (&self.name, &self.place);
        let values = format!("charts/{name}.values.yaml");
        let script = format!(
            "#!/usr/bin/env bash\n# The chart {name}, with your values.\nset -euo pipefail\n\
             helm upgrade --install {name} {place} --namespace {name} --create-namespace \\\n\
             \x20 --values {values} --wait --timeout 10m\n"
        );
        let mut files = self.content.clone();
        if !self.is_there {
            let head = format!(
                "# Your values for the chart {name}; the build uses them too, when it looks for container images.\n"
            );
            files.push(File::text(values, format!("{head}{{}}\n")));
        }
        files.push(File::script(format!("apps/{PLACE}-{name}.sh"), script));
        files
    }
}

/// Reads `Chart.yaml`.
fn parse(text: &str, shown: &str) -> Result<Head> {
    let head: Head = serde_saphyr::from_str(text).map_err(|error| {
        Error::bad_content(format!("{HEAD} of {shown} cannot be read")).caused_by(error)
    })?;
    // Names a release, a namespace and files, and is a word of a shell.
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let name = head.name.as_bytes();
    if name.is_empty()
        || name.len() > 53
        || name.starts_with(b"-")
        || !name.iter().all(|b| is_plain(*b))
    {
        return Err(Error::bad_content(format!("the chart {shown} is called `{}`", head.name))
            .hint("a name of a release has at most 53 lower-case letters, digits and `-`"));
    }
    Ok(head)
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).path("open", path)?;
    file.take(most + 1).read_to_end(&mut bytes).path("read", path)?;
    if bytes.len() as u64 > most {
        return Err(Error::bad_content(format!("{} has more than {most} bytes", path.display())));
    }
    Ok(bytes)
}

/// The files of a directory, with limits.
#[derive(Default)]
struct Reading {
    files: Vec<File>,
    bytes: u64,
}

impl Reading {
    fn folder(&mut self, folder: &Path, place: &str) -> Result<()> {
        for path in directory::list(folder)? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                return Err(Error::bad_content(format!(
                    "{} is not a name in UTF-8",
                    path.display()
                )));
            };
            let kind = fs::symlink_metadata(&path).path("read", &path)?;
            let place = format!("{place}/{name}");
            if kind.is_dir() {
                if name != ".git" {
                    self.folder(&path, &place)?;
                }
            } else if kind.is_file() {
                let bytes = read(&path, LARGEST - self.bytes)?;
                self.bytes += bytes.len() as u64;
                let mode = if kind.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 };
                self.files.push(File { path: place, mode, bytes });
            } else {
                return Err(Error::bad_content(format!("{} is not a file", path.display()))
                    .hint("a chart that is copied has no links; `helm package` resolves them"));
            }
            if self.files.len() > MOST_FILES {
                return Err(Error::bad_content(format!("{} has too many files", folder.display())));
            }
        }
        Ok(())
    }
}
