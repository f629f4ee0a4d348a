//! One file per verb: its arguments (the doc comments are the help), one call, presentation.

pub(crate) mod build;
pub(crate) mod build_options;
pub(crate) mod cat;
pub(crate) mod completion;
pub(crate) mod create;
pub(crate) mod df;
pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod help_all;
pub(crate) mod history;
pub(crate) mod images;
pub(crate) mod inspect;
pub(crate) mod inspect_view;
pub(crate) mod load;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mount;
pub(crate) mod mounts;
pub(crate) mod prune;
pub(crate) mod rmi;
pub(crate) mod save;
pub(crate) mod scrub;
pub(crate) mod tag;
pub(crate) mod tree;
pub(crate) mod umount;
pub(crate) mod version;
