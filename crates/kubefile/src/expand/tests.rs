//! Tables of expansions.

use super::*;

/// ESCAPED holds text that a faulty implementation would expand twice.
fn values(name: &str) -> Option<String> {
    let value = match name {
        "HOME" => "/home/a",
        "two" => "a  b",
        "EMPTY" => "",
        "path" => "/usr/lib/x.tar.gz",
        "star" => "*",
        "ESCAPED" => "$HOME \"q\" \\",
        "é" => "accent",
        "1" => "first",
        _ => return None,
    };
    Some(value.to_owned())
}

fn ok(raw: &str) -> String {
    expand(raw, '\\', &values).unwrap_or_else(|error| panic!("{raw}: {error}"))
}

#[test]
fn quotes_and_escapes_go() {
    for (raw, expected) in [
        ("", ""),
        ("a b", "a b"),
        (r"a\ b", "a b"),
        (r"a\\b", r"a\b"),
        (r"\$HOME", "$HOME"),
        (r#"\"a\""#, r#""a""#),
        (r"a\", "a"),
        ("'a b'", "a b"),
        ("'$HOME'", "$HOME"),
        (r"'a\b'", r"a\b"),
        (r#"'a"b'"#, r#"a"b"#),
        (r#""a b""#, "a b"),
        (r#""a'b'""#, "a'b'"),
        (r#""\$HOME""#, "$HOME"),
        (r#""a\"b""#, r#"a"b"#),
        (r#""a\\b""#, r"a\b"),
        (r#""a\nb""#, r"a\nb"),
        (r"a\nb", "anb"),
        (r#"a"b"'c'd"#, "abcd"),
        (r#""""#, ""),
        (
            r#"init.sh \$registryDomain \$registryPort && bash init.sh"#,
            "init.sh $registryDomain $registryPort && bash init.sh",
        ),
        (r#""it's \$x""#, "it's $x"),
    ] {
        assert_eq!(ok(raw), expected, "{raw}");
    }
}

#[test]
fn variables_come_in() {
    for (raw, expected) in [
        ("$HOME", "/home/a"),
        ("${HOME}", "/home/a"),
        ("x$HOME.y", "x/home/a.y"),
        ("$HOMEx", ""),
        ("${HOME}x", "/home/ax"),
        ("\"$HOME\"", "/home/a"),
        ("'a'$HOME\"b\"", "a/home/ab"),
        ("$", "$"),
        ("a$", "a$"),
        ("$ a", "$ a"),
        ("$.a", "$.a"),
        ("$(HOME)", "$(HOME)"),
        ("$(date)", "$(date)"),
        ("$1x", "firstx"),
        ("$12", ""),
        ("$é", "accent"),
        ("$$HOME", "HOME"),
        ("$unset", ""),
        ("${unset}", ""),
        ("$two", "a  b"),
        // Values are not expanded again.
        ("$ESCAPED", "$HOME \"q\" \\"),
        ("${ESCAPED}", "$HOME \"q\" \\"),
        ("\"$ESCAPED\"", "$HOME \"q\" \\"),
        ("${unset:-$ESCAPED}", "$HOME \"q\" \\"),
    ] {
        assert_eq!(ok(raw), expected, "{raw}");
    }
}

#[test]
fn forms_with_a_word() {
    for (raw, expected) in [
        ("${HOME:-x}", "/home/a"),
        ("${HOME-x}", "/home/a"),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY-x}", ""),
        ("${unset:-x}", "x"),
        ("${unset-x}", "x"),
        ("${HOME:+x}", "x"),
        ("${HOME+x}", "x"),
        ("${EMPTY:+x}", ""),
        ("${EMPTY+x}", "x"),
        ("${unset:+x}", ""),
        ("${unset+x}", ""),
        ("${HOME:?x}", "/home/a"),
        ("${EMPTY?x}", ""),
        ("${unset:-}", ""),
        ("${unset:-a b}", "a b"),
        ("${unset:-$HOME}", "/home/a"),
        ("${unset:-${other:-y}}", "y"),
        ("${unset:-\"a}b\"}", "a}b"),
        ("${unset:-'a}b'}", "a}b"),
        (r"${unset:-a\}b}", "a}b"),
        ("\"${unset:-x y}\"", "x y"),
        ("\"${unset:-\"x y\"}\"", "x y"),
        ("${unset:-a}}", "a}"),
        ("${unset:-:}", ":"),
        ("${unset:--}", "-"),
        // A shell default whose quoted value spanned several lines.
        (r#"${HELM_OPTS:-" --set a=b  --set c=d "}"#, " --set a=b  --set c=d "),
    ] {
        assert_eq!(ok(raw), expected, "{raw}");
    }
}

#[test]
fn forms_with_a_pattern() {
    for (raw, expected) in [
        ("${path#*/}", "usr/lib/x.tar.gz"),
        ("${path##*/}", "x.tar.gz"),
        ("${path%.*}", "/usr/lib/x.tar"),
        ("${path%%.*}", "/usr/lib/x"),
        ("${path#nothing}", "/usr/lib/x.tar.gz"),
        ("${path%\".gz\"}", "/usr/lib/x.tar"),
        ("${path/lib/share}", "/usr/share/x.tar.gz"),
        ("${path//r/R}", "/usR/lib/x.taR.gz"),
        (r"${path//\//_}", "_usr_lib_x.tar.gz"),
        ("${path/u?r/U}", "/U/lib/x.tar.gz"),
        ("${path/x*/}", "/usr/lib/"),
        ("${path/lib/$HOME}", "/usr//home/a/x.tar.gz"),
        ("${path/${unset:-lib}/y}", "/usr/y/x.tar.gz"),
        ("${path/lib/}", "/usr//x.tar.gz"),
        // A replacement is literal text without group references.
        ("${path/lib/'$1'}", "/usr/$1/x.tar.gz"),
        ("${unset#x}", ""),
        ("${unset/x/y}", ""),
        ("${HOME#$star}", "/home/a"),
        ("${HOME##$star}", ""),
        (r"${star#\*}", ""),
    ] {
        assert_eq!(ok(raw), expected, "{raw}");
    }
}

#[test]
fn what_has_no_value_says_why() {
    for (raw, message) in [
        ("${", "the closing } of ${ is missing"),
        ("${HOME", "the closing } of ${ is missing"),
        ("${HOME:", "the closing } of ${ is missing"),
        ("${HOME:-x", "the closing } of ${ is missing"),
        ("${HOME/a", "the second / of ${name/pattern/text} is missing"),
        ("${HOME/a/b", "the closing } of ${ is missing"),
        ("${}", "a substitution needs a name, as in ${NAME}"),
        ("${:-x}", "a substitution needs a name, as in ${NAME}"),
        ("${{HOME}}", "a substitution needs a name, as in ${NAME}"),
        ("${HOME^}", "there is no substitution with `^`"),
        ("${HOME:=x}", "there is no substitution with `:=`"),
        ("${HOME=x}", "there is no substitution with `=`"),
        ("${HOME:#x}", "there is no substitution with `:#`"),
        ("${HOME:%x}", "there is no substitution with `:%`"),
        ("${HOME:1}", "there is no substitution with `:1`"),
        ("${HOME:}", "there is no substitution with `:}`"),
        ("${HO ME}", "there is no substitution with ` `"),
        ("${unset:?}", "unset: is not allowed to be unset"),
        ("${unset?}", "unset: is not allowed to be unset"),
        ("${EMPTY:?}", "EMPTY: is not allowed to be empty"),
        ("${unset:?set it to $HOME}", "unset: set it to /home/a"),
        ("'a", "the closing ' is missing"),
        ("\"a", "the closing \" is missing"),
        (r#""a\"#, "the closing \" is missing"),
        ("${unset:-\"}", "the closing \" is missing"),
        (r"${HOME#\a}", "in a pattern only * ? \\ can be escaped, not `a`"),
    ] {
        match expand(raw, '\\', &values) {
            Err(error) => assert_eq!(error.to_string(), message, "{raw}"),
            Ok(value) => panic!("{raw} is {value:?}"),
        }
    }
}

#[test]
fn the_escape_character_can_be_a_backtick() {
    for (raw, expected) in [
        ("`$HOME", "$HOME"),
        (r"\$HOME", r"\/home/a"),
        (r"c:\x", r"c:\x"),
        ("\"`\"\"", "\""),
        ("``", "`"),
    ] {
        assert_eq!(expand(raw, '`', &values).unwrap(), expected, "{raw}");
    }
}

#[test]
fn words_are_cut_at_blanks_that_nobody_quoted() {
    for (raw, expected) in [
        ("a  b\tc", &["a", "b", "c"][..]),
        ("$two", &["a", "b"]),
        ("x$two", &["xa", "b"]),
        ("\"$two\" c", &["a  b", "c"]),
        ("'a b'", &["a b"]),
        (r"a\ b c", &["a b", "c"]),
        ("$unset", &[]),
        ("\"\" a", &["a"]),
        ("${unset:-a b}c", &["a", "bc"]),
    ] {
        assert_eq!(expand_words(raw, '\\', &values).unwrap(), expected, "{raw}");
    }
}

#[test]
fn heredoc_bodies_keep_their_quotes() {
    for (body, expected) in [
        ("a \"$HOME\" 'b'\n", "a \"/home/a\" 'b'\n"),
        ("\\$HOME \\\\ \\. \\n\n", "$HOME \\ . n\n"),
        ("it's\n", "it's\n"),
        ("a\\\nb\n", "a\nb\n"),
        ("${unset:-\"x\"}\n", "\"x\"\n"),
    ] {
        assert_eq!(expand_heredoc(body, &values).unwrap(), expected, "{body}");
    }
}

#[test]
fn the_variables_of_a_word_are_known_without_values() {
    let uses = |raw| -> Vec<(String, bool)> {
        variables(raw, '\\').unwrap().into_iter().map(|used| (used.name, used.optional)).collect()
    };
    let owned = |list: &[(&str, bool)]| -> Vec<(String, bool)> {
        list.iter().map(|(n, o)| ((*n).to_owned(), *o)).collect()
    };
    assert_eq!(uses(r"$a '$b' \$c"), owned(&[("a", false)]));
    assert_eq!(uses("${a:-$b}${c:?no}"), owned(&[("a", true), ("b", false), ("c", true)]));
    assert_eq!(
        uses("${a#$b}${c/$d/$e}"),
        owned(&[("a", false), ("b", false), ("c", false), ("d", false), ("e", false),])
    );
    assert!(variables("${a", '\\').is_err());
}

#[test]
fn growth_and_depth_are_bounded() {
    let big = |_: &str| Some("x".repeat(MAX_VALUE / 2));
    assert_eq!(expand("$a$a$a", '\\', &big), Err(ExpandError::TooLarge));
    assert_eq!(expand("\"$a$a$a\"", '\\', &big), Err(ExpandError::TooLarge));
    assert_eq!(expand("${a//x/xxx}", '\\', &big), Err(ExpandError::TooLarge));
    let deep = format!("{}{}", "${a:-".repeat(100_000), "}".repeat(100_000));
    assert_eq!(expand(&deep, '\\', &values), Err(ExpandError::TooDeep));
    let nested = format!("{}x{}", "${a:-\"".repeat(MAX_DEPTH), "\"}".repeat(MAX_DEPTH));
    assert_eq!(ok(&nested), "x");
}

#[test]
fn any_text_expands_or_is_refused() {
    const PIECES: [&str; 24] = [
        "$", "{", "}", "${", ":", "-", "+", "?", "#", "%", "/", "*", "\\", "'", "\"", " ", "HOME",
        "unset", "EMPTY", "two", "a", "é", "`", "\n",
    ];
    bolero::check!().for_each(|seed: &[u8]| {
        let raw: String = seed.iter().map(|&b| PIECES[usize::from(b) % PIECES.len()]).collect();
        let raw = raw.as_str();
        let value = expand(raw, '\\', &values);
        let words = expand_words(raw, '\\', &values);
        assert_eq!(value.is_ok(), words.is_ok());
        if let (Ok(value), Ok(words)) = (value, words) {
            assert!(words.iter().map(String::len).sum::<usize>() <= value.len());
            // A word that has a value can be scanned for variables.
            assert!(variables(raw, '\\').is_ok());
        }
        let _ = expand_heredoc(raw, &values);
        let _ = expand(raw, '`', &values);
    });
}
