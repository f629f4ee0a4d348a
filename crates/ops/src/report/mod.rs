//! The data of reports on plans, runs and clusters. Reads the state of clusters on this machine and what
//! operations have planned, and asks hosts for the status of a cluster. Must not know how reports look.

mod cluster;
mod follow;
mod in_place;
pub(crate) mod journals;
mod plan;
mod progress;
pub(crate) mod recorded;
mod run;
mod summary;

pub use cluster::of_cluster;
pub use follow::{Follower, Progress};
pub use plan::{ReadPlan, of_in_place, of_outcome, read_plan};
pub use progress::ProgressEvent;
pub use recorded::Recorded;
pub use run::{RunRequest, of_run};
