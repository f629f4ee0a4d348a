//! Which recipes and versions a request means. Must not know what files they become.

use imgctl_base::error::{Error, Result};
use imgctl_base::semver::Version;

use crate::catalogue::{Catalogue, Recipe};
use crate::declaration::{Group, Kind, Release};

/// What makes a cluster if nothing else is asked for.
pub const DEFAULT: &str = "kubernetes";
/// What an application of a chart is.
pub const CHART: &str = "app-helm";
/// `--network` without a network.
pub const NO_NETWORK: &str = "none";

/// What somebody asks for.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `NAME` or `NAME@VERSION`; empty: [`DEFAULT`] and what it suggests.
    pub recipes: Vec<String>,
    /// Of the cluster, or of the only recipe.
    pub version: Option<String>,
    /// A recipe for the network, `NAME` or `NAME@VERSION`, or [`NO_NETWORK`].
    pub network: Option<String>,
    /// There are charts.
    pub charts: bool,
}

/// A recipe at a version.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub recipe: &'a Recipe,
    pub release: &'a Release,
}

impl Part<'_> {
    pub fn name(&self) -> &str {
        &self.recipe.declaration.name
    }

    /// The part as a reader calls it: `kubernetes 1.36.3`.
    pub fn title(&self) -> String {
        if self.release.files.is_empty() && self.recipe.files.is_empty() {
            return self.name().to_owned();
        }
        format!("{} {}", self.name(), self.release.version)
    }
}

/// Decides which recipes a request means, and at which versions. The cluster comes first.
///
/// # Errors
/// If a recipe or version does not exist, or the recipes do not fit together.
pub fn decide<'a>(catalogue: &'a Catalogue, request: &Request) -> Result<Vec<Part<'a>>> {
    let mut wanted: Vec<(&Recipe, Option<&str>)> = Vec::new();
    for word in &request.recipes {
        let (name, version) = named(word);
        match wanted.iter().find(|(recipe, _)| recipe.declaration.name == name) {
            None => wanted.push((catalogue.get(name)?, version)),
            Some((_, other)) => agree(name, *other, version)?,
        }
    }
    if request.recipes.is_empty() {
        wanted.push((catalogue.get(DEFAULT)?, None));
    }
    let asked = wanted.len();
    let cluster = cluster_of(&wanted)?;
    let mut more: Vec<&str> = Vec::new();
    if let Some(cluster) = cluster {
        let suggested = cluster.declaration.suggests.iter().map(String::as_str);
        let (networks, others): (Vec<&str>, Vec<&str>) = suggested.partition(|name| {
            catalogue.get(name).is_ok_and(|recipe| recipe.declaration.group == Group::Network)
        });
        if request.recipes.is_empty() {
            more.extend(others);
        }
        let has_one = wanted.iter().any(|(recipe, _)| recipe.declaration.group == Group::Network);
        match request.network.as_deref() {
            Some(NO_NETWORK) => {}
            Some(word) => {
                let (name, version) = named(word);
                let name = network(catalogue, name, &cluster.declaration.name)?;
                add(catalogue, name, version, &mut wanted)?;
            }
            None if has_one => {}
            None => more.extend(networks),
        }
    } else if request.network.is_some() {
        return Err(Error::usage("--network is for a cluster, and no recipe makes one")
            .hint(format!("add one: --recipe {DEFAULT},…")));
    }
    if request.charts {
        more.push(CHART);
    }
    for name in more {
        add(catalogue, name, None, &mut wanted)?;
    }
    let mut at = 0;
    while at < wanted.len() {
        for name in &wanted[at].0.declaration.needs {
            add(catalogue, name, None, &mut wanted)?;
        }
        at += 1;
    }
    fitting(&wanted, cluster, request.charts)?;
    if let Some(version) = request.version.as_deref() {
        let one = match (cluster, asked) {
            (Some(cluster), _) => cluster,
            (None, 1) => wanted[0].0,
            (None, _) => {
                return Err(Error::usage("--version is for a cluster, and no recipe makes one")
                    .hint("say the version of each recipe: --recipe NAME@VERSION,…"));
            }
        };
        for (recipe, own) in &mut wanted {
            if recipe.declaration.name == one.declaration.name {
                agree(&one.declaration.name, *own, Some(version))?;
                own.get_or_insert(version);
            }
        }
    }
    let mut parts = Vec::new();
    for (recipe, version) in wanted {
        parts.push(Part { recipe, release: release(recipe, version)? });
    }
    parts.sort_by_key(|part| part.recipe.declaration.group);
    Ok(parts)
}

/// Fails if a request names two versions of one recipe.
fn agree(name: &str, one: Option<&str>, other: Option<&str>) -> Result<()> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => {
            Err(Error::usage(format!("{name} is asked for at {one} and at {other}"))
                .hint("say one version of each recipe"))
        }
        _ => Ok(()),
    }
}

/// Splits `NAME` or `NAME@VERSION`.
fn named(word: &str) -> (&str, Option<&str>) {
    word.split_once('@').map_or((word, None), |(name, version)| (name, Some(version)))
}

fn add<'a, 'b>(
    catalogue: &'a Catalogue,
    name: &str,
    version: Option<&'b str>,
    wanted: &mut Vec<(&'a Recipe, Option<&'b str>)>,
) -> Result<()> {
    if !wanted.iter().any(|(recipe, _)| recipe.declaration.name == name) {
        wanted.push((catalogue.get(name)?, version));
    }
    Ok(())
}

fn cluster_of<'a>(wanted: &[(&'a Recipe, Option<&str>)]) -> Result<Option<&'a Recipe>> {
    let mut clusters = wanted
        .iter()
        .map(|(recipe, _)| *recipe)
        .filter(|recipe| recipe.declaration.kind == Kind::Rootfs);
    let first = clusters.next();
    match (first, clusters.next()) {
        (Some(one), Some(other)) => Err(Error::usage(format!(
            "{} and {} each make a cluster: an image has one",
            one.declaration.name, other.declaration.name
        ))),
        _ => Ok(first),
    }
}

/// Returns the recipe for the network of a cluster.
fn network<'a>(catalogue: &'a Catalogue, name: &str, cluster: &str) -> Result<&'a str> {
    let message = match catalogue.get(name) {
        Ok(recipe) if recipe.declaration.group == Group::Network => {
            return Ok(&recipe.declaration.name);
        }
        Ok(_) => format!("the recipe {name} is not a network"),
        Err(_) => format!("there is no recipe {name} for a network"),
    };
    let known = catalogue.of_group(Group::Network, Some(cluster));
    Err(Error::usage(message)
        .hint(format!("the networks of {cluster} are {}, {NO_NETWORK}", known.join(", "))))
}

/// Checks that the recipes fit together.
fn fitting(
    wanted: &[(&Recipe, Option<&str>)],
    cluster: Option<&Recipe>,
    charts: bool,
) -> Result<()> {
    let networks: Vec<&str> = wanted
        .iter()
        .map(|(recipe, _)| &recipe.declaration)
        .filter(|recipe| recipe.group == Group::Network)
        .map(|recipe| recipe.name.as_str())
        .collect();
    if let [one, other, ..] = networks[..] {
        return Err(Error::usage(format!(
            "{one} and {other} are both networks: a cluster has one"
        ))
        .hint(format!("--network {one} or --network {other}")));
    }
    for (recipe, _) in wanted {
        let own = &recipe.declaration;
        if own.name == CHART && !charts {
            return Err(Error::usage(format!("{CHART} needs a chart"))
                .hint("--chart PATH says where it is"));
        }
        let Some(cluster) = cluster.map(|cluster| &cluster.declaration) else { continue };
        if own.kind == Kind::Application && !own.runs_on.contains(&cluster.name) {
            return Err(Error::usage(format!(
                "{} does not run on {}: it is for {}",
                own.name,
                cluster.name,
                own.runs_on.join(", ")
            )));
        }
    }
    Ok(())
}

/// Returns the version of a recipe that `wanted` means: the newest, the newest of `1.34`, or exactly `1.34.9`.
///
/// # Errors
/// If the recipe does not know it; the error names the nearest.
pub fn release<'a>(recipe: &'a Recipe, wanted: Option<&str>) -> Result<&'a Release> {
    let own = &recipe.declaration;
    let unknown = |what: String| Error::usage(format!("{}: {what}", own.name));
    let known = &own.versions;
    let Some(text) = wanted else {
        return known.first().ok_or_else(|| unknown("the recipe has no version".into()));
    };
    let text = text.strip_prefix('v').unwrap_or(text);
    let fits = |release: &&Release| {
        let rest = release.version.strip_prefix(text);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '+']))
    };
    if let Some(found) = known.iter().find(fits) {
        return Ok(found);
    }
    let names: Vec<&str> = known.iter().map(|release| release.version.as_str()).collect();
    let Some(version) = Version::parse(text) else {
        return Err(unknown(format!("`{text}` is not a version"))
            .hint(format!("it knows {}", names.join(", "))));
    };
    let numbers = |release: &Release| {
        Version::parse(&release.version).map_or([0; 3], |version| version.numbers)
    };
    let distance = |release: &&Release| {
        let numbers = numbers(release);
        [0, 1, 2].map(|at| numbers[at].abs_diff(version.numbers[at]))
    };
    // The newest of those that are older, and the oldest of those that are newer.
    let older = known.iter().find(|release| numbers(release) <= version.numbers);
    let newer = known.iter().rfind(|release| numbers(release) > version.numbers);
    let nearest = older.into_iter().chain(newer).min_by_key(distance);
    let nearest = nearest.map_or("", |release| release.version.as_str());
    Err(unknown(format!("it does not know version {text}; the nearest is {nearest}")).hint(
        format!(
            "it knows {}; for another version, copy the recipe (`imgctl recipe show {}`) and change its \
             addresses and checksums",
            names.join(", "),
            own.name
        ),
    ))
}
