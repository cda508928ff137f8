//! The vectors of Bitcoin.

use covault_core::{
    chain::{Facts, Needs, Signed},
    payload::Payload,
    signature::Signature,
};
use serde_json::{Map, Value};

use super::Outcome;

pub struct Dialect;

impl super::Dialect for Dialect {
    fn facts(
        &self,
        _needs: &Needs,
        _payload: &Payload,
        _context: &Map<String, Value>,
    ) -> Result<(Facts, Vec<&'static str>), String> {
        Err("not built".into())
    }

    fn unsigned(&self, _expected: &Map<String, Value>) -> Result<Vec<u8>, String> {
        Err("not built".into())
    }

    fn signed(&self, _signed: &Signed, _expected: &Map<String, Value>) -> Outcome {
        Err("not built".into())
    }

    fn plain_signature(&self, signature: &Signature, _public_key: &[u8]) -> String {
        ::hex::encode(signature.to_bytes())
    }
}
