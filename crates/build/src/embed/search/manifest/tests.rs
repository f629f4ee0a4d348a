//! Realistic manifests and the images found in them.

use super::*;
use crate::embed::found::Found;

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
                args:\n- --reloader=quay.io/re/loader:v1\nimage:\n  repository: a/b\n";
    let skipped = scanned(text).skipped;
    let told: Vec<String> =
        skipped.iter().map(|skipped| format!("{} {}", skipped.place.line, skipped.text)).collect();
    assert_eq!(told, ["2 {{ .Values.x }}", "3 up//x", "5 quay.io/re/loader:v1", "7 a/b"]);
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
