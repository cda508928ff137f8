//! What can be wrong with a configuration.

use std::path::PathBuf;

use thiserror::Error;

/// What is wrong with the configuration, and what to do.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// Without the line itself: it may hold a password.
    #[error("{origin} is not TOML: line {line}: {problem}")]
    Syntax {
        origin: String,
        line: usize,
        problem: String,
    },
    /// Without the line itself, for the same reason.
    #[error("{origin} is not YAML that can be read: {problem}")]
    Yaml { origin: String, problem: String },
    #[error("{origin}: unknown setting {key}; allowed: {known}")]
    Unknown {
        origin: String,
        key: String,
        known: String,
    },
    #[error("{origin}: {key} is a table of settings, not a value")]
    NotATable { origin: String, key: String },
    #[error("{origin}: {key} must be of type {wanted}{given}")]
    Type {
        origin: String,
        key: String,
        wanted: &'static str,
        /// ", not" and the value, where that cannot be secret.
        given: String,
    },
    #[error("environment variable {0} is not UTF-8")]
    NotText(String),
    #[error("{0}: {1}")]
    EnvValue(String, String),
    #[error("configuration: {0}")]
    Value(String),
    /// A value that the file or variable sets.
    #[error("{origin}: {problem}")]
    Setting { origin: String, problem: String },
    #[error("{}", list(.0))]
    Several(Vec<ConfigError>),
    #[error(
        "{variable}: {setting} is read from the configuration file only, so that nobody can \
         change what this node signs by setting variables; set it there, and unset the variable"
    )]
    FileOnly { variable: String, setting: String },
    #[error("{0:#}")]
    Untrusted(anyhow::Error),
    #[error(
        "this signer node would be open to a hostile orchestrator: {0}. Set what is missing in its \
         configuration file (deploy/signer-1.toml is a sample), or signer.development = true where \
         nothing is at stake"
    )]
    Insecure(String),
    #[error("{0:?} is not an EVM chain id: use a number of 1 or more")]
    ChainId(String),
    #[error("{given:?} is not a chain: use an EVM chain id (a number) or one of {named}")]
    Chain { given: String, named: String },
}

fn list(problems: &[ConfigError]) -> String {
    let sentences = problems.iter().map(ToString::to_string);
    sentences.collect::<Vec<_>>().join("; ")
}

impl ConfigError {
    /// One of these; all of them where there are several.
    pub(super) fn of(mut problems: Vec<Self>) -> Result<(), Self> {
        match (problems.len(), problems.pop()) {
            (_, None) => Ok(()),
            (1, Some(problem)) => Err(problem),
            (_, Some(last)) => {
                problems.push(last);
                Err(Self::Several(problems))
            }
        }
    }

    /// Each of them alone.
    pub fn each(&self) -> &[Self] {
        match self {
            Self::Several(problems) => problems,
            _ => std::slice::from_ref(self),
        }
    }
}
