//! Plans of installations and removals: the phases that the executor runs, prints and resumes.

use std::sync::Arc;

use crate::apps::here::Here;
use crate::apps::objects::{removals, whole_removal};
use crate::apps::prune::Prune;
use crate::apps::record::{Installed, State};
use crate::apps::steps;
use crate::apps::target::{Target, embedded_bytes, may_embed};
use crate::pipeline::image_commands::{Replacement, UNINSTALL_SCRIPTS, uninstall_label};
use crate::pipeline::step::{Lane, Order, Phase, Plan, Step};
use imgctl_base::error::{Error, Result};
use imgctl_kube::objects::ObjectName;
use imgctl_model::image::{ClusterImage, ImageKind};
use imgctl_runtime::Action;

/// Fails unless all images can be installed on a cluster whose hosts are not known.
pub fn check(images: &[ClusterImage]) -> Result<()> {
    match images.iter().find(|image| image.kind != ImageKind::Application) {
        None => Ok(()),
        Some(image) => Err(Error::usage(format!(
            "{} is a {} image: it makes clusters, and this one exists",
            image.name,
            image.kind.as_str()
        ))
        .hint("only applications can be installed through a kubeconfig; a cluster of hosts is made with `imgctl run IMAGE --masters …`")),
    }
}

/// One application to install.
pub struct Item {
    pub image: ClusterImage,
    /// The record of it after the installation.
    pub installed: Installed,
    /// The record as it is.
    pub known: Option<Installed>,
}

impl Item {
    /// Reports whether this very image is installed completely.
    pub fn is_installed(&self) -> bool {
        self.known.as_ref().is_some_and(|known| {
            known.state == State::Installed && known.digest == self.installed.digest
        })
    }

    /// Returns the objects that a removal of former ones may concern.
    fn candidates(&self, runs: bool) -> Vec<ObjectName> {
        let Some(known) = &self.known else { return Vec::new() };
        if runs { known.all_objects() } else { known.former.clone() }
    }
}

/// Plans installations; with `force`, also of images that are installed already.
pub fn install(
    target: &Arc<Target>,
    items: &[Item],
    replacement: Option<&Replacement>,
    prune: Prune,
    force: bool,
) -> Result<Plan> {
    let intent: Vec<String> =
        items.iter().map(|item| format!("{}@{}", item.image.name, item.image.digest)).collect();
    let registry = target.registry.as_ref().map(super::target::Registry::name);
    let intent = format!("{} {registry:?} {} {prune:?}", intent.join(","), target.rewrite);
    let mut plan = Plan::new("run", &target.context.name, &intent);
    let host = Here::host();
    let (mut files, mut push, mut clean) = (Vec::new(), Vec::new(), Vec::new());
    let mut applications = Vec::new();
    for item in items {
        let image = &item.image;
        let runs = force || !item.is_installed();
        if runs {
            files.push(Step::from(steps::files(target, image)?).always());
            let embeds = may_embed(image);
            match &registry {
                Some(registry) => {
                    let mut step = Step::from(steps::push(target, image, registry));
                    step.bytes = embedded_bytes(image);
                    push.push(step);
                }
                None if embeds && embedded_bytes(image) > 0 => plan.notes.push(format!(
                    "the images embedded in {} are not used: Nodes pull what its manifests name; \
                     pass --registry to push them",
                    image.name
                )),
                None => {}
            }
            let before = item.known.as_ref().map(|known| &known.digest);
            clean.push(steps::clean(target, image, before.filter(|one| **one != image.digest)));
        } else {
            plan.notes.push(format!(
                "{} is installed already; pass --force to run its commands again",
                image.name
            ));
        }
        let candidates = item.candidates(runs);
        let prunes = prune != Prune::Nothing && !candidates.is_empty();
        if prunes {
            plan.destroys = true;
            let next = runs.then_some(item.image.name.as_str());
            let application = &item.installed.application;
            plan.notes.push(removals(application, &candidates, prune, next));
        }
        applications.push((item, runs, prunes));
    }
    plan.push(Phase::new("sync", Order::Serial).lane(Lane::on(&host, files)));
    plan.push(Phase::new("push", Order::Serial).lane(Lane::on(&host, push)));
    for (item, runs, prunes) in applications {
        if runs {
            let replaced = replacement
                .filter(|replacement| replacement.image == item.image.name)
                .map(|replacement| replacement.command.as_slice());
            let commands = steps::commands(target, &item.image, replaced);
            plan.push(Phase::on("prepare", &host, [steps::begin(target, &item.installed)]));
            plan.push(Phase::on(steps::COMMANDS, &host, commands));
            let record = steps::record(target, &item.image, &item.installed);
            plan.push(Phase::on(steps::RECORD, &host, [record]));
        }
        if prunes {
            let step = steps::prune(target, &item.installed.application, prune);
            plan.push(Phase::on("prune", &host, [step]));
        }
    }
    plan.push(Phase::on("clean", &host, clean));
    Ok(plan)
}

/// How an application is removed.
pub enum Way {
    /// By the image's own command.
    Command(Box<ClusterImage>),
    /// Its recorded objects are removed; says why.
    Objects(&'static str),
}

/// Plans the removal of an application.
pub fn uninstall(
    target: &Arc<Target>,
    installed: &Installed,
    way: &Way,
    prune: Prune,
) -> Result<Plan> {
    let intent = format!("{}@{}", installed.application, installed.digest);
    let mut plan = Plan::new("uninstall", &target.context.name, &intent);
    plan.destroys = true;
    let host = Here::host();
    match way {
        Way::Command(image) => {
            let command = uninstall_label(image).map_or_else(
                || format!("the first of {} that it has", UNINSTALL_SCRIPTS.join(", ")),
                |label| format!("`{label}`"),
            );
            plan.notes.push(format!(
                "{}@{} has a command for its removal, which runs on this machine: {command}",
                installed.application, image.digest
            ));
            let files = Step::from(steps::files(target, image)?).always();
            plan.push(Phase::new("sync", Order::Serial).lane(Lane::on(&host, [files])));
            plan.push(Phase::on("uninstall", &host, [steps::uninstall(target, image)]));
        }
        Way::Objects(why) => {
            plan.notes.push(format!("{}: {why}", installed.image));
            plan.notes.extend(whole_removal(installed, prune));
            plan.push(Phase::on("uninstall", &host, [steps::remove(target, installed, prune)]));
        }
    }
    let forget: Vec<Action> = vec![steps::forget(target, installed)];
    plan.push(Phase::on(steps::RECORD, &host, forget));
    plan.push(Phase::on("clean", &host, [steps::remove_files(target, installed)]));
    Ok(plan)
}
