//! The timer of a host: a unit of systemd that runs `imgctl agent renew` with this host's settings, from a
//! copy of imgctl that no other version replaces.

use std::time::Duration;

use crate::action::{Action, Line};
use crate::certificates::validity::Validity;
use crate::renewal::settings::{self, Settings};
use crate::{own_binary, units};
use imgctl_base::error::{Error, Result};
use imgctl_base::image::Digest;
use imgctl_base::quote::quote;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_model::context::{ClusterContext, Host};

/// Returns the name of the units.
pub(crate) fn unit(context: &ClusterContext) -> String {
    format!("imgctl-certificates-{}", context.name)
}

/// Returns what a host gets: a timer if the cluster renews its certificates, and none otherwise.
/// `validity`: of all certificates that imgctl makes for the cluster.
pub fn actions(
    context: &ClusterContext,
    host: &Host,
    runtime: &str,
    validity: Validity,
) -> Result<Vec<Action>> {
    if context.renews_certificates() {
        install(context, host, runtime, validity)
    } else {
        Ok(vec![removal(context)])
    }
}

fn install(
    context: &ClusterContext,
    host: &Host,
    runtime: &str,
    validity: Validity,
) -> Result<Vec<Action>> {
    let named = (validity != Validity::default()).then_some(validity.leaves);
    let settings = Settings::of(context, host, runtime, named)?;
    let (folder, unit) = (settings.folder(), unit(context));
    let program = format!("{folder}/imgctl");
    let variables = Settings::variables(context, host, runtime);
    let path = settings.path(settings::FILE);
    // The digest alone: a fingerprint is no place for secrets.
    let inputs = [text(&settings)?, variables.identity().into_bytes()].concat();
    let inputs = Digest::of(&inputs).to_string();
    let says = format!("write {path} (mode 0600)");
    let to = path.clone();
    let interval = Duration::from_secs(settings.interval);
    Ok(vec![
        Action::command(
            "renewal-folder",
            Line::repeatable(format!("mkdir -p -m 0700 {0}; chmod 0700 {0}", quote(&folder))),
        ),
        Action::command("renewal-program", own_binary(&program))
            .saying(format!("copy imgctl to {program}")),
        Action::depending_on("renewal-settings", says, &inputs, move |site| {
            let environment = variables.to_map();
            let content = text(&Settings { environment, ..settings.clone() })?;
            let file = FileToWrite { path: to.clone(), mode: 0o600, content };
            site.agent.write_file(&file).map(|_| ())
        }),
        Action::file(
            "renewal-service",
            format!("/etc/systemd/system/{unit}.service"),
            0o644,
            service(context, &program, &path),
        ),
        Action::file(
            "renewal-timer",
            format!("/etc/systemd/system/{unit}.timer"),
            0o644,
            timer(context, interval),
        ),
        Action::command("renewal-enable", units::enable_timer(&unit))
            .saying(format!("systemctl enable {unit}.timer; systemctl restart {unit}.timer")),
    ])
}

fn text(settings: &Settings) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(settings)
        .map_err(|error| Error::failed("cannot write the settings").caused_by(error))
}

/// Returns a shell condition that holds if the timer is active and enabled, and the files of its service exist.
pub fn is_there(context: &ClusterContext) -> String {
    let timer = quote(&format!("{}.timer", unit(context)));
    let directory = quote(&settings::directory(context));
    format!(
        "systemctl is-enabled -q {timer} && systemctl is-active -q {timer} && [ -d {directory} ]"
    )
}

/// Returns the action that removes the timer and its files, if they are there.
pub fn removal(context: &ClusterContext) -> Action {
    let unit = unit(context);
    let units = [format!("{unit}.timer"), format!("{unit}.service")];
    let line = units::removal(&[&units[0], &units[1]], &[&settings::directory(context)]);
    Action::command("renewal-timer", line)
        .saying(format!("remove the timer {unit}, if there is one"))
}

fn service(context: &ClusterContext, program: &str, settings: &str) -> String {
    format!(
        "# Written by imgctl.\n[Unit]\nDescription=Renewal of certificates of cluster {name}\n\
         Documentation=https://github.com/team/imgctl/blob/main/docs/certificates.md\n\
         Wants=network-online.target\nAfter=network-online.target\n\n[Service]\nType=oneshot\n\
         ExecStart=\"{program}\" agent renew \"{settings}\"\nUMask=0077\nNice=5\n\
         TimeoutStartSec=2h\nKillMode=process\n",
        name = context.name,
    )
}

/// A pause of minutes keeps hosts from asking for the Lease at the same time; it is not needed for order.
fn timer(context: &ClusterContext, interval: Duration) -> String {
    format!(
        "# Written by imgctl.\n[Unit]\nDescription=Renewal of certificates of cluster {}\n\n[Timer]\n\
         OnActiveSec={}\nOnUnitInactiveSec={}\nRandomizedDelaySec={}\nAccuracySec=1\n\n[Install]\n\
         WantedBy=timers.target\n",
        context.name,
        (interval / 10).as_secs().clamp(1, 300),
        interval.as_secs(),
        (interval / 10).as_secs().min(1800),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use imgctl_model::testing::context;

    #[test]
    fn the_unit_runs_this_hosts_settings() {
        let context = context(&["master"]);
        let actions = actions(&context, &context.hosts[0], "kubeadm", Validity::default()).unwrap();
        let names: Vec<&str> = actions.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names.last(), Some(&"renewal-enable"), "{names:?}");
        let text = service(&context, "/d/imgctl", "/d/settings.json");
        assert!(text.contains("ExecStart=\"/d/imgctl\" agent renew \"/d/settings.json\"\n"));
        assert!(timer(&context, Duration::from_secs(60)).contains("OnUnitInactiveSec=60\n"));
    }
}
