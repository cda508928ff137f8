//! How much of the store a page reads, however much is in it: what it takes follows from that on every machine.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use covault_actors::{
    chain_rpc::ChainKey,
    store::{Key, ReadError, Row, RowMap, Scan},
    testing::StoreDouble,
};

use super::{
    batches::{CHAIN, CONTRACT, Chain, TOKEN, form},
    *,
};

/// A store that counts the rows that it is asked for, or gives.
struct CountingStore {
    inner: MemoryStore,
    rows: AtomicUsize,
}

#[async_trait]
impl StoreDouble for CountingStore {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        self.rows.fetch_add(1, Ordering::SeqCst);
        self.inner.get(key).await
    }

    async fn get_all(&self, keys: &[Key]) -> Result<RowMap, ReadError> {
        self.rows.fetch_add(keys.len(), Ordering::SeqCst);
        self.inner.get_all(keys).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<(Key, Row)>, ReadError> {
        let found = self.inner.scan(scan).await?;
        self.rows.fetch_add(found.len(), Ordering::SeqCst);
        Ok(found)
    }
}

/// Rows that a request has of its own where a list shows all of it, with that of the index.
const OF_A_REQUEST: usize = 6;
/// Rows that every page reads: session, account, vaults, and what says whether there is another page.
const OF_A_PAGE: usize = 40;

/// A person, a vault with so many messages that wait, and how many rows a page reads.
struct ReadCounts {
    store: Arc<CountingStore>,
    world: World,
    person: PersonWithPasskey,
    vault: String,
    from: String,
    last: String,
}

impl ReadCounts {
    async fn with(messages: usize) -> Self {
        Self::on(ChainClients::default(), messages).await
    }

    async fn on(chains: ChainClients, messages: usize) -> Self {
        let store = Arc::new(CountingStore {
            inner: MemoryStore::new(),
            rows: AtomicUsize::new(0),
        });
        let behind: Arc<dyn Store> = store.clone();
        let world = World::on(behind, 0, chains).await;
        let person = world.person("treasurer", "approver", &[]).await;
        let named = [("treasurer", person.line.as_str())];
        let vault = world.vault("treasury", 1, &named).await;
        let from = world.wallet(&vault, "cash").await;
        let mut last = String::new();
        for number in 0..messages {
            last = world.message(&from, &number.to_string(), "rent").await;
        }
        Self {
            store,
            world,
            person,
            vault,
            from,
            last,
        }
    }

    /// What a history says, and how many rows it has read.
    async fn history(&self, query: &str) -> (String, usize) {
        let path = format!("/history?vault={}&{query}", self.vault);
        let (mut text, mut least) = (String::new(), usize::MAX);
        // What the service itself reads meanwhile, now and then, is not the page's.
        for _ in 0..3 {
            self.store.rows.store(0, Ordering::SeqCst);
            let page = self.world.get(&path, &self.person.cookie).await;
            assert_eq!(page.status, 200, "{}", page.text);
            text = page.text;
            least = least.min(self.store.rows.load(Ordering::SeqCst));
        }
        (text, least)
    }
}

#[tokio::test]
async fn histories__should_read_no_more_of_the_store_than_a_page_needs() {
    let counts = ReadCounts::with(620).await;
    let last = counts.last.as_str();
    let (fifty, hundred) = (50 * OF_A_REQUEST, 100 * OF_A_REQUEST);
    let by_uuid = format!("search={last}");
    let by_wallet = format!("search={}", counts.from);
    for (query, part, most) in [
        ("", "/requests/", fifty),
        // As many as a page shows, and two rows of each one that is passed over.
        ("status=pending", "Found 50 among 50", fifty + 100),
        ("status=failed", "Found 0 among 500", 2 * 500),
        (&by_uuid, "Found 1. Looked at all", OF_A_REQUEST),
        // Beside each request, its row of the index.
        (
            &by_wallet,
            "Found 100. Looked at the newest 100",
            hundred + 100,
        ),
        ("search=rent", "the newest 100 requests", hundred),
        ("search=nowhere", "the newest 100 requests", hundred),
        ("search=rent&page=4", "behind the newest 200.", hundred),
        ("search=rent&status=failed", "Found 0.", hundred),
    ] {
        let (text, rows) = counts.history(query).await;
        assert!(text.contains(part), "{query}: {text}");
        assert!(rows <= most + OF_A_PAGE, "{query}: {rows} rows");
    }
    // A page in the middle of what is found takes as much as the first.
    let (mut query, mut pages) = (by_wallet.clone(), 0);
    loop {
        let (text, rows) = counts.history(&query).await;
        assert!(rows <= hundred + 100 + OF_A_PAGE, "{query}: {rows} rows");
        pages += 1;
        let Some((_, next)) = text.split_once("before=") else {
            break;
        };
        let next = next.split('"').next().unwrap();
        query = format!("{by_wallet}&before={next}");
    }
    assert_eq!(pages, 7);
    // What is found by the index goes on with the texts.
    let (text, _) = counts.history(&by_uuid).await;
    let next = "page=2";
    assert!(text.contains(next), "{text}");
    let (text, _) = counts.history(&format!("{by_uuid}&{next}")).await;
    assert!(text.contains("Found 1 by this text among 100"), "{text}");
}

/// A file of as many rows as there can be takes one question to the chain and few rows: the rest is one pass over its text.
#[tokio::test]
async fn files__should_be_checked_with_one_question_however_many_rows_they_have() {
    let (key, chain) = (ChainKey::evm(CHAIN), Arc::new(Chain::default()));
    let chains = ChainClients::default().with(key, chain.clone());
    let chains = chains.with_batch_contract(key, CONTRACT.into());
    let counts = ReadCounts::on(chains, 0).await;
    let mut file = "recipient,amount,notes\n".to_owned();
    for number in 1..=254 {
        file += &format!("0x{number:040x},0.25,rent\n");
    }
    let fields = [
        ("form_token", counts.person.form_token.as_str()),
        ("vault", &counts.vault),
        ("from", &counts.from),
        ("chain", "31337"),
        ("token", TOKEN),
        ("unit", "whole"),
        ("decimals", "6"),
    ];
    // What the contract has said is known from then on.
    for questions in [1, 0] {
        counts.store.rows.store(0, Ordering::SeqCst);
        chain.asked.store(0, Ordering::SeqCst);
        let cookie = &counts.person.cookie;
        let sent = form(&fields, Some(file.as_bytes()));
        let said = counts.world.send_form("/batches/check", cookie, sent).await;
        assert_eq!(said.status, 200, "{}", said.text);
        assert!(said.text.contains("to 254 recipients"), "{}", said.text);
        assert_eq!(chain.asked.load(Ordering::SeqCst), questions);
        let rows = counts.store.rows.load(Ordering::SeqCst);
        assert!(rows <= OF_A_PAGE, "{rows} rows");
    }
}
