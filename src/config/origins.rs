//! Where settings come from, and which of their values cannot be used.

use toml::{Table, Value};

use super::{
    Config, ConfigError, defaults, merge,
    shown::{has, leaves, without_secrets},
    variable_of,
};

/// What sets settings.
pub(super) struct Origins<'a> {
    /// The file's name, and what it sets.
    pub file: Option<(&'a str, &'a Table)>,
    /// Of the environment.
    pub variables: &'a [(String, String)],
}

impl Origins<'_> {
    /// A problem, with the file or variable that sets what its sentence names: of several settings the first that is
    /// set, as the others have their defaults.
    pub fn problem(&self, problem: String) -> ConfigError {
        let words = problem.split([' ', ':', ',', ';']);
        let origin = words
            .filter(|word| word.contains('.'))
            .find_map(|word| self.of(word));
        match origin {
            Some(origin) => ConfigError::Setting { origin, problem },
            None => ConfigError::Value(problem),
        }
    }

    fn of(&self, path: &str) -> Option<String> {
        let variable = variable_of(path);
        if self.variables.iter().any(|(name, _)| *name == variable) {
            return Some(variable);
        }
        let (name, table) = self.file?;
        has(table, path).then(|| name.to_owned())
    }
}

/// Gives defaults to settings whose values cannot be used, and says what is wrong with each.
pub(super) fn unusable_values(settings: &mut Table) -> Result<Vec<String>, ConfigError> {
    if problem_of(settings.clone()).is_none() {
        return Ok(Vec::new());
    }
    let defaults = defaults()?;
    let mut given = Vec::new();
    leaves(settings, "", &mut |path, value| {
        if at(&defaults, path) != Some(value) {
            given.push((path.to_owned(), value.clone()));
        }
    });
    let mut usable = defaults.clone();
    let mut sentences = Vec::new();
    for (path, value) in given {
        let problem = |value: &Value| {
            let mut alone = defaults.clone();
            lay(&mut alone, &path, value.clone());
            problem_of(alone)
        };
        match problem(&value) {
            None => lay(&mut usable, &path, value),
            Some(message) => sentences.push(sentence(&path, &value, &message, |value| {
                problem(&value).is_none()
            })),
        }
    }
    *settings = usable;
    Ok(sentences)
}

fn problem_of(settings: Table) -> Option<String> {
    let config: Result<Config, toml::de::Error> = settings.try_into();
    config.err().map(|error| error.message().to_owned())
}

fn sentence(path: &str, value: &Value, message: &str, is_usable: impl Fn(Value) -> bool) -> String {
    let number = |number: i64| is_usable(Value::Integer(number));
    let shown = without_secrets(path, value);
    match value {
        Value::Integer(given) => {
            let least = i64::from(!number(0));
            if *given < least {
                return format!("{path}: {given} is too low; use {least} or more");
            }
            let most = [
                i64::from(u32::MAX),
                i64::from(i32::MAX),
                i64::from(u16::MAX),
            ];
            match most.into_iter().find(|most| number(*most)) {
                Some(most) => format!("{path}: {given} is too high; use {most} or less"),
                None => format!("{path}: {given} cannot be used: {message}"),
            }
        }
        Value::String(_) => match message.split_once("expected ") {
            Some((_, expected)) => {
                format!(
                    "{path}: {shown} cannot be used; use {}",
                    expected.replace('`', "\"")
                )
            }
            None => format!("{path}: {shown} cannot be used: {message}"),
        },
        // What is in a list may be an address with a key.
        _ => format!("{path}: {message}"),
    }
}

fn at<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        Some((key, rest)) => at(table.get(key)?.as_table()?, rest),
        None => table.get(path),
    }
}

/// Sets one setting.
fn lay(settings: &mut Table, path: &str, value: Value) {
    let mut keys = path.rsplit('.');
    let mut overlay = Table::new();
    let Some(last) = keys.next() else { return };
    overlay.insert(last.to_owned(), value);
    for key in keys {
        let inner = std::mem::take(&mut overlay);
        overlay.insert(key.to_owned(), Value::Table(inner));
    }
    // They were laid before: what was wrong then is said.
    merge(settings, overlay, "", "", &mut Vec::new());
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn problems(file: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let layered = Config::layer(Some(("a.toml".to_owned(), file.to_owned())), variables);
        let error = layered.expect_err("refused");
        error.each().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn problems__should_name_file_or_variable_setting_value_and_mend() {
        let file = "
            [serve]
            max_connections = -1
            listen = \"x\"
            [log]
            format = \"yaml\"
            [limits]
            per_token_burst = 5000000000
            [chains.evm.1]
            rpc = [5, \"https://node/hunter2\"]
            [chains.evm.2]
            rpc = [\"http://a\"]
            agree = -2
            [signer]
            least_threshold = 70000
        ";
        let variables = [
            ("COVAULT_SERVE_LISTEN", "nowhere"),
            ("COVAULT_STORE_CONNECTIONS", "0"),
            ("COVAULT_CHAINS_EVM_2_TIMEOUT_MS", "0"),
        ];
        let found = problems(file, &variables);
        let expected = [
            "a.toml: chains.evm.1.rpc: ",
            "a.toml: chains.evm.2.agree: -2 is too low; use 0 or more",
            "a.toml: limits.per_token_burst: 5000000000 is too high; use 4294967295 or less",
            "a.toml: log.format: \"yaml\" cannot be used; use \"text\" or \"json\"",
            "a.toml: serve.max_connections: -1 is too low; use 1 or more",
            "a.toml: signer.least_threshold: 70000 is too high; use 65535 or less",
            "COVAULT_STORE_CONNECTIONS: store.connections: 0 is too low; use 1 or more",
            "COVAULT_SERVE_LISTEN: serve.listen: \"nowhere\" is not an address",
            "COVAULT_CHAINS_EVM_2_TIMEOUT_MS: chains.evm.2.timeout_ms: must be above 0",
        ];
        for words in expected {
            assert!(
                found.iter().any(|found| found.starts_with(words)),
                "{words}: {found:#?}"
            );
        }
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        assert!(!found.join(" ").contains("hunter2"), "{found:#?}");
    }

    #[test]
    fn problem__should_name_the_setting_that_is_set_and_not_a_default() {
        let found = problems("[signer]\nnonce_pool_low = 300", &[]);
        assert_eq!(
            found,
            ["a.toml: signer.nonce_pool_high: 256 is below signer.nonce_pool_low, which is 300"]
        );
    }
}
