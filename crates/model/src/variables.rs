//! The variables of one command on one host. Lists of all members are in every command's variables,
//! and in a cluster of thousands of hosts they are long: all commands of a plan share them.
//!
//! Must not know which variables there are.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use imgctl_base::image::Digest;

/// See the module.
#[derive(Clone, Default)]
pub struct Variables {
    own: BTreeMap<String, String>,
    shared: Option<Arc<Shared>>,
}

/// Variables that are equal on all hosts; a host's own of the same name override them.
#[derive(Debug)]
pub(crate) struct Shared {
    values: BTreeMap<String, String>,
    /// Identifies the values.
    digest: Digest,
}

impl Shared {
    pub(crate) fn new(values: BTreeMap<String, String>) -> Self {
        let digest = Digest::of(format!("{values:?}").as_bytes());
        Self { values, digest }
    }
}

impl Variables {
    pub(crate) fn new(own: BTreeMap<String, String>, shared: Arc<Shared>) -> Self {
        Self { own, shared: Some(shared) }
    }

    pub fn get(&self, name: &str) -> Option<&String> {
        let shared = || self.shared.as_ref()?.values.get(name);
        self.own.get(name).or_else(shared)
    }

    pub fn insert(&mut self, name: String, value: String) {
        self.own.insert(name, value);
    }

    /// Returns all of them.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        let mut all = self.shared.as_ref().map(|shared| shared.values.clone()).unwrap_or_default();
        all.extend(self.own.clone());
        all
    }

    /// Returns a text that differs whenever a variable does. It may contain secrets.
    pub fn identity(&self) -> String {
        match &self.shared {
            Some(shared) => format!("{:?} {}", self.own, shared.digest),
            None => format!("{:?}", self.own),
        }
    }
}

impl From<BTreeMap<String, String>> for Variables {
    fn from(own: BTreeMap<String, String>) -> Self {
        Self { own, shared: None }
    }
}

impl Extend<(String, String)> for Variables {
    fn extend<T: IntoIterator<Item = (String, String)>>(&mut self, more: T) {
        self.own.extend(more);
    }
}

/// Shows the names alone: values may be secrets.
impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.to_map().keys()).finish()
    }
}

/// Shared variables of a cluster context, made on first use. A copy, which may become another
/// cluster, makes its own.
#[derive(Default)]
pub struct SharedCache(OnceLock<Arc<Shared>>);

impl SharedCache {
    pub(crate) fn get(&self, make: impl FnOnce() -> BTreeMap<String, String>) -> Arc<Shared> {
        Arc::clone(self.0.get_or_init(|| Arc::new(Shared::new(make()))))
    }
}

impl Clone for SharedCache {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for SharedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedCache")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_values_override_shared_ones_and_both_count() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        let cache = SharedCache::default();
        let shared = || cache.get(|| map(&[("NODE_IPS", "1,2"), ("X", "shared")]));
        let one = Variables::new(map(&[("X", "own")]), shared());
        assert_eq!(one.get("X").unwrap(), "own");
        assert_eq!(one.to_map(), map(&[("NODE_IPS", "1,2"), ("X", "own")]));
        let mut two = one.clone();
        assert_eq!(one.identity(), two.identity());
        two.insert("Y".to_owned(), "secret".to_owned());
        assert_ne!(one.identity(), two.identity());
        assert!(!format!("{two:?}").contains("secret"), "{two:?}");
        let other = Arc::new(Shared::new(map(&[("NODE_IPS", "1")])));
        assert_ne!(one.identity(), Variables::new(map(&[("X", "own")]), other).identity());
        assert!(Arc::ptr_eq(&shared(), &shared()), "made once");
    }
}
