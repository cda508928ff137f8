//! An orchestrator with everything around it.

use std::sync::{Arc, atomic::Ordering};

use covault_actors::{
    chain_rpc::{CALLS_PER_NODE, ChainClient, ChainClients, ChainKey, PoolPorts, SpeedUpPolicy},
    gateway::{
        AdminCaller, Caller, Gateway, OperationResponse, VaultScope,
        command_bus::{CommandBus, memory::MemoryCommandBus},
    },
    operations::{
        AdmitNode, CreateSigningRequest, CreateVault, CreateWallet, ExecuteSigningRequests,
        GetSigningRequestDetails, ListVaults, Operation,
    },
    port::{MonotonicClock, SignerCluster},
    settings::{OrchestratorParts, OrchestratorSharing, Settings},
    store::{KeySpace, Scan, Store, memory::MemoryStore},
    webhooks::WebhookParts,
};
use covault_core::{
    fault::Fault,
    ids::{RequestId, TokenId, VaultId},
    networks::Network,
    order::NodeId,
    port::{Clock, Entropy},
    schema::{
        admin,
        wire::{self, create_signing_request_request::Type as Kind},
    },
    testing::{CounterEntropy, ManualClock, ShiftedClock},
    token::TokenAccess,
    trace::TraceParent,
};

use crate::{
    aptos_double::AptosDouble, chain_double::ChainDouble, fake_signers::FakeSigners,
    sui_double::SuiDouble, utxo_double::UtxoDouble,
};

/// The EVM chain of the tests; a node for it is configured.
pub const CHAIN: u64 = 31337;

/// What outlives a restart of the orchestrator.
#[derive(Clone)]
pub struct World {
    pub store: Arc<dyn Store>,
    /// Where `store` is, when it is on a server, and processes open it for themselves.
    pub database: Option<String>,
    pub signers: Arc<FakeSigners>,
    pub evm: Arc<ChainDouble>,
    pub solana: Arc<ChainDouble>,
    pub bitcoin: Arc<UtxoDouble>,
    pub aptos: Arc<AptosDouble>,
    pub sui: Arc<SuiDouble>,
    pub clock: Arc<ShiftedClock>,
    pub entropy: Arc<CounterEntropy>,
    pub settings: Settings,
    /// When transactions of a chain are replaced that no block takes.
    pub speed_up: Option<(ChainKey, SpeedUpPolicy)>,
    pub command_bus: Arc<MemoryCommandBus>,
    pub monotonic: Arc<ManualClock>,
    pub runs_vaults: bool,
    pub home: Option<[u8; 32]>,
    /// Nothing is sent to webhooks without keys.
    pub webhooks: WebhookParts,
}

impl World {
    pub fn new() -> Self {
        Self::on(Arc::new(MemoryStore::new()))
    }

    pub fn on(store: Arc<dyn Store>) -> Self {
        let clock: Arc<ShiftedClock> = Arc::default();
        Self {
            store,
            database: None,
            signers: FakeSigners::new(),
            evm: ChainDouble::new(),
            solana: ChainDouble::new(),
            bitcoin: UtxoDouble::new(),
            aptos: AptosDouble::new(Arc::clone(&clock)),
            sui: SuiDouble::new(),
            clock,
            entropy: Arc::default(),
            settings: Settings {
                signing_deadline_ms: 20_000,
                most_wait_ms: 600_000,
                settling_ms: 100,
                tracking_first_ms: 5,
                tracking_most_ms: 40,
                retry_first_ms: 2,
                retry_most_ms: 20,
                heartbeat_ms: 10,
                // `outcome` asks again.
                execute_wait_ms: 20,
                ..Settings::default()
            },
            speed_up: None,
            command_bus: Arc::default(),
            monotonic: Arc::default(),
            runs_vaults: true,
            home: None,
            webhooks: WebhookParts::default(),
        }
    }

    pub fn chains(&self) -> ChainClients {
        let chains = self.clients();
        match self.speed_up {
            Some((chain, policy)) => chains.with_speed_up(chain, policy),
            None => chains,
        }
    }

    fn clients(&self) -> ChainClients {
        ChainClients::default()
            .with(
                ChainKey::evm(CHAIN),
                Arc::clone(&self.evm) as Arc<dyn ChainClient>,
            )
            .with(
                ChainKey::SOLANA,
                Arc::clone(&self.solana) as Arc<dyn ChainClient>,
            )
            .with(
                ChainKey::of(Network::Bitcoin, None),
                Arc::clone(&self.bitcoin) as Arc<dyn ChainClient>,
            )
            .with(
                ChainKey::APTOS,
                Arc::clone(&self.aptos) as Arc<dyn ChainClient>,
            )
            .with(
                ChainKey::of(Network::Sui, None),
                Arc::clone(&self.sui) as Arc<dyn ChainClient>,
            )
    }

    pub fn ports(&self) -> PoolPorts {
        PoolPorts {
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            entropy: Arc::clone(&self.entropy) as Arc<dyn Entropy>,
            calls_per_node: CALLS_PER_NODE,
        }
    }

    pub async fn start(&self) -> Gateway {
        self.start_on(Arc::clone(&self.store)).await
    }

    pub async fn start_on(&self, store: Arc<dyn Store>) -> Gateway {
        self.start_with(store, self.chains()).await
    }

    pub async fn start_with(&self, store: Arc<dyn Store>, chains: ChainClients) -> Gateway {
        self.try_start_with(store, chains).await.unwrap()
    }

    pub async fn try_start_with(
        &self,
        store: Arc<dyn Store>,
        chains: ChainClients,
    ) -> Result<Gateway, Fault> {
        Gateway::start(OrchestratorParts {
            store,
            signers: Arc::clone(&self.signers) as Arc<dyn SignerCluster>,
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            entropy: Arc::clone(&self.entropy) as Arc<dyn Entropy>,
            chains,
            settings: self.settings.clone(),
            webhooks: self.webhooks.clone(),
            sharing: OrchestratorSharing {
                name: "test".into(),
                home: self.home,
                monotonic: Arc::clone(&self.monotonic) as Arc<dyn MonotonicClock>,
                command_bus: Arc::clone(&self.command_bus) as Arc<dyn CommandBus>,
                runs_vaults: self.runs_vaults,
                ..OrchestratorSharing::default()
            },
        })
        .await
    }

    /// What the clock says, in milliseconds since the Unix epoch.
    pub fn clock_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Time passes.
    pub fn pass(&self, ms: u64) {
        self.clock.ahead_ms.fetch_add(ms, Ordering::SeqCst);
    }

    /// Every request in the store, in no order that means anything.
    pub async fn requests(&self) -> Vec<RequestId> {
        let rows = self
            .store
            .scan(&Scan::prefix(KeySpace::Request, &[], 100_000))
            .await
            .unwrap();
        rows.into_iter()
            .map(|(key, _)| RequestId::from_bytes(key.bytes.try_into().unwrap()))
            .collect()
    }

    /// Transactions that are still followed.
    pub async fn followed(&self) -> usize {
        let all = Scan::prefix(KeySpace::Outbox, &[], 100_000);
        self.store.scan(&all).await.unwrap().len() - self.pending().await
    }

    /// Effects that are still to be run.
    pub async fn pending(&self) -> usize {
        let rows = self
            .store
            .scan(&Scan::prefix(KeySpace::Outbox, &[], 100_000))
            .await
            .unwrap();
        // To follow a transaction is the sixth effect, and no request waits for it.
        let effects = rows.iter().filter(|(_, row)| row.value.last() != Some(&5));
        effects.count()
    }
}

pub fn admin() -> Caller {
    Caller {
        token: TokenId::from_bytes([1; 16]),
        vaults: VaultScope::All,
        access: TokenAccess::Full,
        admin: Some(AdminCaller::unnamed()),
        request_id: "test".into(),
        person: None,
        trace: TraceParent::Unknown,
    }
}

pub fn stranger() -> Caller {
    Caller {
        token: TokenId::from_bytes([2; 16]),
        vaults: VaultScope::Only(vec![]),
        access: TokenAccess::Full,
        admin: None,
        request_id: "test".into(),
        person: None,
        trace: TraceParent::Unknown,
    }
}

/// A signer node of the tests. The ids are points of the curve, in the order of their numbers.
pub fn node(number: u8) -> NodeId {
    let mut ids = (0..=u8::MAX).map(|more| {
        let mut id = [0; 32];
        (id[0], id[1]) = (number, more);
        NodeId(id)
    });
    ids.find(|id| id.verifying_key().is_ok()).unwrap()
}

/// The OpenSSH lines of nodes.
pub fn lines(numbers: impl IntoIterator<Item = u8>) -> Vec<String> {
    let line = |number| node(number).openssh_line("");
    numbers.into_iter().map(line).collect()
}

/// Calls an operation.
pub async fn call<O: Operation>(
    gateway: &Gateway,
    caller: &Caller,
    request: O::Request,
) -> Result<O::Response, Fault> {
    call_with_key::<O>(gateway, caller, request, None)
        .await
        .map(|(response, _)| response)
}

/// Calls an operation with an idempotency key; also says what the key did.
pub async fn call_with_key<O: Operation>(
    gateway: &Gateway,
    caller: &Caller,
    request: O::Request,
    key: Option<&str>,
) -> Result<(O::Response, OperationResponse), Fault> {
    let key = key.map(str::to_owned);
    gateway.call_typed::<O>(caller, &request, key).await
}

/// Admits the nodes 1 to 3, which the tests make vaults of; false when that failed.
pub async fn admit(gateway: &Gateway) -> bool {
    for public_key in lines(1..=3) {
        let request = admin::AdmitNodeRequest {
            public_key,
            name: String::new(),
        };
        let admitted = call::<AdmitNode>(gateway, &admin(), request).await;
        if admitted.is_err() {
            return false;
        }
    }
    true
}

/// What makes a vault of nodes 1 to 3, two of which sign.
pub fn vault_request(name: &str) -> admin::CreateVaultRequest {
    admin::CreateVaultRequest {
        name: name.into(),
        threshold: 2,
        signers: lines(1..=3),
        ecdsa_backend: None,
        replace: false,
        approvals: Some(automatic()),
    }
}

/// The rule of a vault that signs at once.
pub fn automatic() -> admin::ApprovalRule {
    admin::ApprovalRule {
        mode: "automatic".into(),
        ..Default::default()
    }
}

/// A vault with its keys.
pub async fn vault(gateway: &Gateway, name: &str) -> VaultId {
    assert!(admit(gateway).await);
    let made = call::<CreateVault>(gateway, &admin(), vault_request(name)).await;
    let vault = made.unwrap().vault.unwrap();
    ready(gateway, name).await;
    vault.uuid.parse().unwrap()
}

/// The vault of a name as operators see it.
pub async fn vault_named(gateway: &Gateway, name: &str) -> Result<admin::Vault, Fault> {
    let mut request = admin::ListVaultsRequest::default();
    loop {
        let page = call::<ListVaults>(gateway, &admin(), request).await?.vaults;
        request = admin::ListVaultsRequest {
            after: page.last().map(|vault| vault.name.clone()),
        };
        assert!(!page.is_empty(), "there is no vault {name}");
        if let Some(vault) = page.into_iter().find(|vault| vault.name == name) {
            return Ok(vault);
        }
    }
}

/// Waits for the keys of a vault.
pub async fn ready(gateway: &Gateway, name: &str) {
    while !vault_named(gateway, name).await.unwrap().ready {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

pub fn wallet_request(
    vault: VaultId,
    network: wire::NetworkType,
    reference: &str,
) -> wire::CreateWalletRequest {
    wire::CreateWalletRequest {
        vault_uuid: vault.to_string(),
        network_type: network.into(),
        r#ref: reference.into(),
        name: "n".into(),
        ..Default::default()
    }
}

pub async fn wallet(gateway: &Gateway, vault: VaultId, network: wire::NetworkType) -> wire::Wallet {
    let request = wallet_request(vault, network, "");
    let made = call::<CreateWallet>(gateway, &admin(), request).await;
    made.unwrap().details.unwrap()
}

pub async fn evm_wallet(gateway: &Gateway, vault: VaultId) -> String {
    wallet(gateway, vault, wire::NetworkType::Evm).await.address
}

pub fn request(kind: Kind) -> wire::CreateSigningRequestRequest {
    wire::CreateSigningRequestRequest {
        r#type: Some(kind),
        ..Default::default()
    }
}

pub fn raw(from: &str) -> Kind {
    Kind::RawMessage(wire::RawMessage {
        from: from.into(),
        content: b"hello".to_vec(),
        ecdsa_hash_function: wire::EcdsaHashFunction::Sha256.into(),
    })
}

pub fn send(from: &str) -> Kind {
    Kind::EvmSendNative(send_native(from))
}

pub fn send_native(from: &str) -> wire::EvmSendNative {
    wire::EvmSendNative {
        chain_id: CHAIN,
        from: from.into(),
        to: "0x00000000000000000000000000000000000000aa".into(),
        value: "5".into(),
        ..Default::default()
    }
}

pub async fn try_create(
    gateway: &Gateway,
    request: wire::CreateSigningRequestRequest,
    key: Option<&str>,
) -> Result<(wire::SigningRequest, OperationResponse), Fault> {
    let made = call_with_key::<CreateSigningRequest>(gateway, &admin(), request, key).await;
    made.map(|(response, answer)| (response.signing_request.unwrap(), answer))
}

/// Creates a request and returns it as the client sees it.
pub async fn create(gateway: &Gateway, kind: Kind) -> wire::SigningRequest {
    try_create(gateway, request(kind), None).await.unwrap().0
}

/// The outcome of a request.
pub async fn outcome(gateway: &Gateway, uuid: &str) -> wire::ExecuteSigningRequestsResponse {
    loop {
        match try_outcome(gateway, &admin(), uuid).await {
            Err(fault) if fault.message().contains("still pending") => {}
            outcome => return outcome.unwrap(),
        }
    }
}

/// What executeSigningRequests says; it waits for 20 ms, unless the world has another setting.
pub async fn try_outcome(
    gateway: &Gateway,
    caller: &Caller,
    uuid: &str,
) -> Result<wire::ExecuteSigningRequestsResponse, Fault> {
    let request = wire::ExecuteSigningRequestsRequest { uuid: uuid.into() };
    call::<ExecuteSigningRequests>(gateway, caller, request).await
}

pub async fn details(gateway: &Gateway, uuid: &str) -> wire::SigningRequest {
    let request = wire::GetSigningRequestDetailsRequest { uuid: uuid.into() };
    let details = call::<GetSigningRequestDetails>(gateway, &admin(), request).await;
    details.unwrap().signing_request.unwrap()
}

/// The request that was made.
pub fn created((request, _): (wire::SigningRequest, OperationResponse)) -> wire::SigningRequest {
    request
}
