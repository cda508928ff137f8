//! Typed data by which others may take tokens: what it lets go, and to whom.

use alloy_primitives::{Address, U256, keccak256};
use serde_json::{Map, Value};

use super::{digest_parts, domain_chain_of, integer, types::StructTypes, unique};
use crate::networks::evm::{effect::CallEffect, parse_address};

/// EIP-2612.
const PERMIT: &str =
    "Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)";
/// DAI.
const PERMIT_ALL: &str =
    "Permit(address holder,address spender,uint256 nonce,uint256 expiry,bool allowed)";
/// EIP-4494.
const PERMIT_ONE: &str = "Permit(address spender,uint256 tokenId,uint256 nonce,uint256 deadline)";
/// EIP-3009.
const TRANSFER: &str = "TransferWithAuthorization(address from,address to,uint256 value,\
                        uint256 validAfter,uint256 validBefore,bytes32 nonce)";
const RECEIVE: &str = "ReceiveWithAuthorization(address from,address to,uint256 value,\
                       uint256 validAfter,uint256 validBefore,bytes32 nonce)";
/// Permit2.
const SINGLE: &str = "PermitSingle(PermitDetails details,address spender,uint256 sigDeadline)\
                      PermitDetails(address token,uint160 amount,uint48 expiration,uint48 nonce)";
const BATCH: &str = "PermitBatch(PermitDetails[] details,address spender,uint256 sigDeadline)\
                     PermitDetails(address token,uint160 amount,uint48 expiration,uint48 nonce)";
const ONCE: &str = "PermitTransferFrom(TokenPermissions permitted,address spender,uint256 nonce,\
                    uint256 deadline)TokenPermissions(address token,uint256 amount)";
const BATCH_ONCE: &str = "PermitBatchTransferFrom(TokenPermissions[] permitted,address spender,\
                          uint256 nonce,uint256 deadline)\
                          TokenPermissions(address token,uint256 amount)";
/// Permit2 with a witness: a fifth field of any type, for the spender to check.
const WITNESS: &str = "PermitWitnessTransferFrom";
const BATCH_WITNESS: &str = "PermitBatchWitnessTransferFrom";
const WITNESS_FIELDS: [(&str, &str); 3] = [
    ("spender", "address"),
    ("nonce", "uint256"),
    ("deadline", "uint256"),
];
const PERMISSIONS: [(&str, &str); 2] = [("token", "address"), ("amount", "uint256")];

/// What content that was checked lets go; `None` for all other typed data, and where the domain
/// does not say on what chain or of which token.
pub(crate) fn permits(content: &[u8]) -> Option<Vec<CallEffect>> {
    let object = unique::parse(content).ok()?;
    let parts = digest_parts(&object).ok()?;
    domain_chain_of(parts.domain)?;
    let hash = parts.types.hash(parts.primary).ok()?;
    let is = |known: &str| hash == keccak256(known);
    let message = parts.message;
    let called = || address(parts.domain, "verifyingContract");
    let one = |to: &str, amount: U256| {
        Some(vec![CallEffect {
            token: Some(called()?),
            amount,
            to: Some(address(message, to)?),
        }])
    };
    if is(PERMIT) {
        one("spender", number(message, "value")?)
    } else if is(TRANSFER) || is(RECEIVE) {
        one("to", number(message, "value")?)
    } else if is(PERMIT_ALL) {
        match message.get("allowed")?.as_bool()? {
            true => one("spender", U256::MAX),
            false => Some(Vec::new()),
        }
    } else if is(PERMIT_ONE) {
        one("spender", U256::ONE)
    } else if is(SINGLE) || is(BATCH) {
        listed(message, "details")
    } else if is(ONCE) || is(BATCH_ONCE) || has_witness(&parts.types, parts.primary) {
        listed(message, "permitted")
    } else {
        None
    }
}

/// Whether a type is one of Permit2 with a witness, whatever that is.
fn has_witness(types: &StructTypes, primary: &str) -> bool {
    let permitted = match primary {
        WITNESS => "TokenPermissions",
        BATCH_WITNESS => "TokenPermissions[]",
        _ => return false,
    };
    let fields = |name: &str| -> Vec<(&str, &str)> {
        let fields = types.get(name).into_iter().flatten();
        fields
            .map(|field| (field.name.as_str(), field.type_name.as_str()))
            .collect()
    };
    let all = fields(primary);
    fields("TokenPermissions") == PERMISSIONS
        && all.len() == 5
        && all.first() == Some(&("permitted", permitted))
        && all.get(1..4) == Some(&WITNESS_FIELDS)
}

/// One token and amount, or a list of them, that the spender may take.
fn listed(message: &Map<String, Value>, name: &str) -> Option<Vec<CallEffect>> {
    let to = Some(address(message, "spender")?);
    let effect = |details: &Value| {
        let details = details.as_object()?;
        Some(CallEffect {
            token: Some(address(details, "token")?),
            amount: number(details, "amount")?,
            to,
        })
    };
    match message.get(name)? {
        Value::Array(list) => list.iter().map(effect).collect(),
        details => Some(vec![effect(details)?]),
    }
}

fn address(object: &Map<String, Value>, name: &str) -> Option<Address> {
    parse_address(object.get(name)?.as_str()?).ok()
}

fn number(object: &Map<String, Value>, name: &str) -> Option<U256> {
    match integer(object.get(name)?) {
        Ok((false, number)) => Some(number),
        _ => None,
    }
}
