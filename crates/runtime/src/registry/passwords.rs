//! Actions by which a host takes part in a change of the registry's password. docker-distribution knows
//! one password for a user, so that a second user has the new one while both are valid: registry hosts
//! accept both, clients go over to the second user, the first one gets the new password, clients return to
//! it, the second one goes.
//!
//! Must not know the order among hosts.

use std::time::Duration;

use crate::Action;
use crate::action::{Line, Site};
use crate::registry::hosts_toml::Login;
use crate::registry::{clients, lines, logins, peers};
use imgctl_base::error::Result;
use imgctl_base::secret::Secret;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_model::context::{ClusterContext, Host, RegistryAccess};
use imgctl_registry::server::hash_password;

/// Variable in which images name the directory of their registry's configuration, and its default.
const CONFIG: (&str, &str) = ("registryConfig", "/etc/registry");
/// Files of clients in which images' scripts put the login, and the unit that reads each only when it
/// starts.
const FILES: [(&str, Option<&str>); 5] = [
    ("/etc/containerd/config.toml", Some("containerd")),
    ("/etc/image-cri-shim.yaml", Some("image-cri-shim")),
    ("/etc/rancher/k3s/registries.yaml", Some("k3s k3s-agent")),
    ("/root/.docker/config.json", None),
    ("/var/lib/kubelet/config.json", None),
];
/// Maximum size of such a file, in bytes.
const LONGEST: u64 = 1 << 20;

/// The logins of one change.
#[derive(Clone)]
pub struct Logins {
    pub former: Login,
    /// The user for the time in which both passwords are valid, with the new one.
    pub between: Login,
    pub new: Login,
}

impl Logins {
    /// Returns the logins of a change from `former` to `new`, which have the same user.
    pub fn of(former: &RegistryAccess, new: &RegistryAccess) -> Self {
        let login = |user: &str, password: &Secret| Login {
            user: user.to_owned(),
            password: password.clone(),
        };
        Self {
            former: login(&former.username, &former.password),
            between: login(&format!("{}-next", new.username), &new.password),
            new: login(&new.username, &new.password),
        }
    }
}

/// Returns the action that makes the registry of a host accept exactly `users`, of which the last proves
/// it. `start` starts the registry, for one that reads its users only then.
pub fn accept(
    name: &str,
    context: &ClusterContext,
    host: &Host,
    access: &RegistryAccess,
    users: Vec<Login>,
    start: Option<Action>,
) -> Action {
    let names: Vec<&str> = users.iter().map(|login| login.user.as_str()).collect();
    let says = format!(
        "the registry accepts {}; it restarts if it does not read its users again by itself",
        names.join(" and ")
    );
    let inputs = names.join(" ");
    let variables = context.environment_on(host, context.rootfs());
    let directory = variables.get(CONFIG.0).map_or(CONFIG.1, String::as_str).trim_end_matches('/');
    let copy = format!("{directory}/registry_htpasswd");
    let paths = lines::users_files(context);
    let (unit, access) = (lines::unit_name(context), access.clone());
    Action::depending_on(name, says, &inputs, move |site| {
        let mut text = String::new();
        for login in &users {
            text.push_str(&format!("{}:{}\n", login.user, hash_password(&login.password)?));
        }
        for path in &paths {
            let content = text.clone().into_bytes();
            site.agent.write_file(&FileToWrite { path: path.clone(), mode: 0o600, content })?;
        }
        if site.agent.read_file(&copy, LONGEST)?.is_some() {
            replace(site, &copy, &text)?;
        }
        let Some(last) = users.last() else { return Ok(()) };
        let shown = RegistryAccess {
            username: last.user.clone(),
            password: last.password.clone(),
            ..access.clone()
        };
        let wait = lines::wait(&shown, &unit);
        let Some(start) = &start else { return site.run(&wait).map(drop) };
        if site.run(&Line { quiet: true, ..wait.clone() }).is_ok() {
            return Ok(());
        }
        site.say("the registry does not read its users again by itself: it is restarted");
        (start.does)(site)?;
        site.run(&wait).map(drop)
    })
}

/// Writes a file of the image's, whose owner and mode stay.
fn replace(site: &Site<'_>, path: &str, text: &str) -> Result<()> {
    let line =
        Line::script(&[include_str!("scripts/replace-file.sh")]).with([("IMGCTL_FILE", path)]);
    site.run(&Line { input: Some(text.to_owned()), quiet: true, ..line }).map(drop)
}

/// Returns the actions by which the clients on a host go over from the login `from` to `to`.
pub fn go_over(
    name: &str,
    context: &ClusterContext,
    host: &Host,
    access: &RegistryAccess,
    (from, to): (&Login, &Login),
) -> Vec<Action> {
    let containerd =
        clients::action(&format!("{name}-containerd"), context, access, host, Some(to.clone()));
    let says = format!(
        "user {} in {}; what reads them only when it starts is restarted",
        to.user,
        FILES.map(|(path, _)| path).join(", ")
    );
    let inputs = format!("{} {}", from.user, to.user);
    let from_user = from.user.clone();
    let (last, own) = (to.clone(), access.clone());
    let (from, to, access) = (from.clone(), to.clone(), access.clone());
    let files = Action::depending_on(&format!("{name}-files"), says, &inputs, move |site| {
        let reads_hosts = clients::reads_hosts(site.agent, &access)?;
        for (path, unit) in FILES {
            let Some(bytes) = site.agent.read_file(path, LONGEST)? else { continue };
            let text = String::from_utf8_lossy(&bytes).into_owned();
            match logins::replaced(&text, &from, &to) {
                Some(new) => replace(site, path, &new)?,
                // An earlier attempt wrote it, and perhaps did not restart anything.
                None if logins::has(&text, &to) => {}
                None => continue,
            }
            site.say(&format!("{path} has the user {}", to.user));
            // containerd that reads hosts.toml for every pull does not miss its own configuration.
            let Some(unit) = unit.filter(|unit| *unit != "containerd" || !reads_hosts) else {
                continue;
            };
            let restart = Line::script(&[include_str!("scripts/restart-clients.sh")]);
            site.run(&restart.with([("IMGCTL_UNITS", unit)]))?;
        }
        Ok(())
    });
    let says = format!(
        "wait until pulls have ended that began with the user {}, for at most {} minutes",
        from_user,
        PULLS.as_secs() / 60
    );
    let limit = PULLS.as_secs().to_string();
    let pulls = Action::new(&format!("{name}-pulls"), says, move |site| {
        let pulls = Line::script(&[include_str!("scripts/await-pulls.sh")]);
        site.run(&pulls.with([("IMGCTL_LIMIT", &limit)])).map(drop)
    });
    let mut actions = Vec::new();
    if context.shares_images() {
        actions.push(peers::start(
            &format!("{name}-peers"),
            context,
            &own,
            host,
            Some(&last),
            clients::content_root,
        ));
    }
    actions.extend([containerd, files, pulls.within(PULLS + Duration::from_secs(120))]);
    actions
}

/// Time to wait for pulls in progress.
const PULLS: Duration = Duration::from_secs(15 * 60);
