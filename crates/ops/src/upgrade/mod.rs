//! Upgrades and rollbacks: planning them with the hosts' answers, carrying them out, pausing,
//! resuming and closing them.
//!
//! From top to bottom: a request begins an upgrade (`begin`), or continues, shows or ends the open
//! one (`open`); both finish it (`finish`: failed hosts go back, spare hosts take over). A rollback
//! (`rollback`) is an upgrade in the other direction. All of them carry a document out with `execute`.

mod begin;
mod choices;
mod close;
mod execute;
mod finish;
mod identity;
mod images;
mod lag;
mod open;
pub(crate) mod reconfigure;
mod resume;
mod rollback;
mod windows;

pub(crate) use begin::begin_newer;
pub use begin::{Preview, UpgradeRequest, upgrade};
pub use choices::GivenChoices;
pub use close::check_blockers;
pub(crate) use finish::finish;
pub use open::{AbortRequest, Progress, ResumeRequest, abort, pause, progress, resume};
pub use reconfigure::SettingsChoices;
pub use rollback::{RollbackRequest, Scope, rollback};
