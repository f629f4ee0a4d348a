//! Tests that parse whole Kubefiles.

use std::time::Duration;

use super::*;
use crate::ast::{
    CommandForm, Healthcheck, MountKind, Run, RunCommand, RunNetwork, RunSecurity, Source, Transfer,
};
use crate::expand::expand;

mod mistakes;

fn parsed(text: &str) -> Kubefile {
    parse("Kubefile", text.as_bytes()).unwrap_or_else(|found| panic!("{text}\n{found:#?}"))
}

/// Returns the only instruction after `FROM scratch`.
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

/// Returns the values of an `ENV` or `LABEL` as the builder sees them, with no variables set.
fn values(text: &str) -> Vec<(String, String)> {
    pairs(text)
        .into_iter()
        .map(|(key, value)| (key, expand(&value, '\\', &|_| None).unwrap()))
        .collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn stages_and_global_arguments() {
    let kubefile = parsed(
        "# syntax=docker/dockerfile:1\nARG V=1\nFROM --platform=$BUILDPLATFORM a:${V} AS Base\nARG V\n\
         from scratch\ncopy --from=base / /\nFROM base as last\n",
    );
    assert_eq!(kubefile.name, "Kubefile");
    assert_eq!(kubefile.global_args.len(), 1);
    let names: Vec<_> = kubefile.stages.iter().map(|s| s.from.name.as_deref()).collect();
    assert_eq!(names, [Some("base"), None, Some("last")]);
    let first = &kubefile.stages[0];
    assert_eq!(first.from.platform.as_deref(), Some("$BUILDPLATFORM"));
    assert_eq!(first.from.image, "a:${V}");
    assert_eq!(first.from.written_name.as_deref(), Some("Base"));
    assert_eq!(first.instructions.len(), 1);
    assert_eq!(kubefile.stages[1].instructions[0].name(), "COPY");
    assert_eq!(kubefile.stages[2].index, 2);
    assert_eq!(kubefile.stages[1].instructions[0].text, "copy --from=base / /");
}

#[test]
fn published_files_that_torture_a_parser() {
    // A quoted default that spans several lines inside the braces.
    let helm = "ENV HELM_OPTS=${HELM_OPTS:-\" \\\n--set a=b \\\n--set c=d \\\n\"}";
    assert_eq!(values(helm), owned(&[("HELM_OPTS", " --set a=b --set c=d ")]));
    let two = "ENV A=${A:-\"x \\\n y\"} \\\n    B=${B:-\"z\"}";
    assert_eq!(values(two), owned(&[("A", "x  y"), ("B", "z")]));
    // A comment and a blank line inside a continuation.
    let comment = "ENV A=1 \\\n# B=2 \\\n\n  # note\n  C=3";
    assert_eq!(values(comment), owned(&[("A", "1"), ("C", "3")]));
    // Blanks after the backslash.
    assert_eq!(
        values("ENV A=1 \\  \t\n B=2 \\\t\n C=3"),
        owned(&[("A", "1"), ("B", "2"), ("C", "3")])
    );
    // The legacy form.
    assert_eq!(values("ENV KEY value  more"), owned(&[("KEY", "value  more")]));
    assert_eq!(values("ENV KEY \"a b\""), owned(&[("KEY", "a b")]));
    assert_eq!(values("ENV KEY a=b c=d"), owned(&[("KEY", "a=b c=d")]));
    assert_eq!(values("LABEL key the text"), owned(&[("key", "the text")]));
    // The host's shell expands these.
    let label = r#"LABEL init="init-cri.sh \$registryDomain \$registryPort && bash init.sh" \
          clean="clean.sh && bash clean-cri.sh \$criData" \
          sealos.io.type="rootfs" 'it s'='$x'"#;
    assert_eq!(
        values(label)[..2],
        owned(&[
            ("init", "init-cri.sh $registryDomain $registryPort && bash init.sh"),
            ("clean", "clean.sh && bash clean-cri.sh $criData"),
        ])
    );
    // Commands are not changed.
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
    // Several CMD instructions: the builder uses the last one.
    assert_eq!(parsed("FROM scratch\nCMD a\nCMD b").stages[0].instructions.len(), 2);
}

#[test]
fn pairs_of_the_new_form() {
    assert_eq!(
        pairs(r#"ENV A=1 B="2 3" C='4 5' D=6\ 7 E="#),
        owned(&[("A", "1"), ("B", "\"2 3\""), ("C", "'4 5'"), ("D", r"6\ 7"), ("E", "")])
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
    assert_eq!(copy.sources, [Source::Path("a".into()), Source::Path("b*".into())]);
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
    assert_eq!((one.name.as_str(), one.body.as_str(), one.expand), ("one", "$A\n", true));
    assert_eq!((two.name.as_str(), two.body.as_str(), two.expand), ("two", "$B\n", false));
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
    for text in ["RUN", "RUN --mount=type=tmpfs,target=/t"] {
        assert_eq!(run(text).command(), RunCommand::Shell(String::new()), "{text}");
    }
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
        ("RUN cat <<-A <<\"B\"\n\ta\n\tA\nb\nB", "cat <<-A <<\"B\"\n\ta\nA\nb\nB"),
    ] {
        assert_eq!(run(text).command(), RunCommand::Shell(expected.into()), "{text}");
    }
    assert_eq!(
        run("RUN <<script\n#!/usr/bin/env python3\nprint()\nscript").command(),
        RunCommand::Script {
            name: "script".into(),
            body: "#!/usr/bin/env python3\nprint()\n".into(),
        }
    );
    // The following lines are not part of the body.
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
        ("SHELL [\"bash\", \"-c\"]", Shell(vec!["bash".into(), "-c".into()])),
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
    for wrong in ["", "FROM a", "ONBUILD RUN a", "MAINTAINER a", "COYP a b", "USER a\nUSER b"] {
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
