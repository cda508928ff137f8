//! What a hostile orchestrator gets when it calls a wallet of one network a wallet of another, or
//! asks for one network's transaction as another's message: nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    path::Path,
    sync::Arc,
};

use crate::support::{SystemEntropy, TestBus, TestCluster, now_ms, verify};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use covault_core::{
    approval::OrderApprovals,
    derive::{ChildKey, KeyPath, RootKey},
    fault::Fault,
    ids::{RequestId, VaultId},
    networks::{ChainData, Network, Payload, WireKind, aptos, stellar, sui, ton},
    order::SigningOrder,
    port::random_16,
    schema::wire::{self, EcdsaHashFunction, evm_message},
    signature::Curve,
};
use covault_mpc::{
    node::{OrderCheck, PolicyCheck},
    policy::Policy,
};
use k256::elliptic_curve::sec1::ToSec1Point as _;
use serde_json::{Value, json};

const STELLAR_EVE: &str = "GAPM4TUV6XTYQTOIGHZ4M7NI6EYJMXRZCIBXBQFOESIYLVTHW5PZSES2";
const SUI_EVE: &str = "0x559b58c97f8a3dee4d7e09196e8bba1e7d30b8de78b58321aa86481933dc2ea6";
const TON_EVE: &str = "UQBBAau-e2cQ4nNNL_vneJ6fqNkReYDbWWG_p21uUeIRTv_N";

/// One recipient, 1 of the smallest unit a request, no raw signing.
const STRICT: &str = r#"
    version = 2
    raw_signing = false
    typed_data = []
    custom_calls = []
    only_listed_assets = true
    [recipients]
    "stellar" = ["GDI6UAAJ6F7MNWMZN3NTR46Y4WH5CWTD6VX2JO6VY3M7MN2NPIVDZGRX"]
    "solana" = ["CxvTXCepdDTH4PXUwU2Pf3FBi87L7VwXtzsgeAm1xVsS"]
    [[limits]]
    asset = "stellar"
    per_request = "1"
    [[limits]]
    asset = "solana"
    per_request = "1"
"#;

/// All but raw signing.
const LAX: &str = "version = 2\nraw_signing = false";

fn floor(policy: &str) -> PolicyCheck {
    PolicyCheck(Policy::parse(policy).unwrap())
}

/// A key of a vault, and where it is.
struct WalletKey<'a> {
    root: &'a RootKey,
    path: KeyPath,
    child: ChildKey,
}

impl<'a> WalletKey<'a> {
    fn at(root: &'a RootKey, path: KeyPath) -> Self {
        let child = root.child(&path).unwrap();
        Self { root, path, child }
    }

    fn of_wallet(root: &'a RootKey, network: Network) -> Self {
        Self::at(root, KeyPath::of_wallet(network, 5).unwrap())
    }

    /// An order for a payload kind of the key as if it were a wallet of `network`.
    fn order(
        &self,
        vault: VaultId,
        network: Network,
        kind: impl FnOnce(String) -> WireKind,
        chain_data: ChainData,
    ) -> Result<SigningOrder, Fault> {
        let chain = network.rules();
        let public_key = self.child.public_key.clone();
        let address = chain.address(&public_key)?;
        let payload = Payload::parse(&kind(address.clone()))?;
        let unsigned = chain.build(&payload, &chain_data, &public_key)?;
        Ok(SigningOrder {
            request: RequestId::from_random(random_16(&SystemEntropy)),
            vault,
            epoch: 0,
            network,
            root_public_key: self.root.public_key.clone(),
            path: self.path.clone(),
            public_key,
            address,
            payload: payload.encode(),
            chain_data,
            unsigned: unsigned.bytes,
            inputs: unsigned.signing,
            recipient_indices: Vec::new(),
            approvals: OrderApprovals::default(),
            issued_at_ms: now_ms(),
            expires_at_ms: now_ms() + 600_000,
        })
    }

    fn check(&self, floor: &PolicyCheck, order: &SigningOrder) -> Result<(), Fault> {
        floor
            .check(order, self.root, &self.child, now_ms())
            .map(drop)
    }
}

fn solana_message(content: &[u8]) -> impl FnOnce(String) -> WireKind {
    let content = content.to_vec();
    move |from| {
        WireKind::SolanaMessage(wire::SolanaMessage {
            from,
            content,
            ..Default::default()
        })
    }
}

/// A payment of all that a wallet has to somebody who is in no list, on each network whose wallets
/// sign with the curve that Solana's do.
fn payment(root: &RootKey, vault: VaultId, network: Network) -> SigningOrder {
    let (kind, chain_data): (Box<dyn FnOnce(String) -> WireKind>, ChainData) = match network {
        Network::Stellar => (
            Box::new(|from| {
                WireKind::StellarSendNative(wire::StellarSendNative {
                    from,
                    to: STELLAR_EVE.into(),
                    value: "1000000".into(),
                    memo: String::new(),
                    ..Default::default()
                })
            }),
            ChainData::Stellar(stellar::ChainData {
                sequence: 7,
                base_fee: 100,
                max_time: now_ms() / 1000 + 300,
                destination_exists: Some(true),
            }),
        ),
        Network::Ton => (
            Box::new(|from| {
                WireKind::TonSendNative(wire::TonSendNative {
                    from,
                    to: TON_EVE.into(),
                    value: "1000000000000".into(),
                    comment: String::new(),
                })
            }),
            ChainData::Ton(ton::ChainData::Transaction(ton::TransactionChainData {
                seqno: 3,
                deployed: true,
                valid_until: Some(u32::try_from(now_ms() / 1000 + 300).unwrap()),
                recipient_deployed: None,
                jetton: None,
            })),
        ),
        Network::Sui => (
            Box::new(|from| {
                WireKind::SuiSendNative(wire::SuiSendNative {
                    recipients: vec![],
                    from,
                    to: SUI_EVE.into(),
                    value: "1000000000000".into(),
                    gas_fee: Some(wire::SuiGas {
                        budget: Some("10000000".into()),
                        price: Some("1000".into()),
                    }),
                })
            }),
            ChainData::Sui(sui::ChainData {
                reference_gas_price: None,
                gas_used: None,
                sui_coins: vec![sui::CoinObject {
                    object_id: format!("0x{}", "11".repeat(32)),
                    version: 5,
                    digest: bs58::encode([7; 32]).into_string(),
                    balance: 2_000_000_000_000,
                    origin: None,
                }],
                sui_address_balance: 0,
                coins: Vec::new(),
                coin_address_balance: 0,
                required: Vec::new(),
                validity: None,
            }),
        ),
        Network::Aptos => (
            Box::new(|from| {
                WireKind::AptosSendNative(wire::AptosSendNative {
                    chain_id: 1,
                    from,
                    to: SUI_EVE.into(),
                    value: "100000000000".into(),
                    gas_fee: Some(wire::AptosGas {
                        max_gas_amount: Some("2000".into()),
                        gas_unit_price: Some("100".into()),
                        ..Default::default()
                    }),
                    ..Default::default()
                })
            }),
            ChainData::Aptos(aptos::ChainData {
                sequence_number: 4,
                expiration_timestamp_secs: now_ms() / 1000 + 300,
                gas_unit_price: None,
                gas_used: None,
                abi: None,
            }),
        ),
        other => panic!("{other:?}"),
    };
    let key = WalletKey::of_wallet(root, network);
    key.order(vault, network, kind, chain_data).unwrap()
}

/// The attack that emptied a Stellar wallet under the strictest policy: O calls it a Solana wallet,
/// and the 32 bytes that the network wants signed a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wallet__should_sign_no_payment_as_the_message_of_another_network() {
    let test = TestCluster::start_with(TestBus::memory(), 3, Arc::new(floor(STRICT))).await;
    test.until_live(3).await;
    let root = test.keygen(Curve::Ed25519, 2).await;
    let ask = async |order: &SigningOrder, starts: &str| {
        let fault = match test.sign(order, 2, 30_000).await {
            Ok(signatures) => {
                verify(order, &signatures);
                panic!("signed: {:?}", order.inputs);
            }
            Err(fault) => fault,
        };
        assert!(fault.message().contains(starts), "{starts}: {fault:?}");
    };
    for network in [Network::Stellar, Network::Ton, Network::Sui, Network::Aptos] {
        let payment = payment(&root, test.vault, network);
        // As what it is, it is refused.
        assert!(test.sign(&payment, 2, 30_000).await.is_err());
        let content = &payment.inputs[0].message;
        let called = |path: KeyPath| {
            let kind = solana_message(content);
            let key = WalletKey::at(&root, path);
            key.order(test.vault, Network::Solana, kind, ChainData::Nothing)
                .unwrap()
        };
        let hostile = called(payment.path.clone());
        // A signature would be one of the payment.
        assert_eq!(hostile.public_key, payment.public_key);
        assert_eq!(hostile.inputs, payment.inputs);
        ask(&hostile, "path: ").await;
        let odd = [vec![], vec![5], [payment.path.indices(), &[0]].concat()];
        for path in odd.map(|indices| KeyPath::new(indices).unwrap()) {
            ask(&called(path), "path: ").await;
        }
        // The key of the vault's Solana wallet is another, and still such content is no message.
        let own = called(KeyPath::of_wallet(Network::Solana, 5).unwrap());
        assert_ne!(own.public_key, payment.public_key);
        ask(&own, "kind: raw signing (solanaMessage) is off").await;
    }
    // Messages are signed.
    let key = WalletKey::of_wallet(&root, Network::Solana);
    let off_chain = [
        &b"\xffsolana offchain\x01\x01"[..],
        &key.child.public_key[..],
        b"hello",
    ]
    .concat();
    for content in [&b"hello"[..], &off_chain] {
        let kind = solana_message(content);
        let order = key.order(test.vault, Network::Solana, kind, ChainData::Nothing);
        let order = order.unwrap();
        verify(&order, &test.sign(&order, 2, 30_000).await.unwrap());
    }
}

/// A transaction that a network's own library made.
struct ForeignTransaction {
    network: Network,
    id: String,
    /// What the network's nodes verify a signature against.
    signed: BTreeSet<Vec<u8>>,
    /// That, what it is the hash of, and the transaction's bytes.
    contents: BTreeSet<Vec<u8>>,
}

/// Those of tests/vectors.
fn transactions() -> Vec<ForeignTransaction> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors");
    let networks = Network::ALL.map(|network| (network.key(), network));
    let mut found = Vec::new();
    for (file, network) in networks.into_iter().chain([("sonic", Network::Solana)]) {
        let text = std::fs::read(folder.join(format!("{file}.json"))).unwrap();
        let file: Value = serde_json::from_slice(&text).unwrap();
        for case in file["vectors"].as_array().unwrap() {
            let kind = case["kind"].as_str().unwrap();
            if !kind.contains("Send") && !kind.contains("ChangeTrust") {
                continue;
            }
            let of_hex = |value: &Value| hex::decode(value.as_str().unwrap()).unwrap();
            let expected = &case["expected"];
            let (mut signed, mut contents) = (BTreeSet::new(), BTreeSet::new());
            for signing in expected["signing"].as_array().unwrap() {
                signed.insert(of_hex(&signing["message"]));
                if signing["preimage"].is_string() {
                    contents.insert(of_hex(&signing["preimage"]));
                }
            }
            if let Some(unsigned) = expected["unsignedTx"].as_str() {
                let bytes = hex::decode(unsigned).ok();
                contents.extend(bytes.or_else(|| STANDARD.decode(unsigned).ok()));
            }
            contents.extend(signed.iter().cloned());
            assert!(!signed.is_empty());
            let id = case["id"].as_str().unwrap().to_owned();
            found.push(ForeignTransaction {
                network,
                id,
                signed,
                contents,
            });
        }
    }
    found
}

type MakeKind = Box<dyn Fn(String) -> WireKind>;

/// Every way to have content signed by a wallet of a network: the kind, and what makes it.
fn message_kinds(network: Network, content: &[u8]) -> Vec<(&'static str, MakeKind, ChainData)> {
    let mut kinds: Vec<(&'static str, MakeKind, ChainData)> = Vec::new();
    let bytes = content.to_vec();
    match network {
        Network::Evm => {
            for form in [
                evm_message::Type::Unspecified,
                evm_message::Type::PersonalSign,
                evm_message::Type::SignTypedData,
            ] {
                let content = bytes.clone();
                let make = move |from| {
                    WireKind::EvmMessage(wire::EvmMessage {
                        chain_id: 1,
                        from,
                        r#type: form.into(),
                        content: content.clone(),
                    })
                };
                kinds.push(("evmMessage", Box::new(make), ChainData::Nothing));
            }
        }
        Network::Aptos => {
            let message = String::from_utf8_lossy(&bytes).into_owned();
            let make = move |from| {
                WireKind::AptosMessage(wire::AptosMessage {
                    from,
                    content: Some(wire::aptos_message::Message {
                        message: message.clone(),
                        ..Default::default()
                    }),
                    ..Default::default()
                })
            };
            kinds.push(("aptosMessage", Box::new(make), ChainData::Nothing));
        }
        Network::Sui => {
            let content = bytes.clone();
            let make = move |from| {
                WireKind::SuiMessage(wire::SuiMessage {
                    from,
                    content: content.clone(),
                    ..Default::default()
                })
            };
            kinds.push(("suiMessage", Box::new(make), ChainData::Nothing));
        }
        Network::Solana => {
            let content = bytes.clone();
            let make = move |from| solana_message(&content)(from);
            kinds.push(("solanaMessage", Box::new(make), ChainData::Nothing));
        }
        Network::Ton => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let base64 = STANDARD.encode(&bytes);
            let at = |mut form: Value| {
                form["domain"] = json!("example.com");
                form["timestamp"] = json!(1_762_000_000);
                form.to_string().into_bytes()
            };
            let named = ChainData::Ton(ton::ChainData::Message {
                domain: Some("example.com".into()),
                timestamp: Some(1_762_000_000),
            });
            for (content, chain_data) in [
                (bytes.clone(), named),
                (
                    at(json!({"type": "text", "text": text})),
                    ChainData::Nothing,
                ),
                (
                    at(json!({"type": "binary", "bytes": base64})),
                    ChainData::Nothing,
                ),
                (
                    at(json!({"type": "cell", "schema": "s", "cell": base64})),
                    ChainData::Nothing,
                ),
                (
                    at(json!({"type": "ton_proof", "payload": text})),
                    ChainData::Nothing,
                ),
                (
                    json!({"type": "safe_sign", "cell": base64})
                        .to_string()
                        .into(),
                    ChainData::Nothing,
                ),
            ] {
                let make = move |from| {
                    WireKind::TonMessage(wire::TonMessage {
                        from,
                        content: content.clone(),
                        ..Default::default()
                    })
                };
                kinds.push(("tonMessage", Box::new(make), chain_data));
            }
        }
        Network::Bitcoin | Network::Tron | Network::Stellar => {}
    }
    for function in [
        EcdsaHashFunction::Unspecified,
        EcdsaHashFunction::Sha256,
        EcdsaHashFunction::UseMessageDirectly,
    ] {
        let content = bytes.clone();
        let make = move |from| {
            WireKind::RawMessage(wire::RawMessage {
                from,
                content: content.clone(),
                ecdsa_hash_function: function.into(),
            })
        };
        kinds.push(("rawMessage", Box::new(make), ChainData::Nothing));
    }
    kinds
}

#[derive(Default)]
struct RefusalCounts {
    refused: usize,
    other_bytes: usize,
}

/// Every transaction of every network, as the message of every network of its curve: refused, or
/// what is signed is something else.
#[test]
fn message__should_never_be_the_transaction_of_any_network() {
    let vault = VaultId::from_bytes([2; 16]);
    let transactions = transactions();
    let floors = [floor(STRICT), floor(LAX)];
    let mut matrix: BTreeMap<(&str, &str, &str), RefusalCounts> = BTreeMap::new();
    for curve in Curve::ALL {
        let root = root(curve);
        let networks = Network::ALL.into_iter();
        let keys: BTreeMap<Network, WalletKey<'_>> = networks
            .filter(|network| network.curve() == curve)
            .map(|network| (network, WalletKey::of_wallet(&root, network)))
            .collect();
        let own = || {
            let all = transactions.iter();
            all.filter(move |transaction| transaction.network.curve() == curve)
        };
        let verified: HashSet<&Vec<u8>> = own().flat_map(|one| &one.signed).collect();
        for transaction in own() {
            let payer = &keys[&transaction.network];
            for content in transaction.contents.iter().flat_map(|bytes| written(bytes)) {
                for (network, key) in &keys {
                    for (name, make, chain_data) in message_kinds(*network, &content) {
                        let at = (transaction.network.key(), network.key(), name);
                        let cell = matrix.entry(at).or_default();
                        let id = &transaction.id;
                        // Of the key that pays, whatever the content.
                        if *network != transaction.network
                            && let Ok(order) =
                                payer.order(vault, *network, &make, chain_data.clone())
                        {
                            for floor in &floors {
                                let fault = payer.check(floor, &order).unwrap_err();
                                assert!(fault.message().starts_with("path: "), "{fault:?}");
                            }
                        }
                        let order = key.order(vault, *network, &make, chain_data);
                        let order = order.ok().filter(|order| {
                            let mut floors = floors.iter();
                            floors.any(|floor| key.check(floor, order).is_ok())
                        });
                        let Some(order) = order else {
                            cell.refused += 1;
                            continue;
                        };
                        cell.other_bytes += 1;
                        for input in &order.inputs {
                            let same = verified.contains(&input.message);
                            assert!(!same, "{id}: signed as {name} of {}", network.name());
                        }
                        let bare = ["rawMessage", "solanaMessage"].contains(&name);
                        assert!(!bare, "{id}: signed as {name} of {}", network.name());
                    }
                }
            }
        }
    }
    let mut cases = 0;
    for (
        (of, by, kind),
        RefusalCounts {
            refused,
            other_bytes,
        },
    ) in &matrix
    {
        println!("{of:>8} as {kind} of {by}: {refused} refused, {other_bytes} sign other bytes");
        cases += refused + other_bytes;
    }
    println!(
        "{} transactions, {} pairs, {cases} cases",
        transactions.len(),
        matrix.len()
    );
    let kinds: BTreeSet<_> = matrix.keys().map(|(_, _, kind)| *kind).collect();
    assert_eq!(kinds.len(), 6, "{kinds:?}");
    for network in Network::ALL {
        let of = matrix.keys().filter(|(of, ..)| *of == network.key());
        let by: BTreeSet<_> = of.map(|(_, by, _)| *by).collect();
        let curve = Network::ALL
            .iter()
            .filter(|other| other.curve() == network.curve());
        assert_eq!(by.len(), curve.count(), "{network:?}");
    }
    assert!(cases > 5_000, "{cases}");
}

fn root(curve: Curve) -> RootKey {
    RootKey {
        curve,
        public_key: match curve {
            Curve::Secp256k1 => {
                let secret = k256::SecretKey::from_slice(&[7; 32]).unwrap();
                let point = secret.public_key().to_sec1_point(true);
                point.as_bytes().to_vec()
            }
            Curve::Ed25519 => {
                let secret = ed25519_dalek::SigningKey::from_bytes(&[7; 32]);
                secret.verifying_key().as_bytes().to_vec()
            }
        },
        chain_code: [3; 32],
    }
}

/// The bytes as they are and as texts.
fn written(bytes: &[u8]) -> [Vec<u8>; 4] {
    let hex = hex::encode(bytes);
    [
        bytes.to_vec(),
        format!("0x{hex}").into_bytes(),
        hex.into_bytes(),
        STANDARD.encode(bytes).into_bytes(),
    ]
}
