//! What the files define, not evaluated yet: variables, functions, groups and targets, from HCL and from its
//! form in JSON. Must not know what the attributes of a target mean.

use std::collections::BTreeMap;
use std::str::FromStr;

use hcl::expr::{Expression, ObjectKey, TemplateExpr};
use hcl::structure::{Block, Body, Structure};
use serde_json::Value;

use imgctl_base::error::{Error, Result};

/// Maximum size of a file, in bytes.
const LONGEST: usize = 4 << 20;

/// A bake file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path, for messages.
    pub name: String,
    pub text: String,
    pub form: Form,
}

/// Language of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Hcl,
    Json,
    Compose,
}

impl Form {
    /// Returns the form that a file name says, or `None` if only the content can.
    pub fn of_name(name: &str) -> Option<Self> {
        let (_, extension) = name.rsplit_once('.')?;
        match extension.to_ascii_lowercase().as_str() {
            "hcl" => Some(Self::Hcl),
            "json" => Some(Self::Json),
            "yml" | "yaml" => Some(Self::Compose),
            _ => None,
        }
    }

    /// Returns the form of a file whose name says nothing.
    pub fn of_text(text: &str) -> Self {
        if text.trim_start().starts_with('{') {
            Self::Json
        } else if hcl::parse(text).is_ok() {
            Self::Hcl
        } else {
            Self::Compose
        }
    }
}

/// Attributes of a group or a target. A later definition of the same one follows.
pub(crate) type Attributes = BTreeMap<String, Expression>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Definition {
    pub(crate) name: String,
    /// File that defines it.
    pub(crate) file: String,
    pub(crate) attributes: Attributes,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct VariableDefinition {
    pub(crate) default: Option<Expression>,
    pub(crate) kind: Option<Expression>,
    pub(crate) description: Option<Expression>,
    /// Conditions and messages.
    pub(crate) validations: Vec<(Expression, Option<Expression>)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) parameters: Vec<String>,
    pub(crate) variadic: Option<String>,
    pub(crate) result: Expression,
}

/// Everything that all files define.
#[derive(Clone, Debug, Default)]
pub(crate) struct Definitions {
    pub(crate) variables: BTreeMap<String, VariableDefinition>,
    pub(crate) functions: BTreeMap<String, Function>,
    pub(crate) constants: Attributes,
    pub(crate) groups: Vec<Definition>,
    pub(crate) targets: Vec<Definition>,
}

impl Definitions {
    /// Adds what a file defines.
    pub(crate) fn read(&mut self, source: &Source) -> Result<()> {
        if source.text.len() > LONGEST {
            return Err(Error::usage(format!(
                "{} is larger than {} MiB",
                source.name,
                LONGEST >> 20
            )));
        }
        let malformed = |cause: String| {
            Error::usage(format!("{} is not a bake file", source.name)).caused_by(cause)
        };
        let body = match source.form {
            Form::Hcl => hcl::parse(&source.text).map_err(|error| malformed(error.to_string()))?,
            _ => {
                let value = serde_json::from_str(&source.text)
                    .map_err(|error| malformed(error.to_string()))?;
                body_of_json(value).map_err(malformed)?
            }
        };
        for structure in body {
            let added = match structure {
                Structure::Attribute(attribute) => {
                    self.constants.insert(attribute.key.to_string(), attribute.expr);
                    Ok(())
                }
                Structure::Block(block) => self.add(block, &source.name),
            };
            added.map_err(malformed)?;
        }
        Ok(())
    }

    fn add(&mut self, block: Block, file: &str) -> std::result::Result<(), String> {
        let kind = block.identifier.to_string();
        let [label] = &block.labels[..] else {
            return Err(format!("a block `{kind}` needs one name"));
        };
        let name = label.as_str().to_owned();
        let place = format!("{kind} `{name}`");
        let (attributes, blocks) = divided(block.body);
        let mut attributes = attributes;
        let mut take = |key: &str| attributes.remove(key);
        match kind.as_str() {
            "variable" => {
                let mut variable = VariableDefinition {
                    default: take("default"),
                    kind: take("type"),
                    description: take("description"),
                    validations: Vec::new(),
                };
                take("nullable");
                for block in blocks {
                    let (mut inner, _) = divided(block.body);
                    match (block.identifier.as_str(), inner.remove("condition")) {
                        ("validation", Some(condition)) => {
                            variable.validations.push((condition, inner.remove("error_message")));
                        }
                        (other, _) => {
                            return Err(format!("{place}: a block `{other}` makes no sense"));
                        }
                    }
                }
                only(&attributes, &place)?;
                let known = self.variables.entry(name).or_default();
                // A later file replaces what it says, and keeps the rest.
                known.default = variable.default.or(known.default.take());
                known.kind = variable.kind.or(known.kind.take());
                known.description = variable.description.or(known.description.take());
                known.validations.extend(variable.validations);
            }
            "function" => {
                let names = |expression: Option<Expression>| match expression {
                    None => Ok(Vec::new()),
                    Some(Expression::Array(items)) => items.iter().map(name_of).collect(),
                    Some(_) => Err(format!("{place}: params is a list of names")),
                };
                let parameters = names(take("params"))?;
                let variadic = take("variadic_params").as_ref().map(name_of).transpose()?;
                let result = take("result").ok_or_else(|| format!("{place} has no result"))?;
                only(&attributes, &place)?;
                self.functions.insert(name, Function { parameters, variadic, result });
            }
            "group" | "target" => {
                if let Some(block) = blocks.first() {
                    return Err(format!(
                        "{place}: a block `{}` makes no sense",
                        block.identifier()
                    ));
                }
                let definition = Definition { name, file: file.to_owned(), attributes };
                if kind == "group" { &mut self.groups } else { &mut self.targets }.push(definition);
            }
            _ => {
                return Err(format!(
                    "a block `{kind}` makes no sense: there are group, target, variable and function"
                ));
            }
        }
        Ok(())
    }
}

fn divided(body: Body) -> (Attributes, Vec<Block>) {
    let (mut attributes, mut blocks) = (Attributes::new(), Vec::new());
    for structure in body {
        match structure {
            Structure::Attribute(attribute) => {
                attributes.insert(attribute.key.to_string(), attribute.expr);
            }
            Structure::Block(block) => blocks.push(block),
        }
    }
    (attributes, blocks)
}

/// Refuses attributes that nobody has taken.
fn only(left: &Attributes, place: &str) -> std::result::Result<(), String> {
    match left.keys().next() {
        Some(key) => Err(format!("{place} has no attribute `{key}`")),
        None => Ok(()),
    }
}

fn name_of(expression: &Expression) -> std::result::Result<String, String> {
    match expression {
        Expression::Variable(name) => Ok(name.to_string()),
        Expression::String(name) => Ok(name.clone()),
        _ => Err("a parameter is a name".to_owned()),
    }
}

/// Returns the body that HCL's form in JSON describes: objects below the four words are blocks, and texts are
/// templates.
fn body_of_json(value: Value) -> std::result::Result<Body, String> {
    let Value::Object(members) = value else {
        return Err("it is not a JSON object".to_owned());
    };
    let mut body = Body::builder();
    for (key, value) in members {
        if !matches!(&*key, "variable" | "function" | "group" | "target") {
            body = body.add_attribute((identifier(&key)?, expression(value)?));
            continue;
        }
        for (name, value) in pairs(value).ok_or_else(|| format!("`{key}` is not an object"))? {
            // Several definitions of one name are a list.
            let bodies = match value {
                Value::Array(list) => list,
                one => vec![one],
            };
            for one in bodies {
                let members =
                    pairs(one).ok_or_else(|| format!("{key} `{name}` is not an object"))?;
                let mut block = Block::builder(key.as_str()).add_label(name.as_str());
                for (attribute, value) in members {
                    if key == "variable" && attribute == "validation" {
                        let list = match value {
                            Value::Array(list) => list,
                            one => vec![one],
                        };
                        for one in list {
                            let mut inner = Block::builder("validation");
                            for (name, value) in pairs(one).unwrap_or_default() {
                                inner =
                                    inner.add_attribute((identifier(&name)?, expression(value)?));
                            }
                            block = block.add_block(inner.build());
                        }
                        continue;
                    }
                    let is_bare = (&*key, &*attribute) == ("variable", "type")
                        || (key == "function" && attribute.ends_with("params"));
                    let value = match value {
                        Value::String(text) if is_bare => parsed(&text)?,
                        other => expression(other)?,
                    };
                    block = block.add_attribute((identifier(&attribute)?, value));
                }
                body = body.add_block(block.build());
            }
        }
    }
    Ok(body.build())
}

fn pairs(value: Value) -> Option<Vec<(String, Value)>> {
    match value {
        Value::Object(map) => Some(map.into_iter().collect()),
        Value::Array(list) => {
            list.into_iter().map(pairs).collect::<Option<Vec<_>>>().map(|all| all.concat())
        }
        _ => None,
    }
}

fn identifier(text: &str) -> std::result::Result<hcl::Identifier, String> {
    hcl::Identifier::new(text).map_err(|_| format!("`{text}` is not a name"))
}

fn parsed(text: &str) -> std::result::Result<Expression, String> {
    Expression::from_str(text).map_err(|error| format!("`{text}` is not an expression: {error}"))
}

fn expression(value: Value) -> std::result::Result<Expression, String> {
    Ok(match value {
        Value::Null => Expression::Null,
        Value::Bool(value) => Expression::Bool(value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Expression::from(whole),
            (None, Some(float)) => Expression::from(float),
            (None, None) => return Err(format!("{number} is no number")),
        },
        Value::String(text) if text.contains("${") || text.contains("%{") => {
            Expression::from(TemplateExpr::QuotedString(text))
        }
        Value::String(text) => Expression::String(text),
        Value::Array(list) => Expression::Array(
            list.into_iter().map(expression).collect::<std::result::Result<_, _>>()?,
        ),
        Value::Object(map) => {
            let mut object = hcl::expr::Object::new();
            for (key, value) in map {
                let key = ObjectKey::Expression(expression(Value::String(key))?);
                object.insert(key, expression(value)?);
            }
            Expression::Object(object)
        }
    })
}
