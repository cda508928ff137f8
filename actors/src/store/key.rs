//! The kinds of rows, and their keys.

/// A kind of row. The numbers are on disk: never change one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum KeySpace {
    /// Vault id -> vault.
    Vault = 1,
    /// Vault name -> vault id.
    VaultName = 2,
    /// Wallet id -> wallet.
    Wallet = 3,
    /// Address -> wallet id.
    WalletAddress = 4,
    /// Reference -> wallet id.
    WalletRef = 5,
    /// Vault id, index -> wallet id: the order of creation.
    WalletIndex = 6,
    /// Request id -> signing request.
    Request = 7,
    /// Vault id, request id -> effect that is to be run (at least once).
    Outbox = 8,
    /// Token, operation, key -> what the first call got.
    Idempotency = 9,
    /// Network, chain id (0 without one), address, nonce -> request id.
    NonceReservation = 10,
    /// Written by readiness checks.
    Probe = 12,
    /// Network, chain id, address, output or object or hash of a transaction -> request id.
    Claim = 13,
    /// Time, request id -> claims that the request lets go of then.
    ReservationExpiry = 14,
    /// Request id -> what its transaction would do.
    Simulation = 15,
    /// Vault id, time of creation, request id -> nothing: a vault's requests in the order of their
    /// creation.
    RequestIndex = 16,
    /// Batch id -> batch payment.
    Batch = 17,
    /// Token id -> API token, without the token itself.
    Token = 18,
    /// Token id, network -> where a sweep token's deposits and events go.
    SweepRoute = 19,
    /// Node id -> node that an operator has admitted.
    Node = 20,
    /// Name -> id of the token that has it; not those that are revoked.
    TokenName = 21,
    /// Token id, network, reference -> deposit wallet.
    Deposit = 22,
    /// Token id, network, address -> watch.
    Watch = 23,
    /// Time of creation, key of an idempotency record -> nothing: the records in the order of their
    /// age.
    RecordAge = 24,
    /// Wallet id -> proof of its address.
    AddressProof = 25,
    /// Vault id, wallet id -> reference of a wallet whose address has no proof yet.
    ProofWanted = 26,
    /// Id of a request or batch payment -> why it cannot continue now.
    Delay = 27,
    /// Vault id, scheme -> how far a key of the vault is, or its next shares, that are not there yet.
    KeyProgress = 28,
    /// Request id -> where its transaction is on the chain.
    Transaction = 29,
    /// Chain, number -> entry of the audit log. Written by [`Batch::append`] alone.
    AuditEntry = 30,
    /// Chain -> its last entry. Written by [`Batch::append`] alone.
    AuditHead = 31,
    /// Nothing -> where a restore from a backup stands.
    Restore = 32,
    /// Vault id -> the number below which no wallet is made.
    FirstWallet = 33,
    /// Request id -> the requests that are to replace its transaction.
    Replacement = 34,
    /// Vault id, time, request id -> nothing: the requests that wait for people, by when they expire.
    Awaiting = 35,
    /// Vault id -> how often its rule of approval was changed; nothing while it never was.
    RuleChanges = 36,
    /// Request id -> what an operator did to a vault.
    Management = 37,
    /// Network, chain id (0 without one), address, nonce (0 where there are none), request id -> transaction that nodes
    /// refused, and that can still come.
    RefusedTransaction = 38,
    /// Which part -> how the service is as a whole: how many vaults can sign, the last backup, the last requests that
    /// failed.
    Overview = 39,
    /// What a lease is for -> who has it. Never deleted: its version is the fencing token.
    Lease = 40,
    /// Orchestrator id -> that it is alive; its version grows as long as it is.
    Member = 41,
    /// Node id -> how it is doing; nothing -> those that were not admitted and want to be.
    NodeStatus = 42,
    /// Chain -> how far its blocks were followed.
    ChainCursor = 43,
    /// Chain, number -> header of a block that was followed and may be replaced, and of the newest that may not.
    BlockHeader = 44,
    /// Network, address -> who is told of its transfers.
    DepositAddress = 45,
    /// Chain, transaction, which of its transfers, side, token id -> where a transfer stands.
    Transfer = 46,
    /// Chain, number of a block, key of a transfer -> nothing: those that blocks to come can change.
    OpenTransfer = 47,
    /// Network, address, chain, number of a block, key of a transfer -> nothing: the transfers of an address.
    TransferIndex = 48,
    /// Event id -> what is told of a transfer.
    TransferNotice = 49,
    /// Token id, network, time, event id -> nothing: what is to be sent then.
    NoticeDue = 50,
    /// Event id -> the event that is sent after it, or that it is over and none came after it yet.
    NoticeAfter = 51,
    /// Token id -> the secret that its webhooks are signed with.
    WebhookSecret = 52,
    /// Public key -> when webhooks were last signed with it.
    WebhookKey = 53,
    /// Chain -> which of its blocks are to be looked through again.
    Rescan = 54,
    /// Chain -> since when payments on it are to be told. Never deleted.
    ChainStart = 55,
    /// Vault id, time of creation, batch id -> nothing: a vault's batch payments in the order of their creation.
    BatchIndex = 56,
    /// Vault id, batch id -> nothing: the batch payments that are on their way.
    OpenBatch = 57,
    /// Token id, chain -> whether and how deposits on it are swept.
    SweepRules = 58,
    /// Chain, address, token (nothing: the coin) -> whose deposit wallet it is, of which something may be swept.
    SweepDue = 59,
    /// User id -> person who uses the console.
    User = 60,
    /// Name -> user id. Never deleted: a name is one person's for ever.
    UserName = 61,
    /// SHA-256 of the secret of a link -> user id.
    UserLink = 62,
    /// Credential id of a passkey -> user id.
    UserPasskey = 63,
    /// User id, SHA-256 of the session's secret -> session.
    UserSession = 64,
    /// User id -> challenges that the person has signed to sign in.
    UsedChallenges = 65,
    /// Nothing -> what the challenges of the console are marked with.
    ConsoleKey = 66,
    /// Chain -> the block from which it is to be followed again.
    ChainRestart = 67,
    /// Time, event id -> nothing: events that are over, by when they were.
    NoticeAge = 68,
    /// Chain -> how far its balances were compared with the transfers; chain, account, token (nothing: the coin) -> what
    /// came of that.
    BalanceCheck = 69,
    /// Vault id, hash of a word or id of a wallet, time of creation, request id -> nothing: the requests of a vault by the
    /// wallet that signs them, by whom they pay, and by the hashes of their transactions.
    RequestTerm = 70,
    /// Chain, address -> the present sweep of a deposit wallet, or the last one.
    Sweep = 71,
    /// Token id, chain, token (nothing: the coin) -> what was swept in all.
    SweepTotal = 72,
    /// Hash of a name, vault id, time, request id -> nothing: the requests that wait for one person, by when they expire.
    AwaitingPerson = 73,
    /// Request id -> id of the batch payment that it was made for.
    RequestBatch = 74,
    /// Wallet id, chain id, contract of a token -> id of the batch payment that sets its allowance now.
    AllowanceBatch = 75,
    /// Chain, address, amount -> nothing: what sweeps of a deposit wallet have asked its gas wallet for. Never deleted: what
    /// is looked through again must not be told as a deposit.
    SweepTopUp = 76,
    /// User id -> where the person is told what waits.
    NotificationTarget = 77,
    /// User id, request or node -> what the person was told of it, and is to be told.
    Notification = 78,
    /// Request id -> nothing: a request that failed without signatures after signers were asked for them.
    AskedRequest = 80,
}

impl KeySpace {
    /// Every kind, in order.
    pub const ALL: [Self; 78] = [
        Self::Vault,
        Self::VaultName,
        Self::Wallet,
        Self::WalletAddress,
        Self::WalletRef,
        Self::WalletIndex,
        Self::Request,
        Self::Outbox,
        Self::Idempotency,
        Self::NonceReservation,
        Self::Probe,
        Self::Claim,
        Self::ReservationExpiry,
        Self::Simulation,
        Self::RequestIndex,
        Self::Batch,
        Self::Token,
        Self::SweepRoute,
        Self::Node,
        Self::TokenName,
        Self::Deposit,
        Self::Watch,
        Self::RecordAge,
        Self::AddressProof,
        Self::ProofWanted,
        Self::Delay,
        Self::KeyProgress,
        Self::Transaction,
        Self::AuditEntry,
        Self::AuditHead,
        Self::Restore,
        Self::FirstWallet,
        Self::Replacement,
        Self::Awaiting,
        Self::RuleChanges,
        Self::Management,
        Self::RefusedTransaction,
        Self::Overview,
        Self::Lease,
        Self::Member,
        Self::NodeStatus,
        Self::ChainCursor,
        Self::BlockHeader,
        Self::DepositAddress,
        Self::Transfer,
        Self::OpenTransfer,
        Self::TransferIndex,
        Self::TransferNotice,
        Self::NoticeDue,
        Self::NoticeAfter,
        Self::WebhookSecret,
        Self::WebhookKey,
        Self::Rescan,
        Self::ChainStart,
        Self::BatchIndex,
        Self::OpenBatch,
        Self::SweepRules,
        Self::SweepDue,
        Self::User,
        Self::UserName,
        Self::UserLink,
        Self::UserPasskey,
        Self::UserSession,
        Self::UsedChallenges,
        Self::ConsoleKey,
        Self::ChainRestart,
        Self::NoticeAge,
        Self::BalanceCheck,
        Self::RequestTerm,
        Self::Sweep,
        Self::SweepTotal,
        Self::AwaitingPerson,
        Self::RequestBatch,
        Self::AllowanceBatch,
        Self::SweepTopUp,
        Self::NotificationTarget,
        Self::Notification,
        Self::AskedRequest,
    ];

    /// The kind of a number.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|space| *space as u8 == number)
    }
}

/// The name of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind.
    pub space: KeySpace,
    /// Its key within the kind. Rows are ordered by it.
    pub bytes: Vec<u8>,
}

impl Key {
    /// A key from its parts, one after the other.
    pub fn new(space: KeySpace, parts: &[&[u8]]) -> Self {
        Self {
            space,
            bytes: parts.concat(),
        }
    }
}
