//! The steps of a backup: a control plane saves its part, the controller packs it with its own, puts
//! it where backups are kept, verifies it there, and removes what is no longer needed.
//!
//! A backup that was killed is not continued, because its data would be of an earlier moment than the
//! command: the next one begins anew and removes what is left.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value};

use crate::backup::last::LastBackup;
use crate::pipeline::change::Planned;
use crate::pipeline::execution_context::ExecutionContext;
use crate::pipeline::files_of_hosts::{HostFile, PART};
use crate::pipeline::look::{self, Looks};
use crate::pipeline::ownership;
use crate::pipeline::step::{Phase, Plan, Step};
use imgctl_age::Recipients;
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::atomic;
use imgctl_base::image::Digest;
use imgctl_base::progress::Silent;
use imgctl_base::quote::quote as quoted;
use imgctl_base::workers::lock;
use imgctl_model::backup::{CLUSTERFILE, CONTROLLER};
use imgctl_model::context::{ClusterContext, Host};
use imgctl_runtime::Action;
use imgctl_runtime::action::{Line, Site};
use imgctl_runtime::upgrade::{Move, Place, Renewal};
use imgctl_transfer::backup::place::{self, Access};
use imgctl_transfer::backup::{Packed, Packer, is_name};

/// Beginning of the names of directories on hosts.
const SAVED: &str = "saved-";
/// Archive of the directories that a control plane saved.
const FILES: &str = "files.tar";

/// A backup to make.
#[derive(Clone)]
pub struct Backup {
    /// When it begins, RFC 3339 in UTC.
    pub created: String,
    pub place: place::Place,
    pub tag: String,
    pub recipients: Option<Recipients>,
    /// Number of backups of this cluster that stay in the place; `None`: all.
    pub keep: Option<usize>,
    /// Directory on this machine in which it is packed.
    pub staging: PathBuf,
    pub clusterfile: String,
    pub controller: Vec<u8>,
    pub about: Map<String, Value>,
    pub access: Access,
}

/// What a backup leaves, once it is complete.
pub type Outcome = Arc<Mutex<Option<Packed>>>;

/// Returns a control plane that answers, the first one if it does.
pub fn source<'a>(context: &'a ClusterContext, looks: &Looks) -> Result<&'a Host> {
    let answers = |host: &&Host| matches!(looks.get(&host.id()), Some(Ok(_)));
    context.control_planes().find(answers).ok_or_else(|| {
        let why: Vec<String> = looks
            .iter()
            .filter_map(|(host, look)| {
                look.as_ref().err().map(|error| format!("  {host}: {error}"))
            })
            .collect();
        Error::network(format!(
            "no control plane of cluster {} answers, and one has to save the data:",
            context.name
        ))
        .lines(why)
    })
}

/// Plans the backup. `outcome` gets the packed backup when the plan is executed.
pub fn plan(
    execution: &ExecutionContext<'_>,
    context: &ClusterContext,
    backup: &Backup,
    outcome: &Outcome,
) -> Result<Planned> {
    let upgrader = execution.runtime.upgrader()?;
    let mut looks = look::look(context.first(), &execution.pool, 1);
    if looks.values().all(Result::is_err) {
        let others = context.control_planes().skip(1);
        looks.extend(look::look(others, &execution.pool, execution.parallel));
    }
    let context = Arc::new(look::informed(context, &looks));
    let host = source(&context, &looks)?;
    ownership::refuse_taken(&context, &looks)?;
    let time: String = backup.created.chars().filter(char::is_ascii_alphanumeric).collect();
    let id = format!("{SAVED}{time}");
    let step = Move {
        from: &context,
        to: &context,
        host,
        tree: context.paths.rootfs(),
        place: Place::First,
        id: &id,
        renewal: Renewal::default(),
        external_etcd: false,
        keeps_corefile: false,
        back: false,
    };
    let folder = step.backup();
    // Never resumed: see the head of this file.
    let mut plan = Plan::new("backup", &context.name, &format!("{id} {}", std::process::id()));
    plan.aside = true;
    let mut backup = backup.clone();
    backup.about.insert("source".to_owned(), host.id().into());
    let backup = Arc::new(backup);

    let mut actions = vec![sweep(&context, &folder)];
    actions.extend(upgrader.save(&step)?);
    actions.push(pack(&backup, &folder, outcome));
    actions.push(clear(&folder));
    plan.push(Phase::on("save", host, actions));
    plan.push(Phase::local("keep", keep(&backup, outcome, &context)));
    Ok(Planned::new(plan, context, execution))
}

/// Removes what backups that were killed have left on the host.
fn sweep(context: &ClusterContext, folder: &str) -> Action {
    let above = format!("{}/backup", context.paths.root());
    let line = format!(
        "mkdir -p -m 0700 {above}\n\
         find {above} -mindepth 1 -maxdepth 1 -type d -name '{SAVED}*' ! -path {folder} -exec rm -rf {{}} +",
        above = quoted(&above),
        folder = quoted(folder),
    );
    Action::command("sweep", Line::repeatable(line))
        .saying(format!("remove what an interrupted backup left in {above}"))
}

/// The files hold all secrets of the cluster.
fn clear(folder: &str) -> Action {
    let folder = folder.to_owned();
    Action::new("clear", format!("remove {folder}"), move |site| site.remove(&folder))
}

/// Packs the files of the host and of the controller into the staging directory.
fn pack(backup: &Arc<Backup>, folder: &str, outcome: &Outcome) -> Action {
    let how = match backup.recipients {
        Some(_) => "compress and encrypt",
        None => "compress",
    };
    let says = format!("{how} the files of {folder}, the Clusterfile and the cluster's keys");
    let (backup, folder, outcome) = (Arc::clone(backup), folder.to_owned(), Arc::clone(outcome));
    Action::new("pack", says, move |site| {
        let files = seal(site, &folder)?;
        let staging = &backup.staging;
        atomic::remove_tree(staging)?;
        let cluster = &site.context.name;
        let recipients = backup.recipients.clone();
        let mut packer = Packer::begin(staging, cluster, &backup.created, recipients)?;
        packer.add(CLUSTERFILE, &mut backup.clusterfile.as_bytes())?;
        packer.add(CONTROLLER, &mut backup.controller.as_slice())?;
        let agent = site.pool.agent(site.host)?;
        for file in files {
            let path = format!("{folder}/{}", file.name);
            site.say(&format!("{path}: {} bytes", file.size));
            let mut content = HostFile::open(&agent, &path, file.size);
            // The host computes the digest while the file is on its way: both read it from memory.
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| match &file.digest {
                    Some(noted) => Ok(noted.clone()),
                    None => agent.file_digest(&path),
                });
                let died = || Err(Error::failed(format!("cannot compute the digest of {path}")));
                let expected = Box::new(|| asked.join().unwrap_or_else(|_| died()));
                packer.add_frames(&file.name, &mut content, PART, Some(expected))
            })?;
        }
        let packed = packer.finish(backup.about.clone(), &backup.tag)?;
        *lock(&outcome) = Some(packed);
        Ok(())
    })
}

struct Saved {
    name: String,
    size: u64,
    /// As the save left it beside the file.
    digest: Option<Digest>,
}

/// Makes one archive of the directories below `folder`, and returns all files, with the digests that the
/// save left beside them (`snapshot.sha256`): a snapshot is large, and what arrives is compared with it.
fn seal(site: &Site<'_>, folder: &str) -> Result<Vec<Saved>> {
    let line = Line { quiet: true, ..seal_line(folder) };
    let told = site.run_on(site.agent, &line, "-seal")?;
    let malformed = |line: &str| {
        Error::bad_content(format!(
            "{}: `{}` is no file that a backup can contain",
            site.agent.host(),
            line.escape_debug()
        ))
        .hint("names consist of letters, digits, `.`, `_` and `-`")
    };
    let mut saved = Vec::new();
    for line in told.lines().filter(|line| !line.is_empty()) {
        let parts: Vec<&str> = line.splitn(3, ' ').collect();
        let [sum, size, name] = parts[..] else { return Err(malformed(line)) };
        if !is_name(name) {
            return Err(malformed(name));
        }
        saved.push(Saved {
            name: name.to_owned(),
            size: size.parse().map_err(|_| malformed(line))?,
            digest: match sum {
                "-" => None,
                sum => Some(Digest::parse(&format!("sha256:{sum}"))?),
            },
        });
    }
    if saved.is_empty() {
        return Err(Error::failed(format!("{}: nothing was saved in {folder}", site.agent.host()))
            .hint("the script `backup` of the image leaves files in $IMGCTL_BACKUP"));
    }
    Ok(saved)
}

/// Returns the line that prints the noted digest or `-`, size and name of each file.
fn seal_line(folder: &str) -> Line {
    Line::script(&[include_str!("scripts/seal.sh")])
        .with([("IMGCTL_BACKUP", folder), ("IMGCTL_FILES", FILES)])
}

/// Puts the backup into its place, verifies it there, and removes older ones.
fn keep(backup: &Arc<Backup>, outcome: &Outcome, context: &ClusterContext) -> Vec<Step> {
    let to = backup.place.location(&backup.tag).map(|to| to.to_string()).unwrap_or_default();
    let mut steps = Vec::new();
    let (own, packed) = (Arc::clone(backup), Arc::clone(outcome));
    let says = format!("copy the backup to {to}, and verify it there");
    steps.push(Step::local("copy", says, &to, move |_| {
        own.place.put(&made(&packed)?, &own.staging, &own.tag, &own.access, &Silent)
    }));
    let (own, packed, state) =
        (Arc::clone(backup), Arc::clone(outcome), context.state.directory().to_owned());
    let place = to.clone();
    steps.push(Step::local("record", "record the backup as the last one", &to, move |_| {
        let packed = made(&packed)?;
        LastBackup {
            created: own.created.clone(),
            place: place.clone(),
            digest: packed.root.digest.clone(),
            bytes: packed.bytes,
            encrypted: own.recipients.is_some(),
        }
        .write(&state)
    }));
    if let Some(keep) = backup.keep {
        let (own, cluster) = (Arc::clone(backup), context.name.clone());
        let says =
            format!("remove the backups of this cluster in {} but the newest {keep}", own.place);
        steps.push(Step::local("trim", says, &to, move |step| {
            for gone in own.place.trim(&cluster, keep, &own.access)? {
                (step.note)(&format!("{} of {} is removed", gone.tag, gone.created));
            }
            Ok(())
        }));
    }
    let staging = backup.staging.clone();
    let says = format!("remove {}", staging.display());
    steps.push(Step::local("clear", says, &to, move |_| clear_staging(&staging)));
    steps
}

/// Removes what a backup leaves on this machine; not encrypted, it contains all secrets.
pub fn clear_staging(staging: &Path) -> Result<()> {
    atomic::remove_tree(staging)
}

fn made(outcome: &Outcome) -> Result<Packed> {
    lock(outcome).clone().ok_or_else(|| Error::failed("the backup was not packed in this run"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_that_lies_beside_a_file_is_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        let seal = || {
            let line = seal_line(folder.to_str().unwrap());
            let mut bash = std::process::Command::new("bash");
            bash.args(["-ec", &line.line]).envs(line.environment.to_map());
            let ran = bash.output().unwrap();
            assert!(ran.status.success(), "{ran:?}");
            let told = String::from_utf8(ran.stdout).unwrap();
            let sums = told.lines().map(|line| {
                let mut words = line.split(' ');
                let (sum, name) = (words.next().unwrap().to_owned(), words.nth(1).unwrap());
                (name.to_owned(), sum)
            });
            sums.collect::<std::collections::BTreeMap<String, String>>()
        };
        let noted = "a".repeat(64);
        write("snapshot.db", "data");
        write("other.db", "data");
        write("snapshot.sha256", &format!("{noted}  snapshot.db\n"));
        write("other.sha256", &format!("{noted}  another\n"));
        std::fs::create_dir(folder.join("files")).unwrap();
        let sums = seal();
        assert_eq!((&sums["snapshot.db"], &sums["other.db"]), (&noted, &"-".to_owned()));
        assert!(sums.contains_key("files.tar") && sums.contains_key("snapshot.sha256"));
        write("snapshot.sha256", "nonsense  snapshot.db\n");
        assert_eq!(seal()["snapshot.db"], "-");
        write("snapshot.sha256", &format!("{noted}  snapshot.db\n"));
        // One that is older than its file is of another one.
        let old = std::time::SystemTime::UNIX_EPOCH;
        let list = std::fs::File::options().write(true).open(folder.join("snapshot.sha256"));
        list.unwrap().set_modified(old).unwrap();
        assert_eq!(seal()["snapshot.db"], "-");
    }
}
