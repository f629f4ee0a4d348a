//! Signatures of images that are in the store, in OCI layouts and in archives: made there, kept with the
//! image, and taken along by save, load and push. skopeo referees the layouts.

use std::path::Path;

use serde_json::Value;

use super::services::{IDENTITY, ISSUER};
use super::{BUNDLE, DENIED, NOT_FOUND, Site, USAGE};
use crate::common::{Ran, TestEnv, json, tool};

impl Site {
    /// Signs `image` without a key, wherever it is.
    fn sign_there(&self, image: &[&str]) -> Ran {
        let url = &self.services.url;
        let mut words = vec!["sign", "--json", "--identity-token", "token"];
        words.extend(["--fulcio-url", url, "--rekor-url", url]);
        words.extend(image);
        self.imgctl(&words)
    }

    /// Verifies `image`, in the store of `env`.
    fn verify_there(&self, env: &TestEnv, image: &[&str]) -> Ran {
        let root = self.env.path("root.json");
        let mut words = vec!["verify", "--json", "--trusted-root", root.to_str().unwrap()];
        words.extend(["--certificate-identity", IDENTITY, "--certificate-oidc-issuer", ISSUER]);
        words.extend(image);
        env.imgctl(words)
    }
}

fn artifacts(layout: &Path) -> Vec<Value> {
    let index = json(&layout.join("index.json"));
    let manifests = index["manifests"].as_array().unwrap().iter();
    manifests.filter(|entry| entry["artifactType"] == BUNDLE).cloned().collect()
}

#[test]
fn an_image_of_the_store_is_signed_and_takes_its_signatures_along() {
    let site = Site::new();
    let image = site.image();
    site.verify_there(&site.env, &["--local", &image]).fails(DENIED);
    let signed = site.sign_there(&["--local", &image]).ok().json();
    assert!(signed[0]["signature"].as_str().unwrap().starts_with("referrer sha256:"));
    let verified = site.verify_there(&site.env, &["--local", &image]).ok().json();
    assert_eq!(verified[0]["signers"][0]["identity"], IDENTITY);
    assert_eq!(verified[0]["digest"], site.digest());
    // By digest too; and a key beside it, whose second signature is the first one.
    let digest = site.digest();
    site.imgctl(&["key", "generate", "--output-key-prefix", "ours"]).ok();
    for existed in [false, true] {
        let signed = site.imgctl(&["sign", "--json", "--key", "ours.key", &digest]).ok().json();
        assert_eq!(signed[0]["existed"], existed);
    }
    site.imgctl(&["verify", "--key", "ours.pub", &digest]).ok();
    // In a registry only after a push; to a repository that has the image already, too.
    site.verify(&[]).fails(DENIED);
    site.imgctl(&["push", &image]).ok();
    site.verify(&[]).ok();
    let copy = format!("{}/other/copy:v2", site.registry.host);
    site.imgctl(&["push", &image, &copy]).ok();
    site.verify_there(&site.env, &[&copy]).ok();
    let layouts =
        [("push", "oci:pushed:v1"), ("copy", "oci:copied:v1"), ("push", "oci-archive:p.tar:v1")];
    for (verb, place) in layouts {
        site.imgctl(&[verb, &image, place]).ok();
        site.verify_there(&site.env, &[place]).ok();
    }
    let copied = format!("docker://{}/other/copied:v2", site.registry.host);
    site.imgctl(&["copy", &image, &copied]).ok();
    site.verify_there(&site.env, &[&copied]).ok();
    // Another compression makes another image.
    let gzip = format!("{}/other/gzip:v2", site.registry.host);
    site.imgctl(&["push", "--compression", "gzip", &image, &gzip]).ok();
    site.verify_there(&site.env, &[&gzip]).fails(DENIED);
    // Garbage collection leaves them, removal takes them.
    site.imgctl(&["prune", "-f"]).ok();
    site.verify_there(&site.env, &["--local", &image]).ok();

    // An archive and a directory, loaded elsewhere.
    for (format, name) in [("oci-archive", "signed.tar"), ("oci-dir", "signed")] {
        let path = site.env.path(name);
        let path = path.to_str().unwrap();
        site.imgctl(&["save", "--format", format, "-o", path, &image]).ok();
        let there = TestEnv::new();
        there.imgctl(["load", path]).ok();
        assert_eq!(there.imgctl(["images", "-q"]).ok().stdout().lines().count(), 1);
        site.verify_there(&there, &["--local", &image]).ok();
        there.imgctl(["rmi", &image]).ok();
        there.imgctl(["prune", "-f"]).ok();
        let left = std::fs::read_dir(there.root().join("store/referrers")).unwrap().count();
        assert_eq!(left, 0);
    }
    assert_eq!(artifacts(&site.env.path("signed")).len(), 2);
}

#[test]
fn layouts_and_archives_are_signed_where_they_are() {
    let site = Site::new();
    let image = site.image();
    let layout = site.env.path("layout");
    let place = format!("oci:{}:v1", layout.display());
    site.imgctl(&["push", &image, &place]).ok();
    let archive = site.env.path("image.tar");
    let packed = format!("oci-archive:{}", archive.display());
    site.imgctl(&["push", &image, &format!("{packed}:v1")]).ok();
    for place in [&place, &packed] {
        site.verify_there(&site.env, &[place]).fails(DENIED);
        site.sign_there(&[place]).ok();
        let verified = site.verify_there(&site.env, &[place]).ok().json();
        assert_eq!(verified[0]["digest"], site.digest());
        let inspect = ["inspect", "--format", "{{.Digest}}", place.trim_end_matches(":v1")];
        // skopeo wants a name where there is more than one entry.
        let inspect = [inspect[0], inspect[1], inspect[2], &format!("{}:v1", inspect[3])];
        let there = Ran::new(tool("skopeo", inspect)).ok();
        assert_eq!(there.stdout(), site.digest());
    }
    let [artifact] = &artifacts(&layout)[..] else { panic!("one artifact is listed") };
    let hex = artifact["digest"].as_str().unwrap().replace(':', "/");
    let manifest = json(&layout.join("blobs").join(hex));
    assert_eq!(manifest["subject"]["digest"], site.digest());
    // The only image needs no name, although there are artifacts beside it.
    let nameless = format!("oci:{}", layout.display());
    site.verify_there(&site.env, &[&nameless]).ok();
    let there = TestEnv::new();
    there.imgctl(["load", archive.to_str().unwrap(), "--tag", &image]).ok();
    site.verify_there(&there, &["--local", &image]).ok();
    // A signature that somebody changed is none.
    let layer = manifest["layers"][0]["digest"].as_str().unwrap().replace(':', "/");
    let blob = layout.join("blobs").join(layer);
    let text = std::fs::read_to_string(&blob).unwrap();
    std::fs::write(&blob, text.replacen("payload", "payl0ad", 1)).unwrap();
    let refused = site.verify_there(&site.env, &[&place]).fails(DENIED);
    assert!(refused.stderr().contains("something else"), "{}", refused.report());
}

#[test]
fn what_cannot_be_signed_says_why() {
    let site = Site::new();
    site.env.write("none.tar", "not an archive");
    for (image, code, why) in [
        ("nothing-here:v1", NOT_FOUND, "write the full name"),
        ("oci:/nonexistent:v1", NOT_FOUND, "/nonexistent"),
        ("docker-archive:x.tar", USAGE, "has no place for signatures"),
        ("oci-archive:none.tar", 4, "none.tar"),
    ] {
        let refused = site.sign_there(&[image]).fails(code);
        assert!(refused.stderr().contains(why), "{}", refused.report());
    }
    // Nothing was asked of the authority in vain: no entry is in the log for them.
    assert!(site.services.entries() == 0);
}
