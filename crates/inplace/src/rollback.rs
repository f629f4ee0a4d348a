//! Determines the former images: from the journal of a run, otherwise from the annotations of the
//! Pods. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::journal::{Past, Phase};
use crate::object::{Pod, Resources};
use crate::request::{Desired, Resize, Wanted};
use crate::{marks, world::World};
use imgctl_base::error::{Error, Result};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Former {
    pub desired: Desired,
    pub resize: BTreeMap<String, Resize>,
    /// Ids of the runs to undo.
    pub ids: Vec<String>,
}

/// Returns the state to restore. `id`: only considers what that run did.
pub fn former(world: &World, past: Option<&Past>, id: Option<&str>) -> Result<Former> {
    let mut former =
        Former { ids: id.map(str::to_owned).into_iter().collect(), ..Former::default() };
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut resources: BTreeMap<String, Resources> = BTreeMap::new();
    let chosen: Vec<&Pod> =
        world.pods.iter().filter(|pod| world.selected.contains(&pod.metadata.uid)).collect();
    for pod in &chosen {
        let uid = &pod.metadata.uid;
        let restored = past.is_some_and(|past| past.phases.get(uid) == Some(&Phase::Restored));
        let noted = marks::state(&pod.metadata).filter(|state| id.is_none_or(|id| state.id == id));
        let before = match (past.and_then(|past| past.before.get(uid)), &noted) {
            _ if restored => continue,
            (Some(before), _) => before,
            (None, Some(state)) => &state.containers,
            (None, None) => continue,
        };
        if let Some(state) = &noted
            && !former.ids.contains(&state.id)
        {
            former.ids.push(state.id.clone());
        }
        let mut wanted = Wanted::new();
        for (name, before) in before {
            seen.entry(name.clone()).or_default().insert(before.image.clone());
            wanted.insert(name.clone(), before.image.clone());
            if let Some(own) = &before.resources {
                resources.insert(name.clone(), own.clone());
            }
        }
        former.desired.by_pod.insert(uid.clone(), wanted);
    }
    // Pods created later have the images of their template; they are restored with the others.
    for images in past.into_iter().flat_map(|past| past.templates.values()) {
        for (name, image) in images {
            seen.entry(name.clone()).or_default().insert(image.clone());
        }
    }
    former.desired.common = seen
        .into_iter()
        .filter(|(_, images)| images.len() == 1)
        .filter_map(|(name, images)| Some((name, images.into_iter().next()?)))
        .collect();
    former.resize = resources
        .into_iter()
        .map(|(name, own)| {
            let resize =
                Resize { requests: own.requests, limits: own.limits, both: BTreeMap::new() };
            (name, resize)
        })
        .collect();
    if former.desired.by_pod.is_empty() && former.desired.common.is_empty() {
        return Err(Error::not_found("none of these Pods was changed in place")
            .hint("`imgctl inplace status` shows which were"));
    }
    Ok(former)
}
