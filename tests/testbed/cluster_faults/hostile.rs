//! Images, Clusterfiles and hosts that mean harm.

use std::os::unix::fs::PermissionsExt as _;

use crate::cluster_faults::support::{bed, error, image, run, says};

#[test]
fn an_image_cannot_reach_out_of_its_tree_and_a_host_cannot_lead_us_astray() {
    let Some(bed) = bed(1) else { return };
    let ip = bed.ip(1);
    bed.says(
        1,
        "mkdir -p /root/prey; echo mine > /root/prey/file; echo mine > /root/prey/kept.conf",
    );
    let context = bed.env.path("context-f-1");
    std::fs::create_dir_all(context.join("etc")).unwrap();
    // Templates through links, links as files of our own, a registry elsewhere.
    let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, context.join(at)).unwrap();
    link("/root/prey", "manifests");
    link("/root/prey/file", "etc/kept.conf");
    link("../../../../../../../root/prey/file", "etc/up");
    link("/root/prey", "registry");
    std::fs::write(context.join("etc/kept.conf.tmpl"), "overwritten").unwrap();
    std::fs::write(context.join("etc/new\nline.tmpl"), "x {{ .HOST_IP }}").unwrap();
    std::fs::write(context.join("etc/ \u{1b}[31mred"), "x").unwrap();
    image(&bed, "f:1", "", &[]);
    let ran = run(&bed, "f:1", "default", &ip, &[]);
    assert!(!ran.report().contains('\u{1b}'), "{}", ran.report());
    assert_eq!(
        bed.says(1, "cat /root/prey/file /root/prey/kept.conf; ls /root/prey"),
        "mine\nmine\nfile\nkept.conf"
    );
    if ran.success() {
        crate::cluster_faults::support::reset(&bed, "default");
        assert_eq!(bed.says(1, "cat /root/prey/file; ls /root/prey"), "mine\nfile\nkept.conf");
    }

    // What an image says of itself goes into no shell but the host's.
    let file = |text: &str| bed.env.write("Clusterfile", text).to_str().unwrap().to_owned();
    let head = "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata:\n  name: ";
    for (name, spec, word) in [
        ("../../etc", "image: [f:1]", "../../etc"),
        ("a b; id", "image: [f:1]", "a b; id"),
        (
            "ok",
            "image: [f:1]\n  hosts:\n  - ips: ['10.0.0.1; id']\n    roles: [master]",
            "10.0.0.1; id",
        ),
        (
            "ok",
            "image: [f:1]\n  hosts:\n  - ips: ['-oProxyCommand=id']\n    roles: [master]",
            "ProxyCommand",
        ),
        ("ok", "image: [f:1]\n  env: ['A\\0B=1']", "env"),
        ("ok", "imag: [f:1]", "imag"),
        ("ok", "image: &a [*a, *a]", "Clusterfile"),
    ] {
        let path = file(&format!("{head}\"{name}\"\nspec:\n  {spec}\n"));
        let ran = bed.imgctl(["apply", "-f", &path]);
        assert!(!ran.success(), "{name} {spec}");
        assert!(error(&ran).contains(word), "{name} {spec}\n{}", ran.report());
    }

    // Stand-ins for the agent: they answer rubbish, nothing, or without end.
    for (at, script) in [
        "#!/bin/sh\nhead -c 100000 /dev/urandom\n",
        "#!/bin/sh\nexit 0\n",
        "#!/bin/sh\necho 'cannot be: I am broken' >&2; exit 3\n",
        "#!/bin/sh\nexec yes\n",
        "#!/bin/sh\necho imgctl-agent ready; exec cat /dev/zero\n",
    ]
    .iter()
    .enumerate()
    {
        let agent = bed.env.write(format!("agent-{at}"), script);
        std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755)).unwrap();
        let name = format!("lied-{at}");
        let more = ["run", "f:1", "--cluster", &name, "--masters", &ip, "--retries", "0", "--pk"];
        let mut command = bed.command(more);
        command.arg(bed.key()).env("IMGCTL_AGENT", &agent);
        let started = std::time::Instant::now();
        let ran = crate::common::Ran::new(command);
        assert!(!ran.success(), "{script}");
        says(&ran, &[&ip, "check/", "agent"]);
        assert!(started.elapsed().as_secs() < 120, "{script}");
        assert!(ran.stderr().len() < 20_000, "{script}: {}", ran.stderr().len());
    }
}
