//! Newer versions of the images that a Kubefile and its context name: which tags of the same repository are
//! newer, and the edits that take them. Must not ask a registry, nor know which files a build reads beside
//! these.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::build::embedding;
use crate::build::file;
use imgctl_base::error::{IoContext as _, Result};
use imgctl_base::fs::output::{self, Durability};
use imgctl_base::image::Reference;
use imgctl_embed::Found;
use imgctl_embed::search::SearchOptions;

/// Files of the directory, and lines counted from 1; 0 = the whole file.
pub type Places = BTreeSet<(String, usize)>;

/// One image that is named.
#[derive(Debug)]
pub struct Part {
    /// With its registry.
    pub reference: Reference,
    /// What names it.
    pub places: Places,
    pub state: State,
}

/// What is known about newer versions.
#[derive(Debug, PartialEq, Eq)]
pub enum State {
    Newest,
    Newer(String),
    /// Completes "not compared: …".
    NotCompared(String),
    /// Its repository has not answered, and why.
    Unanswered(String),
}

/// Finds the images of FROM and those that a build of `directory` embeds, and compares their tags with those
/// that `tags` lists for a repository. With `major`, other major versions count.
pub fn find(
    directory: &Path,
    kubefile: Option<&Path>,
    search: &SearchOptions,
    major: bool,
    tags: &mut dyn FnMut(&Reference) -> Result<Vec<String>>,
) -> Result<Vec<Part>> {
    let mut named: BTreeMap<Reference, Places> = BTreeMap::new();
    for (reference, place) in bases(directory, kubefile)? {
        named.entry(reference).or_default().insert(place);
    }
    let Found { images, .. } = embedding::scan(directory, search)?;
    for image in images {
        let places = image.places.into_iter().map(|place| (place.file, place.line));
        named.entry(image.reference).or_default().extend(places);
    }
    let mut parts = Vec::new();
    for (reference, places) in named {
        let state = compare(&reference, major, tags);
        parts.push(Part { reference, places, state });
    }
    Ok(parts)
}

fn compare(
    reference: &Reference,
    major: bool,
    tags: &mut dyn FnMut(&Reference) -> Result<Vec<String>>,
) -> State {
    let not = |why: &str| State::NotCompared(why.to_owned());
    if reference.digest().is_some() {
        return not("its name has a digest");
    }
    let Some(tag) = reference.tag() else { return not("its name has no tag") };
    let Some(current) = Version::parse(tag) else { return not("its tag is no version") };
    match tags(reference) {
        Ok(all) => newest(&current, &all, major).map_or(State::Newest, State::Newer),
        Err(error) => State::Unanswered(error.chain().join(": ")),
    }
}

/// Returns the images of FROM with the place of each, without stages and variables.
fn bases(directory: &Path, kubefile: Option<&Path>) -> Result<Vec<(Reference, (String, usize))>> {
    let source = file::find(kubefile, directory)?;
    let path = source.file().unwrap_or(Path::new(&source.name));
    let shown = path.strip_prefix(directory).unwrap_or(path).display().to_string();
    let (parsed, _) = imgctl_kubefile::parse_leniently(&source.name, &source.bytes);
    let mut stages: BTreeSet<String> = BTreeSet::from(["scratch".to_owned()]);
    let mut bases = Vec::new();
    for stage in &parsed.stages {
        let from = &stage.from;
        let image = Reference::parse(&from.image).ok();
        let is_stage = stages.contains(&from.image.to_lowercase());
        if let Some(image) = image.filter(|_| !is_stage) {
            let line = from.span_of(&from.image).line;
            bases.push((image.on_docker_hub(), (shown.clone(), line)));
        }
        stages.extend(from.name.clone());
    }
    Ok(bases)
}

/// A tag that looks like a version: its numbers, and the text around them.
#[derive(Debug, PartialEq, Eq)]
struct Version {
    numbers: Vec<u64>,
    text: String,
}

impl Version {
    /// Parses `1.29`, `v1.34.1`, `3.5.15-0`, `1.29-alpine3.20` and the like.
    fn parse(tag: &str) -> Option<Self> {
        if !tag.strip_prefix('v').unwrap_or(tag).starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        let (mut numbers, mut text) = (Vec::new(), String::new());
        let mut rest = tag;
        while let Some(first) = rest.chars().next() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            if end == 0 {
                text.push(first);
                rest = &rest[first.len_utf8()..];
            } else {
                numbers.push(rest[..end].parse().ok()?);
                text.push('#');
                rest = &rest[end..];
            }
        }
        Some(Self { numbers, text })
    }
}

/// Returns the newest of `tags` that is newer than `current` and of the same form: `1.29-alpine` is no
/// successor of `1.28`, and a pre-release none of a release.
fn newest(current: &Version, tags: &[String], major: bool) -> Option<String> {
    let candidates = tags.iter().filter_map(|tag| Some((Version::parse(tag)?, tag)));
    let fits = |version: &Version| {
        version.text == current.text
            && version.numbers > current.numbers
            && (major || version.numbers.first() == current.numbers.first())
    };
    candidates
        .filter(|(version, _)| fits(version))
        .max_by(|(a, _), (b, _)| a.numbers.cmp(&b.numbers))
        .map(|(_, tag)| tag.clone())
}

/// Writes the newer versions into the files that name the older ones. Returns the places that were
/// changed, and those that cannot be: parts of charts, and files outside the directory.
pub fn write(directory: &Path, parts: &[Part]) -> Result<(Vec<String>, Vec<String>)> {
    let (mut changed, mut left) = (Vec::new(), Vec::new());
    let mut files: BTreeMap<&str, Vec<(usize, &Reference, &str)>> = BTreeMap::new();
    for part in parts {
        let State::Newer(tag) = &part.state else { continue };
        for (file, line) in &part.places {
            files.entry(file).or_default().push((*line, &part.reference, tag));
        }
    }
    for (file, edits) in files {
        let place = |line: usize| format!("{file}:{line}");
        let Some(path) = editable(directory, file) else {
            left.extend(edits.iter().map(|(line, ..)| place(*line)));
            continue;
        };
        let text = std::fs::read(&path).path("read", &path)?;
        let Ok(text) = String::from_utf8(text) else {
            left.extend(edits.iter().map(|(line, ..)| place(*line)));
            continue;
        };
        let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
        let mut is_changed = false;
        for (line, reference, tag) in edits {
            let found = line.checked_sub(1).and_then(|index| lines.get_mut(index));
            match found.and_then(|text| Some((replaced(text, reference, tag)?, text))) {
                Some((new, text)) => {
                    *text = new;
                    is_changed = true;
                    changed.push(place(line));
                }
                None => left.push(place(line)),
            }
        }
        if is_changed {
            output::write(&path, lines.concat().as_bytes(), 0o644, Durability::Durable)?;
        }
    }
    Ok((changed, left))
}

/// Returns the path of a file that is in the directory, wherever links lead.
fn editable(directory: &Path, file: &str) -> Option<PathBuf> {
    let root = directory.canonicalize().ok()?;
    let path = root.join(file).canonicalize().ok()?;
    (path.starts_with(&root) && path.is_file()).then_some(path)
}

/// Returns the line with another tag of `reference`, which may be written without its registry.
fn replaced(line: &str, reference: &Reference, tag: &str) -> Option<String> {
    let name = reference.name();
    let hub = name.strip_prefix("docker.io/");
    let short = hub.and_then(|name| name.strip_prefix("library/"));
    let spelled = [Some(name.as_str()), hub, short];
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-._/:@".contains(c);
    for spelled in spelled.into_iter().flatten() {
        let old = format!("{spelled}:{}", reference.tag()?);
        for (at, _) in line.match_indices(&old) {
            let (before, after) = (&line[..at], &line[at + old.len()..]);
            if !before.ends_with(is_part) && !after.starts_with(is_part) {
                return Some(format!("{before}{spelled}:{tag}{after}"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_has_the_form_of_the_current_one() {
        let tags = [
            "latest",
            "1.28",
            "1.29",
            "1.29-alpine",
            "1.31.2",
            "1.32.0-rc.1",
            "1.9",
            "2.0",
            "v1.40",
            "99999999999999999999.1",
        ]
        .map(str::to_owned);
        let newest = |tag: &str, major| newest(&Version::parse(tag).unwrap(), &tags, major);
        for (tag, same, any) in [
            ("1.28", Some("1.29"), Some("2.0")),
            ("1.29", None, Some("2.0")),
            ("1.28-alpine", Some("1.29-alpine"), Some("1.29-alpine")),
            ("1.29.0", Some("1.31.2"), Some("1.31.2")),
            ("1.32.0-rc.0", Some("1.32.0-rc.1"), Some("1.32.0-rc.1")),
            ("v1.39", Some("v1.40"), Some("v1.40")),
            ("2.0", None, None),
        ] {
            assert_eq!(newest(tag, false).as_deref(), same, "{tag}");
            assert_eq!(newest(tag, true).as_deref(), any, "{tag}");
        }
        for tag in ["latest", "stable-1", "vx", ""] {
            assert_eq!(Version::parse(tag), None, "{tag}");
        }
    }

    #[test]
    fn only_the_tag_of_the_whole_name_is_replaced() {
        let nginx = Reference::parse("docker.io/library/nginx:1.28").unwrap();
        for (line, expected) in [
            ("FROM nginx:1.28 AS web\n", Some("FROM nginx:1.29 AS web\n")),
            (
                "image: \"docker.io/library/nginx:1.28\"",
                Some("image: \"docker.io/library/nginx:1.29\""),
            ),
            ("library/nginx:1.28", Some("library/nginx:1.29")),
            ("q.io/nginx:1.28 nginx:1.28", Some("q.io/nginx:1.28 nginx:1.29")),
            ("nginx:1.28.1", None),
            ("my-nginx:1.28", None),
            ("nginx:1.28@sha256:00", None),
        ] {
            assert_eq!(replaced(line, &nginx, "1.29").as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn files_outside_the_directory_stay_as_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        let inside = directory.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(&outside, "nginx:1.28\n").unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        std::fs::write(inside.join("list"), "a\r\nnginx:1.28\r\n").unwrap();
        let part = Part {
            reference: Reference::parse("docker.io/library/nginx:1.28").unwrap(),
            places: [("link", 1), ("../outside", 1), ("list", 2), ("charts/x.tgz: x/y.yaml", 3)]
                .map(|(file, line)| (file.to_owned(), line))
                .into(),
            state: State::Newer("1.29".to_owned()),
        };
        let (changed, left) = write(&inside, &[part]).unwrap();
        assert_eq!(changed, ["list:2"]);
        assert_eq!(left.len(), 3, "{left:?}");
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "nginx:1.28\n");
        assert_eq!(std::fs::read_to_string(inside.join("list")).unwrap(), "a\r\nnginx:1.29\r\n");
    }
}
