//! `imgctl annotate`.

use clap::Args;

use crate::cli::commands::build_options::pairs;
use crate::cli::commands::merge::{finish, references};
use crate::cli::context::Context;
use imgctl_base::error::{Error, Result};
use imgctl_transfer::edit::annotate::{self, Changes};

/// Change an image's annotations and labels
#[derive(Args, Debug)]
#[command(
    after_help = "Layers do not change; the result has a new digest. In a multi-platform image, annotations go to the
index and labels to every image in it.

Examples:
  imgctl annotate etcd:v1 --annotation org.opencontainers.image.source=https://git.example.com/etcd
  imgctl annotate app:v1 --label sealos.io.type=patch -t app:v1-patch
  imgctl annotate app:v1 --remove org.opencontainers.image.created"
)]
pub(crate) struct AnnotateArgs {
    /// Name, ID or digest of the image
    image: String,

    /// Set an annotation (may be repeated)
    #[arg(short, long = "annotation", value_name = "NAME=VALUE")]
    annotations: Vec<String>,

    /// Remove an annotation (may be repeated)
    #[arg(long, value_name = "NAME")]
    remove: Vec<String>,

    /// Set a label (may be repeated)
    #[arg(long = "label", value_name = "NAME=VALUE")]
    labels: Vec<String>,

    /// Remove a label (may be repeated)
    #[arg(long, value_name = "NAME")]
    remove_label: Vec<String>,

    /// Name of the result (may be repeated) [default: the image's own names]
    #[arg(short, long = "tag", value_name = "NAME")]
    tags: Vec<String>,
}

/// Annotates the image and prints the new image's ID.
pub(crate) fn run(args: &AnnotateArgs, context: &Context) -> Result<()> {
    let changes = Changes {
        annotations: pairs(&args.annotations, "--annotation")?,
        remove: args.remove.clone(),
        labels: pairs(&args.labels, "--label")?,
        remove_labels: args.remove_label.clone(),
    };
    let store = context.store()?;
    let named = store.resolve(&args.image)?;
    let mut tags = references(&args.tags)?;
    if tags.is_empty() {
        let own = named.reference.clone().filter(|name| name.digest().is_none());
        tags.extend(own);
    }
    if tags.is_empty() {
        return Err(Error::usage(format!("{} is not a name", args.image))
            .hint("name the result with -t NAME"));
    }
    let edited = annotate::annotate(store, &named.descriptor, &changes)?;
    finish(&edited, &tags, context)
}
