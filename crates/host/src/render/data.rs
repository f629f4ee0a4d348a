//! Template data: variables, and facts about the cluster and host.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::render::Inputs;

/// Data for the templates of one image on one host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Data {
    /// Variables, also available as `.Env`.
    pub environment: BTreeMap<String, String>,
    /// `.Host`, `.Cluster`, `.Registry`, `.Arch`. A variable overrides a fact of the same name,
    /// because older images were written before facts existed.
    pub facts: Map<String, Value>,
    pub strict: bool,
}

impl Data {
    /// Builds the data for the templates of `image`: the variables of all images in order, then the
    /// image's own, then those of cluster, host and flags.
    pub(super) fn of(inputs: &Inputs, image: Option<usize>) -> Self {
        let mut environment = BTreeMap::new();
        let own = image.and_then(|image| inputs.images.get(image));
        for image in inputs.images.iter().chain(own) {
            environment.extend(image.environment.clone());
        }
        environment.extend(inputs.environment.clone());
        Self { environment, facts: inputs.facts.clone(), strict: inputs.strict }
    }

    /// Returns all data as one object.
    pub(super) fn object(&self) -> Value {
        let variables = || {
            self.environment.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        };
        let mut object = self.facts.clone();
        object.insert("Env".to_owned(), variables().collect());
        object.extend(variables());
        Value::Object(object)
    }
}
