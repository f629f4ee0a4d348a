//! Finds images in Kubernetes manifests by structure: containers anywhere, fields whose names
//! suggest an image, repository and tag pairs, variables, arguments, and manifests embedded in the
//! strings of other manifests.
//!
//! Text that does not parse as YAML is scanned line by line.

use std::collections::HashSet;

use crate::embed::found::{How, Place};
use crate::embed::search::collector::Collector;
use crate::embed::search::names::{self, Reading, Trust};
use crate::embed::search::yaml::{NodeId, Tree, Value};

/// Maximum nesting depth of manifests within the strings of manifests.
const MAX_NESTING: usize = 4;

/// Members of a pod spec that list containers.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

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
    Scan::new(&tree, file, Lines::From(0), 0, found).run();
    if text.contains("{{") {
        // A template may be valid YAML by accident, with a different meaning.
        scan_lines(text, file, 0, Trust::Certain, found);
    }
}

/// Whether a text has any of the words by which an image is recognised, or escapes that may hide one:
/// most manifests have none, and are not parsed. Caches hold answers: another rule needs another
/// number in the stat cache's magic.
fn may_name_images(text: &str) -> bool {
    const WORDS: [&str; 4] = ["repository", "newName", "args", "command"];
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

    /// Visits all documents, each node once regardless of the number of aliases.
    fn run(mut self) {
        let mut seen = HashSet::new();
        let documents = self.tree.documents.iter().rev();
        let mut pending: Vec<(NodeId, &str)> = documents.map(|root| (*root, "")).collect();
        while let Some((id, key)) = pending.pop() {
            if !seen.insert(id) {
                continue;
            }
            match &self.tree.node(id).value {
                Value::Scalar { .. } => self.scalar(id),
                Value::Sequence(items) => {
                    pending.extend(items.iter().rev().map(|item| (*item, key)));
                }
                Value::Mapping(pairs) => {
                    self.mapping(id, pairs, key);
                    for (name, value) in pairs.iter().rev() {
                        pending.push((*value, self.tree.scalar(*name).unwrap_or_default()));
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

    fn mapping(&mut self, mapping: NodeId, pairs: &[(NodeId, NodeId)], parent: &str) {
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
        self.parts(mapping, parent);
        for (name, value) in pairs {
            let Some(key) = self.tree.scalar(*name) else {
                continue;
            };
            if key == "image" {
                self.take(*value, Trust::Certain, How::Field);
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
        for variable in self.tree.items(list) {
            let name = self.tree.get(*variable, "name");
            let value = self.tree.get(*variable, "value");
            if let (Some(name), Some(value)) = (name.and_then(|n| self.tree.scalar(n)), value)
                && is_image_variable(name)
            {
                self.take(value, Trust::Likely, How::Environment);
            }
        }
    }

    /// `--some-image=REF`, and `--some-image REF` as two arguments.
    fn arguments(&mut self, list: NodeId) {
        let mut after_flag = false;
        for argument in self.tree.items(list) {
            let Some(text) = self.tree.text(*argument) else {
                after_flag = false;
                continue;
            };
            if after_flag && !text.starts_with('-') {
                after_flag = false;
                self.take(*argument, Trust::Certain, How::Argument);
                continue;
            }
            after_flag = false;
            let Some(flag) = text.strip_prefix('-') else {
                continue;
            };
            let place = self.place(*argument, How::Argument);
            match flag.split_once('=') {
                Some((name, value)) if is_image_flag(name) => {
                    self.taken.insert(*argument);
                    self.found.text(value, Trust::Certain, place);
                }
                Some((_, value)) if is_surely_image(value) => {
                    let reason = "the argument's name does not mark it as an image; pass --image \
                                  to add it";
                    self.found.skip(value, reason, place);
                }
                Some(_) => {}
                None => after_flag = is_image_flag(flag),
            }
        }
    }

    /// A name in parts: `repository` and `tag` (and `registry`, `digest`), as charts define them.
    fn parts(&mut self, mapping: NodeId, parent: &str) {
        let part = |keys: &[&str]| {
            keys.iter()
                .filter_map(|key| self.tree.get(mapping, key))
                .find(|id| self.tree.scalar(*id).is_some_and(|text| !text.is_empty()))
        };
        let text = |id: Option<NodeId>| id.and_then(|id| self.tree.scalar(id));
        let in_image = parent == "image" || is_image_field(parent);
        let renamed = part(&["newTag", "digest"]).is_some() && part(&["newName"]).is_some();
        let base = if renamed {
            part(&["newName"])
        } else if in_image {
            part(&["repository", "name"])
        } else {
            part(&["repository"]).or_else(|| part(&["image"]))
        };
        let Some((base, name)) = base.and_then(|id| Some((id, self.tree.text(id)?))) else {
            return;
        };
        let is_image_key = self.tree.get(mapping, "image") == Some(base);
        let is_complete = names::normalise(name).is_ok()
            && (name.contains('@') || name.rsplit('/').next().is_some_and(|n| n.contains(':')));
        let tag = text(part(&["tag", "newTag", "imageTag"])).filter(|tag| is_tag(tag));
        let digest = text(part(&["digest", "sha"])).filter(|digest| digest.contains("sha256:"));
        if self.taken.contains(&base) || is_complete || (tag.is_none() && digest.is_none()) {
            if in_image && !is_complete && !is_image_key && !self.taken.contains(&base) {
                let place = self.place(base, How::Field);
                self.found.skip(name, "it has no tag and no digest", place);
            }
            return;
        }
        let mut full = String::new();
        if let Some(registry) = text(part(&["registry", "hub"])) {
            full.push_str(registry.trim_end_matches('/'));
            full.push('/');
        }
        full.push_str(name);
        for (mark, value) in [(':', tag), ('@', digest)] {
            if let Some(value) = value {
                full.push(mark);
                full.push_str(value);
            }
        }
        // A pair that is not an image (a Git repository) is not reported.
        let reading = names::read(&full, Trust::Likely);
        if matches!(reading, Reading::Image(_)) || in_image || is_image_key {
            self.taken.insert(base);
            self.found.text(&full, Trust::Likely, self.place(base, How::Field));
        }
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

    /// A multi-line string may be a manifest itself (ConfigMaps, annotations).
    fn scalar(&mut self, id: NodeId) {
        let node = self.tree.node(id);
        let Value::Scalar { text, literal, .. } = &node.value else {
            return;
        };
        let is_json = text.starts_with('{') && text.contains(':');
        if !(text.contains('\n') || is_json) || self.taken.contains(&id) {
            return;
        }
        let line = self.lines.of(node.line);
        // The span of a block starts on its first line that is not blank.
        let blank = text.bytes().take_while(|byte| *byte == b'\n').count();
        let before = line.saturating_sub(1 + blank);
        let lines = match (literal, self.lines) {
            (true, Lines::From(_)) => Lines::From(before),
            _ => Lines::Always(line),
        };
        let inner = (self.nesting < MAX_NESTING).then(|| Tree::parse(text).ok());
        match inner.flatten() {
            Some(tree) => Scan::new(&tree, self.file, lines, self.nesting + 1, self.found).run(),
            None => scan_lines(text, self.file, before, Trust::Likely, self.found),
        }
    }
}

/// `sidecarImage`, `init-image`, `image_name`: other fields that hold images.
fn is_image_field(key: &str) -> bool {
    let lower = key.to_ascii_lowercase();
    let is_word = key.bytes().any(|b| b.is_ascii_lowercase());
    is_word
        && (lower.ends_with("image")
            || matches!(
                &*lower,
                "imagename" | "image_name" | "image-name" | "imageref" | "imagereference"
            ))
}

/// `RELATED_IMAGE_X`, `OPERATOR_IMAGE`.
fn is_image_variable(name: &str) -> bool {
    name.starts_with("RELATED_IMAGE_") || name == "IMAGE" || name.ends_with("_IMAGE")
}

/// Returns whether the flag, given without its first dash, names an image.
fn is_image_flag(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with("image")
}

/// A registry with a dot, a path, and a tag or digest.
fn is_surely_image(text: &str) -> bool {
    let first = text.split('/').next().unwrap_or_default();
    let last = text.rsplit('/').next().unwrap_or_default();
    first != last
        && first.contains('.')
        && last.contains([':', '@'])
        && names::normalise(text).is_ok()
}

fn is_tag(text: &str) -> bool {
    !text.is_empty() && names::normalise(&format!("x:{text}")).is_ok()
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
        for text in
            ["image", "a: {sideCarImAge: x}", "repository: a", "\"i\\x6dage\": x", "args: []"]
        {
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
