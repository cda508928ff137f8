//! Whether a part of a batch payment was tried before.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use covault_actors::{
    chain_rpc::ChainKey,
    store::{Key, KeySpace, ReadError, Row, RowMap},
    testing::StoreDouble,
};

use super::{
    batches::{CHAIN, CONTRACT, Chain},
    *,
};

/// A store that cannot read batch payments, when it is told so.
struct WithoutBatches {
    inner: MemoryStore,
    is_slow: AtomicBool,
}

impl WithoutBatches {
    fn refuse(&self, mut keys: impl Iterator<Item = KeySpace>) -> Result<(), ReadError> {
        let is_batch = keys.any(|space| space == KeySpace::Batch);
        match is_batch && self.is_slow.load(Ordering::SeqCst) {
            true => Err(ReadError("too slow".into())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl StoreDouble for WithoutBatches {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, ReadError> {
        self.refuse(std::iter::once(key.space))?;
        self.inner.get(key).await
    }

    async fn get_all(&self, keys: &[Key]) -> Result<RowMap, ReadError> {
        self.refuse(keys.iter().map(|key| key.space))?;
        self.inner.get_all(keys).await
    }
}

#[tokio::test]
async fn earlier_try_that_cannot_be_looked_up__should_be_said() {
    let chain = ChainKey::evm(CHAIN);
    let chains = ChainClients::default().with(chain, Arc::new(Chain::default()));
    let chains = chains.with_batch_contract(chain, CONTRACT.into());
    let store = Arc::new(WithoutBatches {
        inner: MemoryStore::new(),
        is_slow: AtomicBool::new(false),
    });
    let behind: Arc<dyn Store> = store.clone();
    let world = World::on(behind, 0, chains).await;
    let person = world.person("treasurer", "approver", &[]).await;
    let named = [("treasurer", person.line.as_str())];
    let vault = world.vault("treasury", 1, &named).await;
    let from = world.wallet(&vault, "cash").await;
    let path = format!("/batches/{}", world.batch(&from, &["5", "7"], None).await);
    let said = world
        .act(&person, &format!("{path}/approve"), "&total=12")
        .await;
    assert_eq!(said.status, 303, "{}", said.text);
    let page = world.get(&path, &person.cookie).await.text;
    let request = page.split_once("href=\"/requests/").unwrap().1;
    let request = format!("/requests/{}", request.split('"').next().unwrap());
    for (is_slow, is_said) in [(false, false), (true, true), (false, false)] {
        store.is_slow.store(is_slow, Ordering::SeqCst);
        let page = world.get(&request, &person.cookie).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let sentence = "was tried before could not be looked up";
        assert_eq!(page.text.contains(sentence), is_said, "{}", page.text);
    }
}
