//! Builds small Kubefiles and checks the tree and config of the image.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::base_image::BaseImages;
use super::mirrors::Mirrors;
use super::options::{ContextSource, EmbedOptions, Format, Network, Options};
use super::{Built, build};
use crate::cache::CacheOptions;
use imgctl_base::error::Kind;
use imgctl_base::image::{ContainerConfig, LayerKind, Reference};
use imgctl_base::progress::Silent;
use imgctl_layer::tree::Tree;
use imgctl_layer::{Compression, EntryKind, LayerPath};
use imgctl_store::store::{self, Store};

mod links;

struct Bench {
    directory: tempfile::TempDir,
    store: Store,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("context")).unwrap();
        let store =
            Store::open(&directory.path().join("root"), store::Options { sync: false }).unwrap();
        Self { directory, store }
    }

    fn context(&self) -> PathBuf {
        self.directory.path().join("context")
    }

    fn file(&self, path: &str, content: &str) -> &Self {
        let path = self.context().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn options(&self) -> Options {
        Options {
            context: ContextSource::Directory(self.context()),
            file: None,
            ignore_file: None,
            tags: vec![Reference::parse("test").unwrap()],
            platforms: Vec::new(),
            all_platforms: false,
            target: None,
            build_args: BTreeMap::new(),
            build_contexts: super::options::NamedContexts::default(),
            env: Vec::new(),
            unset_env: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            platform_annotations: Vec::new(),
            base_images: BaseImages::default(),
            no_cache: false,
            no_cache_stages: BTreeSet::new(),
            cache: CacheOptions::default(),
            compression: Compression::default(),
            format: Format::Oci,
            timestamp: None,
            now: 4_000_000_000,
            squash: false,
            network: Network::Default,
            allow_insecure: false,
            allow_host_network: false,
            secrets: BTreeMap::new(),
            mirrors: Mirrors::default(),
            ssh: BTreeMap::new(),
            add_hosts: Vec::new(),
            jobs: 2,
            executable: PathBuf::from("/proc/self/exe"),
            proxy_env: BTreeMap::new(),
            embed: EmbedOptions::default(),
            attest: super::options::Attestations::default(),
            overrides: super::options::Overrides::default(),
            turns: crate::build::Turns::default(),
            lint: false,
        }
    }

    fn build_with(
        &self,
        kubefile: &str,
        change: impl FnOnce(&mut Options),
    ) -> imgctl_base::error::Result<Built> {
        self.file("Kubefile", kubefile);
        let mut options = self.options();
        change(&mut options);
        build(&self.store, &options, &Silent)
    }

    fn build(&self, kubefile: &str) -> Built {
        self.build_with(kubefile, |_| {}).unwrap()
    }

    fn error(&self, kubefile: &str) -> String {
        let error = self.build_with(kubefile, |_| {}).unwrap_err();
        format!("{error} ({})", error.hints().join("; "))
    }

    fn config(&self, built: &Built) -> ContainerConfig {
        self.store.image_at(&built.descriptor, None).unwrap().config.config
    }

    fn tree(&self, built: &Built) -> Tree {
        let image = self.store.image_at(&built.descriptor, None).unwrap();
        let tocs = image
            .layers()
            .map(|(layer, diff_id)| Arc::new(self.store.toc(&layer.digest, diff_id).unwrap()));
        Tree::from_layers(tocs.collect::<Vec<_>>()).unwrap()
    }

    /// Returns the tree as lines of `mode owner path`.
    fn listing(&self, built: &Built) -> Vec<String> {
        let tree = self.tree(built);
        tree.walk(&LayerPath::root())
            .filter(|(path, _)| !path.is_root())
            .map(|(path, found)| {
                let entry = found.entry();
                let path = String::from_utf8_lossy(path.as_bytes()).into_owned();
                let more = match &entry.kind {
                    EntryKind::Directory => "/".to_owned(),
                    EntryKind::Symlink { target } => {
                        format!(" -> {}", String::from_utf8_lossy(target))
                    }
                    _ => String::new(),
                };
                format!("{:o} {}:{} {path}{more}", entry.mode, entry.uid, entry.gid)
            })
            .collect()
    }
}

#[test]
fn copy_takes_a_context_as_it_is() {
    let bench = Bench::new();
    bench.file("bin/tool", "x").file("etc/conf", "y");
    fs::set_permissions(bench.context().join("bin/tool"), fs::Permissions::from_mode(0o755))
        .unwrap();
    symlink("tool", bench.context().join("bin/link")).unwrap();
    let built = bench.build("FROM scratch\nCOPY bin /bin/\nCOPY etc/conf /etc/other\n");
    assert_eq!(
        bench.listing(&built),
        [
            "755 0:0 bin/",
            "777 0:0 bin/link -> tool",
            "755 0:0 bin/tool",
            "755 0:0 etc/",
            "644 0:0 etc/other"
        ]
    );
}

#[test]
fn the_same_context_gives_the_same_bytes() {
    let (first, second) = (Bench::new(), Bench::new());
    for bench in [&first, &second] {
        for name in ["b", "a/x", "a/y", "registry/z"] {
            bench.file(name, name);
            let file = fs::File::options().write(true).open(bench.context().join(name)).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000))
                .unwrap();
        }
    }
    let kubefile = "FROM scratch\nCOPY a b /opt/\nCOPY registry /registry/\nENV A=1\n";
    let one = first.build(kubefile);
    let two = second
        .build_with(kubefile, |options| {
            (options.jobs, options.now) = (7, 5_000_000_000);
        })
        .unwrap();
    assert_eq!(one.descriptor, two.descriptor);
}

#[test]
fn an_unchanged_context_is_not_read_again() {
    let bench = Bench::new();
    bench.file("a", "one").file("dir/b", "two");
    let kubefile = "FROM scratch\nCOPY a dir /x/\n";
    let one = bench.build(kubefile);
    assert_eq!(one.steps.cached, 0);
    // The cached step and the same digest show that nothing was written again.
    let two = bench.build(kubefile);
    assert_eq!((two.steps.cached, &two.descriptor), (1, &one.descriptor));
    bench.file("a", "another");
    let three = bench.build(kubefile);
    assert_eq!(three.steps.cached, 0);
    assert_ne!(three.descriptor.digest, one.descriptor.digest);
}

#[test]
fn what_lies_under_registry_is_a_layer_of_its_own_and_is_not_compressed() {
    let bench = Bench::new();
    bench.file("registry/docker/x", "blob").file("manifests/m.yaml", "y").file("bin/z", "z");
    let built = bench.build("FROM scratch\nCOPY . .\n");
    let image = bench.store.image_at(&built.descriptor, None).unwrap();
    let kinds: Vec<_> = image
        .manifest
        .layers
        .iter()
        .map(|layer| {
            (layer.layer_kind().unwrap(), layer.media_type.rsplit('.').next().unwrap().to_owned())
        })
        .collect();
    assert_eq!(
        kinds,
        [
            (LayerKind::Rootfs, "tar+zstd".to_owned()),
            (LayerKind::Registry, "tar".to_owned()),
            (LayerKind::Addons, "tar+zstd".to_owned())
        ]
    );
}

#[test]
fn variables_and_config() {
    let bench = Bench::new();
    let kubefile = r#"
ARG BASE=scratch
FROM ${BASE}
ARG VERSION=1.0
ARG TARGETARCH
ENV A=1 B="two words" C=$A
ENV D=${A}x E=${NONE:-default}
LABEL sealos.io.type="rootfs" version=v$VERSION init="init.sh \$registryDomain"
EXPOSE 80 53/udp
VOLUME /data
USER nobody
WORKDIR /srv
WORKDIR app
STOPSIGNAL SIGINT
CMD ["kubectl apply -f manifests"]
"#;
    let built = bench.build(kubefile);
    let config = bench.config(&built);
    assert_eq!(config.env[1..], ["A=1", "B=two words", "C=", "D=1x", "E=default"]);
    assert_eq!(config.labels["version"], "v1.0");
    assert_eq!(config.labels["init"], "init.sh $registryDomain");
    assert_eq!(config.exposed_ports.keys().collect::<Vec<_>>(), ["53/udp", "80/tcp"]);
    assert_eq!((config.user.as_str(), config.working_dir.as_str()), ("nobody", "/srv/app"));
    assert_eq!(config.cmd.unwrap(), ["kubectl apply -f manifests"]);
    assert_eq!(bench.listing(&built), ["755 0:0 srv/", "755 0:0 srv/app/"]);
}

#[test]
fn stages_are_built_only_if_needed_and_copied_from() {
    let bench = Bench::new();
    bench.file("a", "a").file("b", "b");
    let built = bench.build(
        "FROM scratch AS unused\nCOPY missing /\nFROM scratch AS one\nCOPY a /dir/a\nFROM scratch\nCOPY --from=one --chown=5:6 /dir /out\nCOPY --from=1 dir/a /\n",
    );
    assert_eq!(bench.listing(&built), ["644 0:0 a", "755 5:6 out/", "644 5:6 out/a"]);
}

#[test]
fn errors_name_the_place_and_the_way_out() {
    let bench = Bench::new();
    bench.file("scripts/init.sh", "x").file(".dockerignore", "secret\n").file("secret", "s");
    let error = bench.error("FROM scratch\nCOPY script/init.sh /\n");
    assert!(error.contains("2 | COPY script/init.sh /\n  |      ^^^^^^^^^^^^^^"), "{error}");
    assert!(error.contains("did you mean `scripts`"), "{error}");
    for (line, word) in [
        ("EXPOSE 80 many/tcp", "many/tcp"),
        ("COPY --chmod=9999 scripts /", "9999"),
        ("COPY none* /x/", "none*"),
        ("RUN --mount=type=secret,id=token,required true", "token"),
        ("LABEL a=${b", "${b"),
    ] {
        let error = bench.error(&format!("FROM scratch\n{line}\n"));
        let at = line.find(word).unwrap();
        let caret = format!("2 | {line}\n  | {}{}", " ".repeat(at), "^".repeat(word.len()));
        assert!(error.contains(&caret), "{error}");
    }
    let error = bench.error("FROM scratch\nCOPY secret /\n");
    assert!(error.contains("ignore rule excludes it"), "{error}");
    let error = bench.error("FROM scratch AS a\nCOPY --from=b /x /\nFROM scratch AS b\n");
    assert!(error.contains("a later stage"), "{error}");
    symlink("nowhere", bench.context().join("scripts/dangling")).unwrap();
    let error = bench.error("FROM scratch\nCOPY scripts/* /\n");
    assert!(error.contains("is it a dangling symlink?"), "{error}");
    for below in ["/f/", "/f/x"] {
        let error = bench.error(&format!(
            "FROM scratch\nCOPY scripts/init.sh /f\nCOPY scripts/init.sh {below}\n"
        ));
        assert!(error.contains("/f is a file in the image"), "{error}");
    }
    let error = bench.error("FROM nosuchimage:v1\n");
    assert!(error.contains("nosuchimage:v1"), "{error}");
    let error = bench.build_with("FROM scratch\n", |options| {
        options.target = Some("x".to_owned());
    });
    assert_eq!(error.unwrap_err().kind(), Kind::Usage);
}

#[test]
fn add_extracts_archives_and_heredocs_are_files() {
    let bench = Bench::new();
    bench.file("tree/in/file", "content");
    let status = std::process::Command::new("tar")
        .args(["-czf", "archive.tgz", "-C", "tree", "in"])
        .current_dir(bench.context())
        .status()
        .unwrap();
    assert!(status.success());
    let built = bench.build(
        "FROM scratch\nADD archive.tgz /x/\nADD --unpack=false archive.tgz /y/\nARG V=1\nCOPY <<EOF /z/conf\nvalue $V\nEOF\n",
    );
    let names: Vec<String> = bench
        .listing(&built)
        .iter()
        .map(|line| line.rsplit(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["x/", "x/in/", "x/in/file", "y/", "y/archive.tgz", "z/", "z/conf"]);
    let tree = bench.tree(&built);
    let conf = tree.lookup(&LayerPath::parse(b"z/conf").unwrap()).unwrap();
    assert_eq!(conf.entry().size(), "value 1\n".len() as u64);
}

#[test]
fn hard_links_stay_links_and_squash_gives_one_layer() {
    let bench = Bench::new();
    bench.file("dir/a", "same");
    fs::hard_link(bench.context().join("dir/a"), bench.context().join("dir/b")).unwrap();
    let kubefile = "FROM scratch\nCOPY dir /x\nCOPY dir/a /y\n";
    let built = bench.build_with(kubefile, |options| options.squash = true).unwrap();
    let image = bench.store.image_at(&built.descriptor, None).unwrap();
    assert_eq!(image.manifest.layers.len(), 1);
    let (layer, diff_id) = image.layers().next().unwrap();
    let toc = bench.store.toc(&layer.digest, diff_id).unwrap();
    let link = toc.find(&LayerPath::parse(b"x/b").unwrap()).unwrap();
    assert_eq!(link.entry.kind, EntryKind::HardLink { target: LayerPath::parse(b"x/a").unwrap() });
}

#[test]
fn a_missing_context_is_named() {
    let bench = Bench::new();
    let error = bench
        .build_with("FROM scratch\n", |options| {
            options.context = ContextSource::Directory(Path::new("/no/such/place").to_owned());
        })
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("/no/such/place"));
}

/// Starts a server on this machine's loopback that answers every request with `body`.
fn serve(body: &'static [u8]) -> String {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nlast-modified: Thu, 01 Jan 1998 00:00:00 GMT\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(body);
        }
    });
    format!("http://{address}")
}

#[test]
fn urls_are_downloaded_verified_and_dated() {
    let bench = Bench::new();
    let url = serve(b"from afar");
    let digest = imgctl_base::image::Digest::of(b"from afar");
    let built = bench.build(&format!("FROM scratch\nADD --checksum={digest} {url}/file /x/\n"));
    assert_eq!(bench.listing(&built), ["755 0:0 x/", "600 0:0 x/file"]);
    let tree = bench.tree(&built);
    let file = tree.lookup(&LayerPath::parse(b"x/file").unwrap()).unwrap();
    assert_eq!(file.entry().mtime.seconds, 883_612_800);
    let other = imgctl_base::image::Digest::of(b"something else");
    let kubefile = format!("FROM scratch\nADD --checksum={other} {url}/file /x/\n");
    let error = bench.build_with(&kubefile, |_| {}).unwrap_err();
    assert_eq!(error.kind(), Kind::BadContent);
}
