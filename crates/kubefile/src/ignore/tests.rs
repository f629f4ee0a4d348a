//! Tables of rules, and a slow reference matcher that the fast one must agree with.

use std::collections::BTreeSet;

use super::*;

fn rules(text: &str) -> IgnoreRules {
    IgnoreRules::parse(text.as_bytes()).unwrap_or_else(|found| panic!("{text}: {found:?}"))
}

#[test]
fn single_patterns() {
    for (pattern, path, expected) in [
        ("a", "a", true),
        ("a", "a/b", true),
        ("a", "b/a", false),
        ("a", "ab", false),
        ("/a", "a", true),
        ("a/", "a", true),
        ("./a", "a", true),
        ("a/../b", "b", true),
        ("a//b", "a/b", true),
        ("../a", "a", false),
        ("a/b", "a/b/c/d", true),
        ("*", "a", true),
        ("*", "a/b", true),
        ("*/b", "a/b", true),
        ("*/b", "b", false),
        ("*/b", "a/x/b", false),
        ("*.md", "a.md", true),
        ("*.md", "d/a.md", false),
        ("a/*.md", "a/b.md", true),
        ("a?b", "axb", true),
        ("a?b", "a/b", false),
        ("**", "a", true),
        ("**", "a/b/c", true),
        ("**/", "a/b", true),
        ("**/a", "a", true),
        ("**/a", "x/y/a", true),
        ("**/a", "x/ba", false),
        ("**/a", "x/a/z", true),
        ("**a", "xa", true),
        ("**a", "x/ya", true),
        ("**/*.md", "a.md", true),
        ("**/*.md", "x/y/a.md", true),
        ("**/*.md", "x/y/amd", false),
        ("**/*.md", "x.md/y", true),
        ("a/**", "a", false),
        ("a/**", "a/b", true),
        ("a/**", "a/b/c", true),
        ("a/**", "ab", false),
        ("a/**/b", "a/b", true),
        ("a/**/b", "a/x/y/b", true),
        ("a/**/b", "a/xb", false),
        ("a**/b", "a/b", true),
        ("a**/b", "ab", true),
        ("a**b", "ax/b", true),
        ("a**b", "axb", false),
        ("a/**/*.txt", "a/x/b.txt", true),
        ("a/**/*.txt", "b.txt", false),
        ("*/**/b", "a/b", true),
        ("*/**/b", "b", false),
        ("**/a/**", "x/a/y", true),
        ("**/a/**", "x/a", false),
        ("**/a/b?", "a/bc", true),
        ("**/**", "a/b", true),
        ("[a-c]x", "bx", true),
        ("[^a-c]x", "bx", false),
        ("[^a-c]x", "dx", true),
        ("a\\*", "a*", true),
        ("a\\*", "ab", false),
        ("\\#a", "#a", true),
        ("\\!a", "!a", true),
        ("a.b", "axb", false),
        ("a+b(c)|$^{}", "a+b(c)|$^{}", true),
        ("é?", "éa", true),
        ("  a  ", "a", true),
        ("a b", "a b", true),
        (".", "a", false),
        ("/", "a", false),
    ] {
        assert_eq!(rules(pattern).matches(path.as_bytes()), expected, "{pattern} {path}");
    }
}

#[test]
fn the_last_rule_that_matches_wins() {
    for (text, path, expected) in [
        ("*.md\n!README.md", "README.md", false),
        ("*.md\n!README.md", "a.md", true),
        ("!README.md\n*.md", "README.md", true),
        ("*.md\n!README*.md\nREADME-secret.md", "README-secret.md", true),
        ("a\n!a/b", "a/b", false),
        ("a\n!a/b", "a/b/c", false),
        ("a\n!a/b", "a/c", true),
        ("a\n!a/b\na/b/c", "a/b/c", true),
        ("**\n!a", "a", false),
        ("**\n!a", "a/x", false),
        ("**\n!a/b", "a", true),
        ("*\n!**/keep", "x/y/keep", false),
        ("! a \n", "a", false),
        ("a\n! a", "a", false),
        ("a\n!/a/b", "a/b", false),
        ("# a\na", "a", true),
        (" # a", "# a", true),
        ("\u{feff}a\r\n\r\nb\r\n", "b", true),
        ("", "a", false),
    ] {
        assert_eq!(rules(text).matches(path.as_bytes()), expected, "{text:?} {path}");
    }
    assert!(rules("# nothing\n\n").is_empty());
}

#[test]
fn bad_lines_are_all_reported() {
    let found = IgnoreRules::parse(b"a\n[\n!\n  [a-]\nb").unwrap_err();
    let lines: Vec<usize> = found.iter().map(|d| d.span.line).collect();
    assert_eq!(lines, [2, 3, 4]);
    // Go's regular expressions reject descending ranges.
    let found = IgnoreRules::parse(b"a\n[Local-Only]/\n**/[z-a]x\n[^9-0]\n[a-a]").unwrap_err();
    let said: Vec<&str> = found.iter().map(|d| d.message.as_str()).collect();
    assert_eq!(
        said,
        [
            "the range l-O in this pattern runs backwards",
            "the range z-a in this pattern runs backwards",
            "the range 9-0 in this pattern runs backwards",
        ]
    );
    assert_eq!(found[0].span.line, 2);
    assert!(IgnoreRules::parse(&vec![b'a'; MAX_IGNORE_FILE + 1]).is_err());
    assert!(IgnoreRules::parse("a\n".repeat(MAX_RULES + 5).as_bytes()).is_err());
}

#[test]
fn directories_are_pruned_only_when_nothing_below_can_come_back() {
    for (text, dir, expected) in [
        ("a", "a", true),
        ("a", "b", false),
        ("a\n!b", "a", true),
        ("a\n!a/b", "a", false),
        ("a\n!a/b", "a/c", true),
        ("a\n!a/b/c", "a/b", false),
        ("!a/b\na", "a", true),
        ("a\n!**/keep", "a", false),
        ("a\n!**/*.md", "a", false),
        ("a\n!b/*.md", "a", true),
        ("a\n!a/*.md", "a", false),
        ("a\n!a/*.md", "a/b", true),
        ("a\n!a/**/x", "a/b/c", false),
        ("a\n!a/b/**", "a/b", false),
        ("a\n!a/b/**", "a/c", true),
        ("a\n!a", "a", false),
        ("*\n!a/x/**", "a", false),
        ("**\n!**", "a", false),
        ("a\n!ab/c", "a", true),
    ] {
        let rules = rules(text);
        let mut state = ParentState::default();
        for (at, _) in dir.match_indices('/') {
            state = rules.enter(&state, &dir.as_bytes()[..at]);
        }
        state = rules.enter(&state, dir.as_bytes());
        assert_eq!(rules.may_prune_dir(&state, dir.as_bytes()), expected, "{text:?} {dir}");
    }
}

#[test]
fn names_need_not_be_utf8() {
    let rules = IgnoreRules::parse(b"a\xff\n*.\xfe").unwrap();
    assert!(rules.matches(b"a\xff"));
    assert!(rules.matches(b"\xff\xff.\xfe"));
    assert!(!rules.matches(b"a\xfe"));
}

/// Implements moby's rules by trying every possibility, in exponential time.
fn slow_matches(tokens: &[Token], path: &[u8]) -> bool {
    let Some((token, rest)) = tokens.split_first() else {
        return path.is_empty();
    };
    match token {
        Token::Everything => (0..=path.len()).any(|at| slow_matches(rest, &path[at..])),
        Token::Directories => (0..=path.len())
            .filter(|&at| at == 0 || path[at - 1] == b'/')
            .any(|at| slow_matches(rest, &path[at..])),
        Token::Star => {
            let name = path.iter().position(|&b| b == b'/').unwrap_or(path.len());
            (0..=name).any(|at| slow_matches(rest, &path[at..]))
        }
        token => path
            .split_first()
            .is_some_and(|(&byte, tail)| token.takes(byte.into()) && slow_matches(rest, tail)),
    }
}

/// A peculiarity of moby: `**text` matches every path that ends with the text.
fn as_moby_reads(pattern: &[u8]) -> Vec<Token> {
    let mut tokens = tokens(pattern).unwrap();
    if let Some(text) = pattern.strip_prefix(b"**")
        && !text.starts_with(b"/")
        && !glob::has_meta(text)
    {
        tokens[0] = Token::Everything;
    }
    tokens
}

fn slow(patterns: &[(bool, Vec<Token>)], path: &[u8]) -> bool {
    let mut prefixes: Vec<&[u8]> = vec![path];
    prefixes
        .extend(path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| &path[..at]));
    let mut excluded = false;
    for (includes, tokens) in patterns {
        if prefixes.iter().any(|prefix| slow_matches(tokens, prefix)) {
            excluded = !includes;
        }
    }
    excluded
}

/// Returns a short text over an alphabet in which patterns and paths often match.
fn spell(bytes: &[u8], alphabet: &[&str]) -> String {
    bytes.iter().map(|&byte| alphabet[usize::from(byte) % alphabet.len()]).collect()
}

#[test]
fn the_fast_matcher_agrees_with_the_slow_one() {
    let patterns = ["a", "b", "/", "*", "**", "**/", "?", "[ab]", "/a"];
    let paths = ["a", "b", "/a", "/b", "c"];
    bolero::check!().with_type::<(Vec<(bool, Vec<u8>)>, Vec<Vec<u8>>)>().for_each(
        |(lines, seeds)| {
            let lines: Vec<(bool, String)> = lines
                .iter()
                .take(4)
                .map(|(includes, seed)| (*includes, spell(&seed[..seed.len().min(6)], &patterns)))
                .filter(|(includes, pattern)| {
                    let nothing = *includes && clean(pattern.as_bytes()) == b"/";
                    !pattern.is_empty() && !nothing
                })
                .collect();
            let text: String = lines
                .iter()
                .map(|(includes, pattern)| {
                    format!("{}{pattern}\n", if *includes { "!" } else { "" })
                })
                .collect();
            let fast = IgnoreRules::parse(text.as_bytes()).unwrap();
            let reference: Vec<(bool, Vec<Token>)> = lines
                .iter()
                .map(|(includes, p)| (*includes, as_moby_reads(&clean(p.as_bytes()))))
                .collect();
            let paths: BTreeSet<String> = seeds
                .iter()
                .take(6)
                .map(|seed| spell(&seed[..seed.len().min(6)], &paths))
                .map(|path| path.trim_matches('/').to_owned())
                .filter(|path| !path.is_empty())
                .collect();
            for path in &paths {
                let path = path.as_bytes();
                let excluded = slow(&reference, path);
                assert_eq!(
                    fast.matches(path),
                    excluded,
                    "{text:?} {:?}",
                    path.escape_ascii().to_string()
                );
                // No included path is in a directory that may be pruned.
                if !excluded {
                    let mut state = ParentState::default();
                    for (at, _) in path.iter().enumerate().filter(|(_, b)| **b == b'/') {
                        state = fast.enter(&state, &path[..at]);
                        assert!(!fast.may_prune_dir(&state, &path[..at]), "{text:?}");
                    }
                }
            }
        },
    );
}

#[test]
fn any_bytes_are_rules_or_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(rules) = IgnoreRules::parse(bytes) {
            rules.matches(b"a/b/c.d");
            rules.matches(bytes);
        }
    });
}

#[test]
fn a_large_context_takes_no_time() {
    let text =
        "**/*.o\n*.tmp\n**/node_modules\n!keep/**/*.o\ndocs/**/a*b*c\nbuild/[a-f]*/x?\n".repeat(4);
    let rules = rules(&text);
    let started = std::time::Instant::now();
    let mut excluded = 0;
    for dir in 0..100 {
        let dir = format!("some/directory/number-{dir}");
        let mut state = ParentState::default();
        for (at, _) in dir.match_indices('/') {
            state = rules.enter(&state, &dir.as_bytes()[..at]);
        }
        state = rules.enter(&state, dir.as_bytes());
        for file in 0..1000 {
            let path = format!("{dir}/file-{file}.{}", if file % 2 == 0 { "o" } else { "c" });
            excluded += usize::from(rules.excludes(&state, path.as_bytes()));
        }
    }
    assert_eq!(excluded, 50_000);
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}

#[test]
fn patterns_do_not_explode() {
    let started = std::time::Instant::now();
    let rules = rules(&format!("{}z\n{}z\n", "**/a*".repeat(200), "*a".repeat(300)));
    assert!(!rules.matches("a/".repeat(200).trim_end_matches('/').as_bytes()));
    assert!(!rules.matches("a".repeat(1000).as_bytes()));
    assert!(started.elapsed().as_secs() < 30);
}
