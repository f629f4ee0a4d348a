//! The verbs between the store and files: `save`, `load`, `export`.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::cli::commands::bundle::create_bundle;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Verdict;
use imgctl_frontend::archive_output::{OutputArgs, output};
use imgctl_frontend::image_options::{GateArg, PlatformArg};
use imgctl_frontend::{context::Context, names::references};
use imgctl_layer::Compression;
use imgctl_store::mount;
use imgctl_transfer::edit::bundle::CreateOptions;
use imgctl_transfer::transfer::{
    self, Archive, ArchiveFormat, Input, LoadOptions, Request, SaveOptions,
};
use imgctl_ui::edge::Stdout;

/// Save images to an archive or a directory
#[derive(Args, Debug)]
#[command(
    after_help = "Without --compression, the extension of the file's name decides (.gz, .tgz, .zst).

--split writes FILE.001, FILE.002, … and FILE.parts.json, the list of their digests. `imgctl load`
takes any of them; `cat FILE.[0-9]*` is the archive.

Examples:
  imgctl save etcd:v1 -o etcd.tar
  imgctl save --format docker-archive etcd:v1 app:v1 -o both.tar.gz
  imgctl save --split 4GB etcd:v1 -o etcd.tar
  imgctl save etcd:v1 | ssh host imgctl load"
)]
pub(crate) struct SaveArgs {
    /// Names, IDs or digests of images
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,

    #[command(flatten)]
    to: OutputArgs<SaveFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SaveFormat {
    /// A tar of an OCI image layout
    OciArchive,
    /// An OCI image layout
    OciDir,
    /// The format of `docker save`
    DockerArchive,
    /// The format of skopeo's `dir:`, one image
    DockerDir,
}

pub(crate) fn save(args: &SaveArgs, context: &Context) -> Result<()> {
    let store = context.store()?;
    let images = args.images.iter().map(|name| store.resolve(name)).collect::<Result<Vec<_>>>()?;
    let arbiter = args.to.gate.arbiter(context)?;
    for image in &images {
        let _admitted: Verdict = arbiter.admit_output(store, image)?;
    }
    let request = args.to.request()?;
    let split = args.to.split(request.as_ref())?;
    if let Some(request) = request.filter(|request| request.parts.is_empty()) {
        return save_requested(args, request, context);
    }
    let options = SaveOptions {
        format: match args.to.format {
            SaveFormat::OciArchive => ArchiveFormat::OciArchive,
            SaveFormat::OciDir => ArchiveFormat::OciDirectory,
            SaveFormat::DockerArchive => ArchiveFormat::DockerArchive,
            SaveFormat::DockerDir => ArchiveFormat::DockerDirectory,
        },
        compression: args.to.compression(),
        platform: args.to.platform()?,
        leaving: None,
        split,
        for_docker: true,
    };
    let output = output(args.to.output.as_deref(), options.format.is_directory(), context)?;
    transfer::save(store, &images, &options, output, context.ui.reporter())
}

/// Writes the requested blobs of an image, which makes a bundle.
fn save_requested(args: &SaveArgs, request: Request, context: &Context) -> Result<()> {
    let directory = match args.to.format {
        SaveFormat::OciArchive => false,
        SaveFormat::OciDir => true,
        _ => {
            return Err(
                Error::usage("docker's formats hold whole images").hint("use an OCI format")
            );
        }
    };
    let [image] = &args.images[..] else {
        return Err(Error::usage("the list is about the blobs of one image").hint("name one image"));
    };
    let options = CreateOptions {
        directory,
        compression: args.to.compression(),
        platform: args.to.platform()?,
        delta: false,
        split: args.to.split(Some(&request))?,
        request: Some(request),
    };
    let arbiter = args.to.gate.arbiter(context)?;
    create_bundle(image, image, args.to.output.as_deref(), &options, &arbiter, context)
}

/// Load images from an archive or a directory
#[derive(Args, Debug)]
#[command(
    after_help = "The format is detected: OCI archive or layout, docker archive or directory; uncompressed,
gzip, zstd, bzip2 or xz. Either all of its images are loaded, or none. Signatures in an OCI archive
or layout are kept with the images. A policy that requires signatures decides about each name.

Parts of `save --split` are found by any of them, by their list, or by their directories,
whatever their names. Several archives are loaded together.

Examples:
  imgctl load -i etcd.tar
  imgctl load etcd.tar.zst --tag etcd:v1
  imgctl load oci-archive:etcd.tar:v1
  imgctl load etcd.tar.001
  imgctl load /media/disk1 /media/disk2 --request-missing missing.json
  imgctl load --unpack etcd.tar
  docker save etcd:v1 | imgctl load"
)]
pub(crate) struct LoadArgs {
    /// Archives, parts or directories, also as oci-archive:FILE[:NAME] and the like; `-` or no value is
    /// stdin
    #[arg(value_name = "FILE", conflicts_with = "input")]
    files: Vec<PathBuf>,

    /// Same as FILE
    #[arg(short, long, value_name = "FILE")]
    input: Vec<PathBuf>,

    /// Names for the single image in the archive, instead of its own names
    #[arg(short, long = "tag", value_name = "NAME")]
    tags: Vec<String>,

    /// Accepted for compatibility with existing scripts: the format is detected
    #[arg(long, value_name = "FORMAT", hide = true)]
    transport: Option<String>,

    /// If parts or blobs are missing, list them here for `imgctl save --request`
    #[arg(long, value_name = "LIST")]
    request_missing: Option<PathBuf>,

    /// Also unpack the layers and verify their diff IDs, so that the image can be mounted at once
    #[arg(long)]
    unpack: bool,

    #[command(flatten)]
    gate: GateArg,
}

/// Loads the images and prints their names.
pub(crate) fn load(args: &LoadArgs, context: &Context) -> Result<()> {
    let paths = if args.files.is_empty() { &args.input } else { &args.files };
    let (paths, choice) = transfer::archives(paths)?;
    // In sealos, -t is --transport.
    let is_format = |tag: &&String| matches!(tag.as_str(), "oci-archive" | "docker-archive");
    let tags: Vec<String> = args.tags.iter().filter(|tag| !is_format(tag)).cloned().collect();
    let options = LoadOptions {
        tags: references(&tags)?,
        choice,
        request_missing: args.request_missing.clone(),
        unpack: args.unpack,
        ..LoadOptions::new(args.gate.arbiter(context)?)
    };
    let archives;
    let input = match &paths[..] {
        [] => Input::Stream(Box::new(piped()?)),
        [path] if path == Path::new("-") => Input::Stream(Box::new(piped()?)),
        paths => {
            archives = Archive::find(paths)?;
            Input::Archives(&archives)
        }
    };
    let loaded = transfer::load(context.store()?, input, &options, context.ui.reporter())?;
    if context.ui.is_json() {
        let list: Vec<Value> = loaded
            .iter()
            .map(|image| {
                json!({
                    "names": image.references.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "digest": image.descriptor.digest,
                })
            })
            .collect();
        return context.ui.json(&list);
    }
    for image in &loaded {
        if image.references.is_empty() {
            context.ui.line(&format!("Loaded image: {}", image.descriptor.digest))?;
        }
        for name in &image.references {
            context.ui.line(&format!("Loaded image: {name}"))?;
        }
    }
    Ok(())
}

/// Returns standard input, into which an archive is to be piped.
fn piped() -> Result<io::Stdin> {
    use std::io::IsTerminal as _;
    if io::stdin().is_terminal() {
        return Err(Error::usage("nothing to load")
            .hint("pass a file (imgctl load -i FILE) or pipe in an archive"));
    }
    Ok(io::stdin())
}

/// Write an image's files into a directory or a tar file
#[derive(Args, Debug)]
#[command(
    after_help = "A name that ends in .tar, .tar.gz, .tgz or .tar.zst, or `-` for stdout, writes a tar file; any
other name, a directory.

Examples:
  imgctl export etcd:v1 -o rootfs
  imgctl export etcd:v1 -o rootfs.tar
  imgctl export etcd:v1 -o - | tar t"
)]
pub(crate) struct ExportArgs {
    /// Name, ID or digest of the image
    image: String,

    /// New or empty directory, tar file, or `-` for stdout
    #[arg(short, long, value_name = "DIR|FILE")]
    output: PathBuf,

    #[command(flatten)]
    platform: PlatformArg,
}

pub(crate) fn export(args: &ExportArgs, context: &Context) -> Result<()> {
    let image = args.platform.image(&args.image, context)?;
    let store = context.store()?;
    let reporter = context.ui.reporter();
    if args.output == Path::new("-") {
        if context.ui.stdout_is_terminal() {
            return Err(Error::usage("cannot write a tar file to a terminal")
                .hint("redirect stdout, or pass -o FILE"));
        }
        let none = Compression::None;
        return mount::tar_export::to_writer(store, &image, Stdout::open(), none, reporter)
            .map(drop);
    }
    // A device or a pipe cannot be a directory.
    let is_special = args.output.exists() && !args.output.is_dir() && !args.output.is_file();
    if let Some(compression) = compression(&args.output).or(is_special.then_some(Compression::None))
    {
        return mount::tar_export::to_file(store, &image, &args.output, compression, reporter);
    }
    for note in mount::checkout::export(store, &image, &args.output, reporter)? {
        context.ui.note(&note);
    }
    Ok(())
}

/// Returns the compression that the extension of a tar file implies; `None` for a directory.
fn compression(path: &Path) -> Option<Compression> {
    let name = path.file_name()?.to_str()?;
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    if ends(&[".tar"]) {
        Some(Compression::None)
    } else if ends(&[".tar.gz", ".tgz"]) {
        Some(Compression::Gzip { level: 6 })
    } else if ends(&[".tar.zst", ".tzst"]) {
        Some(Compression::default())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_tars_from_directories() {
        for (name, expected) in [
            ("x.tar", Some(Compression::None)),
            ("a/x.tgz", Some(Compression::Gzip { level: 6 })),
            ("x.tar.zst", Some(Compression::Zstd { level: 3 })),
            ("rootfs", None),
            ("x.gz", None),
        ] {
            assert_eq!(compression(Path::new(name)), expected, "{name}");
        }
    }
}
