//! Tests of hosts with a real sshd.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::host::address::Address;
use crate::host::command::Output;
use crate::host::connect::Connections;
use crate::host::login::{HostKeys, Login, Settings};
use crate::host::reactor::block_on;
use crate::host::testing::{Sshd, keygen, tool};
use crate::host::testing_run::run;
use crate::host::transport::{Ended, Privilege, Transport};
use crate::host::upload::{Place, upload_to};
use imgctl_base::error::{Kind, Result};
use imgctl_base::secret::Secret;

const PATIENCE: Duration = Duration::from_secs(30);

impl Sshd {
    fn address(&self) -> Address {
        Address { name: "127.0.0.1".to_owned(), port: self.port }
    }

    /// Returns settings that affect nothing outside the directory.
    fn settings(&self) -> Settings {
        Settings {
            host_keys: HostKeys::TrustOnFirstUse,
            known_hosts: vec![self.path("ssh/known_hosts")],
            config_files: vec![self.path("ssh/config")],
            agent_socket: None,
            home: Some(self.directory.path().to_owned()),
            local_user: None,
            connect_timeout: Duration::from_secs(10),
            alive_interval: crate::host::login::ALIVE_INTERVAL,
            retries: 2,
        }
    }

    /// Returns a login with the authorized key.
    fn login(&self) -> Login {
        Login { keys: vec![self.path("id")], ..Login::default() }
    }

    fn connect_with(&self, login: &Login, settings: Settings) -> Result<Arc<dyn Transport>> {
        Connections::new(settings)?.connect(&self.address(), login, false)
    }

    fn connect(&self) -> Arc<dyn Transport> {
        self.connect_with(&self.login(), self.settings()).unwrap()
    }
}

fn upload(host: &dyn Transport, path: &str, mode: u32, mut data: &[u8], size: u64) -> Result<()> {
    let place = Place { path, mode, mtime: None, into: None };
    upload_to(host, &place, Privilege::Root, &mut data, size)
}

fn go(transport: &dyn Transport, line: &str, input: Option<&[u8]>) -> Output {
    run(transport, line, Privilege::Root, input, 64 << 20, PATIENCE).unwrap()
}

#[test]
fn commands_run_with_their_streams_and_codes() {
    let sshd = Sshd::start("");
    let host = sshd.connect();
    let output = go(&*host, "cat; echo \"it's\" >&2; exit 42", Some(b"\0\xff\r\n\x03"));
    assert_eq!(output.stdout, b"\0\xff\r\n\x03");
    assert_eq!(output.stderr, b"it's\n");
    assert_eq!(output.ended, Ended::Code(42));
    assert_eq!(go(&*host, "kill -KILL $$", None).ended, Ended::Signal(9));
    // Both commands share one connection.
    assert_eq!(sshd.log().matches("Accepted publickey").count(), 1);
}

#[test]
fn many_channels_run_at_once_although_the_host_takes_ten_on_a_connection() {
    let sshd = Sshd::start("");
    let host = sshd.connect();
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..100)
            .map(|number| {
                let host = &host;
                scope.spawn(move || {
                    let line = format!("read x; sleep 0.3; echo {number} $x");
                    (number, go(&**host, &line, Some(b"y\n")).stdout)
                })
            })
            .collect();
        for thread in started {
            let (number, said) = thread.join().unwrap();
            assert_eq!(said, format!("{number} y\n").into_bytes());
        }
    });
    assert!(sshd.log().matches("Accepted publickey").count() <= 16);
}

#[test]
fn large_transfers_keep_every_byte_both_ways() {
    let sshd = Sshd::start("");
    let host = sshd.connect();
    let data: Vec<u8> =
        (0..24u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let path = sshd.path("up/deep/file's");
    let path = path.to_str().unwrap();
    upload(&*host, path, 0o750, &data, data.len() as u64).unwrap();
    assert!(std::fs::read(path).unwrap() == data);
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o750);
    let back = go(&*host, &format!("cat \"{path}\""), None);
    assert!(back.stdout == data);
    // An upload with too few bytes keeps the old file.
    let error = upload(&*host, path, 0o600, &data[..5], 10).unwrap_err();
    assert_eq!(error.kind(), Kind::BadContent);
    assert!(std::fs::read(path).unwrap() == data);
    let begun = Instant::now();
    while std::fs::read_dir(sshd.path("up/deep")).unwrap().count() > 1 {
        assert!(begun.elapsed() < PATIENCE, "temporary files stay");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn every_type_of_key_logs_in_also_with_a_passphrase() {
    let sshd = Sshd::start("");
    let kinds: [(&str, &[&str]); 4] = [
        ("ed25519", &["-t", "ed25519"]),
        ("ecdsa", &["-t", "ecdsa", "-b", "384"]),
        ("rsa", &["-t", "rsa", "-b", "2048"]),
        ("pem", &["-t", "rsa", "-b", "2048", "-m", "PEM"]),
    ];
    for (name, kind) in kinds {
        for passphrase in ["", "open sesame"] {
            let path = sshd.path(&format!("{name}{}", passphrase.len()));
            keygen(&path, kind, passphrase);
            let public = std::fs::read(path.with_added_extension("pub")).unwrap();
            std::fs::write(sshd.path("authorized"), public).unwrap();
            let secret = (!passphrase.is_empty()).then(|| Secret::new(passphrase));
            let login = Login {
                keys: vec![path.clone()],
                key_passphrase: secret.clone(),
                ..Login::default()
            };
            let host = sshd.connect_with(&login, sshd.settings()).unwrap();
            assert_eq!(go(&*host, "echo ok", None).stdout, b"ok\n", "{name}");
            let as_text = Login {
                key_data: vec![Secret::new(std::fs::read_to_string(&path).unwrap())],
                key_passphrase: secret,
                ..Login::default()
            };
            sshd.connect_with(&as_text, sshd.settings()).unwrap();
            if !passphrase.is_empty() {
                let without = Login { keys: vec![path], ..Login::default() };
                let error = sshd.connect_with(&without, sshd.settings()).err().unwrap();
                assert_eq!(error.kind(), Kind::Denied);
                assert!(error.to_string().contains("is encrypted"), "{error}");
            }
        }
    }
}

#[test]
fn a_refused_login_says_what_was_tried_and_what_is_taken() {
    let sshd = Sshd::start("");
    keygen(&sshd.path("other"), &["-t", "ed25519"], "");
    let login = Login {
        keys: vec![sshd.path("other"), sshd.path("absent")],
        password: Some(Secret::new("wrong-pass")),
        ..Login::default()
    };
    let error = sshd.connect_with(&login, sshd.settings()).err().unwrap();
    assert_eq!(error.kind(), Kind::Denied);
    let text = error.to_string();
    for part in ["127.0.0.1", "root", "/other", "accepts: publickey", "absent does not exist"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("wrong-pass"));
}

#[test]
fn a_key_that_others_can_read_is_not_used() {
    use std::os::unix::fs::PermissionsExt as _;
    let sshd = Sshd::start("");
    let set = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(sshd.path("id"), mode).unwrap();
    };
    for mode in [0o640, 0o604, 0o620, 0o601] {
        set(mode);
        let error = sshd.connect_with(&sshd.login(), sshd.settings()).err().unwrap();
        assert_eq!(error.kind(), Kind::Denied, "{mode:o}: {error}");
        let text = error.to_string();
        assert!(text.contains("no credentials to try") && text.contains("chmod 600"), "{text}");
    }
    // Another key is.
    keygen(&sshd.path("other"), &["-t", "ed25519"], "");
    std::fs::copy(sshd.path("other.pub"), sshd.path("authorized")).unwrap();
    let both = Login { keys: vec![sshd.path("id"), sshd.path("other")], ..Login::default() };
    sshd.connect_with(&both, sshd.settings()).unwrap();
    std::fs::copy(sshd.path("id.pub"), sshd.path("authorized")).unwrap();
    set(0o400);
    sshd.connect_with(&sshd.login(), sshd.settings()).unwrap();
}

#[test]
fn keys_and_certificates_come_from_an_agent() {
    let sshd = Sshd::start("");
    let socket = sshd.path("agent");
    let mut agent = std::process::Command::new("ssh-agent")
        .args(["-D", "-a"])
        .arg(&socket)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !socket.exists() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    // More keys than a host allows attempts; the correct one is last.
    for number in 0..8 {
        let path = sshd.path(&format!("decoy{number}"));
        keygen(&path, &["-t", "ed25519"], "");
        add(&socket, &path);
    }
    keygen(&sshd.path("rsa"), &["-t", "rsa", "-b", "2048"], "");
    add(&socket, &sshd.path("rsa"));
    std::fs::copy(sshd.path("rsa.pub"), sshd.path("authorized")).unwrap();
    let mut settings = sshd.settings();
    settings.agent_socket = Some(socket.clone());
    let host = sshd.connect_with(&Login::default(), settings.clone());
    let by_agent = host.map(|host| go(&*host, "echo ok", None).stdout);
    settings.agent_socket = Some(sshd.path("no-agent"));
    let without = sshd.connect_with(&Login::default(), settings);
    let _ = agent.kill();
    let _ = agent.wait();
    assert_eq!(by_agent.unwrap(), b"ok\n");
    assert!(without.err().unwrap().to_string().contains("no-agent"));
}

fn add(socket: &std::path::Path, key: &std::path::Path) {
    let output = std::process::Command::new("ssh-add")
        .env("SSH_AUTH_SOCK", socket)
        .arg(key)
        .output()
        .unwrap();
    assert!(output.status.success());
}

#[test]
fn a_certificate_beside_the_key_logs_in() {
    let sshd = Sshd::start("");
    let path = |name: &str| sshd.path(name);
    keygen(&path("ca"), &["-t", "ed25519"], "");
    keygen(&path("user"), &["-t", "ecdsa"], "");
    let (ca, user) = (path("ca"), path("user.pub"));
    tool(
        "ssh-keygen",
        &["-q", "-s", ca.to_str().unwrap(), "-I", "me", "-n", "root", user.to_str().unwrap()],
    );
    let authority = std::fs::read_to_string(path("ca.pub")).unwrap();
    std::fs::write(path("authorized"), format!("cert-authority {authority}")).unwrap();
    let login = Login { keys: vec![path("user")], ..Login::default() };
    let host = sshd.connect_with(&login, sshd.settings()).unwrap();
    assert_eq!(go(&*host, "echo ok", None).stdout, b"ok\n");
}

#[test]
fn a_host_key_is_learnt_once_and_a_changed_one_is_refused() {
    let sshd = Sshd::start("");
    let known = sshd.path("ssh/known_hosts");
    let mut strict = sshd.settings();
    strict.host_keys = HostKeys::Strict;
    let refused = sshd.connect_with(&sshd.login(), strict.clone()).err().unwrap();
    assert_eq!(refused.kind(), Kind::Denied);
    assert!(refused.to_string().contains("is not known"), "{refused}");
    assert!(!known.exists());

    sshd.connect();
    let text = std::fs::read_to_string(&known).unwrap();
    assert!(text.starts_with(&format!("[127.0.0.1]:{} ssh-ed25519 ", sshd.port)), "{text}");
    let mode = |path: &std::path::Path| {
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions())
            & 0o777
    };
    assert_eq!((mode(&known), mode(&sshd.path("ssh"))), (0o600, 0o700));
    sshd.connect_with(&sshd.login(), strict.clone()).unwrap();
    assert_eq!(std::fs::read_to_string(&known).unwrap(), text);
    // imgctl can read the entries that OpenSSH has hashed, and OpenSSH can read the file that
    // imgctl wrote.
    tool("ssh-keygen", &["-H", "-f", known.to_str().unwrap()]);
    assert!(std::fs::read_to_string(&known).unwrap().starts_with("|1|"));
    sshd.connect_with(&sshd.login(), strict).unwrap();

    keygen(&sshd.path("impostor"), &["-t", "ed25519"], "");
    let other = std::fs::read_to_string(sshd.path("impostor.pub")).unwrap();
    std::fs::write(&known, format!("# a comment\n[127.0.0.1]:{} {other}", sshd.port)).unwrap();
    let error = sshd.connect_with(&sshd.login(), sshd.settings()).err().unwrap();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().contains("known_hosts:2"), "{error}");
    assert!(error.hints().iter().any(|hint| hint.contains("ssh-keygen -f")));

    let key = std::fs::read_to_string(sshd.path("host.pub")).unwrap();
    std::fs::write(&known, format!("@revoked * {key}")).unwrap();
    let error = sshd.connect_with(&sshd.login(), sshd.settings()).err().unwrap();
    assert!(error.to_string().contains("revoked"), "{error}");
}

#[test]
fn an_authority_for_hosts_is_enough_for_a_strict_login() {
    let sshd = Sshd::start("HostCertificate none");
    let path = |name: &str| sshd.path(name);
    keygen(&path("ca"), &["-t", "ed25519"], "");
    let (ca, host) = (path("ca"), path("host.pub"));
    tool(
        "ssh-keygen",
        &[
            "-q",
            "-h",
            "-s",
            ca.to_str().unwrap(),
            "-I",
            "h",
            "-n",
            "127.0.0.1",
            host.to_str().unwrap(),
        ],
    );
    let certificate = path("host-cert.pub");
    let sshd2 = Sshd::start(&format!(
        "HostKey {}\nHostCertificate {}",
        path("host").display(),
        certificate.display()
    ));
    let authority = std::fs::read_to_string(path("ca.pub")).unwrap();
    std::fs::create_dir(sshd2.path("ssh")).unwrap();
    let known = sshd2.path("ssh/known_hosts");
    let mut strict = sshd2.settings();
    strict.host_keys = HostKeys::Strict;
    std::fs::write(&known, format!("@cert-authority [127.0.0.*]:* {authority}")).unwrap();
    sshd2.connect_with(&sshd2.login(), strict.clone()).unwrap();
    std::fs::write(&known, format!("@cert-authority [10.0.0.*]:* {authority}")).unwrap();
    assert!(sshd2.connect_with(&sshd2.login(), strict).is_err());
}

#[test]
fn a_host_with_sha1_alone_is_refused_unless_ssh_config_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let rsa = directory.path().join("rsa");
    keygen(&rsa, &["-t", "rsa", "-b", "2048"], "");
    // Without a key of another type, of which `HostKeyAlgorithms` would choose nothing.
    let lines = format!("HostKey {}\nHostKeyAlgorithms ssh-rsa", rsa.display());
    let sshd = Sshd::start(&lines);
    let configure = |text: &str| {
        std::fs::create_dir_all(sshd.path("ssh")).unwrap();
        std::fs::write(sshd.path("ssh/config"), text).unwrap();
        sshd.connect_with(&sshd.login(), sshd.settings())
    };
    for refused in ["", "HostKeyAlgorithms -ssh-ed25519", "Host other\nHostKeyAlgorithms +ssh-rsa"]
    {
        let error = configure(refused).err().unwrap();
        assert_eq!(error.kind(), Kind::Network);
        assert!(error.to_string().contains("only with SHA-1"), "{refused}: {error}");
        assert!(error.hints().iter().any(|hint| hint.contains("+ssh-rsa")), "{error:?}");
    }
    // A key that is known already changes nothing.
    let public = std::fs::read_to_string(rsa.with_added_extension("pub")).unwrap();
    std::fs::write(sshd.path("ssh/known_hosts"), format!("* {public}")).unwrap();
    assert!(configure("").is_err());
    let host = configure("HostKeyAlgorithms +ssh-rsa").unwrap();
    assert_eq!(go(&*host, "echo ok", None).stdout, b"ok\n");
}

#[test]
fn a_login_is_signed_with_sha1_only_if_ssh_config_names_it() {
    let sshd = Sshd::start("PubkeyAcceptedAlgorithms ssh-rsa");
    let key = sshd.path("rsa");
    keygen(&key, &["-t", "rsa", "-b", "2048"], "");
    std::fs::copy(key.with_added_extension("pub"), sshd.path("authorized")).unwrap();
    let login = Login { keys: vec![key], ..Login::default() };
    let error = sshd.connect_with(&login, sshd.settings()).err().unwrap();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(!sshd.log().contains("Accepted publickey"), "{}", sshd.log());
    std::fs::write(sshd.path("ssh/config"), "PubkeyAcceptedAlgorithms ssh-rsa").unwrap();
    let host = sshd.connect_with(&login, sshd.settings()).unwrap();
    assert_eq!(go(&*host, "echo ok", None).stdout, b"ok\n");
}

#[test]
fn a_host_certificate_that_is_signed_with_sha1_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    keygen(&path("ca"), &["-t", "rsa", "-b", "2048"], "");
    let authority = std::fs::read_to_string(path("ca.pub")).unwrap();
    for (hash, accepted) in [("ssh-rsa", false), ("rsa-sha2-256", true)] {
        let key = path(hash);
        keygen(&key, &["-t", "ed25519"], "");
        let (ca, public) = (path("ca"), key.with_added_extension("pub"));
        let [ca, public] = [&ca, &public].map(|path| path.to_str().unwrap());
        tool(
            "ssh-keygen",
            &["-q", "-h", "-s", ca, "-t", hash, "-I", "h", "-n", "127.0.0.1", public],
        );
        let certificate = directory.path().join(format!("{hash}-cert.pub"));
        let lines = format!("HostKey {}\nHostCertificate {}", key.display(), certificate.display());
        let sshd = Sshd::start(&lines);
        std::fs::create_dir(sshd.path("ssh")).unwrap();
        let known = sshd.path("ssh/known_hosts");
        std::fs::write(known, format!("@cert-authority * {authority}")).unwrap();
        let mut strict = sshd.settings();
        strict.host_keys = HostKeys::Strict;
        match sshd.connect_with(&sshd.login(), strict) {
            Ok(_) => assert!(accepted, "{hash}"),
            Err(error) => {
                assert!(!accepted, "{hash}: {error}");
                assert!(error.to_string().contains("is signed with SHA-1"), "{error}");
            }
        }
    }
}

#[test]
fn two_jump_hosts_lead_to_a_third_and_are_shared() {
    let (first, second, third) = (Sshd::start(""), Sshd::start(""), Sshd::start(""));
    for other in [&second, &third] {
        std::fs::copy(first.path("authorized"), other.path("authorized")).unwrap();
    }
    let mut login = first.login();
    login.jump = Some(format!("127.0.0.1:{},root@127.0.0.1:{}", first.port, second.port));
    let connections = Connections::new(first.settings()).unwrap();
    let host = connections.connect(&third.address(), &login, false).unwrap();
    let data = vec![7; 3 << 20];
    assert!(go(&*host, "cat", Some(&data)).stdout == data);
    // The connection to the first host is reused; here the target is the second host itself.
    login.jump = Some(format!("127.0.0.1:{}", first.port));
    connections.connect(&second.address(), &login, false).unwrap();
    assert_eq!(first.log().matches("Accepted publickey").count(), 1);
    assert_eq!(second.log().matches("Accepted publickey").count(), 1);
    assert!(third.log().contains("Accepted publickey"));

    login.jump = Some("127.0.0.1:1".to_owned());
    let error = connections.connect(&third.address(), &login, false).err().unwrap();
    assert_eq!(error.kind(), Kind::Network);
    assert!(error.to_string().contains("through 127.0.0.1:1"), "{error}");
}

#[test]
fn ssh_config_names_host_user_port_key_and_way() {
    let (sshd, jump) = (Sshd::start(""), Sshd::start(""));
    std::fs::copy(sshd.path("authorized"), jump.path("authorized")).unwrap();
    std::fs::create_dir_all(sshd.path("ssh/more")).unwrap();
    let config = format!(
        "Include more/*.conf\nHost web-* !web-9\n  HostName=127.0.0.1\n  Port {}\n  IdentityFile \"~/id\"\n  ProxyJump bastion\nHost *\n  User root\n  User nobody\n",
        sshd.port
    );
    std::fs::write(sshd.path("ssh/config"), config).unwrap();
    let included =
        format!("Host bastion\nHostName 127.0.0.1\nPort {}\nIdentityFile %d/id\n", jump.port);
    std::fs::write(sshd.path("ssh/more/a.conf"), included).unwrap();
    let connections = Connections::new(sshd.settings()).unwrap();
    let address = |name: &str| crate::host::address::parse_one(name, 22).unwrap();
    let host = connections.connect(&address("web-1"), &Login::default(), false).unwrap();
    assert_eq!(host.label(), "web-1");
    assert_eq!(go(&*host, "echo ok", None).stdout, b"ok\n");
    assert!(jump.log().contains("Accepted publickey"));
}

#[test]
fn a_connection_cut_in_the_middle_is_an_error_and_is_made_again() {
    let sshd = Sshd::start("");
    let host = sshd.connect();
    let mut channel = block_on(host.open("echo begun; sleep 60", Privilege::User)).unwrap();
    let mut begun = [0; 6];
    block_on(async {
        use tokio::io::AsyncReadExt as _;
        channel.output.read_exact(&mut begun).await.unwrap();
        Ok(())
    })
    .unwrap();
    // The sshd process of this connection, not the listening one.
    let parent = go(&*host, "echo $PPID", None).stdout;
    let parent = String::from_utf8(parent).unwrap();
    tool("kill", &["-KILL", parent.trim()]);
    let error = block_on(channel.ended).unwrap_err();
    assert_eq!(error.kind(), Kind::Network);
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    let cut = block_on(async {
        use tokio::io::AsyncReadExt as _;
        let mut rest = Vec::new();
        Ok(channel.output.read_to_end(&mut rest).await)
    });
    assert!(cut.unwrap().is_err(), "a cut is no end of a file");
    assert_eq!(go(&*host, "echo again", None).stdout, b"again\n");
}

#[test]
fn thirty_hosts_are_connected_within_a_second_or_so() {
    let sshd = Sshd::start("");
    let connections = Connections::new(sshd.settings()).unwrap();
    // Thirty connections to one sshd.
    let connect = |number: usize| {
        let mut login = sshd.login();
        login.user = Some("root".to_owned());
        // A different login requires a separate connection.
        login.sudo_password = Some(Secret::new(number.to_string()));
        connections.connect(&sshd.address(), &login, false)
    };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let connecting: Vec<_> =
            (0..30).map(|number| scope.spawn(move || connect(number))).collect();
        for connection in connecting {
            connection.join().unwrap().unwrap();
        }
    });
    let taken = begun.elapsed();
    // Ten times the duration of an optimized build on a loaded machine.
    assert!(taken < Duration::from_secs(20), "{taken:?}");
    let known = std::fs::read_to_string(sshd.path("ssh/known_hosts")).unwrap();
    assert_eq!(known.lines().count(), 1, "learnt once: {known}");
}

#[test]
fn a_host_that_is_not_there_is_named_with_the_reason() {
    let sshd = Sshd::start("");
    let mut address = sshd.address();
    address.port = 1;
    let connections = Connections::new(sshd.settings()).unwrap();
    let error = connections.connect(&address, &sshd.login(), false).err().unwrap();
    assert_eq!(error.kind(), Kind::Network);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[test]
fn something_that_is_no_sshd_is_given_up_after_its_time() {
    let sshd = Sshd::start("");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut address = sshd.address();
    address.port = listener.local_addr().unwrap().port();
    let mut settings = sshd.settings();
    settings.connect_timeout = Duration::from_millis(300);
    settings.retries = 1;
    let connections = Connections::new(settings).unwrap();
    let error = connections.connect(&address, &sshd.login(), false).err().unwrap();
    assert!(error.to_string().contains("does not speak SSH"), "{error}");
}
