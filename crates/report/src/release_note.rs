//! Renders the changes in a new version of an image as terminal text or as Markdown for a pull request. Must not know where the data
//! come from.

use crate::model::comparison::{
    Change, Comparison, ImageChange, ImageVersion, NamedChange, Transfer,
};
use imgctl_base::size::human;
use imgctl_base::text::Lines;

/// Maximum number of lines below one item.
const MOST: usize = 12;

/// What the text is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Terminal,
    Markdown,
}

struct Section {
    title: String,
    items: Vec<Item>,
}

struct Item {
    change: Option<Change>,
    text: String,
    below: Vec<String>,
}

/// Writes what `new`, the name or digest of an image, changes.
pub fn release_note(new: &str, compared: &Comparison, form: Form) -> Lines {
    let old = compared.name.as_deref().unwrap_or(&compared.digest);
    let sections = sections(compared);
    let mut lines = Lines::default();
    lines.line(form.title(old, new));
    if sections.is_empty() {
        lines.line("").line("Nothing differs.");
        return lines;
    }
    for Section { title, items } in sections {
        lines.line("").line(form.heading(&title));
        if form == Form::Markdown {
            lines.line("");
        }
        for Item { change, text, below } in items {
            lines.line(form.item(change, &text));
            for line in below.iter().take(MOST) {
                lines.line(form.below(line));
            }
            let rest = below.len().saturating_sub(MOST);
            if rest > 0 {
                lines.line(form.below(&format!("and {rest} more; --json lists all")));
            }
        }
    }
    lines
}

impl Form {
    fn title(self, old: &str, new: &str) -> String {
        match self {
            Self::Terminal => format!("{old} -> {new}"),
            Self::Markdown => format!("## {} → {}", code(old), code(new)),
        }
    }

    fn heading(self, title: &str) -> String {
        match self {
            Self::Terminal => title.to_owned(),
            Self::Markdown => format!("### {title}"),
        }
    }

    fn item(self, change: Option<Change>, text: &str) -> String {
        match self {
            Self::Terminal => {
                let mark = match change {
                    None => "",
                    Some(Change::Added) => "+ ",
                    Some(Change::Changed) => "~ ",
                    Some(Change::Removed) => "- ",
                };
                format!("  {mark}{text}")
            }
            Self::Markdown => {
                let word = match change {
                    None | Some(Change::Changed) => "",
                    Some(Change::Added) => "added: ",
                    Some(Change::Removed) => "removed: ",
                };
                format!("- {word}{}", markdown(text))
            }
        }
    }

    fn below(self, line: &str) -> String {
        match self {
            Self::Terminal => format!("      {line}"),
            Self::Markdown => format!("  - {}", markdown(line)),
        }
    }
}

fn sections(compared: &Comparison) -> Vec<Section> {
    let mut sections = Vec::new();
    let mut add = |title: &str, items: Vec<Item>| {
        if !items.is_empty() {
            sections.push(Section { title: title.to_owned(), items });
        }
    };
    add("To carry", carried(compared));
    add("Configuration", compared.configuration.iter().map(named).collect());
    add("Container images", compared.embedded.iter().map(image).collect());
    let charts = compared.charts.iter().map(|chart| Item {
        change: Some(chart.change),
        text: versions(&chart.name, chart.before.as_deref(), chart.after.as_deref()),
        below: chart.values.iter().map(value).collect(),
    });
    add("Charts", charts.collect());
    let objects = compared.objects.iter().map(|object| {
        let place = object.namespace.as_ref().map(|space| format!("{space}/")).unwrap_or_default();
        Item {
            change: Some(object.change),
            text: format!("{} {place}{} ({})", object.kind, object.name, object.file),
            below: object.members.clone(),
        }
    });
    add("Kubernetes objects", objects.collect());
    add("Packages", compared.packages.iter().map(named).collect());
    add("Files", files(compared));
    sections
}

fn carried(compared: &Comparison) -> Vec<Item> {
    let amount = |transfer: &Transfer| {
        let (missing, whole) = (human(transfer.missing), human(transfer.whole));
        let layers = match transfer.layers {
            1 => "1 layer".to_owned(),
            count => format!("{count} layers"),
        };
        format!("{missing} of {whole} in {layers}")
    };
    let item = |text| Item { change: None, text, below: Vec::new() };
    let sides = [("to the new version", &compared.forward), ("back", &compared.back)];
    let sides = sides.into_iter().filter(|(_, transfer)| transfer.layers > 0);
    sides.map(|(side, transfer)| item(format!("{side}: {}", amount(transfer)))).collect()
}

fn named(one: &NamedChange) -> Item {
    let text = versions(&one.name, one.before.as_deref(), one.after.as_deref());
    Item { change: Some(one.change), text, below: Vec::new() }
}

fn versions(name: &str, before: Option<&str>, after: Option<&str>) -> String {
    match (before, after) {
        (Some(before), Some(after)) if before != after => format!("{name}: {before} -> {after}"),
        (Some(one), _) | (None, Some(one)) => format!("{name}: {one}"),
        (None, None) => name.to_owned(),
    }
}

fn value(one: &NamedChange) -> String {
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "(unset)".to_owned());
    format!("{}: {} -> {}", one.name, shown(&one.before), shown(&one.after))
}

fn image(one: &ImageChange) -> Item {
    let short = |digest: &str| digest.get(7..19).unwrap_or(digest).to_owned();
    let version = |version: &ImageVersion| version.tag.clone().unwrap_or(short(&version.digest));
    let is_same_tag = matches!((&one.before, &one.after),
        (Some(before), Some(after)) if before.tag.is_some() && before.tag == after.tag);
    let version = |side: &Option<ImageVersion>| {
        let side = side.as_ref()?;
        Some(if is_same_tag {
            format!("{} ({})", version(side), short(&side.digest))
        } else {
            version(side)
        })
    };
    let (before, after) = (version(&one.before), version(&one.after));
    let below = match &one.unread {
        Some(why) => vec![format!("its packages are unknown: {why}")],
        None => one.packages.iter().map(value).collect(),
    };
    let text = versions(&one.repository, before.as_deref(), after.as_deref());
    Item { change: Some(one.change), text, below }
}

fn files(compared: &Comparison) -> Vec<Item> {
    let files = &compared.files;
    let sums = [
        (Change::Added, files.added, "added"),
        (Change::Changed, files.changed, "changed"),
        (Change::Removed, files.removed, "removed"),
    ];
    let sums = sums.into_iter().filter(|(_, amount, _)| amount.count > 0);
    sums.map(|(change, amount, word)| {
        let of_kind = files.list.iter().filter(|file| file.change == change);
        let mut below: Vec<String> = of_kind.map(|file| format!("/{}", file.path)).collect();
        below.sort();
        let more = usize::try_from(amount.count).unwrap_or(usize::MAX).saturating_sub(below.len());
        if more > 0 {
            below.truncate(MOST);
            below.push(format!("and {more} smaller ones; --files lists all"));
        }
        let count = amount.count;
        Item { change: None, text: format!("{count} {word}, {}", human(amount.bytes)), below }
    })
    .collect()
}

/// A text with what Markdown would read escaped.
fn markdown(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.replace(" -> ", " → ").chars() {
        if "\\`*_[]<>#|&!".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// A code span; a text with backticks would end it.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('`', "'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::comparison::{Amount, FileChange, FileChanges};

    fn compared() -> Comparison {
        let version = |tag: &str| Some(ImageVersion { tag: Some(tag.into()), digest: "d".into() });
        let change = |name: &str, before: Option<&str>, after: Option<&str>| NamedChange {
            change: match (before, after) {
                (None, _) => Change::Added,
                (_, None) => Change::Removed,
                _ => Change::Changed,
            },
            name: name.into(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
        };
        Comparison {
            name: Some("web:v1".into()),
            digest: "sha256:1".into(),
            compressed: 1,
            forward: Transfer { layers: 1, whole: 2000, missing: 1000 },
            back: Transfer::default(),
            layers_kept: 1,
            layers: Vec::new(),
            configuration: vec![
                change("label version", Some("v1"), Some("v2")),
                change("variable port", None, Some("80")),
            ],
            embedded: vec![ImageChange {
                change: Change::Changed,
                repository: "coredns/coredns".into(),
                before: version("v1.1"),
                after: version("v1.2"),
                packages: vec![change("golang.org/x/net", Some("v0.1"), Some("v0.2"))],
                unread: None,
            }],
            charts: Vec::new(),
            objects: Vec::new(),
            files: FileChanges {
                added: Amount { count: 1, bytes: 20 },
                list: vec![FileChange {
                    change: Change::Added,
                    path: "a_<b>".into(),
                    before: 0,
                    after: 20,
                }],
                ..FileChanges::default()
            },
            packages: vec![change("libc6", Some("1"), None)],
        }
    }

    #[test]
    fn a_terminal_shows_each_change_on_a_line() {
        let text = release_note("web:v2", &compared(), Form::Terminal).to_string();
        let expected = "\
web:v1 -> web:v2

To carry
  to the new version: 1.00 kB of 2.00 kB in 1 layer

Configuration
  ~ label version: v1 -> v2
  + variable port: 80

Container images
  ~ coredns/coredns: v1.1 -> v1.2
      golang.org/x/net: v0.1 -> v0.2

Packages
  - libc6: 1

Files
  1 added, 20 B
      /a_<b>";
        assert_eq!(text.trim_end(), expected);
    }

    #[test]
    fn names_are_no_markdown() {
        let text = release_note("web:v2", &compared(), Form::Markdown).to_string();
        for line in ["## `web:v1` → `web:v2`", "- added: variable port: 80", "  - /a\\_\\<b\\>"] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
    }

    #[test]
    fn equal_images_are_told() {
        let same = Comparison {
            forward: Transfer::default(),
            configuration: Vec::new(),
            embedded: Vec::new(),
            files: FileChanges::default(),
            packages: Vec::new(),
            ..compared()
        };
        let text = release_note("web:v2", &same, Form::Terminal).to_string();
        assert!(text.ends_with("Nothing differs.\n"), "{text}");
    }
}
