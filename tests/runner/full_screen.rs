//! The view of a run on a real terminal: tmux is the terminal, and a shell in it runs the built binary.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::IMGCTL;

/// For conditions on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// A terminal with a shell. It ends with this value.
pub(crate) struct Tmux {
    socket: PathBuf,
}

impl Tmux {
    /// Starts a shell in `directory`, in a window of 100x30.
    pub(crate) fn start(directory: &Path) -> Self {
        let tmux = Self { socket: directory.join("tmux") };
        let shell = "env -i PS1='$ ' TERM=tmux-256color HOME=. bash --norc --noprofile -i";
        let size = ["-x", "100", "-y", "30"];
        let place = directory.to_str().unwrap();
        tmux.tell(
            &[&["-f", "/dev/null", "new-session", "-d"][..], &size, &["-c", place, shell]].concat(),
        );
        tmux.tell(&["set-option", "-g", "history-limit", "5000"]);
        tmux
    }

    pub(crate) fn tell(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux").arg("-S").arg(&self.socket).args(arguments).output();
        let output = output.expect("tmux is installed by scripts/setup");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tmux {arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn types(&self, line: &str) {
        self.tell(&["send-keys", "-l", line]);
        self.tell(&["send-keys", "Enter"]);
    }

    /// What can be seen.
    fn screen(&self) -> String {
        self.tell(&["capture-pane", "-p"])
    }

    /// What can be seen or has been scrolled away.
    pub(crate) fn everything(&self) -> String {
        self.tell(&["capture-pane", "-p", "-J", "-S", "-"])
    }

    /// Whether the whole screen is in use, and whether there is a cursor.
    fn mode(&self) -> String {
        let format = "alternate #{alternate_on} cursor #{cursor_flag}";
        self.tell(&["display-message", "-p", format]).trim().to_owned()
    }

    /// The process that the shell waits for.
    fn child(&self) -> String {
        let shell = self.tell(&["display-message", "-p", "#{pane_pid}"]);
        let shell = shell.trim();
        let children = format!("/proc/{shell}/task/{shell}/children");
        std::fs::read_to_string(children).unwrap().trim().to_owned()
    }

    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(
                Instant::now() < until,
                "{what} never came:\n{}\n{}",
                self.mode(),
                self.screen()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn wait_for_view(&self) {
        self.wait("the view", |tmux| {
            tmux.mode() == "alternate 1 cursor 0" && tmux.screen().contains("run simulated")
        });
    }

    fn wait_for_shell(&self, text: &str) {
        self.wait(text, |tmux| {
            tmux.mode() == "alternate 0 cursor 1" && tmux.everything().contains(text)
        });
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

fn simulate(more: &str) -> String {
    format!("{IMGCTL} --no-sync --root store {more} simulate --durable --masters 2 --dir .")
}

#[test]
fn a_run_takes_the_screen_and_gives_it_back() {
    let directory = tempfile::tempdir().unwrap();
    let tmux = Tmux::start(directory.path());
    tmux.types("stty -a >before");
    tmux.types(&format!("{} --hosts 40 --parallel 4 --takes 2000", simulate("")));
    tmux.wait_for_view();
    tmux.wait("the hosts", |tmux| tmux.screen().contains("4 working"));

    // Every size will do, and the whole view is drawn again.
    tmux.tell(&["resize-window", "-x", "20", "-y", "5"]);
    tmux.wait("the small view", |tmux| {
        let screen = tmux.screen();
        let lines: Vec<&str> = screen.lines().collect();
        lines[0].starts_with("run simul") && lines[2].contains("4 working") && lines.len() <= 5
    });
    tmux.tell(&["resize-window", "-x", "100", "-y", "30"]);
    tmux.wait("the large view", |tmux| tmux.screen().contains("Ctrl-Z suspends"));

    // Suspended, the terminal is as it was; in the foreground, the view is back.
    tmux.tell(&["send-keys", "C-z"]);
    tmux.wait_for_shell("Stopped");
    tmux.types("stty -a >suspended; fg");
    tmux.wait_for_view();

    tmux.tell(&["send-keys", "C-c"]);
    tmux.wait("the note", |tmux| tmux.screen().contains("stopping: no new steps start"));
    tmux.tell(&["send-keys", "C-c"]);
    tmux.wait_for_shell("stopped on request");
    tmux.types("echo code $?; stty -a >after");
    tmux.wait_for_shell("code 130");
    tmux.types("echo over");
    tmux.wait("the last command", |tmux| tmux.screen().contains("\nover"));
    let modes = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    assert_eq!(modes("before"), modes("after"));
    assert_eq!(modes("before"), modes("suspended"));
    // What was said meanwhile is on the normal screen, and the summary follows it.
    let everything = tmux.everything();
    for line in ["run simulated: ", "stopping: no new steps start", "interrupted: "] {
        assert!(everything.contains(line), "{line} is missing:\n{everything}");
    }
}

#[test]
fn signals_and_questions_give_the_screen_back() {
    let directory = tempfile::tempdir().unwrap();
    let tmux = Tmux::start(directory.path());
    tmux.types("stty -a >before");
    let modes = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    for signal in ["TERM", "HUP"] {
        let asks = if signal == "TERM" { "--asks-after 8" } else { "" };
        let run = simulate("").replace("--dir .", &format!("--dir {signal}"));
        tmux.types("clear");
        tmux.types(&format!(
            "{run} --hosts 40 --parallel 4 --takes 400 {asks}; echo code $? by {signal}; stty -a >after"
        ));
        if !asks.is_empty() {
            // A question in the middle of the run is asked on the normal screen, and no view covers it.
            tmux.wait_for_shell("Go on? [y/N]");
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(tmux.mode(), "alternate 0 cursor 1");
            // Nor do bars, which are updated while other hosts continue.
            assert!(tmux.everything().contains("Go on? [y/N]"), "{}", tmux.everything());
            tmux.types("y");
        }
        tmux.wait_for_view();
        let sent = Command::new("kill").args([&format!("-{signal}"), &tmux.child()]).status();
        assert!(sent.unwrap().success());
        tmux.wait_for_shell(&format!("code 130 by {signal}"));
        tmux.types("echo over");
        tmux.wait("the last command", |tmux| tmux.screen().contains("\nover"));
        assert!(tmux.everything().contains("interrupted: "), "{}", tmux.everything());
        assert_eq!(modes("before"), modes("after"), "{signal}");
    }
}

#[test]
fn whoever_wants_lines_gets_lines() {
    let directory = tempfile::tempdir().unwrap();
    let tmux = Tmux::start(directory.path());
    let run = |number: usize, flags: &str| {
        let run = simulate(flags).replace("--dir .", &format!("--dir d{number}"));
        format!("{run} --hosts 3 --takes 150; echo ended {number}")
    };
    // In a file there are lines, whatever is asked for.
    tmux.types(&run(0, "--progress fullscreen").replace("; echo", " >out 2>&1; echo"));
    tmux.wait("the end", |tmux| tmux.screen().contains("\nended 0"));
    let text = std::fs::read_to_string(directory.path().join("out")).unwrap();
    assert!(text.contains("== ") && !text.contains('\u{1b}'), "{text}");
    // On a terminal, the screen is not taken.
    for (number, command) in
        [(1, run(1, "--progress plain")), (2, format!("TERM=dumb {}", run(2, "")))]
    {
        tmux.types(&command);
        tmux.wait("the end", |tmux| {
            assert!(tmux.mode().starts_with("alternate 0"));
            tmux.screen().contains(&format!("\nended {number}"))
        });
    }
    assert!(tmux.everything().contains("== "));
}

/// A cluster of three hosts where nothing listens, recorded in `directory`.
fn unreachable_cluster(directory: &Path) -> String {
    let clusterfile = "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: default\n\
                       spec:\n  hosts:\n  - ips: [127.0.0.1:1]\n    roles: [master, amd64]\n  \
                       - ips: [127.0.0.1:2, 127.0.0.1:3]\n    roles: [node, amd64]\n  \
                       image: [localhost/app:v1]\n  ssh: {}\n";
    let kubefile = "FROM scratch\nLABEL sealos.io.type=rootfs sealos.io.version=v1beta1 \
                    sealos.io.distribution=script version=v1 init=true join=true\n";
    std::fs::create_dir_all(directory.join("state/default")).unwrap();
    std::fs::write(directory.join("state/default/Clusterfile"), clusterfile).unwrap();
    std::fs::create_dir(directory.join("context")).unwrap();
    std::fs::write(directory.join("context/Kubefile"), kubefile).unwrap();
    let built = Command::new(IMGCTL)
        .current_dir(directory)
        .args(["--root", "store", "--no-sync", "build", "-q", "-t", "app:v1", "context"])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    format!("SEALOS_RUNTIME_ROOT=state {IMGCTL} --root store status --watch 1")
}

#[test]
fn a_watched_status_refreshes_and_its_last_one_stays() {
    let directory = tempfile::tempdir().unwrap();
    let watch = unreachable_cluster(directory.path());
    let tmux = Tmux::start(directory.path());

    // Elsewhere than on a terminal: one after the other; a reader that leaves ends it.
    tmux.types(&format!("{watch} | sed '/^---$/q'; echo code ${{PIPESTATUS[0]}}"));
    tmux.wait_for_shell("code 0");
    assert!(tmux.everything().contains("127.0.0.1:3   node,amd64     unreachable"));
    tmux.types(&format!("clear; {watch} --json | head -n 2 >lines; echo lines ${{PIPESTATUS[0]}}"));
    tmux.wait_for_shell("lines 0");
    let lines = std::fs::read_to_string(directory.path().join("lines")).unwrap();
    let statuses: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(statuses.len(), 2);
    assert_ne!(statuses[0]["time"], statuses[1]["time"]);
    assert_eq!(statuses[1]["hosts"][2]["reachable"], false);

    tmux.types(&format!("clear; {watch}; echo code $?"));
    tmux.wait("the view", |tmux| {
        tmux.mode() == "alternate 1 cursor 0" && tmux.screen().contains("3 unreachable")
    });
    tmux.tell(&["send-keys", "q"]);
    tmux.wait_for_shell("code 0");
    assert!(tmux.screen().contains("127.0.0.1:3   node,amd64     unreachable"));
}
