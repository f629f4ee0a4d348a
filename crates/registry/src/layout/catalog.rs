//! Lists repositories and tags page by page; memory use is limited by the page.

use crate::layout::{Layout, names, paths};
use imgctl_base::error::Result;

impl Layout {
    /// Returns up to `limit` repositories with manifests that follow `after`, in order. Names are
    /// compared component by component.
    pub fn repositories(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let mut pending = self.below("")?;
        while let Some(name) = pending.pop() {
            if found.len() >= limit {
                break;
            }
            if after.is_some_and(|after| is_before(&name, after)) {
                continue;
            }
            let is_new = after.is_none_or(|after| name.split('/').gt(after.split('/')));
            let manifests = format!("{}/_manifests", paths::repository(&name));
            if is_new && self.tree.metadata(&manifests)?.is_some() {
                found.push(name.clone());
            }
            pending.extend(self.below(&name)?);
        }
        Ok(found)
    }

    /// Calls `each` for every possible repository name, in order.
    pub(super) fn each_repository(&self, each: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        let mut pending = self.below("")?;
        while let Some(name) = pending.pop() {
            each(&name)?;
            pending.extend(self.below(&name)?);
        }
        Ok(())
    }

    /// Returns the names that are one component longer than `name`, in reverse order.
    fn below(&self, name: &str) -> Result<Vec<String>> {
        let mut directory = paths::repository(name);
        directory.truncate(directory.trim_end_matches('/').len());
        let children = self.tree.directories(&directory)?;
        Ok(children
            .into_iter()
            .rev()
            .map(|child| match name {
                "" => child,
                name => format!("{name}/{child}"),
            })
            .filter(|name| names::is_repository(name))
            .collect())
    }

    /// Returns up to `limit` tags of a repository after `after`, in byte order; `None` if the
    /// repository does not exist.
    pub fn tags(
        &self,
        repository: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Option<Vec<String>>> {
        let directory = paths::repository(names::repository(repository)?);
        let mut tags = Vec::new();
        for tag in self.tree.directories(&format!("{directory}/_manifests/tags"))? {
            if tags.len() >= limit {
                break;
            }
            let is_after = after.is_none_or(|after| tag.as_str() > after);
            // A tag exists once its link exists.
            if is_after
                && names::is_tag(&tag)
                && self.tree.metadata(&paths::tag_link(repository, &tag))?.is_some()
            {
                tags.push(tag);
            }
        }
        if tags.is_empty() && !self.is_repository(&directory)? {
            return Ok(None);
        }
        Ok(Some(tags))
    }

    fn is_repository(&self, directory: &str) -> Result<bool> {
        for inner in ["_manifests", "_layers"] {
            if self.tree.metadata(&format!("{directory}/{inner}"))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns whether `name` and everything below it precede `after` in the walk.
fn is_before(name: &str, after: &str) -> bool {
    let is_parent =
        after.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    !is_parent && name.split('/').lt(after.split('/'))
}
