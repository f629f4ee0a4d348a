//! Clients of an etcd with TLS, which run on a host and count what failed. They read certificates and
//! authorities anew for each request, as `etcdctl` does.

use std::time::Duration;

use crate::cluster_etcd::support::wait_for;
use crate::common::testbed::Bed;

/// Arguments of etcdctl against the members on `hosts`.
fn arguments(bed: &Bed, hosts: &[usize]) -> String {
    let endpoints: Vec<String> =
        hosts.iter().map(|host| format!("https://{}:2379", bed.ip(*host))).collect();
    format!(
        "--cacert=/etc/etcd/pki/ca.crt --cert=/etc/etcd/pki/client.crt --key=/etc/etcd/pki/client.key \
         --dial-timeout=3s --command-timeout=10s --endpoints={}",
        endpoints.join(",")
    )
}

/// `etcdctl ARGUMENTS` on a host against its own member.
pub(super) fn etcdctl(bed: &Bed, host: usize, line: &str) -> String {
    let arguments = arguments(bed, &[host]);
    bed.says(host, &format!("ETCDCTL_API=3 etcdctl {arguments} {line}"))
}

/// A client that writes twice a second until it is stopped: each write is a process with a handshake.
pub(super) struct Client {
    name: &'static str,
    host: usize,
}

impl Client {
    /// Writes keys below `name` on host `host` to the members on `hosts`; an attempt that fails is
    /// repeated up to `retries` times before it counts as a failure.
    pub(super) fn start(
        bed: &Bed,
        host: usize,
        hosts: &[usize],
        name: &'static str,
        retries: u32,
    ) -> Self {
        let script = format!(
            "cat >/var/lib/{name}.sh <<'END'\n\
             export ETCDCTL_API=3\n\
             for ((n = 0; ; n++)); do\n\
             [ ! -e /var/lib/{name}.stop ] || exit 0\n\
             for ((t = 0; ; t++)); do\n\
             if said=$(etcdctl {arguments} put {name}/$n $n 2>&1); then echo \"ok $n\"; break; fi\n\
             if ((t >= {retries})); then echo \"failed $n $said\"; break; fi\n\
             sleep 0.2\n\
             done\n\
             sleep 0.5\n\
             done >>/var/lib/{name}.log\n\
             END\n\
             rm -f /var/lib/{name}.stop /var/lib/{name}.log\n\
             systemd-run -q --unit={name} bash /var/lib/{name}.sh",
            arguments = arguments(bed, hosts),
        );
        bed.says(host, &script);
        let client = Self { name, host };
        client.goes_on(bed);
        client
    }

    fn lines(&self, bed: &Bed, word: &str) -> Vec<String> {
        let line = format!("grep '^{word} ' /var/lib/{}.log || true", self.name);
        bed.says(self.host, &line).lines().map(str::to_owned).collect()
    }

    /// Waits for five more writes.
    #[track_caller]
    pub(super) fn goes_on(&self, bed: &Bed) {
        let seen = self.lines(bed, "ok").len();
        wait_for("writes", Duration::from_secs(180), || self.lines(bed, "ok").len() > seen + 5);
    }

    /// Ends the client: how much it wrote, and what failed. Everything it wrote must be there.
    pub(super) fn stop(self, bed: &Bed) -> (usize, Vec<String>) {
        let name = self.name;
        bed.says(self.host, &format!("touch /var/lib/{name}.stop"));
        wait_for("the end of the client", Duration::from_secs(240), || {
            !bed.exec(self.host, &format!("systemctl is-active -q {name}")).success()
        });
        let ok = self.lines(bed, "ok");
        let there = etcdctl(bed, self.host, &format!("get --prefix {name}/ --keys-only"));
        for line in &ok {
            let key = format!("{name}/{}", line.trim_start_matches("ok "));
            assert!(there.lines().any(|known| known == key), "{key} is lost");
        }
        (ok.len(), self.lines(bed, "failed"))
    }
}
