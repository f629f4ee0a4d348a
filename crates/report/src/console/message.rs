//! A page with one message: an error, or how to get in.

use maud::html;

use crate::model::About;
use crate::page::{Frame, Place, Rendered, Section};
use crate::text::lines;

/// Maximum number of characters of a line.
const LONGEST_LINE: usize = 2000;

/// What went wrong.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    pub title: &'a str,
    pub text: &'a str,
    pub hints: Vec<String>,
}

impl Message<'_> {
    /// Makes the page; without `base`, it leads nowhere, because who reads it may not go there.
    pub fn page(&self, about: &About, base: Option<&str>) -> Rendered {
        let body = html! {
            pre.says { (lines(self.text, LONGEST_LINE)) }
            @for hint in &self.hints { p { bdi { (lines(hint, LONGEST_LINE)) } } }
        };
        let sections = vec![Section::new("message", self.title, None, body)];
        let page = super::plain(about, "Console", self.title, Vec::new(), sections);
        page.render_in(&Frame::new(base.unwrap_or_default(), Place::Nowhere, Vec::new()))
    }
}
