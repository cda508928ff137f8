//! Where a signer node's passphrase comes from: a file, a credential of the service manager, or a
//! person at a terminal. Never an argument or a plain environment variable: other processes read
//! those.

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use secrecy::{ExposeSecret as _, SecretString};

use crate::{
    adapters::OsEntropy, api::auth::new_token, config::SignerSettings, files, wiring::WORK_FACTOR,
    wiring::WORK_FACTOR_RANDOM,
};

/// The credential of a systemd unit: `LoadCredential=covault-passphrase:/etc/covault/passphrase`.
pub const CREDENTIAL: &str = "covault-passphrase";
/// A passphrase has to stand against a thief of the disk who guesses for years.
const MIN_LENGTH: usize = 16;
const MIN_DISTINCT: usize = 6;
/// How often a person may mistype.
const TRIES: usize = 3;

/// A passphrase, and what scrypt needs to do for it when a keyring is made.
pub struct Passphrase {
    /// It.
    pub secret: SecretString,
    /// log2 N.
    pub work_factor: u8,
}

/// What is around: everything that decides where the passphrase comes from.
struct PassphraseSources<'a> {
    /// The configured file, or the one in the data folder.
    file: PathBuf,
    /// The operator has named it.
    named: bool,
    generate: bool,
    /// The folder of credentials.
    credentials: Option<PathBuf>,
    /// A keyring is there, which only the right passphrase opens.
    keyring: bool,
    /// A person who can be asked. Reads one line without echo.
    prompt_user: Option<PromptFn<'a>>,
}

type PromptFn<'a> = &'a mut dyn FnMut(&str) -> std::io::Result<SecretString>;

/// The passphrase of the node whose keyring is, or will be, `keyring`.
///
/// # Errors
/// When there is none, or one that is too weak for a new keyring; says what to do.
pub fn obtain(signer: &SignerSettings, keyring: &Path) -> anyhow::Result<Passphrase> {
    let mut person = |prompt: &str| rpassword::prompt_password(prompt).map(SecretString::from);
    find(PassphraseSources {
        file: signer.passphrase_file(),
        named: signer.names_passphrase_file(),
        generate: signer.generate_passphrase,
        credentials: crate::config::credentials::credentials_folder(),
        keyring: keyring.exists(),
        prompt_user: std::io::stdin()
            .is_terminal()
            .then_some(&mut person as PromptFn<'_>),
    })
}

fn find(sources: PassphraseSources<'_>) -> anyhow::Result<Passphrase> {
    let PassphraseSources {
        file,
        named,
        generate,
        credentials,
        keyring,
        prompt_user,
    } = sources;
    let credential = credentials
        .map(|folder| folder.join(CREDENTIAL))
        .filter(|path| !named && path.exists());
    let secret = if let Some(path) = credential {
        files::read_secret(&path)?
    } else if file.exists() {
        files::read_secret(&file)?
    } else if generate && !keyring {
        return generate_into(&file);
    } else if let (Some(prompt_user), false) = (prompt_user, named) {
        if keyring {
            prompt_user("Passphrase of this node: ").context("the passphrase could not be read")?
        } else {
            prompt_twice(prompt_user)?
        }
    } else if keyring {
        bail!(
            "the passphrase file {} is missing, and the node's shares need it: bring it back{}",
            file.display(),
            others(named)
        );
    } else {
        bail!(
            "the passphrase file {} is missing: write a long passphrase into it (mode 0600; for example: openssl rand -base64 24){}",
            file.display(),
            others(named)
        );
    };
    if !keyring {
        check_strength(&secret)?;
    }
    Ok(Passphrase {
        secret,
        work_factor: WORK_FACTOR,
    })
}

/// What else could be done, where the operator has not decided.
fn others(named: bool) -> &'static str {
    if named {
        ". To be asked for it instead, leave signer.passphrase_file empty and start in a terminal"
    } else {
        ", hand it over as the systemd credential covault-passphrase (LoadCredential=), or start in a terminal to be asked for it"
    }
}

fn generate_into(file: &Path) -> anyhow::Result<Passphrase> {
    if let Some(folder) = file.parent() {
        files::make_folder(folder)?;
    }
    let secret = files::secret_or_new(file, || new_token(&OsEntropy))?;
    tracing::info!(path = %file.display(), "generated a passphrase: keep a copy, the shares are lost without it");
    Ok(Passphrase {
        secret,
        work_factor: WORK_FACTOR_RANDOM,
    })
}

/// A new passphrase of a person, who may mistype.
fn prompt_twice(prompt_user: PromptFn<'_>) -> anyhow::Result<SecretString> {
    let mut problem = anyhow::anyhow!("no passphrase was given");
    for _ in 0..TRIES {
        let first = prompt_user("New passphrase of this node (it cannot be recovered): ")
            .context("the passphrase could not be read")?;
        if let Err(weak) = check_strength(&first) {
            eprintln!("{weak}");
            problem = weak;
            continue;
        }
        let second = prompt_user("Once more: ").context("the passphrase could not be read")?;
        if first.expose_secret() == second.expose_secret() {
            return Ok(first);
        }
        problem = anyhow::anyhow!("the two passphrases differ");
        eprintln!("{problem}");
    }
    Err(problem)
}

fn check_strength(secret: &SecretString) -> anyhow::Result<()> {
    let text = secret.expose_secret();
    let length = text.chars().count();
    if length < MIN_LENGTH {
        bail!(
            "the passphrase has {length} characters and needs {MIN_LENGTH} or more: take six random words, or what `openssl rand -base64 24` gives"
        );
    }
    let mut letters: Vec<char> = text.chars().collect();
    letters.sort_unstable();
    letters.dedup();
    let distinct = letters.len();
    zeroize::Zeroize::zeroize(&mut letters);
    if distinct < MIN_DISTINCT {
        bail!(
            "the passphrase repeats a few characters: take six random words, or what `openssl rand -base64 24` gives"
        );
    }
    Ok(())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use std::{collections::VecDeque, fs};

    use super::*;

    const GOOD: &str = "correct horse battery staple";

    struct Case {
        folder: tempfile::TempDir,
        named: bool,
        generate: bool,
        keyring: bool,
        /// What the person types; `None`: nobody is there.
        typed: Option<Vec<&'static str>>,
    }

    impl Case {
        fn new() -> Self {
            Self {
                folder: tempfile::tempdir().unwrap(),
                named: false,
                generate: false,
                keyring: false,
                typed: None,
            }
        }

        fn file(self, text: &str) -> Self {
            let file = self.folder.path().join("passphrase");
            files::write_private(&file, text.as_bytes()).unwrap();
            self
        }

        fn credential(self, text: &str) -> Self {
            let file = self.folder.path().join(CREDENTIAL);
            files::write_private(&file, text.as_bytes()).unwrap();
            self
        }

        fn typed(self, typed: &[&'static str]) -> Self {
            Self {
                typed: Some(typed.to_vec()),
                ..self
            }
        }

        /// The passphrase, or the sentence; and how often the person was asked.
        fn outcome(self) -> (Result<String, String>, usize) {
            let mut lines: VecDeque<&str> = self.typed.clone().unwrap_or_default().into();
            let mut asked = 0;
            let mut person = |_: &str| {
                asked += 1;
                lines
                    .pop_front()
                    .map(SecretString::from)
                    .ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
            };
            let found = find(PassphraseSources {
                file: self.folder.path().join("passphrase"),
                named: self.named,
                generate: self.generate,
                credentials: Some(self.folder.path().to_owned()),
                keyring: self.keyring,
                prompt_user: self.typed.is_some().then_some(&mut person as PromptFn<'_>),
            });
            let found = found
                .map(|found| found.secret.expose_secret().to_owned())
                .map_err(|error| format!("{error:#}"));
            (found, asked)
        }

        fn given(self) -> String {
            self.outcome().0.unwrap()
        }

        fn problem(self) -> String {
            self.outcome().0.unwrap_err()
        }
    }

    #[test]
    fn passphrase__should_come_from_file_credential_or_person_in_a_fixed_order() {
        let file = "a passphrase in a file\n";
        let credential = "a passphrase of systemd\n";
        assert_eq!(Case::new().file(file).given(), file.trim());
        let both = || Case::new().file(file).credential(credential);
        assert_eq!(both().given(), credential.trim());
        let named = Case {
            named: true,
            ..both()
        };
        assert_eq!(named.given(), file.trim());
        let (found, asked) = Case::new().typed(&[GOOD, GOOD]).outcome();
        assert_eq!((found.unwrap().as_str(), asked), (GOOD, 2));
        // An old keyring: one question, and what it says is not judged.
        let old = Case {
            keyring: true,
            ..Case::new().typed(&["short"])
        };
        let (found, asked) = old.outcome();
        assert_eq!((found.unwrap().as_str(), asked), ("short", 1));
    }

    #[test]
    fn passphrase__should_be_asked_for_again_when_mistyped_but_not_for_ever() {
        let typed = ["short", GOOD, "another one altogether", GOOD, GOOD];
        assert_eq!(Case::new().typed(&typed).given(), GOOD);
        let (found, asked) = Case::new().typed(&["a", "b", "c", GOOD, GOOD]).outcome();
        assert!(found.unwrap_err().contains("16 or more"));
        assert_eq!(asked, 3);
    }

    #[test]
    fn passphrase__should_be_strong_where_a_keyring_is_made() {
        for weak in ["too short", "aaaaaaaaaaaaaaaaaaaaaaaa"] {
            let problem = Case::new().file(weak).problem();
            assert!(problem.contains("openssl rand"), "{problem}");
            assert!(!problem.contains(weak), "{problem}");
        }
    }

    #[test]
    fn passphrase__should_be_missed_with_what_to_do() {
        let problem = Case::new().problem();
        for word in ["/passphrase is missing", "LoadCredential", "terminal"] {
            assert!(problem.contains(word), "{problem}");
        }
        // A named file is meant: nobody is asked, no credential is taken.
        let named = Case {
            named: true,
            ..Case::new().credential(GOOD).typed(&[GOOD, GOOD])
        };
        assert!(named.problem().contains("is missing"));
        // Shares are there: nothing is made up.
        let lost = Case {
            keyring: true,
            generate: true,
            ..Case::new()
        };
        assert!(lost.problem().contains("bring it back"));
    }

    #[test]
    fn passphrase__should_be_generated_once_where_configuration_says_so() {
        let case = Case {
            generate: true,
            ..Case::new()
        };
        let path = case.folder.path().join("passphrase");
        let folder = &case.folder;
        let made = find(PassphraseSources {
            file: path.clone(),
            named: false,
            generate: true,
            credentials: None,
            keyring: false,
            prompt_user: None,
        })
        .unwrap();
        assert_eq!(made.work_factor, WORK_FACTOR_RANDOM);
        assert_eq!(
            fs::read_to_string(&path).unwrap().trim(),
            made.secret.expose_secret()
        );
        assert!(folder.path().exists());
    }
}
