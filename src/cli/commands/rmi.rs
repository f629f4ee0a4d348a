//! `imgctl rmi`. What becomes of the store's content is decided by its `prune`.

use clap::Args;
use serde_json::json;

use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest};
use imgctl_frontend::context::Context;
use imgctl_frontend::names::quote;
use imgctl_frontend::registry_options::RegistryArgs;
use imgctl_frontend::ssh_options::SshArgs;
use imgctl_ops::state;
use imgctl_store::mount;
use imgctl_store::store::Named;
use imgctl_store::store::prune::PruneOptions;

/// Remove images
#[derive(Args, Debug)]
#[command(
    after_help = "A name removes only that name, and the image with its last name. An ID or digest removes all names.

Examples:
  imgctl rmi etcd:v1
  imgctl rmi --prune
  imgctl rmi -a -f"
)]
pub(crate) struct RmiArgs {
    /// Names, IDs or digests
    #[arg(required_unless_present_any = ["all", "prune"], value_name = "IMAGE")]
    images: Vec<String>,

    /// Remove all images
    #[arg(short, long, conflicts_with_all = ["images", "prune"])]
    all: bool,

    /// Also remove mounted images and, by ID, images with several names
    #[arg(short, long)]
    force: bool,

    /// Remove images without a name
    #[arg(short, long, conflicts_with = "images")]
    prune: bool,
}

/// Removes names, then everything that is no longer needed.
pub(crate) fn rmi(args: &RmiArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let all = store.names()?;
    let mut chosen: Vec<Named> = Vec::new();
    for named in choose(args, &all, context)? {
        if !chosen.contains(&named) {
            chosen.push(named);
        }
    }
    if args.all && !args.force && !chosen.is_empty() {
        let question = format!("Remove all images ({})?", chosen.len());
        if !context.ui.confirm(&question)? {
            return Ok(());
        }
    }
    if !args.force {
        refuse_mounted(&chosen, &all, context)?;
    }
    let removed = remove(&chosen, context)?;
    let untagged: Vec<String> =
        chosen.iter().filter_map(|named| Some(named.reference.as_ref()?.to_string())).collect();
    tell_clusters(&untagged, context);
    let deleted: Vec<&Digest> = removed.iter().map(|descriptor| &descriptor.digest).collect();
    if context.ui.is_json() {
        return context.ui.json(&json!({"untagged": untagged, "deleted": deleted}));
    }
    for name in &untagged {
        context.ui.line(&format!("untagged: {name}"))?;
    }
    for digest in deleted {
        context.ui.line(&format!("deleted: {digest}"))?;
    }
    Ok(())
}

/// Notes clusters that have the removed images: they are needed again for new hosts.
fn tell_clusters(names: &[String], context: &Context) {
    let session = context.session(&SshArgs::default(), &RegistryArgs::default());
    match session.and_then(|session| state::users_of(names, &session)) {
        Ok(users) => {
            for (image, cluster) in users {
                context.ui.note(&format!(
                    "cluster {cluster} has {image}: `add`, `run` and `upgrade` need the image again \
                     (imgctl pull or load)"
                ));
            }
        }
        // Not every machine with images has clusters.
        Err(error) => tracing::debug!("clusters with the image: {error}"),
    }
}

/// Removes names, then everything that is no longer needed. Returns the images that lost their last
/// name.
pub(crate) fn remove(names: &[Named], context: &Context) -> Result<Vec<Descriptor>> {
    let store = context.store()?;
    let removed = store.untag(names)?;
    let plan = store.plan_prune(&PruneOptions::default())?;
    store.prune(&plan, context.ui.reporter())?;
    Ok(removed)
}

fn choose(args: &RmiArgs, all: &[Named], context: &Context) -> Result<Vec<Named>> {
    if args.all {
        return Ok(all.to_vec());
    }
    if args.prune {
        let unnamed =
            |named: &&Named| named.reference.is_none() && named.descriptor.ref_name().is_none();
        return Ok(all.iter().filter(unnamed).cloned().collect());
    }
    let store = context.store()?;
    let mut chosen = Vec::new();
    let mut failures: Vec<Error> = Vec::new();
    for name in &args.images {
        match store.resolve(name).and_then(|found| names_of(args, found, all)) {
            Ok(named) => chosen.extend(named),
            // As in docker, --force ignores missing images.
            Err(error) if args.force && error.kind() == Kind::NotFound => {}
            Err(error) => failures.push(error),
        }
    }
    // Nothing is removed unless every image can be removed.
    match failures.into_iter().next() {
        Some(first) => Err(first),
        None => Ok(chosen),
    }
}

/// Returns the entries to remove: one for a name, all for an ID.
fn names_of(args: &RmiArgs, found: Named, all: &[Named]) -> Result<Vec<Named>> {
    if found.reference.is_some() {
        return Ok(vec![found]);
    }
    let same: Vec<Named> = all
        .iter()
        .filter(|named| named.descriptor.digest == found.descriptor.digest)
        .cloned()
        .collect();
    if same.len() > 1 && !args.force {
        let names: Vec<String> =
            same.iter().filter_map(|named| Some(named.reference.as_ref()?.to_string())).collect();
        return Err(Error::new(
            Kind::Busy,
            format!(
                "the image {} has several names: {}",
                found.descriptor.digest.short(),
                names.join(", ")
            ),
        )
        .hint("remove it by name, or all of them with --force"));
    }
    Ok(same)
}

/// Refuses to remove mounted images. A mount stays usable after the removal, but that is rarely
/// intended.
fn refuse_mounted(chosen: &[Named], all: &[Named], context: &Context) -> Result<()> {
    let mounts = mount::list(context.store()?)?;
    for named in chosen {
        let digest = &named.descriptor.digest;
        let keeps_a_name =
            all.iter().any(|other| other.descriptor.digest == *digest && !chosen.contains(other));
        if keeps_a_name {
            continue;
        }
        // A mount records the manifest of one platform. Mounts of a damaged image are not
        // considered.
        let images = context.store()?.platform_images(&named.descriptor).unwrap_or_default();
        let path = mounts
            .iter()
            .filter_map(|mount| mount.record.as_ref())
            .find(|record| images.iter().any(|image| image.descriptor.digest == record.manifest))
            .map(|record| record.path.display().to_string());
        if let Some(path) = path {
            return Err(Error::new(
                Kind::Busy,
                format!("the image {} is mounted at {path}", digest.short()),
            )
            .hint(format!("imgctl umount {}, or remove it with --force", quote(&path))));
        }
    }
    Ok(())
}
