//! Signs an image: adds a signature at cosign's tag in a registry, next to existing ones, or as a
//! referrer; or a sigstore bundle as a referrer.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::keys::PrivateKey;
use crate::payload::Claim;
use crate::place::Place;
use crate::sigstore::sign::Sealer;
use crate::{attachment, attachment::Written};
use crate::{
    bundle,
    bundle::{Bundle, Material},
};
use crate::{fetch, fetch::Content};
use crate::{
    referrer,
    referrer::{Attachment, push_blob},
};
use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::{Descriptor, Digest, media_type};
use imgctl_registry::{Repository, Target};

/// Number of attempts to write the tag while other clients write it.
const TRIES: usize = 5;

/// Options of signing.
#[derive(Clone, Debug, Default)]
pub struct SignOptions {
    /// The image name in the signature; `None` = the repository, as in cosign.
    pub identity: Option<String>,
    /// `-a key=value`.
    pub annotations: BTreeMap<String, String>,
    /// Also sign everything that an index lists.
    pub recursive: bool,
    /// Write a referrer instead of the tag.
    pub referrers: bool,
}

/// One signed image.
#[derive(Clone, Debug)]
pub struct Signed {
    pub digest: Digest,
    /// The tag, or the referrer's digest.
    pub place: String,
    /// The same signature by the same key already existed; nothing was written.
    pub was_there: bool,
}

/// The signer and the format of the signature.
#[derive(Clone, Copy)]
pub enum Signing<'a> {
    /// Cosign's simple signing, by a key.
    Simple(&'a PrivateKey),
    /// A sigstore bundle, by a key or by a certified identity.
    Bundle(&'a Sealer<'a>),
}

/// Signs the image at `place`.
pub fn sign(place: &Place<'_>, signing: Signing<'_>, options: &SignOptions) -> Result<Vec<Signed>> {
    let images = if options.recursive {
        fetch::with_children(&*place.shelf, &place.root)?
    } else {
        vec![place.root.clone()]
    };
    let signed = images
        .iter()
        .map(|image| {
            match signing {
                Signing::Simple(key) => sign_one(place, image, key, options),
                Signing::Bundle(sealer) => sign_bundle(place, image, sealer, options),
            }
            .context(|| format!("cannot sign {}@{}", place.shown(), image.digest))
        })
        .collect::<Result<Vec<_>>>()?;
    if signed.iter().any(|signed| !signed.was_there) {
        place.finish()?;
    }
    Ok(signed)
}

fn sign_one(
    place: &Place<'_>,
    image: &Descriptor,
    key: &PrivateKey,
    options: &SignOptions,
) -> Result<Signed> {
    let claim = Claim {
        identity: match &options.identity {
            Some(identity) => identity.clone(),
            None => place.signed_name()?,
        },
        digest: image.digest.clone(),
        optional: options
            .annotations
            .iter()
            .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
            .collect(),
    };
    let payload = claim.to_payload();
    let tags = place.repository.as_ref().filter(|_| !options.referrers);
    if let Some(found) = existing(place, image, &payload, key, tags)? {
        return Ok(Signed { digest: image.digest.clone(), place: found, was_there: true });
    }
    let layer = attachment::layer(&payload, &key.sign(&payload)?);
    let place = match tags {
        Some(repository) => {
            push_blob(repository, &layer, &payload)?;
            push_tag(repository, image, &layer)?
        }
        None => {
            let written = attachment::referrer(vec![layer.clone()], image)?;
            let blobs = [(config_of(&written), &*written.config), (layer, &*payload)];
            let digest = place.shelf.attach(image, &blobs, &written.manifest)?;
            format!("referrer {digest}")
        }
    };
    Ok(Signed { digest: image.digest.clone(), place, was_there: false })
}

fn sign_bundle(
    place: &Place<'_>,
    image: &Descriptor,
    sealer: &Sealer<'_>,
    options: &SignOptions,
) -> Result<Signed> {
    // The digest is what counts; an image without a name can be signed, too.
    let name = options.identity.clone().or_else(|| place.signed_name().ok());
    let name = name.unwrap_or_else(|| image.digest.to_string());
    let mut bundle = Bundle {
        statement: bundle::statement(&name, &image.digest, &options.annotations),
        signatures: Vec::new(),
        material: Material::default(),
    };
    if let Some(key) = sealer.own_key()
        && let Some(place) = existing_bundle(place, image, &bundle, key)?
    {
        return Ok(Signed { digest: image.digest.clone(), place, was_there: true });
    }
    let text = sealer.seal(&mut bundle)?;
    let attachment = Attachment {
        artifact_type: bundle::TYPE,
        media_type: bundle::TYPE,
        content: referrer::Content::Bytes(&text),
        annotations: &[],
    };
    // As cosign does: whoever lists the referrers sees what each of them states.
    let annotations = [
        ("dev.sigstore.bundle.content", "dsse-envelope"),
        ("dev.sigstore.bundle.predicateType", bundle::SIGN_PREDICATE),
    ];
    let manifest = referrer::annotated(image, &attachment, &annotations)?;
    let size = text.len() as u64;
    let content = Descriptor::new(bundle::TYPE, Digest::of(&text), size);
    let blobs = [(referrer::empty(), referrer::EMPTY), (content, &*text)];
    let digest = place.shelf.attach(image, &blobs, &manifest)?;
    let place = format!("referrer {digest}");
    Ok(Signed { digest: image.digest.clone(), place, was_there: false })
}

/// Returns the location of a bundle with the same statement by the same key.
fn existing_bundle(
    place: &Place<'_>,
    image: &Descriptor,
    bundle: &Bundle,
    key: &PrivateKey,
) -> Result<Option<String>> {
    let keys = [key.public()?];
    let candidates = fetch::all(&*place.shelf, None, &image.digest)?;
    Ok(candidates
        .into_iter()
        .find(|candidate| match &candidate.content {
            Ok(Content::Bundle(found)) => {
                found.statement == bundle.statement
                    && bundle::open(found, &keys, &image.digest).is_ok()
            }
            _ => false,
        })
        .map(|candidate| candidate.place))
}

/// Returns the location of an existing signature of the same payload by the same key: at the tag of
/// `tags`, otherwise among the referrers.
fn existing(
    place: &Place<'_>,
    image: &Descriptor,
    payload: &[u8],
    key: &PrivateKey,
    tags: Option<&Repository>,
) -> Result<Option<String>> {
    let public = key.public()?;
    let candidates = match tags {
        Some(repository) => fetch::tagged(repository, &image.digest)?,
        None => fetch::all(&*place.shelf, None, &image.digest)?,
    };
    Ok(candidates
        .into_iter()
        .find(|candidate| match &candidate.content {
            Ok(Content::Simple(found)) => {
                found.payload == payload && public.verifies(payload, &found.signature)
            }
            _ => false,
        })
        .map(|candidate| candidate.place))
}

/// Adds the layer to the manifest at the tag. Registries have no conditional write, so concurrent
/// writers can overwrite each other: the tag is read again until it contains this layer.
fn push_tag(repository: &Repository, image: &Descriptor, layer: &Descriptor) -> Result<String> {
    let tag = attachment::tag(&image.digest);
    for _ in 0..TRIES {
        let mut layers = fetch::layers_at(repository, &tag)
            .context(|| format!("the tag {tag} contains something else than signatures"))?
            .unwrap_or_default();
        if layers.contains(layer) {
            return Ok(format!("tag {tag}"));
        }
        layers.push(layer.clone());
        let written = attachment::tagged(layers)?;
        push_config(repository, &written)?;
        repository.push_document(
            &Target::Tag(tag.clone()),
            media_type::OCI_MANIFEST,
            &written.manifest,
        )?;
    }
    let kept = fetch::layers_at(repository, &tag)?.is_some_and(|layers| layers.contains(layer));
    if kept {
        Ok(format!("tag {tag}"))
    } else {
        Err(Error::new(Kind::Busy, format!("other clients keep writing the tag {tag}"))
            .hint("try again when they are done"))
    }
}

fn push_config(repository: &Repository, written: &Written) -> Result<()> {
    push_blob(repository, &config_of(written), &written.config)
}

fn config_of(written: &Written) -> Descriptor {
    let size = written.config.len() as u64;
    Descriptor::new(written.config_type, Digest::of(&written.config), size)
}
