//! The recipes that imgctl ships, read from the archive in the library. Must not know what is chosen.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};

use flate2::read::GzDecoder;
use imgctl_base::error::{Error, IoContext as _, Result};
use imgctl_base::suggest::closest;

use crate::File;
use crate::declaration::{Declaration, Group, Kind};

/// `images/recipes`, as the build script packs it.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/recipes.gz"));
/// Files of a recipe that are for the context lie below this folder.
const FILES: &str = "files/";

/// A recipe.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub declaration: Declaration,
    /// Lines for the last stage of the Kubefile; `@VERSION@` stands for the version.
    pub kubefile: String,
    /// Files of the build context.
    pub files: Vec<File>,
}

/// All recipes, by name.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    recipes: BTreeMap<String, Recipe>,
}

impl Catalogue {
    /// Returns the recipes of this imgctl.
    pub fn shipped() -> Result<Self> {
        Self::read(unpacked(PACKED)?)
    }

    /// Reads recipes from their files: `NAME/recipe.yml`, `NAME/Kubefile`, `NAME/files/…`. Files beside the recipes are not
    /// read.
    ///
    /// # Errors
    /// If a recipe is not valid.
    pub fn read(files: impl IntoIterator<Item = File>) -> Result<Self> {
        let mut folders: BTreeMap<String, Vec<File>> = BTreeMap::new();
        for file in files {
            if let Some((folder, inside)) = file.path.split_once('/') {
                let inside = inside.to_owned();
                let files = folders.entry(folder.to_owned()).or_default();
                files.push(File { path: inside, ..file });
            }
        }
        let mut recipes = BTreeMap::new();
        for (name, files) in folders {
            let text = |wanted: &str| {
                let found = files.iter().find(|file| file.path == wanted);
                found.map(|file| String::from_utf8_lossy(&file.bytes).into_owned())
            };
            let declaration = text("recipe.yml")
                .ok_or_else(|| Error::bad_content(format!("recipe {name} has no recipe.yml")))?;
            let declaration = Declaration::parse(&name, &declaration)?;
            let kubefile = text("Kubefile").unwrap_or_default();
            let mut own = Vec::new();
            for file in files {
                if let Some(path) = file.path.strip_prefix(FILES) {
                    own.push(File { path: path.to_owned(), ..file });
                } else if !["recipe.yml", "Kubefile"].contains(&file.path.as_str()) {
                    let unknown =
                        format!("recipe {name}: `{}` is not a part of a recipe", file.path);
                    return Err(Error::bad_content(unknown));
                }
            }
            recipes.insert(name, Recipe { declaration, kubefile, files: own });
        }
        let all = Self { recipes };
        for recipe in all.recipes.values() {
            let own = &recipe.declaration;
            let named = own.needs.iter().chain(&own.suggests).chain(&own.runs_on);
            for name in named {
                all.get(name).map_err(|error| error.context(format!("recipe {}", own.name)))?;
            }
        }
        Ok(all)
    }

    /// Returns the recipe `name`.
    ///
    /// # Errors
    /// If there is none; the error suggests one.
    pub fn get(&self, name: &str) -> Result<&Recipe> {
        self.recipes.get(name).ok_or_else(|| {
            let names = self.recipes.keys().map(String::as_str);
            let other = match name {
                "k8s" | "kube" | "kubeadm" => Some("kubernetes"),
                "chart" | "charts" | "app" => Some("app-helm"),
                _ => closest(name, names.clone()),
            };
            let error = Error::not_found(format!("there is no recipe `{name}`"));
            match other {
                Some(other) => error.hint(format!("did you mean {other}?")),
                None => {
                    error.hint(format!("the recipes are {}", names.collect::<Vec<_>>().join(", ")))
                }
            }
        })
    }

    /// Returns whether one of the words (`NAME` or `NAME@VERSION`) is a recipe for a cluster.
    pub fn cluster_among(&self, words: &[String]) -> bool {
        words.iter().any(|word| {
            let name = word.split_once('@').map_or(word.as_str(), |(name, _)| name);
            self.recipes.get(name).is_some_and(|recipe| recipe.declaration.kind == Kind::Rootfs)
        })
    }

    /// Returns the recipes in the order of what they are for, and then of their names.
    pub fn all(&self) -> Vec<&Recipe> {
        let mut all: Vec<&Recipe> = self.recipes.values().collect();
        all.sort_by_key(|recipe| (recipe.declaration.group, recipe.declaration.name.clone()));
        all
    }

    /// Returns the names of the recipes of a group that run on a cluster of the recipe `cluster`; all of them if there is none.
    pub fn of_group(&self, group: Group, cluster: Option<&str>) -> Vec<&str> {
        let fits = |recipe: &&Recipe| {
            let own = &recipe.declaration;
            own.group == group
                && cluster.is_none_or(|cluster| own.runs_on.iter().any(|name| name == cluster))
        };
        self.recipes.values().filter(fits).map(|recipe| recipe.declaration.name.as_str()).collect()
    }
}

/// Unpacks what the build script packed.
fn unpacked(packed: &[u8]) -> Result<Vec<File>> {
    let broken = || Error::failed("the recipes in this program cannot be read");
    let doing = || "cannot unpack the recipes in this program".to_owned();
    let mut text = BufReader::new(GzDecoder::new(packed));
    let mut files = Vec::new();
    loop {
        let mut head = String::new();
        if text.read_line(&mut head).doing(doing)? == 0 {
            return Ok(files);
        }
        let mut words = head.trim_end_matches('\n').splitn(3, ' ');
        let mut word = || words.next().ok_or_else(broken);
        let mode = u32::from_str_radix(word()?, 8).map_err(|_| broken())?;
        let length: usize = word()?.parse().map_err(|_| broken())?;
        let path = word()?.to_owned();
        let mut bytes = vec![0; length];
        text.read_exact(&mut bytes).doing(doing)?;
        files.push(File { path, mode, bytes });
    }
}
