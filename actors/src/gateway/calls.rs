//! What the gateway is asked: commands and questions.

use covault_core::{
    audit::Chain,
    ids::SessionId,
    order::NodeId,
    schema::wire,
    scheme::Scheme,
    token::{NewToken, TokenHash},
};

use crate::{
    audit, deposits::Configure as ConfigureSweep, rows::Operation, vault::ReshareRequest as Reshare,
};

/// An idempotency key with a SHA-256 of what it came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// 1 to 255 characters.
    pub key: String,
    /// SHA-256 that tells one request from another.
    pub body_hash: [u8; 32],
}

/// Something to be done. Durable when [`Gateway::submit`] returns.
#[derive(Clone, Debug)]
pub enum Command {
    /// createWallet.
    CreateWallet(wire::CreateWalletRequest),
    /// updateWallet.
    UpdateWallet(wire::UpdateWalletRequest),
    /// createSigningRequest.
    CreateSigningRequest(wire::CreateSigningRequestRequest),
    /// rejectSigningRequest.
    RejectSigningRequest {
        /// The uuid as the client sent it.
        uuid: String,
    },
    /// resimulation.
    Resimulate {
        /// The uuid as the client sent it.
        uuid: String,
    },
    /// createBatchPayment.
    CreateBatchPayment(wire::CreateBatchPaymentRequest),
    /// Makes a vault: keygen of both root keys. Answers when the vault is stored; its keys
    /// follow (`Query::Vault`). The name is unique: repeating it answers the same vault, and
    /// tries again what had failed for good.
    CreateVault {
        /// Name, unique.
        name: String,
        /// Signers needed, 2 or more.
        threshold: u16,
        /// The nodes that get a share.
        signers: Vec<NodeId>,
        /// The scheme of its ECDSA key.
        ecdsa: Scheme,
    },
    /// As [`Command::CreateVault`], and has a vault of this name that has not all its keys yet make
    /// those that it lacks with these signers: the first ones may never come.
    ReplaceSigners {
        /// Name, unique.
        name: String,
        /// Signers needed, 2 or more.
        threshold: u16,
        /// The nodes that get a share.
        signers: Vec<NodeId>,
        /// The scheme of its ECDSA key.
        ecdsa: Scheme,
    },
    /// Makes new shares of a vault's keys: refresh, reshare, repair. Answers when the wish is
    /// stored; the keys' views say how it goes. Repeating it while it is in work changes nothing.
    ReshareVault {
        /// The vault's uuid.
        vault: String,
        /// What is wanted.
        reshare: Reshare,
    },
    /// Cancels that, before the new shares are in use.
    CancelReshare {
        /// The vault's uuid.
        vault: String,
    },
    /// Has every holder of a vault's keys encrypt its share to recipients that are kept offline.
    BackupVault {
        /// The vault's uuid.
        vault: String,
        /// age recipients ("age1..."), all of which each node's own configuration must name.
        recipients: Vec<String>,
    },
    /// Lets a signer node be used. Repeating it changes nothing but the name, if one is given.
    AdmitNode {
        /// Its identity.
        id: NodeId,
        /// What operators call it; empty: what it calls itself.
        name: String,
    },
    /// Ends the use of a signer node; refused while it holds shares.
    RemoveNode(NodeId),
    /// Makes an API token.
    CreateToken(NewToken),
    /// Ends the use of an API token, by its id or name. Repeating it by id changes nothing.
    RevokeToken(String),
    /// Changes what a sweep token has configured for a network.
    ConfigureSweep(ConfigureSweep),
    /// sweep/wallets. Once per token, network and ref.
    CreateDepositWallet(wire::CreateDepositWalletRequest),
    /// sweep/addWatchAddress. Once per token and address.
    AddWatchAddress(wire::AddWatchAddressRequest),
    /// Begins a backup of the store; its parts are asked for then ([`Query::BackupPart`]).
    BeginBackup,
    /// Lets clients in again after a restore.
    LetClientsIn,
}

impl Command {
    /// What an idempotency key belongs to.
    pub(crate) fn operation(&self) -> Option<Operation> {
        match self {
            Command::CreateWallet(_) => Some(Operation::CreateWallet),
            Command::CreateSigningRequest(_) => Some(Operation::CreateSigningRequest),
            Command::CreateBatchPayment(_) => Some(Operation::CreateBatchPayment),
            // A vault's name is its key, as a token's, and a deposit's is (token, network, ref);
            // repeating the others does no harm.
            Command::UpdateWallet(_)
            | Command::RejectSigningRequest { .. }
            | Command::Resimulate { .. }
            | Command::CreateVault { .. }
            | Command::ReplaceSigners { .. }
            | Command::ReshareVault { .. }
            | Command::CancelReshare { .. }
            | Command::BackupVault { .. }
            | Command::AdmitNode { .. }
            | Command::RemoveNode(_)
            | Command::CreateToken(_)
            | Command::RevokeToken(_)
            | Command::ConfigureSweep(_)
            | Command::CreateDepositWallet(_)
            | Command::AddWatchAddress(_)
            | Command::BeginBackup
            | Command::LetClientsIn => None,
        }
    }
}

/// A question. Answered from state; only `Outcome` waits.
#[derive(Clone, Debug)]
pub enum Query {
    /// getSigningRequestDetails.
    SigningRequest {
        /// The uuid as the client sent it.
        uuid: String,
    },
    /// getSigningRequestList.
    SigningRequests(wire::GetSigningRequestListRequest),
    /// getBatchPaymentDetails.
    BatchPayment {
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
    /// All admitted signer nodes, and those that want to join.
    Nodes,
    /// All API tokens.
    Tokens,
    /// The token of a hash that may be used now.
    Authenticate(TokenHash),
    /// What a sweep token has configured, by its id or name.
    Sweep(String),
    /// A question about the audit log.
    Audit(AuditQuery),
    /// A part of a backup, by the backup's id and the part's number, from 0 on.
    BackupPart(SessionId, u64),
    /// How the nodes of the chains are doing.
    ChainNodes,
    /// How many requests cannot go on now, and what became of transactions that nodes had forgotten.
    Stuck,
    /// Whether the service can take requests: store writable, bus reachable.
    Ready,
}

/// A question about the audit log; see [`audit::Log`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditQuery {
    /// The next chains after one.
    Chains(Option<Chain>),
    /// The entries of a chain from a number on.
    Entries(Chain, u64),
    /// What is older than the chains, after one such place.
    Older(Option<audit::AuditCursor>),
}
