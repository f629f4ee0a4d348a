//! Upgrades and roll-backs between images that describe other settings.

use std::collections::BTreeMap;

use super::*;
use crate::upgrade::rollback;
use imgctl_base::settings::SETTINGS;
use imgctl_upgrade::document::Choices;

const OLD: &str = r#"{"required": ["token"], "properties": {
    "port": {"type": "integer"}, "level": {"enum": ["low", "high"]}, "gone": {}, "kept": {"default": "a"},
    "token": {"type": "string", "writeOnly": true}
}}"#;
/// Another type, another list, one setting less, a required one more, a longer secret.
const NEW: &str = r#"{"required": ["token", "zone"], "properties": {
    "port": {"type": "integer", "minimum": 1024}, "level": {"enum": ["1", "2"]}, "kept": {"default": "b"},
    "zone": {"type": "string"}, "token": {"type": "string", "writeOnly": true, "minLength": 20}
}}"#;

/// A cluster of v1 with these variables, and an image v2 beside it.
fn cluster(variables: &[(&str, &str)], new: &str) -> Fixture {
    let fixture = Fixture::new();
    put_image_with(&fixture.store, "v1", &[(SETTINGS, OLD)]);
    put_image_with(&fixture.store, "v2", &[(SETTINGS, new)]);
    let mut request = installation(RunOptions::default());
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    request.additions.environment = variables.iter().map(owned).collect::<BTreeMap<_, _>>();
    install::run(&request, &fixture.session(true)).unwrap();
    fixture.outcomes();
    fixture
}

fn upgrading(is_preview: bool, skip: &[&str]) -> UpgradeRequest {
    let skip_checks = skip.iter().map(|&check| check.to_owned()).collect();
    let choices = Choices { skip_checks, ..Choices::default() };
    UpgradeRequest {
        cluster: "default".to_owned(),
        images: vec!["app:v2".to_owned()],
        saved: None,
        id: None,
        choices: GivenChoices { choices, ..GivenChoices::default() },
        preview: is_preview.then_some(Preview { save: None, steps: false }),
        options: RunOptions::default(),
    }
}

#[test]
fn a_plan_tells_which_settings_the_new_image_does_not_accept() {
    let variables =
        [("port", "80"), ("level", "low"), ("gone", "x"), ("token", "a-secret"), ("other", "y")];
    let fixture = cluster(&variables, NEW);
    upgrade(&upgrading(true, &[]), &fixture.session(true)).unwrap();
    let told = fixture.outcomes().concat();
    for part in [
        "Error will fail: app:v2 does not accept port: ",
        "Error will fail: app:v2 does not accept level: ",
        "does not accept gone: the cluster sets it, and the image has no such setting any more",
        "does not accept zone: it is required and has no value",
        "does not accept token: the value does not fit its schema",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(
        told.matches("will fail").count(),
        5,
        "each once, whatever the number of hosts: {told}"
    );
    assert!(!told.contains("a-secret"), "{told}");

    let steps = fixture.told.lock().unwrap().steps;
    let refused = upgrade(&upgrading(false, &[]), &fixture.session(true)).unwrap_err();
    let refusal = refused.chain().join(": ") + &refused.hints().join(" ");
    for part in ["does not accept port: ", "--skip-check image-settings"] {
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
    assert_eq!(fixture.told.lock().unwrap().steps, steps, "nothing has begun");

    upgrade(&upgrading(false, &["image-settings"]), &fixture.session(true)).unwrap();
    let stored = || std::fs::read_to_string(fixture.clusterfile()).unwrap();
    assert!(stored().contains("app:v2"));
    fixture.outcomes();

    // The way back stays open: the former image accepts all of it, and would be told as a warning.
    let back = rolling_back();
    rollback(&back, &fixture.session(true)).unwrap();
    assert!(stored().contains("app:v1"));
}

#[test]
fn what_fits_is_not_mentioned_and_a_broken_schema_is() {
    let variables = [("port", "8080"), ("token", "a-secret-of-twenty-letters")];
    let fits = NEW.replace("\"token\", \"zone\"", "\"token\"");
    let fixture = cluster(&variables, &fits);
    upgrade(&upgrading(true, &[]), &fixture.session(true)).unwrap();
    assert_eq!(fixture.outcomes(), ["v1 to v2: 3 hosts"]);

    let fixture = cluster(&variables, "{");
    upgrade(&upgrading(true, &[]), &fixture.session(true)).unwrap();
    let told = fixture.outcomes().concat();
    assert!(
        told.contains("Error will fail: app:v2 does not accept settings: cannot use"),
        "{told}"
    );

    // An image without a description accepts everything.
    let fixture = cluster(&[("gone", "x"), ("token", "a")], "");
    upgrade(&upgrading(true, &[]), &fixture.session(true)).unwrap();
    assert_eq!(fixture.outcomes(), ["v1 to v2: 3 hosts"]);
}
