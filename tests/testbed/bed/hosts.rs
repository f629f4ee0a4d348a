//! What a host is: its own names, keys, files and users, and no way to the machine's clock and knobs.

use std::process::Command;

use crate::common::testbed::{Bed, PASSWORD};
use crate::common::{Ran, needs_root};

#[test]
fn two_hosts_are_two_machines() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(2);

    // Themselves.
    for host in [1, 2] {
        assert_eq!(bed.says(host, "hostname"), format!("h{host}"));
        assert_eq!(bed.says(host, "systemctl is-system-running"), "running");
        let address = bed.says(host, "hostname -I");
        assert!(address.starts_with(&bed.ip(host)), "{address}");
    }
    let differ = [
        "cat /etc/machine-id",
        "cat /etc/ssh/ssh_host_ed25519_key.pub",
        "readlink /proc/self/ns/net",
        "readlink /proc/self/ns/pid",
    ];
    for line in differ {
        let [one, other] = [1, 2].map(|host| bed.says(host, line));
        assert!(!one.is_empty() && one != other, "{line}: {one} {other}");
    }
    let own = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    assert_ne!(bed.says(1, "cat /etc/machine-id"), own.trim());

    // Files: a whole file system of their own, /var/lib where overlays may lie.
    bed.says(1, "echo mine > /etc/mine && echo mine > /var/lib/mine");
    bed.exec(2, "cat /etc/mine /var/lib/mine").fails(1);
    bed.says(1, "cd /var/lib && mkdir l u w m && mount -t overlay o -o lowerdir=l,upperdir=u,workdir=w m && touch m/x && umount m && rm -r l u w m");
    assert_ne!(bed.says(1, "stat -fc %T /var/lib"), "overlayfs");
    bed.exec(1, "command -v containerd runc docker").fails(1);

    // The machine below: neither its clock nor its knobs. Nothing here tries what would change the
    // machine if the bed had a hole.
    for ran in [bed.exec(1, "cat /proc/self/status"), bed.ssh(1, "root", "cat /proc/self/status")] {
        let status = ran.ok().stdout();
        for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
            let line = status.lines().find(|line| line.starts_with(set)).unwrap();
            let caps = u64::from_str_radix(line[set.len()..].trim(), 16).unwrap();
            let (module, time) = (1 << 16, 1 << 25);
            assert_eq!(caps & (module | time), 0, "{line}");
            assert_ne!(caps, 0, "{line}");
        }
    }
    bed.says(1, "findmnt /proc/sys/vm/swappiness");
    let here = std::fs::read_to_string("/proc/sys/vm/swappiness").unwrap();
    bed.says(1, "echo 1 > /proc/sys/vm/swappiness");
    assert_eq!(bed.says(1, "cat /proc/sys/vm/swappiness"), "1");
    let after = std::fs::read_to_string("/proc/sys/vm/swappiness").unwrap();
    assert_eq!(after, here);
    assert_eq!(bed.says(2, "cat /proc/sys/vm/swappiness"), here.trim());
    bed.exec(1, "test -w /proc/sys/kernel/unknown_nmi_panic").fails(1);
    // A new network takes this from the machine.
    let forward = bed.says(1, "cat /proc/sys/net/ipv4/ip_forward");
    bed.says(1, "sysctl -qw net.ipv4.ip_forward=1 && modprobe overlay");
    bed.exec(1, "modprobe ip_vs").fails(1);

    // Units: what is enabled runs, and runs again after a reboot.
    bed.says(1, "printf '[Service]\\nExecStart=sleep inf\\n[Install]\\nWantedBy=multi-user.target\\n' > /etc/systemd/system/mine.service && systemctl daemon-reload && systemctl enable --now mine");

    people(&bed);

    bed.reboot(1);
    assert_eq!(bed.says(1, "systemctl is-active mine"), "active");
    assert_eq!(bed.says(1, "cat /etc/mine /var/lib/mine"), "mine\nmine");
    assert_eq!(bed.says(1, "cat /proc/sys/net/ipv4/ip_forward"), forward);
    bed.ssh(1, "root", "true").ok();
}

/// Who may log in, and become root.
fn people(bed: &Bed) {
    for (user, becomes) in [("ops", true), ("deploy", true), ("nosudo", false)] {
        let ran = bed.ssh(1, user, "echo test | sudo -S id -un");
        assert_eq!(ran.stdout(), if becomes { "root" } else { "" });
        let ran = bed.ssh(1, user, "sudo -n true");
        assert_eq!(ran.success(), user == "deploy", "{}", ran.report());
    }
    for user in ["root", "ops"] {
        let ran = by_password(bed, user, PASSWORD).ok();
        assert_eq!(ran.stdout(), user);
    }
    by_password(bed, "root", "wrong").fails(255);
    let ran = Ran::new(ssh(bed, &bed.ip6(2), &["-i", bed.key().to_str().unwrap()])).ok();
    assert_eq!(ran.stdout(), "root");
}

fn ssh(bed: &Bed, address: &str, options: &[&str]) -> Command {
    let mut command = Command::new("ssh");
    let known = format!("UserKnownHostsFile={}", bed.known_hosts().display());
    command
        .args(["-F", "none", "-o", &known, "-o", "StrictHostKeyChecking=yes"])
        .args(options)
        .args([address, "id -un"])
        .stdin(std::process::Stdio::null());
    command
}

fn by_password(bed: &Bed, user: &str, password: &str) -> Ran {
    let says = bed.env.write("askpass", "#!/bin/sh\necho \"$ANSWER\"\n");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&says, executable).unwrap();
    let options = ["-l", user, "-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=1"];
    let mut command = ssh(bed, &bed.ip(2), &options);
    command.env("SSH_ASKPASS", says).env("SSH_ASKPASS_REQUIRE", "force").env("ANSWER", password);
    Ran::new(command)
}
