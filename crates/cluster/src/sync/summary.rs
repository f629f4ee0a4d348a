//! Output of a sync plan for people and for programs.

use std::fmt;

use serde::ser::{Serialize, SerializeSeq, SerializeStruct, Serializer};

use crate::sync::plan::{HostPlan, SyncPlan, TreeChange};

/// Number of characters of a tree's ID that are shown.
const SHORT: usize = 12;

/// Change to one tree, for people and programs.
#[derive(serde::Serialize)]
struct Change<'a> {
    tree: &'a str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    former: Option<&'a str>,
    registry_layers: usize,
}

impl<'a> From<&'a TreeChange> for Change<'a> {
    fn from(change: &'a TreeChange) -> Self {
        Self {
            tree: &change.tree.name,
            id: &change.id,
            former: change.former.as_deref(),
            registry_layers: change.apply.len(),
        }
    }
}

impl SyncPlan {
    /// Returns the work on one host, one line each; empty if there is none.
    pub fn says(&self, host: &HostPlan) -> Vec<String> {
        let mut lines = Vec::new();
        let count = host.missing(self).count();
        if count > 0 {
            let layers = if count == 1 { "layer" } else { "layers" };
            lines.push(format!("send {count} {layers}, {}", amount(host.bytes(self))));
        }
        for change in &host.changes {
            let short = |id: &str| id.get(..SHORT).unwrap_or(id).to_owned();
            if change.makes() {
                let instead = change
                    .former
                    .as_deref()
                    .map(|id| format!(" instead of {}", short(id)))
                    .unwrap_or_default();
                let verb = match (change.is_made, change.stage) {
                    (true, _) => "use",
                    (false, true) => "stage",
                    (false, false) => "make",
                };
                lines.push(format!("{verb} {} {}{instead}", change.tree.name, short(&change.id)));
            }
            match change.apply.len() {
                0 => {}
                1 => lines.push("add 1 layer to the registry".to_owned()),
                count => lines.push(format!("add {count} layers to the registry")),
            }
        }
        lines
    }
}

/// Prints one line per host: `10.0.0.11: send 3 layers, 120 MB; make rootfs 0a1b…`.
impl fmt::Display for SyncPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for host in &self.hosts {
            let says = self.says(host);
            let says = if says.is_empty() { "nothing to do".to_owned() } else { says.join("; ") };
            writeln!(f, "{}: {says}", host.host.id())?;
        }
        for (host, error) in &self.failed {
            writeln!(f, "{}: {error}", host.id())?;
        }
        Ok(())
    }
}

impl Serialize for SyncPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut plan = serializer.serialize_struct("SyncPlan", 3)?;
        plan.serialize_field("bytes", &self.bytes())?;
        plan.serialize_field("hosts", &Hosts(self))?;
        plan.serialize_field("failed", &Failed(self))?;
        plan.end()
    }
}

struct Hosts<'a>(&'a SyncPlan);

impl Serialize for Hosts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Line<'a> {
            host: String,
            layers: usize,
            bytes: u64,
            changes: Vec<Change<'a>>,
        }
        let mut list = serializer.serialize_seq(Some(self.0.hosts.len()))?;
        for host in &self.0.hosts {
            list.serialize_element(&Line {
                host: host.host.id(),
                layers: host.missing(self.0).count(),
                bytes: host.bytes(self.0),
                changes: host.changes.iter().map(Change::from).collect(),
            })?;
        }
        list.end()
    }
}

struct Failed<'a>(&'a SyncPlan);

impl Serialize for Failed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Line {
            host: String,
            error: String,
        }
        let mut list = serializer.serialize_seq(Some(self.0.failed.len()))?;
        for (host, error) in &self.0.failed {
            list.serialize_element(&Line { host: host.id(), error: error.to_string() })?;
        }
        list.end()
    }
}

/// Formats a size for people: `12.3 MB`.
pub(super) fn amount(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
    let value = bytes as f64;
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{:.1} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}
