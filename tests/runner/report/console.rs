//! The console in a browser: what its pages say, that nothing leaves them, that a page follows a run, and
//! that a list shows what is new.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use imgctl_base::fs::lock::{Lock, Mode};
use serde_json::{Value, json};

use super::pages::in_place;
use super::{USAGE, browse, heard, images, is_clean};
use crate::common::{TestEnv, repository};

/// A running console; `base` is the address before all paths.
struct Console {
    process: Child,
    url: String,
    base: String,
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Console {
    fn start(env: &TestEnv, plans: &[PathBuf]) -> Self {
        let mut command = env.command(["--json", "ui"]);
        command.args(plans).env("SEALOS_RUNTIME_ROOT", env.path("runtime"));
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        let url = told["url"].as_str().unwrap().to_owned();
        let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let place = answer.lines().find_map(|line| line.strip_prefix("location: ")).unwrap();
        let base = format!("http://{address}{}", place.trim_end_matches('/'));
        Self { process, url, base }
    }

    /// A page light and dark, wide and narrow.
    fn everywhere(&self, name: &str, path: &str) -> Value {
        let url = format!("{}{path}", self.base);
        json!({"name": format!("console-{name}"), "url": url, "everywhere": true})
    }

    /// A page that changes while it is looked at, once.
    fn followed(&self, name: &str, path: &str) -> Value {
        let url = format!("{}{path}", self.base);
        json!({"name": format!("console-{name}"), "url": url, "width": 1280, "scheme": "light", "steady": 1})
    }

    /// Ends it as Ctrl-C does.
    fn stop(mut self) {
        let id = self.process.id().to_string();
        Command::new("kill").args(["-INT", &id]).status().unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

fn corpus() -> Vec<String> {
    let corpus = std::fs::read(repository().join("crates/report/hostile.json")).unwrap();
    serde_json::from_slice(&corpus).unwrap()
}

/// State of a cluster `c`: a Clusterfile, a certificate, a backup, and journals of a run that was killed in
/// the middle of a record, and of one that goes on.
fn state(env: &TestEnv) -> PathBuf {
    let write = |name: &str, text: &str| env.write(format!("runtime/c/{name}"), text);
    write(
        "Clusterfile",
        "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: c\nspec:\n  hosts:\n  - ips:\n    - 10.0.0.1:22\n    roles: [master]\n  - ips:\n    - 10.0.0.2:22\n    roles: [node]\n  image:\n  - report:v1\nstatus:\n  phase: ClusterSuccess\n  mounts:\n  - name: c-1\n    type: rootfs\n    imageName: report:v1\n    mountPoint: \"\"\n    labels:\n      version: \"<script>window.pwned=1</script>\"\n",
    );
    let issued = rcgen::generate_simple_self_signed(vec!["ca".to_owned()]).unwrap();
    write("pki/ca.crt", &issued.cert.pem());
    let digest = format!("sha256:{}", "0".repeat(64));
    let backup = json!({"created": "2026-01-01T00:00:00Z", "place": "/backups", "digest": digest,
        "bytes": 1000, "encrypted": true});
    write("backup/last.json", &backup.to_string());
    write("inplace/web-v2.jsonl", &in_place(&corpus()));
    let hostile = corpus();
    let start = started(&json!(hostile), &hostile[0]);
    let mut torn = start.clone();
    for (number, text) in hostile.iter().enumerate() {
        torn.push_str(&step("begin", &hostile[number % 5], text, text));
        torn.push_str(&step("end", &hostile[number % 5], text, text));
    }
    torn.push_str("{\"record\":\"weather\"}\n");
    write("journal/20260101T000000.000Z-run-torn.jsonl", &torn[..torn.len() - 3]);
    write("journal/20260102T000000.000Z-run-live.jsonl", &start)
}

fn started(arguments: &Value, controller: &str) -> String {
    record(
        "start",
        &json!({"verb": "run", "cluster": "c", "intent": "i", "plan": "p", "arguments": arguments,
            "version": "1", "controller": controller}),
    )
}

fn record(kind: &str, more: &Value) -> String {
    let mut record = json!({"record": kind, "time": "2026-01-02T00:00:00Z"});
    record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    format!("{record}\n")
}

fn step(kind: &str, host: &str, name: &str, message: &str) -> String {
    let host = host.replace('/', "|");
    let mut more = json!({"step": format!("p/{host}/{name}"), "fingerprint": "f", "attempt": 1});
    if kind == "end" {
        more["outcome"] = if message.is_empty() { "done" } else { "failed" }.into();
        more["duration_ms"] = 10.into();
        more["message"] = message.into();
    }
    record(kind, &more)
}

/// Lets a run go on at `journal` until the screenshot `shot` has been taken, then ends it.
fn go_on(journal: &Path, shot: &Path, done: &AtomicBool) {
    let held = Lock::try_acquire(journal, Mode::Exclusive).unwrap().unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(journal).unwrap();
    let hostile = corpus();
    for number in 0.. {
        let host = format!("10.0.0.{}:22", number % 4);
        let name = format!("s{number} {}", hostile[number % hostile.len()]);
        file.write_all(step("begin", &host, &name, "").as_bytes()).unwrap();
        let message = if number % 5 == 2 { &*hostile[0] } else { "" };
        // The last step of each host goes on.
        if number % 5 != 4 {
            file.write_all(step("end", &host, &name, message).as_bytes()).unwrap();
        }
        if shot.exists() || done.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    file.write_all(record("finish", &json!({"outcome": "done"})).as_bytes()).unwrap();
    drop(held);
}

#[test]
fn the_console_shows_everything_and_follows_a_run() {
    let env = TestEnv::new();
    images(&env);
    let live = state(&env);
    let plan = json!({"verb": "reset", "cluster": "c", "notes": corpus(), "phases": [{"phase": "files",
        "order": "parallel", "hosts": [{"host": "h", "steps": [
            {"id": "files/h/sync", "says": corpus(), "once": false, "bytes": 1}]}]}]});
    let plan = env.write("<b>plan.json", plan.to_string());
    let console = Console::start(&env, &[plan]);
    let listed = env.imgctl(["--json", "images"]).ok().json();
    let digest = |name: &str| {
        let mut images = listed.as_array().unwrap().iter();
        let found = images.find(|image| image.to_string().contains(name)).unwrap();
        found["digest"].as_str().unwrap().to_owned()
    };
    let (one, two) = (digest("report:v1"), digest("report:v2"));
    let platform = if cfg!(target_arch = "aarch64") { "linux%2Farm64" } else { "linux%2Famd64" };
    let files = format!("/files/{two}/{platform}/");
    let shots = repository().join("target/report-screenshots");
    let (shot, listed) = (shots.join("console-live.png"), shots.join("console-list.png"));
    for file in [&shot, &listed] {
        let _ = std::fs::remove_file(file);
    }

    let mut first = console.everywhere("store", "/");
    first["url"] = console.url.clone().into();
    let mut opened = console.everywhere("image", &format!("/images/{two}?compare={one}"));
    // The explorer leads to the page of a file.
    opened["act"] = "(() => {
        Array.from(document.querySelectorAll('#explorer button')).find((one) => one.textContent === 'bin/').click();
        return document.querySelector('#explorer tbody a').getAttribute('href');
    })()".into();
    let mut followed = console.followed("live", "/runs/c/20260102T000000.000Z-run-live");
    followed["act"] = "new Promise((done) => { const timer = setInterval(() => {
        if (document.getElementById('progress-log').children.length && document.getElementById('progress-done').textContent > 3) { clearInterval(timer); done(document.getElementById('progress-hosts').textContent); }
    }, 50); })".into();
    // At the end, the rest of the page becomes that of the whole run.
    followed["after"] = "new Promise((done) => { const timer = setInterval(() => {
        const text = document.getElementById('progress-status').textContent, state = document.querySelector('#overview .value').textContent;
        if (text.includes('has ended') && state === 'done') { clearInterval(timer); done(text); }
    }, 50); })"
        .into();
    // A list shows a new run by itself; the keyboard stays on its link, and a search stays in force.
    let mut list = console.followed("list", "/runs");
    list["act"] = "(() => {
        const link = [...document.querySelectorAll('#past a')].find((one) => one.textContent.endsWith('-torn'));
        link.focus();
        window.before = link;
    })()"
        .into();
    list["after"] = "new Promise((done) => { const timer = setInterval(() => {
        const fresh = [...document.querySelectorAll('#past tbody tr')].find((row) => row.textContent.includes('-new'));
        const told = [...document.querySelectorAll('[role=status]')].map((one) => one.textContent).join(' ');
        if (fresh && told.includes('Past runs: ')) { clearInterval(timer); done([document.activeElement === window.before, window.before.isConnected, fresh.rowIndex]); }
    }, 50); })"
        .into();
    let works = vec![
        first,
        opened,
        console.everywhere("folder", &format!("{files}etc")),
        console.everywhere("file", &format!("{files}bin/tool")),
        console.everywhere("clusters", "/clusters"),
        console.everywhere("cluster", "/clusters/c"),
        console.everywhere("torn", "/runs/c/20260101T000000.000Z-run-torn"),
        console.everywhere("inplace", "/runs/c/web-v2"),
        console.everywhere("plans", "/plans"),
        console.everywhere("plan", "/plans/0"),
        console.everywhere("absent", "/runs/c/absent"),
        followed,
        list,
        console.everywhere("runs", "/runs"),
    ];
    let done = AtomicBool::new(false);
    let pages = std::thread::scope(|scope| {
        let run = scope.spawn(|| go_on(&live, &shot, &done));
        let other = scope.spawn(|| {
            while !listed.exists() && !done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
            }
            let start = started(&json!([]), "me");
            env.write("runtime/c/journal/20260103T000000.000Z-run-new.jsonl", start)
        });
        let pages = browse(&env, &works);
        done.store(true, Ordering::Relaxed);
        run.join().unwrap();
        other.join().unwrap();
        pages
    });
    let Some(pages) = pages else { return };
    for page in &pages {
        // The browser itself says that there is no such page.
        let is_absent = page["name"] == "console-absent";
        let mut page = page.clone();
        if is_absent {
            assert!(page["errors"].to_string().contains("404"), "{page}");
            page["errors"] = json!([]);
        }
        is_clean(&page);
    }
    let page =
        |name: &str| pages.iter().find(|page| page["name"] == format!("console-{name}")).unwrap();
    for (name, role, expected) in [
        ("store", "link", "localhost/report:v2"),
        ("image", "heading", "Changes"),
        ("image", "button", "Compare"),
        ("folder", "link", "<img src=x onerror=window.pwned=1>"),
        ("folder", "link", "user\\u{202e}gnp.exe"),
        ("file", "heading", "/bin/tool"),
        ("clusters", "link", "c"),
        ("clusters", "link", "Runs"),
        ("cluster", "rowheader", "10.0.0.2"),
        ("cluster", "link", "20260102T000000.000Z-run-live"),
        ("cluster", "rowheader", "pki/ca.crt"),
        ("plan", "heading", "Overview"),
        ("live", "heading", "Progress"),
        ("live", "rowheader", "10.0.0.3:22"),
        ("runs", "link", "20260101T000000.000Z-run-torn"),
        ("runs", "link", "web-v2"),
        ("inplace", "heading", "Predicted and actual restarts"),
        ("plans", "heading", "Plans"),
        ("absent", "heading", "This cannot be shown"),
    ] {
        let found = heard(page(name), role);
        assert!(found.contains(&expected), "{name}: {expected}: {found:?}");
    }
    for (name, expected) in [
        ("cluster", "No host was asked"),
        ("cluster", "<script>window.pwned=1</script>"),
        ("torn", "This report is not complete."),
        ("torn", "<script>window.pwned=1</script>"),
        ("plan", "<script>window.pwned=1</script>"),
        ("live", "<script>window.pwned=1</script>"),
        ("runs", "in the middle of a record"),
    ] {
        let tree = page(name)["tree"].to_string();
        assert!(tree.contains(expected), "{name}: {expected}: {tree}");
    }
    for page in &pages {
        assert!(!page["tree"].to_string().contains('\u{202e}'), "{}", page["name"]);
        assert!(heard(page, "navigation").contains(&"Console"), "{}", page["name"]);
    }
    assert!(page("image")["acted"].as_str().unwrap().ends_with("/bin/tool"));
    assert_eq!(page("live")["acted"], "4");
    assert!(page("live")["after"].as_str().unwrap().contains("The run has ended: done."));
    assert_eq!(page("list")["after"], json!([true, true, 2]));
    console.stop();
}

#[test]
fn the_console_refuses_what_others_could_reach() {
    let env = TestEnv::new();
    for (listen, expected) in
        [("0.0.0.0:0", "this machine alone"), ("everywhere", "not an address")]
    {
        let ran = env.imgctl(["ui", "--listen", listen]).fails(USAGE);
        assert!(ran.stderr().contains(expected), "{}", ran.stderr());
    }
}
