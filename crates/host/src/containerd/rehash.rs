//! The hash that a kubelet compares, in containerd's records of containers: read, and brought to the
//! value that another kubelet computes.
//!
//! The CRI plugin reads its metadata when containerd starts: a change is seen after a restart of
//! containerd, under which shims and containers go on. Former values are in a file before the first
//! one is replaced. Each operation may be cut off anywhere and repeated.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::containerd::{Containerd, Metadata};
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};

/// Form of the CRI plugin's metadata that is known.
const VERSION: &str = "v1";
const TYPE: &str = "github.com/containerd/cri/pkg/store/container/Metadata";

/// What to do with the containers of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Change nothing.
    #[default]
    Look,
    /// Bring values from `from` to `to`.
    Write,
    /// Bring values back to those in the file of former values; containers that it does not name go
    /// from `from` to `to`.
    Back,
}

/// A request to read or change an annotation of containers in containerd's records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rehash {
    /// Socket of containerd.
    pub socket: String,
    /// The annotation that holds the hash.
    pub annotation: String,
    pub containers: Vec<Change>,
    /// File on the host that keeps former values, by container; empty for none.
    pub former: String,
    pub task: Task,
}

/// One container, and its hash before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub id: String,
    pub from: String,
    pub to: String,
}

/// The containers of a request afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rehashed {
    /// containerd's version.
    pub version: String,
    pub containers: Vec<Seen>,
}

/// A container as containerd has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The change that the container is to have.
    pub change: Change,
    /// The hash in containerd's record; `None` if there is no such container any more.
    pub stored: Option<String>,
    /// The hash that the CRI shows.
    pub shown: Option<String>,
    pub is_running: bool,
    /// When it was started, in nanoseconds since 1970.
    pub started: u64,
}

impl Seen {
    /// Whether the record is to be changed: its value is exactly the one that is expected.
    pub fn is_due(&self) -> bool {
        self.stored.as_ref() == Some(&self.change.from) && self.change.from != self.change.to
    }

    /// Whether the record has the new value.
    pub fn is_written(&self) -> bool {
        self.stored.as_ref() == Some(&self.change.to)
    }

    /// Whether containerd has to be restarted for the CRI to show the new value.
    pub fn is_hidden(&self) -> bool {
        self.is_written() && self.shown != self.stored
    }
}

/// Content of the file of former values, by container.
type Former = BTreeMap<String, Change>;

/// Serves a request on this host.
///
/// # Errors
/// For a containerd for which this has not been proved, before anything is changed; for records of
/// another form.
pub fn rehash(request: &Rehash) -> Result<Rehashed> {
    let containerd = Containerd::connect(&request.socket)?;
    let version = containerd.version()?;
    check_version(&version)?;
    let file = Path::new(&request.former);
    let former = match request.task {
        Task::Write | Task::Back if !request.former.is_empty() => read(file)?,
        _ => Former::new(),
    };
    let changes = changes(request, &former);
    let mut seen = changes
        .into_iter()
        .map(|change| look(&containerd, request, change))
        .collect::<Result<Vec<_>>>()?;
    if request.task == Task::Look {
        return Ok(Rehashed { version, containers: seen });
    }
    if request.task == Task::Write && !request.former.is_empty() {
        let due = seen.iter().filter(|one| one.is_due());
        let mut kept = former.clone();
        kept.extend(due.map(|one| (one.change.id.clone(), one.change.clone())));
        if kept != former {
            let text = serde_json::to_vec_pretty(&kept)
                .doing(|| "cannot write the former hashes".to_owned())?;
            atomic::write(file, &text, 0o600, Durability::Durable)?;
        }
    }
    for one in seen.iter_mut().filter(|one| one.is_due()) {
        write(&containerd, request, &one.change)?;
        *one = look(&containerd, request, one.change.clone())?;
        if !one.is_written() {
            return Err(Error::failed(format!(
                "containerd did not keep the new hash of container {}",
                one.change.id
            )));
        }
    }
    Ok(Rehashed { version, containers: seen })
}

/// Fails unless this has been proved for a release line of containerd.
pub fn check_version(version: &str) -> Result<()> {
    let mut numbers = version.trim_start_matches('v').split(['.', '~', '-', '+']);
    let mut next = || numbers.next().and_then(|word| word.parse::<u32>().ok());
    match (next(), next()) {
        (Some(1), Some(6 | 7)) | (Some(2), Some(_)) => Ok(()),
        _ => Err(Error::check_failed(format!(
            "the records of containerd {version} are not known: only those of 1.6, 1.7 and 2.x are"
        ))
        .hint("omit --keep-containers: the plan says which containers restart")),
    }
}

/// Returns what is to be done, container by container.
fn changes(request: &Rehash, former: &Former) -> Vec<Change> {
    if request.task != Task::Back {
        return request.containers.clone();
    }
    let back = former.values().map(|change| Change {
        id: change.id.clone(),
        from: change.to.clone(),
        to: change.from.clone(),
    });
    let others = request.containers.iter().filter(|change| !former.contains_key(&change.id));
    back.chain(others.cloned()).collect()
}

fn look(containerd: &Containerd, request: &Rehash, change: Change) -> Result<Seen> {
    let metadata = containerd.metadata(&change.id)?;
    let stored = match &metadata {
        Some(metadata) => annotation(metadata, &request.annotation)?,
        None => None,
    };
    let status = containerd.cri_status(&change.id)?.unwrap_or_default();
    let shown = status.annotation(&request.annotation).map(str::to_owned);
    Ok(Seen { change, stored, shown, is_running: status.is_running, started: status.started })
}

fn write(containerd: &Containerd, request: &Rehash, change: &Change) -> Result<()> {
    let Some(metadata) = containerd.metadata(&change.id)? else {
        return Err(Error::not_found(format!("container {} is gone", change.id)));
    };
    let value = rewritten(&metadata, &request.annotation, change)?;
    containerd.set_metadata(&change.id, &Metadata { value, ..metadata })
}

fn parsed(metadata: &Metadata) -> Result<Value> {
    let wrong = |why: String| {
        Error::bad_content(format!(
            "the CRI plugin's record of a container has another form: {why}"
        ))
        .hint("omit --keep-containers: the plan says which containers restart")
    };
    if metadata.type_url != TYPE {
        return Err(wrong(format!("its type is {}", metadata.type_url)));
    }
    let value: Value =
        serde_json::from_slice(&metadata.value).map_err(|error| wrong(error.to_string()))?;
    if value["Version"] != VERSION {
        return Err(wrong(format!("its version is {}", value["Version"])));
    }
    if !value["Metadata"]["Config"]["annotations"].is_object() {
        return Err(wrong("it has no annotations".to_owned()));
    }
    Ok(value)
}

/// Returns the value of an annotation in the CRI plugin's metadata.
fn annotation(metadata: &Metadata, name: &str) -> Result<Option<String>> {
    let value = parsed(metadata)?;
    Ok(value["Metadata"]["Config"]["annotations"][name].as_str().map(str::to_owned))
}

/// Returns the metadata with another value of one annotation, and nothing else changed.
fn rewritten(metadata: &Metadata, name: &str, change: &Change) -> Result<Vec<u8>> {
    let mut value = parsed(metadata)?;
    let slot = &mut value["Metadata"]["Config"]["annotations"][name];
    if *slot != change.from.as_str() {
        return Err(Error::busy(format!("container {} has changed meanwhile", change.id)));
    }
    *slot = Value::String(change.to.clone());
    serde_json::to_vec(&value).doing(|| "cannot write the record of a container".to_owned())
}

/// Returns the former values; none without a file.
fn read(file: &Path) -> Result<Former> {
    let bytes = match std::fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Former::new()),
        Err(error) => return Err(error).path("read", file),
    };
    serde_json::from_slice(&bytes)
        .doing(|| format!("{} is not a file of former hashes", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "io.kubernetes.container.hash";

    fn metadata(hash: &str) -> Metadata {
        let value = format!(
            r#"{{"Version":"v1","Metadata":{{"ID":"c1","Config":{{"command":["a\u003cb"],"annotations":{{"z":"1","{HASH}":"{hash}"}},"linux":{{"resources":{{"memory_limit_in_bytes":9007199254740993}}}}}},"ImageRef":"sha256:0"}}}}"#
        );
        Metadata { type_url: TYPE.to_owned(), value: value.into_bytes() }
    }

    fn change(from: &str, to: &str) -> Change {
        Change { id: "c1".into(), from: from.into(), to: to.into() }
    }

    #[test]
    fn one_annotation_changes_and_nothing_else() {
        let before = metadata("1a");
        let after = rewritten(&before, HASH, &change("1a", "2b")).unwrap();
        let after = Metadata { value: after, ..before.clone() };
        assert_eq!(annotation(&after, HASH).unwrap().as_deref(), Some("2b"));
        let read = |it: &Metadata| serde_json::from_slice::<Value>(&it.value).unwrap();
        assert_eq!(read(&after), read(&metadata("2b")));
        assert!(String::from_utf8_lossy(&after.value).contains("9007199254740993"));
        // Somebody else has changed it meanwhile.
        assert!(rewritten(&after, HASH, &change("1a", "2b")).is_err());
    }

    #[test]
    fn records_of_another_form_are_refused() {
        let good = metadata("1a");
        let other = Metadata { type_url: "x/y".into(), ..good.clone() };
        assert!(annotation(&other, HASH).unwrap_err().to_string().contains("x/y"));
        for (from, to) in [("\"v1\"", "\"v2\""), ("annotations", "notes"), ("{", "[")] {
            let value = String::from_utf8(good.value.clone()).unwrap().replacen(from, to, 1);
            let wrong = Metadata { value: value.into_bytes(), ..good.clone() };
            assert!(annotation(&wrong, HASH).is_err(), "{from}");
        }
    }

    #[test]
    fn only_known_releases_of_containerd_are_touched() {
        for good in ["1.6.20~ds1", "v1.7.27", "2.0.0", "v2.1.4-rc.1"] {
            check_version(good).unwrap();
        }
        for wrong in ["1.5.18", "1.8.0", "3.0.0", "", "v1", "cri-o 1.30"] {
            assert!(check_version(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_way_back_is_that_of_the_file() {
        let mut request = Rehash {
            containers: vec![change("2b", "9f"), Change { id: "c2".into(), ..change("5", "6") }],
            task: Task::Back,
            ..Rehash::default()
        };
        let former = Former::from([("c1".to_owned(), change("1a", "2b"))]);
        let expected = [change("2b", "1a"), Change { id: "c2".into(), ..change("5", "6") }];
        assert_eq!(changes(&request, &former), expected);
        request.task = Task::Write;
        assert_eq!(changes(&request, &former), request.containers);
    }
}
