//! Access that another machine gets: it reads as this one does, and nobody else is told a secret.

use super::access::me;
use super::fake::{Answer, Fake};
use super::real::{Registry, protected};
use super::*;
use crate::client::access::Access;
use crate::registries::Pem;

/// Returns the repository as the other machine has it, after the way over the channel.
fn sent(repository: &Repository) -> Repository {
    let text = serde_json::to_string(&repository.access().unwrap()).unwrap();
    Repository::of_access(&serde_json::from_str(&text).unwrap()).unwrap()
}

#[test]
fn another_machine_reads_with_the_password_that_it_is_given() {
    let (registry, known) = protected();
    let layer = noise(1 << 20);
    let insider = on(&client(Some(known)), &registry.host, "app");
    push(&insider, &layer, &[]).unwrap();
    assert_eq!(read(&sent(&insider), &blob(&layer), 0).unwrap(), layer);
    let stranger = sent(&on(&client(None), &registry.host, "app"));
    let error = read(&stranger, &blob(&layer), 0).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    let access = insider.access().unwrap();
    assert!(access.is_loopback());
    assert!(!format!("{access:?}").contains("secret"), "{access:?}");
}

#[test]
fn a_wrong_password_is_that_of_the_controller() {
    let (registry, _) = protected();
    let wrong = Login::Password {
        user: "me".to_owned(),
        password: crate::credentials::Secret::new("wrong-one"),
    };
    let repository = sent(&on(&client(Some(wrong)), &registry.host, "app"));
    let error = read(&repository, &blob(b"x"), 0).unwrap_err().to_string();
    assert!(error.contains("of the controller") && !error.contains("wrong-one"), "{error}");
}

#[test]
fn a_mirror_gets_no_password_and_comes_first() {
    let mirror = Fake::start(|_| Answer::new("404 Not Found", &[], b""));
    let origin = Fake::start(|request| match request.header("authorization") {
        Some(_) => Answer::new("200 OK", &[], b"content"),
        None => Answer::new("401 Unauthorized", &[("WWW-Authenticate", "Basic realm=x")], b""),
    });
    let repository = behind(&client(me()), &[&mirror.host], &origin.host, "app");
    assert_eq!(read(&sent(&repository), &blob(b"content"), 0).unwrap(), b"content");
    let asked = mirror.asked("GET", "/blobs/");
    assert!(!asked.is_empty() && asked.iter().all(|one| one.header("authorization").is_none()));
}

#[test]
fn authorities_go_along_as_text() {
    let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let files = tempfile::tempdir().unwrap();
    let (pem, private) = (files.path().join("a.crt"), files.path().join("a.key"));
    std::fs::write(&pem, key.cert.pem()).unwrap();
    std::fs::write(&private, key.signing_key.serialize_pem()).unwrap();
    let tls =
        format!("  tls:\n    certificate: {}\n    key: {}\n", pem.display(), private.display());
    let registry = Registry::configured(&tls, |_| String::new());
    push(&on(&client(None), &registry.host, "app"), b"x", &[]).unwrap();
    let with = |authorities: Vec<Pem>| -> Access {
        let mut endpoint = endpoint(&registry.host, "app");
        endpoint.insecure = false;
        endpoint.certificates.authorities = authorities;
        let route = Route { read: vec![endpoint.clone()], write: endpoint };
        client(None).routed("app".to_owned(), &route).unwrap().access().unwrap()
    };
    let (trusting, other) = (with(vec![pem.clone().into()]), with(Vec::new()));
    // The other machine does not have the file.
    std::fs::remove_file(&pem).unwrap();
    let read =
        |access: &Access| Repository::of_access(access).unwrap().blob_size(&Digest::of(b"x"));
    assert_eq!(read(&trusting).unwrap(), Some(1));
    assert!(read(&other).unwrap_err().to_string().contains("not trusted"));
}
