//! A new folder for an image, and one more part for such a folder.

use std::fs;
use std::path::{Path, PathBuf};

use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::fs::directory;
use imgctl_base::quote::quote;

use crate::catalogue::Catalogue;
use crate::chart::Chart;
use crate::choice::{self, Request};
use crate::compose;
use crate::composition::{ARCHITECTURES, Composition, Forge};
use crate::record::{self, Record};
use crate::write::{Written, write};

/// Longest name of an image that is made out of that of its folder.
const LONGEST_NAME: usize = 40;
/// Longest configuration of git that is read, in bytes.
const LONGEST_CONFIG: u64 = 1 << 20;

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct Order {
    pub folder: PathBuf,
    pub request: Request,
    /// None: all of [`ARCHITECTURES`].
    pub architectures: Vec<String>,
    /// Of the image; none: that of the folder.
    pub name: Option<String>,
    pub charts: Vec<Chart>,
}

/// A folder that was made.
#[derive(Clone, Debug)]
pub struct Made {
    pub name: String,
    /// The parts as a reader calls them.
    pub parts: Vec<String>,
    pub files: Written,
    /// Addresses of files whose checksum the first build records.
    pub unpinned: Vec<String>,
}

impl Made {
    /// Returns the command that makes the image.
    pub fn next(&self, folder: &Path) -> String {
        format!("imgctl build -t {}:v1 {}", self.name, quote(&folder.to_string_lossy()))
    }
}

/// Fails if `folder` cannot become a new one, whatever is asked for in it.
///
/// # Errors
/// If [`init`] made it, or it has a Kubefile.
pub fn check_new(folder: &Path) -> Result<()> {
    let error = |what: &str| Error::usage(format!("{} already has {what}", folder.display()));
    if folder.join(record::FILE).exists() {
        return Err(error(record::FILE).hint(format!(
            "`imgctl init {} --add RECIPE` adds to the folder, or name another one",
            quote(&folder.to_string_lossy())
        )));
    }
    if folder.join("Kubefile").exists() {
        return Err(error("a Kubefile").hint("move it away, or name another folder"));
    }
    Ok(())
}

/// Makes a folder for an image.
///
/// # Errors
/// If the parts do not fit together, or the folder has other files; nothing is written then.
pub fn init(catalogue: &Catalogue, order: &Order) -> Result<Made> {
    let request = Request { charts: !order.charts.is_empty(), ..order.request.clone() };
    let architectures = match &order.architectures[..] {
        [] => ARCHITECTURES.map(str::to_owned).to_vec(),
        given => given.to_vec(),
    };
    let composition = Composition {
        name: match &order.name {
            Some(name) => checked(name)?,
            None => name_of(&order.folder),
        },
        parts: choice::decide(catalogue, &request)?,
        architectures,
        charts: order.charts.clone(),
        forge: forge_of(&order.folder)?,
    };
    place(&order.folder, &composition, &[])
}

/// Adds recipes and charts to a folder that [`init`] made.
///
/// # Errors
/// If it is none, a recipe does not fit, or a file that has to change was changed by somebody else.
pub fn add(
    catalogue: &Catalogue,
    folder: &Path,
    recipes: &[String],
    charts: &[Chart],
) -> Result<Made> {
    let path = folder.join(record::FILE);
    let text = directory::read_text(&path, record::LONGEST)?.ok_or_else(|| {
        Error::not_found(format!("{} has no {}", folder.display(), record::FILE))
            .hint("`imgctl init` makes a folder to which recipes can be added")
    })?;
    let record = Record::parse(&text)?;
    // The folder may be somebody else's.
    checked(&record.name)?;
    let there: Result<Vec<Chart>> =
        record.charts.iter().map(|place| Chart::recorded(folder, place)).collect();
    let there = there?;
    let composed = |recipes: Vec<String>, charts: Vec<Chart>| -> Result<Composition<'_>> {
        // A network that was not wanted is not wanted now.
        let network = catalogue.cluster_among(&recipes).then(|| choice::NO_NETWORK.to_owned());
        let request = Request { recipes, network, charts: !charts.is_empty(), version: None };
        Ok(Composition {
            name: record.name.clone(),
            parts: choice::decide(catalogue, &request)?,
            architectures: record.architectures.clone(),
            charts,
            forge: record.forge,
        })
    };
    let former = compose::files(&composed(record.recipes(), there.clone())?)?;
    let recipes = record.recipes().into_iter().chain(recipes.iter().cloned()).collect();
    let charts = there.into_iter().chain(charts.iter().cloned()).collect();
    place(folder, &composed(recipes, charts)?, &former)
}

fn place(folder: &Path, composition: &Composition<'_>, former: &[crate::File]) -> Result<Made> {
    let files = write(folder, &compose::files(composition)?, former)?;
    let shown = composition.parts.iter().filter(|part| part.name() != choice::CHART);
    let mut parts: Vec<String> = shown.map(choice::Part::title).collect();
    parts.extend(composition.charts.iter().map(|chart| format!("chart {}", chart.name)));
    let unpinned = composition.unpinned().into_iter().map(|file| {
        let architecture = composition.architectures.first().map_or("", String::as_str);
        file.url(architecture)
    });
    Ok(Made { name: composition.name.clone(), parts, files, unpinned: unpinned.collect() })
}

/// A name that is that of an image and of a cluster.
fn checked(name: &str) -> Result<String> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_name = !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name.bytes().all(fits)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if is_name {
        return Ok(name.to_owned());
    }
    Err(Error::usage(format!("`{name}` cannot be the name of the image and of its cluster")).hint(
        format!(
            "a name has at most {LONGEST_NAME} lower-case letters, digits and `-`; --name demo"
        ),
    ))
}

/// The name of the folder as that of an image.
fn name_of(folder: &Path) -> String {
    let whole = std::path::absolute(folder).unwrap_or_default();
    let whole = fs::canonicalize(&whole).unwrap_or(whole);
    let name = whole.file_name().map(|name| name.to_string_lossy().to_lowercase());
    let fitting = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let name: String = name.unwrap_or_default().chars().map(fitting).take(LONGEST_NAME).collect();
    match name.trim_matches('-') {
        "" => "cluster".to_owned(),
        name => name.to_owned(),
    }
}

/// Returns the CI system that builds what is in the folder, if the folder is a repository and has no file for it.
fn forge_of(folder: &Path) -> Result<Option<Forge>> {
    let config = if folder.join(".git").is_dir() {
        directory::read_text(&folder.join(".git/config"), LONGEST_CONFIG)?
    } else {
        None
    };
    let remotes = config.unwrap_or_default();
    let has = |path: &str| fs::symlink_metadata(folder.join(path)).is_ok();
    let forge = if has(".github") || remotes.contains("github.com") {
        Forge::Github
    } else if has(".gitlab-ci.yml") || remotes.contains("gitlab") {
        Forge::Gitlab
    } else {
        return Ok(None);
    };
    let own = crate::documents::pipeline(forge);
    let there = fs::read(folder.join(&own.path));
    match there {
        Ok(bytes) if bytes != own.bytes => Ok(None),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).path("read", folder.join(&own.path))
        }
        _ => Ok(Some(forge)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_images_and_clusters() {
        for (folder, name) in [
            ("/x/My Cluster", "my-cluster"),
            ("/x/ü", "cluster"),
            ("/", "cluster"),
            ("/a/b.c-", "b-c"),
        ] {
            assert_eq!(name_of(Path::new(folder)), name);
        }
        for wrong in ["", "-a", "a-", "A", "a/b", "a:b", &"a".repeat(41)] {
            assert!(checked(wrong).unwrap_err().message().contains("cannot be the name"));
        }
        assert_eq!(checked("a-1").unwrap(), "a-1");
    }

    #[test]
    fn a_repository_gets_the_file_of_its_forge_unless_it_has_one() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        assert_eq!(forge_of(folder).unwrap(), None);
        fs::create_dir_all(folder.join(".git")).unwrap();
        fs::write(
            folder.join(".git/config"),
            "[remote \"origin\"]\n\turl = git@gitlab.example:a/b\n",
        )
        .unwrap();
        assert_eq!(forge_of(folder).unwrap(), Some(Forge::Gitlab));
        fs::write(folder.join(".gitlab-ci.yml"), "mine: {}\n").unwrap();
        assert_eq!(forge_of(folder).unwrap(), None);
        fs::remove_file(folder.join(".gitlab-ci.yml")).unwrap();
        fs::create_dir_all(folder.join(".github/workflows")).unwrap();
        assert_eq!(forge_of(folder).unwrap(), Some(Forge::Github));
        fs::write(folder.join(".github/workflows/image.yml"), "mine: {}\n").unwrap();
        assert_eq!(forge_of(folder).unwrap(), None);
    }
}
