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
    language.file(".dockerignore", "hidden\n*.log\n!kept.log\n");
    let text = "FROM scratch\nCOPY hidden /a\nCOPY kept.log other.log /b/\nADD hidden/below /c\n";
    let ran = check(&language, text, &["--json"]).ok();
    assert_eq!(findings(&ran), ["CopyIgnoredFile 2", "CopyIgnoredFile 3", "CopyIgnoredFile 4"]);
}
