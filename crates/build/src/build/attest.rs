//! Attestations of a build: an SBOM and provenance for each platform's image, in the index as
//! BuildKit stores them, or as referrers of the images. Must not depend on registries.

use std::collections::BTreeSet;

use crate::build::file::Source;
use crate::build::options::{Attestations, Attested, Detail, Form, Format, Options};
use crate::build::output::Written;
use imgctl_base::error::{Error, Result};
use imgctl_base::image::{Descriptor, Digest, Reference};
use imgctl_base::progress::Reporter;
use imgctl_store::store::Store;
use imgctl_trust::sbom::{Sbom, SbomOptions};
use imgctl_trust::{attestation, attestation::Document};
use imgctl_trust::{
    provenance,
    provenance::{Invocation, Material},
};

/// Fails if the options cannot be combined; called before anything is built.
pub(super) fn check(options: &Options) -> Result<()> {
    let asked = options.attest.sbom || options.attest.provenance.is_some();
    if asked && options.format == Format::Docker && options.attest.form != Form::Referrers {
        return Err(Error::usage("Docker's media types have no attestations")
            .hint("build with --format oci, or pass --attest-form referrers"));
    }
    Ok(())
}

/// Creates the documents of all images.
pub(super) fn documents(
    store: &Store,
    options: &Options,
    source: &Source,
    names: &[Reference],
    images: &[Written],
    reporter: &dyn Reporter,
) -> Result<Vec<Attested>> {
    let Attestations { sbom, provenance, builder, .. } = &options.attest;
    if !*sbom && provenance.is_none() {
        return Ok(Vec::new());
    }
    let attested = |written: &Written| -> Result<Attested> {
        let subject = &written.descriptor;
        let mut documents = Vec::new();
        if *sbom {
            let mut image = store.image_at(subject, None)?;
            image.reference = names.first().cloned();
            let contents = SbomOptions { files: true, timestamp: options.timestamp };
            documents.push(Sbom::of(store, &image, &contents, reporter, |sbom| {
                Document::sbom(store, sbom, subject, names.first())
            })?);
        }
        if let Some(detail) = provenance {
            let invocation = Invocation {
                minimal: *detail == Detail::Min,
                builder: builder.clone(),
                ..invocation(options, source, written.materials.clone())
            };
            let statement = provenance::statement(store, subject, names, &invocation)?;
            documents.push(Document::provenance(store, &statement)?);
        }
        Ok(Attested { subject: subject.clone(), documents })
    };
    images.iter().map(attested).collect()
}

/// Returns the parameters of the build and what it took, as provenance shows them.
pub(super) fn invocation(
    options: &Options,
    source: &Source,
    materials: BTreeSet<Material>,
) -> Invocation {
    Invocation {
        file: source.name.clone(),
        file_digest: Some(Digest::of(&source.bytes)),
        build_args: options.build_args.clone(),
        target: options.target.clone(),
        materials,
        minimal: false,
        builder: None,
    }
}

/// Stores the manifests of the documents that go into the index; returns their entries.
pub(super) fn entries(
    store: &Store,
    options: &Options,
    attested: &[Attested],
) -> Result<Vec<Descriptor>> {
    if options.attest.form == Form::Referrers {
        return Ok(Vec::new());
    }
    let entry =
        |Attested { subject, documents }: &Attested| attestation::write(store, subject, documents);
    attested.iter().map(entry).collect()
}
