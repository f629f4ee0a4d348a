//! Operations from request to outcome, on simulated hosts: what another front end than the command
//! line does. The hosts are a fake: they accept files and report success for every command.

mod image_settings;
mod logins;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::front_end::{Announcement, Consent, FrontEnd, InPlace, Logins, Outcome};
use crate::install::{self, Additions, Installation};
use crate::maintain::{ClusterStatus, TearDown, tear_down};
use crate::members::{Addition, Removal, add, remove};
use crate::session::{Controller, Session, SshAccess};
use crate::upgrade::{GivenChoices, Preview, RollbackRequest, UpgradeRequest, upgrade};
use crate::watch::watch;
use crate::work::RunOptions;
use imgctl_base::error::{Error, Kind, Result};
use imgctl_base::image::{Descriptor, Platform, Reference, Verdict, media_type};
use imgctl_base::progress::{Reporter, Silent};
use imgctl_host::host::login::{ALIVE_INTERVAL, HostKeys, Login, Settings};
use imgctl_journal::event::{Event, Listener};
use imgctl_journal::interrupt::Interrupt;
use imgctl_model::desired::HostFlags;
use imgctl_registry::ClientOptions;
use imgctl_store::store::{Options, Store};
use imgctl_workflow::pipeline::nodes::Wait;
use imgctl_workflow::pipeline::testing::{Behaviour, SimulatedPool, Simulation};

/// What a front end was told.
#[derive(Default)]
struct Told {
    outcomes: Vec<String>,
    questions: Vec<String>,
    steps: usize,
}

/// A front end that records what it is told, and answers every question in the same way.
struct Recorder {
    store: Store,
    /// `None`: there is nobody to ask.
    agrees: Option<bool>,
    told: Arc<Mutex<Told>>,
}

struct Counter(Arc<Mutex<Told>>);

impl Listener for Counter {
    fn event(&self, event: &Event) {
        if matches!(event, Event::StepEnd { .. }) {
            self.0.lock().unwrap().steps += 1;
        }
    }
}

impl FrontEnd for Recorder {
    fn note(&self, _: &str) {}

    fn say(&self, _: &str) {}

    fn store(&self) -> Result<&Store> {
        Ok(&self.store)
    }

    fn registry_options(&self, _: Logins) -> Result<ClientOptions> {
        Err(Error::failed("no registry is needed"))
    }

    fn reporter(&self) -> &dyn Reporter {
        &Silent
    }

    fn listener(&self) -> Box<dyn Listener + '_> {
        Box::new(Counter(Arc::clone(&self.told)))
    }

    fn pass_interrupts(&self, _: &Interrupt) -> Result<()> {
        Ok(())
    }

    fn announce(&self, _: &Announcement<'_>) -> Result<()> {
        Ok(())
    }

    fn confirm(&self, question: &str) -> Result<bool> {
        self.told.lock().unwrap().questions.push(question.to_owned());
        self.agrees.ok_or_else(|| Error::usage("there is nobody to ask"))
    }

    fn confirm_here(&self, _: &str) -> Result<Option<bool>> {
        Ok(self.agrees)
    }

    fn consent(&self) -> Consent {
        self.agrees.map_or(Consent::Nobody, |_| Consent::Asked)
    }

    fn show(&self, outcome: &Outcome) -> Result<()> {
        let text = match outcome {
            Outcome::Steps { steps, .. } => format!("{} phases", steps.phases.len()),
            Outcome::Changed { cluster, summary, .. } if summary.done > 0 => {
                format!("{cluster}: changed")
            }
            Outcome::Rehearsed { rehearsal, .. } => format!("{} is rehearsed", rehearsal.cluster),
            Outcome::TornDown { cluster } => format!("{cluster} is gone"),
            Outcome::UpgradePlan(document) => {
                let (from, to) = (&document.from.version, &document.target().version);
                let refused = document.findings.iter().filter(|one| one.check == "image-settings");
                let refused = refused.map(|one| format!("\n{:?} {}", one.severity, one.what));
                let hosts = format!("{from} to {to}: {} hosts", document.hosts.len());
                hosts + &refused.collect::<String>()
            }
            _ => "another outcome".to_owned(),
        };
        self.told.lock().unwrap().outcomes.push(text);
        Ok(())
    }

    fn in_place(&self, _: &InPlace<'_>) -> Result<()> {
        Ok(())
    }
}

/// A controller with a store, and simulated hosts.
struct Fixture {
    directory: tempfile::TempDir,
    store: Store,
    hosts: Arc<Simulation>,
    told: Arc<Mutex<Told>>,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("root"), Options { sync: false }).unwrap();
        Self {
            store,
            hosts: Simulation::new(Behaviour::default()),
            told: Arc::default(),
            directory,
        }
    }

    fn session(&self, agrees: impl Into<Option<bool>>) -> Session<'_> {
        self.session_of("state", agrees)
    }

    /// Returns a session of another controller, which keeps its clusters in `state`.
    fn session_of(&self, state: &str, agrees: impl Into<Option<bool>>) -> Session<'_> {
        let agrees = agrees.into();
        let controller = Controller {
            state_root: Some(self.directory.path().join(state)),
            data_root: "/var/lib/sealos".to_owned(),
            ..Controller::default()
        };
        let settings = Settings {
            host_keys: HostKeys::Strict,
            known_hosts: Vec::new(),
            config_files: Vec::new(),
            agent_socket: None,
            home: None,
            local_user: None,
            connect_timeout: std::time::Duration::from_secs(1),
            alive_interval: ALIVE_INTERVAL,
            retries: 0,
        };
        let told = Arc::clone(&self.told);
        Session {
            front: Box::new(Recorder { store: self.store.clone(), agrees, told }),
            controller,
            ssh: SshAccess { login: Login::default(), port: None, settings },
            pool: Some(Arc::new(SimulatedPool(Arc::clone(&self.hosts)))),
        }
    }

    fn clusterfile(&self) -> PathBuf {
        self.directory.path().join("state/default/Clusterfile")
    }

    fn outcomes(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().unwrap().outcomes)
    }
}

/// Stores a rootfs image whose scripts make the cluster.
fn put_image(store: &Store, version: &str) {
    put_image_with(store, version, &[]);
}

/// The same with more labels.
fn put_image_with(store: &Store, version: &str, more: &[(&str, &str)]) {
    let empty_tar = [0; 1024];
    let layer = store.put_blob(&empty_tar).unwrap();
    let mut config = serde_json::json!({
        "architecture": Platform::host().architecture, "os": "linux",
        "config": {"Cmd": ["bash scripts/up.sh"], "Labels": {
            "sealos.io.type": "rootfs", "sealos.io.version": "v1beta1",
            "sealos.io.distribution": "script", "version": version,
            "init": "true", "join": "true", "upgrade": "true",
        }},
        "rootfs": {"type": "layers", "diff_ids": [layer]},
    });
    for (name, value) in more {
        config["config"]["Labels"][*name] = (*value).into();
    }
    let config = config.to_string();
    let put = |text: &str| store.put_blob(text.as_bytes()).unwrap();
    let config_of = Descriptor::new(media_type::OCI_CONFIG, put(&config), config.len() as u64);
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_MANIFEST,
        "config": config_of,
        "layers": [Descriptor::new(media_type::OCI_LAYER, layer, empty_tar.len() as u64)],
    })
    .to_string();
    let size = manifest.len() as u64;
    let image = Descriptor::new(media_type::OCI_MANIFEST, put(&manifest), size);
    let name = Reference::parse(&format!("app:{version}")).unwrap();
    store.tag(&[name], &image, &Verdict::not_asked("a test")).unwrap();
}

fn dry() -> RunOptions {
    RunOptions { dry_run: true, ..RunOptions::default() }
}

fn hosts(masters: Option<&str>, nodes: &str) -> HostFlags {
    HostFlags {
        masters: masters.map(str::to_owned),
        nodes: Some(nodes.to_owned()),
        ..HostFlags::default()
    }
}

fn addition(nodes: &str) -> Addition {
    Addition {
        image: None,
        force: false,
        cluster: "default".to_owned(),
        hosts: hosts(None, nodes),
        wait: Wait::Never,
        options: RunOptions::default(),
    }
}

/// The whole last upgrade goes back.
fn rolling_back() -> RollbackRequest {
    RollbackRequest {
        cluster: "default".to_owned(),
        scope: None,
        id: None,
        preview: false,
        from_snapshot: None,
        choices: GivenChoices::default(),
        options: RunOptions::default(),
    }
}

fn installation(options: RunOptions) -> Installation {
    Installation {
        prune: imgctl_workflow::apps::prune::Prune::Nothing,
        encrypt_state: Vec::new(),
        cluster: "default".to_owned(),
        images: vec!["app:v1".to_owned()],
        hosts: hosts(Some("10.9.0.1"), "10.9.0.2,10.9.0.3"),
        additions: Additions::default(),
        force: false,
        wait: Wait::Never,
        options,
    }
}

#[test]
fn a_request_is_all_that_an_operation_needs() {
    let fixture = Fixture::new();
    put_image(&fixture.store, "v1");
    put_image(&fixture.store, "v2");
    let session = fixture.session(true);

    install::run(&installation(dry()), &session).unwrap();
    let planned = fixture.outcomes();
    assert!(planned[0].ends_with(" phases") && planned[0] != "0 phases", "{planned:?}");
    assert!(!fixture.clusterfile().exists(), "a dry run changes nothing");

    install::run(&installation(RunOptions::default()), &session).unwrap();
    assert_eq!(fixture.outcomes(), ["default: changed"]);
    assert!(fixture.told.lock().unwrap().steps > 0);
    let stored = std::fs::read_to_string(fixture.clusterfile()).unwrap();
    assert!(stored.contains("app:v1") && stored.contains("10.9.0.3"), "{stored}");

    let addition = addition("10.9.0.4");
    add(&addition, &session).unwrap();
    assert_eq!(fixture.outcomes(), ["default: changed"]);
    assert!(std::fs::read_to_string(fixture.clusterfile()).unwrap().contains("10.9.0.4"));

    let request = UpgradeRequest {
        cluster: "default".to_owned(),
        images: vec!["app:v2".to_owned()],
        saved: None,
        id: None,
        choices: GivenChoices::default(),
        preview: Some(Preview { save: None, steps: false }),
        options: RunOptions::default(),
    };
    upgrade(&request, &session).unwrap();
    assert_eq!(fixture.outcomes(), ["v1 to v2: 4 hosts"]);

    let nobody = Addition { hosts: HostFlags::default(), ..addition };
    assert_eq!(add(&nobody, &session).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn a_question_is_put_to_the_front_end_and_its_answer_counts() {
    let fixture = Fixture::new();
    put_image(&fixture.store, "v1");
    install::run(&installation(RunOptions::default()), &fixture.session(true)).unwrap();
    fixture.outcomes();
    let request =
        TearDown { cluster: "default".to_owned(), force: false, options: RunOptions::default() };

    let declined = tear_down(&request, &fixture.session(false)).unwrap_err();
    assert_eq!(declined.kind(), Kind::Denied);
    assert!(fixture.clusterfile().exists() && fixture.outcomes().is_empty());

    tear_down(&request, &fixture.session(true)).unwrap();
    assert_eq!(fixture.outcomes(), ["default is gone"]);
    assert!(!fixture.clusterfile().exists());
    assert_eq!(fixture.told.lock().unwrap().questions, ["Continue?", "Continue?"]);

    let gone = tear_down(&request, &fixture.session(true)).unwrap_err();
    assert_eq!(gone.kind(), Kind::NotFound);
}

#[test]
fn where_nobody_can_be_asked_hosts_leave_only_by_force() {
    let fixture = Fixture::new();
    put_image(&fixture.store, "v1");
    install::run(&installation(RunOptions::default()), &fixture.session(None)).unwrap();
    let removal = |force: bool| Removal {
        cluster: "default".to_owned(),
        masters: None,
        nodes: Some("10.9.0.3".to_owned()),
        force,
        options: RunOptions::default(),
    };
    let reset = |force: bool| TearDown {
        cluster: "default".to_owned(),
        force,
        options: RunOptions::default(),
    };
    let session = fixture.session(None);
    assert_eq!(remove(&removal(false), &session).unwrap_err().kind(), Kind::Usage);
    assert_eq!(tear_down(&reset(false), &session).unwrap_err().kind(), Kind::Usage);
    remove(&removal(true), &session).unwrap();
    assert!(fixture.clusterfile().exists());
    tear_down(&reset(true), &session).unwrap();
    assert!(!fixture.clusterfile().exists());
}

#[test]
fn hosts_keep_the_role_that_they_have() {
    let fixture = Fixture::new();
    put_image(&fixture.store, "v1");
    let session = fixture.session(true);
    let two = hosts(Some("10.9.0.1,10.9.0.4"), "10.9.0.2,10.9.0.3");
    let install = |hosts: HostFlags| {
        install::run(&Installation { hosts, ..installation(RunOptions::default()) }, &session)
    };
    install(two.clone()).unwrap();
    let before = std::fs::read_to_string(fixture.clusterfile()).unwrap();
    let removed = |masters: Option<&str>, nodes: Option<&str>| {
        let request = Removal {
            cluster: "default".to_owned(),
            masters: masters.map(str::to_owned),
            nodes: nodes.map(str::to_owned),
            force: true,
            options: RunOptions::default(),
        };
        remove(&request, &session)
    };
    let added = |masters: Option<&str>, nodes: Option<&str>| {
        let hosts = HostFlags {
            masters: masters.map(str::to_owned),
            nodes: nodes.map(str::to_owned),
            ..HostFlags::default()
        };
        let (wait, options) = (Wait::Never, RunOptions::default());
        let cluster = "default".to_owned();
        add(&Addition { cluster, hosts, image: None, force: true, wait, options }, &session)
    };
    for (error, part) in [
        (removed(None, Some("10.9.0.4")), "10.9.0.4 is a control plane"),
        (removed(None, Some("10.9.0.2,10.9.0.4")), "--masters 10.9.0.4"),
        (removed(Some("10.9.0.2"), None), "--nodes 10.9.0.2"),
        (added(Some("10.9.0.2"), None), "10.9.0.2 is a worker"),
        (added(Some("10.9.0.9,10.9.0.2"), None), "10.9.0.2 is a worker"),
        (added(None, Some("10.9.0.1")), "10.9.0.1 is a control plane"),
        (install(hosts(Some("10.9.0.1,10.9.0.3"), "10.9.0.2")), "10.9.0.3 is a worker"),
        (install(hosts(Some("10.9.0.1"), "10.9.0.4")), "10.9.0.4 is a control plane"),
    ] {
        let error = error.unwrap_err();
        let told = format!("{error} {:?}", error.hints());
        assert!(error.kind() == Kind::Usage && told.contains(part), "{part}: {told}");
    }
    assert_eq!(std::fs::read_to_string(fixture.clusterfile()).unwrap(), before);
    install(two).unwrap();
    removed(Some("10.9.0.4"), Some("10.9.0.2")).unwrap();
}

#[test]
fn hosts_leave_a_cluster_whose_image_is_gone_from_the_store() {
    let fixture = Fixture::new();
    put_image(&fixture.store, "v1");
    let session = fixture.session(true);
    install::run(&installation(RunOptions::default()), &session).unwrap();
    let users = |name: &str| crate::state::users_of(&[name.to_owned()], &session).unwrap();
    assert_eq!(
        users("docker.io/library/app:v1"),
        [("docker.io/library/app:v1".to_owned(), "default".to_owned())]
    );
    assert!(users("app:v2").is_empty());
    let image = fixture.store.resolve("app:v1").unwrap();
    fixture.store.untag(&[image]).unwrap();
    let removal = Removal {
        cluster: "default".to_owned(),
        masters: None,
        nodes: Some("10.9.0.3".to_owned()),
        force: false,
        options: RunOptions::default(),
    };
    remove(&removal, &session).unwrap();
    let stored = std::fs::read_to_string(fixture.clusterfile()).unwrap();
    assert!(stored.contains("10.9.0.2") && !stored.contains("10.9.0.3"), "{stored}");
    assert!(stored.contains("app:v1"), "{stored}");
    // New hosts need the image.
    let (wait, options) = (Wait::Never, RunOptions::default());
    let cluster = "default".to_owned();
    let hosts = hosts(None, "10.9.0.5");
    add(&Addition { cluster, hosts, image: None, force: false, wait, options }, &session)
        .unwrap_err();
}

/// Two controllers have a cluster of the same name each.
#[test]
fn a_host_of_another_cluster_of_the_same_name_is_neither_added_nor_cleaned() {
    let fixture = Fixture::new();
    put_image(&fixture.store, "v1");
    let (one, two) = (fixture.session_of("one", true), fixture.session_of("two", true));
    let install = |nodes: &str, master: &str, session: &Session<'_>| {
        let hosts = hosts(Some(master), nodes);
        install::run(&Installation { hosts, ..installation(RunOptions::default()) }, session)
    };
    install("10.9.0.2", "10.9.0.1", &one).unwrap();
    install("10.9.1.2", "10.9.1.1", &two).unwrap();
    let uid = |host: &str| {
        let all = fixture.hosts.uids();
        all.into_iter().find(|(own, _)| own == host).map(|(_, uid)| uid)
    };
    let (own, other) = (uid("10.9.0.1").unwrap(), uid("10.9.1.1").unwrap());
    assert_ne!(own, other);
    assert_eq!(uid("10.9.0.2").as_ref(), Some(&own));
    let recorded = |state: &str| {
        let path = fixture.directory.path().join(state).join("default/Clusterfile");
        std::fs::read_to_string(path).unwrap()
    };
    assert!(recorded("one").contains(&own) && recorded("two").contains(&other));

    let addition = addition("10.9.1.2");
    let refused = add(&addition, &one).unwrap_err();
    let told = refused.chain().join(": ");
    assert_eq!(refused.kind(), Kind::CheckFailed);
    assert!(told.contains("10.9.1.2") && told.contains(&own) && told.contains(&other), "{told}");
    assert_eq!(uid("10.9.1.2").as_ref(), Some(&other));
    let removal = |node: &str, force: bool| Removal {
        cluster: "default".to_owned(),
        masters: None,
        nodes: Some(node.to_owned()),
        force,
        options: RunOptions::default(),
    };
    // It was never touched, so the first cluster knows nothing of it.
    assert_eq!(remove(&removal("10.9.1.2", false), &one).unwrap_err().kind(), Kind::NotFound);

    // The operator insists: it changes hands, and its former cluster leaves it alone.
    add(&Addition { force: true, ..addition }, &one).unwrap();
    assert_eq!(uid("10.9.1.2").as_ref(), Some(&own));
    let kept = remove(&removal("10.9.1.2", false), &two).unwrap_err();
    let told = kept.chain().join(": ");
    assert!(told.contains("is not cleaned") && told.contains(&own), "{told}");
    let changed = install("10.9.1.2,10.9.1.3", "10.9.1.1", &two).unwrap_err();
    assert!(changed.chain().join(": ").contains(&own), "{changed}");
    let reset = |force: bool| TearDown {
        cluster: "default".to_owned(),
        force,
        options: RunOptions::default(),
    };
    let partly = tear_down(&reset(false), &two).unwrap_err();
    assert!(partly.chain().join(": ").contains(&own), "{partly}");
    assert_eq!((uid("10.9.1.1"), uid("10.9.1.2").as_ref()), (None, Some(&own)));
    // A cluster whose removal has begun has no members to remove from etcd.
    assert_eq!(remove(&removal("10.9.1.2", true), &two).unwrap_err().kind(), Kind::Busy);
    tear_down(&reset(true), &two).unwrap();
    assert_eq!(uid("10.9.1.2").as_ref(), Some(&own));
    tear_down(&reset(false), &one).unwrap();
    assert!(fixture.hosts.uids().is_empty(), "{:?}", fixture.hosts.uids());
}

/// A cluster from before there were UIDs gets one, the same wherever it is recorded, and its hosts get
/// it with the next change.
#[test]
fn a_cluster_without_a_uid_gets_one_with_its_next_change() {
    let fixture = Fixture::new();
    put_image(&fixture.store, "v1");
    let session = fixture.session(true);
    install::run(&installation(RunOptions::default()), &session).unwrap();
    let former = std::fs::read_to_string(fixture.clusterfile()).unwrap();
    let uid = fixture.hosts.uids()[0].1.clone();
    let without: Vec<&str> = former.lines().filter(|line| !line.contains(&uid)).collect();
    std::fs::write(fixture.clusterfile(), without.join("\n")).unwrap();
    fixture.hosts.forget_uids();

    let addition = addition("10.9.0.4");
    add(&addition, &session).unwrap();
    let uids = fixture.hosts.uids();
    let given = uids[0].1.clone();
    assert!(uids.len() == 4 && uids.iter().all(|(_, uid)| *uid == given), "{uids:?}");
    assert_ne!(given, uid);
    let stored = std::fs::read_to_string(fixture.clusterfile()).unwrap();
    assert!(stored.contains(&given), "{stored}");
}

#[test]
fn a_watched_status_is_queried_again_until_a_stop_is_requested() {
    let fixture = Fixture::new();
    put_image(&fixture.store, "v1");
    install::run(&installation(RunOptions::default()), &fixture.session(true)).unwrap();
    let interrupt = Interrupt::default();
    let mut count = 0;
    let mut each = |found: ClusterStatus| {
        assert_eq!(found.status.hosts.len(), 3);
        assert!(found.status.hosts.iter().all(|host| host.reachable));
        count += 1;
        if count == 3 {
            interrupt.ask();
        }
        Ok(())
    };
    let moment = std::time::Duration::from_millis(1);
    watch("default", fixture.session(true), moment, &interrupt, &mut each).unwrap();
    assert_eq!(count, 3);
    let error =
        watch("other", fixture.session(true), moment, &Interrupt::default(), &mut |_| Ok(()));
    assert_eq!(error.unwrap_err().kind(), Kind::NotFound);
}
