//! Variables against the settings that images describe: asked for what is required, checked before anything is
//! changed. Must not change a cluster.

use std::collections::{BTreeMap, BTreeSet};

use crate::front_end::FrontEnd;
use imgctl_base::error::{Error, Result};
use imgctl_base::quote::quote;
use imgctl_base::settings::{Setting, Settings};
use imgctl_base::suggest::closest;
use imgctl_model::context::ClusterContext;
use imgctl_model::environment::Origin;
use imgctl_model::image::ClusterImage;
use imgctl_upgrade::request::RefusedSetting;

/// Variables by name.
type Variables = BTreeMap<String, String>;

/// Asks for the required settings that have no value on some host. Returns the answers; without anybody who can
/// answer, none.
pub(crate) fn ask(context: &ClusterContext, front: &dyn FrontEnd) -> Result<Variables> {
    let mut missing: BTreeMap<String, Setting> = BTreeMap::new();
    each(context, &mut |_, settings, variables| {
        for setting in settings.missing(variables) {
            missing.entry(setting.name.clone()).or_insert(setting);
        }
        Ok(())
    })?;
    let mut answers = Variables::new();
    for (name, setting) in missing {
        let what = match (&*setting.kind, &*setting.description) {
            ("", "") => name.clone(),
            (kind, "") => format!("{name} ({kind})"),
            ("", text) => format!("{name}: {text}"),
            (kind, text) => format!("{name} ({kind}): {text}"),
        };
        let Some(answer) = front.answer(&format!("{what}: "), setting.is_secret)? else { break };
        answers.insert(name, answer);
    }
    Ok(answers)
}

/// Fails if the variables of a host do not fit what its images describe.
pub(crate) fn check(context: &ClusterContext) -> Result<()> {
    each(context, &mut |image, settings, variables| fits(image, settings, variables))
}

/// The same for images whose variables are those of this machine alone.
pub(crate) fn check_images(images: &[ClusterImage], given: &Variables) -> Result<()> {
    for image in images {
        let mut variables = image.environment.clone();
        variables.extend(given.clone());
        if let Some(settings) = image.settings()? {
            fits(image, &settings, &variables)?;
        }
    }
    Ok(())
}

fn fits(image: &ClusterImage, settings: &Settings, variables: &Variables) -> Result<()> {
    let missing = settings.missing(variables);
    if let Some(first) = missing.first() {
        let told = |setting: &Setting| match &*setting.description {
            "" => setting.name.clone(),
            text => format!("{} ({text})", setting.name),
        };
        let all: Vec<String> = missing.iter().map(told).collect();
        return Err(Error::usage(format!("{} requires {}", image.name, all.join(", ")))
            .hint(format!("pass --env {}=VALUE", first.name)));
    }
    settings.check(variables).map_err(|wrong| {
        Error::usage(format!("the variables do not fit {}: {}", image.name, wrong.join("; ")))
            .hint(format!("`imgctl inspect {}` shows its settings", quote(&image.name)))
    })
}

/// Returns the settings of a cluster that the images of `to` do not accept: of another type, missing, or described by the
/// rootfs image of `from` and by no image of `to`.
pub(crate) fn not_accepted(from: &ClusterContext, to: &ClusterContext) -> BTreeSet<RefusedSetting> {
    let mut found = BTreeSet::new();
    let mut add = |image: &ClusterImage, what: String| {
        found.insert(RefusedSetting { image: image.name.clone(), what });
    };
    for image in &to.images {
        match image.settings() {
            Err(error) => add(image, format!("settings: {}", error.chain().join(": "))),
            Ok(None) => {}
            Ok(Some(settings)) => {
                for host in &to.hosts {
                    let variables = to.environment_on(host, Some(image)).to_map();
                    settings.refusals(&variables).into_iter().for_each(|what| add(image, what));
                }
            }
        }
    }
    let described =
        |image: Option<&ClusterImage>| image.and_then(|it| it.settings().ok().flatten());
    let (Some(before), Some(new), Some(after)) =
        (described(from.rootfs()), to.rootfs(), described(to.rootfs()))
    else {
        return found;
    };
    let others: Vec<Settings> = to.images.iter().filter_map(|it| described(Some(it))).collect();
    let is_known = |name: &str| {
        after.has(name)
            || others.iter().any(|settings| settings.has(name))
            || to.images.iter().any(|image| image.environment.contains_key(name))
    };
    let is_given = |origin| matches!(origin, Origin::Cluster | Origin::Host | Origin::Flag);
    for name in before.list().into_iter().map(|setting| setting.name).filter(|it| !is_known(it)) {
        let given = to.hosts.iter().any(|host| {
            let variables = to.variables_on(host, None, None);
            variables.get(&name).is_some_and(|one| !one.value.is_empty() && is_given(one.origin))
        });
        if given {
            let what =
                format!("{name}: the cluster sets it, and the image has no such setting any more");
            found.insert(RefusedSetting { image: new.name.clone(), what });
        }
    }
    found
}

/// Calls `act` for each image with settings, with the variables of each host; hosts with the same values once.
fn each(
    context: &ClusterContext,
    act: &mut dyn FnMut(&ClusterImage, &Settings, &Variables) -> Result<()>,
) -> Result<()> {
    for image in &context.images {
        let Some(settings) = image.settings()? else { continue };
        let mut seen: BTreeSet<Variables> = BTreeSet::new();
        for host in &context.hosts {
            let mut variables = context.environment_on(host, Some(image)).to_map();
            variables.retain(|name, _| settings.has(name));
            if seen.insert(variables.clone()) {
                act(image, &settings, &variables)?;
            }
        }
    }
    Ok(())
}

/// A variable that no image has, and one with nearly the same name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misspelled {
    pub(crate) name: String,
    pub(crate) near: String,
    /// An image describes its variables, and `near` is one of them.
    pub(crate) is_described: bool,
}

/// Returns the variables that no image has and whose name is nearly that of one that an image has.
pub(crate) fn misspelled(given: &Variables, images: &[ClusterImage]) -> Vec<Misspelled> {
    let described: BTreeSet<String> = images
        .iter()
        .filter_map(|image| image.settings().ok().flatten())
        .flat_map(|settings| settings.list())
        .map(|setting| setting.name)
        .collect();
    let known: BTreeSet<&str> = images
        .iter()
        .flat_map(|image| image.environment.keys())
        .chain(&described)
        .map(String::as_str)
        .collect();
    let near = |name: &String| {
        if known.contains(name.as_str()) {
            return None;
        }
        let near = closest(name, known.iter().copied())?;
        let (name, is_described) = (name.clone(), described.contains(near));
        Some(Misspelled { name, near: near.to_owned(), is_described })
    };
    given.keys().filter_map(near).collect()
}

/// Tells which given variables are probably misspelled: an error if an image describes the right one.
pub(crate) fn tell_misspelled(
    given: &Variables,
    images: &[ClusterImage],
    front: &dyn FrontEnd,
) -> Result<()> {
    let (who, it) = match images {
        [_] => ("the image has", "it has"),
        _ => ("the images have", "they have"),
    };
    for Misspelled { name, near, is_described } in misspelled(given, images) {
        let text = format!("{who} no variable {name}; {it} {near}");
        if is_described {
            return Err(Error::usage(text).hint(format!("pass --env {near}=VALUE")));
        }
        front.note(&text);
    }
    Ok(())
}
