//! The console in a browser: what its pages say, that nothing leaves them, and that a page follows a run.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use imgctl_base::fs::lock::{Lock, Mode};
use serde_json::{Value, json};

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

    fn work(&self, name: &str, path: &str, width: u32, scheme: &str) -> Value {
        let url = format!("{}{path}", self.base);
        json!({"name": format!("console-{name}-{width}-{scheme}"), "url": url, "width": width,
            "scheme": scheme})
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
    let hostile = corpus();
    let start = record(
        "start",
        &json!({"verb": "run", "cluster": "c", "intent": "i", "plan": "p",
        "arguments": hostile, "version": "1", "controller": hostile[0]}),
    );
    let mut torn = start.clone();
    for (number, text) in hostile.iter().enumerate() {
        torn.push_str(&step("begin", &hostile[number % 5], text, text));
        torn.push_str(&step("end", &hostile[number % 5], text, text));
    }
    torn.push_str("{\"record\":\"weather\"}\n");
    write("journal/20260101T000000.000Z-run-torn.jsonl", &torn[..torn.len() - 3]);
    write("journal/20260102T000000.000Z-run-live.jsonl", &start)
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
    let shot = repository().join("target/report-screenshots/console-live-1280-light.png");
    let _ = std::fs::remove_file(&shot);

    let mut first = console.work("store", "/", 1280, "light");
    first["url"] = console.url.clone().into();
    let mut opened = console.work("image", &format!("/images/{two}?compare={one}"), 1280, "dark");
    // The explorer leads to the page of a file.
    opened["act"] = "(() => {
        Array.from(document.querySelectorAll('#explorer button')).find((one) => one.textContent === 'bin/').click();
        return document.querySelector('#explorer tbody a').getAttribute('href');
    })()".into();
    let mut followed = console.work("live", "/runs/c/20260102T000000.000Z-run-live", 1280, "light");
    followed["steady"] = 1.into();
    followed["act"] = "new Promise((done) => { const timer = setInterval(() => {
        if (document.getElementById('progress-log').children.length && document.getElementById('progress-done').textContent > 3) { clearInterval(timer); done(document.getElementById('progress-hosts').textContent); }
    }, 50); })".into();
    followed["after"] = "new Promise((done) => { const timer = setInterval(() => {
        const text = document.getElementById('progress-status').textContent;
        if (text.includes('has ended')) { clearInterval(timer); done(text); }
    }, 50); })"
        .into();
    let works = vec![
        first,
        console.work("store", "/", 390, "dark"),
        opened,
        console.work("folder", &format!("{files}etc"), 390, "light"),
        console.work("file", &format!("{files}bin/tool"), 1280, "dark"),
        console.work("clusters", "/clusters", 390, "light"),
        console.work("cluster", "/clusters/c", 1280, "light"),
        console.work("cluster", "/clusters/c", 390, "dark"),
        console.work("torn", "/runs/c/20260101T000000.000Z-run-torn", 390, "light"),
        console.work("plan", "/plans/0", 1280, "dark"),
        followed,
        console.work("runs", "/runs", 1280, "dark"),
        console.work("runs", "/runs", 390, "light"),
    ];
    let done = AtomicBool::new(false);
    let pages = std::thread::scope(|scope| {
        let run = scope.spawn(|| go_on(&live, &shot, &done));
        let pages = browse(&env, &works);
        done.store(true, Ordering::Relaxed);
        run.join().unwrap();
        pages
    });
    let Some(pages) = pages else { return };
    pages.iter().for_each(is_clean);
    let page = |name: &str| {
        let is_it = |page: &&Value| page["name"].as_str().unwrap().contains(&format!("-{name}-"));
        pages.iter().find(is_it).unwrap()
    };
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
