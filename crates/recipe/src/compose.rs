//! Parts and charts to the files of a build context. Pure: reads and writes no file.

use std::collections::{BTreeMap, BTreeSet};

use imgctl_base::error::{Error, Result};
use imgctl_base::settings::SETTINGS_FILE;
use serde_json::{Map, Value, json};

use crate::File;
use crate::chart::Chart;
use crate::composition::Composition;
use crate::declaration::Download;
use crate::documents;
use crate::kubefile::{self, Layout};
use crate::record::Record;

/// Folders of the context that images have, if they are there.
const FOLDERS: [&str; 8] =
    ["apps", "charts", "etc", "hooks", "images/shim", "manifests", "scripts", "statics"];
/// Installs the applications of an image.
const APPLY: &str = include_str!("apply.sh");
/// Runs it after an upgrade of the cluster.
const HOOK: &str = "#!/usr/bin/env bash\n# An upgrade brought other applications with it.\n\
                    exec bash ../../scripts/apply.sh\n";

/// Returns all files of the folder, sorted by path.
///
/// # Errors
/// If two parts write one file or set one variable, or a part is not available for an architecture.
pub(crate) fn files(composition: &Composition<'_>) -> Result<Vec<File>> {
    check(composition)?;
    let mut files = Files::default();
    for part in &composition.parts {
        for file in &part.recipe.files {
            files.add(part.name(), file.clone())?;
        }
        if !part.release.images.is_empty() {
            let mut list = format!("# Container images of {}.\n", part.title());
            part.release.images.iter().for_each(|image| list.extend([image.as_str(), "\n"]));
            files.add(part.name(), File::text(format!("images/shim/{}", part.name()), list))?;
        }
    }
    for chart in &composition.charts {
        for file in chart.files() {
            files.add(&chart.name, file)?;
        }
    }
    let has_apps = files.0.keys().any(|path| path.starts_with("apps/"));
    if has_apps {
        files.add("imgctl", File::script("scripts/apply.sh", APPLY))?;
        if composition.cluster().is_some() {
            files.add("imgctl", File::script("hooks/post-cluster.d/50-apply", HOOK))?;
        }
    }
    let downloads: Vec<&Download> =
        composition.parts.iter().flat_map(|part| &part.release.files).collect();
    let there: BTreeSet<&str> = FOLDERS
        .into_iter()
        .filter(|folder| files.0.keys().any(|path| path.starts_with(&format!("{folder}/"))))
        .collect();
    let folders: Vec<&str> = there.into_iter().collect();
    let layout = Layout {
        parts: &composition.parts,
        architectures: &composition.architectures,
        head: &documents::head(composition, !downloads.is_empty()),
        folders: &folders,
        command: has_apps.then_some("bash scripts/apply.sh"),
    };
    files.add("imgctl", File::text("Kubefile", kubefile::text(&layout)))?;
    files.add("imgctl", File::text("README.md", documents::readme(composition)))?;
    let charts = composition.charts.iter().filter_map(Chart::lock_entry);
    let lock = charts.fold(documents::LOCK.to_owned(), |lock, entry| lock + &entry);
    files.add("imgctl", File::text(crate::write::LOCK, lock))?;
    files.add("imgctl", Record::of(composition).file()?)?;
    if let Some(schema) = settings(composition) {
        files.add("imgctl", schema)?;
    }
    if composition.cluster().is_some() {
        files.add("imgctl", File::text("Clusterfile", documents::clusterfile(composition)))?;
    }
    if let Some(forge) = composition.forge {
        files.add("imgctl", documents::pipeline(forge))?;
    }
    Ok(files.0.into_values().map(|(_, file)| file).collect())
}

/// Returns the schema of what users set, from which a build makes a label; `None` if there is nothing.
fn settings(composition: &Composition<'_>) -> Option<File> {
    let parts = || composition.parts.iter().map(|part| &part.recipe.declaration);
    let properties: Map<String, Value> = parts().flat_map(|own| own.settings.clone()).collect();
    if properties.is_empty() {
        return None;
    }
    let mut schema = json!({ "type": "object", "properties": properties });
    let required: Vec<&String> = parts().flat_map(|own| &own.required_settings).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    Some(File::text(SETTINGS_FILE, format!("{schema:#}\n")))
}

/// Checks that the parts can be one image.
fn check(composition: &Composition<'_>) -> Result<()> {
    let mut variables: BTreeMap<String, &str> = BTreeMap::new();
    for part in &composition.parts {
        let own = &part.recipe.declaration;
        let lacks = |arch: &&String| !own.architectures.contains(arch);
        if let Some(lacking) = composition.architectures.iter().find(lacks)
            && !own.architectures.is_empty()
        {
            return Err(Error::usage(format!("{} is not available for {lacking}", own.name))
                .hint(format!("it is for {}: --arch", own.architectures.join(", "))));
        }
        for name in variables_of(&part.recipe.kubefile) {
            if let Some(other) = variables.insert(name.clone(), &own.name) {
                let both = format!("{other} and {} both set the variable {name}", own.name);
                return Err(Error::usage(both).hint("make an image of each, and run both"));
            }
        }
    }
    Ok(())
}

/// The names that ENV sets in lines of a recipe.
pub(crate) fn variables_of(kubefile: &str) -> Vec<String> {
    let mut is_env = false;
    let mut names = Vec::new();
    for line in kubefile.lines() {
        let continued = line.strip_prefix("ENV ");
        is_env = continued.is_some() || (is_env && line.starts_with(' '));
        if is_env {
            let pairs = continued.unwrap_or(line).split_whitespace();
            names.extend(
                pairs.filter_map(|pair| pair.split_once('=')).map(|(name, _)| name.to_owned()),
            );
        }
    }
    names
}

/// Files by path, each with who brought it.
#[derive(Default)]
struct Files(BTreeMap<String, (String, File)>);

impl Files {
    fn add(&mut self, from: &str, file: File) -> Result<()> {
        if let Some((other, there)) = self.0.get(&file.path) {
            if *there == file {
                return Ok(());
            }
            return Err(Error::usage(format!("{other} and {from} both write {}", file.path))
                .hint("make an image of each, and run both"));
        }
        self.0.insert(file.path.clone(), (from.to_owned(), file));
        Ok(())
    }
}
