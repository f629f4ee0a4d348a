//! Every function of every table against arguments that grow: none may take more memory than its entry says, and
//! none may fail in another way than with an error. `cargo nextest` runs each test in a process of its own, whose
//! memory the kernel knows.

use std::collections::BTreeMap;

use super::growth::{Growth, searched};
use super::{CHART, CLUSTER_IMAGE, ENVIRONMENT, Entry, FORMAT, begin, call};
use crate::budget::Budget;
use crate::dialect::PLAIN;
use crate::value::Map;
use crate::{Dialect, Missing, Value, engine};

/// Memory that a test takes itself between two measurements, and what the allocator keeps, in bytes.
const SLACK: usize = 2 << 20;
/// Length of a long text: enough that a function that makes twenty times as much goes beyond the slack.
const LONG: usize = 96 << 10;

/// Returns a number of bytes that the kernel counts for this process.
fn memory(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<usize>().unwrap() << 10
}

/// Returns by how much memory grows at most while `run` runs.
fn grown<T>(run: impl FnOnce() -> T) -> (T, usize) {
    // Resets the peak.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory("VmRSS");
    let result = run();
    (result, memory("VmHWM").saturating_sub(before))
}

fn long(unit: &str) -> Value {
    Value::text(unit.repeat(LONG / unit.len()))
}

/// A value that `pair` doubles so many times: small in memory, and of any size when it is written out.
fn doubled(times: usize, pair: fn(Value) -> Value) -> Value {
    (0..times).fold(Value::text("x"), |inner, _| pair(inner))
}

fn list_of_two(inner: Value) -> Value {
    Value::list([inner.clone(), inner])
}

fn map_of_two(inner: Value) -> Value {
    Value::map([("a", inner.clone()), ("b", inner)])
}

/// A map that contains itself.
fn circle() -> Value {
    let map = Map::new(BTreeMap::new());
    map.set("me", Value::Map(map.clone()));
    map.set("again", Value::Map(map.clone()));
    Value::Map(map)
}

/// Arguments by the letter of their type.
struct Pool {
    texts: Vec<Value>,
    numbers: Vec<Value>,
    lists: Vec<Value>,
    maps: Vec<Value>,
    any: Vec<Value>,
}

impl Pool {
    fn new() -> Self {
        let texts: Vec<Value> =
            ["'<\u{1}", "a ", "{\"a\":[1,{}]},", "- a: b\n", "\u{390}", "$0%9v."]
                .map(long)
                .into_iter()
                .chain(["", ",", "%x%*d%s%v%q", "2006-01-02 Monday"].map(Value::text))
                .collect();
        let numbers = [0, 1, -1, 100, 200_000, i64::MAX, i64::MIN].map(Value::Int).to_vec();
        let many = (0..5_000).map(|number| (format!("k{number}"), Value::Int(number)));
        let lists = vec![
            Value::list((0..10_000).map(Value::Int)),
            Value::list(texts.clone()),
            doubled(10, list_of_two),
            Value::list([]),
            Value::Bytes(vec![b'x'; LONG].into()),
        ];
        let maps = vec![
            Value::map(many),
            doubled(10, map_of_two),
            Value::map([("host", long("a")), ("path", long("<"))]),
            circle(),
        ];
        let others = [Value::Nil, Value::Bool(true), Value::Float(1e308), Value::Float(f64::NAN)];
        let mut any = Vec::new();
        for index in 0..7 {
            let pools = [&texts[..], &lists, &maps, &numbers, &others];
            any.extend(pools.iter().filter_map(|pool| pool.get(index).cloned()));
        }
        Self { texts, numbers, lists, maps, any }
    }

    fn of(&self, letter: char) -> &[Value] {
        match letter {
            's' => &self.texts,
            'i' | 'b' => &self.numbers,
            'l' => &self.lists,
            'm' => &self.maps,
            _ => &self.any,
        }
    }
}

/// Letters of a call's arguments; what repeats is there `times` times more.
fn letters(types: &str, times: usize) -> Vec<char> {
    let mut letters: Vec<char> = types.trim_end_matches('+').chars().collect();
    if types.ends_with('+') {
        letters.extend(std::iter::repeat_n(letters[letters.len() - 1], times));
    }
    letters
}

/// Calls a function; returns what is wrong if it takes more than its entry says.
fn problem(
    dialect: Dialect,
    name: &str,
    (types, growth, _): Entry,
    arguments: &[Value],
) -> Option<String> {
    let environment = BTreeMap::from([("V".to_owned(), "v".repeat(LONG))]);
    let bound = match growth {
        Growth::Flat => 0,
        Growth::Shares(bound)
        | Growth::Fresh(bound)
        | Growth::Searches(bound)
        | Growth::Pairs(bound) => bound(arguments),
    };
    let converted = call::made_texts(types, arguments).next().map_or(0, |_| PLAIN.once);
    let mut budget = Budget::new(&PLAIN);
    let (result, grown) =
        grown(|| call(&mut budget, dialect, Some(&environment), name, arguments).map(drop));
    let most = if bound > PLAIN.once { 0 } else { (bound + converted).min(PLAIN.once) };
    let is_refused = bound <= PLAIN.once || result.is_err();
    (grown > most + SLACK || !is_refused).then(|| {
        let kinds: Vec<_> = arguments.iter().map(Value::type_name).collect();
        let (grown, most) = (grown >> 10, most >> 10);
        format!("{dialect:?} {name} {kinds:?}: {grown} KiB, the entry says {most} KiB")
    })
}

/// All functions: each table has its own arguments, and dialects differ in what they convert.
fn all() -> impl Iterator<Item = (Dialect, &'static str, Entry)> {
    let tables = [
        (Dialect::ClusterImage, &CLUSTER_IMAGE),
        (Dialect::ClusterImage, &ENVIRONMENT),
        (Dialect::Chart, &CHART),
        (Dialect::Format, &FORMAT),
    ];
    let entries = tables.into_iter().flat_map(|(dialect, table)| {
        table.iter().map(move |(name, entry)| (dialect, *name, *entry))
    });
    let mut all: Vec<_> = entries.collect();
    all.sort_by_key(|(dialect, name, _)| (*name, format!("{dialect:?}")));
    all.into_iter()
}

#[test]
fn no_function_takes_more_memory_than_its_entry_says() {
    let pool = Pool::new();
    let mut problems = Vec::new();
    let mut before = "";
    for (dialect, name, entry) in all() {
        // Most functions are in two tables, and differ in what is converted for them.
        let again = std::mem::replace(&mut before, name) == name;
        let letters = letters(entry.0, 2);
        let most = letters.iter().map(|letter| pool.of(*letter).len()).max().unwrap_or(1);
        for variant in 0..if again { 1 } else { most } {
            let argument = |(position, letter): (usize, &char)| {
                let values = pool.of(if again { '*' } else { *letter });
                values[(variant + 3 * position) % values.len()].clone()
            };
            let arguments: Vec<Value> = letters.iter().enumerate().map(argument).collect();
            problems.extend(problem(dialect, name, entry, &arguments));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_search_for_all_matches_costs_the_square_of_the_text() {
    let steps = |count: usize| {
        let mut budget = Budget::new(&PLAIN);
        let arguments = [Value::text("a"), Value::text("a".repeat(40_000)), Value::Int(-1)];
        let growth = Growth::Searches(searched::<1>);
        assert!(begin(&mut budget, growth, &arguments[..count]).is_ok());
        budget.spent().1
    };
    assert!(steps(2) < 50_000);
    assert!(steps(3) > 1_000_000);
}

#[test]
fn values_that_hold_another_twice_have_no_size_that_is_made() {
    let mut problems = Vec::new();
    let (list, map) = (doubled(40, list_of_two), doubled(40, map_of_two));
    for (dialect, name, entry) in all().filter(|(dialect, ..)| *dialect != Dialect::ClusterImage) {
        let letters = letters(entry.0, 1);
        for value in [&list, &map] {
            let arguments: Vec<Value> = letters
                .iter()
                .map(|letter| match letter {
                    's' => Value::text("%v"),
                    'i' | 'b' => Value::Int(1),
                    'l' => list.clone(),
                    'm' => map.clone(),
                    _ => value.clone(),
                })
                .collect();
            problems.extend(problem(dialect, name, entry, &arguments));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Templates that keep what they make, in each place that can keep something.
#[test]
fn no_template_takes_more_memory_than_its_budget() {
    let nested = "{{ range $d }}".repeat(60) + "{{ break }}" + &"{{ end }}".repeat(60);
    let doubling: String = (0..60)
        .map(|n| format!("{{{{ define \"t{n}\" }}}}{{{{ template \"t{0}\" }}}}{{{{ template \"t{0}\" }}}}{{{{ end }}}}", n + 1))
        .collect();
    for text in [
        "{{ $l := list }}{{ range until 1000000 }}{{ $l = list $l (repeat 1000 \"x\") }}{{ end }}".to_owned(),
        "{{ $d := dict }}{{ range until 1000000 }}{{ $_ := set $d (toString .) . }}{{ end }}".to_owned(),
        "{{ $d := dict }}{{ range until 1000000 }}{{ $_ := set $d (repeat 1000 (toString .)) 1 }}{{ end }}".to_owned(),
        "{{ $l := list }}{{ range until 1000000 }}{{ $l = append $l (dict \"a\" 1) }}{{ end }}".to_owned(),
        "{{ $l := list }}{{ range until 1000000 }}{{ $l = list $l (until 10000) }}{{ end }}".to_owned(),
        "{{ $l := until 8 }}{{ range until 40 }}{{ $l = concat $l $l }}{{ end }}".to_owned(),
        "{{ $x := repeat 1000000 \"<\" }}{{ range until 100 }}{{ quote $x $x }}{{ end }}".to_owned(),
        "{{ $x := repeat 1000000 \"x\" }}{{ range until 100000 }}{{ $x }}{{ end }}".to_owned(),
        "{{ define \"a\" }}{{ $x := repeat 500000 \"x\" }}{{ $x }}{{ template \"a\" }}{{ end }}{{ template \"a\" }}".to_owned(),
        format!("{{{{ $d := dict }}}}{{{{ range until 50000 }}}}{{{{ $_ := set $d (toString .) . }}}}{{{{ end }}}}{nested}{{{{ range until 1000 }}}}{nested}{{{{ end }}}}"),
        format!("{doubling}{{{{ define \"t60\" }}}}{{{{ end }}}}{{{{ template \"t0\" }}}}"),
        "{{ $d := list 1 }}{{ range until 40 }}{{ $d = list $d $d }}{{ end }}{{ $d }}".to_owned(),
        "{{ range until 2000 }}{{ $_ := fromYamlArray (printf \"[%s]\" (repeat 40000 \"1,\")) }}{{ end }}".to_owned(),
        "{{1}}".repeat(400_000),
        format!("{{{{ print {} }}}}", "(1)".repeat(100_000)),
    ] {
        let shown = &text[..text.len().min(120)];
        let run = || engine::render("t", &text, &serde_json::json!({}), Dialect::ClusterImage, Missing::NoValue);
        let (result, grown) = grown(run);
        let refused = result.expect_err(shown).to_string();
        let is_limit = refused.contains("more than");
        assert!(is_limit, "{shown}: {refused}");
        assert!(grown < 200 << 20, "{shown}: {} MiB: {refused}", grown >> 20);
    }
}
