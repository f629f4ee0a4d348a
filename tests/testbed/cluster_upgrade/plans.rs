//! What a plan says, and what it does not do; plans and journals that do not fit are refused.

use crate::cluster_upgrade::counting::{
    all_counted, build, cluster, refused, trees, upgrade, versions,
};
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, tool};

#[test]
fn plans_change_nothing_and_stale_ones_are_refused() {
    if !needs_root() {
        return;
    }
    let bed = cluster();
    let plan = bed.env.path("plan.json");
    let plan = plan.to_str().unwrap();
    let before = everything(&bed);
    let shown = bed.imgctl(["upgrade", "counting:1.1.0", "--plan", "--save-plan", plan]).ok();
    for host in 1..=3 {
        assert!(shown.stdout().contains(&bed.ip(host)), "{}", shown.report());
    }
    bed.imgctl(["upgrade", "counting:1.1.0", "--plan", "--json"]).ok().json();
    let rollback = bed.imgctl(["rollback", "--plan"]);
    assert!(!rollback.success(), "{}", rollback.report());
    let after = everything(&bed);
    assert_same(&before, &after);
    assert_eq!(all_counted(&bed), [""; 3]);

    // What is not there cannot be planned.
    refused(&upgrade(&bed, &["counting:9.9.9"]), "counting:9.9.9");
    refused(&upgrade(&bed, &["counting:1.1.0", "--skip-check", "no-such-check"]), "no-such-check");

    // The same tag is another image now.
    build(&bed, "1.1.0", "another");
    let stale = bed.imgctl(["upgrade", "--plan-file", plan, "--yes"]);
    refused(&stale.fails(10), "the plan is stale: counting:1.1.0 is now sha256:");
    assert_eq!(versions(&bed), ["1.0.0"; 3]);
    assert_eq!(trees(&bed), ["1.0.0"; 3]);
    // Nor is it what an upgrade goes on with that has begun.
    build(&bed, "1.1.0", "");
    upgrade(&bed, &["counting:1.1.0", "--pause-after", "stage"]).ok();
    build(&bed, "1.1.0", "another");
    let other = bed.imgctl(["upgrade", "resume", "--yes"]);
    refused(&other.fails(10), "counting:1.1.0 is now sha256:");
    assert_eq!(versions(&bed), ["1.0.0"; 3]);
    bed.imgctl(["upgrade", "abort", "--yes"]).ok();
    assert_eq!(all_counted(&bed), ["backup", "", ""]);
    build(&bed, "1.1.0", "");
    // A plan that somebody edited.
    let text = std::fs::read_to_string(plan).unwrap();
    let edited = bed.env.write("edited.json", text.replace("1.1.0", "1.2.0"));
    let odd = bed.imgctl(["upgrade", "--plan-file", edited.to_str().unwrap(), "--yes"]);
    assert!(!odd.success(), "{}", odd.report());
    assert_eq!(versions(&bed), ["1.0.0"; 3]);
    assert_eq!(all_counted(&bed), [""; 3]);

    bed.imgctl(["upgrade", "--plan-file", plan, "--yes"]).ok();
    assert_eq!(versions(&bed), ["1.1.0"; 3]);
    assert_eq!(trees(&bed), ["1.1.0"; 3]);
    assert_eq!(all_counted(&bed), ["backup upgrade", "upgrade", "upgrade"]);

    // The cluster is elsewhere than the plan thinks.
    let stale = bed.imgctl(["upgrade", "--plan-file", plan, "--yes"]);
    refused(&stale, "stale");
    assert_eq!(all_counted(&bed), [""; 3]);
    let before = everything(&bed);
    upgrade(&bed, &["counting:1.1.0"]).ok();
    assert_same(&before, &everything(&bed));
    refused(&upgrade(&bed, &["counting:1.0.0"]), "rollback");
    assert_eq!(all_counted(&bed), [""; 3]);

    // Back, and there again.
    bed.imgctl(["rollback", "--yes"]).ok();
    assert_eq!(versions(&bed), ["1.0.0"; 3]);
    assert_eq!(trees(&bed), ["1.0.0"; 3]);
    assert_eq!(all_counted(&bed), ["rollback"; 3]);
    upgrade(&bed, &["counting:1.1.0"]).ok();
    upgrade(&bed, &["counting:1.2.0"]).ok();
    assert_eq!(versions(&bed), ["1.2.0"; 3]);
    assert_eq!(trees(&bed), ["1.2.0"; 3]);
    several_at_once(&bed);
}

/// Back twice, and the same way in one go, over the image between.
fn several_at_once(bed: &Bed) {
    for version in ["1.1.0", "1.0.0"] {
        bed.imgctl(["rollback", "--yes"]).ok();
        assert_eq!(versions(bed), [version; 3]);
        assert_eq!(trees(bed), [version; 3]);
    }
    all_counted(bed);
    let way = ["counting:1.1.0", "counting:1.2.0"];
    refused(&upgrade(bed, &[&way[..], &["--hop", "single"]].concat()), "--hop auto");
    refused(&upgrade(bed, &["counting:1.2.0", "counting:1.1.0"]), "older");
    assert_eq!(all_counted(bed), [""; 3]);
    // The second image's script fails on the last host: what is done stays done.
    bed.says(3, "touch /run/ill");
    refused(&upgrade(bed, &way), &bed.ip(3));
    bed.says(3, "rm /run/ill");
    bed.imgctl(["upgrade", "resume", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.2.0"; 3]);
    assert_eq!(trees(bed), ["1.2.0"; 3]);
    let once_each = ["backup upgrade upgrade", "upgrade upgrade", "upgrade upgrade"];
    assert_eq!(all_counted(bed), once_each);
    // The way back is one step, to what was before.
    bed.imgctl(["rollback", "--yes"]).ok();
    assert_eq!(versions(bed), ["1.0.0"; 3]);
    assert_eq!(trees(bed), ["1.0.0"; 3]);
}

/// Every file of every host with what would show a change, and the cluster's files here.
fn everything(bed: &Bed) -> Vec<String> {
    let list = "find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp \
         -o -path /var/log -o -path /var/lib/systemd \\) -prune -o -type f -printf '%p %m %s %T@ %l\\n' | sort; \
         find /var/lib \\( -path /var/lib/systemd -o -path /var/lib/imgctl \\) -prune -o -printf '%p %y %m %s %T@ %l\\n' | sort";
    let mut all: Vec<String> = (1..=bed.len()).map(|host| bed.says(host, list)).collect();
    let here = format!(
        "cd {} && find . -type f ! -name '.lock*' -printf '%p %m %s %T@\\n' | sort",
        bed.env.path("clusters").display()
    );
    all.push(Ran::new(tool("sh", ["-c", &here])).ok().stdout());
    all
}

#[track_caller]
fn assert_same(before: &[String], after: &[String]) {
    for (number, (before, after)) in before.iter().zip(after).enumerate() {
        let known: std::collections::HashSet<&str> = before.lines().collect();
        let new: Vec<&str> = after.lines().filter(|line| !known.contains(line)).collect();
        assert!(new.is_empty(), "{number}: {new:#?}");
        assert_eq!(before.lines().count(), after.lines().count(), "{number}");
    }
}
