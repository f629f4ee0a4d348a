//! Tests of each rule: what it reports, where, and what it accepts.

use super::*;
use crate::parse;

fn findings(name: &str, text: &str) -> Vec<String> {
    let kubefile = parse(name, text.as_bytes()).unwrap_or_else(|f| panic!("{text}\n{f:#?}"));
    check(&kubefile, &CheckOptions::default())
        .iter()
        .map(|d| format!("{}:{} {}", d.span.line, d.span.column, d.rule.unwrap_or_default()))
        .collect()
}

/// Each rule, with a file that violates it once and the place of the finding.
const BROKEN: &[(&str, &str, &str)] = &[
    ("ConsistentInstructionCasing", "FROM scratch\ncopy a /\nUSER b\n", "2:1"),
    ("ConsistentInstructionCasing", "from scratch\ncopy a /\nUSER b\n", "3:1"),
    ("ConsistentInstructionCasing", "FROM scratch\nUser b\n", "2:1"),
    ("DuplicateStageName", "FROM scratch AS a\nFROM scratch AS a\n", "2:17"),
    ("ExposeProtoCasing", "FROM scratch\nEXPOSE 80/tcp 81/UDP\n", "2:15"),
    ("FromAsCasing", "FROM scratch as a\n", "1:14"),
    ("FromAsCasing", "from scratch AS a\n", "1:14"),
    ("FromPlatformFlagConstDisallowed", "FROM --platform=linux/amd64 scratch\n", "1:17"),
    ("InvalidDefaultArgInFrom", "ARG T\nFROM a:${T}\n", "2:6"),
    ("InvalidDefaultArgInFrom", "ARG T\nFROM $T\n", "2:6"),
    ("JSONArgsRecommended", "FROM scratch\nCMD a b\n", "2:1"),
    ("JSONArgsRecommended", "FROM scratch\nENTRYPOINT a b\n", "2:1"),
    ("LegacyKeyValueFormat", "FROM scratch\nENV a b\n", "2:5"),
    ("LegacyKeyValueFormat", "FROM scratch\nLABEL a \\\n  b c\n", "2:7"),
    ("UnknownLabel", "FROM scratch\nLABEL sealos.io.type=application int=init.sh\n", "2:1"),
    ("UnknownLabel", "FROM scratch\nLABEL sealos.io.type=application sealos.io.x=1\n", "2:1"),
    ("MaintainerDeprecated", "FROM scratch\nMAINTAINER a\n", "2:1"),
    ("MultipleInstructionsDisallowed", "FROM scratch\nHEALTHCHECK NONE\nHEALTHCHECK NONE\n", "2:1"),
    ("MultipleInstructionsDisallowed", "FROM scratch\nCMD []\nCMD []\n", "2:1"),
    ("MultipleInstructionsDisallowed", "FROM scratch\nENTRYPOINT []\nENTRYPOINT []\n", "2:1"),
    ("NoEmptyContinuation", "FROM scratch\nENV a=b \\\n\n  c=d\n", "3:1"),
    ("RedundantTargetPlatform", "FROM --platform=$TARGETPLATFORM scratch\n", "1:17"),
    ("RelativeCopyPath", "FROM a\nCOPY a a/\n", "2:8"),
    ("ReservedStageName", "FROM scratch AS context\n", "1:17"),
    ("SecretsUsedInArgOrEnv", "FROM scratch\nENV A=1 DB_PASSWORD=x\n", "2:9"),
    ("SecretsUsedInArgOrEnv", "FROM scratch\nARG TOKEN\n", "2:5"),
    ("SecretsUsedInArgOrEnv", "FROM scratch\nENV A_KEY_FILE=1 KEY_VERSION=1 AUTH=1\n", "2:32"),
    ("ExposeInvalidFormat", "FROM scratch\nEXPOSE 80 8080:81\n", "2:11"),
    ("ExposeInvalidFormat", "FROM scratch\nEXPOSE 127.0.0.1:80:80/udp\n", "2:8"),
    ("FromPlatformFlagConstDisallowed", "FROM --platform=linux/amd64 scratch AS arm64\n", "1:17"),
    (
        "InvalidDefinitionDescription",
        "# check=experimental=all;skip=all\n# b text\nFROM scratch AS b\n# a text\nARG b a\n# text\nFROM b AS c\n",
        "7:1",
    ),
    (
        "InvalidDefinitionDescription",
        "# check=experimental=all\n# Base x\nFROM scratch AS base\n",
        "3:1",
    ),
    (
        "InvalidDefinitionDescription",
        "FROM scratch\n# check=experimental=InvalidDefinitionDescription\nARG a\n# b\nARG c\n",
        "3:1",
    ),
    ("InvalidDefaultArgInFrom", "ARG R=Team\nFROM $R/App\n", "2:6"),
    ("InvalidDefaultArgInFrom", "FROM scratch AS base\nFROM Base\n", "2:6"),
    ("FromPlatformFlagConstDisallowed", "FROM --platform=x86_64 scratch AS x86_64\n", "1:17"),
    ("RedundantTargetPlatform", "FROM --platform=${TARGETPLATFORM:-linux/arm64} scratch\n", "1:17"),
    ("UndefinedArgInFrom", "FROM ${BASE:-a}$BASE\n", "1:8"),
    ("UndefinedVar", "FROM scratch\nENV a=${b:-$b}\n", "2:12"),
    ("UndefinedVar", "FROM scratch\nCOPY <<E /f\n'$a' $a\nE\n", "2:1"),
    ("UndefinedVar", "FROM scratch\nLABEL a=$1\n", "2:9"),
    ("UndefinedVar", "FROM scratch\nUSER $HTTP_PROXY\n", "2:6"),
    ("UndefinedVar", "ARG b=scratch\nFROM $b\nUSER $a\n", "3:6"),
    ("ExposeInvalidFormat", "FROM scratch\nENV p=\"80:81 82\"\nEXPOSE $p :83\n", "3:8"),
    ("ExposeProtoCasing", "FROM scratch\nARG p=TCP\nEXPOSE 80/$p\n", "3:8"),
    ("WorkdirRelativePath", "FROM scratch\nARG d=data\nWORKDIR $d\n", "3:9"),
    ("SecretsUsedInArgOrEnv", "FROM scratch\nENV a=token\nENV $a=1\n", "3:5"),
    ("NoEmptyContinuation", "FROM scratch\nENV a=b \\\n\n\n  c=d\n", "3:1"),
    ("JSONArgsRecommended", "FROM scratch\nCMD a b\nSHELL [\"a\"]\n", "2:1"),
    ("WorkdirRelativePath", "FROM scratch\nWORKDIR b\n", "2:9"),
    ("ConsistentInstructionCasing", "From scratch as a\n", "1:1"),
    ("StageNameCasing", "FROM scratch AS Base\n", "1:17"),
    ("UndefinedArgInFrom", "ARG VERSION=1\nFROM a:${VERSOIN:-1}$VERSOIN\n", "2:10"),
    ("UndefinedVar", "FROM scratch\nCOPY $a /\n", "2:6"),
    ("UndefinedVar", "FROM scratch\nENV a=1 b=$a\n", "2:11"),
    ("UndefinedVar", "FROM scratch\nARG a\nFROM scratch\nUSER ${a}\n", "4:6"),
    ("UndefinedVar", "FROM x\nENV NAME=1\nLABEL a=$NAEM\n", "3:9"),
    ("UndefinedVar", "FROM scratch AS p\nARG a\nENV e=1\nFROM p\nUSER $e:$a:$b\n", "5:12"),
    ("WorkdirRelativePath", "FROM a\nWORKDIR b\nWORKDIR c\n", "2:9"),
    ("ClusterImageType", "FROM scratch\nLABEL sealos.io.type=rootsf version=1\n", "2:22"),
    ("ClusterImageType", "FROM scratch\nLABEL apps.sealos.io/type=\"addons\"\n", "2:27"),
    ("RootfsVersionLabel", "FROM scratch\nLABEL sealos.io.type=\"rootfs\"\n", "2:22"),
];

#[test]
fn every_rule_finds_what_it_is_for() {
    for (rule, text, at) in BROKEN {
        assert_eq!(findings("Dockerfile", text), [format!("{at} {rule}")], "{text}");
    }
    let split = "FROM scratch\nCMD [\"bash\", \"x.sh\"]\n";
    assert_eq!(findings("dir/Kubefile", split), ["2:1 CommandElementsAreCommands"]);
    for rule in rules::RULES {
        let elsewhere = [
            "CommandElementsAreCommands",
            "CopyIgnoredFile",
            "EmbeddedArchiveCopied",
            "InvalidBaseImagePlatform",
        ]
        .contains(&rule.name);
        let name = rule.name;
        assert!(elsewhere || BROKEN.iter().any(|(broken, _, _)| *broken == name), "{name}");
    }
    assert!(rules::RULES.is_sorted_by_key(|rule| rule.name));
}

#[test]
fn good_files_are_left_alone() {
    for text in [
        "FROM scratch\nCOPY . .\nCMD [\"a\"]\n",
        "from scratch as a\ncopy . .\n",
        "ARG V=1\nFROM a:$V AS b\nFROM --platform=$BUILDPLATFORM b\n",
        "ARG V\nFROM ${V:-a}\n",
        "ARG V\nFROM a$V\n",
        "ARG V=\"\"\nFROM a:b${V}-$TARGETSTAGE-$TARGETARCH\n",
        "FROM scratch\nARG OPTS\nENV OPTS=${OPTS:-\"x\"} PATH=$PATH:/x\n",
        "FROM scratch\nARG a=1 c=$a\nARG b=$a\nENV c=${b}\nLABEL d=$c e='$x' f=\\$y g=$(z)\n",
        "FROM scratch\nEXPOSE $undefined\nRUN echo $undefined\n",
        "FROM scratch\nCOPY --exclude=$x <<'E' /f\n$a\nE\n",
        "FROM scratch\nARG BUILDKIT_SBOM_SCAN_STAGE\nLABEL a=$BUILDKIT_SBOM_SCAN_STAGE\n",
        "ARG b=base\nFROM scratch AS base\nWORKDIR /a\nFROM $b\nWORKDIR c\n",
        "FROM scratch\nARG d=/data\nWORKDIR ${d}\n",
        "FROM x\nWORKDIR $HOME\nEXPOSE 80/$PROTO\n",
        "FROM --platform=amd64 scratch AS on-linux\nFROM --platform=aarch64 scratch AS arm64\n",
        "FROM docker-image://a/b\nFROM oci-layout://a/B\n",
        "FROM x\nUSER $WHO_KNOWS\n",
        "FROM scratch\nSHELL [\"bash\", \"-c\"]\nCMD a b\n",
        "FROM scratch\nENV PUBLIC_KEY=1 MONKEY=2 KEYS=3\n",
        "FROM scratch\nARG PROTO\nEXPOSE 80 81/tcp 82/$PROTO\n",
        "FROM a\nWORKDIR /b\nWORKDIR c\nCOPY x y/\n",
        "FROM scratch AS a\nWORKDIR /b\nFROM a\nCOPY x y/\nWORKDIR z\n",
        "FROM scratch AS a\nSHELL [\"bash\", \"-c\"]\nFROM a\nCMD a b\n",
        "ARG base=scratch\nFROM $base\nCOPY f .\n",
        "arg API_TOKEN=x\nFROM scratch\n",
        "FROM --platform=linux/arm64 scratch AS tools_arm64\nFROM --platform=linux/amd64 scratch AS linux\n",
        "# a comment\nARG a\nFROM scratch\n",
        "# check=experimental=all\n# other\n\nARG a\n# b first\nFROM scratch AS b\n#\nFROM b AS c\n",
        "FROM scratch\nCMD [\"a\"]\nFROM scratch\nCMD [\"b\"]\n",
        "FROM scratch\nLABEL sealos.io.type=rootfs version=v1.29.9\nCMD a b\n",
        "ARG T\nFROM scratch\nARG T\nLABEL sealos.io.type=$T\n",
    ] {
        assert_eq!(findings("Dockerfile", text), [""; 0], "{text}");
    }
    for text in [
        "FROM scratch\nCOPY . .\nCMD bash entrypoint.sh\n",
        "FROM scratch\nCMD [\"kubectl apply -f manifests\", \"bash x.sh\"]\n",
        "FROM scratch\nCMD [\"bash x.sh\"]\n",
        "FROM scratch\nCMD [\"/bin/sh\", \"-c\", \"install\"]\n",
    ] {
        assert_eq!(findings("Kubefile", text), [""; 0], "{text}");
    }
}

#[test]
fn the_directive_silences_rules() {
    let text = "FROM scratch as a\nMAINTAINER a\n";
    for (directive, expected) in [
        ("# check=skip=FromAsCasing\n", &["3:1 MaintainerDeprecated"][..]),
        ("# check=skip=FromAsCasing,MaintainerDeprecated\n", &[]),
        ("# check=skip=fromascasing\n", &["2:14 FromAsCasing", "3:1 MaintainerDeprecated"]),
        ("# check=skip=FromAsCasing, MaintainerDeprecated\n", &["3:1 MaintainerDeprecated"]),
        ("# check=skip=all;error=true\n", &[]),
        ("# check=skip=all // for now\n", &[]),
    ] {
        assert_eq!(findings("Dockerfile", &format!("{directive}{text}")), expected);
    }
}

#[test]
fn a_comment_above_an_instruction_silences_rules_there() {
    for (text, expected) in [
        ("# check=skip=MaintainerDeprecated // history\n# why\nMAINTAINER a\n", &[][..]),
        ("# check = skip=all\nCMD a \\\n b\n", &[]),
        ("#check=skip=FromAsCasing,LegacyKeyValueFormat\nENV a b\n", &[]),
        ("# check=skip=FromAsCasing\nENV a b\n", &["3:5 LegacyKeyValueFormat"]),
        ("# check=skip=all\n\nENV a b\nENV c d\n", &["5:5 LegacyKeyValueFormat"]),
        ("# check=skip=all\n#\nENV a b\n", &["4:5 LegacyKeyValueFormat"]),
        ("# check=skip=a\n# check=skip=all\nENV a b\n", &["4:5 LegacyKeyValueFormat"]),
        ("# check=error=maybe;skip=all\nENV a b\n", &["3:5 LegacyKeyValueFormat"]),
        ("# check=skip=all\nuser a\n", &["3:1 ConsistentInstructionCasing"]),
        ("# check=skip=all\nCMD []\nCMD []\n", &["3:1 MultipleInstructionsDisallowed"]),
        ("CMD []\n# check=skip=MultipleInstructionsDisallowed\nCMD []\n", &[]),
        ("# check=skip=all\nFROM a AS context\n", &["3:11 ReservedStageName"]),
        ("# check=skip=all\nFROM --platform=$P a as B\n", &[]),
        ("# check=skip=all\nENV a=1 \\\n\n b=2\n", &["4:1 NoEmptyContinuation"]),
    ] {
        assert_eq!(findings("Dockerfile", &format!("FROM scratch\n{text}")), expected, "{text}");
    }
}

#[test]
fn with_a_target_only_the_stages_that_are_built_have_findings_about_instructions() {
    let text = "FROM scratch AS A\nENV a b\nCMD c\nMAINTAINER d\nFROM scratch\nENV a b\nUSER $x\n";
    let kubefile = parse("Dockerfile", text.as_bytes()).unwrap();
    let found = |stages: Option<BTreeSet<usize>>| -> Vec<(usize, &str)> {
        let found = check(&kubefile, &CheckOptions { stages, ..CheckOptions::default() });
        found.iter().map(|d| (d.span.line, d.rule.unwrap_or_default())).collect()
    };
    let of_file = [(1, "StageNameCasing"), (4, "MaintainerDeprecated")];
    let last = [(6, "LegacyKeyValueFormat"), (7, "UndefinedVar")];
    assert_eq!(found(Some([1].into())), [of_file, last].concat());
    let first = [(2, "LegacyKeyValueFormat"), (3, "JSONArgsRecommended")];
    let all = [&of_file[..1], &first[..], &of_file[1..], &last[..]].concat();
    assert_eq!(found(None), all);
}

#[test]
fn ports_that_are_none_are_mistakes() {
    let text = "FROM scratch\nARG p=localhost:80:80\nEXPOSE 80\nEXPOSE 81 $p x$UNSET\n";
    let kubefile = parse("Dockerfile", text.as_bytes()).unwrap();
    let found = check(&kubefile, &CheckOptions::default());
    let found: Vec<_> = found.iter().map(|d| (d.span.line, d.rule, d.message.as_str())).collect();
    let expected = [(4, None, "`localhost:80:80` is not a port"), (4, None, "`x` is not a port")];
    assert_eq!(found, expected);
}

#[test]
fn what_the_command_line_sets_counts() {
    let text = "ARG base\nFROM --platform=$p $base\nARG d=$x\nWORKDIR $d\nARG q\nEXPOSE 80/$q\n";
    let kubefile = parse("Dockerfile", text.as_bytes()).unwrap();
    let given = [("base", "scratch"), ("d", "data"), ("q", "UDP")];
    let build_args =
        given.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
    let found = check(&kubefile, &CheckOptions { build_args, ..CheckOptions::default() });
    let found: Vec<_> = found.iter().map(|d| (d.span.line, d.rule.unwrap_or_default())).collect();
    let expected = [
        (2, "UndefinedArgInFrom"),
        (2, "InvalidDefaultArgInFrom"),
        (4, "WorkdirRelativePath"),
        (6, "ExposeProtoCasing"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn findings_fail_a_build_that_asks_for_it_unless_only_imgctl_has_the_rule() {
    for (text, expected) in [
        ("# check=error=true\nFROM scratch as a\n", true),
        ("# check=error=false\nFROM scratch as a\n", false),
        ("FROM scratch as a\n", false),
        ("# check=error=true\nFROM a\nCOPY f .\n", false),
        ("# check=error=true;skip=FromAsCasing\nFROM scratch as a\n", false),
    ] {
        let kubefile = parse("Dockerfile", text.as_bytes()).unwrap();
        let found = check(&kubefile, &CheckOptions::default());
        assert_eq!(fails(&kubefile.directives.check, &found), expected, "{text}");
    }
}

#[test]
fn sources_that_the_ignore_file_hides_are_reported() {
    let text = "FROM scratch\nARG n=hidden\nCOPY hidden shown /a/\nADD \"$n\" https://x/hidden /b/\n\
        COPY --from=x hidden /d\n";
    let kubefile = parse("Dockerfile", text.as_bytes()).unwrap();
    let hides = |path: &str| path.contains("hidden");
    let options = CheckOptions { hides: Some(&hides), ..CheckOptions::default() };
    let found = check(&kubefile, &options);
    let found = found.iter().filter(|d| d.rule == Some("CopyIgnoredFile"));
    let lines: Vec<_> = found.map(|d| (d.span.line, d.span.column)).collect();
    assert_eq!(lines, [(3, 6), (4, 5)]);
}

#[test]
fn what_the_command_line_and_the_store_know_counts() {
    let text =
        "FROM base\nUSER $FROM_BASE$OTHER\nLABEL sealos.io.type=rootfs\nWORKDIR $FROM_BASE\n";
    let kubefile = parse("Kubefile", text.as_bytes()).unwrap();
    let base = |image: &str, _: &Platform| {
        let env = vec![("FROM_BASE".to_owned(), "a".to_owned())];
        (image == "base").then(|| BaseImage { env, ..BaseImage::default() })
    };
    let options = CheckOptions {
        labels: vec!["version".to_owned()],
        base_image: Some(&base),
        ..CheckOptions::default()
    };
    let found = check(&kubefile, &options);
    let found: Vec<_> = found.iter().map(|d| (d.rule, d.message.as_str())).collect();
    let expected = [
        (Some("UndefinedVar"), "nothing sets OTHER before this use"),
        (Some("WorkdirRelativePath"), "the location of $FROM_BASE depends on the base image"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_base_image_may_have_a_shell_and_another_platform() {
    let text = "FROM a\nCMD b\nFROM --platform=$BUILDPLATFORM a\nCMD b\nFROM c\nCMD d\n";
    let kubefile = parse("Dockerfile", text.as_bytes()).unwrap();
    let [arm, amd] =
        ["arm64", "amd64"].map(|architecture| Platform::new("linux", architecture, None));
    let base = |image: &str, wanted: &Platform| {
        assert!([&arm, &amd].contains(&wanted), "{wanted}");
        let platform = Some(amd.clone());
        Some(BaseImage { has_shell: image == "a", platform, ..BaseImage::default() })
    };
    let options = CheckOptions {
        platform: Some(arm.clone()),
        platform_args: [("BUILDPLATFORM".to_owned(), amd.to_string())].into(),
        base_image: Some(&base),
        ..CheckOptions::default()
    };
    let found = check(&kubefile, &options);
    let found: Vec<_> = found.iter().map(|d| (d.span.line, d.rule.unwrap_or_default())).collect();
    let expected = [
        (1, "InvalidBaseImagePlatform"),
        (5, "InvalidBaseImagePlatform"),
        (6, "JSONArgsRecommended"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn hints_say_what_was_meant() {
    let text = "FROM scratch\nENV NAME=1\nUSER $NAEM\n";
    let kubefile = parse("Kubefile", text.as_bytes()).unwrap();
    let found = check(&kubefile, &CheckOptions::default());
    assert_eq!(found[0].hint.as_deref(), Some("did you mean $NAME?"));
}

#[test]
fn archives_that_are_embedded_are_not_to_be_copied_as_well() {
    let messages = |text: &str| -> Vec<String> {
        let kubefile = parse("Kubefile", text.as_bytes()).unwrap();
        let options = CheckOptions {
            archives: vec![
                "images/skopeo/etcd.tar".to_owned(),
                "images/skopeo/pause.tar".to_owned(),
            ],
            ..CheckOptions::default()
        };
        let found = check(&kubefile, &options);
        let found = found.iter().map(|diagnostic| {
            assert_eq!(diagnostic.rule, Some("EmbeddedArchiveCopied"));
            let hint = diagnostic.hint.as_deref().unwrap_or_default();
            let hint = hint.rsplit(' ').next().unwrap_or_default();
            format!("{} {} {hint}", diagnostic.span.line, diagnostic.message)
        });
        found.collect()
    };
    let both = "are already embedded, and are copied as well";
    for (text, expected) in [
        (
            "FROM scratch\nCOPY images images\n",
            format!("2 skopeo/etcd.tar and 1 more of images {both} --exclude=skopeo"),
        ),
        (
            "FROM scratch\nCOPY etc ./ /\n",
            format!("2 images/skopeo/etcd.tar and 1 more of ./ {both} --exclude=images/skopeo"),
        ),
        (
            "FROM scratch\nADD im*/ images/\n",
            format!("2 skopeo/etcd.tar and 1 more of im*/ {both} --exclude=skopeo"),
        ),
        (
            "FROM scratch AS base\nCOPY images images\nFROM base\n",
            format!("2 skopeo/etcd.tar and 1 more of images {both} --exclude=skopeo"),
        ),
        (
            "FROM scratch\nCOPY --exclude=skopeo/e* images images\n",
            "2 skopeo/pause.tar of images is already embedded, and is copied as well \
             --exclude=skopeo"
                .to_owned(),
        ),
        (
            "FROM scratch\nCOPY images/skopeo/pause.tar /\n",
            "2 pause.tar of images/skopeo/pause.tar is already embedded, and is copied as well \
             --exclude=pause.tar"
                .to_owned(),
        ),
    ] {
        assert_eq!(messages(text), [expected], "{text}");
    }
    for text in [
        "FROM scratch\nCOPY images/shim images/shim\n",
        "FROM scratch\nCOPY --exclude=skopeo images images\n",
        "FROM scratch\nADD images/skopeo/etcd.tar /\n",
        "FROM scratch\nARG WHAT\nCOPY $WHAT /\n",
        "FROM scratch AS a\nCOPY images images\nFROM scratch\nCOPY --from=a images /\n",
    ] {
        assert_eq!(messages(text), [""; 0], "{text}");
    }
}
