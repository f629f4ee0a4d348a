//! The catalogue, `docs/recipes.md`, is what the recipes say of themselves.

use std::fmt::Write as _;
use std::process::Command;

use serde_json::Value;

use crate::{compare, read, up_to_date};

const PAGE: &str = "docs/recipes.md";

const HEAD: &str = "<!-- Written from the recipes; do not edit. -->

# Recipes

`imgctl init` makes images from these recipes, which are part of imgctl ([images/recipes](../images/recipes)). Only the build downloads
files: the publishers' own, and it refuses one with another checksum. [Kubernetes offline from
zero](tutorials/7-kubernetes-offline.md) uses the recipes, [Writing a recipe](writing-a-recipe.md) describes their form.
";

fn json(arguments: &[&str]) -> Value {
    let ran = Command::new(env!("CARGO_BIN_EXE_imgctl")).args(arguments).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

fn words(list: &Value, of: &str) -> String {
    let words = list.as_array().into_iter().flatten();
    let words: Vec<&str> = words.map(|word| word[of].as_str().or(word.as_str()).unwrap()).collect();
    words.join(", ")
}

fn page() -> String {
    let all = json(&["recipe", "ls", "--json"]);
    let all = all.as_array().unwrap();
    let mut text = HEAD.to_owned();
    text.push_str("\n| recipe | what | versions | runs on |\n|---|---|---|---|\n");
    for recipe in all {
        let name = recipe["name"].as_str().unwrap();
        let clusters = match recipe["kind"].as_str() {
            Some("rootfs") => "hosts".to_owned(),
            _ => words(&recipe["runs-on"], ""),
        };
        let versions = words(&recipe["versions"], "version");
        let _ = writeln!(
            text,
            "| [{name}](#{name}) | {} | {versions} | {clusters} |",
            recipe["summary"].as_str().unwrap()
        );
    }
    for recipe in all {
        section(&mut text, recipe);
    }
    text
}

fn section(text: &mut String, recipe: &Value) {
    let name = recipe["name"].as_str().unwrap();
    let summary = recipe["summary"].as_str().unwrap();
    let _ = write!(text, "\n## {name}\n\n{}{}.\n", summary[..1].to_uppercase(), &summary[1..]);
    let notes = recipe["notes"].as_str().unwrap_or_default().trim_end();
    let _ = write!(text, "{notes}\n\nLicence: {}.\n", recipe["licence"].as_str().unwrap());
    for (key, says) in [("needs", "Brings along"), ("suggests", "Usually with")] {
        if recipe[key].is_array() {
            let _ = writeln!(text, "{says}: {}.", words(&recipe[key], ""));
        }
    }
    let settings = recipe["settings"].as_object().into_iter().flatten();
    let settings: Vec<String> = settings
        .map(|(name, one)| format!("`{name}` ({})", one["description"].as_str().unwrap()))
        .collect();
    if !settings.is_empty() {
        let _ = writeln!(text, "Variables: {}.", settings.join(", "));
    }
    let newest = &recipe["versions"][0];
    if let Some(files) = newest["files"].as_array() {
        let _ = write!(text, "\nFiles of {}:\n\n", newest["version"].as_str().unwrap());
        for file in files {
            let unknown =
                ": no checksum is known here, the first build records it in `imgctl.lock`";
            let note = if file["sha256"].is_object() { "" } else { unknown };
            let _ = writeln!(text, "- `{}`{note}", file["url"].as_str().unwrap());
        }
    }
    if newest["images"].is_array() {
        let _ = writeln!(
            text,
            "\nContainer images that the build embeds: `{}`.",
            words(&newest["images"], "").replace(", ", "`, `")
        );
    }
}

#[test]
fn the_catalogue_is_what_the_recipes_say() {
    up_to_date(compare(PAGE, &page()));
}

#[test]
fn the_tutorial_names_versions_that_recipes_have() {
    let tutorial = read("docs/tutorials/7-kubernetes-offline.md");
    let known = json(&["recipe", "show", "kubernetes", "--json"]);
    let known = words(&known["versions"], "version");
    let shown = tutorial.lines().find(|line| line.starts_with("Version (")).unwrap();
    assert!(shown.contains(&known), "{shown}: {known}");
    let newest = known.split(',').next().unwrap();
    assert!(tutorial.contains(&format!("kubernetes {newest}, ")), "{newest}");
}
