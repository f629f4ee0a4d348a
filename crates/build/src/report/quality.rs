//! Findings as GitLab's Code Quality report: the part of Code Climate's format that GitLab reads.

use imgctl_kubefile::diagnostic::Severity;
use serde_json::{Value, json};

use crate::report::finding::Finding;
use imgctl_base::error::{Error, Result};
use imgctl_base::text::escape;

/// Writes the document.
pub fn code_quality(findings: &[Finding]) -> Result<String> {
    let issues: Vec<Value> = findings.iter().map(issue).collect();
    let mut text = serde_json::to_string_pretty(&issues)
        .map_err(|error| Error::failed("cannot write the Code Quality report").caused_by(error))?;
    text.push('\n');
    Ok(text)
}

fn issue(finding: &Finding) -> Value {
    let severity = match finding.severity {
        Severity::Error => "blocker",
        Severity::Warning => "minor",
    };
    let place = &finding.place;
    json!({
        "type": "issue",
        "description": escape(&place.message),
        "check_name": finding.rule,
        "fingerprint": finding.fingerprint,
        "severity": severity,
        "location": {
            "path": finding.path(),
            "lines": { "begin": place.line.max(1), "end": place.end_line.max(place.line).max(1) },
        },
    })
}
