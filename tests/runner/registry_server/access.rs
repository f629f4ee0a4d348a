//! Who may ask, over what, and what is said about it.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine;

use crate::common::{IMGCTL, Ran, TestEnv};
use crate::registry_server::http::{Request, Response, sha256};
use crate::registry_server::server::Server;

fn basic(user: &str, password: &str) -> String {
    let text = format!("{user}:{password}");
    let text = base64::engine::general_purpose::STANDARD.encode(text);
    format!("Basic {text}")
}

fn set_password(env: &TestEnv, user: &str, password: &str) {
    let mut child = Command::new(IMGCTL)
        .args(["registry", "passwd", user, "-f"])
        .arg(env.path("users"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(format!("{password}\n").as_bytes()).unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

fn status(server: &Server, method: &str, path: &str, login: Option<&str>) -> u16 {
    let request = Request::new(method, path);
    let request = match login {
        Some(login) => request.header("Authorization", login),
        None => request,
    };
    let response = server.send(&request);
    if response.status == 401 {
        let challenge = response.get("www-authenticate").unwrap();
        assert!(challenge.starts_with("Basic realm="), "{challenge}");
    }
    response.status
}

#[test]
fn users_log_in_with_their_passwords() {
    let env = TestEnv::new();
    set_password(&env, "alice", "se:cret");
    let users = env.path("users");
    let server = Server::start(&env.path("r"), &["--htpasswd", users.to_str().unwrap()]);
    let right = basic("alice", "se:cret");
    for (login, expected) in [
        (None, 401),
        (Some(basic("alice", "wrong")), 401),
        (Some(basic("alice", "")), 401),
        (Some(basic("bob", "se:cret")), 401),
        (Some("Basic !!!".to_owned()), 401),
        (Some("Bearer se:cret".to_owned()), 401),
        (Some("Negotiate x".to_owned()), 401),
        (Some(format!("Basic {}", "A".repeat(6000))), 401),
        (Some(right.clone()), 200),
    ] {
        // Twice: what is remembered must be right too.
        for _ in 0..2 {
            let found = status(&server, "GET", "/v2/", login.as_deref());
            assert_eq!(found, expected, "{login:?}");
        }
    }
    for (method, path) in [
        ("GET", "/v2/_catalog"),
        ("POST", "/v2/a/blobs/uploads/"),
        ("GET", "/v2/a/manifests/v1"),
        ("GET", "/nowhere"),
    ] {
        assert_eq!(status(&server, method, path, None), 401, "{path}");
    }
    assert_eq!(status(&server, "POST", "/v2/a/blobs/uploads/", Some(&right)), 202);
    // A new password counts within seconds, without a restart.
    set_password(&env, "alice", "new");
    let new = basic("alice", "new");
    let begun = std::time::Instant::now();
    while status(&server, "GET", "/v2/", Some(&new)) != 200 {
        assert!(begun.elapsed().as_secs() < 120, "the new password is never taken");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(status(&server, "GET", "/v2/", Some(&right)), 401);
    let log = server.stop();
    assert!(log.contains("alice"), "{log}");
    for secret in ["se:cret", right.as_str(), &right["Basic ".len()..]] {
        assert!(!log.contains(secret), "{log}");
    }
}

/// Lets nobody else read a file.
fn private(path: PathBuf) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

#[test]
fn a_token_opens_too_and_reading_may_be_free() {
    let env = TestEnv::new();
    let token = private(env.write("token", "s3cr3t-token\n"));
    let token = token.to_str().unwrap();
    let server = Server::start(
        &env.path("r"),
        &["--token-file", token, "--anonymous-pull", "--log-format", "json"],
    );
    let bearer = "Bearer s3cr3t-token";
    for (method, path, login, expected) in [
        ("GET", "/v2/", None, 401),
        ("GET", "/v2/", Some(bearer.to_owned()), 200),
        ("GET", "/v2/", Some(basic("anybody", "s3cr3t-token")), 200),
        ("GET", "/v2/", Some("Bearer s3cr3t-tokem".to_owned()), 401),
        ("GET", "/v2/_catalog", None, 200),
        ("GET", "/v2/_catalog", Some("Bearer wrong".to_owned()), 401),
        ("POST", "/v2/a/blobs/uploads/", None, 401),
        ("POST", "/v2/a/blobs/uploads/", Some(bearer.to_owned()), 202),
    ] {
        let found = status(&server, method, path, login.as_deref());
        assert_eq!(found, expected, "{method} {path} {login:?}");
    }
    let log = server.stop();
    assert!(!log.contains("s3cr3t"), "{log}");
    for line in log.lines() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(record["status"].is_u64() && record["peer"].is_string(), "{line}");
    }
}

#[test]
fn mistakes_are_told_before_anything_is_served() {
    let env = TestEnv::new();
    let apr = env.write("apr", "alice:$apr1$x$y\n");
    let empty = private(env.write("empty", "\n"));
    let open = env.write("open", "s3cr3t-token\n");
    let open = open.to_str().unwrap();
    let (apr, empty) = (apr.to_str().unwrap(), empty.to_str().unwrap());
    for (flags, code, words) in [
        (vec!["--htpasswd", apr], 2, "bcrypt"),
        (vec!["--htpasswd", "/nonexistent"], 3, "/nonexistent"),
        (vec!["--token-file", empty], 2, "one token"),
        (vec!["--token-file", open], 2, "other users of this machine can read it"),
        (vec!["--token-file", "/nonexistent"], 3, "/nonexistent"),
        (vec!["--anonymous-pull"], 2, "--anonymous-pull"),
        (vec!["--addr", "host:5000"], 2, "address"),
        (vec!["--tls-cert", empty, "--tls-key", empty], 2, "certificate"),
        (vec!["--tls-cert", empty], 2, "--tls-key"),
    ] {
        let mut command = env.command(["registry", "serve", "--create"]);
        command.arg(env.path("r")).args(flags);
        let ran = Ran::new(command).fails(code);
        assert!(ran.stderr().contains(words), "{}", ran.stderr());
    }
}

#[test]
fn tls_is_spoken_with_the_certificate_given() {
    let env = TestEnv::new();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = env.write("tls.crt", made.cert.pem());
    let key = env.write("tls.key", made.signing_key.serialize_pem());
    let server = Server::start(
        &env.path("r"),
        &["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()],
    );
    let port = server.address.rsplit_once(':').unwrap().1;
    let answer = |protocol: &str| {
        let mut child = Command::new("openssl")
            .args(["s_client", "-quiet", "-verify_return_error", "-servername", "localhost"])
            .args(["-alpn", protocol, "-connect", &format!("localhost:{port}"), "-CAfile"])
            .arg(&certificate)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl is missing");
        let mut stdin = child.stdin.take().unwrap();
        let head = Request::new("GET", "/v2/").head();
        stdin.write_all(head.as_bytes()).unwrap();
        let mut text = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut text).unwrap();
        child.wait().unwrap();
        String::from_utf8_lossy(&text).into_owned()
    };
    let text = answer("http/1.1");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    // Plain HTTP gets nothing out of it.
    let mut plain = std::net::TcpStream::connect(&server.address).unwrap();
    plain.write_all(Request::new("GET", "/v2/").head().as_bytes()).unwrap();
    let mut text = Vec::new();
    let _ = plain.read_to_end(&mut text);
    assert!(!text.starts_with(b"HTTP"), "{text:?}");
}

#[test]
fn a_new_directory_is_told_and_one_without_a_parent_is_refused() {
    let env = TestEnv::new();
    let (slip, new) = (env.path("vra/registry"), env.path("registry"));
    let words = |directory: &Path| {
        let mut command = env.command(["registry", "serve", "--addr", "127.0.0.1:0"]);
        command.arg(directory);
        command
    };
    let mut read_only = words(&new);
    read_only.arg("--read-only");
    for (command, directory) in [(words(&slip), &slip), (read_only, &new)] {
        let ran = Ran::new(command).fails(3);
        for part in ["there is no directory", "--create makes an empty registry there"] {
            assert!(ran.stderr().contains(part), "{part}: {}", ran.report());
        }
        assert!(!directory.exists());
    }
    let mut command = words(&new);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("registry is new: an empty registry"), "{line}");
    let server = Server::start(&slip, &[]);
    Request::new("GET", "/v2/").send(&server.address).is(200);
    assert!(slip.join("docker/registry/v2").is_dir());
}

#[test]
fn the_form_that_sealos_uses_is_taken() {
    let env = TestEnv::new();
    let pid = env.path("registry.pid");
    let mut command = Command::new(IMGCTL);
    command.args(["registry", "serve", "filesystem", "--port", "0", "--pid-file"]);
    command.arg(&pid).arg("--disable-logging=true");
    let mut child =
        command.arg(env.path("r")).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    let port = line.trim().rsplit_once(':').unwrap().1;
    Request::new("GET", "/v2/").send(&format!("127.0.0.1:{port}")).is(200);
    let written = std::fs::read_to_string(&pid).unwrap();
    assert_eq!(written.trim(), child.id().to_string());
    let number = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(number, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    // `--port` opens it to everyone, which is said, and nothing else is.
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("note: no login is required: "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(!pid.exists());
}

/// Starts `registry serve` in a network of its own, where its usual port is free, and ends it when
/// it listens; gives what it said until then on stdout and stderr.
fn served_alone(env: &TestEnv, flags: &[&str]) -> (String, String) {
    let user = if crate::common::is_root() { "-n" } else { "-rn" };
    let registry = env.path("r");
    let script = "ip link set lo up; exec \"$@\"";
    let mut child = Command::new("unshare")
        .args([user, "--", "sh", "-c", script, "sh"])
        .args([IMGCTL, "registry", "serve", "--create", registry.to_str().unwrap()])
        .args(flags)
        .env_remove("IMGCTL_REGISTRY_TOKEN")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    (line.trim_end().to_owned(), stderr)
}

#[test]
fn without_a_login_only_this_machine_is_served_unless_told_otherwise() {
    let env = TestEnv::new();
    let (said, notes) = served_alone(&env, &[]);
    assert_eq!(said, "listening on http://127.0.0.1:5000");
    assert_eq!(notes, "");
    let (said, notes) = served_alone(&env, &["--addr", ":5000", "--delete"]);
    assert!(said.ends_with("]:5000") || said.ends_with("0.0.0.0:5000"), "{said}");
    assert!(notes.contains("no login is required"), "{notes}");
    assert!(notes.contains("push to it and delete in it"), "{notes}");
    let (_, notes) = served_alone(&env, &["--port", "5000", "--read-only"]);
    assert!(notes.contains("can pull from it ("), "{notes}");
    // With a login it is for everyone who has one.
    let token = private(env.write("token", "secret"));
    let flags = ["--token-file", token.to_str().unwrap()];
    let (said, notes) = served_alone(&env, &flags);
    assert!(!said.contains("127.0.0.1") && said.ends_with(":5000"), "{said}");
    assert_eq!(notes, "");
}

#[test]
fn pages_of_other_sites_reach_no_registry_without_a_login() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &["--allow-host", "registry.corp"]);
    let digest = sha256(b"x");
    let post = |server: &Server, host: &str, headers: &[(&str, &str)]| {
        let path = format!("/v2/a/blobs/uploads/?digest={digest}");
        let mut request = Request::new("POST", path).host(host).body("x");
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        server.send(&request)
    };
    // Another site's form, and a page whose name leads here.
    let site = ("Sec-Fetch-Site", "cross-site");
    let origin = ("Origin", "https://evil.example");
    post(&server, "localhost", &[origin, site]).fails(403, "DENIED");
    post(&server, "localhost", &[origin]).fails(403, "DENIED");
    post(&server, "localhost", &[site]).fails(403, "DENIED");
    let own = [("Origin", "http://evil.example:5000"), ("Sec-Fetch-Site", "same-origin")];
    post(&server, "evil.example:5000", &own).fails(421, "DENIED");
    let get = |host: &str| server.send(&Request::new("GET", "/v2/_catalog").host(host));
    get("evil.example").fails(421, "DENIED");
    // Programs, by every name of this machine.
    let hostname = rustix::system::uname();
    let hostname = hostname.nodename().to_str().unwrap();
    for host in
        [&*server.address, "127.0.0.1", "[::1]:5000", "localhost:5000", "registry.corp", hostname]
    {
        get(host).is(200);
        post(&server, host, &[]).is(201);
    }
    for head in [
        "GET /v2/ HTTP/1.1\r\n\r\n",
        "GET /v2/ HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
    ] {
        let head = head.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        let mut stream = std::net::TcpStream::connect(&*server.address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        Response::read(&mut stream).is(400);
    }
    // Whoever has to log in is known by that.
    let token = private(env.write("token", "secret"));
    let server = Server::start(&env.path("s"), &["--token-file", token.to_str().unwrap()]);
    let bearer = ("Authorization", "Bearer secret");
    post(&server, "registry.example", &[bearer]).is(201);
    post(&server, "registry.example", &[]).is(401);
}

#[test]
fn no_answer_is_a_page() {
    let env = TestEnv::new();
    let server = Server::start(&env.path("r"), &[]);
    server.push_image("a", "v1", b"<script>");
    let layer = format!("/v2/a/blobs/{}", sha256(b"<script>"));
    for path in ["/v2/", "/v2/a/manifests/v1", &layer, "/v2/_catalog", "/v2/none", "/elsewhere"] {
        let answer = server.ask("GET", path);
        assert_eq!(answer.get("x-content-type-options"), Some("nosniff"), "{path}");
        let policy = answer.get("content-security-policy").unwrap_or_default();
        assert!(policy.contains("sandbox"), "{path}: {policy}");
        assert!(!answer.get("content-type").unwrap_or_default().contains("html"), "{path}");
    }
}
