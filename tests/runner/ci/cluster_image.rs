//! The pipelines in which the published cluster images are made today (`labring-actions/cluster-image`):
//! the command lines of their jobs, in their order, with `sealos`, `buildah` and `docker` as links to
//! imgctl. The scripts are ours; the registries are local.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;

use crate::common::registry::{PASSWORD, Registry, USER};
use crate::common::{IMGCTL, Ran, TestEnv, tool};
use crate::embed::support::Upstream;

/// The job that builds one architecture of an application.
const APPLICATION: &str = r#"
set -eu
readonly work=.build-image
rm -rf $work
mkdir -p $work
test -d "applications/$app/$version" || cp -af "applications/$app/latest" "applications/$app/$version"
cp -rf "applications/$app/$version"/* $work
cd $work
if [[ -s Dockerfile ]]; then file=Dockerfile; else file=Kubefile; fi
if [[ -s init.sh ]]; then bash init.sh "$arch" "$app" "$version"; fi
name="$registry/$repo/$app:$version-$arch"
temporary="${name%%:*}:build-$(date +%s)"
sudo sealos build -t "$temporary" --isolation=chroot --platform "linux/$arch" -f $file .
sudo sealos tag "$temporary" "$name" && sudo sealos rmi -f "$temporary"
sudo sealos login -u "$username" -p "$password" "$registry" &&
  sudo sealos push "$name" && echo "$name push success"
sudo buildah images
"#;

/// The job that joins the architectures.
const MANIFEST: &str = r#"
set -eu
name=$registry/$repo/$app:$version
sudo sealos rmi "$name" || true
sudo sealos manifest create "$name"
sudo sealos manifest add "$name" docker://"$name-amd64"
sudo sealos manifest add "$name" docker://"$name-arm64"
sudo sealos images
sudo sealos login -u "$username" -p "$password" "$registry" &&
  sudo sealos manifest push --all "$name" docker://"$name" && echo "$name push success"
sudo sealos manifest inspect $name
sudo sealos rmi "$name" || true
"#;

/// The job that builds an image of a Clusterfile.
const CONFIGURATION: &str = r"
set -e
cd config/$app/$version
sudo sealos login -u $username -p  $password $registry
sudo sealos build -t $registry/$repo/$app:$version --isolation=chroot -f Dockerfile .
sudo sealos push $registry/$repo/$app:$version
sudo buildah images
";

/// The job that builds one architecture of a container image.
const CONTAINER: &str = r#"
set -eu
cd dockerimages/$app/latest
name="$registry/$repo/$app:$version-$arch"
temporary="${name%%:*}:build-$(date +%s)"
sudo docker build -t "$temporary" --platform "linux/$arch" --build-arg ARCH=$arch --build-arg A=1  -f Dockerfile . --no-cache --pull
sudo docker tag "$temporary" "$name" && sudo docker rmi -f "$temporary"
sudo docker login -u "$username" -p "$password" "$registry" && sudo docker push "$name"
sudo docker images
"#;

/// The job that joins them.
const CONTAINER_MANIFEST: &str = r#"
set -eu
name=$registry/$repo/$app:$version
sudo docker rmi "$name" || true
sudo docker login -u "$username" -p "$password" "$registry"
sudo docker pull "$name-amd64"
sudo docker pull "$name-arm64"
sudo docker manifest create "$name" "$name-amd64" "$name-arm64"
sudo docker manifest annotate "$name" "$name-amd64" --arch amd64
sudo docker manifest annotate "$name" "$name-arm64" --arch arm64
sudo docker images
sudo docker manifest push "$name"
sudo docker manifest inspect $name
sudo docker rmi "$name" || true
"#;

/// A checkout of the repository, and the registry that the jobs push to.
struct Pipeline {
    registry: Registry,
    checkout: TestEnv,
}

impl Pipeline {
    fn new(files: &[(&str, &str)]) -> Self {
        let pipeline = Self { registry: Registry::with_login(), checkout: TestEnv::new() };
        for (path, text) in files {
            pipeline.checkout.write(PathBuf::from("checkout").join(path), text);
        }
        pipeline
    }

    /// Runs a job on a machine of its own.
    fn job(&self, script: &str, variables: &[(&str, &str)]) -> Ran {
        let machine = TestEnv::new();
        let bin = machine.path("bin");
        std::fs::create_dir_all(&bin).unwrap();
        for name in ["sealos", "buildah", "docker"] {
            symlink(IMGCTL, bin.join(name)).unwrap();
        }
        let sudo = machine.write("bin/sudo", "#!/bin/sh\nexec \"$@\"\n");
        std::fs::set_permissions(&sudo, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new("bash");
        command
            .args(["-c", script])
            .current_dir(self.checkout.path("checkout"))
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .env("HOME", machine.path("home"))
            .env("IMGCTL_ROOT", machine.root())
            .env("registry", &self.registry.host)
            .env("repo", "team")
            .env("username", USER)
            .env("password", PASSWORD)
            .env("version", "v1")
            .envs(variables.iter().copied());
        Ran::new(command)
    }

    /// Runs the job of each architecture, then the one that joins them.
    fn both(&self, each: &str, then: &str, app: &str) -> Ran {
        for arch in ["amd64", "arm64"] {
            let ran = self.job(each, &[("app", app), ("arch", arch)]).ok();
            assert!(!ran.report().contains("not logged in"), "{}", ran.report());
        }
        let joined = self.job(then, &[("app", app)]).ok();
        let credentials = format!("{USER}:{PASSWORD}");
        let name = format!("docker://{}/team/{app}:v1", self.registry.host);
        for arch in ["amd64", "arm64"] {
            let arguments =
                ["inspect", "--tls-verify=false", "--creds", &credentials, "--override-arch", arch];
            let found = Ran::new(tool("skopeo", [&arguments[..], &[&name]].concat())).ok();
            assert_eq!(found.json()["Architecture"], arch, "{}", found.report());
        }
        joined
    }
}

#[test]
fn applications_are_built_for_two_architectures_and_joined() {
    let pipeline = Pipeline::new(&[
        // sealos writes the images of the list to `registry` before it builds.
        ("applications/web/latest/init.sh", "mkdir -p images/shim opt\necho \"$1\" > opt/arch\n"),
        (
            "applications/web/latest/Kubefile",
            "FROM scratch\nENV NAMESPACE=web\nCOPY manifests ./manifests\nCOPY opt ./opt\n\
             COPY registry ./registry\nCMD [\"kubectl apply -f manifests\"]\n",
        ),
    ]);
    let upstream = Upstream::new();
    upstream.index("web:1", "base", "own");
    let image = upstream.name("web:1");
    pipeline.checkout.write("checkout/applications/web/latest/images/shim/web", &image);
    let pod = format!("kind: Pod\nspec:\n  containers:\n  - image: {image}\n");
    pipeline.checkout.write("checkout/applications/web/latest/manifests/web.yaml", pod);

    let joined = pipeline.both(APPLICATION, MANIFEST, "web");
    let said = joined.stdout();
    assert!(said.contains(&format!("{}/team/web:v1 push success", pipeline.registry.host)));
    assert!(!said.contains(PASSWORD) && !joined.stderr().contains(PASSWORD));

    // Another machine has the files and the images of its architecture.
    let machine = TestEnv::new();
    let name = format!("{}/team/web:v1", pipeline.registry.host);
    let credentials = format!("{USER}:{PASSWORD}");
    machine.imgctl(["pull", "--platform=linux/arm64", "--creds", &credentials, &name]).ok();
    let tree = machine.export(&name, "tree");
    assert_eq!(std::fs::read_to_string(tree.join("opt/arch")).unwrap(), "arm64\n");
    let link = "registry/docker/registry/v2/repositories/web/_manifests/tags/1/current/link";
    assert!(tree.join(link).is_file());
}

#[test]
fn configurations_are_built_and_pushed() {
    let pipeline = Pipeline::new(&[
        ("config/proxy/v1/Dockerfile", "FROM scratch\nCOPY Clusterfile etc/Clusterfile\n"),
        ("config/proxy/v1/Clusterfile", "kind: Cluster\n"),
    ]);
    let ran = pipeline.job(CONFIGURATION, &[("app", "proxy")]).ok();
    let listed = ran.stdout();
    let listed = listed.lines().last().unwrap();
    let expected = format!("{}/team/proxy", pipeline.registry.host);
    assert!(listed.starts_with(&expected) && listed.contains(" v1 "), "{listed}");
}

#[test]
fn container_images_are_built_as_docker_builds_them() {
    let pipeline = Pipeline::new(&[
        (
            "dockerimages/tool/latest/Dockerfile",
            "FROM scratch\nARG ARCH\nENV ARCH=$ARCH\nCOPY tool /\n",
        ),
        ("dockerimages/tool/latest/tool", "tool"),
    ]);
    let joined = pipeline.both(CONTAINER, CONTAINER_MANIFEST, "tool");
    assert!(joined.stdout().contains("\"architecture\": \"arm64\""), "{}", joined.report());
}

#[test]
fn a_wrong_password_stops_the_pipeline_before_it_pushes() {
    let files =
        [("config/proxy/v1/Dockerfile", "FROM scratch\nCOPY a a\n"), ("config/proxy/v1/a", "a")];
    let pipeline = Pipeline::new(&files);
    let ran = pipeline.job(CONFIGURATION, &[("app", "proxy"), ("password", "wr0ng")]).fails(5);
    assert!(ran.stderr().contains("cannot log in"), "{}", ran.report());
    assert!(!ran.report().contains("wr0ng"), "{}", ran.report());
}
