//! Applications on clusters of hosts: their commands run on the first control plane. There, `kubectl` and
//! `helm` are the wrappers of [`crate::apps::wrapper`] while the commands run, and record what they send;
//! they rewrite nothing. The files for that are removed when the objects are recorded in the cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::apps::objects::{ObjectAccess, removals, whole_removal};
use crate::apps::prune::Prune;
use crate::apps::record::{Installed, Records, State, application};
use crate::apps::wrapper::{self, Settings, Tool};
use crate::apps::{sudo, unseen};
use crate::pipeline::execution_context::{Applications, Commands};
use crate::pipeline::image_commands::{self, Recording};
use crate::pipeline::step::{Phase, Plan};
use imgctl_base::error::{Error, Result};
use imgctl_base::quote::quote;
use imgctl_host::agent::protocol::FileToWrite;
use imgctl_kube::objects::ObjectName;
use imgctl_model::context::{ClusterContext, Host};
use imgctl_model::image::ClusterImage;
use imgctl_runtime::{Action, HostPool, nodes, own_binary};

/// Namespace of objects that name none: that of the administrator's kubeconfig.
const NAMESPACE: &str = "default";
/// Maximum size of the list of objects that commands have sent, in bytes.
const LONGEST_LIST: u64 = 16 << 20;
/// Maximum size of a script that removes an application, in bytes.
const LONGEST_SCRIPT: u64 = 16 << 20;

/// The applications of one cluster of hosts.
pub struct Managed {
    /// What is removed where [`Applications`] is asked to remove objects.
    pub prune: Prune,
    pub pool: Arc<dyn HostPool + Send>,
}

impl Managed {
    /// Returns the record of an application after its installation, and the host of its commands;
    /// `None` for an image that cannot be recorded because its name is no reference.
    fn of<'a>(context: &'a ClusterContext, image: &ClusterImage) -> Option<(&'a Host, Installed)> {
        let installed = Installed {
            application: application(&image.name).ok()?,
            image: image.name.clone(),
            digest: image.digest.clone(),
            state: State::Installing,
            time: String::new(),
            registry: None,
            objects: Vec::new(),
            former: Vec::new(),
            releases: BTreeSet::new(),
        };
        Some((context.first()?, installed))
    }

    /// Returns what the cluster has recorded of an application.
    fn known(&self, context: &ClusterContext, application: &str) -> Result<Option<Installed>> {
        let api = Arc::new(nodes::any_api(context, &self.pool));
        Ok(Records::new(api).all()?.remove(application))
    }

    /// Says which objects a removal of former ones may concern; returns whether there are any.
    fn tells(
        &self,
        context: &ClusterContext,
        installed: &Installed,
        next: Option<&str>,
        plan: &mut Plan,
    ) -> Result<bool> {
        let application = &installed.application;
        let known = self.known(context, application)?;
        let objects: Vec<ObjectName> = match (&known, next) {
            (Some(known), Some(_)) => known.all_objects(),
            (Some(known), None) => known.former.clone(),
            (None, _) => Vec::new(),
        };
        if objects.is_empty() {
            let what = if known.is_some() { "no objects of former versions" } else { "no objects" };
            plan.notes.push(format!(
                "the cluster has recorded {what} of {application}: nothing is removed"
            ));
            return Ok(false);
        }
        plan.destroys = true;
        plan.notes.push(removals(application, &objects, self.prune, next));
        Ok(true)
    }

    fn pruning(&self, installed: &Installed) -> Action {
        let application = installed.application.clone();
        let prune = self.prune;
        let what = if prune == Prune::All { "all objects" } else { "objects" };
        let says = format!("remove {what} of former versions of {application}");
        let name = format!("prune-{}", installed.object());
        Action::new(&name, says, move |site| {
            let access = access(site.context, site.pool)?;
            access.prune(&application, prune, &|text| site.say(text))
        })
    }

    /// Returns whether the image has a command for its removal: its label, or a script on the host.
    fn has_own(&self, context: &ClusterContext, image: &ClusterImage, host: &Host) -> Result<bool> {
        if image_commands::uninstall_label(image).is_some() {
            return Ok(true);
        }
        let agent = self.pool.agent(host)?;
        let workdir = image_commands::workdir(context, image);
        for script in image_commands::UNINSTALL_SCRIPTS {
            if agent.read_file(&format!("{workdir}/{script}"), LONGEST_SCRIPT)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Applications for Managed {
    fn install(
        &self,
        context: &ClusterContext,
        image: &ClusterImage,
        commands: &Commands<'_>,
        prunes: bool,
        plan: &mut Plan,
    ) -> Result<()> {
        let recording = Recording::of(context, image);
        let Some((first, installed)) = Self::of(context, image) else {
            plan.notes.push(format!(
                "{} is not recorded, because its name is not an image reference: --prune and \
                 uninstall leave its objects",
                image.name
            ));
            plan.push(commands(None));
            return Ok(());
        };
        let commands = commands(Some(&recording));
        if commands.lanes.is_empty() {
            return Ok(());
        }
        plan.notes.extend(unrecorded(&installed.image, &commands));
        let prunes = prunes && self.tells(context, &installed, Some(&image.name), plan)?;
        let begin = {
            let installed = installed.clone();
            let says = format!("record {} in the cluster as being installed", installed.image);
            let name = format!("begin-{}", installed.object());
            let inputs = format!("{} {}", installed.digest, installed.image);
            Action::depending_on(&name, says, &inputs, move |site| {
                access(site.context, site.pool)?.begin(&installed)
            })
        };
        plan.push(Phase::on("prepare", first, [files(&recording), begin]));
        plan.push(commands);
        let mut actions = vec![record(&recording, &installed)];
        if prunes {
            actions.push(self.pruning(&installed));
        }
        let directory = recording.directory.clone();
        let says = format!("remove {directory}");
        actions.push(Action::new("recording", says, move |site| site.remove(&directory)));
        plan.push(Phase::on("objects", first, actions));
        Ok(())
    }

    fn prune(&self, context: &ClusterContext, image: &ClusterImage, plan: &mut Plan) -> Result<()> {
        if let Some((first, installed)) = Self::of(context, image)
            && self.tells(context, &installed, None, plan)?
        {
            plan.push(Phase::on("objects", first, [self.pruning(&installed)]));
        }
        Ok(())
    }

    fn uninstall(
        &self,
        context: &ClusterContext,
        image: &ClusterImage,
        host: &Host,
        plan: &mut Plan,
    ) -> Result<Vec<Action>> {
        let own = image_commands::uninstall(context, image, host);
        let Some((_, installed)) = Self::of(context, image) else { return Ok(own) };
        let known = match self.known(context, &installed.application) {
            Ok(known) => known,
            Err(error) => {
                plan.notes.push(format!(
                    "the recorded objects of {} stay: {}",
                    image.name,
                    error.chain().join(": ")
                ));
                None
            }
        };
        // Another version has taken its place.
        let Some(known) = known.filter(|known| known.digest == image.digest) else {
            return Ok(own);
        };
        let forget = {
            let known = known.clone();
            let says = format!("remove the record of {}", known.image);
            let name = format!("forget-{}", known.object());
            Action::new(&name, says, move |site| {
                access(site.context, site.pool)?.records.remove(&known)
            })
        };
        if self.has_own(context, image, host)? {
            return Ok(own.into_iter().chain([forget]).collect());
        }
        plan.notes.extend(whole_removal(&known, self.prune));
        let says =
            format!("remove the {} recorded objects of {}", known.all_objects().len(), known.image);
        let name = format!("objects-{}", known.object());
        let prune = self.prune;
        let objects = Action::new(&name, says, move |site| {
            let access = access(site.context, site.pool)?;
            access.remove(&known, prune, &|text| site.say(text))
        });
        Ok(vec![objects, image_commands::remove(context, &image.mount_name), forget])
    }
}

/// Describes the calls in an image's commands that bypass the wrappers.
fn unrecorded(image: &str, commands: &Phase) -> Option<String> {
    let steps = commands.lanes.iter().flat_map(|lane| &lane.steps);
    let calls: BTreeSet<String> =
        steps.flat_map(|step| &step.says).flat_map(|line| unseen::calls(line)).collect();
    let calls: Vec<String> = calls.iter().map(|call| format!("`{call}`")).collect();
    (!calls.is_empty()).then(|| {
        format!(
            "{image}: --prune and uninstall leave the objects of {}, because its calls are not recorded",
            calls.join(", ")
        )
    })
}

fn access(context: &ClusterContext, pool: &dyn HostPool) -> Result<ObjectAccess> {
    Ok(ObjectAccess::new(nodes::api(context, pool)?))
}

/// Writes what records the objects of the commands that follow, and forgets what earlier ones sent.
fn files(recording: &Recording) -> Action {
    let directory = recording.directory.clone();
    let says = format!(
        "write wrappers into {directory}, through which kubectl and helm of the commands record what \
         they send"
    );
    let (program, objects) = (format!("{directory}/imgctl"), recording.objects());
    let name = "recording";
    Action::depending_on(name, says, &recording.prelude(), move |site| {
        site.remove(&objects)?;
        site.run(&own_binary(&program))?;
        let bin = format!("{directory}/bin");
        let mut written = vec![
            (format!("{directory}/begin"), 0o600, begin(&directory)),
            (format!("{directory}/settings.json"), 0o600, settings()?),
        ];
        for tool in Tool::ALL.into_iter().chain(Tool::CARRIERS) {
            let below = if tool == Tool::PostRenderer { "bin" } else { "wrappers" };
            let text = wrapper::script(tool, &program, &bin);
            written.push((format!("{directory}/{below}/{}", tool.name()), 0o700, text));
        }
        written.push((format!("{directory}/wrappers/sudo"), 0o700, sudo(&directory)));
        for (path, mode, text) in written {
            let file = FileToWrite { path, mode, content: text.into_bytes() };
            site.agent.write_file(&file)?;
        }
        Ok(())
    })
}

fn settings() -> Result<String> {
    let settings = Settings { namespace: NAMESPACE.to_owned(), images: None };
    serde_json::to_string(&settings)
        .map_err(|error| Error::failed("cannot write settings").caused_by(error))
}

/// Returns the variables by which wrappers find their files.
fn variables(directory: &str) -> [(&'static str, String); 2] {
    [
        (wrapper::SETTINGS, format!("{directory}/settings.json")),
        (wrapper::OBJECTS, format!("{directory}/objects.jsonl")),
    ]
}

fn sudo(directory: &str) -> String {
    let variables = variables(directory);
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    sudo::script(&format!("{directory}/bin"), &variables)
}

/// Returns the file that a command's shell reads first. Programs that the host does not have yet must
/// not seem to be there: images ask for them before they install them.
fn begin(directory: &str) -> String {
    let own = quote(directory);
    let assignments =
        variables(directory).map(|(name, value)| format!("{name}={}", quote(&value))).join(" ");
    let tools = [Tool::Kubectl, Tool::Helm].into_iter().chain(Tool::CARRIERS).map(Tool::name);
    let tools: Vec<&str> = tools.chain(["sudo"]).collect();
    format!(
        "export {assignments}\n\
         mkdir -p {own}/bin\n\
         for imgctl_tool in {tools}; do\n\
         if type -P \"$imgctl_tool\" >/dev/null; then ln -sf {own}/wrappers/\"$imgctl_tool\" {own}/bin/\n\
         else rm -f {own}/bin/\"$imgctl_tool\"; fi\n\
         done\n\
         unset imgctl_tool\n\
         export PATH={own}/bin:\"$PATH\"\n",
        tools = tools.join(" "),
    )
}

/// Marks the objects that the commands have sent as the application's, and records them.
fn record(recording: &Recording, installed: &Installed) -> Action {
    let says = format!("label the objects of {} and record them in the cluster", installed.image);
    let (list, installed) = (recording.objects(), installed.clone());
    let name = format!("objects-{}", installed.object());
    Action::depending_on(&name, says, &installed.digest.to_string(), move |site| {
        let text = site.agent.read_file(&list, LONGEST_LIST)?.unwrap_or_default();
        let sent = wrapper::objects(&String::from_utf8_lossy(&text));
        access(site.context, site.pool)?.record(&installed, &sent, &|text| site.say(text))
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Runs a line as commands of applications run, on a host with these programs.
    fn ran(programs: &[&str], line: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("it's/own");
        std::fs::create_dir_all(own.join("wrappers")).unwrap();
        let host = directory.path().join("host");
        std::fs::create_dir(&host).unwrap();
        let write = |path: &std::path::Path, text: &str| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::write(path, text).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        };
        for tool in ["kubectl", "helm", "k3s", "k0s"] {
            write(&own.join("wrappers").join(tool), &format!("#!/bin/sh\necho wrapped {tool}\n"));
        }
        for program in programs {
            write(&host.join(program), "#!/bin/sh\necho real\n");
        }
        for tool in ["mkdir", "ln", "rm"] {
            std::os::unix::fs::symlink(format!("/bin/{tool}"), host.join(tool)).unwrap();
        }
        let own = own.to_str().unwrap();
        std::fs::write(format!("{own}/begin"), begin(own)).unwrap();
        let recording = Recording { directory: own.to_owned() };
        let made = Command::new("/bin/bash")
            .args(["-e", "-c", &format!("{}; {line}", recording.prelude())])
            .env_clear()
            .env("PATH", &host)
            .output()
            .unwrap();
        String::from_utf8(made.stdout).unwrap() + &String::from_utf8(made.stderr).unwrap()
    }

    #[test]
    fn programs_of_the_host_are_wrapped_and_others_are_missing() {
        let line = "kubectl x; command -v helm || echo none; echo \"${IMGCTL_OBJECTS##*/}\"";
        assert_eq!(ran(&["kubectl"], line), "wrapped kubectl\nnone\nobjects.jsonl\n");
        assert_eq!(ran(&["kubectl", "helm"], "helm x"), "wrapped helm\n");
        assert_eq!(
            ran(&["k3s"], "k3s kubectl; command -v k0s || echo none"),
            "wrapped k3s\nnone\n"
        );
        // The first command of an image installs what the next one uses.
        let line = "command -v kubectl || echo none";
        assert_eq!(ran(&[], line), "none\n");
        // Without the file, a command runs as it is.
        let nowhere = Recording { directory: "/nowhere".to_owned() };
        let made = Command::new("/bin/bash")
            .args(["-e", "-c", &format!("{}; echo ran", nowhere.prelude())])
            .output()
            .unwrap();
        assert_eq!(made.stdout, b"ran\n");
    }
}
