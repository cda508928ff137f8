//! The promises of the platform API, as a client sees them: every operation, every JSON rule, every
//! error.

mod admission;
mod broken;
mod caller;
mod idempotency;
mod json;
mod operations;
mod published;
mod sweep;
mod tokens;
mod transports;
mod unavailable;

use serde_json::{Value, json};

use self::caller::ApiCaller;
use super::support::*;

/// A cluster with one wallet of each curve.
pub struct World {
    pub dev: DevProcess,
    pub evm: String,
    pub solana: String,
    _folder: tempfile::TempDir,
}

impl World {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub async fn start_with(arguments: &[&str]) -> Self {
        Self::start_as(arguments, &[]).await
    }

    /// With arguments, and with settings in the environment.
    pub async fn start_as(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dev = DevProcess::start_with(&folder.path().join("dev"), arguments, variables).await;
        Self::of(dev, folder).await
    }

    /// With a service that survives that its files cannot grow.
    pub async fn start_on_small_disk() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("dev");
        let dev = DevProcess::start_by(covault_on_small_disks, &data, &[], &[]).await;
        Self::of(dev, folder).await
    }

    async fn of(dev: DevProcess, folder: tempfile::TempDir) -> Self {
        let evm = dev.api.wallet(&dev.vault, "NETWORK_TYPE_EVM").await;
        let solana = dev.api.wallet(&dev.vault, "NETWORK_TYPE_SOLANA").await;
        Self {
            dev,
            evm,
            solana,
            _folder: folder,
        }
    }

    /// Runs a command of an operator, which must succeed, and gives what it prints.
    pub fn command(&self, arguments: &[&str]) -> String {
        self.dev.command(arguments)
    }

    /// The API with a new token of every vault.
    pub fn token(&self, arguments: &[&str]) -> ApiClient {
        self.dev.token(&[arguments, &["--all-vaults"]].concat())
    }

    /// The first platform token over both transports.
    pub fn caller(&self) -> ApiCaller {
        ApiCaller::new(self, &self.dev.api.token)
    }

    pub fn api(&self) -> &ApiClient {
        &self.dev.api
    }

    /// A payment that needs nothing of a chain and is not sent.
    pub fn payment(&self) -> Value {
        json!({"broadcastTx": false, "evmSendNative": {"chainId": "1", "from": self.evm,
            "to": "0x78befDBC3A9B4Cc239baDd9322E98Eae4394B4be", "value": "1", "nonce": "0",
            "gasFee": {"maxFee": "10", "maxPriorityFee": "1", "gasLimit": "21000"}}})
    }

    /// A message that is signed at once.
    pub fn message(&self, text: &str) -> Value {
        json!({"evmMessage": {"chainId": "1", "from": self.evm, "content": base64(text)}})
    }
}

/// The keys of an object.
pub fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

/// That it is an object with exactly these keys.
pub fn assert_keys(value: &Value, expected: &[&str]) {
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    let mut found = keys(value);
    found.sort_unstable();
    assert_eq!(found, expected, "{value}");
}
