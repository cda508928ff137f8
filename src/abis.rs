//! The calls that are put into words: the common ones, and those of the contracts that configuration
//! names.

use anyhow::{Context as _, bail};
use covault_core::networks::evm::calls::AbiTable;

use crate::config::EvmSettings;

/// The calls that are known.
///
/// # Errors
/// When a file that configuration names cannot be read or is no ABI; names it.
pub fn load(config: &EvmSettings) -> anyhow::Result<AbiTable> {
    let mut own = AbiTable::default();
    for path in &config.abi_files {
        let file = || format!("evm.abi_files: {}", path.display());
        let text =
            std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", file()))?;
        if let Err(fault) = own.add_abi(&text) {
            bail!("{} {}", file(), fault.message());
        }
    }
    Ok(AbiTable::built_in().overridden_by(&own))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn of__should_know_the_common_calls_and_those_of_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("Greeter.json");
        let abi = r#"{"abi":[{"type":"function","name":"greet","inputs":[],"outputs":[],"stateMutability":"view"}]}"#;
        std::fs::write(&file, abi).unwrap();
        let calls = load(&EvmSettings {
            abi_files: vec![file],
        })
        .unwrap();
        // keccak256("greet()"), keccak256("deposit()")
        for (selector, words) in [("cfae3217", "greet()"), ("d0e30db0", "deposit()")] {
            let shown = calls.decode(&hex::decode(selector).unwrap()).unwrap();
            assert_eq!(shown.function, words);
        }
        assert_eq!(
            &load(&EvmSettings {
                abi_files: Vec::new()
            })
            .unwrap(),
            AbiTable::built_in()
        );
    }

    #[test]
    fn of__should_name_the_file_that_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let bad = folder.path().join("bad.json");
        std::fs::write(&bad, "{\"abi\": 5}").unwrap();
        let missing = folder.path().join("missing.json");
        for (file, problem) in [
            (&bad, "is not a contract's ABI in JSON"),
            (&missing, "cannot be read"),
        ] {
            let refusal = load(&EvmSettings {
                abi_files: vec![file.clone()],
            })
            .unwrap_err();
            let refusal = format!("{refusal:#}");
            assert!(
                refusal.contains(&format!("evm.abi_files: {} {problem}", file.display())),
                "{refusal}"
            );
        }
    }
}
