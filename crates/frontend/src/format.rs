//! `--format` of lists: a table, JSON, or a Go template for each row, with docker's `table` prefix.

use std::borrow::Cow;

use serde_json::Value;

use crate::context::Context;
use imgctl_base::error::Result;
use imgctl_base::text::escape;
use imgctl_template::{Dialect, Missing, Template};
use imgctl_ui::table::Table;

/// One row in each output form.
pub struct Row {
    /// Cells of the table.
    pub cells: Vec<String>,
    /// Members that templates see.
    pub fields: Value,
}

/// List that is ready to be shown.
pub struct Listing {
    /// Headings of the table, and the columns that are aligned to the right.
    pub headings: Vec<&'static str>,
    pub right: Vec<usize>,
    pub rows: Vec<Row>,
    /// Whole list as JSON, in its documented form.
    pub json: Value,
}

impl Listing {
    /// Shows the list as `format` (from `--format`) and `--json` request.
    pub fn show(&self, format: Option<&str>, heading: bool, context: &Context) -> Result<()> {
        match format {
            Some("json") => return context.ui.json(&self.json),
            None if context.ui.is_json() => return context.ui.json(&self.json),
            None | Some("table" | "") => {}
            Some(template) => return self.through(template, heading, context),
        }
        let mut table = Table::new(&self.headings).within(context.ui.columns());
        for column in &self.right {
            table = table.right(*column);
        }
        for row in &self.rows {
            table.row(row.cells.clone());
        }
        context.ui.print(&table.render(heading))
    }

    fn through(&self, format: &str, heading: bool, context: &Context) -> Result<()> {
        let (text, as_table) = match format.strip_prefix("table ") {
            Some(rest) => (rest, true),
            None => (format, false),
        };
        let text = unescaped(text);
        let lines = rendered(&text, self.rows.iter().map(|row| &row.fields), context)?;
        if !as_table {
            return print(&lines, context);
        }
        let names = headings_of(&text);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut table = Table::new(&names);
        for line in &lines {
            let mut cells: Vec<String> = line.split('\t').map(str::to_owned).collect();
            cells.resize(names.len(), String::new());
            table.row(cells);
        }
        context.ui.print(&table.render(heading))
    }
}

/// Shells pass `\t` as two characters.
fn unescaped(template: &str) -> String {
    template.replace("\\t", "\t").replace("\\n", "\n")
}

fn rendered<'a>(
    template: &str,
    values: impl Iterator<Item = &'a Value>,
    context: &Context,
) -> Result<Vec<String>> {
    let template = Template::parse("--format", template, Dialect::Format, Missing::Field)?;
    // The line feeds of a template are lines on a terminal; those of a label are not.
    let values = values.map(|value| {
        if context.ui.stdout_is_terminal() {
            Cow::Owned(on_one_line(value))
        } else {
            Cow::Borrowed(value)
        }
    });
    values.map(|value| template.render(&*value)).collect()
}

/// Returns a value whose texts are parts of a line.
fn on_one_line(value: &Value) -> Value {
    match value {
        Value::String(text) => escape(text).into(),
        Value::Array(list) => list.iter().map(on_one_line).collect(),
        Value::Object(members) => {
            let members = members.iter();
            members.map(|(name, value)| (escape(name).into_owned(), on_one_line(value))).collect()
        }
        other => other.clone(),
    }
}

/// Prints what the template makes of each value, on lines of their own.
pub fn print_each<'a>(
    template: &str,
    values: impl Iterator<Item = &'a Value>,
    context: &Context,
) -> Result<()> {
    let lines = rendered(&unescaped(template), values, context)?;
    print(&lines, context)
}

/// Prints what a template made: exactly, unless stdout is a terminal. Scripts read it.
fn print(lines: &[String], context: &Context) -> Result<()> {
    context.ui.content(lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}

/// Returns the headings of a table template: the field name of each column, split into words.
fn headings_of(template: &str) -> Vec<String> {
    template
        .split('\t')
        .map(|column| {
            let field = column
                .split('.')
                .nth(1)
                .unwrap_or(column)
                .split(|c: char| !c.is_ascii_alphanumeric())
                .next()
                .unwrap_or_default();
            let mut heading = String::new();
            let mut before = None;
            for c in field.chars() {
                if c.is_ascii_uppercase() && before.is_some_and(|b: char| b.is_ascii_lowercase()) {
                    heading.push(' ');
                }
                heading.push(c.to_ascii_uppercase());
                before = Some(c);
            }
            heading
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_come_from_the_fields() {
        assert_eq!(
            headings_of("{{.ID}}\t{{.CreatedAt}}\t{{upper .Name}}"),
            ["ID", "CREATED AT", "NAME"]
        );
    }
}
