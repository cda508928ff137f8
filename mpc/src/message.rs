//! What envelopes carry, beside protocol messages. BCS; the envelope has the version.

use covault_core::{
    approval::Rejection,
    attest::AttestOrder,
    derive::RootKey,
    fault::{Class, Fault},
    ids::{SessionId, VaultId},
    order::{
        BackupOrder, KeygenOrder, ListedNodes, NodeId, ProvenGeneration, ReshareOrder,
        ReshareProof, SigningOrder,
    },
    signature::Signature,
    trace::TraceContext,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// How far the clocks of orchestrator and nodes may be apart, in milliseconds.
pub(crate) const SKEW_MS: u64 = 60_000;

/// Inputs of one order: more than a transaction needs. The queue of a session has room for the
/// messages of all.
pub(crate) const MAX_INPUTS: usize = 256;
/// Characters of a peer's text that are kept.
const MAX_TEXT: usize = 300;
/// Bytes of a reply's evidence that are kept.
const MAX_EVIDENCE: usize = 4096;
/// Nodes that a peer's reply can name.
const MAX_NAMED: usize = 64;
/// Characters of an announced name and version, and bans of one announcement, that are kept.
const MAX_NAME: usize = 64;
const MAX_VERSION: usize = 32;
pub(crate) const MAX_BANS: usize = 32;
/// Bytes of an announcement's envelope: a name, a version, some bans.
pub(crate) const MAX_ANNOUNCEMENT: usize = 16 << 10;
/// Other starts of the same node that one announcement names.
pub(crate) const MAX_OTHERS: usize = 8;
/// Frozen vaults that one announcement names. The node refuses orders for unnamed ones as well.
pub(crate) const MAX_FROZEN: usize = 64;
/// Reasons of one announcement.
const MAX_HALTS: usize = 8;

/// Orchestrator to node: sign this. The envelope's signature is the orchestrator's, over all of it.
#[derive(Serialize, Deserialize)]
pub(crate) struct SignOrderMsg {
    pub order: SigningOrder,
    /// The session, which the envelope's header must name too.
    pub session: SessionId,
    /// Exactly threshold many holders; the first collects.
    pub signers: Vec<NodeId>,
    /// The nonces to use that were made ahead: for each signer, in the order of `signers`, one
    /// number per input. Empty: none, commit as the first round.
    pub nonces: Vec<Vec<u64>>,
    /// How long the attempt has, in milliseconds. A duration, so that clocks need not agree.
    pub attempt_ms: u64,
    /// The orchestrator's clock, in milliseconds since the Unix epoch.
    pub sent_at_ms: u64,
    /// The orchestrator's span that the node's are parts of, where the request is traced. It decides nothing.
    pub trace: Option<TraceContext>,
}

/// Orchestrator to node: make this key. Signed as a [`SignOrderMsg`] is.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeygenOrderMsg {
    pub order: KeygenOrder,
    /// The orchestrator's clock, in milliseconds since the Unix epoch.
    pub sent_at_ms: u64,
}

/// Orchestrator to node: make a new generation of shares. Signed as a [`SignOrderMsg`] is.
#[derive(Serialize, Deserialize)]
pub(crate) struct ReshareOrderMsg {
    pub order: ReshareOrder,
    /// The orchestrator's clock, in milliseconds since the Unix epoch.
    pub sent_at_ms: u64,
}

/// Orchestrator or node to node: take the new share into use, retire the old one. Signed as a
/// [`SignOrderMsg`] is.
#[derive(Serialize, Deserialize)]
pub(crate) struct ActivateMsg {
    pub order: ReshareOrder,
    /// That all of its parties say that it ended well.
    pub proof: ReshareProof,
    /// Generations before it that the node may not know, oldest first.
    pub before: Vec<ProvenGeneration>,
    /// The sender's clock, in milliseconds since the Unix epoch.
    pub sent_at_ms: u64,
}

/// Orchestrator to node: give your share, encrypted. Signed as a [`SignOrderMsg`] is.
#[derive(Serialize, Deserialize)]
pub(crate) struct BackupOrderMsg {
    pub order: BackupOrder,
    /// The orchestrator's clock, in milliseconds since the Unix epoch.
    pub sent_at_ms: u64,
}

/// Orchestrator to node: state that these addresses are the vault's. Signed as a [`SignOrderMsg`] is.
#[derive(Serialize, Deserialize)]
pub(crate) struct AttestOrderMsg {
    pub order: AttestOrder,
    /// The orchestrator's clock, in milliseconds since the Unix epoch.
    pub sent_at_ms: u64,
}

/// Orchestrator to node: a person has rejected these requests. It is not answered: it can only stop something, at any time.
#[derive(Serialize, Deserialize)]
pub(crate) struct RejectionMsg {
    pub rejection: Rejection,
}

/// Node to orchestrator.
#[derive(Serialize, Deserialize)]
pub(crate) enum OrderReply {
    /// The collector's: one signature per input.
    Signed(Vec<Signature>),
    /// The key exists, and our share of it is on disk.
    KeyMade {
        /// The key.
        root: RootKey,
        /// Of the run that made it.
        transcript: [u8; 32],
        /// Ours over the key's statement ([`covault_core::attest::KeyStatement`]), 64 bytes.
        signature: Vec<u8>,
    },
    /// We will not.
    Refused(Fault),
    /// We tried.
    Failed {
        /// Who misbehaved.
        culprits: Vec<NodeId>,
        /// Whose message did not come.
        missing: Vec<NodeId>,
        /// Without secrets.
        reason: String,
        /// What shows that the culprit has said two things, for operators to check
        /// ([`crate::evidence`]); empty: nothing does.
        evidence: String,
    },
    /// The run ended well, and our new share, if we get one, is on disk: our signature over
    /// [`ReshareOrder::statement`], 64 bytes.
    Prepared(Vec<u8>),
    /// The new share is in use and the old ones are retired.
    Activated,
    /// Our share, encrypted with age.
    Backup(Vec<u8>),
    /// Nonces that the request names cannot be used; without them we might sign.
    NoNonces {
        /// Whose they are: ours, which are gone, or a peer's, which we do not know.
        of: NodeId,
    },
    /// Our signatures over the statements that were asked for, in order, 64 bytes each.
    Attested(Vec<u8>),
    /// Our operator has not permitted what the reshare order changes.
    NotPermitted,
    /// We refuse a reshare order, and know of later generations of the key.
    Behind {
        /// Why we refuse.
        fault: Fault,
        /// The proofs that we have taken, by epoch, if a later share is in use.
        proven: Vec<ProvenGeneration>,
        /// The highest epoch that was given to a run.
        epoch: u32,
    },
    /// We have more to sign than can be done in the time that the order has. It was not looked at:
    /// neither we nor anyone else did anything wrong.
    Busy,
    /// A client signer's: what decides for it has said yes. Its signature over
    /// [`covault_core::approval::ApprovalProof::node_statement`] of the order's approval, 64 bytes.
    Approved(Vec<u8>),
    /// We have noted the approvals of an order that has no transaction yet.
    Noted {
        /// Until when we hold the payment, in milliseconds since the Unix epoch. 0: we do not, as far as we can tell
        /// before there is a transaction.
        held_until_ms: u64,
    },
    /// We are in this round of so many, of a run that makes a key or new shares: for people who wait.
    Round {
        /// From 1.
        round: u16,
        /// How many there are.
        of: u16,
    },
}

/// About nonces made ahead. Public: nothing in it is secret.
#[derive(Serialize, Deserialize)]
pub(crate) enum PreprocessMsg {
    /// Node to the other holders of the key.
    Made {
        /// Root public key and epoch of the shares.
        of: (Vec<u8>, u32),
        /// Whatever is below is used up.
        floor: u64,
        /// Number and commitments of each.
        nonces: Vec<(u64, Vec<u8>)>,
    },
    /// Node to the orchestrators it trusts: these can be named in requests.
    Ready {
        /// Root public key and epoch of the shares.
        of: (Vec<u8>, u32),
        /// Whatever is below is used up.
        floor: u64,
        /// The numbers.
        ids: Vec<u64>,
    },
    /// Orchestrator or holder to node: say again what you have.
    Ask {
        /// Root public key and epoch of the shares.
        of: (Vec<u8>, u32),
        /// The asker names no number below this. Of an orchestrator only.
        spent_below: u64,
    },
}

impl PreprocessMsg {
    /// The epoch of the shares that they are about.
    pub fn epoch(&self) -> u32 {
        let (Self::Made { of, .. } | Self::Ready { of, .. } | Self::Ask { of, .. }) = self;
        of.1
    }
}

impl OrderReply {
    /// The reply with its texts cut to what logs, store and clients can be given.
    pub fn sanitized(self) -> Self {
        match self {
            Self::Refused(fault) => {
                let class = match fault.class() {
                    Class::Peer { culprits } => Class::Peer {
                        culprits: culprits
                            .iter()
                            .take(MAX_NAMED)
                            .map(|text| sanitize(text))
                            .collect(),
                    },
                    // These speak of the client and its token, which no node knows.
                    Class::Unauthenticated
                    | Class::Forbidden
                    | Class::TooLarge
                    | Class::Limited => Class::Invalid,
                    class => class.clone(),
                };
                Self::Refused(fault.with_class(class).map_texts(sanitize))
            }
            Self::Failed {
                mut culprits,
                mut missing,
                reason,
                mut evidence,
            } => {
                if evidence.len() > MAX_EVIDENCE {
                    evidence.clear();
                }
                culprits.truncate(MAX_NAMED);
                missing.truncate(MAX_NAMED);
                Self::Failed {
                    culprits,
                    missing,
                    reason: sanitize(&reason),
                    evidence,
                }
            }
            reply => reply,
        }
    }
}

/// A peer's text without control characters, of at most [`MAX_TEXT`] characters.
fn sanitize(text: &str) -> String {
    cut(text, MAX_TEXT)
}

fn cut(text: &str, most: usize) -> String {
    text.chars()
        .filter(|letter| !letter.is_control())
        .take(most)
        .collect()
}

/// Node to everyone.
#[derive(Serialize, Deserialize)]
pub(crate) struct Announcement {
    /// The node's name.
    pub name: String,
    /// Its clock, in milliseconds since the Unix epoch; grows with each announcement.
    pub at_ms: u64,
    /// This is the last one for now.
    pub leaving: bool,
    /// Drawn at random with every start of the node: tells a restart from a pause.
    pub boot: [u8; 16],
    /// The version of its program, e.g. "0.1.0".
    pub version: String,
    /// How many keys it holds a share of.
    pub keys: u32,
    /// Whom it has banned, from which keys; at most [`MAX_BANS`].
    pub bans: Vec<Ban>,
    /// Counts the announcements of this start, from 1.
    pub count: u64,
    /// How much its claims have promised ([`crate::claims::ClaimsAge`]).
    pub height: u64,
    /// Why it does not sign.
    pub halted: Vec<HaltReason>,
    /// Other starts of this node that it has heard of recently, at most [`MAX_OTHERS`]. Two that name
    /// each other run at one time.
    pub others: Vec<[u8; 16]>,
    /// Threads that sign.
    pub threads: u16,
    /// Vaults for which it signs nothing, as its operator has frozen them; at most [`MAX_FROZEN`].
    pub frozen: Vec<VaultId>,
    /// Which orchestrators and peers its configuration lists, so that operators find one that is forgotten.
    pub listed: ListedNodes,
}

/// Why a node does not sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HaltReason {
    /// Its clock cannot be believed.
    Clock,
    /// Promises of it are missing in its claims file: shares of some keys must be refreshed.
    Claims,
    /// Another process has its identity.
    Twice,
    /// Its operator has frozen it.
    Frozen,
    /// It is a client signer: it signs what names it, and nothing else.
    ClientSigner,
    /// Its version and that of the process that hears it are too far apart.
    Version,
    /// Its clock and that of the process that hears it are so far apart that nothing of it is believed.
    ClockTooFar,
}

/// Node to node: what do you know of me? Orchestrators ask nodes whose clocks are off, to see that they are there.
#[derive(Serialize, Deserialize)]
pub(crate) enum WitnessMsg {
    /// The question.
    Ask {
        /// The asker's start.
        boot: [u8; 16],
        /// Drawn at random for this question.
        question: [u8; 16],
    },
    /// The answer.
    Told {
        /// Whose question it is for.
        boot: [u8; 16],
        /// The announcement (an envelope) of that node which promises most; empty: none is known.
        newest: Vec<u8>,
        /// Of the one that answers; none when nobody asked.
        now: Option<LiveStatus>,
    },
}

/// What a node is at now: without it, what it announced once could be replayed.
#[derive(Serialize, Deserialize)]
pub(crate) struct LiveStatus {
    /// [`WitnessMsg::Ask`]'s.
    pub question: [u8; 16],
    /// Its start.
    pub boot: [u8; 16],
    /// How many announcements of this start there were.
    pub count: u64,
    /// Its clock, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// A node will not sign with this peer with this key again, because it cheated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ban {
    /// The first 8 bytes of the root public key.
    pub key: [u8; 8],
    /// Who cheated.
    pub peer: NodeId,
}

impl Announcement {
    /// The announcement with its texts and lists cut to what logs and operators can be given.
    pub fn sanitized(mut self) -> Self {
        self.name = cut(&self.name, MAX_NAME);
        self.version = cut(&self.version, MAX_VERSION);
        self.bans.truncate(MAX_BANS);
        self.halted.truncate(MAX_HALTS);
        self.others.truncate(MAX_OTHERS);
        self.frozen.truncate(MAX_FROZEN);
        self.listed = self.listed.cut();
        self
    }
}

/// Bytes of such an envelope.
pub(crate) const MAX_KEY_EXCHANGE: usize = 512;

/// Either to the other: the sender's half of their pair keys.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyExchangeMsg {
    /// When it is said, in milliseconds since the Unix epoch; grows.
    pub at_ms: u64,
    /// When the half was made.
    pub made_ms: u64,
    /// An X25519 public key.
    pub key: [u8; 32],
    /// The recipient's newest half that the sender has.
    pub yours: Option<[u8; 32]>,
    /// The sender does not know yet that the recipient has this half.
    pub wants_answer: bool,
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Fault> {
    bcs::to_bytes(message).map_err(|_| Fault::bug("a message could not be encoded"))
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    bcs::from_bytes(bytes).ok()
}

/// Decodes and encodes again; for fuzz targets.
#[cfg(feature = "simulation")]
pub(crate) fn reencode<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<Vec<u8>> {
    decode::<T>(bytes).and_then(|message| encode(&message).ok())
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn announcement__should_load_from_its_sample_and_be_cut() {
        let announcement = Announcement {
            name: "node-1".into(),
            at_ms: 1_000,
            leaving: false,
            boot: [7; 16],
            version: "0.1.0".into(),
            keys: 2,
            bans: vec![Ban {
                key: [9; 8],
                peer: NodeId([1; 32]),
            }],
            count: 3,
            height: 4,
            halted: vec![
                HaltReason::Clock,
                HaltReason::Claims,
                HaltReason::Twice,
                HaltReason::Frozen,
            ],
            others: vec![[5; 16]],
            threads: 8,
            frozen: vec![VaultId::from_bytes([9; 16])],
            listed: ListedNodes::new([&NodeId([2; 32])], Some([&NodeId([3; 32])])),
        };
        let bytes = encode(&announcement).unwrap();
        let sample = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/wire/announcement-v1.hex"
        );
        let sample = std::fs::read_to_string(sample).unwrap_or_else(|_| {
            panic!(
                "{sample} is missing; it would hold\n{}",
                hex::encode(&bytes)
            )
        });
        assert_eq!(sample.trim(), hex::encode(&bytes));
        let loaded: Announcement = decode(&hex::decode(sample.trim()).unwrap()).unwrap();
        assert_eq!(encode(&loaded).unwrap(), bytes);
        let long = Announcement {
            name: format!("\u{1b}{}", "n".repeat(500)),
            version: "v".repeat(500),
            bans: vec![announcement.bans[0].clone(); 500],
            halted: vec![HaltReason::Clock; 500],
            others: vec![[6; 16]; 500],
            frozen: vec![VaultId::from_bytes([9; 16]); 500],
            ..announcement
        }
        .sanitized();
        assert_eq!(
            (long.name.len(), long.version.len(), long.bans.len()),
            (MAX_NAME, MAX_VERSION, MAX_BANS)
        );
        assert_eq!(
            (long.halted.len(), long.others.len(), long.frozen.len()),
            (MAX_HALTS, MAX_OTHERS, MAX_FROZEN)
        );
    }

    #[test]
    fn reply__should_be_cut_to_what_can_be_shown() {
        let text = format!("no\u{1b}[2J\n{}", "x".repeat(5000));
        let reply =
            OrderReply::Refused(Fault::new(Class::Unauthenticated, text.clone())).sanitized();
        let OrderReply::Refused(fault) = reply else {
            panic!("another reply")
        };
        assert_eq!(fault.class(), &Class::Invalid);
        assert!(fault.message().starts_with("no[2Jxxx"));
        assert_eq!(fault.message().chars().count(), MAX_TEXT);
        let failed = OrderReply::Failed {
            culprits: vec![NodeId([1; 32]); 1000],
            missing: Vec::new(),
            reason: text,
            evidence: "x".repeat(100_000),
        };
        let OrderReply::Failed {
            culprits,
            reason,
            evidence,
            ..
        } = failed.sanitized()
        else {
            panic!("another reply")
        };
        assert_eq!((culprits.len(), reason.len()), (MAX_NAMED, MAX_TEXT));
        assert!(evidence.is_empty());
    }

    /// As the first release sends them; they are understood for ever.
    #[test]
    fn nonce_news__should_be_read_as_version_1_wrote_it() {
        let samples = [
            include_str!("../../tests/wire/nonce-news-v1-made.hex"),
            include_str!("../../tests/wire/nonce-news-v1-ready.hex"),
            include_str!("../../tests/wire/nonce-news-v1-ask.hex"),
        ];
        let read = samples.map(|text| {
            let bytes = hex::decode(text.trim()).unwrap();
            let news: PreprocessMsg = decode(&bytes).unwrap();
            assert_eq!(encode(&news).unwrap(), bytes);
            assert!(decode::<PreprocessMsg>(&bytes[..bytes.len() - 1]).is_none());
            news
        });
        let shares = (vec![5; 32], 2);
        let [
            PreprocessMsg::Made { of, floor, nonces },
            PreprocessMsg::Ready {
                of: ready,
                floor: lowest,
                ids,
            },
            PreprocessMsg::Ask {
                of: asked,
                spent_below,
            },
        ] = read
        else {
            panic!("another message")
        };
        assert_eq!((&of, &ready, &asked), (&shares, &shares, &shares));
        assert_eq!((floor, lowest, spent_below), (7, 8, 9));
        assert_eq!(nonces, [(8, vec![1, 2, 3]), (300, vec![4])]);
        assert_eq!(ids, [8, 9, 300]);
    }
}
