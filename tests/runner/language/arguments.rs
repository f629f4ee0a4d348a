//! ARG and ENV: where a value comes from and how far it reaches.

use super::Language;
use crate::common::needs_root;

/// What `echo $NAME` prints in the last stage: (Kubefile before it, flags, expected).
#[test]
fn an_argument_has_the_value_that_buildkit_gives_it() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let shell = "FROM localhost/shell";
    for (stages, flags, expected) in [
        // A stage inherits what the stage below it declares.
        ("{shell} AS a\nARG v=1\nFROM a\n", &[][..], "1"),
        ("{shell} AS a\nARG v=1\nFROM a AS b\nFROM b\n", &["--build-arg=v=2"], "2"),
        ("{shell} AS a\nARG v=1\n{shell}\n", &[], ""),
        // The last of ARG and ENV counts; an ARG without a value changes nothing.
        ("{shell}\nENV v=env\nARG v=arg\n", &[], "arg"),
        ("{shell}\nARG v=arg\nENV v=env\n", &[], "env"),
        ("{shell}\nENV v=env\nARG v\n", &[], "env"),
        ("{shell}\nENV v=env\nARG v\n", &["--build-arg=v=3"], "3"),
        ("{shell}\nENV v=env\nARG v=arg\nENV v=again\n", &[], "again"),
        ("{shell}\nARG v=1\nARG v\n", &[], "1"),
        ("{shell}\nARG v=1\nARG v=2\n", &[], "2"),
        ("ARG v=global\n{shell}\nARG v=1\nARG v\n", &[], "global"),
        ("{shell}\nENV v=env\nARG v=arg\nARG w=$v\nENV v=$w-$v\n", &[], "arg-arg"),
        // The stage that is built.
        ("{shell} AS first\n{shell}\nARG TARGETSTAGE\nENV v=$TARGETSTAGE\n", &[], "default"),
        ("{shell} AS first\n{shell} AS app\nARG TARGETSTAGE\nENV v=$TARGETSTAGE\n", &[], "app"),
        ("{shell}\nARG TARGETARCH\nENV v=$TARGETARCH\n", &["--build-arg=TARGETARCH=mine"], "mine"),
    ] {
        let kubefile = format!("{}RUN echo \"$v\" >/seen\n", stages.replace("{shell}", shell));
        assert_eq!(language.built(&kubefile, flags, "/seen"), expected, "{kubefile}{flags:?}");
    }
    let kubefile = format!(
        "{shell} AS x\nARG TARGETSTAGE\nRUN echo $TARGETSTAGE >/seen\nFROM x AS y\nFROM x\n"
    );
    assert_eq!(language.built(&kubefile, &["--target=y"], "/seen"), "y");
    // The image keeps what ENV says.
    let kubefile = format!("{shell}\nENV v=env\nARG v=arg\n");
    language.build(&kubefile, &[]).ok();
    let env = language.env.config("app")["config"]["Env"].to_string();
    assert!(env.contains("v=env") && !env.contains("arg"), "{env}");
}

#[test]
fn proxies_reach_run_under_both_names_and_the_host_has_the_name_asked_for() {
    if !needs_root() {
        return;
    }
    let language = Language::new();
    language.shell();
    let show =
        "FROM localhost/shell\nRUN echo $http_proxy $HTTP_PROXY $https_proxy $HTTPS_PROXY >/seen\n";
    let flags = ["--build-arg=HTTP_PROXY=http://a:1", "--build-arg=https_proxy=http://b:1"];
    assert_eq!(
        language.built(show, &flags, "/seen"),
        "http://a:1 http://a:1 http://b:1 http://b:1"
    );
    let flags =
        ["--no-cache", "--build-arg=HTTP_PROXY=http://a:1", "--build-arg=http_proxy=http://b:1"];
    assert_eq!(language.built(show, &flags, "/seen"), "http://b:1 http://b:1");
    let show = "FROM localhost/shell\nENV http_proxy=http://e:1\nRUN echo $http_proxy $HTTP_PROXY >/seen\n";
    let flags = ["--build-arg=http_proxy=http://b:1"];
    assert_eq!(language.built(show, &flags, "/seen"), "http://b:1 http://b:1");
    let show = "FROM localhost/shell\nRUN hostname >/seen; grep -c node-a /etc/hosts >>/seen\n";
    let flags = ["--build-arg=BUILDKIT_SANDBOX_HOSTNAME=node-a"];
    assert_eq!(language.built(show, &flags, "/seen"), "node-a\n1");
    let show = "FROM localhost/shell\nRUN hostname >/seen\n";
    assert_eq!(language.built(show, &[], "/seen"), "buildkitsandbox");
}

#[test]
fn the_time_of_the_build_may_be_an_argument_before_the_first_from() {
    let language = Language::new();
    language.file("f", "x");
    let created = || language.env.config("app")["created"].as_str().unwrap().to_owned();
    let kubefile = "ARG SOURCE_DATE_EPOCH=1000000000\nFROM scratch\nCOPY f /\n";
    language.build(kubefile, &[]).ok();
    assert_eq!(created(), "2001-09-09T01:46:40Z");
    language.build(kubefile, &["--build-arg=SOURCE_DATE_EPOCH=1"]).ok();
    assert_eq!(created(), "1970-01-01T00:00:01Z");
    language.build(kubefile, &["--timestamp=2"]).ok();
    assert_eq!(created(), "1970-01-01T00:00:02Z");
    let wrong = language.build("ARG SOURCE_DATE_EPOCH=yesterday\nFROM scratch\nCOPY f /\n", &[]);
    assert!(wrong.fails(2).stderr().contains("`yesterday`"));
}

#[test]
fn a_platform_that_is_empty_is_a_mistake_and_scratch_has_none() {
    let language = Language::new();
    language.file("f", "x");
    let wrong = language.build("FROM --platform=$BULIDPLATFORM scratch\nCOPY f /\n", &[]);
    assert!(wrong.fails(2).stderr().contains("did you mean $BUILDPLATFORM?"));
    let kubefile = "FROM --platform=linux/s390x scratch\nCOPY f /\n";
    language.build(kubefile, &["--platform=linux/arm64"]).ok();
    assert_eq!(language.env.config("app")["architecture"], "arm64");
}

#[test]
fn signals_are_checked() {
    let language = Language::new();
    for signal in ["SIGTERM", "term", "9", "64", "RTMIN", "SIGRTMIN+3", "RTMAX-14"] {
        language.build(&format!("FROM scratch\nSTOPSIGNAL {signal}\n"), &[]).ok();
    }
    for signal in ["SIGWHAT", "0", "-1", "RTMIN+16", "RTMAX+1", "SIG"] {
        let said = language.build(&format!("FROM scratch\nSTOPSIGNAL {signal}\n"), &[]).fails(2);
        assert!(said.stderr().contains("is no signal"), "{signal}: {}", said.stderr());
    }
}

#[test]
fn a_stage_below_has_the_environment_of_the_image_over_arguments() {
    let language = Language::new();
    let kubefile = "FROM scratch AS p\nENV A=1\nARG A=2\nLABEL here=$A\nFROM p\nLABEL there=$A\n";
    language.build(kubefile, &[]).ok();
    let labels =
        language.env.imgctl(["inspect", "-f", "{{json .OCIv1.Config.Labels}}", "app"]).ok();
    assert_eq!(labels.json(), serde_json::json!({"here": "2", "there": "1"}));
}

#[test]
fn the_argument_source_date_epoch_counts_over_the_variable() {
    let language = Language::new();
    let file = language
        .env
        .write("Kubefile", "FROM scratch\nARG SOURCE_DATE_EPOCH\nLABEL at=$SOURCE_DATE_EPOCH\n");
    let created = |flags: &[&str]| {
        let mut command = language.env.command(["build", "-t", "app", "-f"]);
        command
            .arg(&file)
            .args(flags)
            .arg(language.env.path("context"))
            .env("SOURCE_DATE_EPOCH", "7");
        crate::common::Ran::new(command).ok();
        let config = language.env.imgctl(["inspect", "-f", "{{json .OCIv1}}", "app"]).ok().json();
        (config["Created"].clone(), config["Config"]["Labels"]["at"].clone())
    };
    let at = |second: u32| serde_json::json!(format!("1970-01-01T00:00:0{second}Z"));
    assert_eq!(created(&[]).0, at(7));
    let given = created(&["--build-arg=SOURCE_DATE_EPOCH=5"]);
    assert_eq!(given, (at(5), serde_json::json!("5")));
    assert_ne!(created(&["--build-arg=SOURCE_DATE_EPOCH="]).0, at(7));
}
