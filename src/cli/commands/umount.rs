//! `imgctl umount`.

use std::ffi::OsString;

use clap::Args;
use serde_json::Value;

use crate::cli::commands::mounts;
use crate::cli::context::Context;
use imgctl_base::error::Result;
use imgctl_store::mount;

/// Unmount images, discarding what was written into the mounts
#[derive(Args, Debug)]
#[command(
    visible_alias = "unmount",
    after_help = "Examples:
  imgctl umount /var/lib/imgctl/store/mounts/1a2b3c4d5e6f/merged
  imgctl umount etcd:v1
  imgctl umount --all"
)]
pub(crate) struct UmountArgs {
    /// IDs, names or paths of mounts, or images (all their mounts)
    #[arg(required_unless_present = "all", value_name = "MOUNT")]
    mounts: Vec<OsString>,

    /// Unmount all images and clean up after crashes
    #[arg(short, long, conflicts_with = "mounts")]
    all: bool,

    /// Also detach mounts that are in use; each is removed after its last user
    #[arg(short, long)]
    lazy: bool,
}

/// Unmounts the images and prints the mount IDs.
pub(crate) fn run(args: &UmountArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let gone = if args.all {
        mount::umount_all(store, args.lazy)?
    } else {
        mount::umount(store, &args.mounts, args.lazy)?
    };
    if context.ui.is_json() {
        let list: Vec<Value> = gone
            .iter()
            .map(|mount| match &mount.record {
                Some(record) => mounts::object(record, "unmounted"),
                None => serde_json::json!({"id": mount.id, "state": "unmounted"}),
            })
            .collect();
        return context.ui.json(&list);
    }
    for mount in &gone {
        context.ui.line(&mount.id)?;
    }
    Ok(())
}
