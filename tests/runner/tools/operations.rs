//! Operations of tools that need no daemon.

use super::{Outcome, Site, Suite};

/// The flags of a storage of containers/storage for one suite and compression.
fn storage(site: &Site, suite: Suite<'_>, form: &str) -> [String; 6] {
    let place = format!("{}-{form}", suite.name());
    let (root, run) = (site.path(&format!("storage-{place}")), site.path(&format!("run-{place}")));
    [
        "--root".to_owned(),
        root,
        "--runroot".to_owned(),
        run,
        "--storage-driver".to_owned(),
        "vfs".to_owned(),
    ]
}

pub(super) fn skopeo(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    let to = site.path(&format!("skopeo-{}-{form}", suite.name()));
    let words = [
        "skopeo",
        "--insecure-policy",
        "copy",
        "-q",
        "--preserve-digests",
        "--src-tls-verify=false",
    ];
    let (from, place) = (format!("docker://{}", site.name(form)), format!("oci:{to}:x"));
    site.run(suite, &[&words[..], &[&from, &place]].concat())?;
    let index = crate::common::json(&std::path::Path::new(&to).join("index.json"));
    let digest = index["manifests"][0]["digest"].as_str().unwrap_or_default();
    if digest == site.digest(form) { Ok(()) } else { Err(format!("another digest: {digest}")) }
}

pub(super) fn buildah(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    let storage = storage(site, suite, form);
    let mut words = vec!["buildah"];
    words.extend(storage.iter().map(String::as_str));
    let (name, from) = (site.name(form), ["from", "--quiet", "--tls-verify=false"]);
    let container = site.run(suite, &[&words[..], &from, &[&name]].concat())?;
    let container = container.lines().last().unwrap_or_default().trim().to_owned();
    let place = site.run(suite, &[&words[..], &["mount", &container]].concat())?;
    site.same_tree(place.trim())
}

pub(super) fn podman(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    let storage = storage(site, suite, form);
    let mut words = vec!["podman"];
    words.extend(storage.iter().map(String::as_str));
    // crun refuses the hybrid control groups of some machines.
    words.extend(["--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]);
    let name = site.name(form);
    // The default limits are more than a container host may allow.
    let limits = ["--ulimit", "nofile=20000:20000", "--ulimit", "nproc=1000:1000"];
    let run = ["--network", "none", "--tls-verify=false", &name];
    let said = site.run(suite, &[&words[..], &["run", "--rm"], &limits, &run].concat())?;
    if said.trim() == "content" { Ok(()) } else { Err(format!("it said {said}")) }
}

pub(super) fn umoci(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    let bundle = site.path(&format!("umoci-{}-{form}", suite.name()));
    let image = format!("{}:x", site.path(&format!("layout-{form}")));
    site.run(suite, &["umoci", "unpack", "--image", &image, &bundle])?;
    site.same_tree(&format!("{bundle}/rootfs"))
}

pub(super) fn crane(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    let (name, copy) = (site.name(form), format!("{}/team/copy:{form}", site.registry.host));
    let digest = site.run(suite, &["crane", "digest", "--insecure", &name])?;
    site.run(suite, &["crane", "copy", "--insecure", &name, &copy])?;
    let copied = site.run(suite, &["crane", "digest", "--insecure", &copy])?;
    let wanted = site.digest(form);
    if [digest.trim(), copied.trim()] != [wanted.as_str(); 2] {
        return Err(format!("digests {digest} and {copied}"));
    }
    let (tar, place) =
        (site.path(&format!("crane-{form}.tar")), site.path(&format!("crane-{form}")));
    site.run(suite, &["crane", "export", "--insecure", &name, &tar])?;
    std::fs::create_dir_all(&place).map_err(|error| error.to_string())?;
    site.run(Suite::Installed, &["tar", "-xpf", &tar, "-C", &place])?;
    site.same_tree(&place)
}

pub(super) fn crane_validate(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    site.run(suite, &["crane", "validate", "--insecure", "--remote", &site.name(form)]).map(drop)
}

pub(super) fn oras(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    let layout = site.path(&format!("oras-{form}"));
    let to = format!("{layout}:x");
    let words = ["oras", "copy", "--no-tty", "--from-plain-http", "--to-oci-layout"];
    site.run(suite, &[&words[..], &[&site.name(form), &to]].concat())?;
    let tag = format!("localhost/oras:{form}");
    site.imgctl(&["load", "--tag", &tag, "-i", &layout])?;
    let found = site.imgctl(&["inspect", "--format", "{{.FromImageDigest}}", &tag])?;
    if found.trim() == site.digest(form) { Ok(()) } else { Err(format!("another digest: {found}")) }
}

/// Both find the signature that imgctl wrote as a referrer.
pub(super) fn oras_discover(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    let (name, key) = (site.name(form), site.path("key.key"));
    site.imgctl(&[
        "sign",
        "--tls-verify=false",
        "--format",
        "bundle",
        "--referrers",
        "--key",
        &key,
        &name,
    ])?;
    let words = ["oras", "discover", "--plain-http", "--format", "json", &name];
    let found = site.run(suite, &words)?;
    if found.contains("sigstore.bundle") { Ok(()) } else { Err(found) }
}

pub(super) fn cosign(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    let (name, key, public) = (site.name(form), site.path("key.key"), site.path("key.pub"));
    site.imgctl(&["sign", "--tls-verify=false", "--key", &key, &name])?;
    let pinned = format!("{}/team/app@{}", site.registry.host, site.digest(form));
    let words =
        ["cosign", "verify", "--insecure-ignore-tlog", "--allow-insecure-registry", "--key"];
    site.run(suite, &[&words[..], &[&public, &pinned]].concat()).map(drop)
}

pub(super) fn erofs(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    let name = site.name(form);
    let merged = site.imgctl(&["mount", "--read-only", "--backend", "erofs", &name])?;
    let merged = std::path::Path::new(merged.trim());
    let index = merged.with_file_name("index.erofs");
    let diff = site.imgctl(&[
        "inspect",
        "--format",
        "{{range .OCIv1.RootFS.DiffIDs}}{{.}} {{end}}",
        &name,
    ])?;
    let to = site.path(&format!("erofs-{}-{form}", suite.name()));
    let mut words =
        vec!["fsck.erofs".to_owned(), format!("--extract={to}"), "--preserve".to_owned()];
    for layer in diff.split_whitespace() {
        let blob = site.env.root().join("store/blobs").join(layer.replace(':', "/"));
        words.push(format!("--device={}", blob.display()));
    }
    words.push(index.to_str().unwrap_or_default().to_owned());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    site.run(suite, &words)?;
    site.run(suite, &["dump.erofs", "-s", words[words.len() - 1]])?;
    site.same_tree(&to)
}

/// composefs has a format of its own; what imgctl exports can be made one.
pub(super) fn composefs(site: &Site, suite: Suite<'_>, form: &str) -> Outcome {
    let (tree, image) =
        (site.path(&format!("composefs-{form}")), site.path(&format!("{form}.cfs")));
    site.imgctl(&["export", &site.name(form), "-o", &tree])?;
    site.run(suite, &["mkcomposefs", &tree, &image])?;
    let listed = site.run(suite, &["composefs-info", "ls", &image])?;
    if listed.contains("/d/a.txt") { Ok(()) } else { Err(listed) }
}
