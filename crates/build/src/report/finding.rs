//! Findings as CI systems show them: with the file's path in the repository and the line's text.

use std::collections::HashMap;
use std::path::Path;

use imgctl_base::place::Place;
use imgctl_kubefile::diagnostic::Severity;
use serde_json::{Value, json};

use crate::build::Checked;

/// The rule of findings that no lint rule reports: mistakes in the language, steps that fail.
pub(crate) const ERROR: &str = "KubefileError";

/// One finding.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The lint rule, or [`ERROR`].
    pub rule: &'static str,
    pub severity: Severity,
    /// `place.file` is relative to the repository if it is in it.
    pub place: Place,
    /// Stays the same while the finding does, also when lines are added above it.
    pub fingerprint: String,
}

impl Finding {
    /// Returns the file's path as text.
    pub fn path(&self) -> String {
        self.place.file.to_string_lossy().into_owned()
    }

    /// Returns the finding as one object of `build --check --json`.
    pub fn json(&self) -> Value {
        let Place { line, column, end_line, end_column, message, hint, .. } = &self.place;
        let rule = (self.rule != ERROR).then_some(self.rule);
        json!({
            "rule": rule, "severity": severity_name(self.severity), "message": message, "hint": hint,
            "file": self.path(), "line": line, "column": column, "endLine": end_line,
            "endColumn": end_column,
        })
    }
}

/// Returns the word for a severity.
pub fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

/// Returns the findings of a check; paths are relative to `repository` if they are in it.
pub fn findings_of_check(checked: &Checked, repository: &Path) -> Vec<Finding> {
    let path = checked.path.as_deref().unwrap_or(Path::new(&checked.name));
    let places = checked.findings.iter().map(|found| found.place(path, &checked.text));
    numbered(places, repository)
}

/// Returns the findings that an error names: its reasons, and what the checks found beside them.
pub fn findings_of_places<'a>(
    places: impl IntoIterator<Item = &'a Place>,
    repository: &Path,
) -> Vec<Finding> {
    let mut places: Vec<Place> = places.into_iter().cloned().collect();
    places.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
    numbered(places.into_iter(), repository)
}

fn numbered(places: impl Iterator<Item = Place>, repository: &Path) -> Vec<Finding> {
    let mut seen: HashMap<blake3::Hash, u32> = HashMap::new();
    let finding = |mut place: Place| {
        let rule = place.rule.unwrap_or(ERROR);
        let severity = if place.is_warning { Severity::Warning } else { Severity::Error };
        place.file = relative(&place.file, repository).into();
        let mut hasher = blake3::Hasher::new();
        for part in [&*place.file.to_string_lossy(), rule, &place.message, place.text.trim()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        // Equal lines with equal mistakes differ by their order only.
        let count = seen.entry(hasher.finalize()).or_default();
        hasher.update(&count.to_le_bytes());
        *count += 1;
        let fingerprint = hasher.finalize().to_hex()[..32].to_owned();
        Finding { rule, severity, place, fingerprint }
    };
    places.map(finding).collect()
}

/// Returns `path` relative to `repository`; unchanged if it lies elsewhere.
fn relative(path: &Path, repository: &Path) -> String {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    let inside = real(path).zip(real(repository)).and_then(|(path, repository)| {
        path.strip_prefix(repository).ok().map(|path| path.to_string_lossy().into_owned())
    });
    inside.filter(|path| !path.is_empty()).unwrap_or_else(|| path.to_string_lossy().into_owned())
}
