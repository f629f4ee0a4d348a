//! Real etcd goes from 3.4.23 over 3.5.0 to 3.5.1 and back.

use crate::common::testbed::Bed;
use crate::common::{Ran, repository, tool};

/// Builds etcd:vVERSION from the example; `false`, with a word on why, when the binaries cannot be
/// had here.
#[allow(
    clippy::disallowed_methods,
    reason = "whether this is CI is told by the environment"
)]
pub(crate) fn build(bed: &Bed, version: &str) -> bool {
    let example = bed.env.path("etcd");
    if !example.exists() {
        let from = repository().join("Kubefile.examples/etcd");
        Ran::new(tool("cp", ["-R".as_ref(), from.as_path(), &example])).ok();
    }
    let mut fetch = tool::<&str>(example.join("fetch").to_str().unwrap(), []);
    fetch.env("ETCD_VERSION", version);
    let fetched = Ran::new(fetch);
    if !fetched.success() {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI needs etcd: {}",
            fetched.report()
        );
        println!("skipped: {}", fetched.report());
        return false;
    }
    let argument = format!("ETCD_VERSION={version}");
    let name = format!("etcd:v{version}");
    let context = example.to_str().unwrap();
    bed.imgctl(["build", "--build-arg", &argument, "-t", &name, context])
        .ok();
    true
}

/// The addresses of all hosts.
pub(crate) fn addresses(bed: &Bed) -> Vec<String> {
    (1..=bed.len()).map(|host| bed.ip(host)).collect()
}
