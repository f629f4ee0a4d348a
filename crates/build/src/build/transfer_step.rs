//! COPY and ADD in a stage: expands words, reads flags, finds sources and makes layers.

use crate::build::archive;
use crate::build::chmod::Chmod;
use crate::build::copy::{Destination, Flags, Gathered, inline_file};
use crate::build::download;
use crate::build::run::passwd;
use crate::build::stage::Stage;
use imgctl_base::error::{Error, Result};
use imgctl_kubefile::ast::{Source, Transfer, TransferFlags};
use imgctl_kubefile::diagnostic::{self, Diagnostic};
use imgctl_kubefile::expand;
use imgctl_kubefile::ignore::IgnoreRules;
use imgctl_store::layer::tree::Tree;

impl Stage<'_> {
    /// Executes COPY (or ADD, with `is_add`).
    pub(super) fn transfer(&mut self, transfer: &Transfer, is_add: bool, text: &str) -> Result<()> {
        let flags = self.flags(&transfer.flags)?;
        let dest = self.scope.word(&transfer.dest)?;
        let workdir = self.workdir();
        // A linked copy does not depend on the layers below it (COPY --link).
        let empty = Tree::new();
        if !flags.link {
            self.tree()?;
        }
        let tree = if flags.link { &empty } else { self.tree_made().unwrap_or(&empty) };
        let destination = Destination::new(tree, &workdir, &dest, flags.link)?;
        let mut gathered = Gathered::new(destination, flags);
        let mut words = Vec::new();
        for source in &transfer.sources {
            match source {
                Source::Heredoc(heredoc) => {
                    let body = if heredoc.expand {
                        let lookup = |name: &str| self.scope.get(name);
                        expand::expand_heredoc(&heredoc.body, &lookup).map_err(|error| {
                            Error::usage("cannot expand the heredoc").caused_by(error)
                        })?
                    } else {
                        heredoc.body.clone()
                    };
                    gathered.add_file(heredoc.name.as_bytes(), inline_file(body.into_bytes()))?;
                }
                Source::Path(raw) => {
                    let word = self.scope.word(raw)?;
                    if word.is_empty() {
                        // BuildKit and buildah copy everything here, which users do not expect.
                        self.shared.reporter.note(&format!(
                            "the source `{raw}` expands to an empty string, which would copy \
                             everything"
                        ));
                    }
                    words.push(word);
                }
            }
        }
        if is_add {
            self.gather_added(&mut gathered, &words, &transfer.flags)?;
        } else {
            match &transfer.flags.from {
                Some(name) => {
                    gathered.add_sources(self.source(name)?.as_ref(), &words, &mut |_| Ok(None))?;
                }
                None => gathered.add_sources(self.shared.context()?, &words, &mut |_| Ok(None))?,
            }
        }
        let items = gathered.finish()?;
        self.add_items(items, text)
    }

    /// ADD: downloads URLs and extracts archives of the context.
    fn gather_added(
        &self,
        gathered: &mut Gathered<'_>,
        words: &[String],
        flags: &TransferFlags,
    ) -> Result<()> {
        let shared = self.shared;
        let mut local = Vec::new();
        for word in words {
            let checksum = match &flags.checksum {
                Some(raw) => Some(self.scope.word(raw)?.parse()?),
                None => None,
            };
            if download::is_git(word) {
                let items =
                    download::git(shared.store, word, flags.keep_git_dir, checksum.as_ref())?;
                gathered.add_archive(items)?;
            } else if download::is_url(word) {
                let (name, item, file) =
                    download::fetch(shared.store, word, checksum.as_ref(), shared.reporter)?;
                match flags.unpack {
                    Some(true) => match archive::read(shared.store, file, word)? {
                        Some(items) => gathered.add_archive(items)?,
                        None => gathered.add_file(name.as_bytes(), item)?,
                    },
                    _ => gathered.add_file(name.as_bytes(), item)?,
                }
            } else if flags.checksum.is_some() {
                return Err(Error::usage("--checksum is for URLs and git repositories only"));
            } else {
                local.push(word.clone());
            }
        }
        if local.is_empty() {
            return Ok(());
        }
        let context = shared.context()?;
        let mut unpack = |path: &imgctl_store::layer::LayerPath| {
            if flags.unpack == Some(false) {
                return Ok(None);
            }
            let file = context.open(path)?;
            archive::read(shared.store, file, &path.to_string())
        };
        gathered.add_sources(context, &local, &mut unpack)
    }

    fn flags(&mut self, raw: &TransferFlags) -> Result<Flags> {
        let chmod = match &raw.chmod {
            Some(raw) => Some(Chmod::parse(&self.scope.word(raw)?)?),
            None => None,
        };
        let mut exclude = String::new();
        for pattern in &raw.exclude {
            exclude.push_str(&self.scope.word(pattern)?);
            exclude.push('\n');
        }
        let exclude = if exclude.is_empty() {
            None
        } else {
            let wrong = |found: Vec<Diagnostic>| {
                diagnostic::into_error(&found, "--exclude", exclude.as_bytes())
            };
            Some(IgnoreRules::parse(exclude.as_bytes()).map_err(wrong)?)
        };
        let owner = match &raw.chown {
            Some(raw) => Some(self.owner(&raw.clone())?),
            None => None,
        };
        Ok(Flags { owner, chmod, link: raw.link, parents: raw.parents, exclude })
    }

    fn owner(&mut self, raw: &str) -> Result<(u32, u32)> {
        let owner = self.scope.word(raw)?;
        let (passwd, group) = self.accounts_for(&owner)?;
        passwd::resolve_owner(owner.as_bytes(), &passwd, &group)
    }
}
