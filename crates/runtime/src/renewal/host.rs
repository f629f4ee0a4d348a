//! What the timer of one host does: looks what is due, waits for its turn, renews, verifies, and puts
//! everything back where that fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::action::Line;
use crate::renewal::change::{Machine, Pending};
use crate::renewal::inventory::{self, Found};
use crate::renewal::record::{self, Record, State};
use crate::renewal::settings::Settings;
use crate::renewal::turn::{self, Turn};
use crate::renewal::{k3s, kubeadm, script};
use imgctl_base::error::{Error, Result};
use imgctl_host::agent::Agent;
use imgctl_kube::api::Api;
use imgctl_kube::lease::{Held, Times};

/// Everything that a run needs besides its settings.
pub struct World<'a> {
    /// This host.
    pub agent: &'a dyn Agent,
    /// Connects to the API of the cluster.
    pub api: &'a dyn Fn() -> Result<Arc<dyn Api>>,
    /// Returns the certificate that the server at a port of this host presents.
    pub presented: &'a dyn Fn(u16) -> Result<Vec<u8>>,
    /// How long to wait for a turn, and for the cluster to be well.
    pub patience: Duration,
    pub times: Times,
    /// The time, in seconds since 1970.
    pub now: i64,
    pub tell: &'a dyn Fn(&str),
}

/// How a run ended.
enum Ended {
    Well,
    Waiting(String),
}

/// Runs once, and returns the record, which is also on the host. A renewal that failed is an error in the
/// record, not of this function.
pub fn run(settings: &Settings, world: &World<'_>) -> Result<Record> {
    let machine = Machine {
        agent: world.agent,
        settings,
        key: format!("certificates-{}", Timestamp::now().as_millisecond()),
    };
    let path = settings.path(record::FILE);
    let known = machine.read(&path)?.and_then(|text| Record::read(text.as_bytes()));
    let mut record = known.unwrap_or_default();
    let ended = Run { machine: &machine, world }.all(&mut record);
    let at = time(Timestamp::now().as_second());
    record.checked.clone_from(&at);
    (record.state, record.reason) = match ended {
        Ok(Ended::Well) => (State::Well, String::new()),
        Ok(Ended::Waiting(why)) => (State::Waiting, why),
        Err(error) => {
            let message = error.chain().join(": ");
            record.failed(&at, message.clone());
            (State::Failed, message)
        }
    };
    let text = serde_json::to_string_pretty(&record)
        .map_err(|error| Error::failed("cannot write the record").caused_by(error))?;
    machine.write(&path, 0o644, &format!("{text}\n"))?;
    Ok(record)
}

fn time(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |at| at.to_string())
}

struct Run<'a> {
    machine: &'a Machine<'a>,
    world: &'a World<'a>,
}

impl Run<'_> {
    fn settings(&self) -> &Settings {
        self.machine.settings
    }

    fn found(&self) -> Result<Vec<Found>> {
        let settings = self.settings();
        let rootfs = format!("{}/rootfs", settings.root);
        let declared = settings.declared.as_deref();
        let line = inventory::line(self.world.agent, &settings.runtime, &rootfs, declared)?;
        inventory::parse(&self.machine.run("inventory", &line)?, &settings.address)
    }

    fn due<'f>(&self, found: &'f [Found]) -> (Vec<&'f Found>, Vec<String>) {
        match self.settings().runtime.as_str() {
            "kubeadm" => kubeadm::due(found, self.world.now),
            "k3s" => (k3s::due(found, self.world.now), Vec::new()),
            _ => (found.iter().filter(|one| one.is_due(self.world.now)).collect(), Vec::new()),
        }
    }

    fn all(&self, record: &mut Record) -> Result<Ended> {
        let found = self.found()?;
        let (due, problems) = self.due(&found);
        let mut pending = self.machine.pending()?;
        let has_work = !due.is_empty() || pending != Pending::default();
        if has_work {
            let names: Vec<&str> = due.iter().map(|one| one.file.as_str()).collect();
            (self.world.tell)(&format!("due: {}", names.join(", ")));
            let is_late = due.iter().any(|one| one.certificate.not_after <= self.world.now);
            match self.turn(is_late, &due, &mut pending)? {
                Turn::Later(why) => return Ok(Ended::Waiting(why)),
                Turn::Ours(held) => self.renew(&due, pending, held.as_ref(), record)?,
            }
        }
        match problems.into_iter().next() {
            Some(problem) => Err(Error::failed(problem)),
            None => Ok(Ended::Well),
        }
    }

    /// Waits until this host may change something.
    fn turn(&self, is_late: bool, due: &[&Found], pending: &mut Pending) -> Result<Turn> {
        let settings = self.settings();
        if settings.runtime == "script" {
            turn::slot(settings);
            return Ok(match self.script_health("before") {
                // What has expired is down already.
                Err(error) if !is_late => Turn::Later(error.chain().join(": ")),
                _ => Turn::Ours(None),
            });
        }
        if !settings.control_plane {
            return Ok(Turn::Ours(None));
        }
        // Nobody is served with a kubeconfig that has expired, and the API is not reached without one.
        for one in due.iter().filter(|one| one.certificate.not_after <= self.world.now) {
            if kubeadm::care(&one.file) == kubeadm::Care::Kubeconfig(None) {
                kubeadm::renew(self.machine, pending, &one.file)?;
            }
        }
        let asked = (self.world.api)().and_then(|api| {
            let turn = turn::lease(settings, &api, self.world.patience, self.world.times)?;
            let Turn::Ours(held) = turn else { return Ok(turn) };
            match self.until_well(&|| turn::others(&*api, &settings.address)) {
                Ok(()) => Ok(Turn::Ours(held)),
                Err(error) => Ok(Turn::Later(error.chain().join(": "))),
            }
        });
        match asked {
            Err(error) if is_late => {
                (self.world.tell)(&format!(
                    "no API server answers ({error}), and certificates here have expired: this host goes on \
                     without the Lease, because its control plane is down already"
                ));
                Ok(Turn::Ours(None))
            }
            Err(error) => Ok(Turn::Later(error.chain().join(": "))),
            Ok(turn) => Ok(turn),
        }
    }

    fn script_health(&self, name: &str) -> Result<()> {
        match &self.settings().health {
            Some(line) => self.machine.run_script(&format!("health-{name}"), line).map(|_| ()),
            None => Ok(()),
        }
    }

    fn until_well(&self, complaint: &dyn Fn() -> Result<Option<String>>) -> Result<()> {
        let end = Instant::now() + self.world.patience;
        loop {
            let found = match complaint() {
                Ok(None) => return Ok(()),
                Ok(Some(found)) => Error::failed(found),
                Err(error) => error,
            };
            if Instant::now() >= end {
                return Err(found);
            }
            std::thread::sleep(Duration::from_secs(2).min(self.world.patience / 10));
        }
    }

    /// Renews what is due. Where the host does not come well, all files are what they were.
    fn renew(
        &self,
        due: &[&Found],
        mut pending: Pending,
        held: Option<&Held>,
        record: &mut Record,
    ) -> Result<()> {
        let done = self.change(due, &mut pending, held).and_then(|()| self.verify(&pending));
        let Err(error) = done else {
            self.note_renewed(due, &pending, record)?;
            self.machine.settle()?;
            if self.settings().runtime != "k3s" {
                return Ok(());
            }
            // k3s decides itself what it renews.
            let found = self.found()?;
            return match self.due(&found).0.first() {
                Some(one) => Err(Error::failed(format!(
                    "k3s was restarted and has not renewed {}",
                    one.file
                ))),
                None => Ok(()),
            };
        };
        // Expired files are no better than these.
        if due.iter().any(|one| one.certificate.not_after <= self.world.now) {
            self.note_renewed(due, &pending, record)?;
            return Err(error);
        }
        let undone = self.machine.undo(&pending).and_then(|()| self.restarts(&pending));
        match undone {
            Ok(()) => {
                self.machine.settle()?;
                Err(error.context("the former certificates are back"))
            }
            Err(other) => {
                Err(error.context(format!("cannot put the former certificates back: {other}")))
            }
        }
    }

    /// Records the certificates that are new: of those that were due, and of those that a run which was
    /// killed had begun with.
    fn note_renewed(&self, due: &[&Found], pending: &Pending, record: &mut Record) -> Result<()> {
        let now = time(Timestamp::now().as_second());
        for one in self.found()? {
            let not_after = time(one.certificate.not_after);
            let former = due.iter().find(|former| former.file == one.file);
            let is_new = match former {
                Some(former) => former.certificate.der != one.certificate.der,
                None => pending.has(&one.file) && !record.has(&one.file, &not_after),
            };
            if is_new {
                record.renewed(&one.file, &now, &not_after);
                (self.world.tell)(&format!("renewed {}", one.file));
            }
        }
        Ok(())
    }

    fn change(&self, due: &[&Found], pending: &mut Pending, held: Option<&Held>) -> Result<()> {
        for one in due {
            if let Some(held) = held {
                held.check()?;
            }
            match self.settings().runtime.as_str() {
                "kubeadm" => kubeadm::renew(self.machine, pending, &one.file)?,
                "k3s" => {
                    if pending.restarts.is_empty() {
                        pending.restarts.push("k3s".to_owned());
                        self.machine.note(pending)?;
                    }
                }
                _ => {
                    script::renew(self.machine, pending, &one.file)?;
                }
            }
        }
        self.restarts(pending)
    }

    fn restarts(&self, pending: &Pending) -> Result<()> {
        for component in &pending.restarts {
            match self.settings().runtime.as_str() {
                "kubeadm" => kubeadm::restart(self.machine, component)?,
                "k3s" => k3s::restart(self.machine)?,
                _ => {
                    self.machine.run_script("changed", component)?;
                }
            }
        }
        Ok(())
    }

    /// Waits until the host is well with what changed.
    fn verify(&self, pending: &Pending) -> Result<()> {
        let settings = self.settings();
        match settings.runtime.as_str() {
            "script" => self.script_health("after"),
            "kubeadm" if settings.control_plane => {
                kubeadm::shown(self.machine, pending, self.world.presented, self.world.patience)?;
                self.api_well()
            }
            "k3s" if settings.control_plane => self.api_well(),
            "kubeadm" => self.until_well(&|| {
                let line = "exec 3<>/dev/tcp/127.0.0.1/10248; printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3; grep -qx ok <&3";
                let asked = self.machine.run("kubelet", &Line::query(line));
                Ok(asked.is_err().then(|| "the kubelet is not healthy".to_owned()))
            }),
            _ => self.until_well(&|| {
                let line = "systemctl is-active --quiet k3s-agent || systemctl is-active --quiet k3s";
                let asked = self.machine.run("k3s-agent", &Line::query(line));
                Ok(asked.is_err().then(|| "k3s is not active".to_owned()))
            }),
        }
    }

    fn api_well(&self) -> Result<()> {
        self.until_well(&|| {
            let api = (self.world.api)()?;
            api.raw("/readyz")?;
            turn::this(&*api, &self.settings().address)
        })
    }
}
