//! The command line as the front end of operations: their questions, events and outcomes at the
//! terminal.

use crate::cli::commands::inplace::view;
use crate::cli::context::Context;
use crate::cli::outcome_view;
use crate::cli::plan_view;
use crate::cli::signals;
use crate::cli::upgrade_view;
use crate::ui::events::JsonEvents;
use crate::ui::prompt;
use imgctl_base::error::Result;
use imgctl_base::progress::Reporter;
use imgctl_cluster::pipeline::event::{Listener, NullListener};
use imgctl_cluster::pipeline::interrupt::Interrupt;
use imgctl_ops::front_end::{Announcement, Consent, FrontEnd, InPlace, Outcome};

/// The user at the terminal, or the reader of the output.
pub(crate) struct Terminal<'a>(pub(crate) &'a Context);

impl FrontEnd for Terminal<'_> {
    fn note(&self, message: &str) {
        self.0.ui.note(message);
    }

    fn say(&self, message: &str) {
        self.0.ui.say(message);
    }

    fn reporter(&self) -> &dyn Reporter {
        self.0.ui.reporter()
    }

    fn listener(&self) -> Box<dyn Listener + '_> {
        if self.0.ui.is_json() {
            return Box::new(JsonEvents::default());
        }
        match self.0.ui.hosts_view() {
            Some(view) => Box::new(view),
            None => Box::new(NullListener),
        }
    }

    fn pass_interrupts(&self, interrupt: &Interrupt) -> Result<()> {
        signals::listen(interrupt)
    }

    fn announce(&self, plan: &Announcement<'_>) -> Result<()> {
        match plan {
            Announcement::Change(planned) => plan_view::summary(planned, self.0),
            // JSON output consists of the events alone.
            Announcement::Upgrade(_) if self.0.ui.is_json() => Ok(()),
            Announcement::Upgrade(document) => upgrade_view::show(document, self.0),
            Announcement::InPlace(plan) => view::plan(plan, self.0),
        }
    }

    fn confirm(&self, question: &str) -> Result<bool> {
        self.0.ui.confirm(question)
    }

    fn consent(&self) -> Consent {
        if self.0.settings.assume_yes {
            Consent::Given
        } else if self.0.ui.is_json() || !prompt::can_ask() {
            Consent::Nobody
        } else {
            Consent::Asked
        }
    }

    fn show(&self, outcome: &Outcome) -> Result<()> {
        outcome_view::show(outcome, self.0)
    }

    fn in_place(&self, progress: &InPlace<'_>) -> Result<()> {
        view::progress(progress, self.0)
    }
}
