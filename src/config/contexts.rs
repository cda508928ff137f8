//! Contexts: the orchestrators that a person's commands call, by name.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::files;

/// Where contexts are written, by hand.
pub const CONTEXTS: &str = "contexts.toml";
/// The name of the one in use.
const CURRENT: &str = "context";

/// An orchestrator that commands call.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandContext {
    /// Its admin API: a URL, or `unix:/PATH`.
    pub addr: String,
    /// The file with an admin token, relative to contexts.toml.
    pub token_file: PathBuf,
    /// Whether a person has to type a name before what cannot be undone.
    #[serde(default)]
    pub confirm: bool,
}

/// The contexts of one person, and which one is in use.
#[derive(Debug, Default)]
pub struct Contexts {
    folder: PathBuf,
    /// All of them, by name.
    pub all: BTreeMap<String, CommandContext>,
    /// The name of the one in use.
    pub current: Option<String>,
}

impl Contexts {
    /// Those of the person who runs this process: none without a home folder.
    ///
    /// # Errors
    /// When they cannot be read, or others could have written them.
    pub fn of_this_person() -> anyhow::Result<Self> {
        match folder() {
            Some(folder) => Self::load(folder),
            None => Ok(Self::default()),
        }
    }

    fn load(folder: PathBuf) -> anyhow::Result<Self> {
        let path = folder.join(CONTEXTS);
        let shown = path.display();
        let mut all: BTreeMap<String, CommandContext> = match read(&path)? {
            Some(text) => toml::from_str(&text).with_context(|| {
                format!("{shown}: use addr, token_file and confirm below [NAME]")
            })?,
            None => BTreeMap::new(),
        };
        for context in all.values_mut() {
            context.token_file = folder.join(&context.token_file);
        }
        let current = read(&folder.join(CURRENT))?.map(|name| name.trim().to_owned());
        let current = current.filter(|name| !name.is_empty());
        Ok(Self {
            folder,
            all,
            current,
        })
    }

    /// The one in use.
    ///
    /// # Errors
    /// When it is not there any more.
    pub fn in_use(&self) -> anyhow::Result<Option<(&str, &CommandContext)>> {
        let Some(name) = &self.current else {
            return Ok(None);
        };
        let context = self.find(name)?;
        Ok(Some((name, context)))
    }

    /// Has commands use this one from now on, or none.
    ///
    /// # Errors
    /// When it is not there, or the choice cannot be written.
    pub fn choose(&self, name: Option<&str>) -> anyhow::Result<()> {
        if let Some(name) = name {
            self.find(name)?;
        }
        let line = name.map(|name| format!("{name}\n")).unwrap_or_default();
        files::write_private(&self.folder.join(CURRENT), line.as_bytes())
    }

    fn find(&self, name: &str) -> anyhow::Result<&CommandContext> {
        self.all.get(name).with_context(|| {
            let known: Vec<_> = self.all.keys().map(String::as_str).collect();
            format!(
                "there is no context {name:?} in {}; there are: {}",
                self.folder.join(CONTEXTS).display(),
                known.join(", ")
            )
        })
    }
}

/// A file that nobody else can have written: it says where a token is sent to.
fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match path.try_exists() {
        Ok(true) => files::read_trusted(path),
        Ok(false) | Err(_) => Ok(None),
    }
}

/// `~/.config/covault`, or what the XDG Base Directory Specification says instead.
fn folder() -> Option<PathBuf> {
    let absolute = |variable: &str| {
        let value = std::env::var_os(variable).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    Some(base?.join("covault"))
}

/// What a person has typed before something that cannot be undone is not what was asked for.
///
/// # Errors
/// When it is another name.
pub fn check_typed(typed: &str, name: &str) -> anyhow::Result<()> {
    ensure!(
        typed.trim() == name,
        "nothing was done: type {name:?} to go on, or give --yes"
    );
    Ok(())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn contexts__should_be_read_chosen_and_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let load = || Contexts::load(folder.path().to_owned());
        assert!(load().unwrap().in_use().unwrap().is_none());
        let text = "[prod]\naddr = \"https://10.20.0.21:8083\"\ntoken_file = \"anna.token\"\nconfirm = true\n\n\
                    [test]\naddr = \"unix:/run/covault.sock\"\ntoken_file = \"/etc/token\"\n";
        files::write_private(&folder.path().join(CONTEXTS), text.as_bytes()).unwrap();
        let contexts = load().unwrap();
        assert_eq!(
            contexts.all["prod"].token_file,
            folder.path().join("anna.token")
        );
        assert_eq!(contexts.all["test"].token_file, Path::new("/etc/token"));
        assert!(contexts.all["prod"].confirm && !contexts.all["test"].confirm);
        contexts.choose(Some("prod")).unwrap();
        let contexts = load().unwrap();
        assert_eq!(contexts.in_use().unwrap().unwrap().0, "prod");
        let problem = contexts.choose(Some("prd")).unwrap_err().to_string();
        assert!(problem.contains("there are: prod, test"), "{problem}");
        contexts.choose(None).unwrap();
        assert!(load().unwrap().in_use().unwrap().is_none());
        // One that is in use and gone is not another one.
        contexts.choose(Some("test")).unwrap();
        files::write_private(&folder.path().join(CONTEXTS), b"").unwrap();
        load().unwrap().in_use().unwrap_err();
        let typing_error = b"[prod]\nadr = \"x\"\ntoken_file = \"t\"\n";
        files::write_private(&folder.path().join(CONTEXTS), typing_error).unwrap();
        let problem = format!("{:#}", load().unwrap_err());
        assert!(problem.contains("adr"), "{problem}");
    }

    #[test]
    fn contexts__should_be_nobody_elses_to_write() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CONTEXTS);
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        Contexts::load(folder.path().to_owned()).unwrap_err();
    }

    #[test]
    fn typed_name__should_be_the_one_that_is_asked_for() {
        check_typed("main\n", "main").unwrap();
        for typed in ["", "y", "yes", "mai", "Main"] {
            check_typed(typed, "main").unwrap_err();
        }
    }
}
