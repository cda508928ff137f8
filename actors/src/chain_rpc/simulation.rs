//! Simulating a transaction before it is sent: `simulation` of a signing request.

use covault_core::networks::{ChainData, Payload, Unsigned};
use serde::Serialize;

use super::exchange::short;

/// Most characters of a result that are shown.
const MAX_RESULT: usize = 8 << 10;
/// Most lines of a program's log that are shown, each cut as a node's words are.
const MAX_LOGS: usize = 64;

/// Selector of `Error(string)`: what Solidity reverts with.
pub(super) const ERROR: [u8; 4] = [0x08, 0xc3, 0x79, 0xa0];
/// Selector of `Panic(uint256)`: a failed assertion, overflow and the like.
const PANIC: [u8; 4] = [0x4e, 0x48, 0x7b, 0x71];

/// A transaction that was built and is not signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulationRequest {
    /// What it was built from.
    pub payload: Payload,
    /// What the nodes said when it was built.
    pub chain_data: ChainData,
    /// The transaction.
    pub unsigned: Unsigned,
    /// The sender's public key.
    pub public_key: Vec<u8>,
}

/// What a node says that a transaction would do now. Its JSON is what `simulation` holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SimulationOutcome {
    /// Whether it would go through.
    pub success: bool,
    /// What it returns, in the form that the network's nodes give: hex with `0x` of an EVM call
    /// (of one that reverts, the data that it reverts with) and of a Tron call, base64 of a Solana
    /// program's return data, base64 XDR of the value of a contract that speaks XDR.
    pub result: Option<String>,
    /// Why it would fail, in words.
    pub error: Option<String>,
    /// What it takes, decimal, in the network's unit: gas units (Aptos), compute units (Solana),
    /// energy (Tron), MIST (Sui); where the node says it.
    pub units_used: Option<String>,
    /// What its programs log (Solana).
    pub logs: Vec<String>,
    /// Something of this was too long and is cut.
    pub truncated: bool,
}

impl SimulationOutcome {
    /// It would go through, and returns this.
    pub fn passes(result: Option<String>) -> Self {
        Self {
            success: true,
            result,
            ..Self::default()
        }
    }

    /// It would fail.
    pub fn fails(error: &str) -> Self {
        Self {
            error: Some(error.to_owned()),
            ..Self::default()
        }
    }

    /// UTF-8 of the JSON, of bounded length.
    pub fn to_json(&self) -> Option<Vec<u8>> {
        let Self {
            success,
            result,
            error,
            units_used,
            logs,
            truncated: _,
        } = self;
        let shown = Self {
            success: *success,
            result: result.as_ref().map(|text| cut(text, MAX_RESULT)),
            error: error.as_deref().map(short),
            units_used: units_used.as_deref().map(short),
            logs: logs.iter().take(MAX_LOGS).map(|line| short(line)).collect(),
            truncated: false,
        };
        let truncated = self.truncated || !shown.same_texts(self);
        serde_json::to_vec(&Self { truncated, ..shown }).ok()
    }

    fn same_texts(&self, other: &Self) -> bool {
        (&self.result, &self.error, &self.units_used, &self.logs)
            == (&other.result, &other.error, &other.units_used, &other.logs)
    }
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// Why a call reverts, in words: Solidity's `Error(string)` and `Panic(uint256)`.
pub(super) fn revert_reason(output: &[u8]) -> Option<String> {
    let number = |word: &[u8]| {
        let (zeros, low) = word.split_last_chunk::<8>()?;
        let low = u64::from_be_bytes(*low);
        zeros.iter().all(|byte| *byte == 0).then_some(low)
    };
    if let Some(code) = output.strip_prefix(&PANIC) {
        return Some(format!("panic 0x{:02x}", number(code.get(..32)?)?));
    }
    let arguments = output.strip_prefix(&ERROR)?;
    let length = usize::try_from(number(arguments.get(32..64)?)?).ok()?;
    let text = arguments.get(64..)?.get(..length)?;
    std::str::from_utf8(text).ok().map(short)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn to_json__should_have_the_documented_form() {
        let passes = SimulationOutcome {
            units_used: Some("150".into()),
            ..SimulationOutcome::passes(Some("0x01".into()))
        };
        assert_eq!(
            String::from_utf8(passes.to_json().unwrap()).unwrap(),
            r#"{"success":true,"result":"0x01","error":null,"unitsUsed":"150","logs":[],"truncated":false}"#
        );
        let fails = SimulationOutcome {
            logs: vec!["a \"log\"".into()],
            ..SimulationOutcome::fails("no")
        };
        assert_eq!(
            String::from_utf8(fails.to_json().unwrap()).unwrap(),
            r#"{"success":false,"result":null,"error":"no","unitsUsed":null,"logs":["a \"log\""],"truncated":false}"#
        );
    }

    #[test]
    fn to_json__should_cut_what_is_too_long_and_say_so() {
        // What takes six bytes in JSON.
        let long = "\u{1}".repeat(1 << 20);
        let shown = SimulationOutcome {
            success: false,
            result: Some(long.clone()),
            error: Some(long.clone()),
            units_used: Some(long.clone()),
            logs: vec![long; 1000],
            truncated: false,
        }
        .to_json()
        .unwrap();
        assert!(shown.len() < 256 << 10, "{}", shown.len());
        let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
        assert_eq!(shown["truncated"], true);
        assert_eq!(shown["result"].as_str().unwrap().len(), MAX_RESULT);
        assert_eq!(shown["logs"].as_array().unwrap().len(), MAX_LOGS);
    }

    #[test]
    fn revert_reason__should_read_what_solidity_writes() {
        let word = |number: u64| {
            let mut word = [0; 32];
            word[24..].copy_from_slice(&number.to_be_bytes());
            word
        };
        let mut text = [ERROR.as_slice(), &word(32), &word(4), b"Nope"].concat();
        text.resize(text.len() + 28, 0);
        assert_eq!(revert_reason(&text).as_deref(), Some("Nope"));
        let panic = [PANIC.as_slice(), &word(0x11)].concat();
        assert_eq!(revert_reason(&panic).as_deref(), Some("panic 0x11"));
        let huge = [ERROR.as_slice(), &word(32), &[0xff; 32]].concat();
        for nothing in [&[][..], &ERROR, &PANIC, &huge, &text[..60], &[1, 2, 3, 4]] {
            assert_eq!(revert_reason(nothing), None);
        }
    }
}
