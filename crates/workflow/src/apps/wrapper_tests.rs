//! What the wrapped programs get, and which objects are recorded.

use std::os::unix::fs::PermissionsExt;

use crate::apps::images::Pushed;
use crate::apps::wrapper::{Call, Settings, Tool, read_objects, run};
use imgctl_base::error::{Kind, Result};
use imgctl_base::image::Digest;

/// Runs the wrapper's work with a program that prints its arguments and stdin into a file.
fn called(line: &str, input: &str) -> (Result<()>, String, String) {
    called_by(Tool::Kubectl, line, input)
}

fn called_by(tool: Tool, line: &str, input: &str) -> (Result<()>, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(at("bin")).unwrap();
    std::fs::create_dir_all(at("m/below")).unwrap();
    let program = "#!/bin/sh\n\
         case \"$*\" in\n\
         *annotate*missing*) exit 1 ;;\n\
         annotate\\ --local*) echo '{apiVersion: v1, kind: Pod, metadata: {name: at-url}}'; exit ;;\n\
         esac\n\
         echo \"$@\" >\"${0%/*}/said\"\ncat >>\"${0%/*}/said\"\n\
         case \"$*\" in *fail*) exit 1;; esac\n";
    let file = at("bin").join(tool.name());
    std::fs::write(&file, program).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    let object = |name: &str| {
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{image: nginx:1}}\n")
    };
    for (file, name) in
        [("m/b.yaml", "b"), ("m/a.yml", "a"), ("m/below/c.json", "c"), ("m/x.txt", "x")]
    {
        std::fs::write(at(file), object(name)).unwrap();
    }
    let mut images = Pushed::new("r.io");
    images.add("library/nginx", Some("1"), &Digest::of(b""));
    let settings = Settings { namespace: "n".to_owned(), images: Some(images) };
    std::fs::write(at("settings"), serde_json::to_string(&settings).unwrap()).unwrap();
    let line = line.replace("DIR", &directory.path().display().to_string());
    let call = Call {
        tool,
        arguments: line.split(' ').map(Into::into).collect(),
        own: at("own"),
        path: vec![at("none"), at("bin")],
        settings: Some(at("settings")),
        objects: Some(at("objects")),
        namespace: None,
    };
    let ran = run(&call, &mut input.as_bytes(), &mut Vec::new());
    let said = std::fs::read_to_string(at("bin/said")).unwrap_or_default();
    let objects = read_objects(&at("objects")).unwrap();
    let objects: Vec<String> = objects.iter().map(ToString::to_string).collect();
    (ran, said, objects.join(", "))
}

#[test]
fn files_become_one_text_with_new_names() {
    // `create` is a child; `apply` would replace the test itself.
    let (ran, said, objects) = called("create -f DIR/m -R --save-config", "");
    ran.unwrap();
    assert!(said.starts_with("create --save-config -f -\n"), "{said}");
    assert_eq!(said.matches("image: r.io/library/nginx:1").count(), 3, "{said}");
    assert_eq!(objects, "Pod n/a, Pod n/b, Pod n/c");
    let text = "{\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{\"name\":\"s\"}}";
    let (ran, _, objects) = called("create -n z -f - -f DIR/m", text);
    ran.unwrap();
    assert_eq!(objects, "Secret z/s, Pod z/a, Pod z/b");
}

#[test]
fn manifests_at_urls_are_recorded_and_left_alone() {
    let (ran, said, objects) = called("create -f https://h/one.yaml -f DIR/m", "");
    ran.unwrap();
    assert!(said.contains("create -f https://h/one.yaml -f -\n"), "{said}");
    assert_eq!(objects, "Pod n/at-url, Pod n/a, Pod n/b");
    let (ran, said, objects) = called("create -f https://h/one.yaml", "");
    ran.unwrap();
    assert!(said.contains("create -f https://h/one.yaml\n"), "{said}");
    assert_eq!(objects, "Pod n/at-url");
    let (ran, _, objects) = called("create -f http://h/missing.yaml -f DIR/m", "");
    ran.unwrap();
    assert_eq!(objects, "Pod n/a, Pod n/b");
}

#[test]
fn a_program_with_a_kubectl_of_its_own_is_kubectl() {
    let (ran, said, objects) = called_by(Tool::K3s, "kubectl create -f DIR/m -n z", "");
    ran.unwrap();
    assert!(said.starts_with("kubectl create -n z -f -\n"), "{said}");
    assert_eq!(objects, "Pod z/a, Pod z/b");
}

#[test]
fn objects_that_were_not_created_are_not_recorded() {
    let (ran, _, objects) = called("create -f DIR/m --fail", "");
    assert_eq!(ran.unwrap_err().kind(), Kind::CommandFailed);
    assert_eq!(objects, "");
}

#[test]
fn a_chart_is_rendered_with_new_names() {
    let mut images = Pushed::new("r.io");
    images.add("a/b", Some("1"), &Digest::of(b""));
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("settings");
    let text = Settings { namespace: "n".to_owned(), images: Some(images) };
    std::fs::write(&settings, serde_json::to_string(&text).unwrap()).unwrap();
    let objects = directory.path().join("objects");
    let call = Call {
        tool: Tool::PostRenderer,
        arguments: Vec::new(),
        own: directory.path().to_owned(),
        path: Vec::new(),
        settings: Some(settings),
        objects: Some(objects.clone()),
        namespace: Some("release".to_owned()),
    };
    let input =
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {image: \"docker.io/a/b:1\"}\n";
    let mut output = Vec::new();
    run(&call, &mut input.as_bytes(), &mut output).unwrap();
    assert!(String::from_utf8(output).unwrap().contains("image: \"r.io/a/b:1\""));
    assert_eq!(read_objects(&objects).unwrap()[0].to_string(), "Pod release/p");
}
