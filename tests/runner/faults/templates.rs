//! Templates of an image that grow without end from a few bytes: each ends with an error that names it and its limit,
//! and rendering stays within its memory.

use std::process::Stdio;

use crate::common::TestEnv;

const CLUSTERFILE: &str = "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata: {name: tm}\n\
     spec:\n  image: [localhost/tm:1]\n  hosts: [{ips: [10.9.9.9], roles: [master]}]\n";
const KUBEFILE: &str = "FROM scratch\nLABEL sealos.io.type=rootfs sealos.io.version=v1beta1 version=v1.29.0\n\
     COPY etc etc\n";
/// Memory that an image may take of the controller, in bytes.
const MOST: u64 = 256 << 20;

/// Renders an image with these templates. Returns stderr and the peak of memory, in bytes.
fn rendered(templates: &[(&str, &str)]) -> (bool, String, u64) {
    let env = TestEnv::new();
    env.write("Clusterfile", CLUSTERFILE);
    let files: Vec<(String, &str)> =
        templates.iter().map(|(name, text)| (format!("etc/{name}"), *text)).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (&**name, *text)).collect();
    let context = env.context("context", KUBEFILE, &files);
    env.build("localhost/tm:1", &context);
    let log = std::fs::File::create(env.path("log")).unwrap();
    let arguments = ["render", "-f", "Clusterfile", "--host", "10.9.9.9", "-o", "out"];
    let mut child = env.command(arguments).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let ended = loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let value = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(value.unwrap_or_default() << 10);
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    (ended.success(), std::fs::read_to_string(env.path("log")).unwrap(), peak)
}

#[test]
fn go_templates_take_no_more_than_their_limits() {
    let bombs = [
        ("replace.tmpl", r#"{{ replace "" (repeat 100000 "y") (repeat 100000 "x") }}"#),
        ("regex.tmpl", r#"{{ regexReplaceAll "" (repeat 1000000 "x") (repeat 1000000 "y") }}"#),
        ("join.tmpl", r#"{{ join (repeat 1000000 "x") (until 100000) }}"#),
        ("quote.tmpl", r#"{{ $x := repeat 10000000 "x" }}{{ quote $x $x $x $x $x $x $x $x }}"#),
        (
            "concat.tmpl",
            "{{ $l := list 1 2 3 4 }}{{ range until 40 }}{{ $l = concat $l $l }}{{ end }}",
        ),
        (
            "json.tmpl",
            "{{ $d := dict }}{{ range until 40 }}{{ $d = dict \"a\" $d \"b\" $d }}{{ end }}{{ toJson $d }}",
        ),
        (
            "keep.tmpl",
            "{{ $l := list }}{{ range until 100000 }}{{ $l = list $l (repeat 5000 \"x\") }}{{ end }}",
        ),
        ("out.tmpl", "{{ $x := repeat 1000000 \"x\" }}{{ range until 100000 }}{{ $x }}{{ end }}"),
    ];
    let (ok, said, peak) = rendered(&bombs);
    assert!(!ok && peak > 0, "{said}");
    for (name, _) in bombs {
        let lines = said.lines().filter(|line| line.contains(name));
        assert!(lines.clone().any(|line| line.contains("MiB")), "{name}: {said}");
    }
    assert!(peak <= MOST, "{} MiB: {said}", peak >> 20);
}

#[test]
fn tera_templates_take_no_more_than_their_limits() {
    let grow = "{% set x = \"xxxxxxxx\" %}".to_owned() + &"{% set x = x ~ x %}".repeat(40);
    let capture = "{% set x = \"xxxxxxxx\" %}".to_owned()
        + &"{% set x %}{{ x }}{{ x }}{% endset %}".repeat(40);
    let out = format!(
        "{{% for i in range(end=90000) %}}{{% for j in range(end=10) %}}{}{{% endfor %}}{{% endfor %}}",
        "x".repeat(1000)
    );
    let bombs = [
        ("grow.tera", &*grow),
        ("capture.tera", &*capture),
        (
            "loop.tera",
            "{% set_global x = \"x\" %}{% for i in range(end=90) %}{% set_global x = x ~ x %}{% endfor %}",
        ),
        ("out.tera", &*out),
    ];
    let (ok, said, peak) = rendered(&bombs);
    assert!(!ok && peak > 0, "{said}");
    for (name, _) in bombs {
        assert!(said.contains(name), "{name}: {said}");
    }
    assert_eq!(said.matches("MiB").count(), bombs.len(), "{said}");
    assert!(said.contains("divide the template"), "{said}");
    assert!(peak <= MOST, "{} MiB: {said}", peak >> 20);
}

#[test]
fn tera_templates_render_in_their_own_process() {
    let (ok, said, _) = rendered(&[(
        "a.conf.tera",
        "{% for i in range(end=3) %}{{ i ~ \"-\" ~ Host.IP }} {% endfor %}",
    )]);
    assert!(ok, "{said}");
    let (ok, said, _) = rendered(&[("b.conf.tera", "a\n{{ nokey }}")]);
    assert!(!ok && said.contains("nokey") && said.contains("b.conf.tera"), "{said}");
    assert!(said.contains("default(value="), "{said}");
}
