//! Beginning an upgrade: from images or a saved plan to the first run.

use std::path::PathBuf;

use crate::front_end::{Announcement, Outcome};
use crate::operation::Operation;
use crate::rehearsal_record;
use crate::session::Session;
use crate::upgrade::close::{check_blockers, closing};
use crate::upgrade::execute::{
    Carrying, PlanRequest, carry, check_fresh, check_start, pipeline_of, plan_of,
};
use crate::upgrade::finish::{finish, leave_out, pairs};
use crate::upgrade::images::{ClusterSnapshot, Start, UpgradeImage, is_of, know, sides};
use crate::upgrade::resume::{Continuing, resume_in};
use crate::upgrade::{choices::GivenChoices, lag};
use crate::work::{RunOptions, Work, declined, steps};
use imgctl_base::error::{Error, Result};
use imgctl_base::fs::output::{self, Durability};
use imgctl_model::image::ImageKind;
use imgctl_upgrade::document::{Choices, Direction, Document};
use imgctl_upgrade::{plan::Planned, upgrade_store::UpgradeStore};
use imgctl_workflow::pipeline::{ownership, step::Step};

/// An upgrade to begin, or to continue if the same one is open.
#[derive(Clone, Debug)]
pub struct UpgradeRequest {
    pub cluster: String,
    /// Target rootfs image (one for each version on the way), and images to install with it.
    pub images: Vec<String>,
    /// A plan to carry out if it is still valid.
    pub saved: Option<Document>,
    /// Name of the upgrade; by default, the version and part of the plan's digest.
    pub id: Option<String>,
    pub choices: GivenChoices,
    /// What to show instead of carrying it out.
    pub preview: Option<Preview>,
    pub options: RunOptions,
}

/// What to show instead of carrying it out.
#[derive(Clone, Debug)]
pub struct Preview {
    /// File to write the plan to.
    pub save: Option<PathBuf>,
    /// Whether to show every step, not only the plan.
    pub steps: bool,
}

pub fn upgrade(request: &UpgradeRequest, session: &Session<'_>) -> Result<()> {
    let name = &request.cluster;
    let options = RunOptions { dry_run: request.preview.is_some(), ..request.options.clone() };
    let work = Work::begin_asking_hosts(Operation::Upgrade, name, &options, session)?;
    work.existing()?;
    if let (Some(saved), Some(id)) = (&request.saved, &request.id)
        && *id != saved.id
    {
        return Err(Error::usage(format!(
            "--id cannot be combined with --plan-file: the plan is called {}",
            saved.id
        )));
    }
    let images = session.loaded(&request.images)?;
    if let Some(open) = UpgradeStore::of(work.state.files()).open()? {
        return meets_open(open, request, &images, work);
    }
    let (hops, install) = split(&images, request.saved.as_ref(), &work)?;
    let beginning = Beginning {
        choices: match &request.saved {
            Some(saved) => saved.choices.clone(),
            None => request.choices.decide(hops.len()),
        },
        hops,
        install,
        saved: request.saved.clone(),
        id: request.id.clone(),
        preview: request.preview.clone(),
    };
    let went = begin(&work, &beginning);
    drop(work);
    finish(went, name, &beginning.choices, &request.options, session).map(|_| ())
}

/// Upgrades the cluster to rootfs images that its hosts do not have, as [`upgrade`] does by default.
/// Returns `true` when the cluster has reached its target.
pub(crate) fn begin_newer(work: &Work<'_>, images: &[String]) -> Result<bool> {
    let (hops, install) = split(images, None, work)?;
    let beginning = Beginning {
        choices: GivenChoices::default().decide(hops.len()),
        hops,
        install,
        saved: None,
        id: None,
        preview: work.options.dry_run.then_some(Preview { save: None, steps: true }),
    };
    begin(work, &beginning)
}

struct Beginning {
    hops: Vec<UpgradeImage>,
    install: Vec<String>,
    choices: Choices,
    saved: Option<Document>,
    id: Option<String>,
    preview: Option<Preview>,
}

enum Begun {
    /// The attempt has ended; `true` if the cluster has reached its target.
    Ended(bool),
    /// The cluster has reached its target except for these hosts, which have this image.
    Behind(UpgradeImage, Vec<String>),
}

/// Plans, asks for confirmation and carries out; returns `true` when the cluster has reached its
/// target.
fn begin(work: &Work<'_>, beginning: &Beginning) -> Result<bool> {
    let (start, only) = match &beginning.saved {
        Some(saved) if is_for_lagging(saved, work)? => {
            let moved = saved.hosts.iter().filter(|(_, host)| host.skipped.is_none());
            let ids = moved.map(|(id, _)| id.clone()).collect();
            (Start::Image(UpgradeImage::of(&saved.from)), ids)
        }
        _ => (Start::Recorded, Vec::new()),
    };
    match begin_from(work, beginning, &start, only)? {
        Begun::Ended(is_done) => Ok(is_done),
        Begun::Behind(side, hosts) => {
            let begun = begin_from(work, beginning, &Start::Image(side), hosts)?;
            Ok(matches!(begun, Begun::Ended(true)))
        }
    }
}

/// Same as `begin`, for a given start and, if `only` is not empty, only for those hosts.
fn begin_from(
    work: &Work<'_>,
    beginning: &Beginning,
    start: &Start,
    only: Vec<String>,
) -> Result<Begun> {
    let pairs = pairs(&beginning.choices)?;
    let front = &work.session.front;
    let name = work.state.name();
    let sides = sides(work, work.existing()?, start, &beginning.hops, &beginning.install)?;
    if beginning.saved.is_some() {
        let hops = beginning.hops.iter().map(|hop| hop.name.clone());
        work.session.admit(&hops.collect::<Vec<_>>())?;
    }
    ownership::refuse_unfinished_reset(&sides.from.context)?;
    work.with_execution(sides.target(), false, |execution| {
        let known = know(&sides, work, execution)?;
        let upgrades = &known.upgrades;
        let request = PlanRequest {
            choices: beginning.choices.clone(),
            direction: Direction::Forward,
            id: beginning.id.clone(),
            only,
            to_snapshot: false,
            settings: Vec::new(),
        };
        let (planned, observation) = plan_of(&known, &request)?;
        if let (None, Planned::Nothing(_)) = (&beginning.saved, &planned)
            && let Some((side, hosts)) = lag::behind(&known, &observation)?
        {
            return Ok(Begun::Behind(side, hosts));
        }
        let document = match (beginning.saved.clone(), planned) {
            (Some(saved), _) => {
                if matches!(start, Start::Recorded) {
                    check_start(&saved, work)?;
                }
                check_fresh(&saved, &observation)?;
                if let Some(rehearsed) = rehearsal_record::of_upgrade(&work.state, &saved)? {
                    front.note(&rehearsed);
                }
                saved
            }
            (None, Planned::Nothing(findings)) => {
                let rootfs = sides.target().context.rootfs();
                front.show(&Outcome::UpToDate {
                    cluster: name.to_owned(),
                    image: rootfs.map_or_else(String::new, |image| image.name.clone()),
                    findings,
                })?;
                return Ok(Begun::Ended(beginning.preview.is_none()));
            }
            (None, Planned::Upgrade(mut document)) => {
                leave_out(&mut document, &pairs)?;
                document.notes.extend(rehearsal_record::of_upgrade(&work.state, &document)?);
                *document
            }
        };
        if let Some(wanted) = &beginning.preview {
            front.show(&preview(document, wanted, &known)?)?;
            return Ok(Begun::Ended(false));
        }
        check_blockers(&document)?;
        front.announce(&Announcement::Upgrade(&document))?;
        if !front.confirm("Start the upgrade?")? {
            return Err(declined());
        }
        upgrades.fresh(&document.id)?;
        upgrades.keep_before(&document.id, &observation)?;
        let former = work.existing()?.without_secrets().write()?;
        upgrades.keep_former(&document.id, &former)?;
        let carrying = Carrying::new(&document, closing(upgrades, &document)?);
        let outcome = carry(&known, &carrying)?;
        front.show(&outcome)?;
        Ok(Begun::Ended(outcome.is_done()))
    })
}

/// Handles an open upgrade: resumes it for the same request and refuses any other one.
fn meets_open(
    open: Document,
    request: &UpgradeRequest,
    images: &[String],
    work: Work<'_>,
) -> Result<()> {
    let session = work.session;
    let is_same = match &request.saved {
        Some(saved) => saved.id == open.id && saved.digest()? == open.digest()?,
        None => {
            open.direction == Direction::Forward
                && open.hops.iter().all(|hop| images.contains(&hop.image))
        }
    };
    if let Some(preview) = &request.preview {
        if let Some(path) = &preview.save {
            let what = format!(
                "cannot save a plan to {}: the upgrade {} is in progress",
                path.display(),
                open.id
            );
            return Err(Error::busy(what).hint("run `imgctl upgrade status` to see its progress"));
        }
        return session.front.show(&Outcome::UpgradeInProgress(Box::new(open)));
    }
    if !is_same {
        let what = format!(
            "the upgrade {} from {} to {} is in progress",
            open.id,
            open.from.version,
            open.target().version
        );
        return Err(Error::busy(what).hint(format!(
            "run `imgctl upgrade resume --cluster {0}` to continue it, `imgctl rollback --cluster {0}` to roll \
             back, or `imgctl upgrade abort --cluster {0}` to abort it",
            open.cluster
        )));
    }
    let differ = request.choices.against(&open.choices, open.hops.len())?;
    if !differ.is_empty() {
        let what =
            format!("the upgrade {} was started with a different {}", open.id, differ.join(", "));
        return Err(Error::busy(what).hint(
            "run `imgctl upgrade resume` to continue as planned; or run `imgctl rollback` or \
               `imgctl upgrade abort`, then start again",
        ));
    }
    let pause_after = request.choices.choices.pause_after;
    let went = resume_in(&work, &open, &Continuing { pause_after, ..Continuing::default() });
    drop(work);
    finish(went, &request.cluster, &open.choices, &request.options, session).map(|_| ())
}

/// Splits the images into hops (rootfs images) and images to install.
fn split(
    images: &[String],
    saved: Option<&Document>,
    work: &Work<'_>,
) -> Result<(Vec<UpgradeImage>, Vec<String>)> {
    let read = work.images(images)?;
    work.session.admit(images)?;
    let (rootfs, others): (Vec<_>, Vec<_>) =
        read.iter().partition(|image| image.kind == ImageKind::Rootfs);
    let install = others.iter().map(|image| image.name.clone()).collect();
    if let Some(saved) = saved {
        if let Some(image) = rootfs.first() {
            return Err(Error::usage(format!(
                "{} cannot be combined with --plan-file: the plan already names the target",
                image.name
            ))
            .hint("with --plan-file, name only applications and patches to install"));
        }
        return Ok((saved.hops.iter().map(UpgradeImage::of).collect(), install));
    }
    if rootfs.is_empty() {
        return Err(Error::usage(format!(
            "none of the images is a rootfs image to upgrade to: {}",
            images.join(", ")
        ))
        .hint("install applications and patches with `imgctl run`"));
    }
    Ok((rootfs.into_iter().map(UpgradeImage::now).collect(), install))
}

/// Whether a saved plan brings hosts to the image that the cluster is recorded with: they lagged
/// behind when it was made.
fn is_for_lagging(saved: &Document, work: &Work<'_>) -> Result<bool> {
    let (from, target) = (UpgradeImage::of(&saved.from), UpgradeImage::of(saved.target()));
    let current = work.existing()?;
    Ok(saved.direction == Direction::Forward
        && !saved.is_reconfiguration()
        && is_of(&target, current)?
        && !is_of(&from, current)?)
}

/// Saves the plan if the request wants it, and returns what to show.
pub(crate) fn preview(
    document: Document,
    wanted: &Preview,
    known: &ClusterSnapshot<'_>,
) -> Result<Outcome> {
    if let Some(path) = &wanted.save {
        let text = document.to_json()?;
        output::write(path, text.as_bytes(), 0o600, Durability::Atomic)?;
    }
    if !wanted.steps {
        return Ok(Outcome::UpgradePlan(Box::new(document)));
    }
    let commit = Step::local("close", "close the upgrade", "", |_| Ok(()));
    let planned = pipeline_of(known, &Carrying::new(&document, commit))?;
    Ok(Outcome::Steps { steps: steps(&planned)?, upgrade: Some(Box::new(document)), refusal: None })
}
