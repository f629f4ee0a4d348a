//! Operations of tools that have a daemon, which runs for one operation.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::{Outcome, Site, Suite};
use crate::common::{Ran, tool};

/// A daemon in the test's directory, asked until it answers; it ends with this value.
pub(super) struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // dockerd stops its containerd on SIGTERM only.
        let _ = Ran::new(tool("kill", [self.0.id().to_string()]));
        let _ = self.0.wait();
    }
}

impl Daemon {
    fn start(
        site: &Site,
        suite: Suite<'_>,
        words: &[&str],
        answers: &[&str],
    ) -> Result<Self, String> {
        let mut command = match suite {
            Suite::Newest(newest) => newest.command(&site.env, "", words),
            Suite::Installed => tool(words[0], &words[1..]),
        };
        let log = std::fs::File::create(site.path(&format!("{}.log", words[0]))).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let daemon = Self(command.spawn().map_err(|error| error.to_string())?);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match site.run(suite, answers) {
                Ok(_) => return Ok(daemon),
                Err(why) if Instant::now() > deadline => return Err(why),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

pub(super) fn containerd(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    let place = site.path(&format!("containerd-{}-{form}", suite.name()));
    let socket = format!("{place}/socket");
    let config = format!(
        "version = 2\nroot = \"{place}/root\"\nstate = \"{place}/state\"\n\
         disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = \"{socket}\"\n\
         [ttrpc]\naddress = \"{place}/ttrpc\"\n"
    );
    let config = site.env.write(format!("{place}/config.toml"), config);
    let ctr = ["ctr", "--address", &socket];
    let _daemon = Daemon::start(
        site,
        suite,
        &["containerd", "--config", config.to_str().unwrap()],
        &[&ctr[..], &["version"]].concat(),
    )?;
    let pull = ["image", "pull", "--plain-http"];
    site.run(suite, &[&ctr[..], &pull, &[&site.name(form)]].concat())?;
    let listed = site.run(suite, &[&ctr[..], &["snapshot", "ls"]].concat())?;
    if listed.contains("Committed") { Ok(()) } else { Err(listed) }
}

/// The dockerd of the test with one of its image stores, without a network; returns where it listens.
fn dockerd<'a>(site: &'a Site, suite: Suite<'_>, with_containerd: bool) -> Result<&'a str, String> {
    let known = &site.dockers[usize::from(with_containerd)];
    if let Some((_, host)) = known.get() {
        return Ok(host);
    }
    let place = site.path(&format!("docker-{with_containerd}"));
    std::fs::create_dir_all(&place).map_err(|error| error.to_string())?;
    let settings = format!("{{\"features\": {{\"containerd-snapshotter\": {with_containerd}}}}}");
    let settings = site.env.write(format!("{place}/daemon.json"), settings);
    let host = format!("unix://{place}/socket");
    let driver = if with_containerd { "native" } else { "vfs" };
    let at = |name: &str| format!("{place}/{name}");
    let (data, exec, pid) = (at("data"), at("exec"), at("pid"));
    let words = ["dockerd", "--config-file", settings.to_str().unwrap(), "--host", &host];
    let places = ["--data-root", &data, "--exec-root", &exec, "--pidfile", &pid];
    let network =
        ["--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver", driver];
    let words = [&words[..], &places, &network].concat();
    let daemon = Daemon::start(site, suite, &words, &["docker", "-H", &host, "version"])?;
    Ok(&known.get_or_init(|| (daemon, host)).1)
}

fn loads_runs_and_saves(
    site: &Site,
    suite: Suite<'_>,
    form: &str,
    with_containerd: bool,
) -> Outcome {
    let host = dockerd(site, suite, with_containerd)?;
    let docker = |words: &[&str]| site.run(suite, &[&["docker", "-H", host], words].concat());
    let name = format!("localhost/loaded:{form}");
    site.imgctl(&["tag", &site.name(form), &name])?;
    for format in ["docker-archive", "oci-archive"] {
        let archive = site.path(&format!("{form}-{format}-{with_containerd}.tar"));
        site.imgctl(&["save", "--format", format, "-o", &archive, &name])?;
        docker(&["load", "-i", &archive])?;
        let said = docker(&["run", "--rm", "--network", "none", &name])?;
        if said.trim() != "content" {
            return Err(format!("it said {said}"));
        }
    }
    let archive = site.path(&format!("docker-{form}-{with_containerd}.tar"));
    docker(&["save", "-o", &archive, &name])?;
    let back = format!("localhost/back:{form}");
    site.imgctl(&["load", "--tag", &back, "-i", &archive])?;
    let place = format!("back-{form}-{with_containerd}");
    site.same_tree(site.env.export(&back, &place).to_str().unwrap_or_default())
}

pub(super) fn docker(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    loads_runs_and_saves(site, suite, form, false)
}

pub(super) fn docker_containerd(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    loads_runs_and_saves(site, suite, form, true)
}

/// The BuildKit of dockerd builds on an image of ours.
pub(super) fn buildx(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    let host = dockerd(site, suite, true)?;
    let docker = |words: &[&str]| {
        let host = format!("DOCKER_HOST={host}");
        site.run(suite, &[&["env", &host, "docker"], words].concat())
    };
    let (name, archive) =
        (format!("localhost/base:{form}"), site.path(&format!("base-{form}.tar")));
    site.imgctl(&["tag", &site.name(form), &name])?;
    site.imgctl(&["save", "--format", "oci-archive", "-o", &archive, &name])?;
    docker(&["load", "-i", &archive])?;
    let text = format!("FROM {name}\nRUN [\"/bin/busybox\", \"touch\", \"/made\"]\n");
    let context = site.env.context(&format!("buildx-context-{form}"), &text, &[]);
    let (file, to) = (context.join("Kubefile"), site.path(&format!("buildx-{form}.tar")));
    let output = format!("--output=type=oci,dest={to}");
    let words = ["buildx", "build", "--network=none", "--provenance=false", &output, "-f"];
    let place = [file.to_str().unwrap(), context.to_str().unwrap()];
    docker(&[&words[..], &place].concat())?;
    let built = format!("localhost/buildx:{form}");
    site.imgctl(&["load", "--tag", &built, "-i", &to])?;
    site.imgctl(&["cat", &format!("{built}:/made")]).map(drop)
}
