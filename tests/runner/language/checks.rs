//! The checks as commands show them; the rules themselves have their tests in the crate.

use super::Language;
use crate::common::Ran;

const CHECK_FAILED: i32 = 10;

fn check(language: &Language, kubefile: &str, flags: &[&str]) -> Ran {
    language.file("Dockerfile", kubefile);
    let context = language.env.path("context").display().to_string();
    language.env.imgctl([&["build", "--check"], flags, &[&context]].concat())
}

/// Rule (or `-` for a mistake) and line of each finding.
fn findings(ran: &Ran) -> Vec<String> {
    let found = ran.json();
    let found = found["findings"].as_array().unwrap().iter();
    found.map(|f| format!("{} {}", f["rule"].as_str().unwrap_or("-"), f["line"])).collect()
}

#[test]
fn findings_above_a_mistake_are_shown_with_it() {
    let language = Language::new();
    let text = "FROM scratch AS Base\nMAINTAINER x\nNONSENSE\nMAINTAINER y\nMORE\n";
    let ran = check(&language, text, &["--json"]).fails(2);
    assert_eq!(findings(&ran), ["StageNameCasing 1", "MaintainerDeprecated 2", "- 3", "- 5"]);
    let said = check(&language, text, &[]).fails(2).stdout();
    assert!(said.contains("MaintainerDeprecated") && said.contains("NONSENSE"), "{said}");
}

#[test]
fn a_directive_or_a_build_argument_makes_findings_fail_the_build() {
    let language = Language::new();
    language.file("f", "x");
    let strict = "# check=error=true\nFROM scratch as a\nCOPY f /\n";
    let said = language.build(strict, &[]).fails(CHECK_FAILED).stderr();
    assert!(said.contains("FromAsCasing"), "{said}");
    let skip = "--build-arg=BUILDKIT_DOCKERFILE_CHECK=skip=all";
    language.build(strict, &[skip]).ok();
    check(&language, strict, &[]).fails(CHECK_FAILED);
    check(&language, strict, &[skip]).ok();
    let lax = "FROM scratch as a\nCOPY f /\n";
    let error = "--build-arg=BUILDKIT_DOCKERFILE_CHECK=error=true";
    language.build(lax, &[error]).fails(CHECK_FAILED);
    language.build(lax, &[]).ok();
    let wrong = language.build(lax, &["--build-arg=BUILDKIT_DOCKERFILE_CHECK=hop"]).fails(2);
    assert!(wrong.stderr().contains("BUILDKIT_DOCKERFILE_CHECK"), "{}", wrong.stderr());
}

#[test]
fn the_ignore_file_counts() {
    let language = Language::new();
    for (rules, expected) in [
        ("hidden\n*.log\n", &["CopyIgnoredFile 2", "CopyIgnoredFile 3", "CopyIgnoredFile 4"][..]),
        ("hidden\n*.log\n!kept.log\n", &[]),
        (".*\n", &[]),
        (
            "*\n",
            &[2, 2, 3, 4, 4, 5]
                .map(|line| format!("CopyIgnoredFile {line}"))
                .each_ref()
                .map(String::as_str),
        ),
    ] {
        language.file(".dockerignore", rules);
        let text = "FROM scratch\nCOPY hidden shown /a/\nADD ./hidden/below /c\nCOPY *.log x /d/\nCOPY . /e/\n";
        let ran = check(&language, text, &["--json"]).ok();
        assert_eq!(findings(&ran), expected, "{rules}");
    }
}

#[test]
fn what_only_a_plan_or_values_show_is_a_mistake_too() {
    let language = Language::new();
    for (text, flags, expected) in [
        ("FROM scratch as a\nEXPOSE localhost:80:80\n", &[][..], &["FromAsCasing 1", "- 2"][..]),
        (
            "FROM scratch as a\nCOPY --from=b f /\nFROM scratch AS b\n",
            &[],
            &["FromAsCasing 1", "- 2"],
        ),
        ("FROM scratch as a\n", &["--target=b"], &["- 1", "FromAsCasing 1"]),
        (
            "ARG T\nFROM $T\nMAINTAINER x\n",
            &[],
            &["- 2", "InvalidDefaultArgInFrom 2", "MaintainerDeprecated 3"],
        ),
    ] {
        let ran = check(&language, text, &[&["--json"], flags].concat()).fails(2);
        assert_eq!(findings(&ran), expected, "{text}");
    }
}

#[test]
fn a_target_limits_the_findings_of_a_check_and_a_build_always_does() {
    let language = Language::new();
    let text = "# check=error=true\nFROM scratch AS a\nENV a b\nFROM scratch AS c\nLABEL d=e\n";
    let ran = check(&language, text, &["--json"]).fails(CHECK_FAILED);
    assert_eq!(findings(&ran), ["LegacyKeyValueFormat 3"]);
    assert_eq!(findings(&check(&language, text, &["--json", "--target=c"]).ok()), [""; 0]);
    language.build(text, &[]).ok();
    language.build(text, &["--target=a"]).fails(CHECK_FAILED);
}

#[test]
fn a_build_tells_the_number_of_findings() {
    let language = Language::new();
    let text = "FROM scratch as a\nENV a b\n";
    let said = language.build(text, &[]).ok().stderr();
    assert!(said.contains("the checks have 2 findings"), "{said}");
    let said = language.build("FROM scratch as a\nLABEL a=b\n", &[]).ok().stderr();
    assert!(said.contains("the checks have a finding"), "{said}");
    let said = language.build(text, &["--quiet"]).ok().stderr();
    assert!(!said.contains("finding"), "{said}");
    let said = language.build("FROM scratch\nLABEL a=b\n", &[]).ok().stderr();
    assert!(!said.contains("finding"), "{said}");
}

#[test]
fn a_base_image_for_another_platform_is_reported() {
    let language = Language::new();
    let base = ["--platform=linux/s390x", "-t", "localhost/other"];
    language.build("FROM scratch\nSHELL [\"/sh\"]\n", &base).ok();
    let text = "FROM localhost/other\nCMD a\n";
    let found = |platform: &str| findings(&check(&language, text, &["--json", platform]).ok());
    assert_eq!(found("--platform=linux/amd64"), ["InvalidBaseImagePlatform 1"]);
    assert_eq!(found("--platform=linux/s390x"), [""; 0]);
}

/// What a trigger declares, the stage on top knows.
#[test]
fn variables_of_triggers_are_known() {
    let language = Language::new();
    let kubefile = "FROM scratch AS b\nONBUILD ENV X=1\nONBUILD ARG Y=2\nFROM b\nENV Z=$X$Y\n";
    let told = language.build(kubefile, &["--check"]).ok().stdout();
    assert!(!told.contains("UndefinedVar"), "{told}");
    let kubefile = "FROM scratch AS b\nFROM b\nENV Z=$X\n";
    let told = language.build(kubefile, &["--check"]).stdout();
    assert!(told.contains("UndefinedVar"), "{told}");
}
