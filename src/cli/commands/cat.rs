//! `imgctl cat`.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;

use clap::Args;

use crate::cli::context::Context;
use crate::cli::names::{image_and_path, nearest};
use crate::cli::platform::PlatformArg;
use crate::ui::output::Stdout;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_store::layer::{ContentReader, LayerPath, Tree};
use imgctl_store::store::image_tree::whole_tree;
use imgctl_store::store::{Image, Store};

/// Print files of an image, without mounting it
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  imgctl cat etcd:v1:/etc/etcd.conf
  imgctl cat etcd:v1:/usr/bin/etcd > etcd")]
pub(crate) struct CatArgs {
    /// Image and path of a file (may be repeated)
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    targets: Vec<OsString>,

    #[command(flatten)]
    platform: PlatformArg,
}

/// Prints the files in the order given.
pub(crate) fn run(args: &CatArgs, context: &Context) -> Result<()> {
    for target in &args.targets {
        let (name, path) = image_and_path(target)?;
        if path.is_root() {
            return Err(Error::usage(format!("`{}` does not name a file", target.display()))
                .hint("write IMAGE:/PATH, for example etcd:v1:/etc/hosts"));
        }
        let image = args.platform.image(&name, context)?;
        let store = context.store()?;
        print(store, &image, &whole_tree(store, &image)?, &name, &path)?;
    }
    Ok(())
}

fn print(store: &Store, image: &Image, tree: &Tree, name: &str, path: &LayerPath) -> Result<()> {
    let resolved = tree.resolve(path)?;
    let Some(found) = tree.lookup(&resolved) else {
        let missing = Error::not_found(format!("{path} does not exist in {name}"));
        return Err(match nearest(tree, &resolved) {
            Some(hint) => missing.hint(hint),
            None => missing,
        });
    };
    if found.entry().is_directory() {
        return Err(Error::usage(format!("{path} of {name} is a directory"))
            .hint(format!("imgctl ls {name}:{path}")));
    }
    let layer = found.layer.and_then(|index| image.layers().nth(index));
    let Some((layer, diff_id)) = layer else {
        return Err(Error::not_found(format!("{path} of {name} has no content")));
    };
    let toc = Arc::new(store.toc(&layer.digest, diff_id)?);
    let mut reader = ContentReader::new(store.open_blob(&layer.digest)?, toc)?;
    let mut content = reader.open(found.entry)?;
    io::copy(&mut content, &mut Stdout::new())
        .doing(|| format!("cannot print {path} of {name}"))?;
    Ok(())
}
