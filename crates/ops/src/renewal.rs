//! What the timer of certificates runs on a host.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::lock::{Lock, Mode};
use imgctl_host::agent::here::Here;
use imgctl_kube::lease::Times;
use imgctl_kube::{client, presented};
use imgctl_runtime::renewal::record::{Record, State};
use imgctl_runtime::renewal::settings::Settings;
use imgctl_runtime::renewal::{host, host::World};

/// How long a host waits for its turn, and for the cluster to be well: the next check comes anyway.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Maximum size of the settings, in bytes.
const LONGEST: u64 = 1 << 20;
const KUBECONFIGS: [&str; 2] = ["/etc/kubernetes/admin.conf", "/etc/rancher/k3s/k3s.yaml"];

/// Renews what is due on this host, as the settings in `file` say. Fails if something that is due could
/// not be renewed.
pub fn renew_here(file: &Path, tell: &dyn Fn(&str)) -> Result<Record> {
    let size = std::fs::metadata(file).path("look at", file)?.len();
    if size > LONGEST {
        return Err(Error::bad_content(format!("{} is too long", file.display())));
    }
    let text = std::fs::read(file).path("read", file)?;
    let settings: Settings = serde_json::from_slice(&text).map_err(|error| {
        Error::bad_content(format!("{} cannot be read", file.display())).caused_by(error)
    })?;
    let lock = file.with_file_name("lock");
    let Some(_held) = Lock::try_acquire(&lock, Mode::Exclusive)? else {
        return Err(Error::busy("another renewal runs on this host")
            .hint("see `journalctl -u 'imgctl-certificates-*'`"));
    };
    let address: IpAddr = settings.address.parse().unwrap_or(IpAddr::from([127, 0, 0, 1]));
    let agent = Here::new(&settings.address);
    let api = || {
        let found = KUBECONFIGS.iter().map(Path::new).find(|path| path.exists());
        let path = found.ok_or_else(|| {
            Error::not_found(format!("there is no {}", KUBECONFIGS.join(" and no ")))
        })?;
        client::connect_kubeconfig(path)
    };
    let shown = |port| presented::certificate(SocketAddr::new(address, port));
    let world = World {
        agent: &agent,
        api: &api,
        presented: &shown,
        patience: PATIENCE.min(Duration::from_secs(settings.interval * 2)),
        times: Times::default(),
        now: Timestamp::now().as_second(),
        tell,
    };
    let record = host::run(&settings, &world)?;
    if record.state == State::Failed {
        return Err(Error::failed(record.reason)
            .hint("docs/certificates.md says what to do; the next check tries again"));
    }
    if record.state == State::Waiting {
        tell(&format!("waiting: {}", record.reason));
    }
    Ok(record)
}
