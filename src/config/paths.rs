//! Relative paths in a configuration file are relative to that file, wherever the program is started.

use std::path::{Component, Path, PathBuf};

use toml::{Table, Value};

use super::ConfigError;

/// How the names of settings end that hold a path, or a list of paths.
const PATHS: [&str; 3] = ["_file", "_files", "data_dir"];
/// Settings that hold a path or the text of a key.
const PATH_OR_KEY: [&str; 3] = ["orchestrators", "peers", "private_key"];
/// How the texts of keys begin.
const KEYS: [&str; 2] = ["ssh-", "-----BEGIN"];

/// Makes the relative paths in `settings` absolute, as paths in the folder of `file`. Without a folder in its name, that is the
/// folder that the program is started in, and they stay as they are.
///
/// # Errors
/// When the name of the folder is not UTF-8: a setting cannot hold it, and another folder would be used.
pub(super) fn anchor(settings: &mut Table, file: &Path) -> Result<(), ConfigError> {
    let Some(folder) = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    else {
        return Ok(());
    };
    // Without symbolic links in it, `..` is the folder above.
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    if folder
        .to_str()
        .is_none_or(|name| name.contains(char::REPLACEMENT_CHARACTER))
    {
        return Err(ConfigError::Value(format!(
            "the folder {} of the configuration file has a name that is not UTF-8; move the file to another folder",
            folder.display()
        )));
    }
    anchor_in(settings, &folder);
    Ok(())
}

fn anchor_in(settings: &mut Table, folder: &Path) {
    for (name, value) in settings {
        match value {
            Value::Table(inner) => anchor_in(inner, folder),
            Value::String(text) if is_path(name, text) => *text = in_folder(folder, text),
            Value::Array(items) => {
                for item in items {
                    if let Value::String(text) = item
                        && is_path(name, text)
                    {
                        *text = in_folder(folder, text);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Whether `text` is a relative path.
fn is_path(name: &str, text: &str) -> bool {
    let text = text.trim();
    let is_key = || KEYS.iter().any(|start| text.starts_with(start));
    let holds_path =
        PATHS.iter().any(|end| name.ends_with(end)) || (PATH_OR_KEY.contains(&name) && !is_key());
    holds_path && !text.is_empty() && Path::new(text).is_relative()
}

fn in_folder(folder: &Path, text: &str) -> String {
    let mut path = PathBuf::from(folder);
    let mut parts = Path::new(text.trim()).components().peekable();
    while let Some(part) = parts.next_if(|part| !matches!(part, Component::Normal(_))) {
        if part == Component::ParentDir {
            path.pop();
        }
    }
    path.extend(parts);
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
#[allow(non_snake_case, clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn paths__should_be_those_of_the_files_folder() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("etc")).unwrap();
        std::os::unix::fs::symlink(real.join("etc"), real.join("link")).unwrap();
        let text = r#"
            [serve]
            data_dir = "../data"
            identity_file = ""
            admin_token_file = "/run/token"
            listen = "127.0.0.1:0"
            [signer]
            orchestrators = ["ssh-ed25519 AAAA", "./a.pub", "/b.pub"]
            name = "a_file"
            [signer.vaults.one]
            peers = ["c.pub"]
            [chains.evm.1]
            header_files = ["key", ""]
            [client_signer]
            private_key = "-----BEGIN OPENSSH PRIVATE KEY-----"
        "#;
        for name in ["etc/serve.toml", "link/serve.toml"] {
            let mut settings: Table = text.parse().unwrap();
            anchor(&mut settings, &real.join(name)).unwrap();
            let at = |path: &str| Value::String(real.join(path).to_str().unwrap().to_owned());
            assert_eq!(settings["serve"]["data_dir"], at("data"));
            assert_eq!(settings["serve"]["identity_file"].as_str(), Some(""));
            assert_eq!(
                settings["serve"]["admin_token_file"].as_str(),
                Some("/run/token")
            );
            assert_eq!(settings["serve"]["listen"].as_str(), Some("127.0.0.1:0"));
            assert_eq!(
                settings["signer"]["orchestrators"],
                Value::Array(vec![
                    Value::String("ssh-ed25519 AAAA".to_owned()),
                    at("etc/a.pub"),
                    Value::String("/b.pub".to_owned())
                ])
            );
            assert_eq!(settings["signer"]["name"].as_str(), Some("a_file"));
            assert_eq!(
                settings["signer"]["vaults"]["one"]["peers"][0],
                at("etc/c.pub")
            );
            assert_eq!(
                settings["chains"]["evm"]["1"]["header_files"][0],
                at("etc/key")
            );
            assert!(
                settings["client_signer"]["private_key"]
                    .as_str()
                    .unwrap()
                    .starts_with("-----")
            );
        }
        // The program's own folder is the file's.
        let before: Table = text.parse().unwrap();
        let mut settings = before.clone();
        anchor(&mut settings, Path::new("serve.toml")).unwrap();
        assert_eq!(settings, before);
    }

    #[test]
    fn folder__should_be_refused_where_settings_cannot_name_it() {
        use std::os::unix::ffi::OsStrExt as _;
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
        std::fs::create_dir(&odd).unwrap();
        std::os::unix::fs::symlink(&odd, folder.path().join("link")).unwrap();
        let mut settings: Table = "[serve]\ndata_dir = \"data\"".parse().unwrap();
        let before = settings.clone();
        // As it comes from the command line, shown as text, and through a link whose own name is plain.
        let shown = PathBuf::from(odd.display().to_string());
        for name in [odd, shown, folder.path().join("link")] {
            let refused = anchor(&mut settings, &name.join("serve.toml")).unwrap_err();
            assert!(refused.to_string().contains("is not UTF-8"), "{refused}");
            assert_eq!(settings, before);
        }
    }
}
