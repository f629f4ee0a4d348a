//! `imgctl scp`.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::cli::context::Context;
use crate::cli::host_selection::HostArgs;
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::progress::Unit;
use imgctl_host::host::transport::{Privilege, Transport};
use imgctl_host::host::upload::{Place, SentTree, send_tree, upload_to};
use imgctl_ops::hosts::{for_each, sum_up};

/// Copy a file or a directory to hosts
#[derive(Args, Debug)]
#[command(
    after_help = "A file replaces DST atomically once it has been transferred; if DST is a directory, the file
goes into it. The contents of a directory go into the directory DST, which is created if
missing. Modes and modification times are preserved, symlinks stay symlinks. Files are written
as root (through sudo for other users) unless --as-user is given.

Examples:
  imgctl scp --cluster prod --roles node motd /etc/motd
  imgctl scp --ips 10.0.0.11-10.0.0.13 daemon.json /etc/docker/daemon.json
  imgctl scp --ips web-1,web-2 -u ops --as-user ./site /home/ops/site"
)]
pub(crate) struct ScpArgs {
    #[command(flatten)]
    hosts: HostArgs,

    /// Copy as the login user instead of root
    #[arg(long)]
    as_user: bool,

    /// Local file or directory
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// Path on the hosts
    #[arg(value_name = "DST")]
    destination: String,
}

/// Copies to every host.
pub(crate) fn run(args: &ScpArgs, context: &Context) -> Result<()> {
    if args.destination.is_empty() {
        return Err(Error::usage("the path on the hosts is empty"));
    }
    let data = std::fs::metadata(&args.source).path("examine", &args.source)?;
    if !data.is_dir() && !data.is_file() {
        return Err(Error::usage(format!(
            "{} is neither a file nor a directory",
            args.source.display()
        )));
    }
    let (hosts, connections) = args.hosts.resolve(context)?;
    let privilege = if args.as_user { Privilege::User } else { Privilege::Root };
    let reporter = context.ui.reporter();
    let results = for_each(&hosts, args.hosts.parallel(), |_, host| {
        let transport = connections.connect(&host.address, &host.login, host.local)?;
        let title = format!("copying to {}", host.id());
        let total = data.is_file().then_some(data.len());
        let task = reporter.start(&title, Unit::Bytes, total);
        let sent = |bytes| task.advance(bytes);
        let tree = if data.is_dir() {
            send_tree(&*transport, &args.source, &args.destination, privilege, &sent)?
        } else {
            send_file(&*transport, args, privilege, &sent)?
        };
        task.done(&format!("copied to {}", host.id()));
        Ok(tree)
    });
    if let Some(Ok(tree)) = results.iter().find(|result| result.is_ok()) {
        for path in &tree.left_out {
            context.ui.note(&format!("{path} was skipped: it is not a file"));
        }
    }
    if context.ui.is_json() {
        let view = |result: &Result<SentTree>| match result {
            Ok(tree) => (Some(tree.files), Some(tree.bytes), None),
            Err(error) => (None, None, Some(error.to_string())),
        };
        let views: Vec<_> = hosts
            .iter()
            .zip(&results)
            .map(|(host, result)| {
                let (files, bytes, error) = view(result);
                json!({ "host": host.id(), "files": files, "bytes": bytes, "error": error })
            })
            .collect();
        context.ui.json(&views)?;
    }
    let failed = hosts
        .iter()
        .zip(results)
        .filter_map(|(host, result)| Some((host.id(), result.err()?)))
        .collect();
    sum_up("copy", hosts.len(), failed).map_or(Ok(()), Err)
}

fn send_file(
    transport: &dyn Transport,
    args: &ScpArgs,
    privilege: Privilege,
    sent: &(dyn Fn(u64) + Sync),
) -> Result<SentTree> {
    let file = File::open(&args.source).path("open", &args.source)?;
    let data = file.metadata().path("examine", &args.source)?;
    let name = name_of(&args.source)?;
    // A trailing slash means a directory, whether it exists or not.
    let path = if args.destination.ends_with('/') {
        format!("{}{name}", args.destination)
    } else {
        args.destination.clone()
    };
    let place =
        Place { path: &path, mode: data.mode(), mtime: Some(data.mtime()), into: Some(&name) };
    let mut reader = Counting { file, sent };
    upload_to(transport, &place, privilege, &mut reader, data.len())?;
    Ok(SentTree { files: 1, bytes: data.len(), left_out: Vec::new() })
}

fn name_of(path: &Path) -> Result<String> {
    path.file_name()
        .and_then(|name| name.to_str())
        .map(str::to_owned)
        .ok_or_else(|| Error::usage(format!("{} has no plain name", path.display())))
}

struct Counting<'a> {
    file: File,
    sent: &'a (dyn Fn(u64) + Sync),
}

impl std::io::Read for Counting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        (self.sent)(count as u64);
        Ok(count)
    }
}
