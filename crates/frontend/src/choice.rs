//! Values of flags that are words of a plan or a document.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;

/// Reads a choice by the name that plans record it under.
pub fn choice<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    names: impl Into<PossibleValuesParser>,
) -> impl TypedValueParser<Value = T> {
    names.into().try_map(|name| serde_json::from_value::<T>(name.into()))
}
