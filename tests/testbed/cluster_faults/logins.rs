//! Hosts that do not let us in, or not as root.

use crate::cluster_faults::support::{bed, error, image, reset, run, says};

const LOGIN: i32 = 5;

#[test]
fn hosts_that_do_not_let_us_in_say_why() {
    let Some(bed) = bed(2) else { return };
    image(&bed, "f:1", "", &[]);
    let ip = bed.ip(1);
    let on = |more: &[&str]| {
        let arguments = [&["run", "f:1", "--masters", &ip], more].concat();
        bed.imgctl(arguments)
    };

    let wrong = on(&["--passwd", "wr0ng-secret"]).fails(LOGIN);
    says(&wrong, &[&ip, "check/", "does not let root log in", "--passwd-file"]);
    assert!(!wrong.report().replace("--passwd wr0ng-secret", "").contains("wr0ng-secret"));
    assert_eq!(error(&wrong).matches(&format!("{ip}: {ip}")).count(), 0, "{}", wrong.report());

    // The key of the other host under this host's name.
    let known = std::fs::read_to_string(bed.known_hosts()).unwrap();
    let other = bed.ip(2);
    let line =
        known.lines().find(|line| line.starts_with(&other) && line.contains("ed25519")).unwrap();
    let key = line.split_once(' ').unwrap().1;
    let file = bed.env.write("known", format!("# mine\n{ip} {key}\n"));
    let file = file.to_str().unwrap();
    let changed = run(&bed, "f:1", "default", &ip, &["--known-hosts", file]).fails(LOGIN);
    says(&changed, &[&ip, "known:2", "SHA256:", "ssh-keygen", "was reinstalled"]);
    let unknown = &["--known-hosts", "/dev/null", "--strict-host-key"];
    let strict = run(&bed, "f:1", "default", &ip, unknown).fails(LOGIN);
    says(&strict, &[&ip, "is not known", "ssh-keyscan"]);

    let nosudo = run(&bed, "f:1", "default", &ip, &["--user", "nosudo"]).fails(LOGIN);
    says(&nosudo, &[&ip, "sudo", "refuses nosudo", "log in as root"]);
    let nosudo = on(&["--user", "nosudo", "--passwd", "test"]).fails(LOGIN);
    says(&nosudo, &[&ip, "sudo", "refuses nosudo", "log in as root"]);
    let ops = run(&bed, "f:1", "default", &ip, &["--user", "ops"]).fails(LOGIN);
    says(&ops, &[&ip, "asks for a password", "--sudo-passwd-file"]);

    // What the fault was is put right: the same cluster comes up.
    on(&["--user", "ops", "--passwd", "test"]).ok();
    assert_eq!(bed.says(1, "cat /var/lib/ran"), "check\ninit");
    reset(&bed, "default");
    run(&bed, "f:1", "second", &ip, &["--user", "deploy"]).ok();
    let password = bed.env.write("password", "test\n");
    let password = &["--user", "ops", "--sudo-passwd-file", password.to_str().unwrap()];
    let nothing = run(&bed, "f:1", "second", &ip, password).ok();
    assert!(nothing.stdout().contains("nothing to do"));
}
