//! Lists of referrers under the fallback tag, which clients write: cosign 3.1 puts the type of the empty config
//! there, others no type.

use std::collections::HashMap;

use super::fake::{Answer, Fake};
use super::*;
use imgctl_base::image::{Index, media_type};

/// A manifest of a kind.
fn artifact(kind: &str, number: usize) -> Vec<u8> {
    serde_json::to_vec(&serde_json::json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST, "artifactType": kind,
        "config": blob(b"{}"), "layers": [], "annotations": {"number": number.to_string()},
    }))
    .unwrap()
}

fn entry(manifest: &[u8], told: Option<&str>) -> Descriptor {
    let size = manifest.len() as u64;
    let mut entry = Descriptor::new(media_type::OCI_MANIFEST, Digest::of(manifest), size);
    entry.artifact_type = told.map(str::to_owned);
    entry
}

/// A registry without the referrers API that has the list and the manifests.
fn serve(listed: &[Descriptor], manifests: Vec<Vec<u8>>) -> Fake {
    let index = serde_json::to_vec(&Index::new(listed.to_vec())).unwrap();
    let manifests: HashMap<String, Vec<u8>> =
        manifests.into_iter().map(|bytes| (Digest::of(&bytes).to_string(), bytes)).collect();
    Fake::start(move |request| {
        let last = request.target.rsplit('/').next().unwrap_or_default();
        let (media, bytes) = match manifests.get(last) {
            Some(bytes) if request.target.contains("/manifests/") => {
                (media_type::OCI_MANIFEST, bytes)
            }
            _ if last.starts_with("sha256-") => (media_type::OCI_INDEX, &index),
            _ => return Answer::not_found(),
        };
        Answer::new("200 OK", &[("Content-Type", media)], bytes)
    })
}

#[test]
fn where_the_list_tells_no_type_the_manifest_does() {
    let kinds = [
        ("x/a", Some(media_type::OCI_EMPTY)),
        ("x/a", None),
        ("x/a", Some("")),
        ("x/b", Some(media_type::OCI_EMPTY)),
        // What a list tells is not asked again.
        ("x/b", Some("x/a")),
        ("x/a", Some("x/b")),
    ];
    let manifests: Vec<Vec<u8>> =
        kinds.iter().enumerate().map(|(number, (kind, _))| artifact(kind, number)).collect();
    let mut listed: Vec<Descriptor> =
        manifests.iter().zip(kinds).map(|(bytes, (_, told))| entry(bytes, told)).collect();
    let gone = entry(b"gone", Some(media_type::OCI_EMPTY));
    listed.push(gone.clone());
    let fake = serve(&listed, manifests);
    let repository = on(&client(None), &fake.host, "app");
    let subject = Digest::of(b"subject");
    let found = repository.referrers(&subject, Some("x/a")).unwrap();
    let digests: Vec<&Digest> = found.iter().map(|entry| &entry.digest).collect();
    assert_eq!(digests, [0, 1, 2, 4].map(|at: usize| &listed[at].digest));
    assert_eq!(found[1].annotations["number"], "1");
    let all = repository.referrers(&subject, None).unwrap();
    assert_eq!(all.len(), listed.len());
    assert_eq!(all.last(), Some(&gone), "one that is missing hides no other");
}

#[test]
fn a_long_list_without_types_costs_a_bounded_number_of_requests() {
    let manifests: Vec<Vec<u8>> = (0..300).map(|number| artifact("x/a", number)).collect();
    let listed: Vec<Descriptor> = manifests.iter().map(|bytes| entry(bytes, None)).collect();
    let fake = serve(&listed, manifests);
    let repository = on(&client(None), &fake.host, "app");
    let found = repository.referrers(&Digest::of(b"subject"), Some("x/a")).unwrap();
    let asked = fake.asked("GET", "/manifests/sha256:").len();
    assert_eq!(found.len(), asked);
    assert!((10..=100).contains(&asked), "{asked} requests");
}
