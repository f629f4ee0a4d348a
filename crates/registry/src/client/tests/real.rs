//! Against Debian's docker-registry.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::credentials::Secret;
use crate::registries::Pem;
use imgctl_base::image::{Document, Index, media_type};

/// `secret`, hashed by bcrypt.
const SECRET: &str = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";

/// A docker-registry with its own directory, stopped on drop.
pub(super) struct Registry {
    child: Child,
    pub(super) host: String,
    _directory: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    pub(super) fn start() -> Self {
        Self::configured("", |_| String::new())
    }

    /// Starts a registry with an extended configuration: `http` is inserted below `http:`, `rest`
    /// at the top level.
    pub(super) fn configured(http: &str, rest: impl FnOnce(&std::path::Path) -> String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let configuration = format!(
            "version: 0.1\nlog:\n  level: info\n  formatter: json\nstorage:\n  delete:\n    enabled: true\n  \
             filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:0\n{http}{}",
            path.join("data").display(),
            rest(path),
        );
        std::fs::write(path.join("config.yml"), configuration).unwrap();
        let mut child = Command::new("docker-registry")
            .arg("serve")
            .arg(path.join("config.yml"))
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let host = lines
            .by_ref()
            .map_while(std::io::Result::ok)
            .find_map(|line| {
                let (_, rest) = line.split_once("listening on ")?;
                let host: String = rest.chars().take_while(|c| !"\", ".contains(*c)).collect();
                Some(host)
            })
            .expect("docker-registry does not start");
        // The registry blocks if its output is not read.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, host, _directory: directory }
    }
}

fn manifest(layer: &Descriptor, config: &Descriptor) -> Vec<u8> {
    serde_json::to_vec(&serde_json::json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_MANIFEST,
        "config": config,
        "layers": [layer],
    }))
    .unwrap()
}

#[test]
fn an_image_goes_there_and_back() {
    let registry = Registry::start();
    let client = client(None);
    let repository = on(&client, &registry.host, "team/app");
    let layer = noise(3 << 20);
    let config = b"{}".to_vec();
    for bytes in [&layer, &config, &Vec::new()] {
        let descriptor = blob(bytes);
        assert_eq!(repository.blob_size(&descriptor.digest).unwrap(), None);
        assert_eq!(push(&repository, bytes, &[]).unwrap(), Pushed::Uploaded);
        assert_eq!(push(&repository, bytes, &[]).unwrap(), Pushed::Existed);
        assert_eq!(repository.blob_size(&descriptor.digest).unwrap(), Some(bytes.len() as u64));
        assert_eq!(read(&repository, &descriptor, 0).unwrap(), *bytes);
    }
    assert_eq!(read(&repository, &blob(&layer), 1 << 20).unwrap(), layer[1 << 20..]);
    assert_eq!(read(&repository, &blob(&layer), 3 << 20).unwrap(), b"");

    let mut of_config = blob(&config);
    of_config.media_type = media_type::OCI_CONFIG.to_owned();
    let bytes = manifest(&blob(&layer), &of_config);
    assert_eq!(repository.head(&tag("v1")).unwrap(), None);
    assert!(!repository.push_document(&tag("v1"), media_type::OCI_MANIFEST, &bytes).unwrap());
    let head = repository.head(&tag("v1")).unwrap().unwrap();
    assert_eq!(
        head,
        Descriptor::new(media_type::OCI_MANIFEST, Digest::of(&bytes), bytes.len() as u64)
    );
    for target in [tag("v1"), Target::Digest(Digest::of(&bytes))] {
        let document = repository.document(&target).unwrap();
        assert_eq!(document.bytes, bytes);
        assert_eq!(document.descriptor, head);
    }
    assert_eq!(repository.tags().unwrap(), ["v1"]);
    repository.delete(&Target::Digest(head.digest.clone())).unwrap();
    let error = repository.document(&Target::Digest(head.digest)).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    assert!(error.to_string().contains("MANIFEST_UNKNOWN"), "{error}");
}

#[test]
fn a_blob_is_mounted_from_another_repository() {
    let registry = Registry::start();
    let client = client(None);
    let layer = noise(1 << 20);
    let donor = on(&client, &registry.host, "donor");
    let taker = on(&client, &registry.host, "taker");
    assert_eq!(push(&donor, &layer, &[]).unwrap(), Pushed::Uploaded);
    assert_eq!(push(&taker, &layer, &["none", "taker", "donor"]).unwrap(), Pushed::Mounted);
    assert_eq!(read(&taker, &blob(&layer), 0).unwrap(), layer);
    let other = noise(400_000);
    assert_eq!(push(&taker, &other, &["donor"]).unwrap(), Pushed::Uploaded);
    assert_eq!(read(&taker, &blob(&other), 0).unwrap(), other);
}

#[test]
fn what_refers_to_a_manifest_is_kept_under_a_tag() {
    let registry = Registry::start();
    let repository = on(&client(None), &registry.host, "app");
    push(&repository, b"{}", &[]).unwrap();
    let bytes = manifest(&blob(b"{}"), &blob(b"{}"));
    let subject = Digest::of(&bytes);
    repository.push_document(&tag("v1"), media_type::OCI_MANIFEST, &bytes).unwrap();
    assert_eq!(repository.referrers(&subject, None).unwrap(), []);
    let mut referring = Vec::new();
    for kind in ["application/x.a", "application/x.b", "application/x.a"] {
        let number = referring.len().to_string();
        let bytes = serde_json::to_vec(&serde_json::json!({
            "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST, "artifactType": kind,
            "config": blob(b"{}"), "layers": [],
            "subject": Descriptor::new(media_type::OCI_MANIFEST, subject.clone(), bytes.len() as u64),
            "annotations": {"number": number},
        }))
        .unwrap();
        for _ in 0..2 {
            referring.push(
                repository.push_referrer(&subject, media_type::OCI_MANIFEST, &bytes).unwrap(),
            );
        }
    }
    referring.dedup();
    let digests = |found: Vec<Descriptor>| -> Vec<Digest> {
        found.into_iter().map(|entry| entry.digest).collect()
    };
    let all = repository.referrers(&subject, None).unwrap();
    assert_eq!(all[1].artifact_type.as_deref(), Some("application/x.b"));
    assert_eq!(all[1].annotations["number"], "2");
    assert_eq!(digests(all), referring);
    let some = repository.referrers(&subject, Some("application/x.a")).unwrap();
    assert_eq!(digests(some), [referring[0].clone(), referring[2].clone()]);
    let tag = tag(&format!("sha256-{}", subject.hex()));
    let document = repository.document(&tag).unwrap();
    assert!(matches!(
        Document::parse(&document.bytes, None).unwrap(),
        Document::Index(Index { manifests, .. }) if manifests.len() == 3
    ));
}

#[test]
fn a_catalog_is_read_through_its_pages() {
    let registry = Registry::start();
    let client = client(None);
    for name in ["a", "b/c", "d"] {
        let repository = on(&client, &registry.host, name);
        push(&repository, b"{}", &[]).unwrap();
        let bytes = manifest(&blob(b"{}"), &blob(b"{}"));
        for version in 0..5 {
            let tag = tag(&format!("v{version}"));
            repository.push_document(&tag, media_type::OCI_MANIFEST, &bytes).unwrap();
        }
        // docker-registry returns tags in no particular order.
        let mut tags = repository.tags().unwrap();
        tags.sort();
        assert_eq!(tags, ["v0", "v1", "v2", "v3", "v4"]);
    }
    let whole = client.place(&endpoint(&registry.host, ""), &registry.host, false).unwrap();
    assert_eq!(client.shared.run(whole.catalog()).unwrap(), ["a", "b/c", "d"]);
}

fn login(user: &str, password: &str) -> Login {
    Login::Password { user: user.to_owned(), password: Secret::new(password) }
}

/// Returns the place for requests about the registry as a whole.
fn whole(repository: &Repository) -> Place {
    Place { repository: String::new(), ..repository.inner.write.clone() }
}

/// Starts a registry with a password, and returns the login.
pub(super) fn protected() -> (Registry, Login) {
    let registry = Registry::configured("", |directory| {
        let file = directory.join("htpasswd");
        std::fs::write(&file, format!("me:{SECRET}\n")).unwrap();
        format!("auth:\n  htpasswd:\n    realm: here\n    path: {}\n", file.display())
    });
    (registry, login("me", "secret"))
}

#[test]
fn a_registry_with_passwords_lets_in_who_has_one() {
    let (registry, known) = protected();
    let layer = noise(2 << 20);
    let insider = on(&client(Some(known)), &registry.host, "app");
    assert_eq!(push(&insider, &layer, &[]).unwrap(), Pushed::Uploaded);
    assert_eq!(read(&insider, &blob(&layer), 0).unwrap(), layer);
    check_login(&whole(&insider)).unwrap();
    for (who, words) in [
        (Some(login("me", "wrong")), "the credentials are those from"),
        (None, "no credentials for"),
    ] {
        let outsider = on(&client(who), &registry.host, "app");
        for error in [
            read(&outsider, &blob(&layer), 0).unwrap_err(),
            push(&outsider, &layer, &[]).unwrap_err(),
            check_login(&whole(&outsider)).unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Denied, "{error}");
            let text = error.to_string();
            assert!(text.contains(words) && text.contains(&registry.host), "{text}");
            assert!(!text.contains("secret") && !text.contains("wrong"), "{text}");
            assert!(error.hints().iter().any(|hint| hint.contains("imgctl login")), "{error}");
        }
    }
}

#[test]
fn tls_is_spoken_and_its_certificate_checked() {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()])
        .unwrap();
    let authority = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(authority.path(), key.cert.pem()).unwrap();
    let (certificate, private) = (key.cert.pem(), key.signing_key.serialize_pem());
    let files = tempfile::tempdir().unwrap();
    let (pem, private_pem) = (files.path().join("a.crt"), files.path().join("a.key"));
    std::fs::write(&pem, certificate).unwrap();
    std::fs::write(&private_pem, private).unwrap();
    let tls =
        format!("  tls:\n    certificate: {}\n    key: {}\n", pem.display(), private_pem.display());
    let registry = Registry::configured(&tls, |_| String::new());
    // Insecure: TLS is detected automatically, and certificates are not verified.
    let repository = on(&client(None), &registry.host, "app");
    assert_eq!(push(&repository, b"x", &[]).unwrap(), Pushed::Uploaded);

    let with = |verify: Option<bool>, insecure: bool, authorities: Vec<std::path::PathBuf>| {
        let options = ClientOptions { tls_verify: verify, ..ClientOptions::default() };
        let client = Client::with_pace(options, quick());
        let mut endpoint = endpoint(&registry.host, "app");
        endpoint.insecure = insecure;
        endpoint.certificates.authorities = authorities.into_iter().map(Pem::File).collect();
        let route = Route { read: vec![endpoint.clone()], write: endpoint };
        client.routed("app".to_owned(), &route).unwrap().blob_size(&Digest::of(b"x"))
    };
    let ours = vec![authority.path().to_owned()];
    assert_eq!(with(None, false, ours.clone()).unwrap(), Some(1));
    assert_eq!(with(Some(true), true, ours).unwrap(), Some(1));
    assert_eq!(with(Some(false), false, Vec::new()).unwrap(), Some(1));
    for (verify, insecure) in [(None, false), (Some(true), true)] {
        let error = with(verify, insecure, Vec::new()).unwrap_err();
        assert!(error.to_string().contains("not trusted"), "{error}");
        assert!(error.hints().iter().any(|hint| hint.contains("--tls-verify")), "{error}");
    }
}

#[test]
fn our_certificate_is_shown() {
    let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let files = tempfile::tempdir().unwrap();
    let (pem, private) = (files.path().join("a.crt"), files.path().join("a.key"));
    std::fs::write(&pem, key.cert.pem()).unwrap();
    std::fs::write(&private, key.signing_key.serialize_pem()).unwrap();
    let (shown, key) = (pem.display(), private.display());
    let tls =
        format!("  tls:\n    certificate: {shown}\n    key: {key}\n    clientcas: [{shown}]\n");
    let registry = Registry::configured(&tls, |_| String::new());
    let with = |client_certificate: Option<(std::path::PathBuf, std::path::PathBuf)>| {
        let mut endpoint = endpoint(&registry.host, "app");
        endpoint.insecure = false;
        endpoint.certificates.authorities = vec![Pem::File(pem.clone())];
        endpoint.certificates.client =
            client_certificate.map(|(certificate, key)| (certificate.into(), key.into()));
        let read = vec![endpoint.clone()];
        let repository = client(None).routed("app".to_owned(), &Route { read, write: endpoint });
        repository?.blob_size(&Digest::of(b"x"))
    };
    assert_eq!(with(Some((pem.clone(), private.clone()))).unwrap(), None);
    let error = with(None).unwrap_err();
    assert_eq!(error.kind(), Kind::Network, "{error}");
    let error = with(Some((pem.clone(), pem.clone()))).unwrap_err();
    assert!(error.to_string().contains("a.crt"), "{error}");
}
