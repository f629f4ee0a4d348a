//! The verbs about mounts: `mount`, `create`, `mounts`, `umount`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Verdict, time::parse_rfc3339};
use imgctl_frontend::format::{Listing, Row};
use imgctl_frontend::image_options::{GateArg, PlatformArg};
use imgctl_frontend::{context::Context, names::pairs_or_environment};
use imgctl_store::mount::{self, Backend, CreateOptions, Listed, Record, State};
use imgctl_template::Missing;
use imgctl_ui::table::{ago, now};

/// Mount an image as a directory and print its path
#[derive(Args, Debug)]
#[command(
    after_help = "Each call creates a separate mount; what is written into it is removed with it.
Without an image, lists the mounts, as buildah does.

Examples:
  imgctl mount etcd:v1
  imgctl mount --read-only etcd:v1 /mnt
  cp -r \"$(imgctl mount etcd:v1)/etc\" ."
)]
pub(crate) struct MountArgs {
    /// Name, ID or digest of the image
    image: Option<String>,

    /// Directory to mount at, created if missing [default: one in the store]
    #[arg(value_name = "DIR")]
    target: Option<PathBuf>,

    /// Mount read-only
    #[arg(short, long, visible_alias = "ro")]
    read_only: bool,

    /// Name to unmount it by
    #[arg(long)]
    name: Option<String>,

    /// Mount backend
    #[arg(long, value_enum, value_name = "BACKEND", default_value = "auto")]
    backend: BackendArg,

    #[command(flatten)]
    platform: PlatformArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BackendArg {
    /// Fastest backend that works on this machine
    Auto,
    /// Overlay of unpacked layers
    Overlay,
    /// Index over the layers, without unpacking them
    Erofs,
    /// Plain directory with a copy of all files
    Checkout,
}

pub(crate) fn mount(args: &MountArgs, context: &Context) -> Result<()> {
    let Some(name) = &args.image else {
        return show(context);
    };
    let image = match args.platform.image(name, context) {
        Err(error) if error.kind() == Kind::NotFound && args.target.is_none() => {
            // The name of a mount: `imgctl from` prints it, as buildah does.
            let mounts = mount::list(context.store()?)?;
            let mut records = mounts.iter().filter_map(|mount| mount.record.as_ref());
            let found = records.find(|r| r.id == *name || r.name.as_ref() == Some(name));
            return found.map_or(Err(error), |record| path(&record.path, context));
        }
        image => image?,
    };
    let options = mount::Options {
        read_only: args.read_only,
        target: args.target.clone(),
        name: args.name.clone(),
        backend: match args.backend {
            BackendArg::Auto => None,
            BackendArg::Overlay => Some(Backend::Overlay),
            BackendArg::Erofs => Some(Backend::Erofs),
            BackendArg::Checkout => Some(Backend::Checkout),
        },
    };
    let mounted = mount::mount(context.store()?, &image, &options, context.ui.reporter())?;
    context.ui.notes(&mounted.notes);
    if context.ui.is_json() {
        return context.ui.json(&object(&mounted.record, State::Mounted.as_str()));
    }
    path(&mounted.record.path, context)
}

/// Mount an image for writing and show what running it would do
#[derive(Args, Debug)]
#[command(
    after_help = "Prints the mount's path and the shell script that ENTRYPOINT and CMD produce. With -e, *.tmpl files
under etc/, scripts/ and manifests/ are rendered. `imgctl umount NAME` removes the mount.

Examples:
  imgctl create etcd:v1
  cp -r \"$(imgctl create --short etcd:v1)/manifests\" ."
)]
pub(crate) struct CreateArgs {
    /// Name, ID or digest of the image
    image: String,

    /// Prefix of the mount's name
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    cluster: String,

    /// Variable for templates and commands, overriding the image's (may be repeated)
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,

    /// Fail on templates that use an undefined variable
    #[arg(long)]
    strict_templates: bool,

    /// Print only the path
    #[arg(long)]
    short: bool,

    #[command(flatten)]
    gate: GateArg,

    #[command(flatten)]
    platform: PlatformArg,
}

pub(crate) fn create(args: &CreateArgs, context: &Context) -> Result<()> {
    let hinted = |error: Error| {
        if args.image == "cluster" {
            error.hint("`imgctl run IMAGE --masters HOSTS` makes a cluster")
        } else {
            error
        }
    };
    let _admitted: Verdict = args.gate.admit(&args.image, context).map_err(hinted)?;
    let image = args.platform.image(&args.image, context).map_err(hinted)?;
    let options = CreateOptions {
        cluster: args.cluster.clone(),
        environment: pairs_or_environment(&args.env, "--env", &context.environment)?,
        missing: if args.strict_templates { Missing::Error } else { Missing::NoValue },
        backend: None,
    };
    let created = mount::create(context.store()?, &image, &options, context.ui.reporter())?;
    let record = &created.mounted.record;
    context.ui.notes(&created.mounted.notes);
    if context.ui.is_json() {
        let mut object = object(record, "mounted");
        object["script"] = json!(created.script);
        return context.ui.json(&object);
    }
    path(&record.path, context)?;
    match created.script {
        Some(script) if !args.short => context.ui.content(format!("{}\n", script.trim_end())),
        _ => Ok(()),
    }
}

/// List mounts
#[derive(Args, Debug)]
#[command(
    aliases = ["containers", "list", "ps"],
    after_help = "States: mounted; stale (ended by a reboot or by umount(8): imgctl umount cleans it up);
  unfinished (being created); elsewhere (in another mount namespace).
Fields of --format: .ID .Name .Image .Digest .Path .Backend .State .Created .ReadOnly"
)]
pub(crate) struct MountsArgs {
    /// Show only IDs
    #[arg(short, long)]
    quiet: bool,

    /// Output format: `table`, `json`, or a Go template for each row
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,

    /// Do not print the table heading
    #[arg(short, long)]
    noheading: bool,

    /// Show all mounts (none are hidden; for scripts for buildah)
    #[arg(short, long, hide = true)]
    all: bool,

    /// Do not truncate (nothing is truncated; for scripts for buildah)
    #[arg(long, hide = true)]
    notruncate: bool,
}

pub(crate) fn mounts(args: &MountsArgs, context: &Context) -> Result<()> {
    let mounts = mount::list(context.store()?)?;
    if mounts.is_empty() {
        context.ui.note("no mounts; `imgctl clusters` lists clusters, `imgctl images` images");
    }
    if args.quiet && !context.ui.is_json() {
        return context.ui.print(&mounts.iter().map(|mount| &mount.id).collect());
    }
    listing(&mounts).show(args.format.as_deref(), !args.noheading, context)
}

/// Shows the list without options, for `imgctl mount` without an image.
pub(crate) fn show(context: &Context) -> Result<()> {
    listing(&mount::list(context.store()?)?).show(None, true, context)
}

/// Prints a path unchanged, for scripts.
pub(crate) fn path(path: &Path, context: &Context) -> Result<()> {
    context.ui.content([path.as_os_str().as_bytes(), b"\n"].concat())
}

fn listing(mounts: &[Listed]) -> Listing {
    Listing {
        headings: vec!["ID", "IMAGE", "STATE", "BACKEND", "CREATED", "PATH"],
        right: Vec::new(),
        rows: mounts.iter().map(row).collect(),
        json: mounts.iter().map(json_of).collect(),
    }
}

/// Returns one mount as JSON.
pub(crate) fn object(record: &Record, state: &str) -> Value {
    json!({
        "id": record.id,
        "name": record.name,
        "image": record.image,
        "digest": record.manifest,
        "path": record.path.display().to_string(),
        "backend": record.backend.as_str(),
        "readOnly": record.read_only,
        "created": record.created,
        "state": state,
    })
}

fn json_of(mount: &Listed) -> Value {
    let mut value = match &mount.record {
        Some(record) => object(record, mount.state.as_str()),
        None => json!({"id": mount.id, "state": mount.state.as_str()}),
    };
    if let State::Elsewhere(process) = mount.state {
        value["process"] = process.into();
    }
    value
}

fn row(mount: &Listed) -> Row {
    let record = mount.record.as_ref();
    let text = |of: fn(&Record) -> String| record.map(of).unwrap_or_default();
    let created = record
        .and_then(|record| parse_rfc3339(&record.created).ok())
        .map_or_else(String::new, |(then, _)| ago(then, now()));
    let path = text(|record| record.path.display().to_string());
    let (image, backend) = (text(|r| r.image.clone()), text(|r| r.backend.as_str().to_owned()));
    let fields = json!({
        "ID": mount.id, "Name": text(|r| r.name.clone().unwrap_or_default()), "Image": image,
        "Digest": text(|r| r.manifest.to_string()), "Path": path, "Backend": backend,
        "State": mount.state.as_str(), "Created": created,
        "ReadOnly": record.is_some_and(|record| record.read_only),
    });
    Row {
        cells: vec![
            mount.id.clone(),
            image,
            mount.state.as_str().to_owned(),
            backend,
            created,
            path,
        ],
        fields,
    }
}

/// Unmount images, discarding what was written into the mounts
#[derive(Args, Debug)]
#[command(
    visible_alias = "unmount",
    alias = "rm",
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
pub(crate) fn umount(args: &UmountArgs, context: &Context) -> Result<()> {
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
                Some(record) => object(record, "unmounted"),
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
