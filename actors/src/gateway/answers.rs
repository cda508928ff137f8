//! What the gateway answers: receipts of commands, and views.

use covault_core::{
    audit::{Chain, Head, Linked},
    fault::Fault,
    ids::SessionId,
    request::Audit,
    schema::wire,
    token::ApiToken,
};
use prost::Message as _;

use crate::{
    audit,
    deposits::SweepView,
    idempotency::Earlier,
    operations::ShareBackup,
    port::{NodeView, UnadmittedView},
    rebroadcast::Forgotten,
    rows::Operation,
    rpc::EndpointHealth,
    store::RawRow,
    tokens::MadeToken,
    vault::view::VaultView,
};

/// What is stuck, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Requests that cannot go on now.
    pub waiting: usize,
    /// What became of transactions that nodes had forgotten.
    pub forgotten: Forgotten,
}

/// What a command made.
#[derive(Clone, Debug)]
pub enum Receipt {
    /// The wallet.
    Wallet(wire::Wallet),
    /// The request, pending.
    SigningRequest(Box<wire::SigningRequest>),
    /// The request is rejected.
    Rejected,
    /// What a request's transaction would do; the bytes of `simulation`.
    Simulation(Vec<u8>),
    /// The batch, pending.
    BatchPayment(Box<wire::BatchPayment>),
    /// The vault.
    Vault(VaultView),
    /// Encrypted shares.
    Backups(Vec<ShareBackup>),
    /// The list of nodes is as it was asked for.
    NodesChanged,
    /// A new token: the only time that it is shown.
    TokenMade(Box<MadeToken>),
    /// A token as it is now.
    Token(Box<ApiToken>),
    /// A sweep token's configuration.
    Sweep(Box<SweepView>),
    /// The deposit wallet.
    Deposit(wire::CreateDepositWalletResponse),
    /// The watch.
    Watch(wire::AddWatchAddressResponse),
    /// The id of a backup.
    Backup(SessionId),
    /// Clients are let in.
    ClientsLetIn,
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

/// An answer about the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditView {
    /// Chains, with their heads.
    Chains(Vec<(Chain, Option<Head>)>),
    /// Entries, with the numbers under which they lie.
    Entries {
        /// At most [`audit::PAGE`].
        entries: Vec<(u64, Linked)>,
        /// The head of the chain, looked up after them.
        head: Option<Head>,
    },
    /// What is older.
    Older(Vec<(audit::AuditCursor, Vec<Audit>)>),
}

/// An answer.
#[derive(Clone, Debug)]
pub enum View {
    /// A signing request.
    SigningRequest(Box<wire::SigningRequest>),
    /// Signing requests.
    SigningRequests(Vec<wire::SigningRequest>),
    /// A batch payment.
    BatchPayment(Box<wire::BatchPayment>),
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
    Nodes {
        /// Admitted, by name.
        nodes: Vec<NodeView>,
        /// Not admitted, by key.
        unadmitted: Vec<UnadmittedView>,
    },
    /// API tokens, in the order in which they were made.
    Tokens {
        /// Revoked and expired ones too.
        tokens: Vec<ApiToken>,
        /// The orchestrator's clock, in milliseconds since the Unix epoch.
        now_ms: u64,
    },
    /// An API token.
    Token(Box<ApiToken>),
    /// A sweep token's configuration.
    Sweep(Box<SweepView>),
    /// A part of the audit log.
    Audit(AuditView),
    /// Rows of a backup; none: there are no more.
    BackupPart(Vec<RawRow>),
    /// Nodes of chains.
    ChainNodes(Vec<EndpointHealth>),
    /// What is stuck.
    Stuck(Stuck),
    /// Ready.
    Ready,
}

impl Submitted {
    /// What this call made.
    pub(super) fn first(receipt: Receipt) -> Self {
        Self {
            receipt,
            replayed: false,
            body_mismatch: false,
        }
    }

    /// What an earlier call with the same key got.
    pub(crate) fn again(operation: Operation, earlier: &Earlier) -> Result<Self, Fault> {
        let bytes = earlier.receipt.as_slice();
        let receipt = match operation {
            Operation::CreateWallet => wire::Wallet::decode(bytes).map(Receipt::Wallet),
            Operation::CreateSigningRequest => wire::SigningRequest::decode(bytes)
                .map(|request| Receipt::SigningRequest(Box::new(request))),
            Operation::CreateBatchPayment => wire::BatchPayment::decode(bytes)
                .map(|batch| Receipt::BatchPayment(Box::new(batch))),
        };
        Ok(Self {
            receipt: receipt.map_err(Fault::bug)?,
            replayed: true,
            body_mismatch: earlier.body_mismatch,
        })
    }
}
