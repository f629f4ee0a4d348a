//! Which file of a crate names an item of which other file, read from `use` declarations and paths,
//! and the circles among these arrows. Knows the paths of Rust's modules, not its types: a method call is
//! no arrow. Neither is a `mod` declaration, a re-export, or what a module takes from the modules around
//! it, which it is a part of.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// From one file or module to another, with the names that the first takes from the second.
pub(crate) type Arrows = BTreeMap<(String, String), BTreeSet<String>>;

/// The files of one crate.
pub(crate) struct Sources {
    files: Vec<File>,
    /// From a module's path to the index of its file.
    modules: BTreeMap<Vec<String>, usize>,
}

#[derive(Default)]
struct File {
    path: PathBuf,
    module: Vec<String>,
    /// Of the module and of those written inside the file.
    scopes: BTreeMap<Vec<String>, Scope>,
    named: Vec<Named>,
}

/// What one module brings into scope.
#[derive(Default)]
struct Scope {
    /// A name, and the path that `use` gives for it.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    defined: BTreeSet<String>,
}

/// A path as written, and the module that it stands in.
struct Named {
    scope: Vec<String>,
    path: Vec<String>,
}

impl Sources {
    /// Reads the crate whose `lib.rs` is in `folder`, without its test modules.
    pub(crate) fn read(folder: &Path) -> Self {
        let mut sources = Self { files: Vec::new(), modules: BTreeMap::new() };
        sources.add(&folder.join("lib.rs"), &[], folder);
        sources
    }

    /// Reads the file of a module, and those of the modules that it declares, which lie in `folder`.
    fn add(&mut self, path: &Path, module: &[String], folder: &Path) {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut reader = Reader {
            tokens: without_tests(&tokens(&text)),
            at: 0,
            file: File { path: path.to_owned(), module: module.to_vec(), ..File::default() },
            children: Vec::new(),
        };
        reader.module(module);
        for scope in reader.file.scopes.keys() {
            self.modules.insert(scope.clone(), self.files.len());
        }
        self.files.push(reader.file);
        for child in reader.children {
            let (name, inner) = child[module.len()..].split_last().unwrap();
            let inside = inner.iter().fold(folder.to_owned(), |at, name| at.join(name)).join(name);
            let flat = inside.with_extension("rs");
            let path = if flat.exists() { flat } else { inside.join("mod.rs") };
            self.add(&path, &child, &inside);
        }
    }

    /// The arrows between files, by their paths.
    pub(crate) fn between_files(&self) -> Arrows {
        self.arrows(|file| file.path.display().to_string())
    }

    /// The arrows between the modules that the crate's root declares.
    pub(crate) fn between_top_modules(&self) -> Arrows {
        self.arrows(|file| file.module.first().cloned().unwrap_or_default())
    }

    fn arrows(&self, label: impl Fn(&File) -> String) -> Arrows {
        let mut arrows = Arrows::new();
        for from in &self.files {
            for named in &from.named {
                let Some((to, name)) = self.resolve(&named.scope, &named.path, 0) else { continue };
                let to = &self.files[to];
                let ends = (label(from), label(to));
                if ends.0 != ends.1 && !from.module.starts_with(&to.module) {
                    arrows.entry(ends).or_default().insert(name);
                }
            }
        }
        arrows
    }

    /// The file that defines what a path written in module `scope` leads to, and the name of that.
    /// None for other crates.
    fn resolve(&self, scope: &[String], path: &[String], depth: usize) -> Option<(usize, String)> {
        if depth > 16 {
            return None;
        }
        let first = path.first()?;
        let (mut module, rest) = match first.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (scope.to_vec(), &path[1..]),
            "super" => (scope.to_vec(), path),
            _ if self.has(scope, first) => (scope.to_vec(), path),
            _ => {
                let import = self.scope(scope)?.imports.get(first)?;
                if import.first() == Some(first) {
                    return None;
                }
                let whole = [import, &path[1..]].concat();
                return self.resolve(scope, &whole, depth + 1);
            }
        };
        for (at, name) in rest.iter().enumerate() {
            if name == "super" {
                module.pop()?;
                continue;
            }
            if self.has(&module, name) {
                module.push(name.clone());
                continue;
            }
            let scope = self.scope(&module)?;
            let imports = scope.imports.get(name).map(|import| [import, &rest[at + 1..]].concat());
            let globs = scope.globs.iter().filter(|_| !scope.defined.contains(name));
            let globs = globs.map(|glob| [glob, &rest[at..]].concat());
            let found = imports
                .into_iter()
                .chain(globs)
                .find_map(|whole| self.resolve(&module, &whole, depth + 1));
            return found.or_else(|| Some((self.modules[&module], name.clone())));
        }
        Some((self.modules[&module], module.last().cloned().unwrap_or_default()))
    }

    fn has(&self, module: &[String], child: &str) -> bool {
        self.modules.contains_key(&[module, &[child.to_owned()]].concat())
    }

    fn scope(&self, module: &[String]) -> Option<&Scope> {
        self.files[*self.modules.get(module)?].scopes.get(module)
    }
}

/// The circles among arrows: each is the arrows between files or modules that lead to one another.
pub(crate) fn circles(arrows: &Arrows) -> Vec<Vec<String>> {
    let starts: BTreeSet<&str> = arrows.keys().map(|(from, _)| from.as_str()).collect();
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        starts.into_iter().map(|from| (from, reachable(arrows, from))).collect();
    let mut found = BTreeMap::<&str, Vec<String>>::new();
    for ((from, to), names) in arrows {
        let back = reach.get(to.as_str());
        if back.is_some_and(|back| back.contains(from.as_str())) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let of_circle = back
                .into_iter()
                .flatten()
                .find(|member| reach.get(*member).is_some_and(|r| r.contains(to.as_str())));
            let arrow = format!("{from} -> {to}: {}", names.join(", "));
            found.entry(of_circle.unwrap()).or_default().push(arrow);
        }
    }
    found.into_values().collect()
}

fn reachable<'a>(arrows: &'a Arrows, from: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut pending = vec![from];
    while let Some(at) = pending.pop() {
        for (_, to) in arrows.keys().filter(|(from, _)| from == at) {
            if found.insert(to.as_str()) {
                pending.push(to);
            }
        }
    }
    found
}

/// Words and punctuation; `::` is one token. Comments, strings, characters and lifetimes are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let length = if c.is_whitespace() {
            c.len_utf8()
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = string(rest) {
            found.push("\"".to_owned());
            length
        } else if c == '\'' {
            character(rest)
        } else if word > 0 {
            found.push(rest[..word].to_owned());
            word
        } else if rest.starts_with("::") {
            found.push("::".to_owned());
            2
        } else {
            found.push(c.to_string());
            c.len_utf8()
        };
        rest = &rest[length..];
    }
    found
}

/// The length of the string literal that the text begins with.
fn string(text: &str) -> Option<usize> {
    let prefix = text.find(|c: char| !"bcr".contains(c))?;
    let raw = text[..prefix].contains('r');
    let hashes = if raw { text[prefix..].find(|c| c != '#')? } else { 0 };
    let start = prefix + hashes;
    if !text[start..].starts_with('"') {
        return None;
    }
    if raw {
        let end = format!("\"{}", "#".repeat(hashes));
        return text[start + 1..].find(&end).map(|at| start + 1 + at + end.len());
    }
    let mut escaped = false;
    for (at, c) in text[start + 1..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(start + 1 + at + 1),
            _ => {}
        }
    }
    None
}

/// The length of the character literal or of the lifetime that the text begins with.
fn character(text: &str) -> usize {
    let mut inside = text[1..].char_indices();
    let escaped = inside.next().is_some_and(|(_, c)| c == '\\');
    match inside.next() {
        Some((at, _)) if escaped => {
            text[at + 2..].find('\'').map_or(text.len(), |end| at + 2 + end + 1)
        }
        Some((at, '\'')) => at + 2,
        _ => 1,
    }
}

/// Leaves out the items behind `#[cfg(test)]`.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let mark = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at..].iter().take(mark.len()).eq(mark) {
            at += mark.len();
            while tokens.get(at).is_some_and(|token| token == "#") {
                at = closed(tokens, at + 1);
            }
            at = behind_item(tokens, at);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Behind the item, field or variant that begins at `at`.
fn behind_item(tokens: &[String], mut at: usize) -> usize {
    let visible = if tokens[at] == "pub" { 1 } else { 0 };
    let narrow =
        if tokens[at + visible] == "(" { closed(tokens, at + visible) } else { at + visible };
    let import = tokens[narrow] == "use";
    let member = tokens[narrow + 1] == ":" || ["(", "{", ","].contains(&&*tokens[narrow + 1]);
    while at < tokens.len() {
        match tokens[at].as_str() {
            "{" if !import && !member => return closed(tokens, at),
            "{" | "(" | "[" => at = closed(tokens, at),
            ";" => return at + 1,
            "," if member => return at + 1,
            "}" => return at,
            _ => at += 1,
        }
    }
    at
}

/// Behind the bracket that closes the one at `at`.
fn closed(tokens: &[String], mut at: usize) -> usize {
    let mut depth = 0;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

struct Reader {
    tokens: Vec<String>,
    at: usize,
    file: File,
    /// The modules that the file declares and that have files of their own.
    children: Vec<Vec<String>>,
}

impl Reader {
    fn token(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", String::as_str)
    }

    /// Reads a module until its closing brace.
    fn module(&mut self, module: &[String]) {
        self.file.scopes.entry(module.to_vec()).or_default();
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.token(0) {
                "mod" if is_word(self.token(1)) && [";", "{"].contains(&self.token(2)) => {
                    let inner = [module, &[self.token(1).to_owned()]].concat();
                    let declared = self.token(2) == ";";
                    self.at += 3;
                    if declared {
                        self.children.push(inner);
                    } else {
                        self.module(&inner);
                    }
                }
                // Not the `use<'a>` of a bound.
                "use" if self.token(1) != "<" => {
                    let reexport =
                        self.at > 0 && ["pub", ")"].contains(&&*self.tokens[self.at - 1]);
                    let before = self.file.named.len();
                    self.at += 1;
                    self.import(module, &[]);
                    if reexport {
                        self.file.named.truncate(before);
                    }
                }
                "{" => {
                    depth += 1;
                    self.at += 1;
                }
                "}" => {
                    self.at += 1;
                    if depth == 0 {
                        return;
                    }
                    depth -= 1;
                }
                "const" | "enum" | "fn" | "static" | "struct" | "trait" | "type" | "union" => {
                    let name = self.token(1).to_owned();
                    self.file.scopes.entry(module.to_vec()).or_default().defined.insert(name);
                    self.at += 1;
                }
                word if is_word(word) && self.token(1) == "::" => {
                    let behind_path = self.at > 0 && self.tokens[self.at - 1] == "::";
                    let mut path = vec![word.to_owned()];
                    self.at += 1;
                    while self.token(0) == "::" && is_word(self.token(1)) {
                        path.push(self.token(1).to_owned());
                        self.at += 2;
                    }
                    if !behind_path {
                        self.file.named.push(Named { scope: module.to_vec(), path });
                    }
                }
                _ => self.at += 1,
            }
        }
    }

    /// Reads one tree of a `use` declaration, which continues `prefix`.
    fn import(&mut self, module: &[String], prefix: &[String]) {
        let mut path = prefix.to_vec();
        loop {
            match self.token(0) {
                "{" => {
                    self.at += 1;
                    while !["}", ""].contains(&self.token(0)) {
                        self.import(module, &path);
                        // A comma, or what no `use` has.
                        if self.token(0) != "}" {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "*" => {
                    self.at += 1;
                    self.file.scopes.get_mut(module).unwrap().globs.push(path.clone());
                    self.file.named.push(Named { scope: module.to_vec(), path });
                    return;
                }
                "::" => self.at += 1,
                word if is_word(word) && word != "as" => {
                    path.push(word.to_owned());
                    self.at += 1;
                }
                _ => break,
            }
        }
        if path.len() > prefix.len().max(1) && path.last().is_some_and(|name| name == "self") {
            path.pop();
        }
        let mut name = path.last().cloned().unwrap_or_default();
        if self.token(0) == "as" {
            name = self.token(1).to_owned();
            self.at += 2;
        }
        self.file.scopes.get_mut(module).unwrap().imports.insert(name, path.clone());
        self.file.named.push(Named { scope: module.to_vec(), path });
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
