//! Tests against our own server, which supports features that docker-registry lacks.

use super::uploads::breaking_line;
use super::*;
use crate::layout::Layout;
use crate::server::{LayoutBackend, ServeOptions, Server};
use imgctl_base::image::media_type;

/// Starts our server on a temporary directory for the duration of the test.
fn serve() -> (String, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::create(directory.path(), false).unwrap();
    let options = ServeOptions {
        addresses: vec![([127, 0, 0, 1], 0).into()],
        deletion: true,
        ..ServeOptions::default()
    };
    let server = Server::bind(&options, Arc::new(LayoutBackend::new(layout))).unwrap();
    let host = server.address().to_string();
    std::thread::spawn(move || server.run(std::future::pending()));
    (host, directory)
}

#[test]
fn what_came_before_a_break_is_not_sent_again() {
    let (host, _directory) = serve();
    let (line, breaks) = breaking_line(&host, 3 << 20);
    let bytes = noise(20 << 20);
    let broken = on(&client(None), &line, "app");
    assert_eq!(push(&broken, &bytes, &[]).unwrap(), Pushed::Uploaded);
    let breaks = breaks.load(std::sync::atomic::Ordering::Relaxed);
    assert!((6..=7).contains(&breaks), "{breaks} breaks");
    assert!(read(&on(&client(None), &host, "app"), &blob(&bytes), 0).unwrap() == bytes);
}

#[test]
fn referrers_tags_mounts_and_deletions_are_understood() {
    let (host, _directory) = serve();
    let client = client(None);
    let repository = on(&client, &host, "app");
    assert_eq!(push(&repository, b"{}", &[]).unwrap(), Pushed::Uploaded);
    let other = on(&client, &host, "other");
    assert_eq!(push(&other, b"{}", &["app"]).unwrap(), Pushed::Mounted);
    let subject = Digest::of(b"subject");
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST, "artifactType": "application/x.a",
        "config": blob(b"{}"), "layers": [],
        "subject": Descriptor::new(media_type::OCI_MANIFEST, subject.clone(), 7),
    });
    let bytes = serde_json::to_vec(&manifest).unwrap();
    let media = media_type::OCI_MANIFEST;
    let digest = repository.push_referrer(&subject, media, &bytes).unwrap();
    let found = repository.referrers(&subject, Some("application/x.a")).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].digest, digest);
    assert_eq!(repository.referrers(&subject, Some("application/x.b")).unwrap(), []);
    // The registry has the API, so there is no fallback tag.
    assert!(repository.tags().unwrap_or_default().is_empty());
    for name in ["v2", "v1"] {
        repository.push_document(&tag(name), media, &bytes).unwrap();
    }
    assert_eq!(repository.tags().unwrap(), ["v1", "v2"]);
    repository.delete(&tag("v1")).unwrap();
    assert_eq!(repository.tags().unwrap(), ["v2"]);
    repository.delete(&Target::Digest(digest)).unwrap();
    assert_eq!(repository.head(&tag("v2")).unwrap(), None);
}
