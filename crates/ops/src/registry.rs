//! The embedded registry of a running cluster: another password, garbage collection.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::operation::Operation;
use crate::session::Session;
use crate::work::{RunOptions, Work};
use imgctl_base::error::{Context as _, Error, Result};
use imgctl_base::image::{Digest, Platform};
use imgctl_base::secret::Secret;
use imgctl_model::context::RegistryAccess;
use imgctl_model::image::ClusterImage;
use imgctl_model::registry_access::PASSWORD_VARIABLE;
use imgctl_model::registry_password::PasswordChange;
use imgctl_model::{clusterfile, clusterfile::Clusterfile};
use imgctl_store::store::Store;
use imgctl_upgrade::upgrade_store::UpgradeStore;
use imgctl_workflow::pipeline::registry_password;
use imgctl_workflow::pipeline::{registry_gc, registry_gc::Kept};

/// Where the new password comes from.
pub enum NewPassword<'a> {
    Generated,
    /// Asked for only if no change is being finished.
    Given(&'a dyn Fn() -> Result<Secret>),
}

pub struct Password<'a> {
    pub cluster: String,
    pub new: NewPassword<'a>,
    pub options: RunOptions,
}

/// Changes the password of the cluster's registry, or finishes a change.
pub fn change_password(request: &Password<'_>, session: &Session<'_>) -> Result<()> {
    let work = Work::begin(Operation::RegistryPasswd, &request.cluster, &request.options, session)?;
    let mut desired = work.existing()?.clone();
    let former = access(work.recorded(desired.clone())?.context.registry, &request.cluster)?;
    let change = match PasswordChange::open(work.state.files())? {
        Some(open) => {
            session.front.note("an earlier change of the password is finished, with its password");
            open
        }
        None => match &request.new {
            NewPassword::Generated => PasswordChange::new(None)?,
            NewPassword::Given(_) if request.options.dry_run => PasswordChange::new(None)?,
            NewPassword::Given(ask) => PasswordChange::new(Some(ask()?))?,
        },
    };
    // Fails if the files of the image do not use the variable.
    let mut tried = desired.clone();
    let password = change.password.expose().to_owned();
    tried.cluster.environment.insert(PASSWORD_VARIABLE.to_owned(), password);
    tried.cluster.status.environment.remove(PASSWORD_VARIABLE);
    let new = access(work.recorded(tried)?.context.registry, &request.cluster)?;
    // From now on the password is imgctl's own, and no variable.
    let removed = [&mut desired.cluster.environment, &mut desired.cluster.status.environment]
        .map(|variables| variables.remove(PASSWORD_VARIABLE).is_some());
    if removed.contains(&true) {
        session.front.note(&format!(
            "the cluster's Clusterfile no longer sets {PASSWORD_VARIABLE}: remove it from your own, too"
        ));
    }
    let mut prepared = work.recorded(desired)?;
    prepared.use_registry(new);
    work.carry_out(&prepared, false, |execution, context| {
        registry_password::plan(execution, context, &former, &change)
    })
}

pub struct Collection {
    pub cluster: String,
    /// Number of earlier releases whose images stay.
    pub keep_releases: usize,
    /// Content younger than this stays.
    pub grace: Duration,
    pub options: RunOptions,
}

/// Removes what neither the cluster, its earlier releases nor a container needs from its registry.
pub fn collect(request: &Collection, session: &Session<'_>) -> Result<()> {
    let work = Work::begin(Operation::RegistryGc, &request.cluster, &request.options, session)?;
    let current = work.existing()?.clone();
    let mut releases = vec![current.clone()];
    releases.extend(earlier(&work, request.keep_releases)?);
    let store = session.store()?;
    let layers = |architecture: &str| -> Result<Vec<Digest>> {
        let platform = Platform::parse(&format!("linux/{architecture}"))?;
        let mut layers = BTreeSet::new();
        for release in &releases {
            for name in &release.cluster.images {
                let mounts = &release.cluster.status.mounts;
                let mount = mounts.iter().find(|mount| mount.image == *name);
                let recorded = mount.and_then(|mount| mount.digest.as_deref());
                let image = installed(store, &request.cluster, name, recorded, &platform)?;
                layers.extend(image.layers.into_iter().map(|layer| layer.descriptor.digest));
            }
        }
        Ok(layers.into_iter().collect())
    };
    let names: BTreeSet<&str> = releases
        .iter()
        .flat_map(|release| release.cluster.images.iter().map(String::as_str))
        .collect();
    let kept = Kept {
        layers: &layers,
        says: format!(
            "what {} brought stays, what containers run, and what others pushed",
            names.into_iter().collect::<Vec<_>>().join(", ")
        ),
        grace_seconds: request.grace.as_secs(),
    };
    let prepared = work.recorded(current)?;
    work.carry_out(&prepared, false, |execution, context| {
        registry_gc::plan(execution, context, &kept)
    })
}

/// Returns an image as the cluster has installed it, from the store.
fn installed(
    store: &Store,
    cluster: &str,
    name: &str,
    recorded: Option<&str>,
    platform: &Platform,
) -> Result<ClusterImage> {
    let hint = "pull it again (`imgctl pull`), or keep fewer releases (--keep-releases)";
    let what = || format!("which layers of {name} are in use is unknown: nothing was removed");
    let load = |platform| ClusterImage::load(store, cluster, name, platform);
    let image = load(Some(platform)).context(what).map_err(|error| error.hint(hint))?;
    let is_it = |image: &ClusterImage| recorded.is_none_or(|it| it == image.digest.to_string());
    if is_it(&image) || load(None).is_ok_and(|own| is_it(&own)) {
        return Ok(image);
    }
    Err(Error::check_failed(format!(
        "the store has another image {name} than the cluster: nothing was removed"
    ))
    .hint(hint))
}

/// Returns the cluster as it was before its last upgrades, at most `count`.
fn earlier(work: &Work<'_>, count: usize) -> Result<Vec<Clusterfile>> {
    let upgrades = UpgradeStore::of(work.state.files());
    let mut found: Vec<Clusterfile> = Vec::new();
    for ended in upgrades.history()?.iter().rev() {
        if found.len() == count {
            break;
        }
        let Some(text) = upgrades.former(&ended.id)? else { continue };
        let (release, _) = clusterfile::read_stored(&text, "the former Clusterfile")?;
        let images = |one: &Clusterfile| (one.cluster.images.clone(), digests(one));
        let known = found.iter().chain(work.current.as_ref());
        if !known.map(images).any(|one| one == images(&release)) {
            found.push(release);
        }
    }
    Ok(found)
}

fn digests(of: &Clusterfile) -> Vec<Option<String>> {
    of.cluster.status.mounts.iter().map(|mount| mount.digest.clone()).collect()
}

fn access(found: Option<RegistryAccess>, cluster: &str) -> Result<RegistryAccess> {
    let access = found
        .ok_or_else(|| Error::usage(format!("cluster {cluster} has no registry of its own")))?;
    if access.needs_login() {
        return Ok(access);
    }
    Err(Error::usage(format!("the registry of cluster {cluster} requires no login"))
        .hint("set registryUsername and registryPassword when you create a cluster"))
}
