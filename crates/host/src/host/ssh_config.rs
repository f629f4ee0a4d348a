//! Reads ssh_config(5).
//!
//! Reads the supported settings and ignores the others, as OpenSSH does with unknown ones; the
//! first value of a setting applies. `Match` supports `all`, `host`, `originalhost`, `user` and
//! `localuser`; a block with any other condition never applies. Must not depend on connections.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::pattern;
use imgctl_base::error::{Error, IoContext, Result};
use imgctl_base::fs::directory::list;

/// Maximum include depth, as in OpenSSH.
const DEEPEST: usize = 16;
const LARGEST_FILE: u64 = 4 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostConfig {
    pub(super) host_name: Option<String>,
    pub(super) user: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) identity_files: Vec<PathBuf>,
    pub(super) identities_only: Option<bool>,
    /// `none` is `Some("none")`.
    pub(super) proxy_jump: Option<String>,
    pub(super) known_hosts: Option<Vec<PathBuf>>,
    /// Whether to refuse unknown hosts.
    pub(super) strict: Option<bool>,
    pub(super) host_key_alias: Option<String>,
    pub(super) host_key_algorithms: Option<String>,
    pub(super) login_key_algorithms: Option<String>,
    pub(super) connect_timeout: Option<Duration>,
    /// Zero turns keepalive messages off.
    pub(super) alive_interval: Option<Duration>,
    pub(super) alive_count: Option<usize>,
    pub(super) identity_agent: Option<String>,
}

enum Item {
    Setting(String, Vec<String>),
    Host(Vec<String>),
    Match(Vec<String>),
    Include(Vec<Vec<Item>>),
}

/// Parsed ssh_config files.
#[derive(Default)]
pub(super) struct Config {
    files: Vec<Vec<Item>>,
}

/// The local user who runs the lookup.
pub(super) struct Asker<'a> {
    pub(super) home: Option<&'a Path>,
    pub(super) local_user: Option<&'a str>,
}

impl Config {
    /// Reads the files in order; a missing one counts as empty.
    pub(super) fn read(files: &[PathBuf], home: Option<&Path>) -> Result<Self> {
        let mut read = Vec::new();
        for file in files {
            read.push(read_file(file, home, 0)?);
        }
        Ok(Self { files: read })
    }

    /// Returns the settings for the host that the user called `name`, with the given user name, if
    /// any.
    pub(super) fn lookup(&self, name: &str, user: Option<&str>, asker: &Asker<'_>) -> HostConfig {
        let mut question = Question { name, user, asker, found: HostConfig::default() };
        for file in &self.files {
            question.apply(file, true);
        }
        question.finish()
    }
}

struct Question<'a> {
    name: &'a str,
    user: Option<&'a str>,
    asker: &'a Asker<'a>,
    found: HostConfig,
}

impl Question<'_> {
    /// Applies the items of one file. `outer` is whether the enclosing block applies.
    fn apply(&mut self, items: &[Item], outer: bool) {
        let mut active = outer;
        for item in items {
            match item {
                Item::Host(patterns) => {
                    let patterns = patterns.iter().map(String::as_str);
                    active = outer && pattern::matches_list(patterns, self.name);
                }
                Item::Match(conditions) => active = outer && self.matches(conditions),
                Item::Include(files) if active => {
                    for file in files {
                        self.apply(file, true);
                    }
                }
                Item::Setting(key, values) if active => self.set(key, values),
                Item::Include(_) | Item::Setting(..) => {}
            }
        }
    }

    fn matches(&self, conditions: &[String]) -> bool {
        let mut conditions = conditions.iter();
        while let Some(condition) = conditions.next() {
            let (negated, kind) = match condition.strip_prefix('!') {
                Some(kind) => (true, kind),
                None => (false, condition.as_str()),
            };
            let subject = match kind.to_ascii_lowercase().as_str() {
                "all" => continue,
                "host" => Some(self.found.host_name.as_deref().unwrap_or(self.name)),
                "originalhost" => Some(self.name),
                "user" => self.user.or(self.found.user.as_deref()),
                "localuser" => self.asker.local_user,
                _ => return false,
            };
            let (Some(subject), Some(patterns)) = (subject, conditions.next()) else {
                return false;
            };
            if pattern::matches_list(patterns.split(','), subject) == negated {
                return false;
            }
        }
        true
    }

    fn set(&mut self, key: &str, values: &[String]) {
        let Some(first) = values.first() else {
            return;
        };
        let found = &mut self.found;
        let yes = matches!(first.to_ascii_lowercase().as_str(), "yes" | "true" | "on");
        match key {
            "hostname" => set_once(&mut found.host_name, first.clone()),
            "user" => set_once(&mut found.user, first.clone()),
            "port" => {
                if let Ok(port) = first.parse() {
                    set_once(&mut found.port, port);
                }
            }
            // Values of this setting accumulate.
            "identityfile" => found.identity_files.push(PathBuf::from(first)),
            "identitiesonly" => set_once(&mut found.identities_only, yes),
            "identityagent" => set_once(&mut found.identity_agent, first.clone()),
            "proxyjump" => set_once(&mut found.proxy_jump, first.clone()),
            "userknownhostsfile" => {
                let files = values.iter().map(PathBuf::from).collect();
                set_once(&mut found.known_hosts, files);
            }
            "stricthostkeychecking" => set_once(&mut found.strict, yes),
            "hostkeyalgorithms" => set_once(&mut found.host_key_algorithms, first.clone()),
            // The second name is that of OpenSSH before 8.5.
            "pubkeyacceptedalgorithms" | "pubkeyacceptedkeytypes" => {
                set_once(&mut found.login_key_algorithms, first.clone());
            }
            "hostkeyalias" => set_once(&mut found.host_key_alias, first.clone()),
            "connecttimeout" => {
                if let Ok(seconds) = first.parse::<u64>()
                    && seconds > 0
                {
                    set_once(&mut found.connect_timeout, Duration::from_secs(seconds));
                }
            }
            "serveraliveinterval" => {
                if let Ok(seconds) = first.parse() {
                    set_once(&mut found.alive_interval, Duration::from_secs(seconds));
                }
            }
            "serveralivecountmax" => {
                if let Ok(count) = first.parse() {
                    set_once(&mut found.alive_count, count);
                }
            }
            _ => {}
        }
    }

    /// Expands `%` tokens and `~` once all settings are known.
    fn finish(mut self) -> HostConfig {
        let host = match self.found.host_name.take() {
            Some(name) => name.replace("%h", self.name).replace("%%", "%"),
            None => self.name.to_owned(),
        };
        let user = self.user.or(self.found.user.as_deref()).unwrap_or("root");
        let port = self.found.port.unwrap_or(22).to_string();
        let home = self.asker.home.map(|home| home.display().to_string());
        let expand = |text: &str| {
            let mut expanded = String::new();
            let mut characters = text.chars();
            while let Some(character) = characters.next() {
                if character != '%' {
                    expanded.push(character);
                    continue;
                }
                match characters.next() {
                    Some('h') => expanded.push_str(&host),
                    Some('n') => expanded.push_str(self.name),
                    Some('p') => expanded.push_str(&port),
                    Some('r') => expanded.push_str(user),
                    Some('u') => expanded.push_str(self.asker.local_user.unwrap_or_default()),
                    Some('d') => expanded.push_str(home.as_deref().unwrap_or_default()),
                    Some('%') => expanded.push('%'),
                    Some(other) => expanded.extend(['%', other]),
                    None => expanded.push('%'),
                }
            }
            match (expanded.strip_prefix("~/"), &home) {
                (Some(below), Some(home)) => format!("{home}/{below}"),
                _ => expanded,
            }
        };
        let path = |path: &PathBuf| PathBuf::from(expand(&path.to_string_lossy()));
        let identity_files = self.found.identity_files.iter().map(path).collect();
        let known_hosts = self.found.known_hosts.as_ref();
        let known_hosts = known_hosts.map(|files| files.iter().map(path).collect());
        let identity_agent = self.found.identity_agent.as_deref().map(expand);
        let proxy_jump = self.found.proxy_jump.as_deref().map(expand);
        HostConfig {
            identity_files,
            known_hosts,
            identity_agent,
            proxy_jump,
            host_name: Some(host),
            ..self.found
        }
    }
}

fn set_once<T>(slot: &mut Option<T>, value: T) {
    slot.get_or_insert(value);
}

fn read_file(path: &Path, home: Option<&Path>, depth: usize) -> Result<Vec<Item>> {
    if depth > DEEPEST {
        return Err(Error::usage(format!(
            "{} is included too deeply: does a file include itself?",
            path.display()
        )));
    }
    let text = match std::fs::metadata(path) {
        Ok(data) if data.len() > LARGEST_FILE => {
            return Err(Error::usage(format!(
                "{} is too large to be an SSH configuration",
                path.display()
            )));
        }
        Ok(_) => std::fs::read(path).path("read", path)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(format!("cannot read {}", path.display()), error)),
    };
    let text = String::from_utf8_lossy(&text);
    let mut items = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some((key, values)) = split_line(line)
            .map_err(|why| Error::usage(format!("{}:{}: {why}", path.display(), number + 1)))?
        else {
            continue;
        };
        items.push(match key.as_str() {
            "host" => Item::Host(values),
            "match" => Item::Match(values),
            "include" => {
                let mut files = Vec::new();
                for value in &values {
                    for file in included(value, path, home)? {
                        files.push(read_file(&file, home, depth + 1)?);
                    }
                }
                Item::Include(files)
            }
            _ => Item::Setting(key, values),
        });
    }
    Ok(items)
}

/// Returns the files that an `Include` names: `~`, paths relative to the directory of the file, and
/// `*` and `?` in the last path component.
fn included(value: &str, path: &Path, home: Option<&Path>) -> Result<Vec<PathBuf>> {
    let value = match (value.strip_prefix("~/"), home) {
        (Some(below), Some(home)) => home.join(below),
        _ => path.parent().unwrap_or(Path::new("/")).join(value),
    };
    let name = value.file_name().unwrap_or_default().to_string_lossy();
    if !name.contains(['*', '?']) {
        return Ok(vec![value]);
    }
    let directory = value.parent().unwrap_or(Path::new("/"));
    let mut found = list(directory).unwrap_or_default();
    found.retain(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        !file.starts_with('.') && pattern::matches(&name, &file)
    });
    Ok(found)
}

/// Returns the keyword in lower case and the arguments. Supports `Key value`, `Key=value` and
/// quotes; `#` at the beginning of a word ends the line.
fn split_line(line: &str) -> std::result::Result<Option<(String, Vec<String>)>, &'static str> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let end = line.find(|c: char| c.is_ascii_whitespace() || c == '=').unwrap_or(line.len());
    let (key, rest) = line.split_at(end);
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest);
    let mut values = Vec::new();
    let mut characters = rest.trim().chars().peekable();
    while let Some(first) = characters.peek().copied() {
        match first {
            // Carriage returns and form feeds too, at which a value ends: otherwise this would never end.
            space if space.is_ascii_whitespace() => {
                characters.next();
            }
            '#' => break,
            '"' => {
                characters.next();
                let mut value = String::new();
                loop {
                    match characters.next() {
                        Some('"') => break,
                        Some(character) => value.push(character),
                        None => return Err("a quotation mark is not closed"),
                    }
                }
                values.push(value);
            }
            _ => {
                let mut value = String::new();
                while let Some(character) = characters.next_if(|c| !c.is_ascii_whitespace()) {
                    value.push(character);
                }
                values.push(value);
            }
        }
    }
    Ok(Some((key.to_ascii_lowercase(), values)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> (tempfile::TempDir, Config) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        std::fs::write(&file, text).unwrap();
        let config = Config::read(&[file], Some(Path::new("/home/me"))).unwrap();
        (directory, config)
    }

    fn lookup(config: &Config, name: &str, user: Option<&str>) -> HostConfig {
        let asker = Asker { home: Some(Path::new("/home/me")), local_user: Some("me") };
        config.lookup(name, user, &asker)
    }

    #[test]
    fn the_first_value_counts_and_blocks_hold_for_their_hosts() {
        let (_kept, config) = config(
            "# all\nUser = first\nhost a* !ab\n\tport 2222\n  identityfile ~/%h-%r-%u-%%\n  IdentityFile=/second # why\n\
             Host *\n port 33\nUser second\nUserKnownHostsFile ~/k1 \"/k 2\"\nStrictHostKeyChecking accept-new\nIdentitiesOnly yes\nConnectTimeout 7\nServerAliveInterval 2\nServerAliveCountMax 3\nFancyNewThing 1\n",
        );
        let found = lookup(&config, "ax", None);
        assert_eq!(found.user.as_deref(), Some("first"));
        assert_eq!(found.port, Some(2222));
        let files = ["/home/me/ax-first-me-%", "/second"].map(PathBuf::from);
        assert_eq!(found.identity_files, files);
        let known = ["/home/me/k1", "/k 2"].map(PathBuf::from).to_vec();
        assert_eq!(found.known_hosts, Some(known));
        assert_eq!((found.strict, found.identities_only), (Some(false), Some(true)));
        assert_eq!(found.connect_timeout, Some(Duration::from_secs(7)));
        assert_eq!(found.alive_interval, Some(Duration::from_secs(2)));
        assert_eq!(found.alive_count, Some(3));
        assert_eq!(lookup(&config, "ab", None).port, Some(33));
    }

    #[test]
    fn match_knows_hosts_and_users_and_never_runs_anything() {
        let (kept, config) = config(
            "Host x\nHostName real.example\nMatch host *.example user root\nPort 1\nMatch originalhost x\nProxyJump j\n\
             Match exec \"touch ran\"\nPort 9\nMatch all\nPort 2\n",
        );
        let found = lookup(&config, "x", Some("root"));
        assert_eq!((found.port, found.proxy_jump.as_deref()), (Some(1), Some("j")));
        assert_eq!(found.host_name.as_deref(), Some("real.example"));
        assert_eq!(lookup(&config, "x", Some("you")).port, Some(2));
        assert!(!kept.path().join("ran").exists());
    }

    #[test]
    fn a_circle_of_includes_and_open_quotes_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        for text in ["Include config\n", "User \"x\n"] {
            std::fs::write(&file, text).unwrap();
            assert!(Config::read(std::slice::from_ref(&file), None).is_err(), "{text}");
        }
        std::fs::write(&file, "Include absent a*b\nUser x").unwrap();
        assert!(Config::read(&[file], None).is_ok());
    }

    #[test]
    fn every_space_separates_values() {
        let read = split_line("Host a\rb\x0cc\td").unwrap().unwrap();
        assert_eq!(read, ("host".to_owned(), ["a", "b", "c", "d"].map(String::from).to_vec()));
    }

    /// Pieces of files instead of bytes: so that random text has settings. None of them includes a file.
    #[test]
    fn any_text_is_a_configuration_or_refused() {
        const PIECES: [&str; 24] = [
            "\n",
            " ",
            "=",
            "\"",
            "#",
            "Host",
            "Match",
            "all",
            "*",
            "?",
            "!",
            "h",
            "user",
            "exec",
            "HostName",
            "%h",
            "%%",
            "Port",
            "22",
            "ProxyJump",
            "a@b:1,c",
            "IdentityFile",
            "~/k",
            "ConnectTimeout",
        ];
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        bolero::check!().for_each(|input: &[u8]| {
            let text: String =
                input.iter().map(|&b| PIECES[usize::from(b) % PIECES.len()]).collect();
            std::fs::write(&file, text).unwrap();
            if let Ok(config) = Config::read(std::slice::from_ref(&file), Some(directory.path())) {
                let found = lookup(&config, "h", Some("u"));
                assert_eq!(lookup(&config, "h", Some("u")), found);
                if let Some(jumps) = found.proxy_jump {
                    let _ = crate::host::ssh::parse_jump(&jumps);
                }
            }
            let line = String::from_utf8_lossy(input);
            if let Ok(Some((key, _))) = split_line(&line) {
                assert!(!key.contains(|c: char| c.is_ascii_whitespace()));
            }
        });
    }
}
