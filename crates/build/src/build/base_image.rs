//! The images that a build starts from or copies from: taken from the store, or pulled from a
//! registry first if necessary and allowed. Each is looked up once per build, so that all stages
//! see the same image.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use imgctl_base::error::{Context as _, Error, Kind, Result};
use imgctl_base::image::reference::LOCAL_REGISTRY;
use imgctl_base::image::{Descriptor, Digest, Platform, Reference, Verdict, media_type};
use imgctl_base::progress::Reporter;
use imgctl_registry::Client;
use imgctl_store::store::images::{check_platform, is_platform};
use imgctl_store::store::resolve::misspelled;
use imgctl_store::store::{Image, Named, Store};
use imgctl_transfer::transfer::arbiter::Arbiter;
use imgctl_transfer::transfer::manifest_list::{self, Choice, Member};
use imgctl_transfer::transfer::plan::{Platforms, Selection};
use imgctl_transfer::transfer::pull::{Policy, PullOptions, pull};

/// Source of images that are not in the store.
#[derive(Clone, Default)]
pub struct BaseImages {
    /// `None` = the store is the only source.
    pub client: Option<Client>,
    pub policy: Policy,
    found: Arc<Mutex<HashMap<Wanted, Slot>>>,
    verdicts: Arc<Mutex<Vec<Verdict>>>,
}

type Wanted = (String, Platform);
/// Locked by the stage that looks the image up until it has found it.
type Slot = Arc<Mutex<Option<Descriptor>>>;

impl fmt::Debug for BaseImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BaseImages({:?})", self.policy)
    }
}

impl BaseImages {
    /// Uses a registry client, according to `policy`.
    pub fn new(client: Client, policy: Policy) -> Self {
        Self { client: Some(client), policy, ..Self::default() }
    }

    /// Returns the image `name` for `platform`.
    pub fn get(
        &self,
        store: &Store,
        name: &str,
        platform: &Platform,
        reporter: &dyn Reporter,
    ) -> Result<Image> {
        let slot = {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            let slot = found.entry((name.to_owned(), platform.clone()));
            Arc::clone(slot.or_default())
        };
        // A second stage that needs the image waits until the first has it.
        let mut known = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(descriptor) = &*known {
            return named(store, name, descriptor, platform);
        }
        let (image, verdict) = self.look(store, name, platform, reporter)?;
        if check_platform(&image.config, Some(platform)).is_err() {
            let found = image.config.platform();
            reporter.note(&format!("base image {name} is for {found}, not for {platform}"));
        }
        *known = Some(image.descriptor.clone());
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner).push(verdict);
        Ok(image)
    }

    /// Returns what the policy said about the images that were taken.
    pub fn verdicts(&self) -> Vec<Verdict> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns who decides about images that are here or come by a file.
    pub fn arbiter(&self) -> Arbiter {
        self.client.as_ref().map_or_else(Arbiter::everything, Arbiter::policy)
    }

    /// Returns an image of the store, if the policy admits it.
    pub fn stored(
        &self,
        store: &Store,
        name: &str,
        platform: Option<&Platform>,
    ) -> Result<(Image, Verdict)> {
        let image = store.image(name, platform)?;
        let verdict = self.arbiter().admit_input(store, &store.resolve(name)?)?;
        Ok((image, verdict))
    }

    /// Returns the platforms for which all of the images `names` are available.
    pub(super) fn common_platforms(&self, store: &Store, names: &[&str]) -> Result<Vec<Platform>> {
        let mut common: Option<Vec<Platform>> = None;
        for name in names {
            let offered = self
                .platforms(store, name)
                .context(|| format!("cannot find out for which platforms {name} is available"))?;
            common = Some(match common {
                None => offered,
                Some(mut common) => {
                    let is_offered =
                        |one: &Platform| offered.iter().any(|o| o.distance_to(one).is_some());
                    common.retain(is_offered);
                    common
                }
            });
        }
        match common {
            Some(common) if !common.is_empty() => Ok(common),
            Some(_) => Err(Error::not_found("the base images have no platform in common")
                .hint("choose platforms with --platform")),
            None => Err(Error::usage(
                "--all-platforms takes the platforms from base images, and no stage starts from one",
            )
            .hint("name the platforms: --platform linux/amd64,linux/arm64")),
        }
    }

    /// Returns the platforms of an image: those of an index in the store, otherwise those that the
    /// registry has, otherwise that of the image in the store.
    fn platforms(&self, store: &Store, name: &str) -> Result<Vec<Platform>> {
        let here = store.resolve(name).and_then(|named| {
            let is_index = media_type::is_index(&named.descriptor.media_type);
            let members = manifest_list::in_store(store, &named, &Choice::All, &self.arbiter())?;
            Ok((is_index, members))
        });
        let may_ask = self.policy != Policy::Never && Digest::parse(name).is_err();
        let (client, here) = match (here, &self.client) {
            (Ok((true, members)), _) => return Ok(offered(members)),
            (here, Some(client)) if may_ask => (client, here),
            (here, _) => return here.map(|(_, members)| offered(members)),
        };
        let mut failed = None;
        for candidate in client.candidates(&Reference::parse(name)?)? {
            if candidate.registry() == Some(LOCAL_REGISTRY) {
                continue;
            }
            match manifest_list::in_registry(client, &candidate, &Choice::All) {
                Ok(members) => return Ok(offered(members)),
                Err(error) => failed = Some(error),
            }
        }
        match (here, failed) {
            (Ok((_, members)), _) => Ok(offered(members)),
            (Err(_), Some(error)) | (Err(error), None) => Err(error),
        }
    }

    /// Returns the image `name` of the store if it exists for one other platform only, which is then
    /// the one that is meant (rule InvalidBaseImagePlatform of BuildKit).
    fn of_other_platform(&self, store: &Store, name: &str) -> Result<Option<(Image, Verdict)>> {
        let is_image = |named: &Named| media_type::is_manifest(&named.descriptor.media_type);
        if !store.resolve(name).is_ok_and(|named| is_image(&named)) {
            return Ok(None);
        }
        self.stored(store, name, None).map(Some)
    }

    fn look(
        &self,
        store: &Store,
        name: &str,
        platform: &Platform,
        reporter: &dyn Reporter,
    ) -> Result<(Image, Verdict)> {
        let here = || match self.stored(store, name, Some(platform)) {
            Err(error) if error.kind() == Kind::NotFound => {
                self.of_other_platform(store, name)?.ok_or(error)
            }
            found => found,
        };
        let may_ask = self.policy != Policy::Never;
        let is_id = Digest::parse(name).is_ok();
        let (Some(client), true, false) = (&self.client, may_ask, is_id) else {
            return here().map_err(|error| match error.kind() {
                Kind::NotFound => error.hint(format!(
                    "pull it first (`imgctl pull {name}`), or build with --pull=missing"
                )),
                _ => error,
            });
        };
        if self.policy == Policy::Missing {
            match here() {
                Err(error) if error.kind() == Kind::NotFound => {}
                Ok(_) if store.lacks_remote_layers(name)? => {}
                image => return image,
            }
        }
        if self.policy == Policy::Missing
            && store.resolve(name).is_err()
            && let Some(near) = store.slip(name, false)?
        {
            return Err(misspelled(name, &near));
        }
        let reference = Reference::parse(name)?;
        reporter.note(&format!("pulling {reference}"));
        let options = PullOptions {
            selection: Selection {
                platforms: Platforms::Only(vec![platform.clone()]),
                // A build for another platform adds to the same index.
                keep_index: true,
            },
            policy: self.policy,
            ..PullOptions::default()
        };
        let pulled = pull(store, client, &reference, &options, reporter).map_err(|error| {
            // The name may be a misspelled name of a stored image.
            let near = store.image(name, Some(platform)).err();
            let near = near.map(|error| error.hints().join("; "));
            match near.filter(|near| !near.is_empty()) {
                Some(near) => error.hint(near),
                None => error,
            }
        })?;
        let name = pulled.reference.to_string();
        Ok((named(store, &name, &pulled.descriptor, platform)?, pulled.verdict))
    }
}

/// The platforms of images, without attestations.
fn offered(members: Vec<Member>) -> Vec<Platform> {
    let images = members.into_iter().map(|member| member.descriptor);
    let mut offered = Vec::new();
    for platform in images.filter(is_platform).filter_map(|image| image.platform) {
        if !offered.contains(&platform) {
            offered.push(platform);
        }
    }
    offered
}

fn named(store: &Store, name: &str, descriptor: &Descriptor, platform: &Platform) -> Result<Image> {
    let is_chosen = media_type::is_manifest(&descriptor.media_type);
    let mut image = store.image_at(descriptor, (!is_chosen).then_some(platform))?;
    // As it is written: an annotation of the result says so.
    image.reference = Reference::parse(name).ok().map(|name| name.complete());
    Ok(image)
}
