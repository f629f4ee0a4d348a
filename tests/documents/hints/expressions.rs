//! What an expression may be: its branches, the elements of tuples, the name of what is called.

use syn::{Block, Expr, Lit, Stmt};

/// Methods that change nothing in a text.
pub(super) const SAME_TEXT: [&str; 8] =
    ["to_owned", "to_string", "into", "clone", "as_str", "into_owned", "trim_end", "as_ref"];

/// The last name of what is called; with its type for `new`.
pub(super) fn called(function: &Expr) -> String {
    let Expr::Path(path) = function else {
        return String::new();
    };
    let names: Vec<String> = path.path.segments.iter().map(|part| part.ident.to_string()).collect();
    match names.as_slice() {
        [.., of, name] if name == "new" => format!("{of}::new"),
        names => names.last().unwrap().clone(),
    }
}

pub(super) fn tail(block: &Block) -> Option<&Expr> {
    match block.stmts.last()? {
        Stmt::Expr(expression, _) => Some(expression),
        _ => None,
    }
}

/// The expressions that the value of another may be.
pub(super) fn inner(expression: &Expr) -> Vec<&Expr> {
    match expression {
        Expr::Reference(of) => vec![&of.expr],
        Expr::Paren(of) => vec![&of.expr],
        Expr::Group(of) => vec![&of.expr],
        Expr::Closure(of) => vec![&of.body],
        Expr::Return(of) => of.expr.iter().map(|expr| &**expr).collect(),
        Expr::Block(of) => tail(&of.block).into_iter().collect(),
        Expr::If(of) => {
            let mut both: Vec<&Expr> = tail(&of.then_branch).into_iter().collect();
            both.extend(of.else_branch.iter().map(|(_, other)| &**other));
            both
        }
        Expr::Match(of) => of.arms.iter().map(|arm| &*arm.body).collect(),
        _ => Vec::new(),
    }
}

/// Returns element `at` of each tuple that `expression` may evaluate to, as the arms of one `match`.
pub(super) fn place(expression: &Expr, at: usize) -> Option<Expr> {
    let mut values = Vec::new();
    let mut pending = vec![expression];
    while let Some(next) = pending.pop() {
        match next {
            Expr::Tuple(tuple) => values.extend(tuple.elems.iter().nth(at).cloned()),
            other => pending.extend(inner(other)),
        }
    }
    let arms = values.iter().map(quoted).collect::<Option<Vec<_>>>()?;
    let arms: String = arms.iter().map(|arm| format!("_ => {{ {arm} }}")).collect();
    syn::parse_str(&format!("match () {{ {arms} }}")).ok()
}

/// The source of a text or a `format!`.
fn quoted(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(format!("{:?}", text.value())),
            _ => None,
        },
        Expr::Macro(call) => Some(format!("format!({})", call.mac.tokens)),
        Expr::MethodCall(call) if SAME_TEXT.contains(&call.method.to_string().as_str()) => {
            quoted(&call.receiver)
        }
        _ => None,
    }
}
