//! What is found before anything is changed, and what runs out of space while it is.

use crate::cluster_faults::support::{bed, error, image, reset, run, says};
use crate::common::testbed::agent;

const CHECK: i32 = 10;
const NO_SPACE: i32 = 8;

#[test]
fn hosts_that_cannot_be_used_are_told_with_all_that_is_in_the_way() {
    let Some(bed) = bed(3) else { return };
    let both = bed.ips(1..=2);
    image(&bed, "f:1", "", &[]);

    bed.says(2, "usermod -s /bin/sh root; mv /bin/bash /bin/bash.off");
    let bash = run(&bed, "f:1", "default", &both, &[]).fails(CHECK);
    says(&bash, &[&bed.ip(2), "check/", "bash is missing", "install bash"]);
    bed.testbed(["exec", "2", "mv", "/bin/bash.off", "/bin/bash"]).ok();

    bed.says(
        2,
        "mkdir -p /var/lib/sealos; mount --bind /var/lib/sealos /var/lib/sealos; \
         mount -o remount,ro,bind /var/lib/sealos",
    );
    // One that is full of faults, one that is not there: both are in the error, the good one is checked.
    let gone = bed.ip(1).replace(".11", ".99");
    let mixed =
        run(&bed, "f:1", "default", &format!("{both},{gone}"), &["--retries", "0"]).fails(CHECK);
    says(
        &mixed,
        &["2 steps failed", &bed.ip(2), "is not writable", "read-write", &gone, "firewall"],
    );
    let good = format!("check/{}/host", bed.ip(1));
    assert!(!error(&mixed).contains(&good), "{}", mixed.report());
    assert!(mixed.stderr().contains("1 step done"), "{}", mixed.report());
    assert!(!bed.exec(1, "test -e /var/lib/ran").success(), "nothing runs while one host cannot");
    bed.says(2, "umount /var/lib/sealos");

    // Half the hosts are good, and then all are.
    run(&bed, "f:1", "default", &both, &[]).ok();
    assert_eq!(bed.says(2, "cat /var/lib/ran"), "check\njoin");

    let taken = run(&bed, "f:1", "other", &bed.ip(2), &[]).fails(CHECK);
    says(&taken, &[&bed.ip(2), "another cluster: default", "imgctl reset", "--force"]);
    // Two that do not collide: both live, and one goes without the other.
    run(&bed, "f:1", "other", &bed.ip(2), &["--force"]).ok();
    reset(&bed, "default");
    let status =
        bed.imgctl(crate::cluster_faults::support::arguments(&bed, &["status"], "other", &[])).ok();
    assert!(status.stdout().contains("well"), "{}", status.report());
    reset(&bed, "other");
    assert_eq!(bed.says(2, "ls /var/lib/sealos/data"), "");
}

#[test]
fn images_that_do_not_fit_are_told() {
    let Some(bed) = bed(2) else { return };
    image(&bed, "f:1", "", &[]);
    // An image for machines that these are not.
    let context = bed.env.path("context-f-1");
    let context = context.to_str().unwrap();
    bed.imgctl(["build", "--platform", "linux/arm64", "-t", "arm:1", context]).ok();
    let wrong = run(&bed, "arm:1", "default", &bed.ip(1), &[]).fails(3);
    let text = error(&wrong);
    assert!(text.contains("arm64") && text.contains("amd64") && text.contains("arm:1"), "{text}");
    let step = format!("sync/{}/files", bed.ip(1));
    assert!(text.contains(&step), "no `{step}`: {text}");

    // Room for the agent and not for the files: known before anything is sent.
    let noise =
        std::process::Command::new("head").args(["-c", "60000000", "/dev/urandom"]).output();
    std::fs::write(bed.env.path("context-f-1/noise"), noise.unwrap().stdout).unwrap();
    bed.env.build("big:1", &bed.env.path("context-f-1"));
    let agent = std::fs::metadata(agent()).unwrap().len() >> 20;
    bed.disk(2, u32::try_from(agent).unwrap() + 50);
    let full = run(&bed, "big:1", "default", &bed.ips(1..=2), &[]).fails(NO_SPACE);
    says(&full, &[&bed.ip(2), "are free on the file system of", "are needed", "SEALOS_DATA_ROOT"]);

    // The registry's half alone, which only the registry host gets.
    let in_registry = bed.env.path("context-f-1/registry/docker/noise");
    std::fs::create_dir_all(in_registry.parent().unwrap()).unwrap();
    std::fs::rename(bed.env.path("context-f-1/noise"), &in_registry).unwrap();
    bed.env.build("reg:1", &bed.env.path("context-f-1"));
    let full = run(&bed, "reg:1", "reg", &bed.ip(2), &[]).fails(NO_SPACE);
    says(&full, &[&bed.ip(2), "check/", "are free", "are needed"]);

    // What packs well is found out only when it is unpacked.
    std::fs::write(bed.env.path("context-f-1/noise"), "yes\n".repeat(50_000_000)).unwrap();
    bed.env.build("long:1", &bed.env.path("context-f-1"));
    let full = run(&bed, "long:1", "default", &bed.ips(1..=2), &[]).fails(NO_SPACE);
    says(&full, &[&bed.ip(2), "sync/", "No space left", "free space"]);
    let left = bed.says(2, "df --output=avail -BM /var/lib | tail -1");
    let left: u32 = left.trim().trim_end_matches('M').parse().unwrap();
    // A half-made tree fills the disk.
    assert!(left > 20, "a half-made tree is left: {left} MB");
    bed.disk(2, 0);
    // A volume of its own for the registry, too small.
    let registry = "/var/lib/sealos/data/reg/registry";
    bed.says(2, &format!("mkdir -p {registry} && mount -t tmpfs -o size=40m small {registry}"));
    let full = run(&bed, "reg:1", "reg", &bed.ip(2), &[]).fails(NO_SPACE);
    says(&full, &[&bed.ip(2), "sync/", registry, "No space left"]);
    bed.says(2, &format!("umount {registry}"));
    run(&bed, "reg:1", "reg", &bed.ip(2), &[]).ok();
    let whole = bed.says(2, "stat -c %s /var/lib/sealos/data/reg/registry/docker/noise");
    assert_eq!(whole, "60000000");
    reset(&bed, "reg");
    bed.says(2, "rm /var/lib/ran");
    run(&bed, "long:1", "default", &bed.ips(1..=2), &[]).ok();
    assert_eq!(bed.says(2, "cat /var/lib/ran"), "check\njoin");
}
