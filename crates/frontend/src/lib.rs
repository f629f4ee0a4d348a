//! The command line as a front end, without its verbs: the options that verbs share, the context that flags, variables and
//! files make, and how the notes, questions and outcomes of operations show.
//!
//! Reads the environment that the binary passes. Must not know any verb.

mod adopt_view;
pub mod archive_output;
pub mod cache_spec;
pub mod choice;
pub mod cluster_options;
pub mod context;
pub mod drain_options;
pub mod duration;
pub mod environment;
pub mod format;
pub mod front_end;
pub mod image_options;
pub mod inplace_view;
pub mod kubeconfig_options;
pub mod mirror_options;
pub mod names;
pub mod registry_options;
mod rehearsal_view;
pub mod report_output;
mod requested_report;
pub mod settings;
pub mod signed_images;
pub mod signing_options;
pub mod source_options;
pub mod ssh_options;
pub mod status_view;
pub mod upgrade_choices;
pub mod upgrade_view;
