//! The objects of an application in the API: labelled, recorded, removed. What commands have sent comes
//! from the wrappers of kubectl and helm, wherever the commands ran.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;

use crate::apps::prune::{PATIENCE, Prune, Removal, is_holder};
use crate::apps::record::{Installed, PART_OF, Records, Release, State};
use imgctl_base::error::{Context, Error, Result};
use imgctl_base::image::time::rfc3339;
use imgctl_kube::api::Api;
use imgctl_kube::objects::{ObjectName, Resources};

/// Maximum number of objects that a plan lists.
const MOST_LISTED: usize = 50;

/// The API of a cluster, as applications need it.
pub struct ObjectAccess {
    pub api: Arc<dyn Api>,
    pub resources: Resources,
    pub records: Records,
}

impl ObjectAccess {
    pub fn new(api: Arc<dyn Api>) -> Self {
        let resources = Resources::new(Arc::clone(&api));
        let records = Records::new(Arc::clone(&api));
        Self { api, resources, records }
    }

    /// Records that an installation begins. Objects of the version before stay recorded.
    pub(super) fn begin(&self, installed: &Installed) -> Result<()> {
        let mut installed = installed.clone();
        // A resumed run finds what the first one has written.
        if let Some(known) = self.records.all()?.remove(&installed.application) {
            installed.objects = known.objects;
            installed.former = known.former;
            installed.releases = known.releases;
        }
        installed.state = State::Installing;
        installed.time = now();
        self.records.save(&installed)
    }

    /// Marks the objects that the commands have sent as the application's, and records them.
    pub(super) fn record(
        &self,
        installed: &Installed,
        sent: &[ObjectName],
        say: &dyn Fn(&str),
    ) -> Result<()> {
        let mut installed = installed.clone();
        let mut before = Vec::new();
        if let Some(known) = self.records.all()?.remove(&installed.application) {
            before = known.all_objects();
            installed.releases = known.releases;
        }
        installed.objects = self.label(&installed.set(), sent, &mut installed.releases, say)?;
        let own: BTreeSet<&ObjectName> = installed.objects.iter().collect();
        installed.former = before.into_iter().filter(|object| !own.contains(object)).collect();
        installed.state = State::Installed;
        installed.time = now();
        say(&format!("{} objects", installed.objects.len()));
        self.records.save(&installed)
    }

    /// Labels the objects that exist and returns them, with the releases of Helm that they belong to.
    fn label(
        &self,
        set: &str,
        objects: &[ObjectName],
        releases: &mut BTreeSet<Release>,
        say: &dyn Fn(&str),
    ) -> Result<Vec<ObjectName>> {
        let mut labelled = Vec::new();
        for object in objects {
            let doing = || format!("cannot label {object}");
            let found = self.resources.find(object).map_err(Error::from).context(doing)?;
            let Some((object, path)) = found else { continue };
            let live = match self.api.get(&path) {
                Ok(live) => live,
                // A hook, or removed by a later command.
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(Error::from(error).context(doing())),
            };
            match live["metadata"]["labels"][PART_OF].as_str() {
                Some(other) if other != set => {
                    say(&format!("{object} belongs to another application"));
                    continue;
                }
                Some(_) => {}
                None => {
                    let patch = json!({"metadata": {"labels": {PART_OF: set}}});
                    let path = format!("{path}?fieldManager=imgctl");
                    let kind = imgctl_kube::api::PatchKind::Merge;
                    match self.api.patch(&path, kind, &patch) {
                        Err(error) if error.is_not_found() => continue,
                        patched => patched.map_err(Error::from).context(doing)?,
                    };
                }
            }
            releases.extend(Release::of(&live));
            labelled.push(object);
        }
        Ok(labelled)
    }

    /// Removes what former versions of an application had and its current one does not have.
    pub(super) fn prune(&self, application: &str, prune: Prune, say: &dyn Fn(&str)) -> Result<()> {
        let Some(mut installed) = self.records.all()?.remove(application) else {
            return Ok(());
        };
        let set = installed.set();
        installed.former =
            self.removal(&set, prune, &BTreeSet::new(), say).remove(&installed.former)?;
        self.records.save(&installed)
    }

    /// Removes all objects of an application.
    pub(super) fn remove(
        &self,
        installed: &Installed,
        prune: Prune,
        say: &dyn Fn(&str),
    ) -> Result<()> {
        let set = installed.set();
        // The order of creation: former objects are older.
        let objects: Vec<ObjectName> =
            installed.former.iter().chain(&installed.objects).cloned().collect();
        self.removal(&set, prune, &installed.releases, say).remove(&objects).map(|_| ())
    }

    /// Returns the removal of objects of the ApplySet `set`, and of Helm's records of `releases`.
    fn removal<'a>(
        &'a self,
        set: &'a str,
        prune: Prune,
        releases: &'a BTreeSet<Release>,
        say: &'a dyn Fn(&str),
    ) -> Removal<'a> {
        let (api, resources) = (&self.api, &self.resources);
        Removal { api, resources, set, prune, releases, patience: PATIENCE, say }
    }
}

fn now() -> String {
    rfc3339(Timestamp::now().as_second())
}

/// Says which objects go if the version `next` does not have them; `None`: they are former ones.
pub(super) fn removals(
    application: &str,
    candidates: &[ObjectName],
    prune: Prune,
    next: Option<&str>,
) -> String {
    let (held, others): (Vec<_>, Vec<_>) = candidates.iter().partition(|object| is_holder(object));
    let mut going: Vec<String> = others.iter().map(ToString::to_string).collect();
    if prune == Prune::All {
        going.extend(held.iter().map(ToString::to_string));
    }
    let count = going.len();
    going.truncate(MOST_LISTED);
    if count > MOST_LISTED {
        going.push(format!("and {} more", count - MOST_LISTED));
    }
    let list = going.join(", ");
    match next {
        Some(next) => format!(
            "of the objects of {application} that are recorded now, those are removed that {next} \
             does not have: {list}"
        ),
        None => format!("these objects of former versions of {application} are removed: {list}"),
    }
}

/// Says which objects go with an application that has no command for its removal.
pub(super) fn whole_removal(installed: &Installed, prune: Prune) -> Vec<String> {
    let all = installed.all_objects();
    let (held, others): (Vec<_>, Vec<_>) = all.iter().partition(|one| is_holder(one));
    let list = |objects: &[&ObjectName]| {
        let shown: Vec<String> =
            objects.iter().take(MOST_LISTED).map(ToString::to_string).collect();
        shown.join(", ")
    };
    let mut notes = vec![format!(
        "{}: its {} recorded objects are removed: {}",
        installed.image,
        others.len(),
        list(&others)
    )];
    if !held.is_empty() {
        notes.push(match prune {
            Prune::All => format!("their content is removed with them: {}", list(&held)),
            _ => format!("these stay unless --purge is given: {}", list(&held)),
        });
    }
    if !installed.releases.is_empty() {
        let releases: Vec<String> =
            installed.releases.iter().take(MOST_LISTED).map(ToString::to_string).collect();
        notes
            .push(format!("Helm's records of these releases are removed: {}", releases.join(", ")));
    }
    notes
}
