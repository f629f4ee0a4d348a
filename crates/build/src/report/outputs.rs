//! What later steps of a pipeline read of a build: GitHub's outputs, GitLab's dotenv report, Tekton's
//! results. All values are one line.

use crate::build::Built;

/// Returns the lines for `$GITHUB_OUTPUT`: the outputs of docker/build-push-action. `metadata` is
/// the content of `--metadata-file`.
pub fn github_outputs(built: &Built, metadata: &serde_json::Value) -> String {
    // Compact JSON has no line breaks, so no value can end early and begin another output.
    format!("digest={}\nimageid={}\nmetadata={metadata}\n", built.descriptor.digest, built.image_id)
}

/// Returns a dotenv report.
pub fn dotenv(built: &Built) -> String {
    let names: Vec<String> = built.names.iter().map(ToString::to_string).collect();
    let mut text = String::new();
    let mut add = |name: &str, value: &str| text.push_str(&format!("IMGCTL_{name}={value}\n"));
    add("IMAGE", names.first().map_or("", String::as_str));
    add("IMAGES", &names.join(","));
    add("DIGEST", &built.descriptor.digest.to_string());
    add("IMAGE_ID", &built.image_id.to_string());
    add("REFERENCE", &reference(built));
    text
}

/// Returns Tekton's results by name.
pub fn tekton_results(built: &Built) -> Vec<(&'static str, String)> {
    let url = built.names.first().map_or_else(String::new, ToString::to_string);
    vec![("IMAGE_URL", url), ("IMAGE_DIGEST", built.descriptor.digest.to_string())]
}

/// Returns the image by digest, as deployments name it.
fn reference(built: &Built) -> String {
    let digest = &built.descriptor.digest;
    match built.names.first() {
        Some(name) => format!("{}@{digest}", name.name()),
        None => digest.to_string(),
    }
}
