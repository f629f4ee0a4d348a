//! `--call`: what a Kubefile offers to those who build it, with BuildKit's answers.

use serde_json::Value;

use super::Language;
use crate::common::Ran;

fn call(language: &Language, kubefile: &str, flags: &[&str]) -> Ran {
    language.file("Dockerfile", kubefile);
    let context = language.env.path("context").display().to_string();
    language.env.imgctl([&["build"], flags, &[&context]].concat())
}

/// The members of each object of a list that are named, and the first line, as text.
fn rows(list: &Value, members: &[&str]) -> Vec<String> {
    let row = |object: &Value| {
        let mut row: Vec<String> = members
            .iter()
            .map(|member| match &object[member] {
                Value::Null => "-".to_owned(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            })
            .collect();
        row.push(object["location"]["ranges"][0]["start"]["line"].to_string());
        row.join(" | ")
    };
    list.as_array().unwrap().iter().map(row).collect()
}

const STAGES: &str = "ARG V=1\n\
    # tools has the compilers\n\
    # Tools are many\n\
    FROM alpine:$V AS Tools\n\
    FROM scratch\n\
    # app, not a description\n\
    FROM --platform=$BUILDPLATFORM tools AS app\n";

#[test]
fn targets_are_all_stages_with_their_descriptions() {
    let language = Language::new();
    let json = call(&language, STAGES, &["--call=targets,format=json"]).ok().json();
    let members = ["name", "description", "default", "base", "platform"];
    assert_eq!(
        rows(&json["targets"], &members),
        [
            "tools | has the compilers | - | alpine:$V | - | 4",
            "- | - | - | scratch | - | 5",
            "app | - | true | tools | $BUILDPLATFORM | 7",
        ]
    );
    // The file itself, as base64.
    assert!(json["sources"][0].as_str().unwrap().starts_with("QVJHIFY9MQ"), "{json}");
    let text = call(&language, STAGES, &["--print", "targets"]).ok().stdout();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].starts_with("TARGET") && lines[0].ends_with("DESCRIPTION"), "{text}");
    assert!(lines[1].starts_with("tools ") && lines[1].ends_with("has the compilers"), "{text}");
    assert_eq!(lines[3], "app (default)");
    let unnamed = call(&language, "FROM scratch\n", &["--call=targets"]).ok().stdout();
    assert_eq!(unnamed.lines().nth(1), Some("(default)"));
}

#[test]
fn an_outline_has_the_arguments_that_a_target_uses() {
    let language = Language::new();
    let text = "ARG inner=box\n\
        ARG unused=$inner\n\
        # tag of the base\n\
        # suffix says which one\n\
        ARG suffix=busy$inner\n\
        FROM $suffix AS first\n\
        # number of something\n\
        ARG first_own=1 \\\n  second_own=$first_own\n\
        FROM scratch AS other\n\
        ARG hidden\n\
        FROM first AS last\n\
        # PORT where it listens\n\
        ARG PORT\n\
        ARG suffix first_own=3 TARGETARCH\n\
        ENV first_own=4\n\
        ARG third_own=$first_own\n\
        FROM last AS behind\n\
        ARG after\n";
    let flags = ["--call=outline,format=json", "--target=last", "--build-arg=PORT=80"];
    let json = call(&language, text, &flags).ok().json();
    assert_eq!(json["name"], "last");
    assert_eq!(
        rows(&json["args"], &["name", "value", "description"]),
        [
            "inner | box | - | 1",
            "suffix | busybox | says which one | 5",
            "second_own | 1 | - | 8",
            "PORT | 80 | where it listens | 14",
            "first_own | 3 | - | 15",
            "third_own | 4 | - | 17",
        ]
    );
    assert_eq!(json["args"][2]["location"]["ranges"][1]["end"]["line"], 9);
    for empty in ["secrets", "ssh", "description"] {
        assert!(json.get(empty).is_none(), "{json}");
    }
}

#[test]
fn arguments_that_are_defined_again_keep_what_they_depend_on() {
    let language = Language::new();
    let text =
        "ARG A=1\nARG B=2\nARG C=3\nARG A=$A$B\nARG D=${A}4\nARG A=$A$D\nFROM scratch\nARG A\n";
    let json = call(&language, text, &["--call=outline,format=json"]).ok().json();
    let expected = ["B | 2 | 2", "D | 124 | 5", "A | 12124 | 6"];
    assert_eq!(rows(&json["args"], &["name", "value"]), expected);
}

#[test]
fn an_outline_has_secrets_and_agents() {
    let language = Language::new();
    let text = "FROM scratch AS first\n\
        RUN --mount=type=secret,target=/etc/key,required=true --mount=type=ssh x\n\
        FROM scratch AS unused\n\
        RUN --mount=type=secret,id=other --mount=type=ssh,id=other x\n\
        FROM scratch\n\
        ARG N\n\
        RUN --mount=type=secret,id=token$N x\n\
        # app is what runs\n\
        FROM scratch AS app\n\
        COPY --from=first /a /\n\
        ARG N\n\
        RUN --mount=type=secret,id=token$N --mount=type=ssh,id=deploy,required x\n";
    let json =
        call(&language, text, &["--call=outline,format=json", "--build-arg=N=7"]).ok().json();
    assert_eq!(json["description"], "is what runs");
    assert_eq!(
        rows(&json["secrets"], &["name", "required"]),
        ["key | true | 2", "token7 | - | 12"]
    );
    assert_eq!(
        rows(&json["ssh"], &["name", "required"]),
        ["default | - | 2", "deploy | true | 12"]
    );
    let shown = call(&language, text, &["--call=outline"]).ok().stdout();
    let lines: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    for wanted in [
        &["TARGET:", "app"][..],
        &["DESCRIPTION:", "is", "what", "runs"],
        &["BUILD", "ARG", "VALUE", "DESCRIPTION"],
        &["SECRET", "REQUIRED"],
        &["key", "true"],
        &["token"],
        &["SSH", "REQUIRED"],
        &["deploy", "true"],
    ] {
        assert!(lines.iter().any(|line| line == wanted), "{wanted:?}\n{shown}");
    }
}

#[test]
fn a_check_by_call_is_one() {
    let language = Language::new();
    let text = "FROM scratch as a\nENV a b\nNONSENSE\n";
    let check = call(&language, text, &["--check"]).fails(2).stdout();
    assert!(check.contains("FromAsCasing"), "{check}");
    assert_eq!(call(&language, text, &["--call=check"]).fails(2).stdout(), check);
    let json = call(&language, text, &["--call=format=json,check"]).fails(2).json();
    let warnings = rows(&json["warnings"], &["ruleName", "detail"]);
    assert!(warnings[0].starts_with("FromAsCasing | ") && warnings[0].ends_with(" | 1"), "{json}");
    assert!(warnings[1].starts_with("LegacyKeyValueFormat") && warnings[1].ends_with(" | 2"));
    assert_eq!(json["buildError"]["location"]["ranges"][0]["start"]["line"], 3);
    assert_eq!(json["sources"][0]["filename"], "Dockerfile");
    call(&language, text, &["--call=check,ignorestatus=true"]).ok();
    let strict = "# check=error=true\nFROM scratch as a\n";
    call(&language, strict, &["--call=check"]).fails(10);
    let told = call(&language, text, &["--call=hop"]).fails(2).stderr();
    assert!(told.contains("outline"), "{told}");
}
