//! Orders: what the orchestrator asks of signer nodes, in the exact bytes they verify and sign.

mod asked;
mod change;
mod listed;
mod node_id;

use std::collections::BTreeSet;

pub use change::{LaterGenerations, ProvenGeneration, ReshareChange, ReshareOutcome};
pub use listed::ListedNodes;
pub use node_id::NodeId;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    approval::{Approval, ApprovalTerms, OrderApprovals},
    derive::{ChildKey, KeyPath, RootKey},
    fault::{Class, Fault, FaultCode},
    ids::{RequestId, SessionId, VaultId},
    networks::{ChainData, DynNetworkRules, Network, Payload, SigningInput, Unsigned},
    scheme::Scheme,
};

/// Most nodes that can hold shares of one vault: their protocol index is one byte.
pub const MAX_SIGNERS: usize = 255;
/// Version of the canonical bytes below. Raised when a field is added.
pub const ORDER_VERSION: u16 = 1;

/// Everything a signer must know to decide whether to sign, and what.
///
/// A node rebuilds [`SigningOrder::inputs`] from payload and chain data and refuses an order that
/// does not match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningOrder {
    /// The request, which is the unit of "never a second digest".
    pub request: RequestId,
    /// The vault whose root key signs.
    pub vault: VaultId,
    /// Generation of the vault's shares; raised by refresh, reshare and restore.
    pub epoch: u32,
    /// The network of the wallet.
    pub network: Network,
    /// The vault's root public key on the network's curve: names the shares to use.
    pub root_public_key: Vec<u8>,
    /// The wallet's child key: [`KeyPath::of_wallet`], and no other path.
    pub path: KeyPath,
    /// The wallet's public key (33 bytes secp256k1, 32 bytes Ed25519).
    pub public_key: Vec<u8>,
    /// The wallet's address.
    pub address: String,
    /// The request's payload: the protobuf bytes of a `CreateSigningRequestRequest` that holds
    /// the payload kind and nothing else.
    pub payload: Vec<u8>,
    /// What the chain said.
    pub chain_data: ChainData,
    /// The unsigned transaction; empty for messages.
    pub unsigned: Vec<u8>,
    /// What to sign, in order.
    pub inputs: Vec<SigningInput>,
    /// The wallets of the same vault and network that the payload pays, by their indices: a node
    /// whose policy allows own wallets derives them itself ([`SigningOrder::own_recipients`]).
    pub recipient_indices: Vec<u32>,
    /// What people have approved.
    pub approvals: OrderApprovals,
    /// When the order was made, in milliseconds since the Unix epoch.
    pub issued_at_ms: u64,
    /// When it stops being valid, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
}

impl SigningOrder {
    /// The canonical bytes: a domain tag, then every field in BCS (the Diem/Aptos
    /// "Binary Canonical Serialization").
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when a field cannot be serialized.
    pub fn canonical_bytes(&self) -> Result<Vec<u8>, Fault> {
        // Destructured without `..`, so that a new field cannot be left out.
        let Self {
            request,
            vault,
            epoch,
            network,
            root_public_key,
            path,
            public_key,
            address,
            payload,
            chain_data,
            unsigned,
            inputs,
            recipient_indices,
            approvals,
            issued_at_ms,
            expires_at_ms,
        } = self;
        canonical(
            "covault/signing-order",
            &(
                (
                    request,
                    vault,
                    epoch,
                    network,
                    root_public_key,
                    path,
                    public_key,
                    address,
                ),
                (
                    payload,
                    chain_data,
                    unsigned,
                    inputs,
                    recipient_indices,
                    approvals,
                    issued_at_ms,
                    expires_at_ms,
                ),
            ),
        )
    }

    /// SHA-256 of the canonical bytes: names the order everywhere.
    ///
    /// # Errors
    /// As [`SigningOrder::canonical_bytes`].
    pub fn id(&self) -> Result<[u8; 32], Fault> {
        Ok(Sha256::digest(self.canonical_bytes()?).into())
    }

    /// What people must have approved for this order, rebuilt from the order alone.
    pub fn approval(&self) -> Approval {
        Approval::new(
            self.vault,
            &self.root_public_key,
            self.request,
            self.network,
            &self.address,
            &self.payload,
            ApprovalTerms {
                most_fee: self.approvals.most_fee,
                valid_until_ms: self.approvals.valid_until_ms,
            },
        )
    }

    /// Rebuilds the unsigned transaction and everything to be signed from payload and chain data,
    /// the child key from the vault's root key, and compares each with what the order says. The
    /// payload, decoded.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field that does not match.
    pub fn verify(&self, root: &RootKey) -> Result<Payload, Fault> {
        self.verify_child(root, &root.child(&self.path)?)
    }

    /// As [`SigningOrder::verify`], for who has derived the `child` of `root` at the order's path
    /// already.
    ///
    /// # Errors
    /// As [`SigningOrder::verify`].
    pub fn verify_child(&self, root: &RootKey, child: &ChildKey) -> Result<Payload, Fault> {
        let payload = self.verify_intent(root, child)?;
        let chain = self.network.rules();
        // Nothing else in it can be at fault by now.
        let misfit = |fault: Fault| {
            Fault::field("chainData", "do not fit the payload")
                .caused_by(fault.cause().unwrap_or_default())
        };
        let built = chain
            .build(&payload, &self.chain_data, &self.public_key)
            .map_err(|fault| match fault.class() {
                Class::Bug => misfit(fault),
                _ => in_payload(fault),
            })?;
        chain
            .check_chain_data(&payload, &self.chain_data)
            .map_err(|fault| match fault.class() {
                Class::Bug => misfit(fault),
                _ => fault,
            })?;
        self.compare(chain, &built)?;
        Ok(payload)
    }

    /// Whether it has no transaction yet: it tells signers of approvals, so that a time in which a payment is held begins
    /// before the transaction is built. Nothing of it is signed.
    pub fn tells_of_approvals(&self) -> bool {
        self.inputs.is_empty() && self.unsigned.is_empty()
    }

    /// What [`SigningOrder::verify_child`] checks before it looks at the transaction: whose wallet pays what. The payload,
    /// decoded.
    ///
    /// # Errors
    /// As [`SigningOrder::verify`].
    pub fn verify_intent(&self, root: &RootKey, child: &ChildKey) -> Result<Payload, Fault> {
        let chain = self.network.rules();
        self.check_path(root)?;
        if root.public_key != self.root_public_key {
            return Err(Fault::field("rootPublicKey", "is not the vault's root key"));
        }
        if child.public_key != self.public_key {
            // The address shows which of the two was exchanged.
            return Err(if chain.owns(&child.public_key, &self.address)? {
                Fault::field("publicKey", "is not the vault's key at this path")
            } else {
                Fault::field("path", "does not lead to the public key")
            });
        }
        if !chain.owns(&self.public_key, &self.address)? {
            return Err(Fault::field(
                "address",
                "is not the address of the public key",
            ));
        }
        let payload = Payload::decode(&self.payload).map_err(in_payload)?;
        if payload.from() != self.address {
            let fault = Fault::field("from", "is not the address of the wallet");
            return Err(in_payload(fault.with_prefix(payload.kind())));
        }
        payload.check_wallet(self.network).map_err(in_payload)?;
        Ok(payload)
    }

    /// Checks that the path is that of a wallet of the order's network, whose curve is that of
    /// `root`: a key belongs to one network.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`], field `network` or `path`.
    pub fn check_path(&self, root: &RootKey) -> Result<(), Fault> {
        if root.curve != self.network.curve() {
            return Err(Fault::field(
                "network",
                "the vault's key has a different curve",
            ));
        }
        self.path.wallet_index(self.network).map(drop)
    }

    /// The recipients of the `payload` that are wallets of the vault whose root key is `root`, each
    /// derived from it at the index that the order names.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming an index that leads to none of the recipients, or to
    /// one that another index has led to.
    pub fn own_recipients(
        &self,
        root: &RootKey,
        payload: &Payload,
    ) -> Result<BTreeSet<String>, Fault> {
        let mut own = BTreeSet::new();
        if self.recipient_indices.is_empty() {
            return Ok(own);
        }
        let recipients = payload.recipients(self.network);
        for (place, index) in self.recipient_indices.iter().enumerate() {
            let refuse = || {
                let problem = "is not another wallet of this vault that the payload pays";
                Fault::field(format_args!("recipientIndices[{place}]"), problem)
            };
            // Before more keys are derived than there are recipients.
            if place >= recipients.len() {
                return Err(refuse());
            }
            let path = KeyPath::of_wallet(self.network, *index).map_err(|_| refuse())?;
            let address = self
                .network
                .rules()
                .address(&root.child(&path)?.public_key)?;
            if !recipients.contains(&address) || !own.insert(address) {
                return Err(refuse());
            }
        }
        Ok(own)
    }

    /// Compares what the order shows with what was built from its payload and chain data.
    fn compare(&self, chain: &dyn DynNetworkRules, built: &Unsigned) -> Result<(), Fault> {
        const DIFFERS: &str = "does not match payload and chain data";
        if built.bytes != self.unsigned {
            let what = chain.difference(&built.bytes, &self.unsigned);
            return Err(match what {
                Some(what) => Fault::field(format_args!("unsigned.{what}"), DIFFERS),
                None => Fault::field("unsigned", DIFFERS),
            });
        }
        if built.signing.len() != self.inputs.len() {
            return Err(Fault::field(
                "inputs",
                "do not match payload and chain data in number",
            ));
        }
        for (place, (built, shown)) in built.signing.iter().zip(&self.inputs).enumerate() {
            let SigningInput { curve, message } = shown;
            if built.curve != *curve {
                return Err(Fault::field(format_args!("inputs[{place}].curve"), DIFFERS));
            }
            if built.message != *message {
                return Err(Fault::field(
                    format_args!("inputs[{place}].message"),
                    "does not match the digest or message of payload and chain data",
                ));
            }
        }
        Ok(())
    }
}

/// What is wrong with the bytes as a whole says so itself.
fn in_payload(fault: Fault) -> Fault {
    if fault.code() == FaultCode::Payload {
        fault
    } else {
        fault.with_prefix("payload")
    }
}

/// Asks a fixed set of nodes for a root key on one curve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeygenOrder {
    /// The vault that gets the key.
    pub vault: VaultId,
    /// The run. A new attempt is a new session.
    pub session: SessionId,
    /// The threshold scheme, and so the curve.
    pub scheme: Scheme,
    /// Signers needed for a signature; 2 or more.
    pub threshold: u16,
    /// The nodes that get a share: raw Ed25519 identity keys. A node's index in the protocol
    /// is its place in this list, counted from 1, and is fixed for the life of the key.
    pub signers: Vec<NodeId>,
    /// When the order was made, in milliseconds since the Unix epoch.
    pub issued_at_ms: u64,
    /// When it stops being valid, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
}

impl KeygenOrder {
    /// The canonical bytes, as [`SigningOrder::canonical_bytes`].
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when a field cannot be serialized.
    pub fn canonical_bytes(&self) -> Result<Vec<u8>, Fault> {
        let Self {
            vault,
            session,
            scheme,
            threshold,
            signers,
            issued_at_ms,
            expires_at_ms,
        } = self;
        canonical(
            "covault/keygen-order",
            &(
                vault,
                session,
                scheme,
                threshold,
                signers,
                issued_at_ms,
                expires_at_ms,
            ),
        )
    }
}

/// A generation of the shares of a key: who holds them, and how many are needed. Shares of two
/// generations do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// 0 for what key generation made; raised by refresh, reshare and repair, never reused.
    pub epoch: u32,
    /// Signers needed for a signature; 2 or more.
    pub threshold: u16,
    /// The nodes that hold a share; a node's index in the protocol is its place in this list,
    /// counted from 1.
    pub holders: Vec<NodeId>,
}

/// The highest epoch that a new generation may have at this time, in milliseconds since the Unix epoch: one for each
/// minute since then. So no orchestrator can use epochs up faster than time passes, and none is too far
/// above those that a node knows (docs/decisions/0009).
pub fn latest_epoch(now_ms: u64) -> u32 {
    u32::try_from(now_ms / EPOCH_MS).unwrap_or(u32::MAX)
}

/// As [`latest_epoch`], of all nodes whose clocks are as they have to be: they may be a minute behind.
pub fn latest_epoch_everywhere(now_ms: u64) -> u32 {
    latest_epoch(now_ms.saturating_sub(EPOCH_MS))
}

/// So much time brings one epoch. Clocks that differ by more from an orchestrator's are refused by nodes.
const EPOCH_MS: u64 = 60_000;

/// Asks for a new generation of the shares of a key, whose public key stays as it is. Refresh
/// (same holders, same threshold), reshare (others) and repair (a holder has lost its share) are
/// all this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReshareOrder {
    /// The vault whose key it is.
    pub vault: VaultId,
    /// The run. A new attempt is a new session, with a new epoch.
    pub session: SessionId,
    /// The scheme of the key.
    pub scheme: Scheme,
    /// The root public key (33 bytes secp256k1, 32 bytes Ed25519).
    pub root_public_key: Vec<u8>,
    /// The present generation. Its shares work until the new ones are activated.
    pub old: Generation,
    /// Exactly `old.threshold` of `old.holders`: they deal their shares out again.
    pub dealers: Vec<NodeId>,
    /// The generation to make. Its epoch is above the old one's.
    pub new: Generation,
    /// When the order was made, in milliseconds since the Unix epoch.
    pub issued_at_ms: u64,
    /// When it stops being valid, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
}

impl ReshareOrder {
    /// The canonical bytes, as [`SigningOrder::canonical_bytes`].
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when a field cannot be serialized.
    pub fn canonical_bytes(&self) -> Result<Vec<u8>, Fault> {
        let Self {
            vault,
            session,
            scheme,
            root_public_key,
            old,
            dealers,
            new,
            issued_at_ms,
            expires_at_ms,
        } = self;
        canonical(
            "covault/reshare-order",
            &(
                (vault, session, scheme, root_public_key, old, dealers, new),
                (issued_at_ms, expires_at_ms),
            ),
        )
    }

    /// Checks that the order is one: generations that can exist, dealers that hold shares.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field.
    pub fn check(&self) -> Result<(), Fault> {
        for (field, generation) in [("old", &self.old), ("new", &self.new)] {
            let Generation {
                epoch: _,
                threshold,
                holders,
            } = generation;
            // First: an order that nobody has signed may name as many as a message has room for.
            if holders.len() > MAX_SIGNERS {
                return Err(Fault::field(
                    format_args!("{field}.holders"),
                    format_args!("must be at most {MAX_SIGNERS}"),
                ));
            }
            if !distinct(holders) {
                return Err(Fault::field(
                    format_args!("{field}.holders"),
                    "name one node twice",
                ));
            }
            if *threshold < 2 || usize::from(*threshold) > holders.len() {
                return Err(Fault::field(
                    format_args!("{field}.threshold"),
                    "must be at least 2 and at most the number of holders",
                ));
            }
        }
        if self.new.epoch <= self.old.epoch {
            return Err(Fault::field("new.epoch", "must be above the old one"));
        }
        if self.dealers.len() != usize::from(self.old.threshold) || !distinct(&self.dealers) {
            return Err(Fault::field(
                "dealers",
                "must be exactly as many distinct nodes as the old threshold",
            ));
        }
        if !self
            .dealers
            .iter()
            .all(|dealer| self.old.holders.contains(dealer))
        {
            return Err(Fault::field("dealers", "must hold old shares"));
        }
        Ok(())
    }

    /// Everyone who takes part: the new holders in their order, then the dealers that are not
    /// among them. A node's index in the run is its place in this list, counted from 1.
    pub fn parties(&self) -> Vec<NodeId> {
        let leaving = self
            .dealers
            .iter()
            .filter(|dealer| !self.new.holders.contains(dealer));
        self.new.holders.iter().chain(leaving).copied().collect()
    }
}

/// What a party signs, with its identity key, once the run has ended well: this tag, then the
/// order's [`ReshareOrder::id`].
const PREPARED: &[u8] = b"covault/reshare-prepared";

impl ReshareOrder {
    /// SHA-256 of the canonical bytes: names the order everywhere.
    ///
    /// # Errors
    /// As [`ReshareOrder::canonical_bytes`].
    pub fn id(&self) -> Result<[u8; 32], Fault> {
        Ok(Sha256::digest(self.canonical_bytes()?).into())
    }

    /// The bytes of the statement that every party signs (Ed25519, its identity key): a tag, then
    /// the order's id. It says "the run ended, and all of its parties agreed on the outcome"; of a
    /// dealer also "I dealt my share in it", of a new holder also "my new share is on disk".
    ///
    /// # Errors
    /// As [`ReshareOrder::canonical_bytes`].
    pub fn statement(&self) -> Result<Vec<u8>, Fault> {
        Ok([PREPARED, &self.id()?].concat())
    }
}

/// The statements of all parties of a [`ReshareOrder`], as many old holders as the old threshold
/// among them: each node's Ed25519 signature (64 bytes) over [`ReshareOrder::statement`]. Without it
/// no node gives up an old share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReshareProof(pub Vec<(NodeId, Vec<u8>)>);

/// Asks holders for their shares, encrypted to recipients that are kept offline. A node answers
/// only when its own configuration names every one of the recipients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupOrder {
    /// The vault whose key it is.
    pub vault: VaultId,
    /// The run; routes the answers.
    pub session: SessionId,
    /// The root public key (33 bytes secp256k1, 32 bytes Ed25519).
    pub root_public_key: Vec<u8>,
    /// The generation to back up.
    pub epoch: u32,
    /// The holders that are asked.
    pub holders: Vec<NodeId>,
    /// The age recipients (`age1...`, X25519).
    pub recipients: Vec<String>,
    /// When the order was made, in milliseconds since the Unix epoch.
    pub issued_at_ms: u64,
    /// When it stops being valid, in milliseconds since the Unix epoch.
    pub expires_at_ms: u64,
}

fn distinct(nodes: &[NodeId]) -> bool {
    let mut sorted = nodes.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted.len() == nodes.len()
}

fn canonical<T: Serialize>(tag: &str, fields: &T) -> Result<Vec<u8>, Fault> {
    bcs::to_bytes(&(tag, ORDER_VERSION, fields)).map_err(Fault::bug)
}
