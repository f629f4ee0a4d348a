//! Generated templates: a function of their seed. `IMGCTL_TEST_LONG=1` runs thousands instead of a few dozen.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{Files, each, file_of, helms, of_both, our_one};

/// Templates of one chart, which Helm renders together.
const PER_CHART: usize = 12;

/// Strings of values: what YAML may read otherwise, and what functions cut.
const TEXTS: [&str; 24] = [
    "",
    "a",
    "abc",
    "b,a,c",
    "yes",
    "null",
    "1.0",
    "0x1f",
    "1e3",
    " lead",
    "trail ",
    "a: b",
    "a #b",
    "- a",
    "*a",
    "{a",
    "it's",
    "say \"x\"",
    "a\nb",
    "a\n  b\n",
    "back\\slash",
    "2001-01-01",
    "~",
    "<a&b>",
];
const KEYS: [&str; 6] = ["a", "b", "c", "d-e", "f.g", "1"];

struct Writer(u64);

impl Writer {
    /// splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).unwrap()
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    /// A value of values.yaml.
    fn data(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 6 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(2000)),
            3 => json!(f64::from(u16::try_from(self.below(4000)).unwrap()) / 8.0 - 100.0),
            4 | 5 => json!(self.one(&TEXTS)),
            6 => (0..self.below(4)).map(|_| self.data(depth - 1)).collect(),
            _ => self.table(depth - 1),
        }
    }

    fn table(&mut self, depth: usize) -> Value {
        let count = self.below(4);
        let members = (0..count).map(|_| (self.one(&KEYS).to_owned(), self.data(depth)));
        Value::Object(members.collect::<Map<_, _>>())
    }

    fn values(&mut self) -> Value {
        let texts: Map<_, _> = (0..4).map(|n| (format!("s{n}"), json!(self.one(&TEXTS)))).collect();
        let lists: Map<_, _> = (0..4)
            .map(|n| (format!("l{n}"), (0..self.below(4)).map(|_| self.data(2)).collect()))
            .collect();
        let tables: Map<_, _> = (0..4).map(|n| (format!("d{n}"), self.table(3))).collect();
        let numbers: Map<_, _> =
            (0..4).map(|n| (format!("n{n}"), json!(self.below(500)))).collect();
        json!({"t": texts, "l": lists, "d": tables, "i": numbers, "none": null})
    }

    fn text(&mut self, depth: usize) -> String {
        let d = depth.saturating_sub(1);
        if depth == 0 {
            return match self.below(3) {
                0 => format!("{:?}", self.one(&TEXTS[..18])),
                1 => "$.Release.Name".to_owned(),
                _ => format!("$.Values.t.s{}", self.below(4)),
            };
        }
        match self.below(20) {
            0 => {
                let f = [
                    "upper",
                    "lower",
                    "trim",
                    "quote",
                    "squote",
                    "b64enc",
                    "sha256sum",
                    "title",
                    "nospace",
                    "toString",
                ];
                format!("({} {})", self.one(&f), self.text(d))
            }
            1 => format!("(trunc {} {})", self.below(9), self.text(d)),
            2 => format!("(replace \"a\" {} {})", self.text(d), self.text(d)),
            3 => format!("(indent {} {})", self.below(5), self.text(d)),
            4 => format!("(nindent {} {})", self.below(5), self.text(d)),
            5 => format!(
                "(printf \"%s-%d|%5v|%q\" {} (int {}) {} {})",
                self.text(d),
                self.int(d),
                self.int(d),
                self.text(d)
            ),
            6 => format!("(default {} {})", self.text(d), self.text(d)),
            7 => format!("(ternary {} {} {})", self.text(d), self.text(d), self.bool(d)),
            8 => format!("(join {:?} {})", self.one(&[",", "", "a"]), self.list(d)),
            9 | 10 => format!("(toYaml {})", self.value(d)),
            11 => format!(
                "({} {})",
                self.one(&["toJson", "toRawJson", "toPrettyJson"]),
                self.value(d)
            ),
            12 => format!("(include \"shown\" {})", self.value(d)),
            13 => format!("(tpl \"{{{{ . | toJson }}}}\" {})", self.value(d)),
            14 => format!("(repeat {} {})", self.below(3), self.text(d)),
            15 => format!("(regexReplaceAll \"[a-c]+\" {} \"<$0>\")", self.text(d)),
            16 => format!(
                "({} \"a\" {})",
                self.one(&["trimPrefix", "trimSuffix", "trimAll"]),
                self.text(d)
            ),
            17 => format!("(cat {} {})", self.text(d), self.value(d)),
            18 => format!("(print {} {})", self.value(d), self.value(d)),
            _ => format!("(toYaml (fromYaml (print (toYaml {}) \"\\n\")))", self.table_of(d)),
        }
    }

    fn int(&mut self, depth: usize) -> String {
        let d = depth.saturating_sub(1);
        if depth == 0 {
            return match self.below(2) {
                0 => self.below(100).to_string(),
                _ => format!("(int $.Values.i.n{})", self.below(4)),
            };
        }
        match self.below(5) {
            0 => format!(
                "({} {} {})",
                self.one(&["add", "sub", "mul", "max", "min"]),
                self.int(d),
                self.int(d)
            ),
            1 => format!("({} {} {})", self.one(&["div", "mod"]), self.int(d), 1 + self.below(9)),
            2 => format!("(len {})", self.list(d)),
            3 => format!("(len {})", self.table_of(d)),
            _ => format!("(len {})", self.text(d)),
        }
    }

    fn bool(&mut self, depth: usize) -> String {
        let d = depth.saturating_sub(1);
        match self.below(if depth == 0 { 2 } else { 8 }) {
            0 => "true".to_owned(),
            1 => "false".to_owned(),
            2 => format!(
                "({} {} {})",
                self.one(&["eq", "ne", "lt", "ge"]),
                self.text(d),
                self.text(d)
            ),
            3 => {
                format!("({} {} {})", self.one(&["eq", "ne", "le", "gt"]), self.int(d), self.int(d))
            }
            4 => format!("({} {} {})", self.one(&["and", "or"]), self.bool(d), self.bool(d)),
            5 => format!("(not {})", self.value(d)),
            6 => format!("(empty {})", self.value(d)),
            _ => format!("(hasKey {} {:?})", self.table_of(d), self.one(&KEYS)),
        }
    }

    fn list(&mut self, depth: usize) -> String {
        let d = depth.saturating_sub(1);
        if depth == 0 {
            return format!("$.Values.l.l{}", self.below(4));
        }
        match self.below(9) {
            0 => format!("(list {} {})", self.value(d), self.value(d)),
            1 => format!("(append {} {})", self.list(d), self.value(d)),
            2 => format!("(prepend {} {})", self.list(d), self.value(d)),
            3 => format!("(concat (list 1) {} {})", self.list(d), self.list(d)),
            4 => format!("(reverse {})", self.list(d)),
            5 => format!("(compact {})", self.list(d)),
            6 => format!("(sortAlpha {})", self.list(d)),
            7 => format!("(splitList \",\" {})", self.text(d)),
            _ => format!("(uniq $.Values.l.l{})", self.below(4)),
        }
    }

    fn table_of(&mut self, depth: usize) -> String {
        let d = depth.saturating_sub(1);
        if depth == 0 {
            return format!("$.Values.d.d{}", self.below(4));
        }
        let key = self.one(&KEYS);
        match self.below(6) {
            0 => format!("(dict {key:?} {})", self.value(d)),
            1 => format!("(set (deepCopy {}) {key:?} {})", self.table_of(d), self.value(d)),
            2 => format!("(omit {} {key:?})", self.table_of(d)),
            3 => format!("(pick {} {key:?} \"a\")", self.table_of(d)),
            4 => format!("(merge (deepCopy {}) {})", self.table_of(d), self.table_of(d)),
            _ => format!("(mergeOverwrite (deepCopy {}) {})", self.table_of(d), self.table_of(d)),
        }
    }

    fn value(&mut self, depth: usize) -> String {
        match self.below(7) {
            0 | 1 => self.text(depth),
            2 => self.int(depth),
            3 => self.list(depth),
            4 | 5 => self.table_of(depth),
            _ => self
                .one(&["nil", "$.Values.none", "$.Values.gap", "true", "1.5"])
                .replace("nil", "$.Values.none"),
        }
    }

    fn template(&mut self) -> String {
        let mut out = String::new();
        for number in 0..=self.below(4) {
            let depth = 1 + self.below(3);
            let _ = match self.below(7) {
                0 => writeln!(out, "t{number}: {{{{ {} | toJson }}}}", self.text(depth)),
                1 => writeln!(
                    out,
                    "y{number}:\n{{{{ {} | toYaml | indent 2 }}}}",
                    self.table_of(depth)
                ),
                2 => writeln!(out, "l{number}: {{{{ {} | toJson }}}}", self.list(depth)),
                3 => writeln!(
                    out,
                    "r{number}:{{{{ range $k, $v := {} }}}}\n  {{{{ $k | quote }}}}: {{{{ $v | toJson }}}}\n{{{{- end }}}}",
                    self.table_of(depth)
                ),
                4 => writeln!(
                    out,
                    "i{number}: {{{{ if {} }}}}{{{{ {} }}}}{{{{ else if {} }}}}b{{{{ else }}}}c{{{{ end }}}}",
                    self.value(depth),
                    self.int(depth),
                    self.bool(depth)
                ),
                5 => writeln!(
                    out,
                    "w{number}: {{{{ with {} }}}}{{{{ . | toJson }}}}{{{{ else }}}}none{{{{ end }}}}",
                    self.value(depth)
                ),
                _ => writeln!(
                    out,
                    "v{number}: {{{{ $x := {} }}}}{{{{ range {} }}}}{{{{ $x = . }}}}{{{{ end }}}}{{{{ toJson $x }}}}",
                    self.value(depth),
                    self.list(depth)
                ),
            };
        }
        out
    }
}

/// The chart and the templates of a seed.
fn chart(seed: u64) -> (Files, Vec<String>) {
    let mut writer = Writer(seed);
    let values = writer.values().to_string();
    let files = [
        ("Chart.yaml", "apiVersion: v2\nname: chart\nversion: 1.0.0\n"),
        ("values.yaml", &*values),
        ("templates/_shown.tpl", "{{ define \"shown\" }}<{{ . }}>{{ end }}"),
    ];
    let files = files.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()));
    (Files::from(files), (0..PER_CHART).map(|_| writer.template()).collect())
}

#[test]
fn generated_templates_render_as_in_helm() {
    let Some(helms) = helms() else { return };
    let is_long = imgctl_base::testing::is_long();
    let mut wrong = Vec::new();
    for seed in 0..if is_long { 250 } else { 4 } {
        let (files, templates) = chart(seed);
        let ours: Vec<_> =
            templates.iter().enumerate().map(|(n, text)| our_one(&files, n, text)).collect();
        let alone: Vec<bool> = ours.iter().map(Result::is_err).collect();
        let [four, three] = of_both(&helms, |helm| each(&files, helm, &templates, &alone));
        for (number, ours) in ours.iter().enumerate() {
            for theirs in [&four[number], &three[number]] {
                if ours.as_ref().ok() != theirs.as_ref().ok() {
                    let (file, template) = (file_of(number), &templates[number]);
                    wrong.push(format!(
                        "== seed {seed}, {file}\n{template}imgctl: {ours:?}\n  Helm: {theirs:?}"
                    ));
                    break;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{} differ", wrong.join("\n"), wrong.len());
}
