//! A Clusterfile with other settings for hosts that stay: the same engine as an upgrade, with the same
//! image before and after.

use crate::front_end::Announcement;
use crate::upgrade::begin::{Preview, preview};
use crate::upgrade::close::{check_blockers, closing};
use crate::upgrade::execute::{Carrying, PlanRequest, carry, plan_of};
use crate::upgrade::images::{Start, UpgradeImage, know, rootfs_of, sides, with_settings};
use crate::work::{Prepared, Work, declined};
use imgctl_base::error::{Error, Result};
use imgctl_model::clusterfile::Clusterfile;
use imgctl_model::context::Host;
use imgctl_model::image::ImageKind;
use imgctl_runtime::setting::{Component, Setting};
use imgctl_runtime::{choice, setting_files};
use imgctl_upgrade::document::{Choices, Direction, KubeletSwap, OnFailure};
use imgctl_upgrade::{plan::Planned, upgrade_store::UpgradeStore};

/// Settings that differ between the recorded cluster and a Clusterfile.
pub(crate) struct Reconfiguration {
    old: Clusterfile,
    new: Clusterfile,
    settings: Vec<Setting>,
    /// The file asks for more than other settings.
    pub(crate) has_more: bool,
}

/// How a change of settings goes on among hosts.
#[derive(Clone, Debug, Default)]
pub struct SettingsChoices {
    /// Checks whose errors are accepted.
    pub skip_checks: Vec<String>,
    /// A failed host keeps the new settings.
    pub stops: bool,
    /// Windows in which hosts may begin to change.
    pub windows: Vec<String>,
}

impl SettingsChoices {
    fn decide(&self) -> Choices {
        Choices {
            kubelet_swap: KubeletSwap::InPlace,
            on_failure: if self.stops { OnFailure::Stop } else { OnFailure::Rollback },
            skip_checks: self.skip_checks.clone(),
            windows: self.windows.clone(),
            ..Choices::default()
        }
    }
}

/// Returns what has to change on hosts of the cluster before the rest of `prepared` can be done;
/// `None` if no program that runs reads a changed setting.
///
/// # Errors
/// If a setting cannot change while the cluster runs, or other changes have to come first.
pub(crate) fn differs(work: &Work<'_>, prepared: &Prepared) -> Result<Option<Reconfiguration>> {
    let Some(current) = work.current.as_ref().filter(|current| current.exists()) else {
        return Ok(None);
    };
    let change = &prepared.change;
    if !change.documents && !change.environment && !change.configs {
        return Ok(None);
    }
    let new = with_settings(current, &prepared.desired);
    let (from, to) = (work.recorded(current.clone())?, work.recorded(new.clone())?);
    let files = work.session.image_files()?;
    let runtime = choice::of(&to.context, &files, work.options.validity)?;
    let Ok(upgrader) = runtime.upgrader() else {
        return Ok(None);
    };
    runtime.check(&to.context)?;
    let mut settings = upgrader.settings(&from.context, &to.context)?;
    if runtime.name() == "kubeadm" && to.context.has_rootfs_image() {
        let hosts: Vec<String> = to.context.hosts.iter().map(Host::id).collect();
        settings.extend(setting_files::of_configs(&current.configs, &new.configs, &hosts)?);
    }
    if settings.iter().all(|setting| setting.component == Component::Later) {
        return Ok(None);
    }
    refuse_two_in_one(work, current, prepared)?;
    let has_more = new.cluster != prepared.desired.cluster;
    Ok(Some(Reconfiguration { old: current.clone(), new, settings, has_more }))
}

/// Fails if the rootfs image changes or hosts leave in the same run: which of them goes first is for
/// the operator to say, and the way back of both could not be told apart.
fn refuse_two_in_one(work: &Work<'_>, current: &Clusterfile, prepared: &Prepared) -> Result<()> {
    let rootfs = rootfs_of(current)?;
    let mounts = &current.cluster.status.mounts;
    let recorded = mounts.iter().find(|mount| mount.image == rootfs);
    let recorded = recorded.and_then(|mount| mount.digest.clone());
    let images = prepared.context.images.iter().filter(|image| image.kind == ImageKind::Rootfs);
    let is_other = |digest: &str| recorded.as_ref().is_some_and(|known| known != digest);
    for image in images {
        if image.has_files() && (image.name != rootfs || is_other(&image.digest.to_string())) {
            return Err(Error::usage(
                "the rootfs image and settings of the cluster cannot change in one run",
            )
            .hint(format!(
                "upgrade first: `imgctl upgrade {}`, then `imgctl apply` this file",
                image.name
            )));
        }
    }
    if let Some(host) = prepared.change.remove.first() {
        return Err(Error::usage(format!(
            "{} leaves the cluster, and settings of the other hosts change",
            host.id()
        ))
        .hint(format!("`imgctl delete` it from cluster {} first", work.state.name())));
    }
    Ok(())
}

/// Plans, asks for confirmation and carries out; returns `true` when every host has the settings.
pub(crate) fn begin(
    work: &Work<'_>,
    change: &Reconfiguration,
    given: &SettingsChoices,
) -> Result<bool> {
    let (name, front) = (work.state.name(), &work.session.front);
    let upgrades = UpgradeStore::of(work.state.files());
    let image = UpgradeImage { name: rootfs_of(&change.old)?, digest: None };
    let start = Start::Settings(Box::new(change.old.clone()));
    let sides = sides(work, &change.new, &start, &[image], &[])?;
    work.with_execution(sides.target(), false, |execution| {
        let known = know(&sides, work, execution)?;
        let request = PlanRequest {
            choices: given.decide(),
            direction: Direction::Forward,
            id: None,
            only: Vec::new(),
            to_snapshot: false,
            settings: change.settings.clone(),
        };
        let (planned, observation) = plan_of(&known, &request)?;
        let Planned::Upgrade(mut document) = planned else {
            return Err(Error::failed(format!("no host of cluster {name} gets other settings")));
        };
        // The same settings may change more than once, each time with a backup of its own.
        document.id = format!("{}-{}", document.id, upgrades.history()?.len() + 1);
        if work.options.dry_run {
            let wanted = Preview { save: None, steps: true };
            front.show(&preview(*document, &wanted, &known)?)?;
            return Ok(false);
        }
        check_blockers(&document)?;
        front.announce(&Announcement::Upgrade(&document))?;
        if !front.confirm("Change the settings?")? {
            return Err(declined());
        }
        upgrades.fresh(&document.id)?;
        upgrades.keep_before(&document.id, &observation)?;
        let former = work.existing()?.without_secrets().write()?;
        upgrades.keep_former(&document.id, &former)?;
        upgrades.keep_settings(&document.id, &change.old.write()?, &change.new.write()?)?;
        let carrying = Carrying::new(&document, closing(&upgrades, &document)?);
        let outcome = carry(&known, &carrying)?;
        front.show(&outcome)?;
        Ok(outcome.is_done())
    })
}

/// Returns the choices of a change, for what follows a failure.
pub(crate) fn choices(given: &SettingsChoices) -> Choices {
    given.decide()
}
