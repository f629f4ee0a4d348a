//! Checks that hosts are ready for an upgrade: reachable, distinct, synchronised clocks, enough free
//! space, certificates that remain valid.

use std::collections::BTreeMap;

use crate::document::{Finding, few};
use crate::finding::{error, note, warning};
use crate::observation::HostSeen;
use crate::preflight::look::Look;
use imgctl_runtime::{k3s::options::NODE_ARGS, upgrade::Renewal};
use imgctl_workflow::pipeline::ownership;

/// Maximum clock skew between control planes (etcd members), in milliseconds.
const PEER_SKEW_MS: i64 = 2_000;
/// Maximum clock skew between a host and the controller, in milliseconds.
const SKEW_MS: i64 = 30_000;
/// Required free bytes per byte of layers: a tree needs space in addition to its layers.
const ROOM_PER_BYTE: u64 = 2;
const GIB: u64 = 1 << 30;
/// Required free space in directories that other programs write to during the upgrade.
const DIRECTORIES: [(&str, u64); 3] =
    [("/var/lib/etcd", 2 * GIB), ("/var/lib/containerd", 4 * GIB), ("/var/lib/kubelet", GIB)];

pub(super) fn control_planes(look: &Look<'_>) -> Vec<Finding> {
    let silent = look.in_scope().filter_map(|host| {
        let why = host.unreachable.as_ref().filter(|_| host.is_control_plane())?;
        Some(
            error("control-plane-unreachable", format!("it cannot be reached: {why}"))
                .on(host)
                .hint(host.refused.clone().unwrap_or_else(|| {
                    "bring it back, or remove it from the cluster: `imgctl delete --masters HOST`"
                        .to_owned()
                })),
        )
    });
    silent.collect()
}

pub(super) fn workers(look: &Look<'_>) -> Vec<Finding> {
    let silent = look.in_scope().filter_map(|host| {
        let why = host.unreachable.as_ref().filter(|_| !host.is_control_plane())?;
        Some(
            warning("worker-unreachable", format!("it is skipped: it cannot be reached: {why}"))
                .on(host)
                .hint(match &host.refused {
                    Some(hint) => format!("{hint}; then run the same upgrade again"),
                    None => {
                        "run the same upgrade again when it is back: only what is missing is done"
                            .to_owned()
                    }
                }),
        )
    });
    silent.collect()
}

pub(super) fn installed_anew(look: &Look<'_>) -> Vec<Finding> {
    let lost = look.hosts().filter_map(|host| Some((host, host.lost.clone()?)));
    lost.map(|(host, why)| error("installed-anew", why).on(host).hint(ownership::REPLACE)).collect()
}

pub(super) fn twins(look: &Look<'_>) -> Vec<Finding> {
    let mut machines: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for host in &look.observation.hosts {
        let id = host.facts.as_ref().map(|facts| facts.machine_id.as_str());
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            machines.entry(id).or_default().push(&host.id);
        }
    }
    machines
        .values()
        .filter(|ids| ids.len() > 1)
        .map(|ids| {
            error(
                "same-machine",
                format!("{} are the same machine, according to /etc/machine-id", few(ids)),
            )
            .hint("list each machine once; give clones their own id with systemd-machine-id-setup")
        })
        .collect()
}

pub(super) fn clocks(look: &Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let skews = || look.hosts().filter_map(|host| Some((host, host.facts.as_ref()?.skew_ms)));
    for (host, skew) in skews().filter(|(_, skew)| skew.abs() > SKEW_MS) {
        let direction = if skew > 0 { "ahead of" } else { "behind" };
        let what = format!("its clock is {} {direction} the controller's", seconds(skew));
        found.push(error("clock-skew", what).on(host).hint(CLOCK_HINT));
    }
    let peers = || skews().filter(|(host, _)| host.is_control_plane());
    let early = peers().min_by_key(|(_, skew)| *skew);
    let late = peers().max_by_key(|(_, skew)| *skew);
    if let (Some((slow, low)), Some((fast, high))) = (early, late)
        && high.saturating_sub(low) > PEER_SKEW_MS
    {
        let what = format!(
            "the clocks of the control planes {} and {} are {} apart: etcd and certificates need \
             them within {}",
            slow.id,
            fast.id,
            seconds(high.saturating_sub(low)),
            seconds(PEER_SKEW_MS)
        );
        found.push(error("clock-skew", what).hint(CLOCK_HINT));
    }
    found
}

const CLOCK_HINT: &str = "set the time there (`chronyc makestep`, `timedatectl`)";

fn seconds(milliseconds: i64) -> String {
    let all = milliseconds.unsigned_abs();
    format!("{}.{} s", all / 1000, all % 1000 / 100)
}

pub(super) fn room(look: &Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for host in look.hosts() {
        let Some(facts) = &host.facts else { continue };
        if !facts.writable {
            let what = "its data directory is not writable".to_owned();
            found.push(
                error("free-space", what)
                    .on(host)
                    .hint("check with `mount` there whether it is read-only"),
            );
            continue;
        }
        let layers: u64 = look
            .request
            .targets
            .iter()
            .filter_map(|target| target.images.get(&facts.architecture))
            .flat_map(|image| &image.layers)
            .map(|layer| layer.descriptor.size)
            .sum();
        let needed = layers.saturating_mul(ROOM_PER_BYTE);
        if facts.free_bytes < needed {
            let what = format!(
                "{} are free in the directory of its trees; the new one needs {}",
                mebibytes(facts.free_bytes),
                mebibytes(needed)
            );
            found.push(
                error("free-space", what)
                    .on(host)
                    .hint("free space there, or remove unused images: `crictl rmi --prune`"),
            );
        }
        if !look.is_kubernetes() {
            continue;
        }
        for (directory, least) in DIRECTORIES {
            let free = host.free_bytes.get(directory).copied();
            if let Some(free) = free.filter(|free| *free < least) {
                let what = format!("{} are free in {directory}", mebibytes(free));
                found.push(warning("free-space", what).on(host).hint("free space there"));
            }
        }
    }
    found
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

pub(super) fn kernels(look: &Look<'_>) -> Vec<Finding> {
    let Some(least) = look.target().and_then(|target| target.label("imgctl.io/min-kernel")) else {
        return Vec::new();
    };
    let old = look.hosts().filter_map(|host| {
        let kernel = &host.facts.as_ref()?.kernel;
        let older = numbers(kernel) < numbers(least);
        let what = format!("its kernel {kernel} is older than {least}, which the image needs");
        older.then(|| error("kernel", what).on(host).hint("upgrade its operating system first"))
    });
    old.collect()
}

/// The first three numbers of `6.1.0-28-amd64`.
fn numbers(text: &str) -> Vec<u64> {
    let core = text.split(|c: char| !c.is_ascii_digit() && c != '.').next();
    let parts = core.unwrap_or_default().split('.').take(3);
    let mut numbers: Vec<u64> = parts.map_while(|part| part.parse().ok()).collect();
    numbers.resize(3, 0);
    numbers
}

pub(super) fn cgroups(look: &Look<'_>) -> Vec<Finding> {
    let label = look.target().and_then(|target| target.label("imgctl.io/cgroup"));
    let words: Option<Vec<&str>> = label.map(|label| label.split([',', ' ']).collect());
    // kubelet 1.35 refuses to start on cgroup v1 unless configured otherwise.
    let refuses = look.is_kubernetes() && look.is_forward() && look.new_minors().contains(&35);
    let mut found = Vec::new();
    for host in look.hosts() {
        let Some(facts) = &host.facts else { continue };
        let has = if facts.cgroup_v2 { "v2" } else { "v1" };
        if let Some(words) = &words
            && !words.contains(&has)
        {
            let what = format!("it has cgroup {has}; the image supports {}", words.join(" and "));
            found.push(error("cgroup", what).on(host).hint(CGROUP_HINT));
        } else if words.is_none() && refuses && !facts.cgroup_v2 && !accepts_cgroup_v1(look, host) {
            let mut what =
                "it has cgroup v1, on which the kubelet of v1.35 does not start".to_owned();
            if host.kubelet.fail_cgroup_v1 == Some(false) {
                what.push_str(
                    "; failCgroupV1: false is in its config.yaml, which kubeadm writes anew from \
                     the ConfigMap kubelet-config, and not there",
                );
            }
            found.push(error("cgroup", what).on(host).hint(KUBELET_HINT));
        }
    }
    found
}

/// Whether the new kubelet of a host will be told to start on cgroup v1: by a flag, or by the
/// configuration that it will have.
fn accepts_cgroup_v1(look: &Look<'_>, host: &HostSeen) -> bool {
    if let Some(fails) = host.kubelet.fail_cgroup_v1_flag {
        return !fails;
    }
    if look.document.runtime == "k3s" {
        let node = look.observation.node_of(host);
        let told = node.and_then(|node| node.annotations.get(NODE_ARGS));
        return told.is_some_and(|told| told.contains("fail-cgroupv1=false"));
    }
    match look.written_by_kubeadm() {
        Some(written) => {
            written["failCgroupV1"] == false || patched(host, "failCgroupV1").starts_with(":false")
        }
        None => host.kubelet.fail_cgroup_v1 == Some(false),
    }
}

/// Returns what follows a field in the host's patches of the kubelet's configuration, without blanks
/// and quotes.
fn patched(host: &HostSeen, field: &str) -> String {
    let text = host.patches.get("kubeletconfiguration").map_or("", String::as_str);
    let plain: String = text.chars().filter(|c| !c.is_whitespace() && *c != '"').collect();
    let rest = plain.split_once(field).map_or("", |(_, rest)| rest);
    rest.chars().take(8).collect()
}

const CGROUP_HINT: &str = "boot it with systemd.unified_cgroup_hierarchy=1";
const KUBELET_HINT: &str = "boot it with systemd.unified_cgroup_hierarchy=1, or set \
                            failCgroupV1: false in a KubeletConfiguration of the Clusterfile and \
                            run `imgctl apply` before the upgrade";

pub(super) fn swap(look: &Look<'_>) -> Vec<Finding> {
    let accepts = |host: &HostSeen| match look.written_by_kubeadm() {
        Some(written) => written["failSwapOn"] == false,
        None => host.kubelet.fail_swap_on == Some(false),
    };
    let used = look.hosts().filter(|host| host.swap && look.is_kubernetes() && !accepts(host));
    used.map(|host| {
        warning("swap", "swap is on: a kubelet does not start again unless its failSwapOn is false")
            .on(host)
            .hint("run `swapoff -a` there, and remove swap from /etc/fstab")
    })
    .collect()
}

pub(super) fn leftovers(look: &Look<'_>) -> Vec<Finding> {
    let left = look.hosts().filter(|host| !host.leftovers.is_empty());
    left.map(|host| {
        let what = format!("an incomplete upgrade left {}", few(&host.leftovers));
        warning("leftovers", what)
            .on(host)
            .hint("run `imgctl upgrade status` to see whether one is open")
    })
    .collect()
}

pub(super) fn controller(look: &Look<'_>) -> Vec<Finding> {
    let ours = look.hosts().filter(|host| host.local);
    ours.map(|host| {
        let what = "this command runs on it: if your connection to it breaks, the upgrade stops \
                    and must be resumed";
        note("controller-is-member", what).on(host).hint("run it in `tmux` or `screen`")
    })
    .collect()
}

const DAY: i64 = 86_400;
const SOON: i64 = 30 * DAY;
const TEN_YEARS: i64 = 3_650 * DAY;

pub(super) fn certificate_expiry(look: &Look<'_>) -> Vec<Finding> {
    let now = look.observation.at_ms / 1000;
    let renewal = look.document.choices.certificate_renewal;
    let mut found = Vec::new();
    for host in look.hosts() {
        let mut long = 0;
        for certificate in &host.certificates {
            let left = certificate.not_after.saturating_sub(now);
            let path = &certificate.path;
            if left <= 0 {
                let what = format!("{path} expired {} days ago", -left / DAY);
                found.push(
                    error("certificates", what)
                        .on(host)
                        .hint("renew it with `imgctl cert --renew`"),
                );
            } else if left < SOON && (certificate.authority || renewal == Renewal::False) {
                let what = format!("{path} expires in {} days", left / DAY);
                found.push(
                    warning("certificates", what)
                        .on(host)
                        .hint("renew it with `imgctl cert --renew`"),
                );
            } else if left > TEN_YEARS && !certificate.authority {
                long += 1;
            }
        }
        if long > 0 && look.is_kubeadm() {
            let what = match renewal {
                Renewal::True => format!(
                    "{long} certificates that are valid for more than ten years are replaced with \
                     those of kubeadm, which are valid for one year"
                ),
                _ => {
                    format!("{long} certificates are valid for more than ten years: they are kept")
                }
            };
            found.push(note("certificates", what).on(host));
        }
        let keyless = host
            .certificates
            .iter()
            .find(|certificate| certificate.authority && !certificate.key_is_here);
        if let Some(authority) = keyless
            && host.is_control_plane()
            && renewal != Renewal::False
        {
            let what =
                format!("the key of {} is missing: certificates cannot be renewed", authority.path);
            found.push(error("certificates", what).on(host).hint(
                "if the authority is external, pass --certificate-renewal false and renew them \
                 there",
            ));
        }
    }
    found
}
