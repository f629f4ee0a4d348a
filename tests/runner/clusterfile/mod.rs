//! The Clusterfile as users meet it: `gen`, `render`, `env`, and directories that sealos has made.

mod adopted;
mod generated;
mod rendered;
