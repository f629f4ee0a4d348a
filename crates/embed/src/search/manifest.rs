//! Finds images in Kubernetes manifests by structure: containers anywhere, fields whose names
//! suggest an image, names in parts (`parts.rs`), variables, arguments, manifests embedded in the strings
//! of other manifests, and words that are surely images (`words.rs`).
//!
//! Text that does not parse as YAML is scanned line by line.

mod parts;
mod words;

use std::collections::HashSet;

use crate::found::{How, Place};
use crate::search::collector::Collector;
use crate::search::names::Trust;
use crate::search::yaml::{NodeId, Tree, Value};
use words::{is_surely_image, names_image, words};

/// Maximum nesting depth of manifests within the strings of manifests.
const MAX_NESTING: usize = 4;

/// Members of a pod spec that list containers.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];
/// Members that only a container has beside its `image`, wherever it stands.
const OF_CONTAINER: [&str; 4] = ["command", "args", "script", "volumeMounts"];
/// Why a name is left out that only its form shows to be an image.
const UNNAMED: &str = "nothing beside it says that it is an image; pass --image to add it";

/// Collects all images that `text`, the content of `file`, names. Returns whether it may name any.
pub(super) fn scan(text: &str, file: &str, found: &mut Collector) -> bool {
    if !may_name_images(text) {
        return false;
    }
    scan_any(text, file, found);
    true
}

fn scan_any(text: &str, file: &str, found: &mut Collector) {
    let tree = match Tree::parse(text) {
        Ok(tree) => tree,
        Err(error) => {
            if !file.ends_with(".tmpl") {
                let place = Place { file: file.to_owned(), line: 0, how: How::Line };
                let reason = format!("it is not YAML ({error}), so only its lines were scanned");
                found.skip(file, &reason, place);
            }
            return scan_lines(text, file, 0, Trust::Certain, found);
        }
    };
    Scan::new(&tree, file, Lines::From(0), 0, found).run("");
    if text.contains("{{") {
        // A template may be valid YAML by accident, with a different meaning.
        scan_lines(text, file, 0, Trust::Certain, found);
    }
}

/// Whether a text has any of the words by which an image is recognised, or escapes that may hide one:
/// most manifests have none, and are not parsed. Caches hold answers: another rule needs another
/// number in the stat cache's magic.
fn may_name_images(text: &str) -> bool {
    const WORDS: [&str; 5] = ["epository", "REPOSITORY", "newName", "args", "command"];
    let bytes = text.as_bytes();
    // Finds `image` in any case, by its letter that is rarest in prose.
    let is_image = |at: &usize| {
        let word = at.checked_sub(3).and_then(|start| bytes.get(start..at + 2));
        word.is_some_and(|word| word.eq_ignore_ascii_case(b"image"))
    };
    let mut places = (0..bytes.len()).filter(|at| bytes[*at] | 0x20 == b'g');
    places.any(|at| is_image(&at))
        || bytes.contains(&b'\\')
        || WORDS.iter().any(|word| text.contains(word))
        || words(text).next().is_some()
}

/// Maps lines of a tree's text to lines of the file.
#[derive(Clone, Copy)]
enum Lines {
    /// The number of lines that precede the text.
    From(usize),
    /// Every line maps to this one.
    Always(usize),
}

impl Lines {
    fn of(self, line: usize) -> usize {
        match self {
            Self::From(before) => before + line,
            Self::Always(line) => line,
        }
    }
}

/// What stands above a node.
#[derive(Clone, Copy)]
struct Above<'t> {
    /// Key of the innermost member, or the name of its variable.
    key: &'t str,
    /// The innermost table with `hub` and `tag`.
    hub: Option<NodeId>,
}

struct Scan<'a> {
    tree: &'a Tree,
    file: &'a str,
    lines: Lines,
    nesting: usize,
    found: &'a mut Collector,
    /// Nodes whose text has already been examined.
    taken: HashSet<NodeId>,
}

impl<'a> Scan<'a> {
    fn new(
        tree: &'a Tree,
        file: &'a str,
        lines: Lines,
        nesting: usize,
        found: &'a mut Collector,
    ) -> Self {
        Self { tree, file, lines, nesting, found, taken: HashSet::new() }
    }

    /// Visits all documents, each node once regardless of the number of aliases. `key` is the name of the
    /// text that is scanned.
    fn run(mut self, key: &str) {
        let mut seen = HashSet::new();
        let above = Above { key, hub: None };
        let documents = self.tree.documents.iter().rev();
        let mut pending: Vec<(NodeId, Above<'_>)> = documents.map(|root| (*root, above)).collect();
        while let Some((id, above)) = pending.pop() {
            if !seen.insert(id) {
                continue;
            }
            match &self.tree.node(id).value {
                Value::Scalar { .. } => self.scalar(id, above.key),
                Value::Sequence(items) => {
                    pending.extend(items.iter().rev().map(|item| (*item, above)));
                }
                Value::Mapping(pairs) => {
                    let hub = if self.is_hub(id) { Some(id) } else { above.hub };
                    self.mapping(id, pairs, Above { hub, ..above });
                    let name = self.tree.get(id, "name").and_then(|name| self.tree.scalar(name));
                    for (key, value) in pairs.iter().rev() {
                        let key = match (self.tree.scalar(*key), name) {
                            // A variable or a parameter.
                            (Some("value"), Some(name)) => name,
                            (key, _) => key.unwrap_or_default(),
                        };
                        pending.push((*value, Above { key, hub }));
                    }
                }
            }
        }
    }

    fn place(&self, id: NodeId, how: How) -> Place {
        Place { file: self.file.to_owned(), line: self.lines.of(self.tree.node(id).line), how }
    }

    /// Examines the text of a scalar, once.
    fn take(&mut self, id: NodeId, trust: Trust, how: How) {
        if let Some(text) = self.tree.text(id)
            && self.taken.insert(id)
        {
            self.found.text(text, trust, self.place(id, how));
        }
    }

    fn mapping(&mut self, mapping: NodeId, pairs: &[(NodeId, NodeId)], above: Above<'_>) {
        for (name, value) in pairs {
            let Some(key) = self.tree.scalar(*name) else {
                continue;
            };
            match key {
                _ if CONTAINERS.contains(&key) => self.containers(*value),
                "volumes" => self.volumes(*value),
                "args" | "command" => self.arguments(*value),
                "env" => self.variables(*value),
                _ => {}
            }
        }
        self.parts(mapping, above.key);
        let scalar = |id: &NodeId| self.tree.scalar(*id);
        let settings: Vec<(&str, &str, NodeId)> = pairs
            .iter()
            .filter_map(|(name, value)| Some((scalar(name)?, scalar(value)?, *value)))
            .collect();
        self.pairs(&settings, How::Field);
        let is_container = OF_CONTAINER.iter().any(|key| self.tree.get(mapping, key).is_some());
        let trust = if is_container { Trust::Certain } else { Trust::Likely };
        for (name, value) in pairs {
            let Some(key) = self.tree.scalar(*name) else {
                continue;
            };
            if key == "image" {
                if let Some(full) = self.below_hub(above.hub, *value)
                    && !is_container
                    && self.taken.insert(*value)
                {
                    self.found.text(&full, Trust::Likely, self.place(*value, How::Field));
                }
                self.take(*value, trust, How::Field);
                self.schema_default(*value);
            } else if is_image_field(key) {
                self.take(*value, Trust::Likely, How::Field);
                self.schema_default(*value);
            } else if is_image_variable(key) {
                self.take(*value, Trust::Likely, How::Environment);
            }
        }
    }

    fn containers(&mut self, list: NodeId) {
        for container in self.tree.items(list) {
            if let Some(image) = self.tree.get(*container, "image") {
                self.take(image, Trust::Certain, How::PodSpec);
            }
        }
    }

    /// Volumes with an image as their source (`volumes[].image.reference`).
    fn volumes(&mut self, list: NodeId) {
        for volume in self.tree.items(list) {
            let source = self.tree.get(*volume, "image");
            if let Some(reference) = source.and_then(|source| self.tree.get(source, "reference")) {
                self.take(reference, Trust::Certain, How::PodSpec);
            }
        }
    }

    fn variables(&mut self, list: NodeId) {
        let mut settings = Vec::new();
        for variable in self.tree.items(list) {
            let name = self.tree.get(*variable, "name");
            let value = self.tree.get(*variable, "value");
            let (Some(name), Some(value)) = (name.and_then(|n| self.tree.scalar(n)), value) else {
                continue;
            };
            if is_image_variable(name) {
                self.take(value, Trust::Likely, How::Environment);
            }
            settings.extend(self.tree.scalar(value).map(|text| (name, text, value)));
        }
        self.pairs(&settings, How::Environment);
    }

    /// `--some-image=REF`, `--some-image REF` as two arguments, and whatever flag has what is surely an image.
    fn arguments(&mut self, list: NodeId) {
        let mut flag_before = None;
        let mut settings = Vec::new();
        for argument in self.tree.items(list) {
            let before = flag_before.take();
            let Some(text) = self.tree.text(*argument) else {
                continue;
            };
            let Some(flag) = text.strip_prefix('-') else {
                let is_image = |flag| is_image_flag(flag) || is_surely_image(text);
                if before.is_some_and(is_image) {
                    self.take(*argument, Trust::Certain, How::Argument);
                }
                continue;
            };
            let Some((name, value)) = flag.split_once('=') else {
                flag_before = Some(flag);
                continue;
            };
            if is_image_flag(name) || is_surely_image(value) {
                let place = self.place(*argument, How::Argument);
                self.taken.insert(*argument);
                self.found.text(value, Trust::Certain, place);
            }
            settings.push((name, value, *argument));
        }
        self.pairs(&settings, How::Argument);
    }

    /// Default value of a field in the schema of a custom resource.
    fn schema_default(&mut self, field: NodeId) {
        let kind = self.tree.get(field, "type");
        if kind.and_then(|kind| self.tree.scalar(kind)) == Some("string")
            && let Some(default) = self.tree.get(field, "default")
        {
            self.take(default, Trust::Likely, How::Field);
        }
    }

    /// A multi-line string may be a manifest itself (ConfigMaps, annotations); otherwise, its words count.
    fn scalar(&mut self, id: NodeId, key: &str) {
        let node = self.tree.node(id);
        let Value::Scalar { text, literal, .. } = &node.value else {
            return;
        };
        if self.taken.contains(&id) {
            return;
        }
        let line = self.lines.of(node.line);
        let is_json = text.starts_with('{') && text.contains(':');
        if !(text.contains('\n') || is_json) {
            return self.words(text, key, Lines::Always(line));
        }
        // The span of a block starts on its first line that is not blank.
        let blank = text.bytes().take_while(|byte| *byte == b'\n').count();
        let before = line.saturating_sub(1 + blank);
        let lines = match (literal, self.lines) {
            (true, Lines::From(_)) => Lines::From(before),
            _ => Lines::Always(line),
        };
        let inner = (self.nesting < MAX_NESTING).then(|| Tree::parse(text).ok());
        match inner.flatten().filter(Tree::has_collections) {
            Some(tree) => Scan::new(&tree, self.file, lines, self.nesting + 1, self.found).run(key),
            None => {
                scan_lines(text, self.file, before, Trust::Likely, self.found);
                self.words(text, key, lines);
            }
        }
    }

    /// Embeds what is surely an image if a name says that it is one, and lists it otherwise. `key` is the name
    /// of the text, to which `lines` belongs.
    fn words(&mut self, text: &str, key: &str, lines: Lines) {
        if key == "description" {
            return;
        }
        let is_named = names_image(key);
        for word in words(text) {
            let (file, line) = (self.file.to_owned(), lines.of(word.line + 1));
            if is_named || word.is_named {
                self.found.text(word.text, Trust::Likely, Place { file, line, how: How::Line });
            } else {
                self.found.doubt(word.text, UNNAMED, Place { file, line, how: How::Line });
            }
        }
    }
}

/// `sidecarImage`, `init-image`, `image_name`, `operator.imageRef`: other fields that hold images.
fn is_image_field(key: &str) -> bool {
    let mut lower = key.to_ascii_lowercase();
    lower.retain(|c| !matches!(c, '_' | '-' | '.'));
    let is_word = key.bytes().any(|b| b.is_ascii_lowercase());
    let ends = ["image", "imagename", "imageref", "imagereference"];
    is_word && ends.iter().any(|end| lower.ends_with(end))
}

/// `RELATED_IMAGE_X`, `OPERATOR_IMAGE`, `POSTGRES_IMAGE_NAME`.
fn is_image_variable(name: &str) -> bool {
    name.starts_with("RELATED_IMAGE_")
        || name == "IMAGE"
        || ["_IMAGE", "_IMAGE_NAME", "_IMAGE_REF"].iter().any(|end| name.ends_with(end))
}

/// Returns whether the flag, given without its first dash, names an image.
fn is_image_flag(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with("image")
}

/// Marks a line that names an image.
const MARK: &str = "image:";

/// Adds what follows the first `image:` of each line that is not a comment. `before` is the number
/// of lines of the file before `text`.
fn scan_lines(text: &str, file: &str, before: usize, trust: Trust, found: &mut Collector) {
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('#') {
            continue;
        }
        let Some((_, rest)) = line.split_once(MARK) else {
            continue;
        };
        let value = without_comment(rest.trim());
        let value = value.trim_matches(['"', '\'']).trim();
        let place = Place { file: file.to_owned(), line: before + number + 1, how: How::Line };
        found.text(value, trust, place);
    }
}

/// Removes a YAML comment.
fn without_comment(text: &str) -> &str {
    match text.find(" #") {
        Some(at) => text[..at].trim_end(),
        None => text,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod line_tests {
    use super::*;

    #[test]
    fn texts_without_any_of_the_words_are_not_parsed() {
        for text in [
            "image",
            "a: {sideCarImAge: x}",
            "repository: a",
            "\"i\\x6dage\": x",
            "args: []",
            "x: q.io/a:1",
        ] {
            assert!(may_name_images(text), "{text}");
        }
        for text in ["", "g", "imag", "mage: x", "kind: ConfigMap\ndata: {going: gone}"] {
            assert!(!may_name_images(text), "{text}");
        }
    }

    #[test]
    fn lines_name_images_as_in_sealos() {
        let text = "# image: no\n  image: \"quay.io/a/b:1\" # why\n- image: nginx\nimage:\n\
                    image: {{ .x }}\n";
        let mut found = Collector::new("");
        scan_lines(text, "m.tmpl", 10, Trust::Certain, &mut found);
        let found = found.finish();
        let images: Vec<String> = found
            .images
            .iter()
            .map(|image| format!("{} {}", image.reference, image.places[0]))
            .collect();
        assert_eq!(images, ["docker.io/library/nginx:latest m.tmpl:13", "quay.io/a/b:1 m.tmpl:12"]);
        assert_eq!(found.skipped.len(), 1);
        assert_eq!(found.skipped[0].place.line, 15);
    }
}
