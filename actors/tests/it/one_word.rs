//! Nodes that contradict each other, on every network but Solana (`solana_node`): where two have to agree, no request
//! fails by the word of one, and none is built with a price that is not believed.

use std::{collections::BTreeSet, sync::Arc};

use covault_actors::chain_rpc::{
    BroadcastOutcome, BroadcastRequest, ChainClient, ChainEndpoints, ChainError, ChainKey,
    everywhere, tried,
};
use covault_core::networks::{
    ChainData, Network, Payload, Queries, Signed,
    bitcoin::{ChainData as BitcoinChainData, UnspentOutput},
};
use futures::future::join_all;
use serde_json::{Value, json};

use crate::{
    aptos_node,
    evm_node::{self, EvmTestNode, chains, connect_to, nobody, two_of},
    http_double::{self, HttpResponse},
    solana_node, stellar_node, sui_node, ton_node, tron_node,
    world::CHAIN,
};

/// What one node says of a transaction for which a request would fail, and another node does not.
pub struct Lie {
    pub what: &'static str,
    pub chain: ChainKey,
    pub liar: String,
    pub honest: String,
    /// The honest node takes it now.
    pub is_taken: bool,
    pub request: BroadcastRequest,
}

/// The first block of every regtest.
pub const REGTEST: &str = "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206";

/// A bitcoind that knows no transaction but the one that made what is spent, where that `is_there`, and has spent the output
/// that is spent, and says this to sendrawtransaction.
async fn bitcoind(sent: Result<Value, (i64, &'static str)>, is_there: bool) -> String {
    let answer = move |call: &Value| {
        let said = match call["method"].as_str().unwrap() {
            "getblockhash" if call["params"][0] == 0 => Ok(json!(REGTEST)),
            "sendrawtransaction" => sent.clone(),
            "getblockchaininfo" => Ok(json!({"chain": "regtest", "blocks": 1, "headers": 1})),
            "getindexinfo" => Ok(json!({"txindex": {"synced": true}})),
            "gettxout" => Ok(Value::Null),
            "gettransaction" if is_there && call["params"][0] == "1".repeat(64) => {
                Ok(json!({"confirmations": 5}))
            }
            _ => Err((-5, "No such mempool or blockchain transaction")),
        };
        match said {
            Ok(result) => json!({"id": call["id"], "result": result, "error": null}),
            Err((code, message)) => {
                json!({"id": call["id"], "result": null, "error": {"code": code, "message": message}})
            }
        }
    };
    http_double::start(move |request| {
        let calls = request.json();
        let calls = calls.as_array().unwrap();
        let answers: Vec<Value> = calls.iter().map(&answer).collect();
        Some(HttpResponse::json(200, &json!(answers)))
    })
    .await
}

async fn of_bitcoin() -> Vec<Lie> {
    let spent = UnspentOutput {
        txid: "1".repeat(64),
        vout: 0,
        value: 1_000,
    };
    let request = BroadcastRequest {
        signed: Signed {
            transaction: "00".into(),
            tx_hash: "2".repeat(64),
        },
        chain_data: ChainData::from(BitcoinChainData {
            outputs: vec![spent],
            ..Default::default()
        }),
        age_ms: 0,
        now_ms: 0,
        retried: false,
    };
    let chain = ChainKey::of(Network::Bitcoin, None);
    let missing = || Err((-25, "bad-txns-inputs-missingorspent"));
    vec![
        Lie {
            what: "the rules of the network refuse it",
            chain,
            liar: bitcoind(Err((-26, "dust")), false).await,
            honest: bitcoind(Ok(json!("2".repeat(64))), false).await,
            is_taken: true,
            request: request.clone(),
        },
        Lie {
            what: "what it spends is spent, where that is not there yet",
            chain,
            liar: bitcoind(missing(), true).await,
            honest: bitcoind(missing(), false).await,
            is_taken: false,
            request,
        },
    ]
}

async fn lies() -> Vec<Lie> {
    let mut all = of_bitcoin().await;
    all.extend(evm_node::lies().await);
    all.extend(aptos_node::lies().await);
    all.extend(sui_node::lies().await);
    all.extend(stellar_node::lies().await);
    all.extend(ton_node::lies().await);
    all.extend(tron_node::lies().await);
    all
}

/// A lie, and clients that hear it.
struct LieHeard<'a> {
    lie: &'a Lie,
    agree: usize,
    /// Of the liar and the honest node, the liar and nobody, and the liar twice, each in both orders.
    against: [Arc<dyn ChainClient>; 2],
    alone: [Arc<dyn ChainClient>; 2],
    twice: [Arc<dyn ChainClient>; 2],
    /// Of the liar, which is the only node.
    single: Arc<dyn ChainClient>,
}

impl<'a> LieHeard<'a> {
    fn new(lie: &'a Lie, agree: usize, nobody: &str) -> Self {
        let two = |other: &str| two_of(lie.chain, agree, &lie.liar, other);
        let single = ChainEndpoints {
            timeout_ms: 120_000,
            ..ChainEndpoints::new(vec![lie.liar.clone()])
        };
        Self {
            lie,
            agree,
            against: two(&lie.honest),
            alone: two(nobody),
            twice: two(&lie.liar),
            single: connect_to(lie.chain, single),
        }
    }

    async fn check(&self) {
        let Lie {
            what,
            chain,
            is_taken,
            request,
            ..
        } = self.lie;
        let what = format!("{chain}, {} of two: {what}", self.agree);
        let of_each = async |clients: &[Arc<dyn ChainClient>; 2]| {
            join_all(clients.iter().map(|client| client.broadcast(request))).await
        };
        let sent_everywhere = async |clients: &[Arc<dyn ChainClient>; 2]| {
            let sent = clients.iter().map(|one| everywhere(one.broadcast(request)));
            join_all(sent).await
        };
        let (against, alone, everywhere, twice, single) = tokio::join!(
            of_each(&self.against),
            of_each(&self.alone),
            sent_everywhere(&self.alone),
            of_each(&self.twice),
            self.single.broadcast(request),
        );
        let is_over = |outcome: &BroadcastOutcome| matches!(outcome, BroadcastOutcome::Refused(_));
        // What is void by what one node says, the tracker asks all nodes about.
        for outcome in against.iter().chain(&alone).chain(&everywhere) {
            assert!(!is_over(outcome), "{what}: {outcome:?}");
        }
        if *is_taken {
            let taken = [BroadcastOutcome::Accepted, BroadcastOutcome::Accepted];
            assert_eq!(against, taken, "{what}");
            for outcome in &alone {
                let BroadcastOutcome::Unknown(reason) = outcome else {
                    panic!("{what}: {outcome:?}");
                };
                let words = ["a node refuses it (node ", "2 nodes must refuse it"];
                for words in words {
                    assert!(reason.contains(words), "{reason}");
                }
            }
        }
        for outcome in &twice {
            assert!(is_over(outcome), "{what}, twice: {outcome:?}");
        }
        // Its word is all there is.
        assert!(is_over(&single), "{what}, the only node: {single:?}");
    }
}

/// A refusal that comes later is no doubt only where nobody can have kept the bytes.
#[tokio::test]
async fn a_try__should_have_got_out_unless_no_node_was_reached() {
    let nobody = nobody().await;
    for lie in evm_node::lies().await {
        let sent = async |nodes: Vec<String>| {
            let client = connect_to(lie.chain, ChainEndpoints::new(nodes));
            tried(client.broadcast(&lie.request)).await
        };
        let (outcome, got_out) = sent(vec![nobody.clone()]).await;
        assert!(
            matches!(outcome, BroadcastOutcome::Unknown(_)),
            "{outcome:?}"
        );
        assert!(!got_out, "{}", lie.what);
        for nodes in [
            vec![lie.liar.clone()],
            vec![nobody.clone(), lie.liar.clone()],
        ] {
            assert!(sent(nodes).await.1, "{}", lie.what);
        }
    }
}

/// Whether one node is believed elsewhere, or two have to agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request__should_fail_by_the_word_of_one_node_wherever_there_are_two() {
    let (lies, nobody) = (lies().await, nobody().await);
    // Clients take their time to be made, in which those of others would wait for answers.
    let heard = |lie| [1, 2].map(|agree| LieHeard::new(lie, agree, &nobody));
    let heard: Vec<LieHeard> = lies.iter().flat_map(heard).collect();
    join_all(heard.iter().map(LieHeard::check)).await;
    let chains: BTreeSet<_> = lies.iter().map(|lie| lie.chain.network).collect();
    assert_eq!(chains.len(), 7, "all networks but Solana");
}

/// One that is behind, or ahead, refuses for what passes; a liar must not make a refusal for good of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_have_different_things_against_a_transaction__should_not_end_it() {
    let evm = async |words: &'static str| {
        let node = EvmTestNode::start(move |method, params| match method {
            "eth_sendRawTransaction" => Err((-32000, words.into())),
            _ => evm_node::healthy(method, params),
        });
        node.await.url
    };
    let of_bitcoin = of_bitcoin().await.remove(0);
    let bitcoin = [
        bitcoind(Err((-26, "dust")), false).await,
        bitcoind(Err((-26, "txn-mempool-conflict")), false).await,
    ];
    for (chain, [one, other], request) in [
        (
            ChainKey::evm(CHAIN),
            [
                evm("insufficient funds for gas").await,
                evm("nonce too low").await,
            ],
            evm_node::broadcast_request(),
        ),
        (of_bitcoin.chain, bitcoin, of_bitcoin.request),
    ] {
        for agree in [1, 2] {
            for client in two_of(chain, agree, &one, &other) {
                let outcome = client.broadcast(&request).await;
                let BroadcastOutcome::Unknown(reason) = outcome else {
                    panic!("{chain}: {outcome:?}");
                };
                for node in ["(node ", "; node "] {
                    assert!(reason.contains(node), "{reason}");
                }
            }
        }
    }
}

/// What one node says for which a request would be refused before anything is signed, and another node does not.
pub struct Denial {
    pub what: &'static str,
    pub chain: ChainKey,
    pub liar: String,
    pub honest: String,
    pub queries: Queries,
    pub now_ms: u64,
}

/// EVM: `evm_word`; Sui and TON: in their files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request__should_be_refused_before_it_is_signed_by_one_node_where_two_have_to_agree() {
    let mut all = tron_node::denials().await;
    all.extend(aptos_node::denials().await);
    all.push(solana_node::denial().await);
    all.extend(stellar_node::denials().await);
    let check = async |denial: &Denial| {
        let Denial {
            what,
            chain,
            liar,
            honest,
            queries,
            now_ms,
        } = denial;
        let asks = async |urls: &[&String]| {
            let endpoints = ChainEndpoints {
                agree: 2,
                timeout_ms: 120_000,
                ..ChainEndpoints::new(urls.iter().map(|url| (*url).clone()).collect())
            };
            connect_to(*chain, endpoints)
                .chain_data(queries, *now_ms)
                .await
        };
        for urls in [[liar, honest], [honest, liar]] {
            let said = asks(&urls).await;
            if matches!(said, Err(ChainError::Refused(_) | ChainError::Lacks(_))) {
                return Some(format!("{chain}: {what}: {said:?}"));
            }
        }
        for urls in [[liar, honest, honest], [honest, honest, liar]] {
            let said = asks(&urls).await;
            if said.is_err() {
                return Some(format!("{chain}: {what}, against two: {said:?}"));
            }
        }
        let said = asks(&[liar, liar]).await;
        let is_refused = matches!(said, Err(ChainError::Refused(_) | ChainError::Lacks(_)));
        assert!(is_refused, "{chain}: {what}, twice: {said:?}");
        None
    };
    let wrong: Vec<_> = join_all(all.iter().map(check)).await;
    let wrong: Vec<_> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What nodes that name a price would have a request pay, and the highest that is believed.
pub struct QuotedPrice {
    pub chain: ChainKey,
    /// The node that names the ceiling, and one that names one more.
    pub nodes: [String; 2],
    pub payload: Payload,
    pub most: u128,
    pub unit: &'static str,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prices_of_nodes__should_be_believed_up_to_a_ceiling() {
    let mut all = aptos_node::prices().await;
    all.extend(sui_node::prices().await);
    all.extend(stellar_node::prices().await);
    for QuotedPrice {
        chain,
        nodes: [at_most, above],
        payload,
        most,
        unit,
    } in all
    {
        let ask = async |url: &str, most_price: Option<u128>| {
            let endpoints = ChainEndpoints {
                most_price,
                ..ChainEndpoints::new(vec![url.to_owned()])
            };
            let chains = chains(chain, endpoints);
            let client = chains.get(chain.network, chain.chain_id).unwrap();
            let queries = chain.network.rules().queries(&payload);
            let chain_data = client.chain_data(&queries, 0).await.unwrap();
            let estimates = client.fee_estimates().await.unwrap();
            (
                chains.price_problem(chain.network, &payload, &chain_data),
                chains.estimate_problem(chain, &estimates),
            )
        };
        assert_eq!(ask(&at_most, None).await, (None, None), "{chain}");
        let (built, shown) = ask(&above, None).await;
        let named = format!("report a price of {} {unit}", most + 1);
        for problem in [built, shown] {
            let problem = problem.unwrap_or_default();
            assert!(problem.contains("most_price"), "{chain}: {problem}");
            assert!(problem.contains(&named), "{chain}: {problem}");
        }
        // Configuration raises it, and lowers it.
        assert_eq!(ask(&above, Some(most + 1)).await, (None, None), "{chain}");
        let (built, shown) = ask(&at_most, Some(most - 1)).await;
        assert!(built.is_some() && shown.is_some(), "{chain}");
    }
}
