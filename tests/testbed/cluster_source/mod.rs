//! `--source registry`: hosts pull the layers of an image from a registry that asks for a password.
//! The controller's line cannot carry them: it is cut behind the bytes of requests. Its store has only
//! the layers that it reads itself. No host keeps the password.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::cluster_etcd::support::{events, run, wait_for};
use crate::cluster_upgrade::counting::{context, upgrade};
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, tool};

/// Size of the rootfs' largest file and of the embedded image, in bytes; of random content.
const NOISE: u64 = 16_000_000;
/// What the controller may send beside layers, in bytes: requests, scripts, the journal's copies.
const CONTROL: u64 = 2_000_000;
const PASSWORD: &str = "correct-horse-battery";
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn hosts_pull_from_the_registry_and_the_controller_sends_no_layer() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(4);
    let site = registry_on(&bed, 4);
    let login = format!("pusher:{PASSWORD}");
    let access = ["--creds", &login, "--tls-verify=false"];
    for version in ["1.0.0", "1.1.0"] {
        let name = format!("{site}:{version}");
        bed.env.build(&name, &image(&bed, version));
        bed.imgctl([&["push", &name], &access[..]].concat()).ok();
    }
    // The controller's store is empty.
    std::fs::remove_dir_all(bed.env.root()).unwrap();
    let first = format!("{site}:1.0.0");
    let (masters, workers) = (bed.ip(1), bed.ip(2));
    let create = [
        &["run", &first, "--source", "registry", "--masters", &masters, "--nodes", &workers],
        &access[..],
    ]
    .concat();
    // Brings the agents to the hosts, which is no matter of layers.
    let shown = run(&bed, &[&create[..], &["--dry-run"]].concat()).ok();
    assert!(shown.stdout().contains(&format!("from {site}")), "{}", shown.report());

    let before = sent(&bed);
    cut_behind(&bed, Some(CONTROL));
    let created = run(&bed, &[&["--json"], &create[..]].concat()).ok();
    let came = came(&created);
    assert_eq!(came["controller"], 0, "{came:?}");
    assert!(came["registry"] > 2 * NOISE, "{came:?}");
    let carried = sent(&bed) - before;
    assert!(carried < CONTROL, "the controller sent {carried} bytes");
    assert_eq!([version(&bed, 1), version(&bed, 2)], ["1.0.0", "1.0.0"]);
    let data = "/var/lib/sealos/data/default/registry/docker/registry/v2";
    bed.says(1, &format!("test -e {data}/repositories/app/_manifests/tags/v1/current/link"));

    // Of the next version, hosts fetch what differs.
    let second = format!("{site}:1.1.0");
    let before = sent(&bed);
    cut_behind(&bed, Some(CONTROL));
    let moved = [&["--json", "upgrade", &second, "--source", "registry", "--yes"], &access[..]];
    let moved = bed.imgctl(moved.concat()).ok();
    let came = self::came(&moved);
    assert_eq!(came["controller"], 0, "{came:?}");
    assert!((1..NOISE / 2).contains(&came["registry"]), "{came:?}");
    let carried = sent(&bed) - before;
    assert!(carried < CONTROL, "the controller sent {carried} bytes");
    assert_eq!([version(&bed, 1), version(&bed, 2)], ["1.1.0", "1.1.0"]);

    cut_behind(&bed, None);
    only_what_is_read(&bed, &second, &access);
    alone(&bed, &site, &access);
    for host in 1..=3 {
        let line = format!(
            "! grep -rlF {PASSWORD} /var/lib /etc /root /tmp /run/systemd /var/log && \
             ! journalctl --no-pager | grep -F {PASSWORD}"
        );
        bed.says(host, &line);
    }
    let logs = bed.env.path("clusters");
    let kept = Ran::new(tool("grep", ["-rlF", PASSWORD, logs.to_str().unwrap()]));
    assert_eq!(kept.stdout(), "");
}

/// The controller's store has the rootfs layers of both versions, and no embedded image.
fn only_what_is_read(bed: &Bed, image: &str, access: &[&str]) {
    let blobs = bed.env.root().join("store/blobs/sha256");
    let sizes =
        std::fs::read_dir(blobs).unwrap().map(|blob| blob.unwrap().metadata().unwrap().len());
    let held: u64 = sizes.sum();
    assert!((2 * NOISE..2 * NOISE + CONTROL).contains(&held), "{held} bytes are in the store");
    bed.imgctl(["scrub"]).ok();
    let archive = bed.env.path("whole.tar");
    let save = ["save", image, "-o", archive.to_str().unwrap()];
    let failed = bed.imgctl(save);
    assert!(failed.stderr().contains("pull, load or build the image"), "{}", failed.report());
    bed.imgctl([&["pull", image], access].concat()).ok();
    bed.imgctl(save).ok();
}

/// A host that reaches neither the registry nor a host that has the layers.
fn alone(bed: &Bed, site: &str, access: &[&str]) {
    for other in [1, 2, 4] {
        bed.cut_apart(3, other);
    }
    let host = bed.ip(3);
    let add = ["add", "--nodes", &host, "--source", "registry", "--retry", "1"];
    let add = [&add[..], access].concat();
    let failed = run(bed, &add);
    assert!(!failed.success(), "{}", failed.report());
    let text = failed.stderr();
    for word in [&host, site, "cannot connect", "or leave out --source"] {
        assert!(text.contains(word), "no `{word}`: {}", failed.report());
    }
    bed.heal();
    run(bed, &add).ok();
    assert_eq!(version(bed, 3), "1.1.0");
    // What is no repository of the registry is told with what to do.
    let other = format!("registry={}/elsewhere", site.split('/').next().unwrap());
    let missing = upgraded_from(bed, site, &other, access);
    let text = missing.stderr();
    assert!(text.contains("/elsewhere") && text.contains("push the image there"), "{text}");
}

/// An upgrade to an image that the registry does not have.
fn upgraded_from(bed: &Bed, site: &str, source: &str, access: &[&str]) -> Ran {
    let name = format!("{site}:1.2.0");
    bed.env.build(&name, &context(bed, "1.2.0", "", ""));
    let words = [&[&*name, "--source", source, "--pause-after", "stage"], access].concat();
    let failed = upgrade(bed, &words);
    assert!(!failed.success(), "{}", failed.report());
    bed.imgctl(["upgrade", "abort", "--yes"]).ok();
    failed
}

/// The context of a version: noise that both versions share, and an embedded image.
fn image(bed: &Bed, version: &str) -> std::path::PathBuf {
    let context = context(bed, version, "", "COPY registry registry\nCOPY etc etc\n");
    bed.env.write(context.join("etc/version"), version);
    noise(&bed.env.path("noise"), &context.join("etc/noise"));
    let app = bed.env.context("app", "FROM scratch\nCOPY app app\n", &[]);
    noise(&bed.env.path("noise-app"), &app.join("app"));
    bed.env.build("app:v1", &app);
    let tree = context.join("registry");
    std::fs::create_dir_all(&tree).unwrap();
    bed.imgctl(["copy", "app:v1", &format!("registry-dir:{}:app:v1", tree.display())]).ok();
    context
}

/// Copies random bytes, which are made once.
fn noise(kept: &Path, to: &Path) {
    let (kept, to) = (kept.display(), to.display());
    let line = format!("[ -e {kept} ] || head -c {NOISE} /dev/urandom >{kept}; cp {kept} {to}");
    Ran::new(tool("sh", ["-c", &line])).ok();
}

/// Starts Debian's docker-registry with a password on a host; returns the repository.
fn registry_on(bed: &Bed, host: usize) -> String {
    let users = bed.env.path("users");
    let mut passwd = bed.command(["registry", "passwd", "pusher", "-f"]);
    let secret = std::fs::File::open(bed.env.write("password", PASSWORD)).unwrap();
    passwd.arg(&users).stdin(Stdio::from(secret));
    Ran::new(passwd).ok();
    let program = Path::new("/usr/bin/docker-registry");
    let configuration = "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: /var/lib/site\n\
        http:\n  addr: :5000\nauth:\n  htpasswd:\n    realm: site\n    path: /etc/site.users\n";
    let configuration = bed.env.write("site.yml", configuration);
    for (from, to, mode) in [
        (program, "/usr/local/bin/docker-registry", "755"),
        (&users, "/etc/site.users", "600"),
        (&configuration, "/etc/site.yml", "644"),
    ] {
        let mut copy = tool("scp", ["-q", "-i"]);
        copy.arg(bed.key())
            .arg("-o")
            .arg(format!("UserKnownHostsFile={}", bed.known_hosts().display()));
        copy.arg(from).arg(format!("root@{}:{to}", bed.ip(host)));
        Ran::new(copy).ok();
        bed.says(host, &format!("chmod {mode} {to}"));
    }
    bed.says(
        host,
        "systemd-run -q --unit site-registry -E OTEL_TRACES_EXPORTER=none \
         /usr/local/bin/docker-registry serve /etc/site.yml",
    );
    let address = format!("{}:5000", bed.ip(host));
    wait_for("the registry answers", LIMIT, || std::net::TcpStream::connect(&address).is_ok());
    format!("{address}/site/cluster")
}

/// The version that a member has.
fn version(bed: &Bed, host: usize) -> String {
    bed.says(host, "cat /var/lib/member")
}

/// Lets this machine send so many bytes more to the bed, and no packet afterwards; `None`: heals its line.
fn cut_behind(bed: &Bed, bytes: Option<u64>) {
    let rule = bytes.map_or(String::new(), |bytes| {
        format!(
            "table bridge uplink {{\nchain forward {{\ntype filter hook forward priority 1; policy accept;\n\
             iifname \"controller\" quota over {bytes} bytes drop\n}}\n}}\n"
        )
    });
    let rules = format!("table bridge uplink\ndelete table bridge uplink\n{rule}");
    let file = bed.env.write("uplink.nft", rules);
    let switch = format!("itb.{}.switch", bed.name);
    let file = file.to_str().unwrap();
    let space = ["netns", "exec", &*switch, "nft"];
    if bytes.is_none() {
        // What was sent went through the limit.
        let told = [&space[..], &["list", "table", "bridge", "uplink"]].concat();
        let told = Ran::new(tool("ip", told)).ok().stdout();
        assert!(told.contains(" used "), "{told}");
    }
    Ran::new(tool("ip", [&space[..], &["-f", file]].concat())).ok();
}

/// Number of bytes that this machine has sent to the bed so far.
fn sent(bed: &Bed) -> u64 {
    let route = Ran::new(tool("ip", ["-json", "route", "get", &bed.ip(1)])).ok().json();
    let device = route[0]["dev"].as_str().unwrap();
    let path = format!("/sys/class/net/{device}/statistics/tx_bytes");
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// Where the bytes of a run came from, by its events.
fn came(ran: &Ran) -> std::collections::BTreeMap<String, u64> {
    let mut sums = std::collections::BTreeMap::new();
    for event in events(ran).iter().filter(|event| event["event"] == "step-end") {
        for (source, bytes) in event["from"].as_object().into_iter().flatten() {
            *sums.entry(source.clone()).or_default() += bytes.as_u64().unwrap_or(0);
        }
    }
    assert!(!sums.is_empty(), "no step tells where its bytes came from: {}", ran.report());
    sums
}
