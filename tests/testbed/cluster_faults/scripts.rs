//! Scripts of images that fail, hang, print secrets or print without end, and templates that cannot
//! be rendered.

use std::time::{Duration, Instant};

use crate::cluster_faults::support::{bed, error, image, reset, run, says};
use crate::common::testbed::Bed;

const COMMAND: i32 = 9;
const USAGE: i32 = 2;

/// Rebuilds `f:1` with this `init.sh`.
fn with_init(bed: &Bed, script: &str) {
    image(bed, "f:1", "", &[("scripts/init.sh", script)]);
}

#[test]
fn scripts_that_fail_hang_or_print_too_much() {
    let Some(bed) = bed(2) else { return };
    let (ip, both) = (bed.ip(1), bed.ips(1..=2));

    with_init(&bed, "echo one; echo the etcd is sad >&2; exit 7");
    let failed = run(&bed, "f:1", "default", &both, &[]).fails(COMMAND);
    says(
        &failed,
        &[&ip, "init/", "bash init.sh", "exit code 7", "the etcd is sad", "/runs/", "journal"],
    );
    let log = bed.env.path("clusters/default/logs");
    let found =
        std::process::Command::new("grep").args(["-rl", "the etcd is sad"]).arg(&log).output();
    assert!(!found.unwrap().stdout.is_empty(), "the controller keeps the output");
    let way_out = "imgctl reset --cluster default";
    assert!(!error(&failed).contains(way_out), "{}", failed.report());
    // Another image that fails as well: what the first left may be in the way.
    with_init(&bed, "exit 4");
    let failed = run(&bed, "f:1", "default", &both, &[]).fails(COMMAND);
    assert!(error(&failed).contains(way_out), "{}", failed.report());
    // Mended: the image is another one, and what was done stays done.
    with_init(&bed, "echo mended >> /var/lib/ran");
    run(&bed, "f:1", "default", &both, &[]).ok();
    assert_eq!(bed.says(1, "grep -c mended /var/lib/ran"), "1");
    assert_eq!(bed.says(2, "grep -c join /var/lib/ran"), "1");
    reset(&bed, "default");

    with_init(&bed, "trap '' TERM; echo begun; sleep 1000 & wait; sleep 1000");
    let started = Instant::now();
    let hung = run(&bed, "f:1", "hung", &ip, &["--timeout", "2s"]).fails(COMMAND);
    assert!(started.elapsed() < Duration::from_secs(240), "{}", hung.report());
    says(&hung, &[&ip, "init/", "bash init.sh", "2 s", "begun"]);
    assert!(!bed.exec(1, "pgrep -x sleep").success(), "its processes are gone");
    reset(&bed, "hung");

    // Without a newline, and with lines.
    let gigabyte = "yes 0123456789012345678901234567890123456789 | head -c 700000000\n\
         head -c 300000000 /dev/zero | tr '\\0' x\necho; echo the last line; exit 3\n";
    let scale = if crate::common::long() { 1 } else { 10 };
    with_init(
        &bed,
        &gigabyte
            .replace("700000000", &(700_000_000 / scale).to_string())
            .replace("300000000", &(300_000_000 / scale).to_string()),
    );
    let loud = run(&bed, "f:1", "loud", &ip, &["--progress", "none"]).fails(COMMAND);
    says(&loud, &[&ip, "exit code 3", "the last line"]);
    assert!(loud.stderr().len() < 200_000, "{} bytes of error", loud.stderr().len());
    let size = |place: &std::path::Path| {
        let ran = std::process::Command::new("du").arg("-sm").arg(place).output().unwrap();
        let text = String::from_utf8(ran.stdout).unwrap();
        text.split_whitespace().next().unwrap().parse::<u32>().unwrap()
    };
    assert!(size(&bed.env.path("clusters/loud")) < 60);
    let host = bed.says(1, "du -sm /var/lib/sealos/data/loud/runs | cut -f1");
    assert!(host.parse::<u32>().unwrap() < 80, "{host} MB on the host");
    reset(&bed, "loud");
}

#[test]
fn secrets_that_a_script_prints_are_nowhere() {
    let Some(bed) = bed(1) else { return };
    let ip = bed.ip(1);
    let secret = "h4rd\"to$guess`";
    image(
        &bed,
        "f:1",
        "ENV API_TOKEN=t0ken-of-image",
        &[("scripts/init.sh", "set -x; echo \"$dbPassword\"; echo \"[$API_TOKEN]\" >&2; exit 4")],
    );
    let variable = format!("dbPassword={secret}");
    let ran = run(&bed, "f:1", "default", &ip, &["--env", &variable]).fails(COMMAND);
    says(&ran, &[&ip, "exit code 4", "***"]);
    let shown = ran.stderr() + &ran.stdout();
    for hidden in [secret, "t0ken-of-image"] {
        assert!(!shown.contains(hidden), "on the screen\n{}", ran.report());
        for place in ["journal", "logs"] {
            let place = bed.env.path("clusters/default").join(place);
            let found =
                std::process::Command::new("grep").args(["-rlF", hidden]).arg(&place).output();
            let found = String::from_utf8(found.unwrap().stdout).unwrap();
            assert_eq!(found, "", "{hidden} in {}", place.display());
        }
        let quoted = hidden.replace('\'', "'\\''");
        let host = bed.exec(1, &format!("grep -rlF '{quoted}' /var/lib/sealos/data/default/runs"));
        assert_eq!(host.stdout(), "", "{hidden} is in files on the host");
    }
}

#[test]
fn templates_that_cannot_be_rendered_name_file_line_and_key() {
    let Some(bed) = bed(1) else { return };
    let ip = bed.ip(1);
    image(&bed, "f:1", "", &[("etc/app.conf.tmpl", "a: 1\nb: {{ .nosuch.key | fromJson }}\n")]);
    let go = run(&bed, "f:1", "default", &ip, &["--strict-templates"]).fails(USAGE);
    says(&go, &[&ip, "sync/", "etc/app.conf.tmpl:2", "nosuch"]);
    std::fs::remove_file(bed.env.path("context-f-1/etc/app.conf.tmpl")).unwrap();
    image(&bed, "f:1", "", &[("etc/app.conf.tera", "a: 1\n\nb: {{ missing_key }}\n")]);
    let tera = run(&bed, "f:1", "default", &ip, &[]).fails(USAGE);
    says(&tera, &[&ip, "etc/app.conf.tera:3", "missing_key"]);
    assert!(!error(&tera).contains("etc/app.conf.tmpl"), "{}", tera.report());
    image(&bed, "f:1", "", &[("etc/app.conf.tera", "a: {{ HOST_IP }}\n")]);
    run(&bed, "f:1", "default", &ip, &[]).ok();
    let rendered = bed.says(1, "cat /var/lib/sealos/data/default/rootfs/etc/app.conf");
    assert_eq!(rendered, format!("a: {ip}"));
}
