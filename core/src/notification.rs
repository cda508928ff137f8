//! What people are told of: requests that wait for them, what became of those, nodes that are away. Where it is sent, and
//! how often. Everything here is pure.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroize as _;

use crate::{
    deposit::Webhook,
    ids::{RequestId, UserId, VaultId},
    order::NodeId,
};

/// Most messages to one person within an hour. What comes beyond them is told as one, when the hour is over.
pub const MOST_PER_HOUR: u32 = 20;
/// An hour, in milliseconds.
const HOUR_MS: u64 = 60 * 60 * 1000;
/// For how long it is tried to tell a person something, in milliseconds.
const PATIENCE_MS: u64 = 3 * 24 * HOUR_MS;

/// Something that a person is told of a subject, each at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NotificationKind {
    /// The request waits for the person's approval.
    Waits,
    /// It waits once more: a signer wants more than what was approved, or that has expired.
    WaitsAgain,
    /// It was approved and signed.
    Signed,
    /// It has failed: rejected, expired, or refused by its chain.
    Failed,
    /// The signer node has not announced itself for a minute.
    NodeAway,
    /// Signers hold it, so that it can still be rejected.
    Held,
}

impl NotificationKind {
    /// The name of its event.
    pub fn event(self) -> &'static str {
        match self {
            Self::Waits => "request.waiting.v1",
            Self::WaitsAgain => "request.waiting_again.v1",
            Self::Signed => "request.signed.v1",
            Self::Failed => "request.failed.v1",
            Self::NodeAway => "node.away.v1",
            Self::Held => "request.held.v1",
        }
    }

    /// Whether the person is asked for something that others may have done in between.
    pub fn asks(self) -> bool {
        matches!(self, Self::Waits | Self::WaitsAgain | Self::Held)
    }
}

/// What a person is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NotificationSubject {
    /// A signing request.
    Request(RequestId),
    /// A signer node.
    Node(NodeId),
}

impl NotificationSubject {
    /// Its bytes within the key of a row.
    pub fn key(&self) -> Vec<u8> {
        match self {
            Self::Request(id) => [&[1], id.as_bytes().as_slice()].concat(),
            Self::Node(id) => [&[2], id.0.as_slice()].concat(),
        }
    }

    /// The subject of such bytes.
    pub fn of(key: &[u8]) -> Option<Self> {
        match key.split_first()? {
            (1, id) => Some(Self::Request(RequestId::from_bytes(id.try_into().ok()?))),
            (2, id) => Some(Self::Node(NodeId(id.try_into().ok()?))),
            _ => None,
        }
    }
}

/// What a person was told of a subject, and is to be told. Times are in milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notification {
    /// The vault of the request; `None` for a node.
    pub vault: Option<VaultId>,
    /// What was told, or given up.
    pub told: Vec<NotificationKind>,
    /// What is to be told, and since when.
    pub pending: Option<(NotificationKind, u64)>,
    /// Nothing more will come.
    pub is_over: bool,
}

impl Notification {
    /// Nothing was told yet.
    pub fn new(vault: Option<VaultId>) -> Self {
        Self {
            vault,
            told: Vec::new(),
            pending: None,
            is_over: false,
        }
    }

    /// The subject was found like this at `now_ms`. What was told before is not told again, and what is no longer so
    /// not at all; `None`: there is nothing to tell just now.
    #[must_use]
    pub fn found(&self, kind: Option<NotificationKind>, is_over: bool, now_ms: u64) -> Self {
        let known = self.pending;
        let pending = match kind {
            Some(kind) if self.told.contains(&kind) => None,
            Some(kind) => match known {
                Some((before, _)) if before == kind => known,
                _ => Some((kind, now_ms)),
            },
            None => known.filter(|(before, _)| !before.asks()),
        };
        Self {
            vault: self.vault,
            told: self.told.clone(),
            pending,
            is_over: self.is_over || is_over,
        }
    }

    /// The person was told this, or it was given up.
    #[must_use]
    pub fn after(&self, kind: NotificationKind) -> Self {
        let mut told = self.told.clone();
        if !told.contains(&kind) {
            told.push(kind);
        }
        Self {
            vault: self.vault,
            told,
            pending: self.pending.filter(|(pending, _)| *pending != kind),
            is_over: self.is_over,
        }
    }

    /// What has been tried for too long at `now_ms`.
    pub fn overdue(&self, now_ms: u64) -> Option<NotificationKind> {
        let (kind, since_ms) = self.pending?;
        (now_ms.saturating_sub(since_ms) >= PATIENCE_MS).then_some(kind)
    }

    /// Whether nobody needs to know of it any more.
    pub fn is_done(&self) -> bool {
        self.is_over && self.pending.is_none()
    }
}

/// A secret by which a receiver checks what it gets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationSecret(pub [u8; 32]);

impl std::fmt::Debug for NotificationSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NotificationSecret(..)")
    }
}

impl Drop for NotificationSecret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// What a receiver understands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotificationForm {
    /// JSON, signed as Standard Webhooks are.
    Webhook(NotificationSecret),
    /// An incoming webhook of Slack.
    Slack,
    /// Mail. The URL is `mailto:` and the address.
    Mail,
}

impl NotificationForm {
    /// Its name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Webhook(_) => "webhook",
            Self::Slack => "slack",
            Self::Mail => "mail",
        }
    }
}

/// Where a person is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationTarget {
    /// In which form.
    pub form: NotificationForm,
    /// Where to. That of Slack is a secret, and mail goes to what is behind `mailto:`.
    pub url: Webhook,
    /// When it was set, in milliseconds since the Unix epoch.
    pub set_at_ms: u64,
    /// The person was not told yet that it was set.
    pub is_new: bool,
    /// How much was sent.
    pub pace: NotificationPace,
}

/// How what is to be told may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPermit {
    /// Not now.
    Later,
    /// One message for each.
    Single,
    /// All in one message.
    Together,
}

/// How much was sent to a person, and how that went. Times are in milliseconds since the Unix epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationPace {
    /// When the hour of `sent` began.
    pub hour_began_ms: u64,
    /// Messages within that hour.
    pub sent: u32,
    /// Failures in a row.
    pub failures: u32,
    /// When it is tried again; 0: at once.
    pub next_ms: u64,
    /// Why the last message did not arrive; `None` when it did.
    pub problem: Option<String>,
}

impl NotificationPace {
    /// What may be sent at `now_ms`.
    pub fn permit(&self, now_ms: u64) -> SendPermit {
        // No pause is longer than an hour: a clock that was wrong has said so.
        let waits = self.next_ms > now_ms && self.next_ms.saturating_sub(now_ms) <= HOUR_MS;
        match (waits, self.is_within_hour(now_ms)) {
            (true, _) => SendPermit::Later,
            (false, true) if self.sent >= MOST_PER_HOUR => SendPermit::Later,
            (false, false) if self.sent >= MOST_PER_HOUR => SendPermit::Together,
            (false, _) => SendPermit::Single,
        }
    }

    fn is_within_hour(&self, now_ms: u64) -> bool {
        let passed = now_ms.checked_sub(self.hour_began_ms);
        passed.is_some_and(|passed| passed < HOUR_MS)
    }

    /// A message has arrived.
    #[must_use]
    pub fn delivered(&self, now_ms: u64) -> Self {
        let (hour_began_ms, sent) = match self.is_within_hour(now_ms) {
            true => (self.hour_began_ms, self.sent.saturating_add(1)),
            false => (now_ms, 1),
        };
        Self {
            hour_began_ms,
            sent,
            failures: 0,
            next_ms: 0,
            problem: None,
        }
    }

    /// A message has not arrived, and is tried again after a pause.
    #[must_use]
    pub fn failed(&self, problem: String, now_ms: u64, pause_ms: u64) -> Self {
        Self {
            hour_began_ms: self.hour_began_ms,
            sent: self.sent,
            failures: self.failures.saturating_add(1),
            next_ms: now_ms.saturating_add(pause_ms.min(HOUR_MS)),
            problem: Some(problem),
        }
    }
}

/// The id of a message to a person: the same when it is sent again, so that a receiver can tell.
pub fn message_id(user: UserId, content: &[(NotificationSubject, NotificationKind)]) -> String {
    let mut hash = Sha256::new();
    hash.update(b"covault notification 1\0");
    hash.update(user.as_bytes());
    for (subject, kind) in content {
        hash.update(subject.key());
        hash.update(kind.event());
        hash.update([0]);
    }
    let hash: [u8; 32] = hash.finalize().into();
    let short = hash.get(..16).unwrap_or_default();
    format!("ntf_{}", hex::encode(short))
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::{NotificationKind as Kind, *};

    const NOW_MS: u64 = 1_800_000_000_000;

    #[test]
    fn notification__should_tell_each_thing_once_and_nothing_that_is_no_longer_so() {
        let new = Notification::new(Some(VaultId::from_bytes([1; 16])));
        let waits = new.found(Some(Kind::Waits), false, NOW_MS);
        assert_eq!(waits.pending, Some((Kind::Waits, NOW_MS)));
        // Found again, it is still that old.
        assert_eq!(waits.found(Some(Kind::Waits), false, NOW_MS + 5), waits);
        // Somebody else was faster: nobody is asked for what is done.
        assert_eq!(waits.found(None, false, NOW_MS).pending, None);
        let told = waits.after(Kind::Waits);
        assert_eq!((&told.pending, &told.told), (&None, &vec![Kind::Waits]));
        assert_eq!(told.found(Some(Kind::Waits), false, NOW_MS), told);
        let again = told.found(Some(Kind::WaitsAgain), false, NOW_MS);
        assert_eq!(again.pending, Some((Kind::WaitsAgain, NOW_MS)));
        // The end is told in place of what came before it and was not told.
        let end = again.found(Some(Kind::Failed), true, NOW_MS + 9);
        assert_eq!(end.pending, Some((Kind::Failed, NOW_MS + 9)));
        // Its row may be gone by then.
        assert!(!end.found(None, true, NOW_MS).is_done());
        assert!(end.after(Kind::Failed).is_done());
        assert_eq!(end.overdue(NOW_MS + 9 + PATIENCE_MS - 1), None);
        assert_eq!(end.overdue(NOW_MS + 9 + PATIENCE_MS), Some(Kind::Failed));
    }

    #[test]
    fn pace__should_be_quiet_after_twenty_messages_and_then_tell_the_rest_as_one() {
        let mut pace = NotificationPace::default();
        for number in 0..u64::from(MOST_PER_HOUR) {
            assert_eq!(pace.permit(NOW_MS + number), SendPermit::Single, "{number}");
            pace = pace.delivered(NOW_MS + number);
        }
        assert_eq!(pace.permit(NOW_MS + 20), SendPermit::Later);
        assert_eq!(pace.permit(NOW_MS + HOUR_MS - 1), SendPermit::Later);
        let next_ms = NOW_MS + HOUR_MS;
        assert_eq!(pace.permit(next_ms), SendPermit::Together);
        pace = pace.delivered(next_ms);
        assert_eq!((pace.sent, pace.permit(next_ms)), (1, SendPermit::Single));
        // Less than that, and an hour later it counts from the beginning.
        assert_eq!(pace.delivered(next_ms + HOUR_MS).sent, 1);
        // A clock that was set back does not keep anybody quiet.
        pace.sent = MOST_PER_HOUR;
        assert_eq!(pace.permit(NOW_MS - 1), SendPermit::Together);
    }

    #[test]
    fn pace__should_wait_after_a_failure_and_not_for_ever() {
        let pace = NotificationPace::default().failed("refused".into(), NOW_MS, 5_000);
        assert_eq!(pace.permit(NOW_MS + 4_999), SendPermit::Later);
        assert_eq!(pace.permit(NOW_MS + 5_000), SendPermit::Single);
        assert_eq!((pace.failures, pace.sent), (1, 0));
        let long = pace.failed("refused".into(), NOW_MS, u64::MAX);
        assert_eq!(long.permit(NOW_MS + HOUR_MS), SendPermit::Single);
        // The clock was a day ahead when that was written.
        let ahead = pace.failed("refused".into(), NOW_MS + 24 * HOUR_MS, 5_000);
        assert_eq!(ahead.permit(NOW_MS), SendPermit::Single);
        assert_eq!(ahead.delivered(NOW_MS).problem, None);
    }

    #[test]
    fn message__should_have_the_same_id_when_it_is_sent_again_and_no_other_message() {
        let user = |number| UserId::from_bytes([number; 16]);
        let request = |number| NotificationSubject::Request(RequestId::from_bytes([number; 16]));
        let one = [(request(1), Kind::Waits)];
        let id = message_id(user(1), &one);
        assert_eq!(id, message_id(user(1), &one));
        assert_eq!(id.len(), "ntf_".len() + 32);
        for other in [
            message_id(user(2), &one),
            message_id(user(1), &[(request(2), Kind::Waits)]),
            message_id(user(1), &[(request(1), Kind::WaitsAgain)]),
            message_id(user(1), &[one[0], (request(2), Kind::Waits)]),
            message_id(user(1), &[]),
        ] {
            assert_ne!(id, other);
        }
    }

    #[test]
    fn subject__should_be_read_from_its_key() {
        for subject in [
            NotificationSubject::Request(RequestId::from_bytes([1; 16])),
            NotificationSubject::Node(NodeId([2; 32])),
        ] {
            assert_eq!(NotificationSubject::of(&subject.key()), Some(subject));
        }
        for wrong in [&[] as &[u8], &[1, 2], &[3; 17]] {
            assert_eq!(NotificationSubject::of(wrong), None);
        }
    }

    #[test]
    fn target__should_show_neither_secret_nor_url() {
        let target = NotificationTarget {
            form: NotificationForm::Webhook(NotificationSecret([7; 32])),
            url: Webhook("https://example.com/hunter2".into()),
            set_at_ms: 1,
            is_new: true,
            pace: NotificationPace::default(),
        };
        let shown = format!("{target:?}");
        assert!(
            !shown.contains("hunter2") && !shown.contains("7, 7"),
            "{shown}"
        );
    }
}
