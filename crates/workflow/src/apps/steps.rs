//! What is done with one application, step by step.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::apps::images::Pushed;
use crate::apps::prune::Prune;
use crate::apps::record::Installed;
use crate::apps::target::Target;
use crate::apps::wrapper::{self, Settings, Tool};
use crate::pipeline::image_commands::{self, expand};
use imgctl_base::error::{Context, Error, IoContext, Result};
use imgctl_base::fs::atomic::{self, Durability};
use imgctl_base::fs::directory;
use imgctl_base::image::Digest;
use imgctl_base::progress::{Reporter, Silent, Task, Unit};
use imgctl_host::agent::protocol::OutputLine;
use imgctl_kube::objects::ObjectName;
use imgctl_model::image::ClusterImage;
use imgctl_registry::Target as Tag;
use imgctl_registry::layout::Layout;
use imgctl_runtime::action::{Action, Line, Site};
use imgctl_transfer::transfer::arbiter::Arbiter;
use imgctl_transfer::transfer::mirror::{self, MirrorOptions};
use imgctl_transfer::transfer::mirror_place::Place;

/// Phases, which are part of the names of the files that commands record objects in.
pub(super) const COMMANDS: &str = "guest";
pub(super) const RECORD: &str = "record";

/// Unpacks and renders an application, and writes the wrappers of kubectl and helm.
pub(super) fn files(target: &Arc<Target>, image: &ClusterImage) -> Result<Action> {
    let request = target.checkout(image)?;
    let says = format!("unpack {} into {}", image.name, target.workdir(image));
    let inputs = request.id.clone();
    let (target, image) = (Arc::clone(target), image.clone());
    let name = format!("files-{}", image.mount_name);
    Ok(Action::depending_on(&name, says, &inputs, move |site| {
        let made = site.agent.checkout(&request, &|_| {})?;
        made.notes.iter().for_each(|note| site.say(note));
        wrappers(&target)?;
        // A push writes the settings that have images in them.
        if target.rewrite {
            return Ok(());
        }
        save_settings(&target, &image, None)
    }))
}

fn wrappers(target: &Target) -> Result<()> {
    let own = target.wrappers();
    atomic::make_private(Path::new(&own))?;
    atomic::make_private(Path::new(&target.objects()))?;
    for tool in Tool::ALL {
        let text = wrapper::script(tool, &target.program.to_string_lossy(), &own);
        let file = Path::new(&own).join(tool.name());
        atomic::write(&file, text.as_bytes(), 0o700, Durability::Atomic)?;
    }
    Ok(())
}

fn save_settings(target: &Target, image: &ClusterImage, images: Option<Pushed>) -> Result<()> {
    let settings = Settings { namespace: target.namespace.clone(), images };
    let text = serde_json::to_string(&settings)
        .map_err(|error| Error::failed("cannot write settings").caused_by(error))?;
    atomic::write_private(Path::new(&target.settings(image)), &text)
}

/// Pushes the embedded images.
pub(super) fn push(target: &Arc<Target>, image: &ClusterImage, registry: &str) -> Action {
    let says = format!("push the images embedded in {} to {registry}", image.name);
    let name = format!("push-{}", image.mount_name);
    let (target, image) = (Arc::clone(target), image.clone());
    Action::depending_on(&name, says, &image.digest.to_string(), move |site| {
        let Some(registry) = &target.registry else { return Ok(()) };
        let data = format!("{}/registry", target.directory(&image));
        let mut pushed = Pushed::new(&registry.name());
        if Path::new(&data).join("docker/registry/v2").is_dir() {
            let layout = Layout::open(Path::new(&data), false)?;
            // They are part of an image that the policy has admitted.
            let from = Place::Tree(layout, Arbiter::everything());
            let options = MirrorOptions { selection: mirror::everything(), images: mirror::IMAGES };
            let doing = || format!("cannot push to {}", registry.name());
            let planned = mirror::plan(&from, Some(&registry.place), &options).context(doing)?;
            let said = Said(site.output);
            let done = mirror::sync(&from, &registry.place, &planned, &options, &said);
            let done = done.context(doing)?;
            site.say(&format!(
                "{} of {} images pushed to {}, the others were there",
                done.len(),
                planned.len(),
                registry.name()
            ));
            for one in &planned {
                let tag = match &one.target {
                    Tag::Tag(tag) => Some(tag.as_str()),
                    Tag::Digest(_) => None,
                };
                pushed.add(&one.repository, tag, &one.digest);
            }
        } else {
            site.say("the image embeds no images");
        }
        if target.rewrite { save_settings(&target, &image, Some(pushed)) } else { Ok(()) }
    })
}

/// Reports notes of a transfer as output of a step.
struct Said<'a>(&'a (dyn Fn(OutputLine) + Sync));

impl Reporter for Said<'_> {
    fn start(&self, _title: &str, _unit: Unit, _total: Option<u64>) -> Box<dyn Task> {
        Box::new(Silent)
    }

    fn note(&self, message: &str) {
        (self.0)(OutputLine { text: message.to_owned(), error_stream: false });
    }

    fn output(&self, _line: &[u8], _error_stream: bool) {}
}

/// Runs the image's commands, each of which records the objects that it sends.
pub(super) fn commands(
    target: &Target,
    image: &ClusterImage,
    replaced: Option<&[String]>,
) -> Vec<Action> {
    let environment = target.environment(image);
    // The shell knows the rest of it.
    let mut known = environment.clone();
    known.remove("PATH");
    let known = known.into();
    let workdir = target.workdir(image);
    let objects = target.objects();
    let mut actions = Vec::new();
    for (number, line) in (1..).zip(image_commands::lines(image, replaced)) {
        let line = Line {
            line: expand(&line, &known),
            workdir: Some(workdir.clone()),
            environment: environment.clone().into(),
            ..Line::default()
        };
        let says = format!("cd {workdir} && {}", line.line);
        let inputs = format!("{environment:?}");
        let name = format!("{}-{number}", image.mount_name);
        let objects = objects.clone();
        actions.push(Action::depending_on(&name, says, &inputs, move |site| {
            let mut line = line.clone();
            let file = format!("{objects}/{}.jsonl", site.key);
            line.environment.insert(wrapper::OBJECTS.to_owned(), file);
            site.run(&line).map(|_| ())
        }));
    }
    actions
}

/// Records that an installation begins. Objects of the version before stay recorded.
pub(super) fn begin(target: &Arc<Target>, installed: &Installed) -> Action {
    let says = format!("record {} in the cluster as being installed", installed.image);
    let (target, installed) = (Arc::clone(target), installed.clone());
    let name = format!("begin-{}", installed.object());
    let inputs = format!("{} {}", installed.digest, installed.image);
    Action::depending_on(&name, says, &inputs, move |_| target.access.begin(&installed))
}

/// Marks the objects that the commands have sent as the application's, and records them.
pub(super) fn record(target: &Arc<Target>, image: &ClusterImage, installed: &Installed) -> Action {
    let says = format!("label the objects of {} and record them in the cluster", installed.image);
    let (target, installed) = (Arc::clone(target), installed.clone());
    let name = format!("objects-{}", installed.object());
    let commands = format!(".{COMMANDS}.{}-", image.mount_name);
    Action::depending_on(&name, says, &installed.digest.to_string(), move |site| {
        let sent = sent(&target, site, &commands)?;
        target.access.record(&installed, &sent, &|text| site.say(text))
    })
}

/// Returns the objects that the commands of this run have sent, in their order.
fn sent(target: &Target, site: &Site<'_>, commands: &str) -> Result<Vec<ObjectName>> {
    let run = site.key.rsplit_once(&format!(".{RECORD}.")).map_or("", |(run, _)| run);
    let start = format!("{run}{commands}");
    let mut files = Vec::new();
    for path in directory::list(Path::new(&target.objects()))? {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let rest = name.as_deref().and_then(|name| name.strip_prefix(&start)).map(str::to_owned);
        // `1.jsonl`, or `1.2.jsonl` for the second attempt.
        let number = rest.and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        files.extend(number.map(|number| (number, path)));
    }
    files.sort();
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for (_, path) in files {
        let objects = wrapper::read_objects(&path)?;
        all.extend(objects.into_iter().filter(|object| seen.insert(object.clone())));
    }
    Ok(all)
}

/// Removes what former versions of an application had and this one does not have.
pub(super) fn prune(target: &Arc<Target>, application: &str, prune: Prune) -> Action {
    let what = match prune {
        Prune::All => "all objects",
        _ => "objects",
    };
    let says = format!("remove {what} of former versions of {application}");
    let name = format!("prune-{}", application.rsplit('/').next().unwrap_or_default());
    let (target, application) = (Arc::clone(target), application.to_owned());
    Action::depending_on(&name, says, &application.clone(), move |site| {
        target.access.prune(&application, prune, &|text| site.say(text))
    })
}

/// Runs the image's own command for its removal.
pub(super) fn uninstall(target: &Target, image: &ClusterImage) -> Action {
    let workdir = target.workdir(image);
    let line = image_commands::uninstall_line(image, &workdir);
    let line = Line { line, environment: target.environment(image).into(), ..Line::default() };
    Action::command(&format!("{}-uninstall", image.mount_name), line)
}

/// Removes all objects of an application.
pub(super) fn remove(target: &Arc<Target>, installed: &Installed, prune: Prune) -> Action {
    let count = installed.all_objects().len();
    let says = format!("remove the {count} recorded objects of {}", installed.image);
    let name = format!("objects-{}", installed.object());
    let (target, installed) = (Arc::clone(target), installed.clone());
    Action::new(&name, says, move |site| {
        target.access.remove(&installed, prune, &|text| site.say(text))
    })
}

/// Removes the record of an application.
pub(super) fn forget(target: &Arc<Target>, installed: &Installed) -> Action {
    let says = format!("remove the record of {}", installed.image);
    let name = format!("forget-{}", installed.object());
    let (target, installed) = (Arc::clone(target), installed.clone());
    Action::new(&name, says, move |_| target.access.records.remove(&installed))
}

/// Removes what only a run needs, and the files of the version before.
pub(super) fn clean(target: &Arc<Target>, image: &ClusterImage, before: Option<&Digest>) -> Action {
    let directory = target.directory(image);
    let mut paths = vec![format!("{directory}/registry"), format!("{directory}/registry-layers")];
    paths.extend(before.map(|digest| target.directory_of(digest)));
    let says = format!("remove {}, and the lists of objects", paths.join(", "));
    let objects = target.objects();
    let start = format!(".{COMMANDS}.{}-", image.mount_name);
    Action::new(&format!("files-{}", image.mount_name), says, move |site| {
        site.agent.remove(&paths)?;
        for path in directory::list(Path::new(&objects))? {
            if path.to_string_lossy().contains(&start) {
                std::fs::remove_file(&path).path("remove", &path)?;
            }
        }
        Ok(())
    })
}

/// Removes the files of an application.
pub(super) fn remove_files(target: &Target, installed: &Installed) -> Action {
    let directory = target.directory_of(&installed.digest);
    let says = format!("remove {directory}");
    Action::new(&format!("files-{}", installed.object()), says, move |site| site.remove(&directory))
}
