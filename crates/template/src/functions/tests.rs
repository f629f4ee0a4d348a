//! One line per function; expected results follow sprig's documentation and Go.

use serde_json::json;

use crate::{Dialect, Missing, engine};

fn render(text: &str, dialect: Dialect) -> imgctl_base::error::Result<String> {
    let data = json!({
        "name": "etcd", "empty": "", "zero": 0, "list": ["b", "a", "b"],
        "map": {"x": 1, "y": {"z": "deep"}}, "version": "v1.29.9", "labels": {"a": "b"},
    });
    engine::render("case", text, &data, dialect, Missing::NoValue)
}

#[test]
fn sprig_functions_give_the_documented_results() {
    let cases: &[(&str, &str)] = &[
        (
            r#"{{ trim "  a " }}|{{ trimAll "$" "$5.00$" }}|{{ trimPrefix "-" "-a" }}|{{ "a-" | trimSuffix "-" }}"#,
            "a|5.00|a|a",
        ),
        (
            r#"{{ upper "hé" }}{{ lower "HÉ" }}{{ title "hello world" }}{{ untitle "Hello" }}"#,
            "HÉhéHello Worldhello",
        ),
        (
            r#"{{ repeat 3 "ab" }}|{{ substr 0 5 "hello world" }}|{{ trunc 5 "hello world" }}|{{ trunc -5 "hello world" }}"#,
            "ababab|hello|hello|world",
        ),
        (
            r#"{{ nospace "h e  l" }}|{{ contains "cat" "catch" }}|{{ hasPrefix "cat" "catch" }}|{{ hasSuffix "ch" "catch" }}"#,
            "hel|true|true|true",
        ),
        (
            r#"{{ quote .name .zero .none }}|{{ squote .name }}|{{ quote "a\"b\\\n" }}"#,
            r#""etcd" "0"|'etcd'|"a\"b\\\n""#,
        ),
        (
            r#"{{ cat "hello" .none "x" }}|{{ indent 2 "a\nb" }}|{{ nindent 2 "a" }}"#,
            "hello x|  a\n  b|\n  a",
        ),
        (
            r#"{{ "I Am" | replace " " "-" }}|{{ join "_" .list }}|{{ (split "$" "foo$bar")._1 }}|{{ splitList "," "a,b" }}|{{ (splitn "$" 2 "a$b$c")._1 }}"#,
            "I-Am|b_a_b|bar|[a b]|b$c",
        ),
        (
            r#"{{ snakecase "FirstName" }}|{{ kebabcase "HTTPServer x" }}|{{ camelcase "http_server" }}|{{ plural "one" "many" 2 }}"#,
            "first_name|http-server-x|HttpServer|many",
        ),
        (
            r#"{{ base "/a/b.tar.gz" }}|{{ dir "/a/b" }}|{{ ext "b.tar.gz" }}|{{ isAbs "/a" }}|{{ base "/" }}|{{ dir "a" }}"#,
            "b.tar.gz|/a|.gz|true|/|.",
        ),
        (
            r#"{{ default "x" .empty }}|{{ .name | default "x" }}|{{ default 5 .zero }}|{{ .none | default "d" }}"#,
            "x|etcd|5|d",
        ),
        (
            r#"{{ empty .zero }}|{{ coalesce .empty .none "c" }}|{{ all 1 .empty }}|{{ any 1 .empty }}|{{ ternary "a" "b" true }}|{{ false | ternary "a" "b" }}"#,
            "true|c|false|true|a|b",
        ),
        (
            r#"{{ list 1 "a" }}|{{ first .list }}|{{ last .list }}|{{ rest .list }}|{{ initial .list }}"#,
            "[1 a]|b|b|[a b]|[b a]",
        ),
        (
            r#"{{ append .list "c" }}|{{ prepend .list "c" }}|{{ concat .list (list 1) }}|{{ reverse .list }}|{{ uniq .list }}"#,
            "[b a b c]|[c b a b]|[b a b 1]|[b a b]|[b a]",
        ),
        (
            r#"{{ without .list "b" }}|{{ has "a" .list }}|{{ compact (list 0 1 "") }}|{{ sortAlpha .list }}|{{ first (list) }}"#,
            "[a]|true|[1]|[a b b]|<no value>",
        ),
        (
            r#"{{ dict "a" 1 "b" 2 }}|{{ get .map "x" }}|{{ hasKey .map "q" }}|{{ keys .map | sortAlpha }}|{{ values (dict "a" 1) }}"#,
            "map[a:1 b:2]|1|false|[x y]|[1]",
        ),
        (
            r#"{{ pluck "x" .map (dict "x" 2) }}|{{ pick .map "x" }}|{{ omit .map "y" }}|{{ dig "y" "z" "no" .map }}|{{ dig "y" "q" "no" .map }}"#,
            "[1 2]|map[x:1]|map[x:1]|deep|no",
        ),
        (
            r#"{{ merge (dict "a" 1) (dict "a" 2 "b" 3) }}|{{ mergeOverwrite (dict "a" 1) (dict "a" 2) }}"#,
            "map[a:1 b:3]|map[a:2]",
        ),
        (
            r#"{{ add 1 2 3 }}|{{ add1 1 }}|{{ sub 5 3 }}|{{ mul 2 3 4 }}|{{ div 7 2 }}|{{ mod 7 3 }}|{{ max 1 5 3 }}|{{ min 4 2 }}"#,
            "6|2|2|24|3|1|5|2",
        ),
        (
            r#"{{ int "12" }}|{{ int64 3.9 }}|{{ float64 "1.5" }}|{{ atoi "7" }}|{{ toDecimal "755" }}|{{ floor 1.9 }}|{{ ceil 1.1 }}|{{ round 3.14159 2 }}"#,
            "12|3|1.5|7|493|1|2|3.14",
        ),
        (
            r#"{{ until 3 }}|{{ untilStep 0 10 5 }}|{{ addf 1.5 2 }}|{{ divf 3 2 }}"#,
            "[0 1 2]|[0 5]|3.5|1.5",
        ),
        (
            r#"{{ addf 0.1 0.2 }}|{{ subf 5 1 2 }}|{{ mulf 1.1 1.1 }}|{{ divf 1 3 }}|{{ divf -2 3 1 }}|{{ add1f 0.1 }}|{{ addf 1e300 1 }}"#,
            "0.3|2|1.21|0.3333333333333333|-0.6666666666666667|1.1|1e+300",
        ),
        (
            r#"{{ (splitn "," -1 "a,b,c")._2 }}|{{ (splitn "" 2 "abc")._1 }}|{{ camelcase "FOO_BAR" }}|{{ camelcase "foo__bar" }}|{{ upper "ß" }}"#,
            "c|bc|FooBar|Foo_Bar|ß",
        ),
        (
            r#"{{ wrapWith 4 "_" "hello" }}|{{ wrap 4 "hello big" }}|{{ wrapWith 5 "|" "hello big world" }}|{{ dir "a/../b" }}|{{ dir "/a/" }}"#,
            "hell_o|hello\nbig|hello|big|world|.|/a",
        ),
        (
            r#"{{ regexSplit "" "abc" -1 }}|{{ regexSplit "," "a,b,c" 2 }}|{{ regexReplaceAll "{x}" "a{x}" "1" }}|{{ regexReplaceAll "[^\\w]" "é" "e" }}|{{ regexQuoteMeta "a-b.c" }}"#,
            r"[a b c]|[a b,c]|a1|e|a-b\.c",
        ),
        (
            r#"{{ urlJoin (dict "host" "h" "path" "p q") }}|{{ urlJoin (dict "scheme" "mailto" "opaque" "a@b") }}|{{ (urlParse "http://h:1/%41?q#f").path }}|{{ (urlParse "mailto:a@b").opaque }}|{{ (urlParse "http://[::1]:2/").hostname }}"#,
            "//h/p%20q|mailto:a@b|/A|a@b|::1",
        ),
        (
            r#"{{ toJson .map }}|{{ (fromJson "{\"a\": [1]}").a }}|{{ toJson "<&>" }}|{{ fromJsonArray "[1,2]" }}"#,
            r#"{"x":1,"y":{"z":"deep"}}|[1]|"\u003c\u0026\u003e"|[1 2]"#,
        ),
        (
            r#"{{ toYaml .map }}|{{ (fromYaml "a: 1").a }}|{{ fromYamlArray "- x" }}|{{ hasKey (fromYaml "a: [") "Error" }}"#,
            "x: 1\n\"y\":\n  z: deep|1|[x]|true",
        ),
        (
            r#"{{ toToml (dict "a" "b") }}{{ b64enc "hi" }}|{{ b64dec "aGk=" }}|{{ sha256sum "" | trunc 8 }}"#,
            "a = \"b\"\naGk=|hi|e3b0c442",
        ),
        (
            r#"{{ if semverCompare ">=1.26.0" .version }}new{{ end }}|{{ semverCompare "^1.2" "" }}|{{ (semver .version).Minor }}"#,
            "new|false|29",
        ),
        (
            r#"{{ kindOf .list }}|{{ kindIs "map" .map }}|{{ typeOf 1 }}|{{ deepEqual .list (list "b" "a" "b") }}|{{ toString 5 }}|{{ toStrings (list 1) }}"#,
            "slice|true|int|true|5|[1]",
        ),
        (
            r#"{{ $d := dict "a" 1 }}{{ $_ := set $d "b" 2 }}{{ unset $d "a" }}|{{ regexReplaceAll "a(x*)b" "-ab-" "${1}W" }}|{{ trim 5 }}|{{ first .none }}|{{ mustAppend .list 1 }}"#,
            "map[b:2]|-W-|5|<no value>|[b a b 1]",
        ),
        (
            r#"{{ ipAt "10.96.0.0/12" 10 }}|{{ ipNet "10.1.2.3/16" }}|{{ ipAt "fd00::/64" 1 }}"#,
            "10.96.0.10|10.1.0.0/16|fd00::1",
        ),
    ];
    for (text, expected) in cases {
        let rendered = render(text, Dialect::ClusterImage);
        assert_eq!(rendered.unwrap_or_else(|e| format!("{e}")), *expected, "{text}");
    }
}

#[test]
fn format_functions_take_arguments_as_docker_does() {
    for (text, expected) in [
        (r#"{{json .map}}"#, r#"{"x":1,"y":{"z":"deep"}}"#),
        (
            r#"{{join .list ","}} {{split "a/b" "/"}} {{upper .name}} {{lower "A"}} {{title "abc"}}"#,
            "b,a,b [a b] ETCD a Abc",
        ),
        (r#"{{index .map "x"}}[{{index (index .labels) "gone"}}]{{index .list 1}}"#, "1[]a"),
        (r#"[{{pad "a" 1 2}}]{{truncate "hello" 2}}"#, "[ a  ]he"),
    ] {
        assert_eq!(render(text, Dialect::Format).unwrap(), expected, "{text}");
    }
}

/// What would take gigabytes is refused before it is made.
#[test]
fn a_refusal_names_template_function_limit_and_what_to_do() {
    for (text, place, reason) in [
        (
            r#"x{{ replace "" (repeat 100000 "y") (repeat 100000 "x") }}"#,
            "case:1:5: ",
            "error calling replace: it would take more than 48 MiB of memory",
        ),
        (
            r#"{{ $l := list }}{{ range until 100000 }}{{ $l = append $l . }}{{ end }}"#,
            "case:1:49: ",
            "error calling append: the texts and values take more than 96 MiB in all",
        ),
        (
            "{{ range until 9 }}{{ range until 100000 }}{{ if eq 1 1 }}{{ if eq 1 1 }}{{ end }}{{ end }}{{ end }}{{ end }}",
            "case",
            "the template takes more than 5000000 steps",
        ),
        (
            r#"{{ range until 100000 }}{{ if regexMatch "(a{1,50}){1,19}b" (repeat 5000 "a") }}{{ end }}{{ end }}"#,
            "case",
            "the template takes more than 5000000 steps",
        ),
        (
            r#"{{ range until 100000 }}{{ if regexMatch (list "x](a{1,50}){1,19}b") (repeat 5000 "a") }}{{ end }}{{ end }}"#,
            "case",
            "the template takes more than 5000000 steps",
        ),
    ] {
        let refused = render(text, Dialect::ClusterImage).expect_err(text);
        let said = refused.to_string();
        assert!(said.contains(place) && said.contains(reason), "{text}: {said}");
        assert!(refused.hints().iter().any(|hint| hint.contains("divide the template")), "{text}");
    }
}

#[test]
fn wrong_calls_are_errors_that_name_the_function() {
    for (text, part) in [
        ("{{ trimPrefix \"a\" }}", "trimPrefix"),
        ("{{ div 1 0 }}", "division by zero"),
        ("{{ divf 1 0 }}", "division by 0"),
        ("{{ mustRegexMatch \"a**\" \"a\" }}", "nested repetition"),
        ("{{ urlParse \"http://h:x/\" }}", "invalid port"),
        ("{{ first 5 }}", "first"),
        ("{{ repeat 100000000 \"abc\" }}", "repeat"),
        ("{{ until 100000000 }}", "until"),
        ("{{ b64dec \"%\" }}", "b64dec"),
        ("{{ semverCompare \"what\" .version }}", "constraint"),
        ("{{ ipAt \"10.0.0.0/30\" 4 }}", "outside"),
        ("{{ fail \"stop here\" }}", "stop here"),
        ("{{ required \"give it\" .none }}", "give it"),
        ("{{ now }}", "now"),
        ("{{ env \"HOME\" }}", "env"),
        ("{{ randAlphaNum 5 }}", "randAlphaNum"),
        ("{{ genCA \"x\" 1 }}", "genCA"),
        ("{{ include \"x\" . }}", "include"),
    ] {
        let error = render(text, Dialect::ClusterImage).expect_err(text);
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}

/// Templates come from images: rendering always terminates, with text or an error, whatever they
/// contain.
#[test]
fn fuzz_any_template_ends() {
    bolero::check!().with_type::<String>().for_each(|text: &String| {
        let wrapped = format!("{{{{ {text} }}}}");
        for text in [text, &wrapped] {
            if let Ok(rendered) = render(text, Dialect::ClusterImage) {
                assert!(text.contains("{{") || rendered == *text);
            }
        }
    });
}

/// Whole templates of Go's language out of its pieces, all functions among them: each ends with text that is not larger than the
/// limits allow, in every dialect.
#[test]
fn any_pieces_end_within_the_limits() {
    const SYNTAX: [&str; 40] = [
        "{{",
        "}}",
        "{{-",
        "-}}",
        " ",
        "\n",
        "(",
        ")",
        "|",
        ".",
        "$",
        "$d",
        ":=",
        "=",
        ",",
        "if ",
        "else",
        "else if ",
        "end",
        "range ",
        "with ",
        "define ",
        "template ",
        "block ",
        "break",
        "continue",
        "\"x\"",
        "`y`",
        "'z'",
        "0",
        "-1",
        "3.5",
        "100000",
        "true",
        "nil",
        ".list",
        ".map",
        ".name",
        ".map.y.z",
        "/* c */",
    ];
    let mut pieces: Vec<&str> = SYNTAX.to_vec();
    let tables = [&super::CLUSTER_IMAGE, &super::CHART, &super::FORMAT];
    pieces.extend(tables.iter().flat_map(|table| table.keys()));
    pieces.sort_unstable();
    pieces.dedup();
    bolero::check!().for_each(|input: &[u8]| {
        let Some((which, input)) = input.split_first() else { return };
        let dialect =
            [Dialect::ClusterImage, Dialect::Chart, Dialect::Format][usize::from(which % 3)];
        // Two bytes choose a piece: there are more than 256.
        let text: String = input
            .as_chunks::<2>()
            .0
            .iter()
            .take(200)
            .map(|pair| pieces[usize::from(u16::from_le_bytes(*pair)) % pieces.len()])
            .flat_map(|piece| [piece, " "])
            .collect();
        for text in [&text, &format!("{{{{ {text} }}}}")] {
            if let Ok(rendered) = render(text, dialect) {
                assert!(rendered.len() < 64 << 20);
            }
        }
    });
}
