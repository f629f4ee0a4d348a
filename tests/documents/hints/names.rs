//! Constants, functions and what takes a message together with a hint, of one file or of all.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprClosure, FnArg, ImplItemFn, ItemFn, Pat};

/// Names of what is said beside a hint.
pub(super) const MESSAGES: [&str; 4] = ["what", "message", "reason", "complaint"];

/// Where functions take what: the index of the message, if they do, and of the hint.
pub(super) type Takers = BTreeMap<String, (Option<usize>, usize)>;

/// Constants, functions and takers of hints, of one file or of all.
#[derive(Default)]
pub(super) struct Names {
    pub(super) constants: BTreeMap<String, Expr>,
    pub(super) functions: BTreeMap<String, Block>,
    pub(super) takers: Takers,
    of_type: String,
}

impl Names {
    fn function(&mut self, signature: &syn::Signature, block: &Block) {
        let name = signature.ident.to_string();
        let names: Vec<String> = signature
            .inputs
            .iter()
            .filter_map(|input| match input {
                FnArg::Typed(typed) => Some(name_of(&typed.pat).unwrap_or_default()),
                FnArg::Receiver(_) => None,
            })
            .collect();
        if let Some(taker) = taker(&names) {
            let name = if name == "new" { format!("{}::new", self.of_type) } else { name.clone() };
            self.takers.insert(name, taker);
        }
        self.functions.insert(name, block.clone());
    }
}

impl<'a> Visit<'a> for Names {
    fn visit_item_const(&mut self, item: &'a syn::ItemConst) {
        self.constants.insert(item.ident.to_string(), (*item.expr).clone());
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if let syn::Type::Path(path) = &*item.self_ty {
            self.of_type = path.path.segments.last().unwrap().ident.to_string();
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_local(&mut self, local: &'a syn::Local) {
        if let (Some(name), Some(init)) = (name_of(&local.pat), &local.init)
            && let Expr::Closure(closure) = &*init.expr
            && let Some(taker) = taker(&parameters(closure))
        {
            self.takers.insert(name, taker);
        }
        visit::visit_local(self, local);
    }
}

fn taker(names: &[String]) -> Option<(Option<usize>, usize)> {
    // The method `hint` itself, and what only passes a hint on, have no message.
    let hint = names.iter().position(|name| name == "hint")?;
    let message = names.iter().position(|name| MESSAGES.contains(&name.as_str()));
    (names.len() > 1).then_some((message, hint))
}

pub(super) fn parameters(closure: &ExprClosure) -> Vec<String> {
    closure.inputs.iter().map(|input| name_of(input).unwrap_or_default()).collect()
}

pub(super) fn name_of(pattern: &Pat) -> Option<String> {
    match pattern {
        Pat::Ident(ident) => Some(ident.ident.to_string()),
        Pat::Type(typed) => name_of(&typed.pat),
        _ => None,
    }
}

pub(super) fn inputs(signature: &syn::Signature) -> Vec<String> {
    let typed = signature.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(typed) => name_of(&typed.pat),
        FnArg::Receiver(_) => None,
    });
    typed.collect()
}
