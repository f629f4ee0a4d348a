//! Reads the messages with a hint out of the source: `.hint(…)` on an error, functions that take both a
//! message and a hint, and structures with both. Knows expressions of Rust, not its types: a variable is
//! what the nearest `let` of that name says, and what only the run knows becomes `…`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprClosure, ImplItemFn, ItemFn, Lit, Member, Pat, Token};

use crate::{read, repository};
use expressions::{SAME_TEXT, called, inner, place, tail};
use names::{MESSAGES, Names, inputs, name_of, parameters};

mod expressions;
mod names;

/// Methods whose arguments are what the text may be.
const ALTERNATIVES: [&str; 7] =
    ["then", "then_some", "map", "map_or", "map_or_else", "unwrap_or", "unwrap_or_else"];
/// How deep variables and functions are followed.
const DEPTH: usize = 12;

/// The messages and hints of one place in the source. There are no messages if the hint is added to an error
/// from elsewhere.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Found {
    /// Relative to the repository.
    pub(crate) file: PathBuf,
    pub(crate) messages: BTreeSet<String>,
    pub(crate) hints: BTreeSet<String>,
}

/// Everything that is written down outside tests.
pub(crate) fn read_all() -> Vec<Found> {
    let mut files = Vec::new();
    for folder in ["src", "crates"] {
        for entry in walkdir::WalkDir::new(repository().join(folder)).sort_by_file_name() {
            let path = entry.unwrap().into_path();
            let path = path.strip_prefix(repository()).unwrap();
            if path.extension().is_some_and(|end| end == "rs") && !is_test(path) {
                // Parsing is what takes the time.
                let text = read(path);
                if text.contains("hint") {
                    files.push((path.to_owned(), syn::parse_file(&text).unwrap()));
                }
            }
        }
    }
    of(&files)
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| {
        let part = part.as_os_str().to_str().unwrap().trim_end_matches(".rs");
        part == "tests" || part.ends_with("_tests") || part == "testing"
    })
}

fn of(files: &[(PathBuf, syn::File)]) -> Vec<Found> {
    let mut names = Names::default();
    for (_, file) in files {
        names.visit_file(file);
    }
    let mut found = Vec::new();
    for (path, file) in files {
        let mut own = Names::default();
        own.visit_file(file);
        let mut reader = Reader { path, all: &names, own, scopes: Vec::new(), found: Vec::new() };
        reader.visit_file(file);
        found.append(&mut reader.found);
    }
    found
}

struct Reader<'a> {
    path: &'a Path,
    all: &'a Names,
    own: Names,
    /// Variables and what they are; `None`: something that only the run knows.
    scopes: Vec<BTreeMap<String, Option<Expr>>>,
    found: Vec<Found>,
}

impl Reader<'_> {
    fn variable(&self, name: &str) -> Option<&Option<Expr>> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }

    /// The texts that an expression may be.
    fn texts(&self, expression: &Expr, depth: usize) -> Vec<String> {
        let next = |inner: &Expr| self.texts(inner, depth + 1);
        if depth > DEPTH {
            return Vec::new();
        }
        match expression {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => vec![text.value()],
                _ => Vec::new(),
            },
            Expr::Macro(call) if call.mac.path.is_ident("format") => {
                let tokens = call.mac.tokens.clone().into_iter().next().map(|t| t.to_string());
                let literal = tokens.and_then(|text| syn::parse_str::<syn::LitStr>(&text).ok());
                literal.map(|text| self.filled(&text.value(), depth)).into_iter().collect()
            }
            Expr::MethodCall(call) if SAME_TEXT.contains(&call.method.to_string().as_str()) => {
                next(&call.receiver)
            }
            Expr::MethodCall(call) if ALTERNATIVES.contains(&call.method.to_string().as_str()) => {
                call.args.iter().flat_map(next).collect()
            }
            Expr::Path(path) => {
                let name = path.path.segments.last().unwrap().ident.to_string();
                match self.variable(&name) {
                    Some(Some(value)) => next(value),
                    Some(None) => Vec::new(),
                    None => self
                        .own
                        .constants
                        .get(&name)
                        .or_else(|| self.all.constants.get(&name))
                        .map(next)
                        .unwrap_or_default(),
                }
            }
            Expr::Call(call) => match called(&call.func).as_str() {
                "Some" | "from" => call.args.iter().flat_map(next).collect(),
                name => self
                    .own
                    .functions
                    .get(name)
                    .and_then(tail)
                    .map(next)
                    .or_else(|| self.variable(name)?.as_ref().map(next))
                    .unwrap_or_default(),
            },
            Expr::Binary(sum) => {
                let right = next(&sum.right).into_iter().next().unwrap_or_else(|| "…".to_owned());
                next(&sum.left).iter().map(|left| format!("{left}{right}")).collect()
            }
            other => inner(other).iter().flat_map(|inner| next(inner)).collect(),
        }
    }

    /// The text of `format!`: constants are filled in, everything else becomes `…`.
    fn filled(&self, format: &str, depth: usize) -> String {
        let mut text = String::new();
        let mut rest = format.replace("{{", "\u{1}").replace("}}", "\u{2}");
        while let Some((before, behind)) = rest.split_once('{') {
            text.push_str(before);
            let (name, behind) = behind.split_once('}').unwrap();
            let name = name.split(':').next().unwrap();
            let constant = self.own.constants.get(name).or_else(|| self.all.constants.get(name));
            let value = constant.filter(|_| !name.is_empty());
            let value = value.and_then(|value| self.texts(value, depth + 1).into_iter().next());
            text.push_str(value.as_deref().unwrap_or("…"));
            rest = behind.to_owned();
        }
        text.push_str(&rest);
        text = text.replace('\u{1}', "{").replace('\u{2}', "}");
        while text.contains("……") {
            text = text.replace("……", "…");
        }
        text
    }

    /// The messages of an error.
    fn messages(&self, error: &Expr, depth: usize) -> Vec<String> {
        if depth > DEPTH {
            return Vec::new();
        }
        match error {
            Expr::MethodCall(call) => {
                let texts =
                    || call.args.first().map(|arg| self.texts(arg, depth + 1)).unwrap_or_default();
                let told = match call.method.to_string().as_str() {
                    "context" | "retold" | "doing" => texts(),
                    "path" => texts().iter().map(|verb| format!("cannot {verb} …")).collect(),
                    _ => Vec::new(),
                };
                if told.is_empty() { self.messages(&call.receiver, depth + 1) } else { told }
            }
            Expr::Call(call) => {
                let name = called(&call.func);
                // Constructors take the message last, after what it is about.
                let texts = call.args.iter().rev().map(|argument| self.texts(argument, depth + 1));
                let told = texts.into_iter().find(|texts| !texts.is_empty()).unwrap_or_default();
                let local = match self.variable(&name) {
                    Some(Some(Expr::Closure(closure))) => self.messages(&closure.body, depth + 1),
                    _ => Vec::new(),
                };
                let of_function = || {
                    let block = self.own.functions.get(&name).and_then(tail);
                    block.map(|tail| self.messages(tail, depth + 1)).unwrap_or_default()
                };
                [local, of_function(), told]
                    .into_iter()
                    .find(|told| !told.is_empty())
                    .unwrap_or_default()
            }
            Expr::Path(path) => {
                let name = path.path.segments.last().unwrap().ident.to_string();
                match self.variable(&name) {
                    Some(Some(value)) => self.messages(value, depth + 1),
                    _ => Vec::new(),
                }
            }
            other => {
                inner(other).iter().flat_map(|inner| self.messages(inner, depth + 1)).collect()
            }
        }
    }

    fn add(&mut self, messages: Vec<String>, hints: Vec<String>) {
        let plain = |texts: Vec<String>| {
            let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
            texts.into_iter().map(words).filter(|text| !text.is_empty()).collect()
        };
        let found =
            Found { file: self.path.to_owned(), messages: plain(messages), hints: plain(hints) };
        self.found.push(found);
    }

    /// A call of what takes a message and a hint.
    fn taken(
        &mut self,
        name: &str,
        elsewhere: Option<&(Option<usize>, usize)>,
        arguments: &Punctuated<Expr, Token![,]>,
    ) {
        let Some(&(message, hint)) = self.own.takers.get(name).or(elsewhere) else {
            return;
        };
        let Some(argument) = arguments.iter().nth(hint) else {
            return;
        };
        if self.is_passed_on(argument)
            || matches!(argument, Expr::Path(path) if path.path.is_ident("None"))
        {
            return;
        }
        let texts = |at: usize| {
            arguments.iter().nth(at).map(|argument| self.texts(argument, 0)).unwrap_or_default()
        };
        let (messages, hints) = (message.map(texts).unwrap_or_default(), self.texts(argument, 0));
        // Without a hint, as some callers have none.
        if hints.iter().all(String::is_empty) && matches!(argument, Expr::Lit(_)) {
            return;
        }
        self.add(messages, hints);
    }

    /// Whether a hint is a parameter called so: the callers say what it is.
    fn is_passed_on(&self, hint: &Expr) -> bool {
        match hint {
            Expr::Path(path) => {
                path.path.is_ident("hint") && matches!(self.variable("hint"), Some(None) | None)
            }
            Expr::Reference(inner) => self.is_passed_on(&inner.expr),
            Expr::Unary(inner) => self.is_passed_on(&inner.expr),
            Expr::MethodCall(call) => {
                let mut parts = call.args.iter().chain([&*call.receiver]);
                parts.any(|part| self.is_passed_on(part))
            }
            Expr::Call(call) => call.args.iter().any(|argument| self.is_passed_on(argument)),
            Expr::Field(field) => matches!(&field.member, Member::Named(name) if name == "hint"),
            Expr::Macro(call) => {
                call.mac.path.is_ident("format") && call.mac.tokens.to_string() == "\"{hint}\""
            }
            _ => false,
        }
    }

    fn scoped(&mut self, names: Vec<String>, within: impl FnOnce(&mut Self)) {
        self.scopes.push(names.into_iter().map(|name| (name, None)).collect());
        within(self);
        self.scopes.pop();
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        list.is_ok_and(|list| {
            let tokens = list.tokens.to_string();
            list.path.is_ident("cfg") && (tokens == "test" || tokens.contains("testing"))
        })
    })
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        if !is_for_tests(&item.attrs) {
            self.scoped(inputs(&item.sig), |reader| visit::visit_item_fn(reader, item));
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        self.scoped(inputs(&item.sig), |reader| visit::visit_impl_item_fn(reader, item));
    }

    fn visit_expr_closure(&mut self, closure: &'a ExprClosure) {
        self.scoped(parameters(closure), |reader| visit::visit_expr_closure(reader, closure));
    }

    fn visit_block(&mut self, block: &'a Block) {
        self.scoped(Vec::new(), |reader| visit::visit_block(reader, block));
    }

    fn visit_local(&mut self, local: &'a syn::Local) {
        visit::visit_local(self, local);
        let names = match &local.pat {
            Pat::Tuple(tuple) => {
                let parts = match local.init.as_ref().map(|init| &*init.expr) {
                    Some(Expr::Tuple(values)) => values.elems.iter().cloned().map(Some).collect(),
                    // A tuple out of `match` or `if`: each place may be that of any arm.
                    Some(other) => (0..tuple.elems.len()).map(|at| place(other, at)).collect(),
                    None => Vec::new(),
                };
                tuple.elems.iter().filter_map(name_of).zip(parts).collect()
            }
            pattern => {
                let init = local.init.as_ref().map(|init| (*init.expr).clone());
                name_of(pattern).map(|name| (name, init)).into_iter().collect::<Vec<_>>()
            }
        };
        if let Some(scope) = self.scopes.last_mut() {
            scope.extend(names);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        if call.method == "hint" && call.args.len() == 1 {
            let hint = call.args.first().unwrap();
            if !self.is_passed_on(hint) {
                let (messages, hints) = (self.messages(&call.receiver, 0), self.texts(hint, 0));
                self.add(messages, hints);
            }
        } else {
            self.taken(&call.method.to_string(), None, &call.args);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        let name = called(&call.func);
        let is_here = self.own.functions.contains_key(&name) || self.variable(&name).is_some();
        let elsewhere = self.all.takers.get(&name).filter(|_| !is_here);
        self.taken(&name, elsewhere, &call.args);
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_struct(&mut self, structure: &'a syn::ExprStruct) {
        let member = |wanted: &dyn Fn(&str) -> bool| {
            structure.fields.iter().find_map(|field| match &field.member {
                Member::Named(name) if wanted(&name.to_string()) => Some(&field.expr),
                _ => None,
            })
        };
        let hint = member(&|name| name == "hint");
        if let Some(hint) = hint.filter(|hint| !self.is_passed_on(hint)) {
            let hints = self.texts(hint, 0);
            let message = member(&|name| MESSAGES.contains(&name));
            if !hints.is_empty() {
                self.add(message.map(|what| self.texts(what, 0)).unwrap_or_default(), hints);
            }
        }
        visit::visit_expr_struct(self, structure);
    }
}

#[test]
fn messages_and_hints_are_found_together() {
    let source = r#"
        const HINT: &str = "read the manual";
        fn a(x: u8) -> Error { Error::usage(format!("{x} is {} bad", y)).hint(HINT).hint("or not") }
        fn b() {
            let what = if c { "one" } else { "two" };
            let wrong = || Error::new(Kind::Usage, what).caused_by(e).hint("fix {{it}}");
            let refuse = |what: &str, hint: &str| Error::usage(what).hint(hint);
            refuse("refused", &format!("use {x}"));
            read().path("read", p).map_err(|error| error.hint("chmod"));
            Problem { what: "p".to_owned(), hint: Some("q".to_owned()) };
            found.push(error("check", "w").on(host).hint("v"));
        }
        #[cfg(test)]
        mod tests { fn t() { Error::usage("t").hint("t"); } }
    "#;
    let found = of(&[(PathBuf::from("x.rs"), syn::parse_str(source).unwrap())]);
    let mut lines: Vec<String> = found
        .iter()
        .map(|one| {
            let list =
                |texts: &BTreeSet<String>| texts.iter().cloned().collect::<Vec<_>>().join("|");
            format!("{} -> {}", list(&one.messages), list(&one.hints))
        })
        .collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            " -> chmod",
            "one|two -> fix {{it}}",
            "p -> q",
            "refused -> use …",
            "w -> v",
            "… is … bad -> or not",
            "… is … bad -> read the manual",
        ]
    );
}
