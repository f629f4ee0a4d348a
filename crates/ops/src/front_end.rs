//! What an operation asks of the program that started it, and what it tells that program.

use std::path::PathBuf;

use crate::operation::Operation;
use crate::rehearsal_record::Rehearsal;
use imgctl_base::{error::Result, progress::Reporter};
use imgctl_inplace::journal::{Event, Journal};
use imgctl_inplace::{engine, plan::Plan};
use imgctl_journal::{event::Listener, interrupt::Interrupt};
use imgctl_registry::{ClientOptions, credentials::Login};
use imgctl_store::store::Store;
use imgctl_upgrade::adopt::reading::Adoption;
use imgctl_upgrade::document::{Document, Finding};
use imgctl_upgrade::report::Report;
use imgctl_upgrade::window::{Moment, WindowState};
use imgctl_workflow::pipeline::check::Refusal;
use imgctl_workflow::pipeline::{change::Planned, executor::Summary, step::PlanView};

/// The program that started an operation.
pub trait FrontEnd {
    /// Tells the user something that is neither a result nor an error.
    fn note(&self, message: &str);

    /// Tells the user about an action that is complete.
    fn say(&self, message: &str);

    /// Returns the store, which is opened on first use.
    fn store(&self) -> Result<&Store>;

    /// Returns the options of a registry client. Called only if a registry is needed.
    fn registry_options(&self, logins: Logins) -> Result<ClientOptions>;

    /// Returns whether a policy decides which images may be used.
    fn has_policy(&self) -> bool {
        false
    }

    /// Returns the receiver of progress of transfers.
    fn reporter(&self) -> &dyn Reporter;

    /// Returns the receiver of events of a pipeline.
    fn listener(&self) -> Box<dyn Listener + '_>;

    /// Passes requests of the user to stop on to `interrupt`, from now on.
    fn pass_interrupts(&self, interrupt: &Interrupt) -> Result<()>;

    /// Shows a plan that is about to be carried out.
    fn announce(&self, plan: &Announcement<'_>) -> Result<()>;

    /// Returns whether the user agrees to `question`. Fails if nobody can answer and the user has not
    /// agreed in advance.
    fn confirm(&self, question: &str) -> Result<bool>;

    /// The same for a question that is not answered by an agreement in advance; `None` if nobody can
    /// answer it.
    fn confirm_here(&self, question: &str) -> Result<Option<bool>>;

    /// Returns the answer to `question`, which ends with what separates the two; `None` if nobody can answer.
    /// Nothing shows the answer to one about a secret.
    fn answer(&self, _question: &str, _is_secret: bool) -> Result<Option<String>> {
        Ok(None)
    }

    /// Returns whether somebody can answer questions.
    fn consent(&self) -> Consent;

    /// Shows the outcome of a part of an operation. An upgrade may have several parts, for example
    /// spare hosts that join after it; each is shown when it ends, since a later one may fail.
    fn show(&self, outcome: &Outcome) -> Result<()>;

    /// Shows the progress of a change of Pods in place.
    fn in_place(&self, progress: &InPlace<'_>) -> Result<()>;
}

pub enum Logins {
    /// All of the user's; a front end may ask for a password.
    OfUser,
    /// This one for every registry; without it, those in the user's files.
    Only(Option<Login>),
}

pub enum InPlace<'a> {
    /// A run begins; `cluster` is its own, unless it goes through a kubeconfig.
    Begun {
        cluster: &'a str,
        plan: &'a Plan,
        journal: &'a Journal,
    },
    Event(&'a Event),
    Ended {
        summary: &'a engine::Summary,
        journal: &'a Journal,
    },
}

/// Who answers questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// The user has agreed to everything in advance.
    Given,
    Asked,
    Nobody,
}

/// A plan that is about to be carried out.
pub enum Announcement<'a> {
    /// The adoption of a cluster.
    Adoption(&'a Adoption),
    /// A change that removes something from hosts.
    Change { operation: Operation, planned: &'a Planned },
    /// An upgrade or a rollback.
    Upgrade(&'a Document),
    /// A change of Pods in place.
    InPlace(&'a Plan),
    /// An upgrade or a rollback that goes on, because a window is open.
    Window { document: &'a Document, state: WindowState },
}

/// Outcome of a part of an operation.
pub enum Outcome {
    /// A dry run: the steps. With an upgrade, its plan, whose blockers are an error.
    Steps {
        steps: PlanView,
        upgrade: Option<Box<Document>>,
        /// Why the steps would fail: an error.
        refusal: Option<Refusal>,
    },
    /// The steps are done, or there was nothing to do.
    Changed {
        cluster: String,
        summary: Summary,
        now: Option<ClusterNow>,
    },
    TornDown {
        cluster: String,
    },
    /// What was read of a cluster to adopt. With errors among the findings, or for a cluster that is
    /// known already, this is all.
    Adoption {
        adoption: Box<Adoption>,
        /// The steps of a dry run.
        steps: Option<PlanView>,
    },
    BackedUp(BackedUp),
    /// A rehearsal has ended, well or not; its record is in this file.
    Rehearsed {
        rehearsal: Box<Rehearsal>,
        path: PathBuf,
    },
    /// A dry run of an upgrade or a rollback. Blockers of the plan are an error.
    UpgradePlan(Box<Document>),
    /// A dry run, while this upgrade is in progress.
    UpgradeInProgress(Box<Document>),
    UpToDate {
        cluster: String,
        image: String,
        findings: Vec<Finding>,
    },
    /// An upgrade or a rollback has stopped where a pause was requested.
    Paused(Box<Document>),
    /// An upgrade or a rollback waits until the next window opens.
    Waiting {
        document: Box<Document>,
        opens: Moment,
    },
    /// An upgrade or a rollback is complete.
    Upgraded(Box<Upgraded>),
    NothingToRollBack,
}

/// A cluster after an operation.
#[derive(Clone, Debug)]
pub struct ClusterNow {
    /// Of the rootfs image.
    pub version: Option<String>,
    pub hosts: usize,
    /// Path of the kubeconfig on this machine, if it has a readable one.
    pub kubeconfig: Option<PathBuf>,
}

/// A backup that is complete.
#[derive(Clone, Debug)]
pub struct BackedUp {
    pub cluster: String,
    /// Location, as `restore` takes it.
    pub place: String,
    pub digest: String,
    pub bytes: u64,
    pub encrypted: bool,
}

impl Outcome {
    /// Whether an upgrade or a rollback is complete.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Upgraded(_))
    }
}

pub struct Upgraded {
    pub document: Document,
    pub summary: Summary,
    /// The cluster afterwards, compared with the plan.
    pub report: Report,
    /// What happened to applications.
    pub notes: Vec<String>,
}
