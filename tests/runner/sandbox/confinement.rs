//! What a command cannot see or do.

use std::fs;
use std::os::fd::AsRawFd;

use serde_json::json;

use crate::common::needs_root;
use crate::sandbox::harness::{Root, imgctl, run, run_by};

#[test]
fn a_command_is_alone() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let script =
        "echo $$; hostname; set -- /proc/[0-9]*; echo $#; cat /proc/self/cgroup | grep '^0:'";
    assert_eq!(root.sh(script).ok(), "1\nbox\n1\n0::/\n".replace("0::/\n", &own_cgroup()));
    let host = fs::read_link("/proc/self/ns/uts").unwrap();
    for kind in ["mnt", "pid", "ipc", "uts", "net", "cgroup"] {
        let ours = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        let ran = root.sh(&format!("readlink /proc/self/ns/{kind}"));
        assert_ne!(ran.ok().trim(), ours.to_str().unwrap(), "{kind}");
    }
    assert_eq!(fs::read_link("/proc/self/ns/uts").unwrap(), host);
}

/// The line that cgroup v2 gives in a cgroup namespace of its own; none without cgroup v2.
fn own_cgroup() -> String {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap();
    if text.lines().any(|line| line.starts_with("0:")) {
        "0::/\n".to_owned()
    } else {
        String::new()
    }
}

#[test]
fn privileges_are_dockers_defaults() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let ran = root.sh("grep -E '^(Cap|Seccomp:|NoNewPrivs)' /proc/self/status");
    let expected = "CapInh:\t0000000000000000\nCapPrm:\t00000000a80425fb\n\
        CapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nCapAmb:\t0000000000000000\n\
        NoNewPrivs:\t1\nSeccomp:\t2\n";
    assert_eq!(ran.ok(), expected);
    let mut spec = root.script("grep -E '^(CapEff|CapInh|Seccomp:|NoNewPrivs)' /proc/self/status");
    spec["security"] = json!("Insecure");
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let all = status.lines().find(|line| line.starts_with("CapEff")).unwrap();
    let expected = format!("CapInh:\t0000000000000000\n{all}\nNoNewPrivs:\t0\nSeccomp:\t0\n");
    assert_eq!(run(&spec).ok(), expected);
}

#[test]
fn forbidden_system_calls_fail_and_ordinary_ones_do_not() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let refused = [
        "mount -t tmpfs t /tmp",
        "umount /proc",
        "unshare -n true",
        "hostname other",
        "dmesg",
        "swapon /tmp/x",
        "chroot / mount -o remount,rw /sys",
    ];
    for command in refused {
        assert_ne!(root.sh(&format!("touch /tmp/x; {command}")).code(), 0, "{command}");
    }
    let allowed = [
        "mkdir /tmp/d && ln -s d /tmp/l && mv /tmp/d /tmp/e && rm -r /tmp/e",
        "chown 5:6 /tmp && chmod 4755 /bin/busybox",
        "mkfifo /tmp/p && (echo x >/tmp/p & cat /tmp/p)",
        "chroot / true",
        "yes | head -n 1",
        "kill -0 1",
    ];
    for command in allowed {
        root.sh(command).ok();
    }
}

#[test]
fn devices_can_be_made_but_not_opened() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let script = "mknod /tmp/disk b 8 0 && mknod /dev/disk b 8 0 && mknod /tmp/zero c 1 5 || exit 1; \
        for f in /tmp/disk /dev/disk /tmp/zero; do head -c 1 $f 2>&1; done; true";
    let ran = root.sh(script);
    assert_eq!(ran.ok().matches("Permission denied").count(), 3, "{}", ran.out);
}

#[test]
fn the_few_devices_work_and_cannot_be_changed() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let script = "echo gone >/dev/null; head -c 2 /dev/zero | wc -c; head -c 2 /dev/urandom | wc -c; \
        echo x 2>&1 >/dev/full; test -c /dev/tty && test -c /dev/random; \
        for f in fd stdin ptmx; do readlink /dev/$f; done; test -c /dev/pts/ptmx && echo s > /dev/shm/s; \
        ls -d /dev/mqueue; echo to stdout >/dev/stdout; ls /dev | wc -l; chmod 600 /dev/null 2>&1";
    let ran = root.sh(script);
    let expected = "2\n2\nsh: write error: No space left on device\n/proc/self/fd\n/proc/self/fd/0\n\
        pts/ptmx\n/dev/mqueue\nto stdout\n15\nchmod: /dev/null: Read-only file system\n";
    assert_eq!(ran.out, expected);
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata("/dev/null").unwrap());
    assert_eq!(mode & 0o777, 0o666);
}

#[test]
fn kernel_files_are_masked_or_read_only() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let ran = root.sh(
        "for f in acpi kcore keys latency_stats timer_list timer_stats sched_debug scsi; do \
           test -e /proc/$f || continue; \
           if test -d /proc/$f; then ls /proc/$f; else head -c 1 /proc/$f; fi; done; \
         ls /sys/firmware; \
         for f in /proc/sys/kernel/hostname /proc/sysrq-trigger /sys/kernel/uevent_seqnum; do \
           echo x 2>/dev/null >$f && echo wrote $f; done; \
         grep -c . /proc/self/mountinfo >/dev/null && echo end",
    );
    assert_eq!(ran.ok(), "end\n");
    let mounts = root.sh("cat /proc/self/mountinfo");
    for line in mounts.ok().lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let (target, options) = (fields[4], fields[5]);
        let bound_device = ["null", "zero", "full", "random", "urandom", "tty"]
            .iter()
            .any(|name| target == format!("/dev/{name}"));
        let masked = fields[3] == "/null";
        assert!(
            bound_device || masked || target == "/dev/pts" || options.contains("nodev"),
            "{line}"
        );
        assert!(!fields[3].starts_with("/tmp/") || target == "/", "{line}");
    }
}

#[test]
fn nothing_of_the_host_is_mounted_or_open() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    fs::write(root.beside().join("secret"), "host").unwrap();
    let script = "for n in 0 1 2 3 4 5 6 7 8 9 10; do test -L /proc/$$/fd/$n && echo $n; done; ls /..; cat /../secret 2>&1; \
        grep -c host /proc/1/environ; cat /proc/1/cmdline | tr '\\0' ' ' | head -c 7";
    let open = fs::File::open("/").unwrap();
    let mut shell = std::process::Command::new("sh");
    // A caller that leaks a directory: descriptor 9 without close-on-exec.
    shell
        .arg("-c")
        .arg(format!(
            "exec 9</proc/{}/fd/{}; exec \"$0\" \"$@\"",
            std::process::id(),
            open.as_raw_fd()
        ))
        .arg(imgctl().get_program())
        .env("HOST_VARIABLE", "host");
    let ran = run_by(&root.script(script), &mut shell);
    let expected = "0\n1\n2\nbin\ndev\netc\nproc\nsys\ntmp\ncat: can't open '/../secret': No such file or directory\n0\n/bin/sh";
    assert_eq!(ran.ok(), expected);
}

#[test]
fn our_own_binary_cannot_be_overwritten_from_inside() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    // A script whose interpreter is the process's own executable: imgctl, while it starts.
    let before = fs::read(imgctl().get_program()).unwrap();
    let script = root.path.join("bin/trick");
    fs::write(&script, "#!/proc/self/exe __sandbox\n").unwrap();
    crate::sandbox::harness::chmod(&script, 0o755);
    let mut spec = root.script("");
    spec["argv"] = json!(["/bin/trick"]);
    let ran = run(&spec);
    assert!(ran.answer["Ended"].is_object());
    spec["argv"] = json!(["/proc/self/exe", "__sandbox"]);
    assert!(run(&spec).answer["Ended"].is_object());
    assert!(fs::read(imgctl().get_program()).unwrap() == before);
}

#[test]
fn no_network_is_only_loopback_and_host_is_the_hosts() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    let mut spec =
        root.script("ls /sys/class/net; ping -c 1 -W 1 127.0.0.1 >/dev/null && echo pong");
    assert_eq!(run(&spec).ok(), "lo\npong\n");
    spec["network"] = json!("Host");
    spec["argv"] = json!(["readlink", "/proc/self/ns/net"]);
    let ours = fs::read_link("/proc/self/ns/net").unwrap();
    assert_eq!(run(&spec).ok().trim(), ours.to_str().unwrap());
}

#[test]
fn the_default_network_is_never_the_hosts() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    // Something that trusts the host's loopback.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut spec = root.script(&format!(
        "readlink /proc/self/ns/net; ls /sys/class/net; cat /etc/resolv.conf; \
         for a in 127.0.0.1 10.0.2.2; do nc -w 1 $a {port} </dev/null && echo reached $a; done; true"
    ));
    spec["network"] = json!("Default");
    spec["resolv_conf"] = json!("search example.org\nnameserver 127.0.0.53\n");
    let ran = run(&spec);
    let ours = fs::read_link("/proc/self/ns/net").unwrap();
    assert!(!ran.ok().contains(ours.to_str().unwrap()));
    assert!(!ran.out.contains("reached"), "{}", ran.out);
    let hint = "install slirp4netns (scripts/setup does)";
    assert!(std::path::Path::new("/usr/bin/slirp4netns").exists(), "{hint}");
    assert_eq!(ran.answer["Ended"]["notes"], json!([]));
    assert!(ran.out.contains("tap0"), "{}", ran.out);
    assert!(ran.out.contains("nameserver 10.0.2.3\nsearch example.org\n"), "{}", ran.out);
    assert!(!ran.out.contains("127.0.0.53"), "{}", ran.out);
}

#[test]
fn the_default_network_reaches_the_outside() {
    if !needs_root() {
        return;
    }
    let root = Root::new();
    // The nearest thing outside: this machine's own address, where it has one. Nothing is sent.
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    if probe.connect("198.51.100.1:9").is_err() {
        eprintln!("skipped: this machine has no route to the outside");
        return;
    }
    let address = probe.local_addr().unwrap().ip();
    let listener = std::net::TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let answering = std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut connection, b"hello from outside\n").unwrap();
    });
    let mut spec = root.script(&format!("nc -w 5 {address} {port} </dev/null"));
    spec["network"] = json!("Default");
    let ran = run(&spec);
    assert_eq!(ran.ok(), "hello from outside\n");
    answering.join().unwrap();
}
