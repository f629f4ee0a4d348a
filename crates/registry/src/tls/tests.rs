//! Tests against openssl's own server, with certificates created by openssl.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::*;

/// Runs openssl in `directory`.
fn openssl(directory: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(directory)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {arguments}: {said}");
}

/// Creates NAME.crt, self-signed with the key NAME.key and an authority unless `more` says
/// otherwise.
fn self_signed(directory: &Path, name: &str, more: &str) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(
        directory,
        &format!("req -x509 {key} -keyout {name}.key -out {name}.crt -subj /CN={name} {more}"),
    );
}

/// Creates NAME.crt, signed by AUTHORITY.key.
fn signed(directory: &Path, name: &str, authority: &str, more: &str) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    let by = format!("-CA {authority}.crt -CAkey {authority}.key");
    let end = "-addext basicConstraints=critical,CA:FALSE";
    openssl(
        directory,
        &format!(
            "req -x509 {key} {by} {end} -keyout {name}.key -out {name}.crt -subj /CN={name} {more}"
        ),
    );
}

/// Creates NAME.crt as [`self_signed`] does, valid from `start` to `end`.
fn self_signed_for(directory: &Path, name: &str, start: &str, end: &str) {
    let configuration = "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nserial=serial\nnew_certs_dir=.\npolicy=p\n\
        default_md=sha256\nx509_extensions=e\n[p]\ncommonName=supplied\n[e]\n\
        basicConstraints=critical,CA:TRUE\nsubjectAltName=DNS:registry.test\n";
    std::fs::write(directory.join("ca.cnf"), configuration).unwrap();
    std::fs::write(directory.join("index"), "").unwrap();
    let _ = std::fs::remove_file(directory.join("serial"));
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(
        directory,
        &format!("req -new {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"),
    );
    openssl(
        directory,
        &format!(
            "ca -config ca.cnf -batch -notext -selfsign -create_serial -in {name}.csr \
             -keyfile {name}.key -out {name}.crt -startdate {start} -enddate {end}"
        ),
    );
}

/// A server that presents NAME.crt until the value is dropped.
struct Server(Child, u16);

impl Server {
    fn start(directory: &Path, name: &str, more: &str) -> Self {
        // Another process can take the port before openssl does; openssl then exits and the loop
        // retries.
        loop {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let mut child = Command::new("openssl")
                .args(["s_server", "-quiet", "-www", "-accept"])
                .arg(format!("127.0.0.1:{port}"))
                .args(["-cert", &format!("{name}.crt")])
                .args(["-key", &format!("{name}.key")])
                .args(more.split_whitespace())
                .current_dir(directory)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            while child.try_wait().unwrap().is_none() {
                if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Self(child, port);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Sends a request to `host`; returns the debug text of the error if that fails.
    fn ask(&self, host: &str, certificates: &Certificates, insecure: bool) -> Result<(), String> {
        let client = builder_for(certificates, insecure)
            .map_err(|error| error.to_string())?
            .no_proxy()
            .resolve("registry.test", ([127, 0, 0, 1], self.1).into())
            .resolve("other.test", ([127, 0, 0, 1], self.1).into())
            .timeout(Duration::from_secs(10))
            .build()
            .unwrap();
        let url = format!("https://{host}:{}/", self.1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime
            .block_on(async { client.get(url).send().await?.text().await })
            .map(drop)
            .map_err(|error| format!("{error:?}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that a request's result is `expected`: a part of the error, or success for `None`.
#[track_caller]
fn told(asked: &Result<(), String>, expected: Option<&str>) {
    match (asked, expected) {
        (Ok(()), None) => {}
        (Err(error), Some(expected)) if error.contains(expected) => {}
        _ => panic!("{asked:?}, not {expected:?}"),
    }
}

fn trusting(authorities: &[PathBuf]) -> Certificates {
    Certificates { authorities: authorities.iter().cloned().map(Pem::File).collect(), client: None }
}

const NAMES: &str = "-addext subjectAltName=DNS:registry.test,IP:127.0.0.1";

#[test]
fn a_certificate_of_its_own_authority_is_taken_where_it_is_trusted_itself() {
    let files = tempfile::tempdir().unwrap();
    let directory = files.path();
    self_signed(directory, "own", NAMES);
    // The same name and key, but a different certificate.
    openssl(
        directory,
        "req -x509 -key own.key -out twin.crt -subj /CN=own -addext subjectAltName=DNS:registry.test",
    );
    self_signed(directory, "other", NAMES);
    let server = Server::start(directory, "own", "");
    let (own, twin, other) =
        (directory.join("own.crt"), directory.join("twin.crt"), directory.join("other.crt"));
    for (host, authorities, expected) in [
        ("registry.test", vec![own.clone()], None),
        ("127.0.0.1", vec![own.clone()], None),
        ("127.0.0.1", vec![other.clone(), own.clone()], None),
        ("other.test", vec![own], Some("NotValidForName")),
        ("registry.test", vec![twin], Some("CaUsedAsEndEntity")),
        ("registry.test", vec![other], Some("CaUsedAsEndEntity")),
        ("registry.test", vec![], Some("CaUsedAsEndEntity")),
    ] {
        let certificates = trusting(&authorities);
        told(&server.ask(host, &certificates, false), expected);
        server.ask(host, &certificates, true).unwrap();
    }
}

#[test]
fn nobody_is_trusted_outside_their_time() {
    let files = tempfile::tempdir().unwrap();
    let directory = files.path();
    for (name, start, end, expected) in [
        ("now", "20200101000000Z", "21000101000000Z", None),
        ("past", "20200101000000Z", "20210101000000Z", Some("Expired")),
        ("future", "20990101000000Z", "21000101000000Z", Some("NotValidYet")),
    ] {
        self_signed_for(directory, name, start, end);
        let server = Server::start(directory, name, "");
        let certificates = trusting(&[directory.join(format!("{name}.crt"))]);
        told(&server.ask("registry.test", &certificates, false), expected);
        server.ask("registry.test", &certificates, true).unwrap();
    }
}

#[test]
fn chains_are_checked_as_ever() {
    let files = tempfile::tempdir().unwrap();
    let directory = files.path();
    self_signed(directory, "ca", "");
    self_signed(directory, "stranger", "");
    signed(directory, "leaf", "ca", NAMES);
    self_signed(directory, "lone", &format!("{NAMES} -addext basicConstraints=CA:FALSE"));
    let file = |name: &str| directory.join(format!("{name}.crt"));
    let leaf = Server::start(directory, "leaf", "");
    leaf.ask("registry.test", &trusting(&[file("ca")]), false).unwrap();
    leaf.ask("127.0.0.1", &trusting(&[file("ca")]), false).unwrap();
    for (host, authority, expected) in [
        ("other.test", "ca", "NotValidForName"),
        ("registry.test", "stranger", "UnknownIssuer"),
        // A certificate signed by another authority is not an authority, even if it is listed as
        // one.
        ("registry.test", "leaf", "UnknownIssuer"),
    ] {
        let error = leaf.ask(host, &trusting(&[file(authority)]), false).unwrap_err();
        assert!(error.contains(expected), "{authority}: {error}");
    }
    let lone = Server::start(directory, "lone", "");
    lone.ask("127.0.0.1", &trusting(&[file("lone")]), false).unwrap();
}

#[test]
fn our_certificate_is_shown_in_either_mode() {
    let files = tempfile::tempdir().unwrap();
    let directory = files.path();
    self_signed(directory, "own", NAMES);
    signed(directory, "me", "own", "");
    let server = Server::start(directory, "own", "-Verify 1 -verify_return_error -CAfile own.crt");
    let file = |name: &str| directory.join(name);
    let both = std::fs::read_to_string(file("me.crt")).unwrap()
        + &std::fs::read_to_string(file("me.key")).unwrap();
    std::fs::write(file("both.pem"), both).unwrap();
    let mut certificates = trusting(&[file("own.crt")]);
    for insecure in [false, true] {
        certificates.client = None;
        server.ask("registry.test", &certificates, insecure).unwrap_err();
        for (certificate, key) in [("me.crt", "me.key"), ("both.pem", "both.pem")] {
            certificates.client = Some((file(certificate).into(), file(key).into()));
            server.ask("registry.test", &certificates, insecure).unwrap();
        }
    }
}

#[test]
fn a_file_that_cannot_be_used_is_named_and_not_shown() {
    let files = tempfile::tempdir().unwrap();
    let directory = files.path();
    self_signed(directory, "own", "");
    self_signed(directory, "else", "");
    openssl(directory, "x509 -in own.crt -outform der -out der.crt");
    let broken = "-----BEGIN CERTIFICATE-----\nc0VjcmV0\n-----END CERTIFICATE-----\n";
    std::fs::write(directory.join("broken.crt"), broken).unwrap();
    openssl(directory, "ec -in own.key -aes128 -passout pass:x -out locked.key");
    let file = |name: &str| directory.join(name);
    let client = |certificate: &str, key: &str| Certificates {
        authorities: Vec::new(),
        client: Some((file(certificate).into(), file(key).into())),
    };
    for (name, certificates) in [
        ("der.crt", trusting(&[file("der.crt")])),
        ("broken.crt", trusting(&[file("broken.crt")])),
        ("own.key", trusting(&[file("own.key")])),
        ("absent.crt", trusting(&[file("absent.crt")])),
        ("own.key", client("own.key", "own.crt")),
        ("own.crt", client("own.crt", "own.crt")),
        ("locked.key", client("own.crt", "locked.key")),
        ("own.crt", client("own.crt", "else.key")),
    ] {
        let error = builder_for(&certificates, false).err().unwrap();
        let told = format!("{error} {error:?}");
        assert!(told.contains(name), "{name}: {told}");
        assert!(!told.contains("c0Vj") && !told.contains("sEcret"), "{told}");
    }
}

#[test]
fn proxies_and_their_exceptions_are_read() {
    let of = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        let owned = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        owned.collect::<Vec<_>>()
    };
    for (list, expected) in [
        ("", ""),
        ("a.io, .b.io,,*", ",a.io,.b.io,*"),
        ("r.io:5000,10.0.0.1:80", ",r.io,10.0.0.1"),
        ("[fd00::1]:5000,[::2],fd00::/8", ",fd00::1,::2,fd00::/8"),
    ] {
        let variables = of(&[("NO_PROXY", list)]);
        assert_eq!(exceptions(&variables), format!("{NEVER_PROXIED}{expected}"));
    }
    let variables = of(&[
        ("HTTPS_PROXY", "https://me:pw@Proxy.io:3128/"),
        ("http_proxy", "10.0.0.1:8080"),
        ("HTTP_PROXY", "unused.io"),
        ("all_proxy", "http://["),
        ("no_proxy", "x.io"),
    ]);
    assert_eq!(proxy_hosts(&variables), ["10.0.0.1", "proxy.io"]);
}
