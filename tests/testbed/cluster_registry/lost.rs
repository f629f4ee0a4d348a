//! A registry host loses the data of its registry, not the registry: some of it, all of it, or the disk that it was on.

use super::{answer_for, password};
use crate::cluster_etcd::support::{bytes, events, run};
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root};

const DATA: &str = "/var/lib/sealos/data/default/registry";
/// Bytes of the layer of each embedded image.
const LAYER: u64 = 3 << 20;

const KUBEFILE: &str = "FROM scratch\n\
    LABEL sealos.io.type=rootfs sealos.io.version=v1beta1 sealos.io.distribution=script version=v1\n\
    LABEL init=true.sh join=true.sh\n\
    COPY scripts scripts\nCOPY one/registry registry\nCOPY two/registry registry\n";

/// Builds `cluster:v1`, which embeds `team/one:v1` and `team/two:v1`.
fn build(bed: &Bed) {
    let env = &bed.env;
    let cluster = env.context("cluster", KUBEFILE, &[("scripts/true.sh", "true\n")]);
    for (seed, name) in [(1_u32, "one"), (2, "two")] {
        let folder = env.context(name, "FROM scratch\nCOPY f /\n", &[]);
        let noise: Vec<u8> = (0..LAYER / 4)
            .scan(seed, |state, _| {
                *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                Some(state.rotate_left(16).to_le_bytes())
            })
            .flatten()
            .collect();
        std::fs::write(folder.join("f"), noise).unwrap();
        let tag = format!("{name}:v1");
        env.imgctl(["build", "-q", "--compression", "none", "-t", &tag, folder.to_str().unwrap()])
            .ok();
        let tree = cluster.join(name).join("registry");
        std::fs::create_dir_all(&tree).unwrap();
        env.imgctl(["push", &tag, &format!("registry-dir:{}:team/{tag}", tree.display())]).ok();
    }
    env.build("cluster:v1", &cluster);
}

/// What the registries of both hosts answer to a request for both images.
fn served(bed: &Bed) -> bool {
    let login = format!("admin:{}", password(bed).trim());
    let mut all = (1..=2).flat_map(|host| ["one", "two"].map(|name| (host, name)));
    all.all(|(host, name)| {
        let path = format!("/v2/team/{name}/manifests/v1");
        answer_for(bed, host, &login, &path).contains("200")
    })
}

/// `status` names the host that lost something, and only that one.
#[track_caller]
fn told(bed: &Bed, host: usize) -> Ran {
    let status = bed.imgctl(["status", "--json"]).fails(10);
    let hosts = status.json()["hosts"].clone();
    for number in 1..=2 {
        let problems = hosts[number - 1]["problems"].to_string();
        let lost = problems.contains("its registry has lost data of cluster:v1");
        assert_eq!(lost, number == host, "h{number}: {problems}");
    }
    status
}

/// The same command as at first repairs it; returns the bytes that it moved.
#[track_caller]
fn repaired(bed: &Bed, command: &[&str]) -> u64 {
    let events = events(&run(bed, &[command, &["--json"]].concat()).ok());
    bed.imgctl(["status"]).ok();
    assert!(served(bed));
    bytes(&events)
}

#[test]
fn data_that_a_registry_lost_is_seen_and_put_back() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(2).with_agent();
    build(&bed);
    let (first, both) = (bed.ip(1), bed.ips(1..=2));
    let command = ["run", "cluster:v1", "--masters", &first, "--nodes", &bed.ip(2)];
    let command = [&command[..], &["--registry-hosts", &both]].concat();
    run(&bed, &command).ok();
    bed.imgctl(["status"]).ok();
    assert!(served(&bed));

    // One blob of the two: one layer comes again.
    let largest = format!("find {DATA} -name data -size +2M | sort | head -n 1");
    bed.says(1, &format!("rm $({largest})"));
    told(&bed, 1);
    let once = repaired(&bed, &command);
    assert!((LAYER..LAYER * 3).contains(&once), "{once}");
    assert_eq!(repaired(&bed, &command), 0);

    // Everything, with the directory and without.
    for damage in [format!("rm -rf {DATA}/*"), format!("rm -rf {DATA}")] {
        bed.says(2, &damage);
        told(&bed, 2);
        let twice = repaired(&bed, &command);
        assert!(twice > once, "{twice} after {damage}");
    }

    // A disk that hides it: it need not come again.
    bed.says(2, &format!("mount -t tmpfs none {DATA}"));
    let status = told(&bed, 2);
    assert!(status.stdout().contains("not mounted"), "{}", status.report());
    bed.says(2, &format!("umount {DATA}"));
    assert_eq!(repaired(&bed, &command), 0);
}
