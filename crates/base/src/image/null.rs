//! `null` in documents of images. Must not know which documents there are.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Takes `null` for a member that is absent: Go writes empty lists and maps so, and image-spec (config.md)
/// allows it for every optional member.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The same for a map, and for each of its values: docker's readers take `{"/data": null}`.
pub(crate) fn or_defaults<'de, D, T>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    let map: BTreeMap<String, Option<T>> = or_default(deserializer)?;
    Ok(map.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect())
}
