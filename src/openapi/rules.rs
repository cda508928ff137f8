//! What a field of a request must look like beyond its type. The schema's types cannot say it;
//! the parsers of the payloads do.

use serde_json::{Value, json};

use super::shape::{LABEL, NOTES, PADDED, SSH_KEY_OR_EMPTY, UUID_OR_EMPTY, amount, positive};

/// What a field must look like.
#[derive(Debug, Default)]
pub struct Rule {
    /// It must be given, and is not `null`.
    pub required: bool,
    /// What JSON Schema says of it, beside its type.
    pub limits: Option<Value>,
    /// An enum whose zero value is refused.
    pub not_zero: bool,
}

const EVM: &str = "^0x[0-9a-fA-F]{40}$";
const EVM_OR_EMPTY: &str = "^(0x[0-9a-fA-F]{40})?$";
const BITCOIN: &str =
    "^([13][1-9A-HJ-NP-Za-km-z]{25,34}|bc1[02-9ac-hj-np-z]{8,87}|BC1[02-9AC-HJ-NP-Z]{8,87})$";
const BITCOIN_WALLET: &str = "^(bc1q[02-9ac-hj-np-z]{38}|BC1Q[02-9AC-HJ-NP-Z]{38})$";
const TRON: &str = "^T[1-9A-HJ-NP-Za-km-z]{33}$";
const APTOS: &str = "^0x([0-9a-fA-F]{60,64}|[0-9a-fA-F])$";
const SUI: &str = "^0x[0-9a-fA-F]{64}$";
const SOLANA: &str = "^[1-9A-HJ-NP-Za-km-z]{32,44}$";
const TON: &str = "^([0-9A-Za-z+/_-]{48}|(0|-1):[0-9a-fA-F]{64})$";
const STELLAR: &str = "^(G[A-Z2-7]{55}|M[A-Z2-7]{68})$";
const STELLAR_ACCOUNT: &str = "^G[A-Z2-7]{55}$";

/// Digits of 2^63 - 1, 2^64 - 1, 2^120 - 1, 2^128 - 1 and 2^256 - 1.
const I64: usize = 19;
const U64: usize = 20;
const U120: usize = 37;
const U128: usize = 39;
const U256: usize = 78;
/// Satoshi of 21 million bitcoin.
const SATOSHI: usize = 16;

fn required(limits: Value) -> Rule {
    Rule {
        required: true,
        limits: Some(limits),
        not_zero: false,
    }
}

fn optional(limits: Value) -> Rule {
    Rule {
        required: false,
        ..required(limits)
    }
}

fn pattern(pattern: impl Into<String>) -> Rule {
    required(json!({"pattern": pattern.into()}))
}

/// A text that may be left out, or empty.
fn or_empty(pattern: &str) -> Rule {
    let inner = pattern.trim_start_matches('^').trim_end_matches('$');
    optional(json!({"pattern": format!("^({inner})?$")}))
}

/// A whole number from `least` to `most`, as number or as string of digits.
fn range(least: i64, most: i64, digits: &str) -> Value {
    json!({"minimum": least, "maximum": most, "pattern": digits})
}

/// The form of addresses in the messages of one family, by how its messages are named.
fn address_form(message: &str) -> Option<&'static str> {
    let forms = [
        ("EVM", EVM),
        ("BTC", BITCOIN),
        ("Tron", TRON),
        ("Aptos", APTOS),
        ("Sui", SUI),
        ("SUI", SUI),
        ("Solana", SOLANA),
        ("Ton", TON),
        ("Stellar", STELLAR),
    ];
    let found = forms.iter().find(|(prefix, _)| message.starts_with(prefix));
    found.map(|(_, form)| *form)
}

/// Digits of the largest amount of a message.
fn amount_rule(message: &str) -> Rule {
    match message {
        "BTCSendNative" => or_empty(&positive(SATOSHI)),
        "SuiSendNative" | "SuiSendCoin" => or_empty(&amount(U64)),
        "BatchPaymentRecipient" => pattern(positive(U256)),
        "TronSendNative" | "TronSendTRC10" => pattern(positive(I64)),
        "TronSendTRC20" => pattern(amount(U256)),
        "StellarSendNative" | "StellarSendAsset" => {
            pattern("^(0|[1-9][0-9]{0,11})(\\.[0-9]{1,7})?$")
        }
        _ if message.starts_with("EVM") => pattern(amount(U256)),
        _ if message.starts_with("Ton") => pattern(amount(U120)),
        _ => pattern(amount(U64)),
    }
}

/// The rule of a field; `message` is the message's name in the package and `field` the field's
/// name in the schema.
pub fn rule(message: &str, field: &str) -> Rule {
    match (message, field) {
        ("RawMessage", "from") | ("BatchPaymentRecipient", "address") => {
            required(json!({"minLength": 1, "maxLength": 100}))
        }
        ("BTCSendNative" | "BTCBatchSendNative", "from") => pattern(BITCOIN_WALLET),
        (_, "asset_issuer") => pattern(STELLAR_ACCOUNT),
        (_, "from") if message.starts_with("Stellar") => pattern(STELLAR_ACCOUNT),
        // With several recipients they are empty.
        ("BTCSendNative", "to") => or_empty(BITCOIN),
        ("SuiSendNative" | "SuiSendCoin", "to") => or_empty(SUI),
        ("BTCSendNative" | "SuiSendNative" | "SuiSendCoin", "recipients") => {
            optional(json!({"maxItems": 254}))
        }
        ("EVMSendCustom", "to") => optional(json!({"pattern": EVM_OR_EMPTY})),
        (_, "from" | "to" | "token_contract_address" | "contract_address" | "mint_address") => {
            address_form(message).map_or_else(Rule::default, pattern)
        }
        (_, "value" | "amount") => amount_rule(message),
        ("EVMGas", "max_fee") => pattern(amount(U128)),
        ("EVMGas", "gas_limit") => pattern(amount(U64)),
        ("EVMGas", "max_priority_fee") => optional(json!({"pattern": amount(U128)})),
        ("AptosGas", "gas_unit_price") => optional(json!({"pattern": amount(U64)})),
        ("AptosGas", "max_gas_amount") | ("SuiGas", _) => {
            optional(json!({"pattern": positive(U64)}))
        }
        ("TronSendTRC20", "fee_limit") => optional(json!({"pattern": positive(11)})),
        ("TronSendTRC10", "asset_name") => pattern(positive(I64)),
        // 0, as left out, stands for a level.
        ("BTCSendNative", "network_fee") => {
            optional(range(0, 10_000, "^(0|[1-9][0-9]{0,3}|10000)$"))
        }
        ("BTCSendNative", "inputs") => optional(json!({
            "maxItems": 252,
            "items": {"type": "string", "pattern": "^[0-9a-fA-F]{64}:(0|[1-9][0-9]{0,9})$"},
        })),
        ("EVMMessage", "chain_id") => optional(json!({})),
        ("AptosMessage.Message", "chain_id") => optional(range(1, 126, "^(1|126)$")),
        (_, "chain_id") if message.starts_with("EVM") => {
            required(range(1, i64::MAX, &positive(I64)))
        }
        (_, "chain_id") if message.starts_with("Aptos") => required(range(1, 126, "^(1|126)$")),
        (_, "chain_id") if message.starts_with("Solana") => optional(range(0, 101, "^(0|101)$")),
        (_, "nonce") if message.starts_with("EVM") => optional(range(0, i64::MAX, &amount(I64))),
        (_, "decimals") => optional(range(
            0,
            255,
            "^(0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5])$",
        )),
        (_, "memo") => optional(json!({"maxLength": 28})),
        (_, "comment") => optional(json!({"maxLength": 1024})),
        (_, "asset_code") => pattern("^[A-Za-z0-9]{1,12}$"),
        (_, "coin_tag") => required(json!({"minLength": 1})),
        // Not empty, unlike the content of messages.
        (_, "payload") => required(json!({"minLength": 2})),
        ("AptosMessage", "content") => required(json!({})),
        ("SolanaSendCustom", "tx_base64") => required(json!({
            "minItems": 1, "maxItems": 5,
            "items": {"type": "string", "minLength": 4, "pattern": PADDED},
        })),
        ("StellarSendCustom", "tx_base64") => required(json!({"minLength": 4, "pattern": PADDED})),
        (_, "recipients") => required(json!({"minItems": 1, "maxItems": 254})),
        ("BatchPaymentRecipient", "notes") => optional(json!({"maxLength": 500, "pattern": NOTES})),
        ("CreateBatchPaymentRequest", "notes") => {
            optional(json!({"maxLength": 1000, "pattern": NOTES}))
        }
        ("CreateSigningRequestRequest" | "ReplaceTransactionRequest", "notes") => {
            optional(json!({"maxLength": 10_000, "pattern": NOTES}))
        }
        ("CreateWalletRequest" | "UpdateWalletRequest" | "CreateBatchPaymentRequest", "name") => {
            optional(json!({"maxLength": 85, "pattern": LABEL}))
        }
        ("CreateWalletRequest", "ref") => optional(json!({"maxLength": 500, "pattern": LABEL})),
        ("GetWalletInfoRequest", _) => optional(json!({"minLength": 1})),
        ("UpdateWalletRequest", "address") | ("GetBalanceRequest", "wallet_address") => {
            required(json!({"minLength": 1}))
        }
        ("UpdateWalletRequest", "status") => {
            optional(json!({"enum": ["", "STATUS_ACTIVE", "STATUS_ARCHIVED"]}))
        }
        ("CreateWalletRequest" | "GetBalanceRequest" | "EstimateFeeRequest", "network_type") => {
            Rule {
                not_zero: true,
                ..required(json!({}))
            }
        }
        ("CreateDepositWalletRequest", "network") => required(json!({"enum": ["EVM", "TRON"]})),
        ("AddWatchAddressRequest", "network") => required(json!({"enum": ["TRON"]})),
        ("AddWatchAddressRequest", "address") => pattern(TRON),
        ("CreateDepositWalletRequest", "ref") => pattern("^[A-Za-z0-9_.:@-]{1,128}$"),
        ("CreateSigningRequestRequest" | "GetPendingSigningRequestsRequest", "vault_uuid") => {
            optional(json!({"pattern": UUID_OR_EMPTY}))
        }
        ("ReplaceTransactionRequest", "action") => Rule {
            not_zero: true,
            ..required(json!({}))
        },
        ("ReplaceTransactionRequest", "most_fee") => optional(json!({"pattern": amount(U128)})),
        (_, "uuid" | "vault_uuid" | "signing_request_uuid") => required(json!({"format": "uuid"})),
        (_, "callback_client_signer_public_key") => optional(json!({"pattern": SSH_KEY_OR_EMPTY})),
        (_, "page") => optional(range(0, i64::MAX, &amount(I64))),
        (_, "limit") => optional(range(0, 100, "^(0|[1-9][0-9]?|100)$")),
        _ => Rule::default(),
    }
}

/// What must hold over several fields of a message, as items for `allOf`.
pub fn across(message: &str) -> Vec<Value> {
    match message {
        "UpdateWalletRequest" => vec![json!({"anyOf": [
            {"required": ["name"], "properties": {"name": {"type": "string", "minLength": 1}}},
            {"required": ["status"], "properties": {"status": {"enum": ["STATUS_ACTIVE", "STATUS_ARCHIVED"]}}},
        ]})],
        _ => Vec::new(),
    }
}
