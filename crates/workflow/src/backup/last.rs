//! The record of the last backup of a cluster, in its state directory.

use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use imgctl_base::error::{Error, Result};
use imgctl_base::fs::atomic::write_private;
use imgctl_base::fs::directory::read_text;
use imgctl_base::image::Digest;

/// Below the state directory.
pub(super) const FILE: &str = "backup/last.json";
const LONGEST: u64 = 64 << 10;

/// A backup that is complete and verified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastBackup {
    /// When it began, RFC 3339.
    pub created: String,
    /// Where it is, with its tag.
    pub place: String,
    pub digest: Digest,
    pub bytes: u64,
    pub encrypted: bool,
}

impl LastBackup {
    /// Returns the last backup; `None` if there was none. `state` is the cluster's state directory.
    pub fn read(state: &Path) -> Result<Option<Self>> {
        let path = state.join(FILE);
        let Some(text) = read_text(&path, LONGEST)? else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|error| {
            Error::bad_content(format!("{} is malformed", path.display())).caused_by(error)
        })
    }

    /// Returns its age in words: `3 hours`.
    pub fn age(&self, now: Timestamp) -> String {
        let since = self.created.parse().map(|created: Timestamp| now.duration_since(created));
        match since.map_or(0, |since| since.as_secs().max(0)) {
            0..60 => "less than a minute".to_owned(),
            60..120 => "1 minute".to_owned(),
            seconds @ 120..7_200 => format!("{} minutes", seconds / 60),
            seconds @ 7_200..172_800 => format!("{} hours", seconds / 3_600),
            seconds => format!("{} days", seconds / 86_400),
        }
    }

    /// Records this one.
    pub fn write(&self, state: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| Error::failed("cannot record the backup").caused_by(error))?;
        write_private(&state.join(FILE), &text)
    }
}
