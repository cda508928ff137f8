//! Fills a store as years of use would: copies of the rows of some finished requests, each with
//! another id, time, number and idempotency key, and with their entries of the audit log.

use std::sync::Arc;

use covault_actors::{
    audit::AuditLog,
    store::{Batch, Key, KeySpace, Precondition, Scan, Store},
};
use covault_core::{
    audit::{AuditChain, AuditEntry},
    ids::RequestId,
};
use sha2::{Digest as _, Sha256};

/// Rows of one commit.
const PAGE: usize = 8_000;
/// Entries of the audit log among which those of the templates are, at the end of their chain.
const NEWEST: u64 = 8_000;
/// The kinds of rows that a request has.
const SPACES: [KeySpace; 10] = [
    KeySpace::Request,
    KeySpace::Outbox,
    KeySpace::Idempotency,
    KeySpace::NonceReservation,
    KeySpace::Claim,
    KeySpace::ReservationExpiry,
    KeySpace::RequestIndex,
    KeySpace::RequestTerm,
    KeySpace::RecordAge,
    KeySpace::Transaction,
];

/// A request of which copies are made.
pub struct SampleRequest {
    pub uuid: String,
    /// Its idempotency key, as long as [`key`].
    pub key: String,
}

/// What is there to be asked for afterwards.
pub struct CopyPlan {
    pub store: Arc<dyn Store>,
    pub chain: AuditChain,
    /// Of what copies are made.
    pub templates: Vec<Template>,
    /// How many are to be there.
    pub requests: u64,
    /// How many there are already.
    pub before: u64,
    /// How many numbers of each account are taken otherwise.
    pub skipped: u64,
    /// How many of those that are made are payments of one account.
    pub each: u64,
    /// When the first one was made, in milliseconds since the Unix epoch.
    pub first_ms: u64,
}

/// Milliseconds from one copy to the next.
const STEP_MS: u64 = 10;

/// The id of a copy.
pub fn request_id(first_ms: u64, number: u64) -> RequestId {
    let digest = Sha256::digest(number.to_be_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    RequestId::from_time(time_ms(first_ms, number), bytes)
}

/// When a copy was made, in milliseconds since the Unix epoch.
pub fn time_ms(first_ms: u64, number: u64) -> u64 {
    first_ms + STEP_MS * number
}

/// When the first of so many copies was made, if the last one was made now, in milliseconds.
pub fn first_ms(now_ms: u64, requests: u64) -> u64 {
    now_ms - STEP_MS * requests
}

/// The idempotency key of a copy; all are of one length.
pub fn key(number: u64) -> String {
    format!("invoice {number:012}")
}

/// What is different in every copy.
#[derive(Clone, Copy)]
enum Placeholder {
    Id,
    Uuid,
    Key,
    TimeBig,
    TimeLittle,
}

const PLACEHOLDERS: [Placeholder; 5] = [
    Placeholder::Id,
    Placeholder::Uuid,
    Placeholder::Key,
    Placeholder::TimeBig,
    Placeholder::TimeLittle,
];

/// What a copy has in the place of the marks.
struct PlaceholderValues {
    id: RequestId,
    uuid: String,
    key: String,
    time_ms: u64,
    /// By how much its number is higher.
    numbers: u64,
}

impl PlaceholderValues {
    fn of(&self, placeholder: Placeholder) -> Vec<u8> {
        match placeholder {
            Placeholder::Id => self.id.as_bytes().to_vec(),
            Placeholder::Uuid => self.uuid.as_bytes().to_vec(),
            Placeholder::Key => self.key.as_bytes().to_vec(),
            Placeholder::TimeBig => self.time_ms.to_be_bytes().to_vec(),
            Placeholder::TimeLittle => self.time_ms.to_le_bytes().to_vec(),
        }
    }
}

/// Bytes with places where copies differ.
struct RowTemplate {
    bytes: Vec<u8>,
    placeholders: Vec<(usize, Placeholder)>,
}

impl RowTemplate {
    fn new(bytes: Vec<u8>, values: &PlaceholderValues) -> Self {
        let mut placeholders = Vec::new();
        for placeholder in PLACEHOLDERS {
            let wanted = values.of(placeholder);
            let places = bytes.windows(wanted.len()).enumerate();
            let places = places.filter(|(_, window)| *window == wanted);
            placeholders.extend(places.map(|(place, _)| (place, placeholder)));
        }
        Self {
            bytes,
            placeholders,
        }
    }

    fn copy(&self, values: &PlaceholderValues) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for (place, placeholder) in &self.placeholders {
            let value = values.of(*placeholder);
            bytes[*place..place + value.len()].copy_from_slice(&value);
        }
        bytes
    }
}

/// A finished request: its rows, and its entries of the audit log.
pub struct Template {
    rows: Vec<(KeySpace, RowTemplate, RowTemplate)>,
    entries: Vec<RowTemplate>,
}

impl Template {
    fn new(made: &SampleRequest, rows: &[(Key, Vec<u8>)], entries: &[(String, Vec<u8>)]) -> Self {
        let id: RequestId = made.uuid.parse().unwrap();
        let index = rows.iter().find(|(row, _)| {
            row.space == KeySpace::RequestIndex && row.bytes.ends_with(id.as_bytes())
        });
        let time: [u8; 8] = index.unwrap().0.bytes[16..24].try_into().unwrap();
        let values = PlaceholderValues {
            id,
            uuid: made.uuid.clone(),
            key: made.key.clone(),
            time_ms: u64::from_be_bytes(time),
            numbers: 0,
        };
        let of_it = |bytes: &[u8]| {
            let holds = |placeholder: &[u8]| {
                bytes
                    .windows(placeholder.len())
                    .any(|window| window == placeholder)
            };
            holds(id.as_bytes()) || holds(made.uuid.as_bytes()) || holds(made.key.as_bytes())
        };
        let mine = rows
            .iter()
            .filter(|(key, value)| of_it(&key.bytes) || of_it(value));
        let mine = mine.map(|(key, value)| {
            assert!(key.space != KeySpace::Claim, "requests claim numbers alone");
            let name = RowTemplate::new(key.bytes.clone(), &values);
            (key.space, name, RowTemplate::new(value.clone(), &values))
        });
        let subject = format!("request:{}", made.uuid);
        let entries = entries.iter().filter(|(of, _)| *of == subject);
        let template = Self {
            rows: mine.collect(),
            entries: entries
                .map(|(_, body)| RowTemplate::new(body.clone(), &values))
                .collect(),
        };
        assert!(
            template.rows.len() >= 4 && !template.entries.is_empty(),
            "a whole request"
        );
        template
    }

    fn add_to(&self, page: &mut WriteBatch, chain: AuditChain, values: &PlaceholderValues) {
        for (space, name, value) in &self.rows {
            let mut bytes = name.copy(values);
            if *space == KeySpace::NonceReservation {
                let place = bytes.len() - 8;
                let number = u64::from_be_bytes(bytes[place..].try_into().unwrap());
                let number = number + values.numbers;
                bytes[place..].copy_from_slice(&number.to_be_bytes());
            }
            let key = Key {
                space: *space,
                bytes,
            };
            page.rows.push((key, value.copy(values)));
        }
        let entries = self.entries.iter().map(|entry| (chain, entry.copy(values)));
        page.entries.extend(entries);
    }
}

/// What is written at once.
#[derive(Default)]
struct WriteBatch {
    rows: Vec<(Key, Vec<u8>)>,
    entries: Vec<(AuditChain, Vec<u8>)>,
}

impl WriteBatch {
    async fn write(&mut self, store: &Arc<dyn Store>) {
        let mut batch = Batch::new();
        let Self { mut rows, entries } = std::mem::take(self);
        rows.sort();
        for (key, value) in rows {
            batch.put(key, Precondition::Absent, value);
        }
        for (chain, body) in entries {
            batch.append(chain, body);
        }
        store.commit(batch).await.unwrap();
    }
}

/// What the store has of these requests. Before copies are made: only the newest of the audit log is looked
/// through.
pub async fn templates(
    store: &Arc<dyn Store>,
    chain: AuditChain,
    made: &[SampleRequest],
) -> Vec<Template> {
    let mut rows = Vec::new();
    for space in SPACES {
        let all = store.scan(&Scan::prefix(space, &[], usize::MAX)).await;
        rows.extend(all.unwrap().into_iter().map(|(key, row)| (key, row.value)));
    }
    let log = AuditLog(&**store);
    let head = log.head(chain).await.unwrap().unwrap();
    let mut entries = Vec::new();
    let mut next = head.number.saturating_sub(NEWEST).max(1);
    while next <= head.number {
        for (number, linked) in log.entries(chain, next).await.unwrap() {
            let entry = AuditEntry::decode(&linked.body).unwrap();
            entries.push((entry.subject, linked.body));
            next = number + 1;
        }
    }
    made.iter()
        .map(|made| Template::new(made, &rows, &entries))
        .collect()
}

/// Makes them.
pub async fn make(copies: CopyPlan) {
    let CopyPlan {
        store,
        chain,
        templates,
        requests,
        before,
        skipped,
        each,
        first_ms,
    } = copies;
    let mut page = WriteBatch::default();
    for number in before..before + requests {
        let round = (number - before) / templates.len() as u64;
        let id = request_id(first_ms, number);
        let values = PlaceholderValues {
            id,
            uuid: id.to_string(),
            key: key(number),
            time_ms: time_ms(first_ms, number),
            numbers: before + skipped + (round + 1) * each,
        };
        let template = &templates[((number - before) % templates.len() as u64) as usize];
        template.add_to(&mut page, chain, &values);
        if page.rows.len() >= PAGE {
            page.write(&store).await;
        }
        if number > 0 && number.is_multiple_of(100_000) {
            eprintln!("  {number} requests are there");
        }
    }
    page.write(&store).await;
}
