//! The command line as the front end of operations: their sessions, and their questions, events and
//! outcomes at the terminal.

use crate::cli::commands::inplace::view;
use crate::cli::{
    cluster_options, context::Context, outcome_view, registry_options::RegistryArgs,
    ssh_options::SshArgs, upgrade_view,
};
use crate::ui::{hosts_view::JsonEvents, prompt};
use imgctl_base::error::{IoContext, Result};
use imgctl_base::progress::Reporter;
use imgctl_cluster::pipeline::event::{Listener, NullListener};
use imgctl_cluster::pipeline::interrupt::Interrupt;
use imgctl_ops::front_end::{Announcement, Consent, FrontEnd, InPlace, Logins, Outcome};
use imgctl_ops::session::{Session, SshAccess};
use imgctl_registry::ClientOptions;
use imgctl_store::store::Store;

/// The user at the terminal, or the reader of the output.
struct Terminal<'a> {
    context: &'a Context,
    registry: RegistryArgs,
}

impl FrontEnd for Terminal<'_> {
    fn note(&self, message: &str) {
        self.context.ui.note(message);
    }

    fn say(&self, message: &str) {
        self.context.ui.say(message);
    }

    fn store(&self) -> Result<&Store> {
        self.context.store()
    }

    fn registry_options(&self, logins: Logins) -> Result<ClientOptions> {
        match logins {
            Logins::OfUser => self.registry.client_options(self.context),
            Logins::Only(login) => self.registry.options(self.context, login),
        }
    }

    fn reporter(&self) -> &dyn Reporter {
        self.context.ui.reporter()
    }

    fn listener(&self) -> Box<dyn Listener + '_> {
        if self.context.ui.is_json() {
            return Box::new(JsonEvents::default());
        }
        match self.context.ui.hosts_view() {
            Some(view) => Box::new(view),
            None => Box::new(NullListener),
        }
    }

    fn pass_interrupts(&self, interrupt: &Interrupt) -> Result<()> {
        listen(interrupt)
    }

    fn announce(&self, plan: &Announcement<'_>) -> Result<()> {
        match plan {
            Announcement::Change(planned) => outcome_view::summary(planned, self.context),
            // JSON output consists of the events alone.
            Announcement::Upgrade(_) if self.context.ui.is_json() => Ok(()),
            Announcement::Upgrade(document) => upgrade_view::show(document, self.context),
            Announcement::InPlace(plan) => view::plan(plan, self.context),
        }
    }

    fn confirm(&self, question: &str) -> Result<bool> {
        self.context.ui.confirm(question)
    }

    fn consent(&self) -> Consent {
        if self.context.settings.ui.assume_yes {
            Consent::Given
        } else if self.context.ui.is_json() || !prompt::can_ask() {
            Consent::Nobody
        } else {
            Consent::Asked
        }
    }

    fn show(&self, outcome: &Outcome) -> Result<()> {
        outcome_view::show(outcome, self.context)
    }

    fn in_place(&self, progress: &InPlace<'_>) -> Result<()> {
        view::progress(progress, self.context)
    }
}

impl Context {
    /// Returns a session for one operation with these flags.
    pub(crate) fn session(&self, ssh: &SshArgs, registry: &RegistryArgs) -> Result<Session<'_>> {
        let (login, settings) = ssh.resolve(self)?;
        Ok(Session {
            front: Box::new(Terminal { context: self, registry: registry.clone() }),
            controller: cluster_options::controller(self)?,
            ssh: SshAccess { login, port: ssh.port, settings },
            pool: None,
        })
    }

    /// Returns a session for an operation that has no flags for hosts and registries.
    pub(crate) fn plain_session(&self) -> Result<Session<'_>> {
        self.session(&SshArgs::default(), &RegistryArgs::default())
    }
}

/// Listens for the rest of the process's lifetime.
pub(crate) fn listen(interrupt: &Interrupt) -> Result<()> {
    let interrupt = interrupt.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "cannot listen for signals".to_owned())?;
    // Registered before returning, so that no signal is missed.
    let (mut terminate, mut ctrl_c) = {
        use tokio::signal::unix::{SignalKind, signal};
        let _inside = runtime.enter();
        (
            signal(SignalKind::terminate()).doing(|| "cannot listen for signals".to_owned())?,
            signal(SignalKind::interrupt()).doing(|| "cannot listen for signals".to_owned())?,
        )
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            runtime.block_on(async move {
                loop {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = ctrl_c.recv() => {}
                    }
                    interrupt.ask();
                }
            });
        })
        .doing(|| "cannot start a thread".to_owned())?;
    Ok(())
}
