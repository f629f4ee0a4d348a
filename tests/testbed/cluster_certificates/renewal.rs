//! Certificates of ten minutes, of which 150 seconds are left, are renewed by the timers of the hosts under
//! clients that never see an error; a host waits while another one is not well; what fails is put back.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster_certificates::client::{Client, etcdctl};
use crate::cluster_etcd::support::{assert_untouched, build_etcd, run, surface, wait_for};
use crate::common::testbed::Bed;
use crate::common::{Ran, needs_root, tool};

const UNIT: &str = "imgctl-certificates-default";
const RECORD: &str = "/var/lib/sealos/data/default/certificates/status.json";

/// Seconds that are left of the certificates that clients see renewed: twice what the longest pause between two
/// checks and the wait for a slot take.
const LEFT: u64 = 150;

#[test]
fn short_certificates_are_renewed_under_clients() {
    if !needs_root() {
        return;
    }
    let bed = Bed::up(3).with_agent();
    if !build_etcd(&bed) {
        return;
    }
    let before = surface(&bed, 1);
    let masters = bed.ips(1..=3);
    let short = ["-e", "etcdTLS=true", "--certificate-validity", "10m"];
    run(&bed, &[&["run", "etcd:v1", "--masters", &masters][..], &short].concat()).ok();
    assert!(etcdctl(&bed, 1, "member list").contains("https://"));
    let plain = format!("ETCDCTL_API=3 etcdctl --endpoints=http://{}:2379 get x", bed.ip(1));
    assert!(!bed.exec(1, &plain).success(), "without TLS");
    listed(&bed);
    others_first(&bed);

    // Each client talks to one member, without a second attempt.
    let began = Instant::now();
    let clients: Vec<Client> = [(1, "one"), (2, "two"), (3, "three")]
        .map(|(host, name)| Client::start(&bed, host, &[host], name, 0))
        .into();
    for host in 1..=3 {
        age(&bed, host, LEFT);
    }
    wait_for("renewals", Duration::from_secs(300), || (1..=3).all(|host| renewed(&bed, host) >= 2));
    println!("renewed {:?} after they were given", began.elapsed());
    put_back(&bed);
    // Beyond the end of the former ones.
    std::thread::sleep(Duration::from_secs(LEFT + 10).saturating_sub(began.elapsed()));
    for client in clients {
        client.goes_on(&bed);
        let (written, failed) = client.stop(&bed);
        println!("{written} writes");
        assert!(failed.is_empty(), "{failed:?}");
    }
    let status = run(&bed, &["status", "--json"]).ok().json();
    for host in status["hosts"].as_array().unwrap() {
        assert_eq!(host["renewal"]["state"], "well", "{host:#}");
        assert!(host["renewal"]["renewed"].as_array().unwrap().len() >= 2, "{host:#}");
    }
    let shown = run(&bed, &["status"]).ok();
    assert!(shown.stdout().contains("renewed 2 certificates at"), "{}", shown.report());

    // The timer goes, comes back, and goes with the cluster.
    run(&bed, &["cert", "--timer", "off"]).ok();
    assert!(!bed.exec(2, &format!("systemctl cat {UNIT}.timer")).success());
    let file = std::fs::read_to_string(bed.env.path("clusters/default/Clusterfile")).unwrap();
    assert!(file.contains("renew: false"), "{file}");
    run(&bed, &["cert", "--timer", "on"]).ok();
    bed.says(2, &format!("systemctl is-active {UNIT}.timer"));
    run(&bed, &["reset", "--yes"]).ok();
    bed.says(
        1,
        "rm -f /var/lib/*.sh /var/lib/*.log /var/lib/*.stop; rm -rf /run/systemd/transient/*",
    );
    assert_untouched(&bed, 1, &before);
}

/// `cert` lists what is on hosts, with the authority that the controller keeps.
fn listed(bed: &Bed) {
    let all = run(bed, &["cert", "--json"]).ok().json();
    let of = |host: &str| -> Vec<String> {
        let all = all["certificates"].as_array().unwrap().iter();
        all.filter(|one| one["host"].as_str().unwrap().starts_with(host))
            .map(|one| one["file"].as_str().unwrap().to_owned())
            .collect()
    };
    for host in 1..=3 {
        let files =
            ["ca.crt", "server.crt", "client.crt"].map(|name| format!("/etc/etcd/pki/{name}"));
        assert_eq!(of(&bed.ip(host)), files);
    }
}

/// Signs the certificates of a host again as if they had been issued long ago: `left` of ten minutes are
/// left.
fn age(bed: &Bed, host: usize, left: u64) {
    let pki = bed.env.path("clusters/default/pki/declared");
    for name in ["server", "client"] {
        let work = tempfile::tempdir().unwrap();
        let at = |file: &str| work.path().join(file).to_str().unwrap().to_owned();
        std::fs::write(at("key"), bed.says(host, &format!("cat /etc/etcd/pki/{name}.key")))
            .unwrap();
        std::fs::write(at("old"), bed.says(host, &format!("cat /etc/etcd/pki/{name}.crt")))
            .unwrap();
        let script = r#"cd "$0"
: >index; echo 1000 >serial
subject=$(openssl x509 -in old -noout -subject -nameopt compat | sed 's/^subject=//')
names=$(openssl x509 -in old -noout -ext subjectAltName 2>/dev/null | sed -n '2s/IP Address:/IP:/g; 2s/^ *//p')
usage=$(openssl x509 -in old -noout -ext extendedKeyUsage | sed -n '2s/TLS Web Server Authentication/serverAuth/; 2s/TLS Web Client Authentication/clientAuth/; 2s/^ *//p')
cat >conf <<END
[ca]
default_ca = own
[own]
database = index
serial = serial
new_certs_dir = .
default_md = sha256
policy = any
unique_subject = no
x509_extensions = leaf
[any]
commonName = supplied
[req]
distinguished_name = name
[name]
[leaf]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature,keyEncipherment
extendedKeyUsage = $usage
authorityKeyIdentifier = keyid
${names:+subjectAltName = $names}
END
openssl req -new -config conf -key key -subj "$subject" -out csr
openssl ca -batch -notext -config conf -cert "$1/etcd-ca.crt" -keyfile "$1/etcd-ca.key" -in csr -out new \
  -startdate "$(date -u -d "$(($2 - 600)) seconds" +%y%m%d%H%M%SZ)" -enddate "$(date -u -d "$2 seconds" +%y%m%d%H%M%SZ)""#;
        let left = left.to_string();
        let arguments = [
            "-ec",
            script,
            work.path().to_str().unwrap(),
            Path::new(&pki).to_str().unwrap(),
            &left,
        ];
        Ran::new(tool("bash", arguments)).ok();
        let new = std::fs::read_to_string(at("new")).unwrap();
        // In one piece, as imgctl does it.
        bed.says(
            host,
            &format!(
                "cat >/etc/etcd/pki/{name}.crt.new <<'END'\n{new}END\n\
                 mv /etc/etcd/pki/{name}.crt.new /etc/etcd/pki/{name}.crt"
            ),
        );
    }
}

fn record(bed: &Bed, host: usize) -> Value {
    let ran = bed.exec(host, &format!("cat {RECORD}"));
    if ran.success() { ran.json() } else { Value::Null }
}

fn renewed(bed: &Bed, host: usize) -> usize {
    record(bed, host)["renewed"].as_array().map_or(0, Vec::len)
}

/// Has the timer's service run once.
fn check_now(bed: &Bed, host: usize) -> bool {
    bed.exec(host, &format!("systemctl start {UNIT}.service")).success()
}

/// While another member is down, a host waits, and says so.
fn others_first(bed: &Bed) {
    for host in 1..=3 {
        bed.says(host, &format!("systemctl stop {UNIT}.timer"));
    }
    let file = "/etc/etcd/pki/server.crt";
    age(bed, 1, 190);
    let old = bed.says(1, &format!("cat {file}"));
    bed.says(3, "systemctl stop etcd");
    assert!(check_now(bed, 1), "to wait is no failure");
    let record = record(bed, 1);
    assert_eq!(record["state"], "waiting", "{record:#}");
    assert_eq!(bed.says(1, &format!("cat {file}")), old);
    let status = run(bed, &["status"]).fails(10);
    assert!(status.stdout().contains("the renewal of certificates waits"), "{}", status.report());
    bed.says(3, "systemctl start etcd");
    assert!(check_now(bed, 1));
    assert_ne!(bed.says(1, &format!("cat {file}")), old);
    for host in 1..=3 {
        // What was renewed now is not what the clients see renewed.
        bed.says(host, &format!("rm -f {RECORD}; systemctl start {UNIT}.timer"));
    }
}

/// A host that does not come well with its new certificates gets the former ones back.
fn put_back(bed: &Bed) {
    bed.says(2, &format!("systemctl stop {UNIT}.timer"));
    age(bed, 2, 190);
    let old = bed.says(2, "cat /etc/etcd/pki/*.crt | sha256sum");
    let health = "/var/lib/sealos/data/default/rootfs/scripts/health.sh";
    // It is well before and not afterwards.
    bed.says(
        2,
        &format!(
            "cp -p {health} {health}.good; \
             sed -i '2i if [ -e /run/certificates-second ]; then exit 1; fi; : >/run/certificates-second' {health}"
        ),
    );
    assert!(!check_now(bed, 2));
    let failed = record(bed, 2);
    assert_eq!(failed["state"], "failed", "{failed:#}");
    assert!(failed["reason"].as_str().unwrap().contains("the former certificates are back"));
    assert_eq!(bed.says(2, "cat /etc/etcd/pki/*.crt | sha256sum"), old);
    let status = run(bed, &["status"]);
    assert!(status.stdout().contains("certificates were not renewed at"), "{}", status.report());
    bed.says(2, &format!("mv {health}.good {health}; rm /run/certificates-second"));
    assert!(check_now(bed, 2));
    assert_eq!(record(bed, 2)["state"], "well");
    let stopped = run(bed, &["status"]).fails(10);
    assert!(stopped.stdout().contains("the timer that renews"), "{}", stopped.report());
    bed.says(2, &format!("systemctl start {UNIT}.timer"));
    assert_ne!(bed.says(2, "cat /etc/etcd/pki/*.crt | sha256sum"), old);
}
