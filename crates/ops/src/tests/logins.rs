//! The login of operations, on hosts that let in one user alone.

use super::*;
use crate::operation::Operation;
use crate::restore::refuse_if_alive;
use crate::upgrade::rollback;
use crate::work::Work;
use imgctl_host::agent::Agent;
use imgctl_model::clusterfile::Ssh;
use imgctl_model::context::Host;
use imgctl_runtime::HostPool;

/// Hosts that let in this user; `None`: who has no name in the login.
struct Guarded {
    hosts: SimulatedPool,
    user: Option<&'static str>,
}

impl HostPool for Guarded {
    fn agent(&self, host: &Host) -> Result<Arc<dyn Agent>> {
        if host.login.user.as_deref() == self.user {
            return self.hosts.agent(host);
        }
        Err(Error::denied(format!("{} does not let {:?} log in", host.id(), host.login.user)))
    }
}

impl Fixture {
    /// Returns a session with `--user` on hosts that let `user` in.
    fn session_as(&self, flag: Option<&str>, user: Option<&'static str>) -> Session<'_> {
        let mut session = self.session(true);
        session.ssh.login.user = flag.map(str::to_owned);
        let hosts = SimulatedPool(Arc::clone(&self.hosts));
        session.pool = Some(Arc::new(Guarded { hosts, user }));
        session
    }

    /// Installs a cluster whose recorded login has no user.
    fn with_cluster() -> Self {
        let fixture = Self::new();
        put_image(&fixture.store, "v1");
        put_image(&fixture.store, "v2");
        let request = installation(RunOptions::default());
        install::run(&request, &fixture.session_as(None, None)).unwrap();
        fixture.outcomes();
        fixture
    }
}

fn upgrading(preview: Option<Preview>) -> UpgradeRequest {
    UpgradeRequest {
        cluster: "default".to_owned(),
        images: vec!["app:v2".to_owned()],
        saved: None,
        id: None,
        choices: GivenChoices::default(),
        preview,
        options: RunOptions::default(),
    }
}

#[test]
fn an_upgrade_and_its_rollback_log_in_as_the_flags_say() {
    let fixture = Fixture::with_cluster();
    let preview = || upgrading(Some(Preview { save: None, steps: false }));
    let _ = upgrade(&preview(), &fixture.session_as(None, Some("ops")));
    assert_ne!(fixture.outcomes(), ["v1 to v2: 3 hosts"], "nobody is let in");
    upgrade(&preview(), &fixture.session_as(Some("ops"), Some("ops"))).unwrap();
    assert_eq!(fixture.outcomes(), ["v1 to v2: 3 hosts"]);

    let request = rolling_back();
    upgrade(&upgrading(None), &fixture.session_as(Some("ops"), Some("ops"))).unwrap();
    let version = || {
        let stored = std::fs::read_to_string(fixture.clusterfile()).unwrap();
        if stored.contains("app:v2") { "v2" } else { "v1" }
    };
    assert_eq!(version(), "v2");
    rollback(&request, &fixture.session_as(None, Some("ops"))).unwrap_err();
    assert_eq!(version(), "v2");
    rollback(&request, &fixture.session_as(Some("ops"), Some("ops"))).unwrap();
    assert_eq!(version(), "v1");
}

#[test]
fn an_addition_logs_in_to_members_as_recorded() {
    let fixture = Fixture::with_cluster();
    let addition = addition("10.9.0.4");
    let refused = add(&addition, &fixture.session_as(Some("ops"), Some("ops"))).unwrap_err();
    assert!(refused.chain().join(": ").contains("does not let None log in"), "{refused}");
    add(&addition, &fixture.session_as(Some("ops"), None)).unwrap();
}

/// A cluster must not run twice: a host of the lost one may take the recorded login, or the flags.
#[test]
fn a_restore_asks_the_former_hosts_with_either_login() {
    let fixture = Fixture::with_cluster();
    let options = dry();
    for (user, is_alive) in [(None, true), (Some("ops"), true), (Some("other"), false)] {
        let session = fixture.session_as(Some("ops"), user);
        let work = Work::begin(Operation::Restore, "default", &options, &session).unwrap();
        let refused = refuse_if_alive(&work, &session).map_err(|error| error.kind());
        assert_eq!(refused, if is_alive { Err(Kind::Busy) } else { Ok(()) }, "{user:?}");
    }
}

#[test]
fn a_repeated_creation_keeps_the_recorded_login() {
    let fails = Some(("true".to_owned(), "10.9.0.1".to_owned()));
    let hosts = Simulation::new(Behaviour { fails, ..Behaviour::default() });
    let fixture = Fixture { hosts, ..Fixture::new() };
    put_image(&fixture.store, "v1");
    let login = || {
        let stored = std::fs::read_to_string(fixture.clusterfile()).unwrap();
        let section = stored.split("\n  ssh:\n").nth(1).unwrap_or_default().to_owned();
        section.lines().take_while(|line| line.starts_with("    ")).collect::<Vec<_>>().join("\n")
    };
    let session = |keys: &[&str], user: Option<&str>| {
        let mut session = fixture.session(true);
        session.ssh.login.user = user.map(str::to_owned);
        session.ssh.login.keys = keys.iter().map(Into::into).collect();
        session
    };
    let run = |keys: &[&str], user: Option<&str>| {
        let session = session(keys, user);
        let mut request = installation(RunOptions::default());
        request.hosts.ssh = Ssh::of_login(&session.ssh.login, None);
        install::run(&request, &session).unwrap_err();
        login()
    };
    let first = run(&["/key"], Some("ops"));
    assert!(first.contains("/key") && first.contains("ops"), "{first}");
    assert_eq!(run(&[], None), first, "the same command without login flags");
    // A key replaces the key, and nothing else.
    let other = run(&["/other"], None);
    assert!(other.contains("/other") && !other.contains("/key"), "{other}");
    assert!(other.contains("ops"), "{other}");

    // Without hosts, the recorded ones are meant, with the login of the flags.
    let mut request = installation(RunOptions::default());
    request.hosts.masters = None;
    request.hosts.nodes = None;
    request.hosts.ssh.user = Some("other".to_owned());
    install::run(&request, &session(&[], Some("other"))).unwrap_err();
    assert!(login().contains("other"), "{}", login());
}

#[test]
fn this_machine_is_made_a_cluster_after_a_question_alone() {
    let fixture = Fixture::new();
    put_image(&fixture.store, "v1");
    let request = |local: bool| {
        let hosts = HostFlags { local, ..HostFlags::default() };
        Installation { hosts, ..installation(RunOptions::default()) }
    };
    let error = install::run(&request(false), &fixture.session(None)).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage, "{error}");
    let error = install::run(&request(false), &fixture.session(false)).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(!fixture.clusterfile().exists());
    let asked = |fixture: &Fixture| fixture.told.lock().unwrap().questions.len();
    assert_eq!(asked(&fixture), 1);
    install::run(&request(true), &fixture.session(None)).unwrap();
    // The cluster exists: the same command means its host.
    install::run(&request(false), &fixture.session(None)).unwrap();
    assert_eq!(asked(&fixture), 1);

    let fixture = Fixture::new();
    put_image(&fixture.store, "v1");
    let mut named = request(false);
    named.hosts.masters = Some("localhost".to_owned());
    install::run(&named, &fixture.session(None)).unwrap();
    let stored = std::fs::read_to_string(fixture.clusterfile()).unwrap();
    assert!(!stored.contains("localhost:"), "{stored}");
}
