//! Packed Helm charts on servers: at an address of a web server, or as an artifact of a registry (`oci://`), as `helm push`
//! makes it. Must not know what is in a chart.

use std::io::Read as _;

use imgctl_base::error::{Context as _, Error, IoContext as _, Result};
use imgctl_base::image::{Descriptor, Digest, Document, Hasher, Manifest, Reference};
use imgctl_base::progress::{Reporter, Unit};
use imgctl_base::semver::Version;

use crate::fetch::{self, fetch};
use crate::{Client, Repository, Target};

/// Begins the address of a chart in a registry.
const OCI: &str = "oci://";
/// Type of the config of a chart's manifest.
const CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";
/// Types of the layer that is the packed chart; the second is that of Helm before 3.7.
const CONTENT: [&str; 2] =
    ["application/vnd.cncf.helm.chart.content.v1.tar+gzip", "application/tar+gzip"];
/// Largest chart, in bytes.
const LARGEST: u64 = 64 << 20;

/// A chart from a server.
#[derive(Clone, Debug)]
pub struct RemoteChart {
    pub bytes: Vec<u8>,
    /// Its address without a login, with the version that was taken: `oci://ghcr.io/team/web:1.2.3`.
    pub address: String,
    /// In a registry: the digest of its manifest.
    pub manifest: Option<Digest>,
}

/// Returns whether `word` is the address of a chart on a server.
pub fn is_address(word: &str) -> bool {
    ["https://", "http://", OCI].iter().any(|scheme| word.starts_with(scheme))
}

/// Takes the chart at `address`. `client` is asked for if the chart is in a registry.
///
/// # Errors
/// If the server does not have it, what it has is not a chart or another one than its digest says, or a policy does not
/// admit it.
pub fn take(
    address: &str,
    client: &dyn Fn() -> Result<Client>,
    reporter: &dyn Reporter,
) -> Result<RemoteChart> {
    let Some(name) = address.strip_prefix(OCI) else {
        let bytes = fetch(address, reporter)?;
        return Ok(RemoteChart { bytes, address: fetch::shown(address)?, manifest: None });
    };
    let reference = Reference::parse(name).context(|| format!("cannot use {address}"))?;
    if reference.registry().is_none() {
        return Err(Error::usage(format!("{address} names no registry"))
            .hint("oci://REGISTRY/REPOSITORY:VERSION"));
    }
    let client = client()?;
    let repository = client.repository(&reference)?;
    let reference = match (reference.tag(), reference.digest()) {
        (None, None) => newest(&repository, name)?,
        _ => reference,
    };
    let address = format!("{OCI}{reference}");
    let found = pulled(&client, &repository, &reference, reporter);
    let (bytes, manifest) = found.context(|| format!("cannot take the chart {address}"))?;
    Ok(RemoteChart { bytes, address, manifest: Some(manifest) })
}

/// Returns the name with the newest version among the repository's tags. Pre-releases do not count.
fn newest(repository: &Repository, name: &str) -> Result<Reference> {
    let tags = repository.tags()?;
    // A tag has no `+`: Helm writes `_`.
    let version = |tag: &String| Version::parse(&tag.replace('_', "+"));
    let released = tags.iter().filter_map(|tag| Some((version(tag)?, tag)));
    let newest = released
        .filter(|(version, _)| version.prerelease.is_empty())
        .max_by(|(one, _), (other, _)| one.compare(other));
    let Some((_, tag)) = newest else {
        return Err(Error::not_found(format!("{OCI}{name} has no released version"))
            .hint(format!("`imgctl tags {name}` lists what it has; name one: {OCI}{name}:TAG")));
    };
    Reference::parse(&format!("{name}:{tag}"))
}

fn pulled(
    client: &Client,
    repository: &Repository,
    reference: &Reference,
    reporter: &dyn Reporter,
) -> Result<(Vec<u8>, Digest)> {
    let document = repository.document(&Target::of(reference))?;
    let digest = document.descriptor.digest.clone();
    let content = match Document::parse(&document.bytes, Some(&document.descriptor.media_type))? {
        Document::Manifest(manifest) => content(manifest)?,
        Document::Index(_) => return Err(no_chart("an index of images")),
    };
    // The verdict of a policy is an error unless the chart may be used.
    let _ = client.admit(reference, &digest, std::slice::from_ref(&digest))?;
    Ok((read(repository, &content, reporter)?, digest))
}

/// Returns the layer that is the packed chart.
fn content(manifest: Manifest) -> Result<Descriptor> {
    if manifest.config.media_type != CONFIG {
        let what = manifest.artifact_type.unwrap_or(manifest.config.media_type);
        return Err(no_chart(&format!("of the type `{}`", what.escape_debug())));
    }
    let is_content = |layer: &Descriptor| CONTENT.contains(&&*layer.media_type);
    let found = manifest.layers.into_iter().find(is_content);
    let layer = found.ok_or_else(|| no_chart("a chart without content"))?;
    if layer.size > LARGEST {
        return Err(Error::bad_content(format!(
            "it has {} bytes, and a chart has at most {LARGEST}",
            layer.size
        )));
    }
    Ok(layer)
}

fn no_chart(what: &str) -> Error {
    Error::bad_content(format!("the artifact is not a Helm chart but {what}"))
        .hint("`helm push` puts charts into a registry; an image is for FROM and `imgctl pull`")
}

fn read(repository: &Repository, layer: &Descriptor, reporter: &dyn Reporter) -> Result<Vec<u8>> {
    let task = reporter.start("downloading the chart", Unit::Bytes, Some(layer.size));
    let mut bytes = Vec::new();
    let reader = repository.blob(layer, 0)?;
    reader.take(layer.size + 1).read_to_end(&mut bytes).doing(|| "cannot read it".to_owned())?;
    let mut hasher = Hasher::with(layer.digest.algorithm());
    hasher.update(&bytes);
    if bytes.len() as u64 != layer.size || hasher.finish() != layer.digest {
        return Err(Error::bad_content(format!(
            "the registry sent other bytes than those of {}",
            layer.digest
        )));
    }
    task.advance(layer.size);
    task.done("the chart");
    Ok(bytes)
}
