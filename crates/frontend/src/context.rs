//! Context of a verb: settings, environment, user interface and store.

use std::cell::OnceCell;

use crate::{environment::Environment, requested_report::RequestedReport, settings::Settings};
use imgctl_base::error::Result;
use imgctl_store::store::{self, Store};
use imgctl_ui::Ui;

/// Created once for each command line.
pub struct Context {
    pub settings: Settings,
    pub environment: Environment,
    pub ui: Ui,
    /// What `--report` of the verb asks for.
    pub(crate) report: RequestedReport,
    store: OnceCell<Store>,
}

impl Context {
    /// Sets up logging and progress. Opens nothing.
    pub fn new(settings: Settings, environment: Environment) -> Self {
        let ui = Ui::new(settings.ui);
        Self {
            settings,
            environment,
            ui,
            report: RequestedReport::default(),
            store: OnceCell::new(),
        }
    }

    /// Returns the cluster that a flag or else the variable names.
    pub(crate) fn named_cluster(&self, flag: Option<&str>) -> Result<Option<String>> {
        Ok(match flag {
            Some(flag) => Some(flag.to_owned()),
            None => self.environment.text("IMGCTL_CLUSTER")?.map(str::to_owned),
        })
    }

    /// Returns the store, which is opened on first use: `imgctl --version` touches no disk.
    pub fn store(&self) -> Result<&Store> {
        if let Some(store) = self.store.get() {
            return Ok(store);
        }
        let options = store::Options { sync: self.settings.sync };
        let store = Store::open(&self.settings.root, options)?;
        let store = store.with_limits(self.settings.limits);
        Ok(self.store.get_or_init(|| store))
    }
}
