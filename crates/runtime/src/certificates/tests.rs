//! Compares certificates with kubeadm's and verifies them with openssl.

use std::{path::Path, path::PathBuf, process::Command, time::Duration};

use crate::certificates::authority::{Algorithm, Authority, Key};
use crate::certificates::validity::{Validity, now};
use crate::certificates::{
    control_plane,
    control_plane::{Member, Signer},
};
use crate::certificates::{inspect, pki::Pki};
use imgctl_model::state_files::StateFiles;

fn member(minor: u32) -> Member {
    Member {
        minor,
        node_name: "cp-1".to_owned(),
        address: "10.0.0.11".to_owned(),
        api_port: 6443,
        endpoint: "apiserver.cluster.local:6443".to_owned(),
        dns_domain: "cluster.local".to_owned(),
        service_addresses: vec!["10.96.0.1".to_owned()],
        api_names: ["127.0.0.1", "apiserver.cluster.local", "10.103.97.2", "10.0.0.11"]
            .map(str::to_owned)
            .to_vec(),
        etcd: Some((Vec::new(), Vec::new())),
    }
}

/// Where the state in a directory has its authorities.
fn below(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("pki")
}

fn openssl(arguments: &[&str]) -> String {
    let output = Command::new("openssl").args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "openssl {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn text(path: &Path) -> String {
    let path = path.to_str().unwrap();
    openssl(&["x509", "-in", path, "-noout", "-text"])
}

#[test]
fn a_pki_is_what_kubeadm_would_make() {
    let directory = tempfile::tempdir().unwrap();
    let validity = Validity::default();
    let pki =
        Pki::open(&StateFiles::plain(directory.path()), Algorithm::Rsa2048, validity.authorities)
            .unwrap();

    let ca = text(&below(&directory).join("ca.crt"));
    assert!(ca.contains("Subject: CN = kubernetes") || ca.contains("Subject: CN=kubernetes"));
    assert!(ca.contains("Digital Signature, Key Encipherment, Certificate Sign"));
    assert!(ca.contains("CA:TRUE"));
    assert!(ca.contains("DNS:kubernetes"));
    assert!(ca.contains("Subject Key Identifier"));
    assert!(ca.contains("Public-Key: (2048 bit)"));
    let years = (pki.ca.read().not_after - i64::try_from(now()).unwrap()) / 86_400 / 365;
    assert!((9..=10).contains(&years), "{years}");

    // Organization, uses and names by version; openssl verifies the signature.
    for (minor, group, client_group) in
        [(28, "system:masters", Some("system:masters")), (29, "kubeadm:cluster-admins", None)]
    {
        for (file, signer, leaf) in member(minor).certificates() {
            let authority = signer.of(&pki);
            let signed = authority.sign(&leaf, Algorithm::EcdsaP256, validity.leaves).unwrap();
            let path = below(&directory).join("leaf.crt");
            std::fs::write(&path, &signed.certificate).unwrap();
            let ca_file = match signer {
                Signer::Cluster => "ca.crt",
                Signer::Etcd => "etcd/ca.crt",
                Signer::FrontProxy => "front-proxy-ca.crt",
            };
            let purposes: &[&str] = match file {
                "apiserver" => &["sslserver"],
                "etcd/server" | "etcd/peer" => &["sslserver", "sslclient"],
                _ => &["sslclient"],
            };
            for purpose in purposes {
                openssl(&[
                    "verify",
                    "-x509_strict",
                    "-purpose",
                    purpose,
                    "-CAfile",
                    below(&directory).join(ca_file).to_str().unwrap(),
                    path.to_str().unwrap(),
                ]);
            }
            let shown = text(&path);
            assert!(shown.contains("Authority Key Identifier"), "{file}");
            assert!(shown.contains("CA:FALSE"), "{file}");
            assert_eq!(
                shown.contains("TLS Web Server Authentication"),
                purposes.contains(&"sslserver"),
                "{file}"
            );
            let read = inspect::read(&signed.certificate).unwrap();
            let wanted = match file {
                "apiserver-kubelet-client" => Some(group),
                "apiserver-etcd-client" | "etcd/healthcheck-client" => client_group,
                _ => None,
            };
            assert_eq!(read.organization.as_deref(), wanted, "{file} of 1.{minor}");
            assert!(authority.stands_behind(&signed.certificate, &leaf, Duration::ZERO));
            assert!(
                !authority.stands_behind(
                    &signed.certificate,
                    &leaf,
                    validity.leaves + Duration::from_secs(60)
                ),
                "not for longer than it is good"
            );
            if file == "apiserver" {
                assert_eq!(
                    read.names,
                    [
                        "cp-1",
                        "kubernetes",
                        "kubernetes.default",
                        "kubernetes.default.svc",
                        "kubernetes.default.svc.cluster.local",
                        "10.96.0.1",
                        "10.0.0.11",
                        "apiserver.cluster.local",
                        "127.0.0.1",
                        "10.103.97.2"
                    ]
                );
            }
            if file.starts_with("etcd/") && file != "etcd/healthcheck-client" {
                assert_eq!(read.names, ["cp-1", "localhost", "10.0.0.11", "127.0.0.1", "::1"]);
            }
        }
    }
}

#[test]
fn kubeconfigs_by_version() {
    let files = |minor, first| -> Vec<&'static str> {
        let identities = member(minor).identities(first);
        identities.iter().map(|identity| identity.file).collect()
    };
    assert_eq!(
        files(28, true),
        ["admin.conf", "controller-manager.conf", "scheduler.conf", "kubelet.conf"]
    );
    assert_eq!(files(29, true).last(), Some(&"super-admin.conf"));
    assert_eq!(files(34, false).len(), 3);
    let admin = |minor: u32| member(minor).identities(true).remove(0);
    assert_eq!(admin(28).leaf.organization.as_deref(), Some("system:masters"));
    assert_eq!(admin(29).leaf.organization.as_deref(), Some("kubeadm:cluster-admins"));
    assert_eq!(admin(29).server, "https://apiserver.cluster.local:6443");
    assert_eq!(member(29).identities(false)[1].server, "https://10.0.0.11:6443");

    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(
        &StateFiles::plain(directory.path()),
        Algorithm::EcdsaP256,
        Duration::from_secs(86_400),
    )
    .unwrap();
    let identity = admin(34);
    // A validity longer than the authority's is cut to it.
    let signed =
        pki.ca.sign(&identity.leaf, Algorithm::EcdsaP256, Validity::default().leaves).unwrap();
    assert_eq!(inspect::read(&signed.certificate).unwrap().not_after, pki.ca.read().not_after);
    let text = control_plane::write_kubeconfig(
        &pki.ca.certificate,
        &identity.server,
        &identity.user,
        &signed,
    )
    .unwrap();
    let read = control_plane::read_kubeconfig(&text).unwrap();
    assert_eq!(read.certificate.as_deref(), Some(signed.certificate.as_str()));
    assert_eq!(read.authority, pki.ca.certificate);
    assert_eq!(read.server, identity.server);
}

#[test]
fn authorities_of_others_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| below(&directory).join(name).to_str().unwrap().to_owned();
    std::fs::create_dir_all(below(&directory).join("etcd")).unwrap();
    // Files as kubeadm and sealos write them: PKCS#1, valid for a hundred years.
    for (file, name) in
        [("ca", "kubernetes"), ("etcd/ca", "etcd-ca"), ("front-proxy-ca", "front-proxy-ca")]
    {
        let key = path(&format!("{file}.key"));
        openssl(&["genrsa", "-traditional", "-out", &key, "2048"]);
        openssl(&[
            "req",
            "-x509",
            "-new",
            "-key",
            &key,
            "-days",
            "36500",
            "-subj",
            &format!("/CN={name}"),
            "-addext",
            "keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign",
            "-out",
            &path(&format!("{file}.crt")),
        ]);
    }
    let before = std::fs::read(below(&directory).join("ca.crt")).unwrap();
    let key_before = std::fs::read(below(&directory).join("ca.key")).unwrap();
    let pki = Pki::load(&StateFiles::plain(directory.path())).unwrap();
    assert_eq!(std::fs::read(below(&directory).join("ca.crt")).unwrap(), before);
    assert_eq!(pki.ca.key.pem.expose().as_bytes(), key_before);
    assert!(pki.ca.key.pem.expose().contains("RSA PRIVATE KEY"));
    for (file, signer, leaf) in member(34).certificates() {
        let signed =
            signer.of(&pki).sign(&leaf, Algorithm::EcdsaP256, Validity::sealos().leaves).unwrap();
        let leaf_path = path("leaf.crt");
        std::fs::write(&leaf_path, &signed.certificate).unwrap();
        let ca = match signer {
            Signer::Cluster => path("ca.crt"),
            Signer::Etcd => path("etcd/ca.crt"),
            Signer::FrontProxy => path("front-proxy-ca.crt"),
        };
        openssl(&["verify", "-CAfile", &ca, &leaf_path]);
        let end = openssl(&["x509", "-in", &leaf_path, "-noout", "-enddate"]);
        assert!(end.contains("21"), "{file}: a year past 2100, {end}");
    }
    // The pin that `kubeadm join` expects, computed as its manual describes.
    let pin = Command::new("bash")
        .args(["-ec", "openssl x509 -pubkey -noout -in \"$0\" | openssl pkey -pubin -outform der | openssl dgst -sha256 -hex | sed 's/^.* //'", &path("ca.crt")])
        .output()
        .unwrap();
    let pin = String::from_utf8(pin.stdout).unwrap();
    assert_eq!(pki.ca.pin(), format!("sha256:{}", pin.trim()));
}

#[test]
fn what_does_not_fit_is_refused_and_what_was_begun_is_finished() {
    let directory = tempfile::tempdir().unwrap();
    let hour = Duration::from_secs(3600);
    let open = || Pki::open(&StateFiles::plain(directory.path()), Algorithm::EcdsaP256, hour);
    assert!(Pki::load(&StateFiles::plain(directory.path())).is_err(), "nothing is there");
    let first = open().unwrap();
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        let metadata = std::fs::metadata(below(&directory).join(name)).unwrap();
        metadata.permissions().mode() & 0o777
    };
    assert_eq!((mode("ca.key"), mode("sa.key")), (0o600, 0o600));
    assert_eq!(open().unwrap().ca.certificate, first.ca.certificate);

    // After a stop between key and certificate, the key is reused.
    std::fs::remove_file(below(&directory).join("ca.crt")).unwrap();
    let again = open().unwrap();
    assert_eq!(again.ca.pin(), first.ca.pin());

    std::fs::remove_file(below(&directory).join("ca.key")).unwrap();
    let error = open().map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("ca.key"), "{error}");

    let other = Key::generate(Algorithm::EcdsaP256).unwrap();
    let error =
        Authority::parse(&first.ca.certificate, other.pem.expose()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("do not match"), "{error}");

    let leaf = member(34).certificates().remove(0).2;
    let signed = first.ca.sign(&leaf, Algorithm::EcdsaP256, hour).unwrap();
    assert!(first.ca.stands_behind(&signed.certificate, &leaf, Duration::ZERO));
    assert!(!first.etcd_ca.stands_behind(&signed.certificate, &leaf, Duration::ZERO));
}
