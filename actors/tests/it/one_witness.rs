//! Where a transaction is, by nodes of which one says what the others do not, on every network: where two have to
//! agree, the word of one puts it in no block and ends nothing, and what the others say later counts.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use covault_actors::chain_rpc::{
    ChainEndpoints, ChainKey, TrackedTransaction, TransactionSighting,
};
use futures::future::join_all;
use reqwest::Url;

use crate::{
    aptos_node, bitcoin_sightings,
    evm_node::{self, connect_to},
    http_double::{self, HttpResponse},
    solana_node, stellar_node, sui_node, ton_node, tron_node,
};

/// Nodes, and what they say of one transaction.
pub struct Witnesses {
    pub chain: ChainKey,
    /// Each says by itself that a block has it, or that it never comes.
    pub liars: Vec<(&'static str, String)>,
    /// No block has it.
    pub honest: String,
    /// A block has it for good.
    pub later: String,
    pub transaction: TrackedTransaction,
    pub now_ms: u64,
    /// What is to be said then.
    pub end: TransactionSighting,
}

/// Who answers at the address of a honest node.
const NOBODY: usize = 2;

/// The address of a node behind which stands one of these, or nobody.
async fn before(nodes: [&str; 2], now: &Arc<AtomicUsize>) -> String {
    let nodes = nodes.map(|url| Url::parse(url).unwrap());
    let (listener, url) = http_double::listen().await;
    let url = format!("{url}{}", nodes[0].path().trim_end_matches('/'));
    let (now, http) = (Arc::clone(now), reqwest::Client::new());
    http_double::serve(listener, move |request| {
        let node = nodes.get(now.load(Ordering::SeqCst)).cloned();
        let http = http.clone();
        async move {
            let url = node?.join(request.target()).unwrap();
            let kind = request.header("content-type").unwrap_or_default();
            let asked = http.request(request.method().parse().unwrap(), url);
            let asked = asked
                .header("content-type", kind)
                .body(request.body.clone());
            let answer = asked.send().await.ok()?;
            let said = |name: &'static str| {
                let value = answer.headers().get(name)?.to_str().unwrap();
                Some((name, value.to_owned()))
            };
            let names = ["content-type", "grpc-status", "grpc-message"];
            let headers = names.into_iter().filter_map(said).collect();
            Some(HttpResponse {
                status: answer.status().as_u16(),
                headers,
                body: answer.bytes().await.ok()?.to_vec(),
            })
        }
    });
    url
}

/// One liar and so many others, of which so many have to agree: what is said that is wrong.
async fn check(
    witnesses: &Witnesses,
    agree: usize,
    liar: &(&str, String),
    others: usize,
    is_first: bool,
) -> Option<String> {
    let Witnesses {
        chain,
        honest,
        later,
        transaction,
        now_ms,
        end,
        ..
    } = witnesses;
    let (lie, liar) = liar;
    let now = Arc::new(AtomicUsize::new(NOBODY));
    let others = (0..others).map(|_| before([honest, later], &now));
    let mut urls = join_all(others).await;
    let place = if is_first { 0 } else { urls.len() };
    urls.insert(place, liar.clone());
    let count = urls.len();
    let endpoints = ChainEndpoints {
        agree,
        // Tests beside this one may take all there is of the machine.
        timeout_ms: 120_000,
        ..ChainEndpoints::new(urls)
    };
    let client = connect_to(*chain, endpoints);
    let sighted = async || {
        let transaction = std::slice::from_ref(transaction);
        client.sightings(transaction, *now_ms).await.remove(0)
    };
    let what = format!("{chain}, {agree} of {count} nodes, the liar at {place}: {lie}");
    let is_open = |said: &Result<TransactionSighting, _>| match said {
        // Its block may go.
        Ok(TransactionSighting::Mined(_)) => agree == 1,
        Err(_) | Ok(TransactionSighting::Missing | TransactionSighting::Waiting) => true,
        Ok(_) => false,
    };
    // The liar alone, and then against who has nothing.
    for who in [NOBODY, 0] {
        now.store(who, Ordering::SeqCst);
        let said = sighted().await;
        if !is_open(&said) {
            return Some(format!("{what}, {who}: {said:?}"));
        }
    }
    now.store(1, Ordering::SeqCst);
    let said = sighted().await;
    match &said {
        Ok(said) if said == end => None,
        // Two that do not agree say nothing, and one that is believed may say it is not final yet.
        said if is_open(said) && (count == 2 || agree == 1) => None,
        _ => Some(format!("{what}, later: {said:?}")),
    }
}

/// All but Solana's.
async fn witnesses() -> Vec<Witnesses> {
    // Another test of the process may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut all = vec![
        evm_node::witnesses().await,
        bitcoin_sightings::witnesses().await,
        tron_node::witnesses().await,
        sui_node::witnesses().await,
        stellar_node::witnesses().await,
        ton_node::witnesses().await,
    ];
    all.extend(aptos_node::witnesses().await);
    all
}

/// Of a node that knows no transaction and two others whose block has it, the one in this place stands still.
async fn check_still(witnesses: &Witnesses, place: usize) -> Option<String> {
    let Witnesses {
        chain,
        honest,
        later,
        transaction,
        now_ms,
        end,
        ..
    } = witnesses;
    let mut urls = vec![later.clone(), later.clone()];
    urls.insert(place, honest.clone());
    let endpoints = ChainEndpoints {
        agree: 2,
        timeout_ms: 120_000,
        ..ChainEndpoints::new(urls)
    };
    let client = connect_to(*chain, endpoints);
    let transaction = std::slice::from_ref(transaction);
    let said = client.sightings(transaction, *now_ms).await.remove(0);
    (said.as_ref() != Ok(end)).then(|| format!("{chain}, {place} stands still: {said:?}"))
}

/// On Solana, a node that does not know a transaction leaves it open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stands_still__should_not_hide_the_final_block_that_two_others_have() {
    let all = witnesses().await;
    let checks = all
        .iter()
        .flat_map(|witnesses| [0, 1, 2].map(|place| check_still(witnesses, place)));
    let wrong: Vec<_> = join_all(checks).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_transaction__should_be_in_a_block_by_the_word_of_one_node_where_two_have_to_agree() {
    let mut all = witnesses().await;
    all.extend(solana_node::witnesses().await);
    assert_eq!(all.len(), 10, "all networks");
    let checks = all.iter().flat_map(|witnesses| {
        let ways = [(1, true), (1, false), (2, true), (2, false)];
        witnesses.liars.iter().flat_map(move |liar| {
            ways.map(|(others, is_first)| check(witnesses, 2, liar, others, is_first))
        })
    });
    let wrong: Vec<_> = join_all(checks).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What configuration says by default: one node is believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_transaction__should_be_final_by_the_word_of_one_node_wherever_there_are_two() {
    let mut all = witnesses().await;
    all.extend(solana_node::witnesses().await);
    let checks = all.iter().flat_map(|witnesses| {
        let ways = [(1, true), (1, false), (2, true), (2, false)];
        witnesses.liars.iter().flat_map(move |liar| {
            ways.map(|(others, is_first)| check(witnesses, 1, liar, others, is_first))
        })
    });
    let wrong: Vec<_> = join_all(checks).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_silent_node_of_two__should_leave_a_transaction_in_its_block_until_it_is_back() {
    let mut all = witnesses().await;
    all.extend(solana_node::witnesses().await);
    let nobody = evm_node::nobody().await;
    let check = async |witnesses: &Witnesses| {
        let Witnesses {
            chain,
            later,
            transaction,
            now_ms,
            end,
            ..
        } = witnesses;
        let TransactionSighting::Final(inclusion) = end else {
            panic!("{end:?}");
        };
        let sighted = async |urls: &[&String]| {
            let endpoints = ChainEndpoints {
                timeout_ms: 120_000,
                ..ChainEndpoints::new(urls.iter().map(|url| (*url).clone()).collect())
            };
            let client = connect_to(*chain, endpoints);
            let transaction = std::slice::from_ref(transaction);
            client.sightings(transaction, *now_ms).await.remove(0)
        };
        for urls in [[&nobody, later], [later, &nobody]] {
            let mined = TransactionSighting::Mined(*inclusion);
            assert_eq!(sighted(&urls).await, Ok(mined), "{chain}");
        }
        for urls in [&[later, later][..], &[later], &[later, &nobody, later]] {
            assert_eq!(sighted(urls).await.as_ref(), Ok(end), "{chain}");
        }
    };
    join_all(all.iter().map(check)).await;
}
