//! A cluster image as sealos' are: Debian's docker-registry and containerd are set up by scripts of the
//! image, which know nothing of several registry hosts.

use std::path::Path;

use crate::common::testbed::Bed;
use crate::common::{Ran, tool};

/// The image that hosts pull: its name without the registry.
pub(super) const APP: &str = "team/app:v1";
/// Size of each of its two layers, in bytes.
const LAYER: usize = 16 << 20;

const KUBEFILE: &str = "FROM scratch\n\
    LABEL sealos.io.type=rootfs sealos.io.version=v1beta1 sealos.io.distribution=script version=v1\n\
    LABEL init=true.sh join=true.sh clean=clean.sh\n\
    LABEL init-cri=\"init-cri.sh \\$registryDomain \\$registryPort\"\n\
    LABEL init-registry=\"init-registry.sh \\$registryData \\$registryConfig\"\n\
    LABEL clean-registry=\"clean-registry.sh \\$registryData \\$registryConfig\"\n\
    ENV registryData=/var/lib/registry registryConfig=/etc/registry registryDomain=sealos.hub \
    registryPort=5000 registryUsername=admin registryPassword=passw0rd\n\
    COPY . .\n";

const FILES: &[(&str, &str)] = &[
    (
        "etc/registry.yml.tmpl",
        "domain: {{ .registryDomain }}\nport: \"{{ .registryPort }}\"\n\
         username: \"{{ .registryUsername }}\"\npassword: \"{{ .registryPassword }}\"\n\
         data: {{ .registryData }}\n",
    ),
    (
        "etc/registry_config.yml.tmpl",
        "version: 0.1\nstorage:\n  cache:\n    blobdescriptor: inmemory\n  filesystem:\n    \
         rootdirectory: {{ .registryData }}\nhttp:\n  addr: :{{ .registryPort }}\nauth:\n  htpasswd:\n    \
         realm: basic\n    path: {{ .registryConfig }}/registry_htpasswd\n",
    ),
    (
        "etc/config.toml.tmpl",
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\n  \
         config_path = \"/etc/containerd/certs.d\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"{{ .registryDomain }}:{{ .registryPort }}\".auth]\n  \
         username = \"{{ .registryUsername }}\"\n  password = \"{{ .registryPassword }}\"\n",
    ),
    (
        "etc/hosts.toml.tmpl",
        "server = \"http://{{ .registryDomain }}:{{ .registryPort }}\"\n\
         [host.\"http://{{ .registryDomain }}:{{ .registryPort }}\"]\n  \
         capabilities = [\"pull\", \"resolve\", \"push\"]\n  skip_verify = true\n",
    ),
    ("etc/image-cri-shim.yaml.tmpl", "auth: {{ .registryUsername }}:{{ .registryPassword }}\n"),
    (
        "etc/registry.service",
        "[Unit]\nDescription=registry\n[Service]\nEnvironment=OTEL_TRACES_EXPORTER=none\n\
         ExecStart=/usr/local/bin/registry serve /etc/registry/registry_config.yml\nRestart=no\n\
         [Install]\nWantedBy=multi-user.target\n",
    ),
    ("scripts/true.sh", "true\n"),
    (
        "scripts/init-cri.sh",
        "set -e\nmkdir -p \"/etc/containerd/certs.d/$1:$2\"\ncp ../etc/config.toml /etc/containerd/config.toml\n\
         cp ../etc/hosts.toml \"/etc/containerd/certs.d/$1:$2/hosts.toml\"\n\
         cp ../etc/image-cri-shim.yaml /etc/image-cri-shim.yaml\nsystemctl restart containerd\n",
    ),
    (
        "scripts/init-registry.sh",
        "set -e\nmkdir -p \"$2\"\ncp ../etc/registry_config.yml ../etc/registry_htpasswd \"$2\"\n\
         install -m 0755 ../bin/registry /usr/local/bin/registry\n\
         cp ../etc/registry.service /etc/systemd/system/registry.service\n\
         systemctl daemon-reload\nsystemctl enable -q registry\nsystemctl restart registry\n",
    ),
    (
        "scripts/clean-registry.sh",
        "systemctl disable -q --now registry\nrm -rf /etc/systemd/system/registry.service \"$2\"\n",
    ),
    ("scripts/clean.sh", "rm -f /etc/image-cri-shim.yaml\n"),
];

/// Builds `cluster:v1` with the image [`APP`] in its registry.
pub(super) fn build(bed: &Bed) {
    let env = &bed.env;
    let app = env.context("app", "FROM scratch\nCOPY one /\nCOPY two /\n", &[]);
    for (seed, name) in [(1, "one"), (2, "two")] {
        std::fs::write(app.join(name), noise(seed)).unwrap();
    }
    env.imgctl(["build", "-q", "--compression", "none", "-t", "app:v1", app.to_str().unwrap()])
        .ok();
    let cluster = env.context("cluster", KUBEFILE, FILES);
    let tree = cluster.join("registry");
    std::fs::create_dir_all(&tree).unwrap();
    env.imgctl(["push", "app:v1", &format!("registry-dir:{}:{APP}", tree.display())]).ok();
    std::fs::create_dir_all(cluster.join("bin")).unwrap();
    std::fs::copy(docker_registry(), cluster.join("bin/registry")).unwrap();
    env.build("cluster:v1", &cluster);
}

/// The repository of the image that the application `extra:v1` brings.
pub(super) const EXTRA: &str = "team/extra";

/// Builds `extra:v1`, an application of one container image.
pub(super) fn build_extra(bed: &Bed) {
    let env = &bed.env;
    let small = env.context("small", "FROM scratch\nCOPY f /\n", &[("f", "small")]);
    env.build("small:v1", &small);
    let kubefile = "FROM scratch\nLABEL sealos.io.type=application sealos.io.version=v1beta1\n\
        COPY registry registry\n";
    let extra = env.context("extra", kubefile, &[]);
    let tree = extra.join("registry");
    std::fs::create_dir_all(&tree).unwrap();
    env.imgctl(["push", "small:v1", &format!("registry-dir:{}:{EXTRA}:v1", tree.display())]).ok();
    env.build("extra:v1", &extra);
}

fn docker_registry() -> String {
    let found = Ran::new(tool("which", ["docker-registry"])).ok().stdout();
    let path = found.trim().to_owned();
    assert!(Path::new(&path).exists(), "{path}");
    path
}

/// Bytes that do not compress (xorshift).
fn noise(seed: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed);
    let mut bytes = Vec::with_capacity(LAYER);
    while bytes.len() < LAYER {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}
