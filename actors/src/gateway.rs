//! The only door into the orchestrator.

use covault_core::{fault::Fault, ids::TokenId, order::NodeId, schema::wire};

use crate::settings::Orchestrator;

/// Who calls, after authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The token; scope of idempotency keys.
    pub token: TokenId,
    /// What the token may reach.
    pub vaults: VaultScope,
    /// The request id that errors and logs carry.
    pub request_id: String,
}

/// The vaults that a caller may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VaultScope {
    /// Every vault (the admin token).
    All,
    /// These.
    Only(Vec<covault_core::ids::VaultId>),
}

/// An idempotency key with the SHA-256 of the request body it came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// 1 to 255 characters.
    pub key: String,
    /// SHA-256 of the body.
    pub body_hash: [u8; 32],
}

/// Something to be done. Durable when [`Gateway::submit`] returns.
#[derive(Clone, Debug)]
pub enum Command {
    /// createWallet.
    CreateWallet(wire::CreateWalletRequest),
    /// createSigningRequest.
    CreateSigningRequest(wire::CreateSigningRequestRequest),
    /// Makes a vault: keygen of both root keys. Answers when the vault is stored; its keys
    /// follow (`Query::Vault`). The name is unique: repeating it answers the same vault.
    CreateVault {
        /// Name, unique.
        name: String,
        /// Signers needed, 2 or more.
        threshold: u16,
        /// The nodes that get a share.
        signers: Vec<NodeId>,
    },
}

/// What a command made.
#[derive(Clone, Debug)]
pub enum Receipt {
    /// The wallet.
    Wallet(wire::Wallet),
    /// The request, pending.
    SigningRequest(Box<wire::SigningRequest>),
    /// The vault.
    Vault(VaultView),
}

/// A receipt, and whether an idempotency key replayed it.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// What was made (or, replayed, what was made then: byte for byte).
    pub receipt: Receipt,
    /// An earlier call with the same key made it.
    pub replayed: bool,
    /// That call had another body.
    pub body_mismatch: bool,
}

/// A question. Answered from state; only `Outcome` waits.
#[derive(Clone, Debug)]
pub enum Query {
    /// getSigningRequestDetails.
    SigningRequest {
        /// The uuid as the client sent it.
        uuid: String,
    },
    /// executeSigningRequests: waits until the request is final.
    Outcome {
        /// The uuid as the client sent it.
        uuid: String,
        /// How long to wait, in milliseconds.
        timeout_ms: u64,
    },
    /// getWalletInfo by address.
    WalletByAddress(String),
    /// getWalletInfo by ref.
    WalletByRef(String),
    /// getWalletList.
    Wallets(wire::GetWalletListRequest),
    /// getBalance.
    Balance(wire::GetBalanceRequest),
    /// One vault, by name.
    Vault(String),
    /// All vaults in scope.
    Vaults,
    /// All signer nodes.
    Nodes,
    /// Whether the service can take requests: store writable, bus reachable.
    Ready,
}

/// An answer.
#[derive(Clone, Debug)]
pub enum View {
    /// A signing request.
    SigningRequest(Box<wire::SigningRequest>),
    /// How a request ended; the response message of executeSigningRequests.
    Outcome(Box<wire::ExecuteSigningRequestsResponse>),
    /// A wallet.
    Wallet(wire::Wallet),
    /// Wallets.
    Wallets(Vec<wire::Wallet>),
    /// A balance, decimal, in the smallest unit.
    Balance(String),
    /// A vault.
    Vault(VaultView),
    /// Vaults.
    Vaults(Vec<VaultView>),
    /// Signer nodes.
    Nodes(Vec<crate::port::NodeView>),
    /// Ready.
    Ready,
}

/// A vault as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaultView {
    /// Id.
    pub id: covault_core::ids::VaultId,
    /// Name.
    pub name: String,
    /// Signers needed.
    pub threshold: u16,
    /// Share holders, in the order of the keygen.
    pub signers: Vec<NodeId>,
    /// Whether both root keys exist.
    pub ready: bool,
    /// Why key generation failed, where it did for good.
    pub failed_reason: Option<String>,
}

/// The door. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {}

impl Gateway {
    /// Starts the orchestrator: loads what is live from the store and goes on with it.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Unavailable`] when the store cannot be read.
    pub async fn start(orchestrator: Orchestrator) -> Result<Self, Fault> {
        let _ = orchestrator;
        todo!()
    }

    /// Stops every actor. What was accepted is on disk and goes on at the next start.
    pub async fn stop(&self) {
        todo!()
    }

    /// Does something. When it returns, the effect is on disk.
    ///
    /// # Errors
    /// Any class; nothing was changed then.
    pub async fn submit(
        &self,
        caller: &Caller,
        command: Command,
        idempotency: Option<IdempotencyKey>,
    ) -> Result<Submitted, Fault> {
        let _ = (caller, command, idempotency);
        todo!()
    }

    /// Answers a question.
    ///
    /// # Errors
    /// Any class.
    pub async fn view(&self, caller: &Caller, query: Query) -> Result<View, Fault> {
        let _ = (caller, query);
        todo!()
    }
}
