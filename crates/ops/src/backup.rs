//! Backing up a cluster at any time: request, place, keys, and the outcome.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, json};

use crate::front_end::{BackedUp, Logins, Outcome};
use crate::operation::Operation;
use crate::recipients::{read_key, recipients};
use crate::session::Session;
use crate::state_store::Unrecorded;
use crate::work::{RunOptions, Work, steps};
use imgctl_age::{Identities, Recipients};
use imgctl_base::error::{Error, Result};
use imgctl_base::secret::Secret;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_journal::event::NullListener;
use imgctl_journal::interrupt::Interrupt;
use imgctl_model::backup as content;
use imgctl_model::clusterfile::Clusterfile;
use imgctl_registry::Client;
use imgctl_registry::credentials::Login;
use imgctl_transfer::backup::place::{Access, Place, tag_of};
use imgctl_workflow::backup::{
    plan,
    plan::{Backup, clear_staging},
};
use imgctl_workflow::backup::{schedule, schedule::Schedule};

#[derive(Clone, Debug)]
pub struct BackupRequest {
    pub cluster: String,
    /// `oci:DIR[:TAG]`, `docker://REPOSITORY[:TAG]` or `DIR`; `None`: in the state directory.
    pub to: Option<String>,
    /// Recipients (`age1…`), and files of recipients; none: those of the cluster's state, if it is
    /// encrypted.
    pub encrypt_to: Vec<String>,
    /// File with the passphrase to encrypt with.
    pub passphrase_file: Option<PathBuf>,
    /// Number of backups that stay.
    pub keep: Option<usize>,
    /// Have a control plane do it at these times (`OnCalendar=` of systemd), instead of now.
    pub schedule: Option<String>,
    /// Remove what `schedule` has installed.
    pub unschedule: bool,
    /// Whether the registry's certificate is verified, if the user has said so.
    pub tls_verify: Option<bool>,
    pub options: RunOptions,
}

/// Makes a backup of a cluster.
pub fn backup(request: &BackupRequest, session: &Session<'_>) -> Result<()> {
    if request.keep == Some(0) {
        return Err(Error::usage("--keep 0 would remove the backup that was just made")
            .hint("keep at least one"));
    }
    let named = encrypted_to(request)?;
    let to = request.to.as_deref().map(Place::parse).transpose()?;
    let work = Work::begin(Operation::Backup, &request.cluster, &request.options, session)?;
    let stored = work.existing()?.clone();
    if !stored.exists() {
        return Err(Error::usage(format!("cluster {} was never completed", request.cluster))
            .hint("run the command that creates it again; then it can be backed up"));
    }
    let state = work.state.directory().to_owned();
    if request.unschedule {
        let prepared = work.recorded(stored)?;
        return work.carry_out(&prepared, false, schedule::remove);
    }
    // For a schedule, the directory is on a host.
    let is_relative = matches!(&to, Some(Place::Directory { path, .. }) if path.is_relative());
    let place = match to {
        Some(to) => to.absolute()?,
        None => Place::Directory { path: state.join("backup/oci"), tag: None },
    };
    // A copy in plain text would undo the encryption of the state.
    let recipients = match named {
        None => work.state.files().recipients()?,
        named => named,
    };
    if recipients.is_none() {
        session.front.note(
            "the backup is not encrypted: whoever can read it has all keys and secrets of the \
             cluster (--encrypt-to)",
        );
    }
    if let Some(calendar) = &request.schedule {
        if is_relative {
            return Err(Error::usage(format!(
                "--schedule needs an absolute path: {place} is a directory on the first control plane"
            )));
        }
        let schedule = scheduled(request, calendar, &place, recipients.as_ref(), &stored, session)?;
        let prepared = work.recorded(stored)?;
        return work.carry_out(&prepared, false, |execution, context| {
            schedule::install(execution, context, &schedule)
        });
    }
    place.check(recipients.is_some())?;
    let created = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let tag = place.tag().map_or_else(|| tag_of(&request.cluster, &created), str::to_owned);
    let prepared = work.recorded(stored.clone())?;
    if let Some(own) = stored.cluster.status.adopted.as_ref().filter(|_| work.has_no_image()) {
        session.front.note(&format!(
            "cluster {} has no rootfs image: to restore it, have one of {} {} ready \
             (`imgctl restore --image`)",
            request.cluster, own.runtime, own.version
        ));
    }
    let outcome = plan::Outcome::default();
    let shown = work.with_execution(&prepared, false, |execution| {
        let backup = Backup {
            created,
            tag: tag.clone(),
            recipients: recipients.clone(),
            keep: request.keep,
            staging: state.join("backup/staging"),
            clusterfile: content::clusterfile(&stored)?,
            controller: content::pack_controller(work.state.files())?,
            about: content::about(&prepared.context, execution.runtime.name(), ""),
            access: access(session)?,
            place: place.clone(),
        };
        let planned = plan::plan(execution, &prepared.context, &backup, &outcome)?;
        if request.options.dry_run {
            return Ok(Outcome::Steps { steps: steps(&planned)?, upgrade: None, refusal: None });
        }
        let none = Unrecorded;
        let ran = work.execute(&planned, &none, &Interrupt::default(), &[], &NullListener);
        if ran.is_err() {
            // An unencrypted copy must not be left behind.
            clear_staging(&backup.staging)?;
        }
        ran?;
        let packed = outcome.lock().ok().and_then(|packed| packed.clone());
        let packed = packed.ok_or_else(|| Error::failed("the backup was not packed"))?;
        Ok(Outcome::BackedUp(BackedUp {
            cluster: request.cluster.clone(),
            place: place.location(&tag)?.to_string(),
            digest: packed.root.digest.to_string(),
            bytes: packed.bytes,
            encrypted: recipients.is_some(),
        }))
    })?;
    session.front.show(&shown)
}

/// Returns what a control plane needs to make the backup alone.
fn scheduled(
    request: &BackupRequest,
    calendar: &str,
    place: &Place,
    recipients: Option<&Recipients>,
    stored: &Clusterfile,
    session: &Session<'_>,
) -> Result<Schedule> {
    if request.to.is_none() {
        return Err(Error::usage("--schedule needs a place").hint(
            "--to docker://REPOSITORY, or --to DIR, a directory on the first control plane",
        ));
    }
    let cluster = &request.cluster;
    let mut arguments: Vec<String> =
        ["backup", "--cluster", cluster, "--to", &place.to_string()].map(str::to_owned).into();
    let mut files = Vec::new();
    let mut add = |path: &str, content: Vec<u8>| {
        files.push(FileToWrite { path: path.to_owned(), mode: 0o600, content });
    };
    let mut with_file = |flag: &str, name: &str| {
        arguments.extend([flag.to_owned(), format!("{{}}/{name}")]);
    };
    if let Some(text) = recipients.and_then(Recipients::text) {
        add("recipients", text.into_bytes());
        with_file("--encrypt-to", "recipients");
    }
    if let Some(file) = &request.passphrase_file {
        add("passphrase", format!("{}\n", read_passphrase(file)?.expose()).into_bytes());
        with_file("--passphrase-file", "passphrase");
    }
    if let Place::Repository { reference } = place {
        let options = session.front.registry_options(Logins::OfUser)?;
        let registry = reference.registry().unwrap_or_default();
        let found = options.credentials.find(registry, reference.repository())?;
        if let Some(login) = found.map(|found| found.login) {
            add("auth.json", auth_file(registry, &login)?);
            with_file("--authfile", "auth.json");
        }
    }
    if let Some(keep) = request.keep {
        arguments.extend(["--keep".to_owned(), keep.to_string()]);
    }
    if let Some(verify) = request.tls_verify {
        arguments.push(format!("--tls-verify={verify}"));
    }
    let directory = format!("clusters/{cluster}");
    for (path, content) in content::controller_files(session.state(cluster)?.files())? {
        add(&format!("{directory}/{}", path.display()), content);
    }
    add(&format!("{directory}/Clusterfile"), content::clusterfile(stored)?.into_bytes());
    let private = match place {
        Place::Directory { path, .. } if recipients.is_none() => Some(path.clone()),
        _ => None,
    };
    Ok(Schedule { calendar: calendar.to_owned(), arguments, files, private })
}

/// Returns a credentials file with one login.
fn auth_file(registry: &str, login: &Login) -> Result<Vec<u8>> {
    let entry = match login {
        Login::Password { user, password } => {
            json!({"auth": STANDARD.encode(format!("{user}:{}", password.expose()))})
        }
        Login::Identity(token) => json!({"identitytoken": token.expose()}),
        Login::Bearer(token) => json!({"registrytoken": token.expose()}),
    };
    let mut auths = Map::new();
    auths.insert(registry.to_owned(), entry);
    serde_json::to_vec(&json!({ "auths": auths }))
        .map_err(|error| Error::failed("cannot write the credentials").caused_by(error))
}

/// Returns what reads and writes places.
pub(crate) fn access(session: &Session<'_>) -> Result<Access> {
    Ok(Access {
        store: session.store()?.clone(),
        client: Client::new(session.front.registry_options(Logins::OfUser)?)?,
    })
}

/// Returns those for whom a backup is encrypted; `None`: the request names nobody.
fn encrypted_to(request: &BackupRequest) -> Result<Option<Recipients>> {
    match &request.passphrase_file {
        Some(file) => read_passphrase(file).map(Recipients::passphrase).map(Some),
        None => recipients(&request.encrypt_to, "--encrypt-to"),
    }
}

/// Returns what decrypts a backup: the identities of a file, or a passphrase.
pub(crate) fn identities(identity: Option<&Path>, passphrase: Option<&Path>) -> Result<Identities> {
    match (identity, passphrase) {
        (Some(file), _) => Identities::parse(&read_key(file)?, &file.display().to_string()),
        (None, Some(file)) => read_passphrase(file).map(Identities::passphrase),
        (None, None) => Ok(Identities::default()),
    }
}

fn read_passphrase(file: &Path) -> Result<Secret> {
    let text = read_key(file)?;
    let line = text.expose().lines().next().unwrap_or_default();
    if line.is_empty() {
        return Err(Error::usage(format!("{} contains no passphrase", file.display()))
            .hint("write it into the first line"));
    }
    Ok(Secret::new(line))
}
