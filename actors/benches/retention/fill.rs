//! Fills a store as an orchestrator would have: its own rows, of wallets, batches and some finished
//! requests that it made on a store in memory; and copies of the rows of those requests, each with
//! another id, time, number and idempotency key.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use covault_actors::store::{
    Batch, CommitError, Expect, Key, ReadError, Row, Scan, Space, Store,
    memory::MemoryStore,
    postgres::{Options, PostgresStore},
    redb::RedbStore,
};
use covault_core::{
    ids::{RequestId, TokenId},
    schema::wire::NetworkType,
};
use futures::StreamExt as _;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{PATIENCE, Place, service};

/// Requests that an orchestrator makes; all others are copies of these.
const MADE: u64 = 200;
/// Accounts that pay.
const PAYERS: u64 = 10;
/// Vaults, among which the wallets are shared out. The requests are in the first one.
const VAULTS: u64 = 4;
const BATCHES: u64 = 50;
/// Most addresses that are asked for.
const ADDRESSES: usize = 1_000;
/// Rows of one commit.
const PAGE: usize = 8_000;

/// What can be asked for.
#[derive(Debug, Serialize, Deserialize)]
pub struct Facts {
    pub token: [u8; 16],
    pub vaults: Vec<String>,
    /// How many wallets there are; their references are numbered.
    pub wallets: u64,
    /// Those of some of them: what a service does not keep in memory its load must not either.
    pub addresses: Vec<String>,
    /// Accounts that have paid, and how often each.
    pub payers: Vec<String>,
    pub paid: u64,
    /// Those that sign messages.
    pub writers: Vec<String>,
    pub batches: Vec<String>,
    /// How many requests there are; [`request_id`] has their ids.
    pub requests: u64,
}

/// The id of a request of the store.
pub fn request_id(number: u64) -> RequestId {
    let digest = Sha256::digest(number.to_be_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    RequestId::from_random(bytes)
}

/// The idempotency key of a request; all are of one length.
pub fn key(number: u64) -> String {
    format!("invoice {number:012}")
}

pub async fn open(place: &Place) -> Arc<dyn Store> {
    if !place.store.starts_with("postgres") {
        return Arc::new(RedbStore::open(&PathBuf::from(&place.store)).unwrap());
    }
    let options = Options {
        url: SecretString::from(place.store.clone()),
        readers: 4.try_into().unwrap(),
        patience: PATIENCE,
        alone: true,
    };
    // Its process may have been killed just now.
    for _ in 0..100 {
        if let Ok(store) = PostgresStore::open(options.clone()).await {
            return Arc::new(store);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("PostgreSQL cannot be opened")
}

/// A store in memory that knows which kinds of rows it has.
#[derive(Default)]
struct Recorder {
    inner: MemoryStore,
    spaces: Mutex<BTreeSet<Space>>,
}

#[async_trait]
impl Store for Recorder {
    async fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        let spaces = batch.writes().iter().map(|write| write.key.space);
        self.spaces.lock().unwrap().extend(spaces);
        self.inner.commit(batch).await
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        self.inner.get(key).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        self.inner.scan(scan).await
    }
}

impl Recorder {
    async fn rows(&self) -> Vec<(Key, Vec<u8>)> {
        let spaces = self.spaces.lock().unwrap().clone();
        let mut all = Vec::new();
        for space in spaces {
            let rows = self.scan(&Scan::prefix(space, &[], usize::MAX)).await;
            all.extend(rows.unwrap().into_iter().map(|(key, row)| (key, row.value)));
        }
        all
    }
}

/// What is different in every copy.
#[derive(Clone, Copy)]
enum Mark {
    Id,
    Uuid,
    Key,
    TimeBig,
    TimeLittle,
}

/// What a copy has in the place of the marks.
struct Values {
    id: RequestId,
    uuid: String,
    key: String,
    time_ms: u64,
    /// By how much its number is higher.
    numbers: u64,
}

impl Values {
    fn of(&self, mark: Mark) -> Vec<u8> {
        match mark {
            Mark::Id => self.id.as_bytes().to_vec(),
            Mark::Uuid => self.uuid.as_bytes().to_vec(),
            Mark::Key => self.key.as_bytes().to_vec(),
            Mark::TimeBig => self.time_ms.to_be_bytes().to_vec(),
            Mark::TimeLittle => self.time_ms.to_le_bytes().to_vec(),
        }
    }
}

/// Bytes with places where copies differ.
struct Form {
    bytes: Vec<u8>,
    marks: Vec<(usize, Mark)>,
}

impl Form {
    fn new(bytes: Vec<u8>, values: &Values) -> Self {
        let mut marks = Vec::new();
        for mark in [
            Mark::Id,
            Mark::Uuid,
            Mark::Key,
            Mark::TimeBig,
            Mark::TimeLittle,
        ] {
            let wanted = values.of(mark);
            let places = bytes.windows(wanted.len()).enumerate();
            let places = places.filter(|(_, window)| *window == wanted);
            marks.extend(places.map(|(place, _)| (place, mark)));
        }
        Self { bytes, marks }
    }

    fn copy(&self, values: &Values) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for (place, mark) in &self.marks {
            let value = values.of(*mark);
            bytes[*place..place + value.len()].copy_from_slice(&value);
        }
        bytes
    }
}

/// A finished request: its rows.
struct Template(Vec<(Space, Form, Form)>);

impl Template {
    /// Takes the rows of a request out of all.
    fn take(rows: &mut Vec<(Key, Vec<u8>)>, uuid: String, key: String) -> Self {
        let id: RequestId = uuid.parse().unwrap();
        let index = rows.iter().find(|(row, _)| {
            row.space == Space::RequestIndex && row.bytes.ends_with(id.as_bytes())
        });
        let time: [u8; 8] = index.unwrap().0.bytes[16..24].try_into().unwrap();
        let values = Values {
            id,
            uuid,
            key,
            time_ms: u64::from_be_bytes(time),
            numbers: 0,
        };
        let mut mine = Vec::new();
        rows.retain(|(row, value)| {
            assert!(
                row.space != Space::Claim,
                "no request claims more than numbers"
            );
            let name = Form::new(row.bytes.clone(), &values);
            let value = Form::new(value.clone(), &values);
            let number = row.space == Space::NonceClaim && !value.marks.is_empty();
            // What is one row for all requests stays as it is.
            let is_mine = !name.marks.is_empty() || number;
            if is_mine {
                mine.push((row.space, name, value));
            }
            !is_mine
        });
        Self(mine)
    }

    fn rows(&self, values: &Values) -> impl Iterator<Item = (Key, Vec<u8>)> {
        self.0.iter().map(|(space, name, value)| {
            let mut bytes = name.copy(values);
            if *space == Space::NonceClaim {
                let place = bytes.len() - 8;
                let number = u64::from_be_bytes(bytes[place..].try_into().unwrap());
                let number = number + values.numbers;
                bytes[place..].copy_from_slice(&number.to_be_bytes());
            }
            let key = Key {
                space: *space,
                bytes,
            };
            (key, value.copy(values))
        })
    }
}

pub fn fill(place: &Place, requests: u64, wallets: u64) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(fill_now(place, requests, wallets));
}

async fn fill_now(place: &Place, requests: u64, wallets: u64) {
    let copies = requests / MADE;
    assert_eq!(copies * MADE, requests, "a multiple of {MADE}");
    let recorder = Arc::new(Recorder::default());
    let store = Arc::clone(&recorder) as Arc<dyn Store>;
    let gateway = service::start(store, service::signers(&[]), Arc::default()).await;
    let mut vaults = Vec::new();
    for number in 0..VAULTS {
        vaults.push(service::make_vault(&gateway, &format!("vault {number}")).await);
    }
    let token = service::make_token(&gateway).await;
    let caller = service::platform(token);

    let numbers = futures::stream::iter(0..wallets);
    let made = numbers.map(|number| {
        let (gateway, caller) = (gateway.clone(), caller.clone());
        // In runs of two, so that every vault has both networks.
        let vault = vaults[(number / 2 % VAULTS) as usize];
        async move {
            let wallet = service::make_wallet(&gateway, &caller, vault, number).await;
            (vault, wallet)
        }
    });
    let made: Vec<_> = made.buffer_unordered(64).collect().await;
    let of_main = |network: NetworkType| {
        let mine = made.iter().filter(|(vault, _)| *vault == vaults[0]);
        let mine = mine.filter(|(_, wallet)| wallet.network_type() == network);
        let addresses = mine.map(|(_, wallet)| wallet.address.clone());
        addresses.take(PAYERS as usize).collect::<Vec<_>>()
    };
    let (payers, writers) = (of_main(NetworkType::Evm), of_main(NetworkType::Solana));
    let mut batches = Vec::new();
    for number in 0..BATCHES {
        let command = service::batch_payment(&payers[(number % PAYERS) as usize]);
        let made = gateway.submit(&caller, command, None).await.unwrap();
        let covault_actors::gateway::Receipt::BatchPayment(batch) = made.receipt else {
            panic!("no batch")
        };
        batches.push(batch.uuid);
    }
    let mut templates = Vec::new();
    for number in 0..MADE {
        let account = (number / 2 % PAYERS) as usize;
        let kind = match number % 2 {
            0 => service::payment(&payers[account]),
            _ => service::message(&writers[account]),
        };
        let key = format!("template {number:011}");
        let uuid = service::complete(&gateway, &caller, kind, key.clone()).await;
        templates.push((uuid, key));
    }
    gateway.stop().await;

    let mut rows = recorder.rows().await;
    drop(recorder);
    let templates: Vec<_> = templates
        .into_iter()
        .map(|(uuid, key)| Template::take(&mut rows, uuid, key))
        .collect();
    let each = MADE / 2 / PAYERS;
    let store = open(place).await;
    for page in rows.chunks(PAGE) {
        write(&store, page.to_vec()).await;
    }
    let first_ms = service::now_ms() - 10 * requests;
    let mut page = Vec::new();
    for number in 0..requests {
        let values = Values {
            id: request_id(number),
            uuid: request_id(number).to_string(),
            key: key(number),
            time_ms: first_ms + 10 * number,
            numbers: number / MADE * each,
        };
        page.extend(templates[(number % MADE) as usize].rows(&values));
        if page.len() >= PAGE {
            write(&store, std::mem::take(&mut page)).await;
        }
    }
    write(&store, page).await;
    let stride = made.len().div_ceil(ADDRESSES);
    let some = made.into_iter().step_by(stride);
    let facts = Facts {
        token: *TokenId::as_bytes(&token),
        vaults: vaults.iter().map(ToString::to_string).collect(),
        wallets,
        addresses: some.map(|(_, wallet)| wallet.address).collect(),
        payers,
        paid: copies * each,
        writers,
        batches,
        requests,
    };
    fs::write(&place.facts, serde_json::to_vec(&facts).unwrap()).unwrap();
}

async fn write(store: &Arc<dyn Store>, mut rows: Vec<(Key, Vec<u8>)>) {
    rows.sort();
    let mut batch = Batch::new();
    for (key, value) in rows {
        batch.put(key, Expect::Any, value);
    }
    store.commit(batch).await.unwrap();
}
