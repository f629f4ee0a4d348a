//! Realistic manifests and the images found in them.

use super::*;
use crate::found::Found;

fn scanned(text: &str) -> Found {
    let mut found = Collector::new("");
    scan(text, "m.yaml", &mut found);
    found.finish()
}

/// Returns `reference line how` for each image, sorted by reference.
fn images(text: &str) -> Vec<String> {
    let found = scanned(text);
    let places = found.images.iter().flat_map(|image| {
        image
            .places
            .iter()
            .map(move |place| format!("{} {} {:?}", image.reference, place.line, place.how))
    });
    places.collect()
}

#[test]
fn every_way_to_name_an_image_is_understood() {
    for (text, expected) in [
        (
            "kind: Pod\nspec:\n  containers:\n  - name: a\n    image: nginx\n  initContainers:\n  - {image: 'quay.io/a/b:1'}\n",
            vec!["docker.io/library/nginx:latest 5 PodSpec", "quay.io/a/b:1 7 PodSpec"],
        ),
        (
            "spec:\n  volumes:\n  - name: v\n    image:\n      reference: quay.io/a/vol:1\n",
            vec!["quay.io/a/vol:1 5 PodSpec"],
        ),
        (
            "kind: Foo\nspec:\n  sidecarImage: a/b:2\n  image: c/d\n  osImage: Ubuntu 22.04\n",
            vec!["docker.io/a/b:2 3 Field", "docker.io/c/d:latest 4 Field"],
        ),
        (
            "image:\n  registry: quay.io\n  repository: a/b\n  tag: 1.5\n",
            vec!["quay.io/a/b:1.5 3 Field"],
        ),
        (
            "proxy:\n  repository: gcr.io/a/b\n  tag: v1\nsource:\n  repository: https://git/x\n  tag: v1\n",
            vec!["gcr.io/a/b:v1 2 Field"],
        ),
        ("spec:\n  image: quay.io/p/p\n  tag: v3\n", vec!["quay.io/p/p:v3 2 Field"]),
        ("images:\n- name: x\n  newName: quay.io/y\n  newTag: v9\n", vec!["quay.io/y:v9 3 Field"]),
        (
            "env:\n- name: RELATED_IMAGE_X\n  value: a/x:1\n- name: Y_IMAGE\n  value: \"b/y:1\"\n- name: PATH\n  value: c/z:1\n",
            vec!["docker.io/a/x:1 3 Environment", "docker.io/b/y:1 5 Environment"],
        ),
        (
            "args: [--foo, --solver-image=quay.io/s:1, --image, t:2, --image-pull-policy=a/b:c]\n",
            vec!["docker.io/library/t:2 1 Argument", "quay.io/s:1 1 Argument"],
        ),
        (
            "kind: ConfigMap\ndata:\n  a.yaml: |\n    # note\n    spec:\n      containers:\n      - image: in/side:1\n  b: \"kind: Pod\\nspec:\\n  containers: [{image: flat/one:1}]\\n\"\n",
            vec!["docker.io/flat/one:1 8 PodSpec", "docker.io/in/side:1 7 PodSpec"],
        ),
        (
            "kind: CustomResourceDefinition\nproperties:\n  image:\n    type: string\n    default: quay.io/d/e:1\n  busyboxImage: {type: string, default: 'busybox:1'}\n",
            vec!["docker.io/library/busybox:1 6 Field", "quay.io/d/e:1 5 Field"],
        ),
        (
            "a: &c\n  containers: [{image: a:1}]\nb: *c\n---\nkind: X\nd: {e: {containers: [{image: b:1}]}}\n",
            vec!["docker.io/library/a:1 2 PodSpec", "docker.io/library/b:1 6 PodSpec"],
        ),
        (
            "{\"kind\": \"Pod\",\n\t\"spec\": {\"containers\": [\n\t\t{\"image\": \"j/son:1\"}]}}\n",
            vec!["docker.io/j/son:1 3 PodSpec"],
        ),
        (
            "metadata:\n  annotations:\n    last: '{\"spec\":{\"containers\":[{\"image\":\"k/l:1\"}]}}'\n",
            vec!["docker.io/k/l:1 3 PodSpec"],
        ),
    ] {
        assert_eq!(images(text), expected, "{text}");
    }
}

#[test]
fn digests_are_kept() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let text = format!(
        "containers:\n- image: q.io/a@{digest}\n- image: q.io/a:t@{digest}\nx:\n  image: {{repository: q.io/p, tag: v1, digest: '{digest}'}}\n"
    );
    assert_eq!(
        images(&text),
        [
            format!("q.io/a@{digest} 2 PodSpec"),
            format!("q.io/a:t@{digest} 3 PodSpec"),
            format!("q.io/p:v1@{digest} 5 Field"),
        ]
    );
}

#[test]
fn what_is_left_out_is_told_with_its_line() {
    let text = "containers:\n- image: \"{{ .Values.x }}\"\n- image: up//x\n\
                text: see quay.io/re/loader:v1\nimage:\n  repository: a/b\n";
    let skipped = scanned(text).skipped;
    let told: Vec<String> =
        skipped.iter().map(|skipped| format!("{} {}", skipped.place.line, skipped.text)).collect();
    assert_eq!(told, ["2 {{ .Values.x }}", "3 up//x", "4 quay.io/re/loader:v1", "6 a/b"]);
}

/// Returns what is left out, with its line.
fn left_out(text: &str) -> Vec<String> {
    let skipped = scanned(text).skipped;
    skipped.iter().map(|skipped| format!("{} {}", skipped.text, skipped.place.line)).collect()
}

#[test]
fn an_image_beside_its_directory_and_version_is_one_name() {
    for (text, expected) in [
        (
            "spec:\n  repository: nvcr.io/nvidia/k8s\n  image: toolkit\n  version: v1.2\n",
            "nvcr.io/nvidia/k8s/toolkit:v1.2 3 Field",
        ),
        ("spec: {registry: q.io, repository: a, image: b/c, tag: 1.5}\n", "q.io/a/b/c:1.5 1 Field"),
        ("spec: {hub: q.io/a, image: b, tag: t}\n", "q.io/a/b:t 1 Field"),
        ("spec: {repository: q.io/a/b, image: b, tag: t}\n", "q.io/a/b:t 1 Field"),
    ] {
        assert_eq!(images(text), [expected], "{text}");
    }
    let digest = format!("sha256:{}", "a".repeat(64));
    let text = format!("x: {{repository: q.io/a, image: b, version: '{digest}'}}\n");
    assert_eq!(images(&text), [format!("q.io/a/b@{digest} 1 Field")]);
    let text = "x: {repository: q.io/a, image: b}\ny: {repository: 'https://x', image: c}\n";
    assert_eq!(
        (images(text), left_out(text)),
        (vec![], vec!["q.io/a/b 1".to_owned(), "c 2".into()])
    );
}

#[test]
fn a_bare_word_is_an_image_in_containers_only() {
    let values = "data:\n  values: |-\n    {\n      \"global\": {\n        \"hub\": \"q.io/istio\",\n        \
                  \"tag\": \"1.30\",\n        \"proxy\": {\"image\": \"proxyv2\"}\n      },\n      \
                  \"pilot\": {\"image\": \"pilot\"}\n    }\n";
    assert_eq!(images(values), ["q.io/istio/proxyv2:1.30 7 Field"]);
    assert_eq!(left_out(values), ["pilot 9"]);
    for text in [
        "steps:\n- image: nginx\n  script: x\n",
        "container: {image: nginx, command: [x]}\n",
        "template: {containers: [{image: nginx}]}\n",
    ] {
        assert_eq!(images(text).len(), 1, "{text}");
    }
    assert_eq!(left_out("spec:\n  image: nginx\n"), ["nginx 2"]);
}

#[test]
fn what_is_surely_an_image_is_embedded_if_a_name_says_so_and_listed_otherwise() {
    for (text, expected) in [
        (
            "env:\n- name: KAFKA_IMAGES\n  value: |\n    4=q.io/k:4\n    3=q.io/k:3\n",
            vec!["q.io/k:3 5 Line", "q.io/k:4 4 Line"],
        ),
        (
            "env: [{name: POSTGRES_IMAGE_NAME, value: 'postgres:17'}]\n",
            vec!["docker.io/library/postgres:17 1 Environment"],
        ),
        (
            "data:\n  c.toml: |\n    [runners]\n      helper_image = \"q.io/h:1\"\n",
            vec!["q.io/h:1 4 Line"],
        ),
        ("data:\n  node.collector.imageRef: q.io/n:1\n", vec!["q.io/n:1 2 Field"]),
        (
            "command: [sh, -ec, \"run \\\n  -dataplane-image=\\\"q.io/d:1\\\" -x\"]\n",
            vec!["q.io/d:1 1 Line"],
        ),
        (
            "args: [--reloader=q.io/r:1, --other, q.io/o:1]\n",
            vec!["q.io/o:1 1 Argument", "q.io/r:1 1 Argument"],
        ),
        ("images: [q.io/a:1]\n", vec!["q.io/a:1 1 Line"]),
        ("data:\n  trivy.repository: q.io/t\n  trivy.tag: '1'\n", vec!["q.io/t:1 2 Field"]),
        ("args: [--x-image-repository=q.io/e, --x-image-tag=v1]\n", vec!["q.io/e:v1 1 Argument"]),
        (
            "env:\n- {name: A_REPOSITORY, value: q.io/a}\n- {name: A_TAG, value: '1'}\n",
            vec!["q.io/a:1 2 Environment"],
        ),
        ("gitRepository: q.io/g\ngitTag: v1\nx.repository: 'https://x'\nx.tag: v1\n", vec![]),
    ] {
        assert_eq!(images(text), expected, "{text}");
        assert_eq!(left_out(text), [""; 0], "{text}");
    }
    let text = "env: [{name: BUILDER, value: q.io/b:1}]\ndescription: as q.io/d:1\nx: \"a\\n# q.io/c:1\"\n";
    assert_eq!((images(text), left_out(text)), (vec![], vec!["q.io/b:1 1".to_owned()]));
    // Another place names the same image.
    let text = "a: see q.io/b:1\ncontainers: [{image: q.io/b:1}]\n";
    assert_eq!((images(text), left_out(text)), (vec!["q.io/b:1 2 PodSpec".to_owned()], vec![]));
    let mut found = Collector::new("q.io/b:1\n");
    scan("a: q.io/b:1\n", "m.yaml", &mut found);
    assert_eq!(found.finish().skipped[0].reason, "it is listed in .sealignore");
}

#[test]
fn lines_of_quoted_texts_need_no_indentation() {
    let text = "note: \"a,\nb\"\nenv:\n- name: RELATED_IMAGE_X\n  value: 'a/x:1'\n";
    assert_eq!(images(text), ["docker.io/a/x:1 5 Environment"]);
}

#[test]
fn templates_and_what_is_no_yaml_are_scanned_by_line() {
    let text = "{{- if .x }}\nspec:\n  image: a/b:1\n{{ end }}\n  image: {{ .y }}\n";
    let found = scanned(text);
    assert_eq!(found.images.len(), 1, "{found:?}");
    assert_eq!(found.images[0].places[0].line, 3);
    assert!(found.skipped.iter().any(|skipped| skipped.place.line == 5));
    let script = "data:\n  run.sh: |\n\n    cat <<E\n    image: s/h:1\n    : [\n    E\n";
    assert_eq!(images(script), ["docker.io/s/h:1 5 Line"]);
}

#[test]
fn no_text_makes_the_scan_panic() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            let _ = scanned(text);
        }
    });
}
