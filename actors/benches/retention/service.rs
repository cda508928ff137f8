//! An orchestrator whose cluster is one whole key per vault, and whose chain takes everything.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use covault_actors::{
    gateway::{
        Caller, Command, Gateway, IdempotencyKey, Query, Receipt, Submitted, VaultScope, View,
    },
    rpc::{Broadcast, ChainClient, ChainError, ChainKey, Chains, Shipment},
    settings::{Orchestrator, Settings, Sharing},
    store::Store,
};
use covault_core::{
    chain::{Facts, Needs, evm},
    fault::Fault,
    ids::{TokenId, VaultId},
    order::{Generation, NodeId},
    port::{Clock, Entropy},
    schema::wire::{self, create_signing_request_request::Type as Kind},
    scheme::Scheme,
    signature::Curve,
    token::{Access, Kind as TokenKind, NewToken, Vaults},
};
use sha2::{Digest as _, Sha256};

use crate::one_key::{Disk, OneKey};

pub const CHAIN: u64 = 31337;

/// Milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

struct Now;

impl Clock for Now {
    fn now_ms(&self) -> u64 {
        now_ms()
    }
}

/// No two processes have the same.
struct Random {
    seed: [u8; 32],
    next: AtomicU64,
}

impl Random {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seed = format!("{} {}", std::process::id(), now.as_nanos());
        Self {
            seed: Sha256::digest(seed).into(),
            next: AtomicU64::new(0),
        }
    }
}

impl Entropy for Random {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(32) {
            let number = self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            let block = Sha256::digest([self.seed.as_slice(), &number].concat());
            chunk.copy_from_slice(&block[..chunk.len()]);
        }
    }
}

/// A chain that takes everything at once, and knows how many transactions accounts have sent.
#[derive(Default)]
pub struct Chain {
    pub sent: Mutex<HashMap<String, u64>>,
    /// Who is asked about, as the numbers are handed out one at a time.
    last: Mutex<String>,
}

#[async_trait]
impl ChainClient for Chain {
    async fn facts(&self, needs: &Needs, _now_ms: u64) -> Result<Facts, ChainError> {
        let Needs::Evm(needs) = needs else {
            panic!("{needs:?}")
        };
        needs.from.clone_into(&mut self.last.lock().unwrap());
        let sent = self.sent.lock().unwrap();
        let sent = sent.get(&needs.from).copied().unwrap_or_default();
        Ok(Facts::Evm(evm::Facts {
            nonce: needs.nonce.then_some(sent),
            eip1559: true,
            fees: needs.fees.as_ref().map(|_| evm::Fees {
                estimate_gas: 21_000,
                base_fee: 1_000_000_000,
                max_priority_fee: 1_000,
            }),
        }))
    }

    async fn broadcast(&self, _shipment: &Shipment) -> Broadcast {
        // One transaction at a time: it is that of who asked last.
        let from = self.last.lock().unwrap().clone();
        *self.sent.lock().unwrap().entry(from).or_default() += 1;
        Broadcast::Accepted
    }

    async fn balance(&self, _: &str, _: Option<&str>) -> Result<String, ChainError> {
        Ok("5".into())
    }
}

/// The cluster of an earlier process, with its shares of these vaults.
pub fn signers(vaults: &[VaultId]) -> Arc<OneKey> {
    let signers = OneKey::new();
    let holders: Vec<_> = (1..=3).map(|number| NodeId([number; 32])).collect();
    for vault in vaults {
        for curve in [Curve::Secp256k1, Curve::Ed25519] {
            let mut disk = Disk::default();
            disk.active = Some(Generation {
                epoch: 0,
                threshold: 2,
                holders: holders.clone(),
            });
            let disks = holders.iter().map(|node| (*node, disk.clone())).collect();
            let key = (*vault, Scheme::default_of(curve));
            signers.nodes.lock().unwrap().shares.insert(key, disks);
        }
    }
    signers
}

pub async fn start(store: Arc<dyn Store>, signers: Arc<OneKey>, chain: Arc<Chain>) -> Gateway {
    Gateway::start(Orchestrator {
        store,
        signers,
        clock: Arc::new(Now),
        entropy: Arc::new(Random::new()),
        chains: Chains::default().with(ChainKey::evm(CHAIN), chain),
        settings: Settings::default(),
        sharing: Sharing::default(),
    })
    .await
    .unwrap()
}

pub fn operator() -> Caller {
    Caller {
        token: TokenId::from_bytes([1; 16]),
        vaults: VaultScope::All,
        access: Access::Full,
        operator: true,
        request_id: "bench".into(),
    }
}

/// A caller with a token in the store, as those of services are.
pub fn platform(token: TokenId) -> Caller {
    Caller {
        token,
        operator: false,
        ..operator()
    }
}

pub async fn make_token(gateway: &Gateway) -> TokenId {
    let new = NewToken {
        name: "platform".into(),
        kind: TokenKind::Platform,
        vaults: Vaults::All,
        access: Access::Full,
        allow: vec![],
        expires_at_ms: None,
    };
    let operator = operator();
    let made = gateway.submit(&operator, Command::CreateToken(new), None);
    match made.await.unwrap().receipt {
        Receipt::TokenMade(made) => made.record.id,
        other => panic!("{other:?}"),
    }
}

pub async fn make_vault(gateway: &Gateway, name: &str) -> VaultId {
    let signers: Vec<_> = (1..=3).map(|number| NodeId([number; 32])).collect();
    for id in &signers {
        let admit = Command::AdmitNode {
            id: *id,
            name: String::new(),
        };
        gateway.submit(&operator(), admit, None).await.unwrap();
    }
    let command = Command::CreateVault {
        name: name.into(),
        threshold: 2,
        signers,
        ecdsa: Scheme::Dkls23,
    };
    gateway.submit(&operator(), command, None).await.unwrap();
    loop {
        match gateway.view(&operator(), Query::Vault(name.into())).await {
            Ok(View::Vault(vault)) if vault.ready => return vault.id,
            _ => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
        }
    }
}

/// A wallet; every second one is of Solana.
pub async fn make_wallet(
    gateway: &Gateway,
    caller: &Caller,
    vault: VaultId,
    number: u64,
) -> wire::Wallet {
    let network = match number % 2 {
        0 => wire::NetworkType::Evm,
        _ => wire::NetworkType::Solana,
    };
    let command = Command::CreateWallet(wire::CreateWalletRequest {
        vault_uuid: vault.to_string(),
        network_type: network.into(),
        r#ref: format!("customer {number}"),
        name: format!("wallet of the customer {number}"),
        ..Default::default()
    });
    let made = gateway.submit(caller, command, None).await.unwrap();
    match made.receipt {
        Receipt::Wallet(wallet) => wallet,
        other => panic!("{other:?}"),
    }
}

pub fn message(from: &str) -> Kind {
    Kind::RawMessage(wire::RawMessage {
        from: from.into(),
        content: vec![b'x'; 200],
        ecdsa_hash_function: wire::EcdsaHashFunction::Sha256.into(),
    })
}

pub fn payment(from: &str) -> Kind {
    Kind::EvmSendNative(wire::EvmSendNative {
        chain_id: CHAIN,
        from: from.into(),
        to: "0x00000000000000000000000000000000000000aa".into(),
        value: "5".into(),
        ..Default::default()
    })
}

/// Makes a request.
pub async fn create(
    gateway: &Gateway,
    caller: &Caller,
    kind: Kind,
    key: String,
) -> Result<Submitted, Fault> {
    let request = wire::CreateSigningRequestRequest {
        r#type: Some(kind),
        notes: Some("the invoice of this month".into()),
        ..Default::default()
    };
    let key = IdempotencyKey {
        key,
        body_hash: [7; 32],
    };
    let command = Command::CreateSigningRequest(request);
    gateway.submit(caller, command, Some(key)).await
}

/// Makes a request and waits for its end; its id.
pub async fn complete(gateway: &Gateway, caller: &Caller, kind: Kind, key: String) -> String {
    let made = create(gateway, caller, kind, key).await.unwrap();
    let Receipt::SigningRequest(request) = made.receipt else {
        panic!("{made:?}")
    };
    let query = Query::Outcome {
        uuid: request.uuid.clone(),
        timeout_ms: 60_000,
    };
    match gateway.view(caller, query).await.unwrap() {
        View::Outcome(outcome) if outcome.error.is_none() => request.uuid,
        other => panic!("{other:?}"),
    }
}

pub fn batch_payment(from: &str) -> Command {
    let to = "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed";
    let recipient = |number: u32| wire::BatchPaymentRecipient {
        address: to.into(),
        amount: number.to_string(),
        notes: Some("salary".into()),
    };
    Command::CreateBatchPayment(wire::CreateBatchPaymentRequest {
        name: "salaries".into(),
        notes: None,
        r#type: Some(
            wire::create_batch_payment_request::Type::EvmBatchSendNative(
                wire::EvmBatchSendNative {
                    chain_id: CHAIN,
                    from: from.into(),
                    recipients: (1..=20).map(recipient).collect(),
                },
            ),
        ),
    })
}
