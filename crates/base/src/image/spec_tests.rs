//! The documents that imgctl writes, byte for byte, judged by the crate `oci-spec`; and the reasons why
//! that crate's own types do not replace them (docs/architecture.md). When one of the reasons
//! no longer holds after an upgrade of the crate, its test fails: adopt the type then.

use std::collections::BTreeMap;

use oci_spec::image::{self as spec, Arch, ImageConfiguration, ImageIndex, ImageManifest, Os};
use serde::Serialize;
use serde_json::{Value, json};

use super::config::{Empty, RootFs};
use super::{
    ContainerConfig, Descriptor, Digest, Document, Healthcheck, History, ImageConfig, Index,
    Manifest, Platform, Reference, media_type,
};

const CONFIG: &str = r#"{"created":"2024-01-02T03:04:05Z","author":"me","architecture":"arm","variant":"v7","os":"linux","config":{"User":"1:2","ExposedPorts":{"1/udp":{},"80/tcp":{}},"Env":["A=1","B=2"],"Entrypoint":["/bin/sh","-c"],"Cmd":["run"],"Healthcheck":{"Test":["CMD","true"],"Interval":5,"Retries":3},"Volumes":{"/data":{}},"WorkingDir":"/w","OnBuild":["RUN"],"Labels":{"a":"1","b":"2"},"StopSignal":"SIGINT","Shell":["/bin/bash"]},"rootfs":{"type":"layers","diff_ids":["sha256:90aebae315675cbf04612de4f7d5874850f48e0b8dd82becbeaa47ca93f5ebfb"]},"history":[{"created_by":"COPY","author":"me"},{"comment":"c","empty_layer":true}]}"#;
const MANIFEST: &str = r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"application/x","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:25cbf80140ae9e98da6678debb7dc08f1d97b769df477da1209c7957c49fd5f5","size":615},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+zstd","digest":"sha256:dac1d7cfa95021764849fd102524e141488c5e3a90f861dbb5a12d9ac8584f85","size":5,"urls":["https://example.com/layer"],"annotations":{"a":"b","io.imgctl.layer.kind":"rootfs"}}],"subject":{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:a9491f4c1bf7b0cffbadcba2db8f028e4b3f2867cb59e1f3a0bc1968f3c51242","size":7},"annotations":{"org.opencontainers.image.base.name":"x:1","z":"1"}}"#;
const INDEX: &str = r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:f0018f1e0fde04fe0a26be542bb94ae1db731144e5f541ec2151fe717cb7843b","size":751,"platform":{"architecture":"arm","os":"windows","os.version":"10.0.17763","os.features":["win32k"],"variant":"v7"},"artifactType":"application/x"}],"annotations":{"a":"1","b":"2"}}"#;

/// An image with every member that imgctl writes.
struct Written {
    config: Vec<u8>,
    manifest: Vec<u8>,
    index: Vec<u8>,
}

fn encoded(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).unwrap()
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn written() -> Written {
    let config = ImageConfig {
        created: Some("2024-01-02T03:04:05Z".into()),
        author: Some("me".into()),
        architecture: "arm".into(),
        variant: Some("v7".into()),
        os: "linux".into(),
        config: ContainerConfig {
            user: "1:2".into(),
            exposed_ports: BTreeMap::from([
                ("80/tcp".into(), Empty {}),
                ("1/udp".into(), Empty {}),
            ]),
            env: words("A=1 B=2"),
            entrypoint: Some(words("/bin/sh -c")),
            cmd: Some(words("run")),
            healthcheck: Some(Healthcheck {
                test: words("CMD true"),
                interval: 5,
                retries: 3,
                ..Healthcheck::default()
            }),
            volumes: BTreeMap::from([("/data".into(), Empty {})]),
            working_dir: "/w".into(),
            on_build: words("RUN"),
            labels: pairs(&[("b", "2"), ("a", "1")]),
            stop_signal: "SIGINT".into(),
            shell: Some(words("/bin/bash")),
            ..ContainerConfig::default()
        },
        rootfs: RootFs { diff_ids: vec![Digest::of(b"tar")], ..RootFs::default() },
        history: vec![
            History {
                created_by: Some("COPY".into()),
                author: Some("me".into()),
                ..History::default()
            },
            History { comment: Some("c".into()), empty_layer: true, ..History::default() },
        ],
        ..ImageConfig::default()
    };
    let config = encoded(&config);
    let descriptor =
        |media: &str, bytes: &[u8]| Descriptor::new(media, Digest::of(bytes), bytes.len() as u64);
    let mut layer = descriptor(media_type::OCI_LAYER_ZSTD, b"layer");
    layer.annotations = pairs(&[("io.imgctl.layer.kind", "rootfs"), ("a", "b")]);
    layer.urls = vec!["https://example.com/layer".into()];
    let manifest = encoded(&Manifest {
        schema_version: 2,
        media_type: Some(media_type::OCI_MANIFEST.into()),
        artifact_type: Some("application/x".into()),
        config: descriptor(media_type::OCI_CONFIG, &config),
        layers: vec![layer],
        subject: Some(descriptor(media_type::OCI_MANIFEST, b"subject")),
        annotations: pairs(&[("z", "1"), ("org.opencontainers.image.base.name", "x:1")]),
    });
    let mut entry = descriptor(media_type::OCI_MANIFEST, &manifest);
    entry.platform = Some(Platform {
        os_version: Some("10.0.17763".into()),
        os_features: words("win32k"),
        ..Platform::new("windows", "arm", Some("v7"))
    });
    entry.artifact_type = Some("application/x".into());
    let mut index = Index::new(vec![entry]);
    index.annotations = pairs(&[("b", "2"), ("a", "1")]);
    Written { config, manifest, index: encoded(&index) }
}

/// A change here changes the digest of every image.
#[test]
fn documents_keep_their_bytes() {
    let written = written();
    for (bytes, expected) in
        [(written.config, CONFIG), (written.manifest, MANIFEST), (written.index, INDEX)]
    {
        assert_eq!(std::str::from_utf8(&bytes).unwrap(), expected);
    }
}

#[test]
fn oci_spec_reads_what_is_written() {
    let written = written();
    let config: ImageConfiguration = serde_json::from_slice(&written.config).unwrap();
    assert_eq!((config.architecture(), config.os()), (&Arch::ARM, &Os::Linux));
    assert_eq!(config.variant().as_deref(), Some("v7"));
    assert_eq!(config.rootfs().diff_ids(), &[Digest::of(b"tar").to_string()]);
    let inner = config.config().as_ref().unwrap();
    assert_eq!(inner.entrypoint().as_deref(), Some(&words("/bin/sh -c")[..]));
    assert_eq!(inner.labels().as_ref().unwrap()["b"], "2");
    assert_eq!(inner.exposed_ports().as_ref().unwrap().len(), 2);
    assert_eq!(config.history().as_ref().unwrap()[1].empty_layer(), Some(true));

    let manifest: ImageManifest = serde_json::from_slice(&written.manifest).unwrap();
    assert_eq!(manifest.media_type(), &Some(spec::MediaType::ImageManifest));
    assert_eq!(manifest.config().media_type(), &spec::MediaType::ImageConfig);
    assert_eq!(manifest.config().digest().as_ref(), Digest::of(&written.config).to_string());
    assert_eq!(manifest.config().size(), written.config.len() as u64);
    assert_eq!(manifest.layers()[0].media_type(), &spec::MediaType::ImageLayerZstd);
    assert_eq!(manifest.layers()[0].annotations().as_ref().unwrap()["a"], "b");
    assert_eq!(manifest.layers()[0].urls().as_ref().unwrap().len(), 1);
    assert!(manifest.subject().is_some() && manifest.artifact_type().is_some());

    let index: ImageIndex = serde_json::from_slice(&written.index).unwrap();
    assert_eq!(index.media_type(), &Some(spec::MediaType::ImageIndex));
    let platform = index.manifests()[0].platform().as_ref().unwrap();
    assert_eq!((platform.architecture(), platform.os()), (&Arch::ARM, &Os::Windows));

    // The same digests, and only those that a path can hold.
    let digest = Digest::of(b"x").to_string();
    assert_eq!(digest.parse::<spec::Digest>().unwrap().digest(), Digest::of(b"x").hex());
    assert!("md5:d41d8cd98f00b204e9800998ecf8427e".parse::<spec::Digest>().is_ok());
    assert!(Digest::parse("md5:d41d8cd98f00b204e9800998ecf8427e").is_err());
}

/// Its maps are `HashMap`s: the same document has other bytes, and another digest, each time.
#[test]
fn oci_spec_writes_maps_in_random_order() {
    let labels: BTreeMap<String, String> =
        (0..16).map(|n| (n.to_string(), n.to_string())).collect();
    let document = json!({
        "schemaVersion": 2, "layers": [], "annotations": labels,
        "config": Descriptor::new(media_type::OCI_CONFIG, Digest::of(b"x"), 1),
    });
    let bytes = encoded(&document);
    let times = |bytes: &[u8]| serde_json::from_slice::<ImageManifest>(bytes).unwrap();
    let all: std::collections::BTreeSet<Vec<u8>> =
        (0..20).map(|_| encoded(&times(&bytes))).collect();
    assert!(all.len() > 1, "oci-spec sorts its maps now");
    let ours = (0..20).map(|_| Document::parse(&bytes, None).unwrap());
    let ours = ours.map(|document| match document {
        Document::Manifest(manifest) => encoded(&manifest),
        Document::Index(_) => panic!("it is a manifest"),
    });
    assert_eq!(ours.collect::<std::collections::BTreeSet<_>>().len(), 1);
}

/// Documents of Docker, Go and Windows builders that pass through and have to stay what they are.
#[test]
fn oci_spec_loses_or_refuses_what_is_in_use() {
    let written = written();
    // The version of Windows, by which its hosts choose the image (its key is written `os_version`).
    let index: ImageIndex = serde_json::from_slice(&written.index).unwrap();
    let platform = &serde_json::to_value(&index).unwrap()["manifests"][0]["platform"];
    assert_eq!(platform["os.version"], Value::Null);
    assert_eq!(index.manifests()[0].platform().as_ref().unwrap().os_version(), &None);

    // What Docker and BuildKit add to a config, and what nobody knows yet.
    let config: ImageConfiguration = serde_json::from_slice(&written.config).unwrap();
    let kept = &serde_json::to_value(&config).unwrap()["config"];
    for member in ["Healthcheck", "OnBuild", "Shell"] {
        assert_eq!(kept[member], Value::Null, "{member}");
    }

    // Go writes an empty list as null.
    let null = json!({
        "schemaVersion": 2, "layers": null,
        "config": Descriptor::new(media_type::OCI_CONFIG, Digest::of(b"x"), 1),
    });
    let null = encoded(&null);
    assert!(serde_json::from_slice::<ImageManifest>(&null).is_err());
    assert!(Document::parse(&null, None).is_ok());

    // A short name is ours before it is Docker Hub's; addresses of IPv6 are registries.
    let short: oci_spec::distribution::Reference = "etcd".parse().unwrap();
    assert_eq!(short.whole(), "docker.io/library/etcd:latest");
    assert_eq!(Reference::parse("etcd").unwrap().registry(), None);
    assert!("[::1]:5000/a".parse::<oci_spec::distribution::Reference>().is_err());
    assert!(Reference::parse("[::1]:5000/a").is_ok());
}

#[test]
fn images_are_known_by_their_config_and_old_docker_images_by_their_layers() {
    let parse = |manifest: &str, config: &str, layer: &str| {
        let blob = |media: &str| Descriptor::new(media, Digest::of(b"x"), 1);
        let layers: Vec<_> =
            Some(layer).filter(|layer| *layer != "none").map(blob).into_iter().collect();
        let text = serde_json::json!({
            "schemaVersion": 2, "mediaType": manifest, "config": blob(config), "layers": layers,
        });
        match Document::parse(text.to_string().as_bytes(), None).unwrap() {
            Document::Manifest(manifest) => manifest.is_image(),
            Document::Index(_) => panic!("it is a manifest"),
        }
    };
    let (oci, docker) = (media_type::OCI_MANIFEST, media_type::DOCKER_MANIFEST);
    let layer = media_type::DOCKER_LAYER_GZIP;
    for (manifest, config, layer, expected) in [
        (oci, media_type::OCI_CONFIG, media_type::OCI_LAYER, true),
        (oci, media_type::OCI_CONFIG, "none", true),
        (docker, media_type::DOCKER_CONFIG, layer, true),
        (docker, "application/octet-stream", layer, true),
        (docker, "text/html", layer, true),
        (docker, "", layer, true),
        (docker, "application/octet-stream", "none", false),
        (docker, "application/octet-stream", "application/x.chart", false),
        (docker, "application/vnd.docker.plugin.v1+json", layer, false),
        (oci, "application/octet-stream", media_type::OCI_LAYER, false),
        (oci, "application/vnd.oci.empty.v1+json", media_type::OCI_LAYER, false),
    ] {
        assert_eq!(parse(manifest, config, layer), expected, "{manifest} {config} {layer}");
    }
}
