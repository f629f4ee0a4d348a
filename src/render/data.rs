//! What templates know: facts of cluster and host, and variables.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::render::Inputs;

/// The data of one image's templates on one host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Data {
    /// Variables, also as `.Env`.
    pub(crate) environment: BTreeMap<String, String>,
    /// `.Host`, `.Cluster`, `.Registry`, `.Arch`. A variable of the same name beats a fact: images
    /// were written before there were any.
    pub(crate) facts: Map<String, Value>,
    pub(crate) strict: bool,
}

impl Data {
    /// For the templates of `image`: the variables of all images in order, then its own, then those
    /// of cluster, host and flags.
    pub(crate) fn of(inputs: &Inputs, image: Option<usize>) -> Self {
        let mut environment = BTreeMap::new();
        let own = image.and_then(|image| inputs.images.get(image));
        for image in inputs.images.iter().chain(own) {
            environment.extend(image.environment.clone());
        }
        environment.extend(inputs.environment.clone());
        Self {
            environment,
            facts: inputs.facts.clone(),
            strict: inputs.strict,
        }
    }

    /// As one object.
    pub(super) fn object(&self) -> Value {
        let variables = || {
            self.environment
                .iter()
                .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        };
        let mut object = self.facts.clone();
        object.insert("Env".to_owned(), variables().collect());
        object.extend(variables());
        Value::Object(object)
    }
}
