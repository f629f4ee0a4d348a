//! Invalid Kubefiles of every kind, and files designed to overload a parser.

use super::*;

/// Returns each error as `line:column message`.
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
fn all_errors_are_reported_in_order() {
    let text = "FROM scratch\nCOYP a b\nENV A\nCOPY --form=x a \\\n  --x /\nRUN [1]\nUSER ${x\n";
    assert_eq!(
        errors(text),
        [
            "2:1 unknown instruction COYP",
            "3:5 ENV A has no value",
            "4:6 COPY has no flag --form",
            "6:5 the JSON form of RUN may contain only strings",
            "7:6 the closing } of ${ is missing",
        ]
    );
}

#[test]
fn each_mistake_has_a_place_and_a_message() {
    for (text, expected) in [
        ("", "1:1 the file has no FROM"),
        ("# only a comment\n\n", "2:1 the file has no FROM"),
        ("ARG A", "1:1 the file has no FROM"),
        ("RUN a\nRUN b\nFROM c", "1:1 RUN comes before the first FROM"),
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
        ("FROM a\nCOPY b <<EOF\nEOF", "2:8 a here-document cannot be the destination of COPY"),
        ("FROM a\nCOPY <<EOF /x\nb", "2:6 the here-document <<EOF is not terminated"),
        ("FROM a\nCOPY --checksum=x b c", "2:6 COPY has no flag --checksum"),
        ("FROM a\nADD --from=x b c", "2:5 ADD has no flag --from"),
        ("FROM a\nENV", "2:1 ENV needs an argument"),
        ("FROM a\nENV =b", "2:5 ENV has a value without a name"),
        ("FROM a\nENV a=b c", "2:9 `c` is not of the form NAME=VALUE"),
        ("FROM a\nENV a=b =", "2:9 ENV has a value without a name"),
        ("FROM a\nLABEL a", "2:7 LABEL a has no value"),
        ("FROM a\nENV A=${}", "2:7 a substitution needs a name, as in ${NAME}"),
        ("FROM a\nARG =1", "2:5 ARG has a value without a name"),
        ("FROM a\nCMD", "2:1 CMD needs an argument"),
        ("FROM a\nCOPY --from=$X b c", "2:6 --from takes no variables"),
        ("FROM a\nRUN --network=hots x", "2:15 unknown value --network=hots"),
        ("FROM a\nRUN --mount=type=bnid,target=/x b", "2:13 unknown mount type bnid"),
        ("FROM a\nCOPY a https://x.example/b /", "2:8 COPY takes no URL"),
        ("FROM a\nRUN --mont=x b", "2:5 RUN has no flag --mont"),
        ("FROM a\nSHELL bash -c", "2:1 SHELL takes the JSON form only"),
        ("FROM a\nSHELL []", "2:1 SHELL takes the JSON form only"),
        ("FROM a\nVOLUME [\" \"]", "2:1 the name of a VOLUME is empty"),
        ("FROM a\nWORKDIR", "2:1 WORKDIR needs an argument"),
        ("FROM a\nHEALTHCHECK", "2:1 HEALTHCHECK needs an argument"),
        ("FROM a\nHEALTHCHECK CMD", "2:13 HEALTHCHECK CMD needs a command"),
        ("FROM a\nHEALTHCHECK EVERY x", "2:13 unknown HEALTHCHECK EVERY"),
        ("FROM a\nHEALTHCHECK NONE x", "2:18 HEALTHCHECK NONE takes no arguments"),
        ("FROM a\nHEALTHCHECK --interval=1 CMD x", "2:24 --interval=1 is not a duration"),
        ("FROM a\nHEALTHCHECK --interval=1us CMD x", "2:24 --interval=1us is shorter than 1ms"),
        ("FROM a\nHEALTHCHECK --retries=-1 CMD x", "2:23 --retries=-1 is not a number"),
        ("FROM a\nONBUILD", "2:1 ONBUILD needs an argument"),
        ("FROM a\nONBUILD FROM b", "2:9 FROM cannot be a trigger"),
        ("FROM a\nONBUILD ONBUILD RUN b", "2:9 a trigger cannot have a trigger of its own"),
        ("FROM a\nONBUILD COPY b", "2:14 COPY needs a source and a destination"),
        ("FROM a\nUSER --x a", "2:6 USER has no flag --x"),
        ("# escape=x\nFROM a", "1:1 the escape character is \\ or `, not x"),
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
        ("FROM a\nRUN --mount=type=tmps,target=/x b", "did you mean tmpfs?"),
        ("FROM a\nRUN --mount=type=tmp,target=/x b", "did you mean tmpfs?"),
        ("FROM a\nRUN --mount=type=bnd,target=/x b", "did you mean bind?"),
    ] {
        let found = parse("K", text.as_bytes()).unwrap_err();
        assert_eq!(found[0].hint.as_deref(), Some(hint), "{text}");
    }
}

#[test]
fn what_is_no_text_is_refused() {
    let first = |text: &[u8]| {
        let found = parse("K", text).unwrap_err();
        format!("{}:{} {}", found[0].span.line, found[0].span.column, found[0].message)
    };
    assert_eq!(first(b"FROM a\nENV \xff=1"), "2:5 the file is not UTF-8");
    // Comments of old files are in Latin-1; a here-document could have lines that look like them.
    parse("k", b"# Andr\xe9\nFROM a\n  # \xe9\nMAINTAINER Ren\xe9\n").unwrap();
    assert_eq!(first(b"FROM a\nCOPY <<E /f\n# \xe9\nE\n"), "3:3 the file is not UTF-8");
    assert_eq!(first(b"FROM a\0"), "1:7 the file contains a NUL byte");
    assert_eq!(first(&vec![b'#'; MAX_KUBEFILE + 1]), "1:1 the file is larger than 4194304 bytes");
}

#[test]
fn the_number_of_errors_is_bounded() {
    let found = parse("K", "X\n".repeat(10_000).as_bytes()).unwrap_err();
    assert_eq!(found.len(), MAX_DIAGNOSTICS);
    let found = parse("K", format!("FROM a\nENV a=b{}", " c".repeat(10_000)).as_bytes());
    assert_eq!(found.unwrap_err().len(), MAX_DIAGNOSTICS);
}

/// Returns text that resembles a Kubefile more often than random bytes do.
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
                assert!(found.iter().all(|d| d.span.line >= 1 && d.span.end_line <= lines));
                crate::diagnostic::render(&found, "K", &text, false);
            }
        }
    });
}

#[test]
fn a_large_hostile_file_takes_no_time() {
    // Of this thread: a busy machine makes nothing quadratic.
    let seconds = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
    let started = seconds();
    for piece in
        ["$((", "<<EOF ", "\"", "'a ", "--x ", "\\\n", "${a:-", "ENV a=b\n", "[", "<<", " \\\n\n"]
    {
        for head in ["FROM a\nRUN ", "FROM a\nENV a=", "FROM a\nCOPY ", "FROM "] {
            let text = format!("{head}{}", piece.repeat(400_000 / piece.len()));
            let _ = parse("K", text.as_bytes());
        }
    }
    let took = seconds() - started;
    assert!(took < 60, "{took} s");
}
