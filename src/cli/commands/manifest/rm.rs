//! `imgctl manifest rm`.

use clap::Args;
use serde_json::json;

use crate::cli::context::Context;
use imgctl_base::error::Result;
use imgctl_store::store::prune::PruneOptions;
use imgctl_transfer::transfer::manifest_list;

/// Remove manifest lists from the store
#[derive(Args, Debug)]
#[command(after_help = "Images in the list that have names of their own are kept.

Examples:
  imgctl manifest rm etcd:v1")]
pub(super) struct RmArgs {
    /// Names of lists
    #[arg(required = true, value_name = "LIST")]
    lists: Vec<String>,
}

/// Removes the lists, then everything that is no longer needed.
pub(super) fn run(args: &RmArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let mut chosen = Vec::new();
    for name in &args.lists {
        chosen.push(manifest_list::find(store, name)?.0);
    }
    store.untag(&chosen)?;
    let plan = store.plan_prune(&PruneOptions::default())?;
    store.prune(&plan, context.ui.reporter())?;
    let names: Vec<String> = chosen
        .iter()
        .map(|named| match &named.reference {
            Some(reference) => reference.to_string(),
            None => named.descriptor.digest.to_string(),
        })
        .collect();
    if context.ui.is_json() {
        return context.ui.json(&json!({"removed": names}));
    }
    names.iter().try_for_each(|name| context.ui.line(&format!("untagged: {name}")))
}
