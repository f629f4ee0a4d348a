//! Where a build's result goes: `--push`, `--output`, `--manifest`, and what is said about it
//! (`--attest`, `--sbom`, `--provenance`), in the forms of BuildKit and buildah.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::image::Reference;
use imgctl_build::build::deliver::{Delivery, Export, To};
use imgctl_build::build::options::{Attestations, Detail, Form};
use imgctl_build::build::{Built, Format, Options};
use imgctl_frontend::{
    context::Context,
    names::{csv, given, references},
};
use imgctl_layer::Compression;
use imgctl_transfer::transfer::{ArchiveFormat, publish::Place};
use imgctl_trust::provenance;
use imgctl_trust::sbom::{Sbom, SbomOptions};

/// Destinations and attestations of the result.
#[derive(Args, Debug, Default)]
pub(crate) struct OutputArgs {
    /// Push the image under all its names (same as -o type=registry)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", hide_possible_values = true)]
    push: Option<bool>,

    /// Keep the image in the store, as every build does (for scripts for docker)
    #[arg(long, hide = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    load: Option<bool>,

    /// Where the result goes beside the store: a directory for its files, `-` for a tar of them, or
    /// type=image|registry|oci|oci-archive|docker|local|tar[,dest=PATH][,name=NAME]
    /// [,push-by-digest=true] (may be repeated)
    #[arg(short, long = "output", value_name = "DIR|SPEC")]
    outputs: Vec<String>,

    /// Add the image to this manifest list in the store, which is created if necessary
    #[arg(long, value_name = "NAME")]
    manifest: Option<String>,

    /// Add an attestation to the image: type=sbom or type=provenance[,mode=min|max] (may be repeated)
    #[arg(long = "attest", value_name = "SPEC")]
    attest: Vec<String>,

    /// Form of attestations: in the image's index as BuildKit writes them, as referrers of the image,
    /// or both [default: buildkit]
    #[arg(long, value_enum, value_name = "buildkit|referrers|both", hide_possible_values = true)]
    attest_form: Option<FormArg>,

    /// Write SLSA provenance of the image to a file, as an in-toto statement; with `true`, mode=min or
    /// mode=max, same as --attest type=provenance
    #[arg(long, value_name = "FILE|SPEC")]
    provenance: Option<String>,

    /// Write an SPDX SBOM of the image to a file; with `true`, same as --attest type=sbom
    #[arg(long, value_name = "FILE|BOOL", conflicts_with_all = ["check", "images_report"])]
    sbom: Option<String>,
}

/// Form of attestations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormArg {
    Buildkit,
    #[value(alias = "cosign")]
    Referrers,
    Both,
}

/// The flags as values.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    pub(crate) delivery: Delivery,
    /// Files to write documents about the image to.
    pub(crate) sbom: Option<PathBuf>,
    pub(crate) provenance: Option<PathBuf>,
    /// An output asks for a registry without TLS (`registry.insecure=true`).
    pub(crate) insecure: bool,
}

/// Parses the flags. Completes `options` with what outputs say about the image itself: names,
/// compression, annotations, attestations. Fails before the build if an output cannot be had.
pub(crate) fn resolve(
    args: &OutputArgs,
    options: &mut Options,
    context: &Context,
) -> Result<Outputs> {
    let mut specs =
        given(&args.outputs).map(|text| Spec::parse(text)).collect::<Result<Vec<_>>>()?;
    if args.push == Some(true) {
        let images = specs.iter_mut().filter(|spec| spec.kind == Kind::Image);
        // Like buildx: pushes the images that other outputs describe, if there are any.
        if images.map(|spec| spec.push = true).count() == 0 {
            specs.push(Spec { push: true, registry_only: true, ..Spec::default() });
        }
    }
    let mut outputs = Outputs::default();
    let mut names: Vec<Reference> = Vec::new();
    let images: Vec<&Spec> = specs.iter().filter(|spec| spec.kind == Kind::Image).collect();
    for spec in &images {
        let own = references(&spec.names)?;
        let named = if own.is_empty() { &options.tags } else { &own };
        if spec.push && named.is_empty() {
            return Err(Error::usage("the image to push has no name")
                .hint("pass -t REGISTRY/NAME:TAG, or -o type=registry,name=REGISTRY/NAME:TAG"));
        }
        for name in named {
            if spec.push {
                outputs.delivery.places.push(Place::new(name, spec.by_digest)?);
            }
            if !spec.by_digest && !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    if !images.is_empty() {
        options.tags = names;
    }
    for spec in &specs {
        spec.describe(options, context)?;
        outputs.insecure |= spec.insecure;
        outputs.delivery.exports.extend(spec.export(context)?);
        outputs.delivery.split = spec.split.or(outputs.delivery.split);
    }
    outputs.delivery.list =
        args.manifest.as_deref().map(Reference::parse).transpose()?.map(|name| name.qualified());
    outputs.attest(args, options, context)?;
    // Layers can stay in the cache's registry if nobody reads the image on this machine.
    options.cache.leave = args.load != Some(true)
        && !specs.is_empty()
        && specs.iter().all(|spec| spec.registry_only && spec.push)
        && outputs.delivery.list.is_none()
        && outputs.sbom.is_none()
        && outputs.provenance.is_none()
        && !options.attest.sbom
        && options.attest.provenance.is_none();
    outputs.delivery.check(options)?;
    if outputs.delivery.uses_stdout() && context.ui.is_json() {
        return Err(Error::usage("--json and an output on stdout exclude each other")
            .hint("write the output to a file: dest=FILE"));
    }
    Ok(outputs)
}

impl Outputs {
    /// Writes the documents that were asked for as files.
    pub(crate) fn write_documents(&self, built: &Built, context: &Context) -> Result<()> {
        let (store, root) = (context.store()?, &built.descriptor);
        if let Some(path) = &self.provenance {
            let text = provenance::statement(store, root, &built.names, &built.invocation)?;
            std::fs::write(path, text).path("write", path)?;
        }
        if let Some(path) = &self.sbom {
            let mut image = store.image_at(root, None)?;
            image.reference = built.names.first().cloned();
            // The same document as that of `imgctl sbom`.
            let contents = SbomOptions { files: true, timestamp: None };
            Sbom::of(store, &image, &contents, context.ui.reporter(), |sbom| {
                let document = sbom.document(store)?;
                document.copy_to(&mut File::create(path).path("write", path)?)
            })?;
        }
        Ok(())
    }

    fn attest(
        &mut self,
        args: &OutputArgs,
        options: &mut Options,
        context: &Context,
    ) -> Result<()> {
        let mut asked = Attestations::default();
        for spec in given(&args.attest) {
            let fields = Fields::parse(spec, "--attest")?;
            match fields.get("type") {
                Some("sbom") => sbom_fields(&fields, &mut asked, context)?,
                Some("provenance") => provenance_fields(&fields, &mut asked, context)?,
                other => {
                    let other = other.unwrap_or_default();
                    return Err(Error::usage(format!("--attest does not support type={other}"))
                        .hint("type is sbom or provenance"));
                }
            }
        }
        match args.sbom.as_deref() {
            None => {}
            Some(text) => match switch(text) {
                Some(on) => asked.sbom = on,
                None if text.starts_with("generator=") => {
                    sbom_fields(&Fields::parse(text, "--sbom")?, &mut asked, context)?;
                }
                None => self.sbom = Some(PathBuf::from(text)),
            },
        }
        const KEYS: [&str; 6] =
            ["mode=", "builder-id=", "inline-only=", "reproducible=", "version=", "disabled="];
        match args.provenance.as_deref() {
            None => {}
            Some(text) => match switch(text) {
                Some(on) => asked.provenance = on.then_some(Detail::Min),
                None if KEYS.iter().any(|key| text.starts_with(key)) => {
                    provenance_fields(&Fields::parse(text, "--provenance")?, &mut asked, context)?;
                }
                None => self.provenance = Some(PathBuf::from(text)),
            },
        }
        asked.form = match args.attest_form {
            None | Some(FormArg::Buildkit) => Form::Index,
            Some(FormArg::Referrers) => Form::Referrers,
            Some(FormArg::Both) => Form::Both,
        };
        let has_any = asked.sbom || asked.provenance.is_some();
        if args.attest_form.is_some() && !has_any {
            return Err(Error::usage("--attest-form needs an attestation")
                .hint("add --attest type=sbom or --attest type=provenance"));
        }
        if asked.form == Form::Referrers && self.delivery.places.is_empty() {
            return Err(Error::usage("referrers are in registries, and nothing is pushed")
                .hint("add --push, or pass --attest-form buildkit"));
        }
        self.delivery.form = asked.form;
        options.attest = asked;
        Ok(())
    }
}

fn sbom_fields(fields: &Fields, asked: &mut Attestations, context: &Context) -> Result<()> {
    asked.sbom = true;
    for (key, value) in &fields.0 {
        match (key.as_str(), switch(value)) {
            ("type" | "filename", _) => {}
            ("disabled", Some(off)) => asked.sbom = !off,
            ("generator", _) => {
                context.ui.note("generator has no effect: imgctl lists the contents itself");
            }
            _ => return Err(fields.unsupported(key, value)),
        }
    }
    Ok(())
}

fn provenance_fields(fields: &Fields, asked: &mut Attestations, context: &Context) -> Result<()> {
    let mut detail = Some(Detail::Min);
    for (key, value) in &fields.0 {
        match (key.as_str(), value.as_str(), switch(value)) {
            ("type" | "filename" | "reproducible", ..) => {}
            ("mode", "min", _) => detail = Some(Detail::Min),
            ("mode", "max", _) => detail = Some(Detail::Max),
            ("builder-id", id, _) => asked.builder = Some(id.to_owned()),
            ("version", "v1" | "slsa-v1", _) => {}
            ("version", ..) => {
                context.ui.note("version has no effect: the provenance is SLSA v1");
            }
            ("inline-only", _, Some(_)) => {
                context.ui.note("inline-only has no effect: every image gets the provenance");
            }
            ("disabled", _, Some(off)) => detail = detail.filter(|_| !off),
            _ => return Err(fields.unsupported(key, value)),
        }
    }
    asked.provenance = detail;
    Ok(())
}

/// Parses a boolean as Go does.
fn switch(text: &str) -> Option<bool> {
    match text {
        "true" | "1" | "t" | "T" | "TRUE" | "True" => Some(true),
        "false" | "0" | "f" | "F" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// `KEY=VALUE` fields in CSV: a field with commas is quoted as a whole (`"name=a,b"`).
#[derive(Debug)]
struct Fields(Vec<(String, String)>, String);

impl Fields {
    fn parse(text: &str, flag: &str) -> Result<Self> {
        let malformed = |field: &str| {
            Error::usage(format!("{flag} `{text}`: `{field}` is not of the form KEY=VALUE"))
        };
        let mut fields = Vec::new();
        for field in csv(text) {
            let (key, value) = field.split_once('=').ok_or_else(|| malformed(&field))?;
            fields.push((key.trim().to_ascii_lowercase(), value.to_owned()));
        }
        Ok(Self(fields, flag.to_owned()))
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn unsupported(&self, key: &str, value: &str) -> Error {
        Error::usage(format!("{} does not support `{key}={value}`", self.1))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// In the store, and in registries if it is pushed.
    #[default]
    Image,
    Oci,
    Docker,
    Local,
    Tar,
    /// Nothing but the build cache.
    CacheOnly,
}

/// One `--output`.
#[derive(Debug, Default)]
struct Spec {
    kind: Kind,
    to: Option<To>,
    names: Vec<String>,
    push: bool,
    by_digest: bool,
    /// A registry is the only destination (`--push`, `type=registry`).
    registry_only: bool,
    /// `tar=false`: a directory instead of an archive.
    directory: bool,
    insecure: bool,
    compression: Option<String>,
    level: Option<i32>,
    oci: Option<bool>,
    /// `platform-split`: a directory for each platform.
    split: Option<bool>,
    annotations: Vec<(String, String)>,
    notes: Vec<String>,
}

impl Spec {
    fn parse(text: &str) -> Result<Self> {
        if !text.contains(',') && !text.starts_with("type=") {
            if text.is_empty() {
                return Err(Error::usage("--output is empty"));
            }
            let (kind, to) = match text {
                "-" => (Kind::Tar, To::Stdout),
                path => (Kind::Local, To::Path(PathBuf::from(path))),
            };
            return Ok(Self { kind, to: Some(to), ..Self::default() });
        }
        let fields = Fields::parse(text, "--output")?;
        let mut spec = Self::default();
        match fields.get("type") {
            Some("image") => {}
            Some("registry") => (spec.push, spec.registry_only) = (true, true),
            Some("oci" | "oci-archive") => spec.kind = Kind::Oci,
            Some("oci-dir") => (spec.kind, spec.directory) = (Kind::Oci, true),
            Some("docker" | "docker-archive") => spec.kind = Kind::Docker,
            Some("local") => spec.kind = Kind::Local,
            Some("tar") => spec.kind = Kind::Tar,
            Some("cacheonly") => spec.kind = Kind::CacheOnly,
            other => {
                let what = match other {
                    Some(other) => format!("does not support type={other}"),
                    None => format!("`{text}` has no type"),
                };
                return Err(Error::usage(format!("--output {what}"))
                    .hint("type is image, registry, oci, docker, local or tar"));
            }
        }
        for (key, value) in &fields.0 {
            spec.set(key, value)
                .and_then(|known| known.then_some(()))
                .ok_or_else(|| fields.unsupported(key, value))?;
        }
        Ok(spec)
    }

    /// Sets a field; returns `None` or `false` if there is no such field or value.
    fn set(&mut self, key: &str, value: &str) -> Option<bool> {
        match key {
            "type" => {}
            "dest" => {
                self.to = Some(match value {
                    "-" => To::Stdout,
                    path => To::Path(PathBuf::from(path)),
                });
            }
            "name" => self.names = value.split(',').map(|name| name.trim().to_owned()).collect(),
            "push" => self.push = switch(value)?,
            "platform-split" => self.split = Some(switch(value)?),
            "push-by-digest" => self.by_digest = switch(value)?,
            "tar" => self.directory = !switch(value)?,
            "registry.insecure" => self.insecure = switch(value)?,
            "compression" => {
                self.compression = Some(match value {
                    "uncompressed" => "none".to_owned(),
                    other => other.to_owned(),
                });
            }
            "compression-level" => self.level = Some(value.parse().ok()?),
            "oci-mediatypes" => self.oci = Some(switch(value)?),
            "force-compression" => {
                if switch(value)? {
                    self.notes.push(
                        "force-compression has no effect: layers of base images keep their \
                         compression (`imgctl push --compression` changes all layers)"
                            .to_owned(),
                    );
                }
            }
            "unpack" => {
                if switch(value)? {
                    self.notes.push("unpack has no effect: a mount unpacks the image".to_owned());
                }
            }
            // These are what every build does, or have no other meaning here.
            "name-canonical"
            | "store"
            | "rewrite-timestamp"
            | "buildinfo"
            | "dangling-name-prefix" => {}
            _ => {
                let name = key.strip_prefix("annotation.");
                let name = name.or_else(|| key.strip_prefix("annotation-manifest."))?;
                self.annotations.push((name.to_owned(), value.to_owned()));
            }
        }
        Some(true)
    }

    /// Completes the build's options with what the output says about the image.
    fn describe(&self, options: &mut Options, context: &Context) -> Result<()> {
        context.ui.notes(&self.notes);
        if self.oci == Some(false) && options.format == Format::Oci {
            options.format = Format::Docker;
            if self.compression.is_none() {
                options.compression = Compression::parse("gzip", self.level)?;
            }
        }
        if let Some(method) = &self.compression {
            options.compression = Compression::parse(method, self.level)?;
        }
        options.annotations.extend(self.annotations.iter().cloned());
        Ok(())
    }

    /// Returns the files or archive that the output asks for.
    fn export(&self, context: &Context) -> Result<Option<Export>> {
        let to = || {
            let to = self.to.clone().unwrap_or(To::Stdout);
            if to == To::Stdout && context.ui.stdout_is_terminal() {
                return Err(Error::usage("cannot write an archive to a terminal")
                    .hint("redirect stdout, or pass dest=FILE"));
            }
            Ok(to)
        };
        Ok(match (self.kind, self.directory) {
            (Kind::Image | Kind::CacheOnly, _) => None,
            (Kind::Oci, directory) => {
                let to = to()?;
                if directory && to == To::Stdout {
                    return Err(Error::usage("an OCI layout is a directory")
                        .hint("pass dest=DIR, or leave out tar=false"));
                }
                let format =
                    if directory { ArchiveFormat::OciDirectory } else { ArchiveFormat::OciArchive };
                Some(Export::Archive { format, to, names: references(&self.names)? })
            }
            (Kind::Docker, false) if self.to.is_some() => {
                let (format, names) = (ArchiveFormat::DockerArchive, references(&self.names)?);
                Some(Export::Archive { format, to: to()?, names })
            }
            (Kind::Docker, _) => {
                return Err(Error::usage("images cannot be loaded into a docker daemon").hint(
                    "pass dest=FILE, or pipe: imgctl build -o type=docker,dest=- . | docker load",
                ));
            }
            (Kind::Tar, _) => Some(Export::Tar(to()?)),
            (Kind::Local, _) => match &self.to {
                Some(To::Path(path)) if path != Path::new("") => Some(Export::Files(path.clone())),
                _ => {
                    return Err(Error::usage("--output type=local has no directory")
                        .hint("pass dest=DIR, or type=tar,dest=- for a tar on stdout"));
                }
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_spelt_as_in_buildx_and_buildah() {
        let spec = |text: &str| Spec::parse(text).unwrap();
        assert_eq!(spec("out").to, Some(To::Path("out".into())));
        assert_eq!((spec("-").kind, spec("-").to), (Kind::Tar, Some(To::Stdout)));
        let pushed = spec("type=image,\"name=reg.io/a:1,reg.io/a:2\",push=true");
        assert!(pushed.push && pushed.kind == Kind::Image);
        assert_eq!(pushed.names, ["reg.io/a:1", "reg.io/a:2"]);
        let digest = spec("type=registry,name=reg.io/a,push-by-digest=true,name-canonical=true");
        assert!(digest.push && digest.by_digest);
        let oci = spec("type=oci,dest=a.tar,compression=gzip,compression-level=9");
        assert_eq!((oci.kind, oci.level), (Kind::Oci, Some(9)));
        let annotated = spec("type=image,annotation.a.b=c=d");
        assert_eq!(annotated.annotations, [("a.b".to_owned(), "c=d".to_owned())]);
        for wrong in ["", "type=s3", "dest=a,name=b", "type=oci,what=1", "type=image,push=maybe"] {
            assert!(Spec::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn quoted_fields_keep_their_commas() {
        assert_eq!(csv("a,\"b,c\",d"), ["a", "b,c", "d"]);
        assert_eq!(csv("\"a\"\"b\""), ["a\"b"]);
        assert_eq!(csv("a=\"x\""), ["a=\"x\""]);
    }
}
