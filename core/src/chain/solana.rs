//! Solana and Sonic SVM.

use serde::{Deserialize, Serialize};

use crate::{
    chain::{Chain, Signed, Unsigned},
    fault::Fault,
    payload::Payload,
    signature::Signature,
};

/// What a Solana node must be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// 101 for Solana, 0 for Sonic SVM.
    pub chain_id: u64,
    /// Whether a recent blockhash is wanted.
    pub blockhash: bool,
}

/// What a Solana node said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// `getLatestBlockhash` at commitment confirmed, base58.
    pub recent_blockhash: String,
}

/// The Solana rules.
pub struct Solana;

impl Chain for Solana {
    fn address(&self, _public_key: &[u8]) -> Result<String, Fault> {
        todo!()
    }
    fn parse_address(&self, _text: &str) -> Result<String, Fault> {
        todo!()
    }
    fn needs(&self, _payload: &Payload) -> super::Needs {
        todo!()
    }
    fn build(
        &self,
        _payload: &Payload,
        _facts: &super::Facts,
        _public_key: &[u8],
    ) -> Result<Unsigned, Fault> {
        todo!()
    }
    fn assemble(
        &self,
        _payload: &Payload,
        _unsigned: &Unsigned,
        _signatures: &[Signature],
    ) -> Result<Option<Signed>, Fault> {
        todo!()
    }
}
