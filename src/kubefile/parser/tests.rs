//! Whole Kubefiles: what they parse to, and every way in which they are wrong.

use std::time::Duration;

use super::*;
use crate::kubefile::ast::{
    CommandForm, Healthcheck, MountKind, Run, RunCommand, RunNetwork, RunSecurity, Source, Transfer,
};
use crate::kubefile::expand::expand;

fn parsed(text: &str) -> Kubefile {
    parse("Kubefile", text.as_bytes()).unwrap_or_else(|found| panic!("{text}\n{found:#?}"))
}

/// The only instruction behind `FROM scratch`.
fn one(text: &str) -> InstructionKind {
    let mut kubefile = parsed(&format!("FROM scratch\n{text}\n"));
    let mut instructions = kubefile.stages.remove(0).instructions;
    assert_eq!(instructions.len(), 1, "{text}");
    instructions.remove(0).kind
}

fn transfer(text: &str) -> Transfer {
    match one(text) {
        InstructionKind::Copy(transfer) | InstructionKind::Add(transfer) => transfer,
        other => panic!("{other:?}"),
    }
}

fn run(text: &str) -> Run {
    match one(text) {
        InstructionKind::Run(run) => run,
        other => panic!("{other:?}"),
    }
}

fn pairs(text: &str) -> Vec<(String, String)> {
    match one(text) {
        InstructionKind::Env(pairs) | InstructionKind::Label(pairs) => pairs,
        other => panic!("{other:?}"),
    }
}

/// Values of an `ENV` or `LABEL` as the builder will see them, without variables set.
fn values(text: &str) -> Vec<(String, String)> {
    pairs(text)
        .into_iter()
        .map(|(key, value)| (key, expand(&value, '\\', &|_| None).unwrap()))
        .collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

/// `line:column message` of each error.
fn errors(text: &str) -> Vec<String> {
    match parse("Kubefile", text.as_bytes()) {
        Ok(kubefile) => panic!("{text} parsed to {kubefile:?}"),
        Err(found) => found
            .iter()
            .map(|d| format!("{}:{} {}", d.span.line, d.span.column, d.message))
            .collect(),
    }
}

#[test]
fn stages_and_global_arguments() {
    let kubefile = parsed(
        "# syntax=docker/dockerfile:1\nARG V=1\nFROM --platform=$BUILDPLATFORM a:${V} AS Base\nARG V\n\
         from scratch\ncopy --from=base / /\nFROM base as last\n",
    );
    assert_eq!(kubefile.name, "Kubefile");
    assert_eq!(kubefile.global_args.len(), 1);
    let names: Vec<_> = kubefile
        .stages
        .iter()
        .map(|s| s.from.name.as_deref())
        .collect();
    assert_eq!(names, [Some("base"), None, Some("last")]);
    let first = &kubefile.stages[0];
    assert_eq!(first.from.platform.as_deref(), Some("$BUILDPLATFORM"));
    assert_eq!(first.from.image, "a:${V}");
    assert_eq!(first.from.written_name.as_deref(), Some("Base"));
    assert_eq!(first.instructions.len(), 1);
    assert_eq!(kubefile.stages[1].instructions[0].name(), "COPY");
    assert_eq!(kubefile.stages[2].index, 2);
    assert_eq!(
        kubefile.stages[1].instructions[0].text,
        "copy --from=base / /"
    );
}

#[test]
fn published_files_that_torture_a_parser() {
    // A quoted default over several lines, inside the braces.
    let helm = "ENV HELM_OPTS=${HELM_OPTS:-\" \\\n--set a=b \\\n--set c=d \\\n\"}";
    assert_eq!(
        values(helm),
        owned(&[("HELM_OPTS", " --set a=b --set c=d ")])
    );
    let two = "ENV A=${A:-\"x \\\n y\"} \\\n    B=${B:-\"z\"}";
    assert_eq!(values(two), owned(&[("A", "x  y"), ("B", "z")]));
    // A comment and a blank line inside a continuation.
    let comment = "ENV A=1 \\\n# B=2 \\\n\n  # note\n  C=3";
    assert_eq!(values(comment), owned(&[("A", "1"), ("C", "3")]));
    // Blanks behind the backslash.
    assert_eq!(
        values("ENV A=1 \\  \t\n B=2 \\\t\n C=3"),
        owned(&[("A", "1"), ("B", "2"), ("C", "3")])
    );
    // The legacy form.
    assert_eq!(
        values("ENV KEY value  more"),
        owned(&[("KEY", "value  more")])
    );
    assert_eq!(values("ENV KEY \"a b\""), owned(&[("KEY", "a b")]));
    assert_eq!(values("ENV KEY a=b c=d"), owned(&[("KEY", "a=b c=d")]));
    assert_eq!(values("LABEL key the text"), owned(&[("key", "the text")]));
    // The node's shell expands these.
    let label = r#"LABEL init="init-cri.sh \$registryDomain \$registryPort && bash init.sh" \
          clean="clean.sh && bash clean-cri.sh \$criData" \
          sealos.io.type="rootfs" 'it s'='$x'"#;
    assert_eq!(
        values(label)[..2],
        owned(&[
            (
                "init",
                "init-cri.sh $registryDomain $registryPort && bash init.sh"
            ),
            ("clean", "clean.sh && bash clean-cri.sh $criData"),
        ])
    );
    // Commands stay as they are.
    for text in [
        "helm upgrade -i $(NAME) $(CHARTS) -n ${NAMESPACE} $HELM_OPTS || true && echo 'a b' | cat",
        "[ -f x ] && echo",
        "['bash', 'x']",
    ] {
        let shell = CommandForm::Shell(text.to_owned());
        assert_eq!(one(&format!("CMD {text}")), InstructionKind::Cmd(shell));
    }
    let CommandForm::Shell(text) = (match one("CMD helmfile \\\n  apply \\\n  -f x") {
        InstructionKind::Cmd(form) => form,
        other => panic!("{other:?}"),
    }) else {
        panic!("not shell form")
    };
    assert_eq!(text, "helmfile   apply   -f x");
    assert_eq!(
        one("CMD [\"bash helm.sh $publicIP\", \"kubectl apply -f manifests\"]"),
        InstructionKind::Cmd(CommandForm::Exec(vec![
            "bash helm.sh $publicIP".into(),
            "kubectl apply -f manifests".into(),
        ]))
    );
    // Several CMDs: the builder takes the last.
    assert_eq!(
        parsed("FROM scratch\nCMD a\nCMD b").stages[0]
            .instructions
            .len(),
        2
    );
}

#[test]
fn pairs_of_the_new_form() {
    assert_eq!(
        pairs(r#"ENV A=1 B="2 3" C='4 5' D=6\ 7 E="#),
        owned(&[
            ("A", "1"),
            ("B", "\"2 3\""),
            ("C", "'4 5'"),
            ("D", r"6\ 7"),
            ("E", "")
        ])
    );
    assert_eq!(pairs("LABEL \"a b\"=c"), owned(&[("\"a b\"", "c")]));
    assert_eq!(pairs("ENV a==b"), owned(&[("a", "=b")]));
    assert_eq!(
        one("ARG A B=1 C=\"x y\" D="),
        InstructionKind::Arg(vec![
            ("A".into(), None),
            ("B".into(), Some("1".into())),
            ("C".into(), Some("\"x y\"".into())),
            ("D".into(), Some(String::new())),
        ])
    );
}

#[test]
fn copies_and_adds() {
    let copy = transfer(
        "COPY --from=a --chown=1:2 --chmod=u=rwX,go=rX --link --parents --exclude=*.md --exclude=x a b* /c/",
    );
    assert_eq!(copy.flags.from.as_deref(), Some("a"));
    assert_eq!(copy.flags.chown.as_deref(), Some("1:2"));
    assert_eq!(copy.flags.chmod.as_deref(), Some("u=rwX,go=rX"));
    assert!(copy.flags.link && copy.flags.parents);
    assert_eq!(copy.flags.exclude, ["*.md", "x"]);
    assert_eq!(
        copy.sources,
        [Source::Path("a".into()), Source::Path("b*".into())]
    );
    assert_eq!(copy.dest, "/c/");
    assert!(!transfer("COPY --link=false a b").flags.link);

    let json = transfer("COPY [\"a b\", \"/c d/\"]");
    assert_eq!(json.sources, [Source::Path("a b".into())]);
    assert_eq!(json.dest, "/c d/");

    let add = transfer("ADD --checksum=sha256:aa --keep-git-dir=true --unpack=false http://x/y /");
    assert_eq!(add.flags.checksum.as_deref(), Some("sha256:aa"));
    assert!(add.flags.keep_git_dir);
    assert_eq!(add.flags.unpack, Some(false));
    assert_eq!(transfer("ADD a /").flags.unpack, None);

    let here = transfer("COPY <<one x <<-\"two\" /d/\n$A\none\n\t$B\n\ttwo");
    let [Source::Heredoc(one), Source::Path(_), Source::Heredoc(two)] = &here.sources[..] else {
        panic!("{here:?}")
    };
    assert_eq!(
        (one.name.as_str(), one.body.as_str(), one.expand),
        ("one", "$A\n", true)
    );
    assert_eq!(
        (two.name.as_str(), two.body.as_str(), two.expand),
        ("two", "$B\n", false)
    );
}

#[test]
fn runs() {
    let plain = run(
        "RUN --network=none --security=insecure --mount=type=cache,target=/c --mount=type=tmpfs,target=/t a && b",
    );
    assert_eq!(plain.network, Some(RunNetwork::None));
    assert_eq!(plain.security, Some(RunSecurity::Insecure));
    assert_eq!(plain.mounts.len(), 2);
    assert_eq!(plain.command(), RunCommand::Shell("a && b".into()));
    let expand = |word: &str| expand(word, '\\', &|_| None);
    let mount = plain.mounts[0].resolve(&expand).unwrap();
    assert!(matches!(mount.kind, MountKind::Cache { .. }));
    let from = run("RUN --mount=from=base,target=/x true");
    assert_eq!(from.mounts[0].from.as_deref(), Some("base"));
    assert_eq!(
        run("RUN [\"a\", \"$b\"]").command(),
        RunCommand::Exec(vec!["a".into(), "$b".into()])
    );
}

#[test]
fn runs_with_here_documents() {
    for (text, expected) in [
        ("RUN <<EOF\na\nb\nEOF", "a\nb\n"),
        ("RUN <<-EOF\n\ta\n\t\tb\n\tEOF", "a\nb\n"),
        ("RUN <<'E F'\n$a\nE F", "$a\n"),
        ("RUN --network=none <<EOF\n# kept\n\nEOF", "# kept\n\n"),
        ("RUN cat <<EOF > /x\n$a\nEOF", "cat <<EOF > /x\n$a\nEOF"),
        ("RUN <<EOF bash\na\nEOF", "<<EOF bash\na\nEOF"),
        (
            "RUN cat <<-A <<\"B\"\n\ta\n\tA\nb\nB",
            "cat <<-A <<\"B\"\n\ta\nA\nb\nB",
        ),
    ] {
        assert_eq!(
            run(text).command(),
            RunCommand::Shell(expected.into()),
            "{text}"
        );
    }
    assert_eq!(
        run("RUN <<script\n#!/usr/bin/env python3\nprint()\nscript").command(),
        RunCommand::Script {
            name: "script".into(),
            body: "#!/usr/bin/env python3\nprint()\n".into(),
        }
    );
    // What follows is not part of the body.
    let file = parsed("FROM scratch\nRUN <<EOF\nFROM x\nEOF\nUSER a\n");
    assert_eq!(file.stages.len(), 1);
    assert_eq!(file.stages[0].instructions[1].span.line, 5);
}

#[test]
fn the_other_instructions() {
    use InstructionKind::*;
    for (text, kind) in [
        ("WORKDIR a b", Workdir("a b".into())),
        ("user ${U:-me}:you", User("${U:-me}:you".into())),
        ("VOLUME /a /b", Volume(vec!["/a".into(), "/b".into()])),
        ("VOLUME [\"/a b\"]", Volume(vec!["/a b".into()])),
        (
            "EXPOSE 80/tcp  8000-8010 $P",
            Expose(vec!["80/tcp".into(), "8000-8010".into(), "$P".into()]),
        ),
        ("STOPSIGNAL SIGTERM", StopSignal("SIGTERM".into())),
        (
            "SHELL [\"bash\", \"-c\"]",
            Shell(vec!["bash".into(), "-c".into()]),
        ),
        ("MAINTAINER A <a@b> $c", Maintainer("A <a@b> $c".into())),
        ("ENTRYPOINT []", Entrypoint(CommandForm::Exec(vec![]))),
        ("HEALTHCHECK none", Healthcheck(tests::Healthcheck::None)),
    ] {
        assert_eq!(one(text), kind, "{text}");
    }
    let Healthcheck(health) = one(
        "HEALTHCHECK --interval=1m30s --timeout=3s --start-period=5s --start-interval=1s --retries=4 CMD curl x",
    ) else {
        panic!("not a health check")
    };
    assert_eq!(
        health,
        tests::Healthcheck::Cmd {
            interval: Some(Duration::from_secs(90)),
            timeout: Some(Duration::from_secs(3)),
            start_period: Some(Duration::from_secs(5)),
            start_interval: Some(Duration::from_secs(1)),
            retries: Some(4),
            command: CommandForm::Shell("curl x".into()),
        }
    );
}

#[test]
fn triggers() {
    let InstructionKind::Onbuild(onbuild) = one("ONBUILD  COPY --from=a \\\n  b /c") else {
        panic!("not a trigger")
    };
    assert_eq!(onbuild.trigger, "COPY --from=a   b /c");
    assert_eq!(onbuild.instruction.name(), "COPY");
    assert_eq!(onbuild.instruction.span_of("b").line, 3);
    let InstructionKind::Onbuild(onbuild) = one("ONBUILD RUN <<EOF\na\nEOF") else {
        panic!("not a trigger")
    };
    assert_eq!(onbuild.trigger, "RUN <<EOF\na\nEOF");

    let trigger = parse_instruction(&onbuild.trigger, '\\').unwrap();
    assert_eq!(trigger, {
        let mut inner = *onbuild.instruction;
        (inner.span, inner.map) = (trigger.span, trigger.map.clone());
        inner
    });
    for wrong in [
        "",
        "FROM a",
        "ONBUILD RUN a",
        "MAINTAINER a",
        "RUN",
        "COYP a b",
        "USER a\nUSER b",
    ] {
        assert!(parse_instruction(wrong, '\\').is_err(), "{wrong}");
    }
}

#[test]
fn the_escape_directive_rules_the_whole_file() {
    let file = parsed("# escape=`\nFROM scratch\nCOPY a `\n  c:\\d\\\nENV A=`\"x\n");
    let InstructionKind::Copy(copy) = &file.stages[0].instructions[0].kind else {
        panic!("not a copy")
    };
    assert_eq!(copy.dest, "c:\\d\\");
    assert_eq!(file.stages[0].instructions.len(), 2);
}

#[test]
fn all_errors_are_reported_in_order() {
    let text = "FROM scratch\nCOYP a b\nENV A\nCOPY --form=x a \\\n  --x /\nRUN [1]\nUSER ${x\n";
    assert_eq!(
        errors(text),
        [
            "2:1 unknown instruction COYP",
            "3:5 ENV A has no value",
            "4:6 COPY has no flag --form",
            "6:5 the JSON form of RUN holds strings only",
            "7:6 the closing } of ${ is missing",
        ]
    );
}

#[test]
fn each_mistake_has_a_place_and_a_message() {
    for (text, expected) in [
        ("", "1:1 there is no FROM in the file"),
        ("# only a comment\n\n", "2:1 there is no FROM in the file"),
        ("ARG A", "1:1 there is no FROM in the file"),
        (
            "RUN a\nRUN b\nFROM c",
            "1:1 RUN stands before the first FROM",
        ),
        ("FROM", "1:1 FROM takes IMAGE or IMAGE AS NAME"),
        ("FROM a b", "1:6 FROM takes IMAGE or IMAGE AS NAME"),
        ("FROM a AS", "1:6 FROM takes IMAGE or IMAGE AS NAME"),
        ("FROM a # b", "1:6 FROM takes IMAGE or IMAGE AS NAME"),
        ("FROM a AS 1b", "1:11 `1b` cannot be the name of a stage"),
        ("FROM a AS b/c", "1:11 `b/c` cannot be the name of a stage"),
        ("FROM --platfrom=x a", "1:6 FROM has no flag --platfrom"),
        ("FROM a\nADD b", "2:5 ADD needs a source and a destination"),
        ("FROM a\nCOPY", "2:1 COPY needs an argument"),
        ("FROM a\nCOPY []", "2:1 COPY needs an argument"),
        ("FROM a\nCOPY \"a b\" c", "2:6 the closing \" is missing"),
        (
            "FROM a\nCOPY b <<EOF\nEOF",
            "2:8 a here-document cannot be the destination of COPY",
        ),
        (
            "FROM a\nCOPY <<EOF /x\nb",
            "2:6 the here-document <<EOF never ends",
        ),
        (
            "FROM a\nCOPY --checksum=x b c",
            "2:6 COPY has no flag --checksum",
        ),
        ("FROM a\nADD --from=x b c", "2:5 ADD has no flag --from"),
        ("FROM a\nENV", "2:1 ENV needs an argument"),
        ("FROM a\nENV =b", "2:5 ENV has a value without a name"),
        ("FROM a\nENV a=b c", "2:9 `c` is not of the form NAME=VALUE"),
        ("FROM a\nENV a=b =", "2:9 ENV has a value without a name"),
        ("FROM a\nLABEL a", "2:7 LABEL a has no value"),
        (
            "FROM a\nENV A=${}",
            "2:7 a substitution needs a name, as in ${NAME}",
        ),
        ("FROM a\nARG =1", "2:5 ARG has a value without a name"),
        ("FROM a\nCMD", "2:1 CMD needs an argument"),
        ("FROM a\nRUN", "2:1 RUN needs a command"),
        (
            "FROM a\nRUN --network=hots x",
            "2:15 --network=hots is not known",
        ),
        (
            "FROM a\nRUN --mount=type=bnid,target=/x b",
            "2:13 there is no mount type bnid",
        ),
        ("FROM a\nRUN --mont=x b", "2:5 RUN has no flag --mont"),
        (
            "FROM a\nSHELL bash -c",
            "2:1 SHELL takes the JSON form only",
        ),
        ("FROM a\nSHELL []", "2:1 SHELL takes the JSON form only"),
        (
            "FROM a\nVOLUME [\" \"]",
            "2:1 the name of a VOLUME is empty",
        ),
        ("FROM a\nWORKDIR", "2:1 WORKDIR needs an argument"),
        ("FROM a\nHEALTHCHECK", "2:1 HEALTHCHECK needs an argument"),
        (
            "FROM a\nHEALTHCHECK CMD",
            "2:13 HEALTHCHECK CMD needs a command",
        ),
        (
            "FROM a\nHEALTHCHECK EVERY x",
            "2:13 there is no HEALTHCHECK EVERY",
        ),
        (
            "FROM a\nHEALTHCHECK NONE x",
            "2:18 HEALTHCHECK NONE takes no arguments",
        ),
        (
            "FROM a\nHEALTHCHECK --interval=1 CMD x",
            "2:24 --interval=1 is not a duration",
        ),
        (
            "FROM a\nHEALTHCHECK --interval=1us CMD x",
            "2:24 --interval=1us is shorter than 1ms",
        ),
        (
            "FROM a\nHEALTHCHECK --retries=-1 CMD x",
            "2:23 --retries=-1 is not a number",
        ),
        ("FROM a\nONBUILD", "2:1 ONBUILD needs an argument"),
        ("FROM a\nONBUILD FROM b", "2:9 FROM cannot be a trigger"),
        (
            "FROM a\nONBUILD ONBUILD RUN b",
            "2:9 a trigger cannot have a trigger of its own",
        ),
        (
            "FROM a\nONBUILD COPY b",
            "2:14 COPY needs a source and a destination",
        ),
        ("FROM a\nUSER --x a", "2:6 USER has no flag --x"),
        (
            "# escape=x\nFROM a",
            "1:1 the escape character is \\ or `, not x",
        ),
        ("FROM a\nRUN b\n  c\n", "3:3 unknown instruction c"),
    ] {
        assert_eq!(errors(text), [expected], "{text}");
    }
}

#[test]
fn slips_are_suggested() {
    for (text, hint) in [
        ("FORM a", "did you mean FROM?"),
        ("FROM a\nENTRPOINT a", "did you mean ENTRYPOINT?"),
        ("FROM a\nCOPY --form=b c d", "did you mean --from?"),
        ("FROM a\nRUN --network=hots b", "did you mean host?"),
        (
            "FROM a\nRUN --mount=type=tmps,target=/x b",
            "did you mean tmpfs?",
        ),
    ] {
        let found = parse("K", text.as_bytes()).unwrap_err();
        assert_eq!(found[0].hint.as_deref(), Some(hint), "{text}");
    }
}

#[test]
fn what_is_no_text_is_refused() {
    let first = |text: &[u8]| {
        let found = parse("K", text).unwrap_err();
        format!(
            "{}:{} {}",
            found[0].span.line, found[0].span.column, found[0].message
        )
    };
    assert_eq!(first(b"FROM a\nENV \xff=1"), "2:5 the file is not UTF-8");
    assert_eq!(first(b"FROM a\0"), "1:7 the file holds a NUL byte");
    assert_eq!(
        first(&vec![b'#'; MAX_KUBEFILE + 1]),
        "1:1 the file is larger than 4194304 bytes"
    );
}

#[test]
fn the_number_of_errors_is_bounded() {
    let found = parse("K", "X\n".repeat(10_000).as_bytes()).unwrap_err();
    assert_eq!(found.len(), MAX_DIAGNOSTICS);
    let found = parse(
        "K",
        format!("FROM a\nENV a=b{}", " c".repeat(10_000)).as_bytes(),
    );
    assert_eq!(found.unwrap_err().len(), MAX_DIAGNOSTICS);
}

/// Text that looks like a Kubefile more often than random bytes do.
fn kubefile_like(seed: &[u8]) -> Vec<u8> {
    const PIECES: &[&str] = &[
        "FROM ",
        "scratch",
        "\nRUN ",
        "\nCOPY ",
        "\nENV ",
        "\nONBUILD ",
        "\nADD ",
        "\nCMD ",
        "\n",
        " ",
        "\\\n",
        "\\ \n",
        "<<EOF",
        "<<-'A B'",
        "\nEOF\n",
        "\n\tA B\n",
        "$",
        "${a:-",
        "}",
        "\"",
        "'",
        "[\"",
        "\"]",
        ",",
        "=",
        "--from=",
        "--mount=type=cache,",
        "target=/x",
        "#",
        "# escape=`\n",
        "`\n",
        "\u{feff}",
        "é",
        "\t",
        "a",
        "/",
        "*",
        "\nARG ",
        "\nLABEL ",
        "\nHEALTHCHECK ",
        "$((",
        "\r\n",
        " AS b",
        "--",
        "\nVOLUME ",
        "1",
        "%",
    ];
    let mut text = Vec::new();
    for &byte in seed {
        match PIECES.get(usize::from(byte)) {
            Some(piece) => text.extend_from_slice(piece.as_bytes()),
            None if byte > 0xf0 => text.push(byte),
            None => text.extend_from_slice(PIECES[usize::from(byte) % PIECES.len()].as_bytes()),
        }
    }
    text
}

#[test]
fn any_file_parses_or_is_refused_with_places_inside_it() {
    bolero::check!().for_each(|seed: &[u8]| {
        let text = kubefile_like(seed);
        let lines = text.iter().filter(|&&b| b == b'\n').count() + 1;
        match parse("K", &text) {
            Ok(kubefile) => {
                assert!(!kubefile.stages.is_empty());
                for instruction in kubefile.stages.iter().flat_map(|s| &s.instructions) {
                    assert!(instruction.span.end_line <= lines);
                    assert!(!instruction.text.contains('\n'));
                    if let InstructionKind::Run(run) = &instruction.kind {
                        let _ = run.command();
                    }
                }
            }
            Err(found) => {
                assert!(!found.is_empty());
                assert!(
                    found
                        .iter()
                        .all(|d| d.span.line >= 1 && d.span.end_line <= lines)
                );
                crate::kubefile::diagnostic::render(&found, "K", &text, false);
            }
        }
    });
}

#[test]
fn a_large_hostile_file_takes_no_time() {
    let started = std::time::Instant::now();
    for piece in [
        "$((",
        "<<EOF ",
        "\"",
        "'a ",
        "--x ",
        "\\\n",
        "${a:-",
        "ENV a=b\n",
        "[",
        "<<",
        " \\\n\n",
    ] {
        for head in ["FROM a\nRUN ", "FROM a\nENV a=", "FROM a\nCOPY ", "FROM "] {
            let text = format!("{head}{}", piece.repeat(400_000 / piece.len()));
            let _ = parse("K", text.as_bytes());
        }
    }
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
}
