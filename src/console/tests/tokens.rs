//! Payments of tokens: what their amounts are, and whom they pay.

use covault_actors::chain_rpc::ChainKey;
use wire::create_signing_request_request::Type as Kind;

use super::{
    batches::{CHAIN, CONTRACT, Chain, MINT, TOKEN, UNASKED},
    *,
};

const TO: &str = "0x00000000000000000000000000000000c0ffEE19";
const OTHER: &str = "0x00000000000000000000000000000000c0ffee20";
/// A token whose contract says nothing.
const SILENT: &str = "0x0000000000000000000000000000000000001234";

async fn world() -> (World, PersonWithPasskey, String, String) {
    let chain = || Arc::new(Chain::default());
    let chains = ChainClients::default()
        .with(ChainKey::evm(CHAIN), chain())
        .with(ChainKey::SOLANA, chain());
    let world = World::with(0, chains).await;
    let person = world.person("treasurer", "approver", &[]).await;
    let named = [("treasurer", person.line.as_str())];
    let vault = world.vault("treasury", 1, &named).await;
    let from = world.wallet(&vault, "cash").await;
    (world, person, vault, from)
}

fn tokens(from: &str, token: &str, to: &str) -> Kind {
    Kind::EvmSendErc20(wire::EvmSendErc20 {
        chain_id: CHAIN,
        from: from.into(),
        to: to.into(),
        token_contract_address: token.into(),
        amount: "1500000".into(),
        ..Default::default()
    })
}

/// The page of such a request.
async fn page(world: &World, person: &PersonWithPasskey, kind: Kind) -> String {
    let request = wire::CreateSigningRequestRequest {
        r#type: Some(kind),
        ..Default::default()
    };
    let made = world.call::<CreateSigningRequest>(&request).await;
    let uuid = made.signing_request.unwrap().uuid;
    let page = world
        .get(&format!("/requests/{uuid}"), &person.cookie)
        .await;
    assert_eq!(page.status, 200, "{}", page.text);
    page.text
}

#[tokio::test]
async fn amounts__should_stand_beside_those_of_the_contract_and_say_what_nobody_names() {
    let (world, person, vault, from) = world().await;
    let nothing = "it names neither decimals nor a symbol";
    let silence = "no node of its chain says its decimals now";
    let differs = "The request names other decimals than the token's contract";
    let said = page(&world, &person, tokens(&from, TOKEN, TO)).await;
    for part in [
        "<dt>Signed</dt><dd>1500000</dd>",
        nothing,
        "1.5 \u{201c}US\\u{202e}DC\u{201d}",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = page(&world, &person, tokens(&from, SILENT, TO)).await;
    assert!(said.contains(nothing) && said.contains(silence), "{said}");
    // Where there is nobody to ask, nobody has said nothing.
    let said = page(&world, &person, tokens(&from, UNASKED, TO)).await;
    assert!(
        said.contains("not asked of such a token") && !said.contains(silence),
        "{said}"
    );
    // A coin has the decimals of its network, which are signed with it.
    let uuid = world.payment(&from, TO, 5, "").await;
    let coin = world
        .get(&format!("/requests/{uuid}"), &person.cookie)
        .await;
    assert!(!coin.text.contains("By the request"), "{}", coin.text);

    // A request that names decimals.
    let wallet = wire::CreateWalletRequest {
        vault_uuid: vault,
        network_type: wire::NetworkType::Solana.into(),
        ..Default::default()
    };
    let wallet = world.call::<CreateWallet>(&wallet).await.details.unwrap();
    let spl = |mint: &str, decimals| {
        Kind::SolanaSendSplToken(wire::SolanaSendSplToken {
            from: wallet.address.clone(),
            to: "4uQeVj5tqViQh7yWWGStvkEG1Zmhx6uasJtWCJziofM".into(),
            mint_address: mint.into(),
            amount: "1500000".into(),
            decimals: Some(decimals),
            ..Default::default()
        })
    };
    let said = page(&world, &person, spl(MINT, 6)).await;
    for part in [
        "1.5 <small>by the decimals that the requester names, who names no symbol",
        "<bdi>1.5 tokens</bdi>",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains(differs), "{said}");
    // The mint has six: who names three makes it a thousand times as much.
    let said = page(&world, &person, spl(MINT, 3)).await;
    for part in ["1500 <small>by", "<bdi>1.5 tokens</bdi>", differs] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let silent = "Es9vMFrzaCERmJfrF4H2FYD4KCoNkY11McCe8BenwNYB";
    let said = page(&world, &person, spl(silent, 3)).await;
    assert!(said.contains(silence) && !said.contains(differs), "{said}");
}

#[tokio::test]
async fn amounts__should_be_by_the_contract_also_behind_the_recipients_that_are_looked_up() {
    let (world, person, _, from) = world().await;
    // disperseToken(address,address[],uint256[])
    let mut data = hex::decode("c73a2d60").unwrap();
    data.extend([0; 12]);
    data.extend(hex::decode(TOKEN.trim_start_matches("0x")).unwrap());
    let (recipients, values) = (0xa000..0xa03c, [1_500_000; 60]);
    let numbers = [96, 96 + 32 * 61, 60].into_iter();
    let numbers = numbers.chain(recipients).chain([60]).chain(values);
    numbers.for_each(|number: u64| data.extend(U256::from(number).to_be_bytes::<32>()));
    let kind = Kind::EvmSendCustom(wire::EvmSendCustom {
        chain_id: CHAIN,
        from,
        to: CONTRACT.into(),
        value: "0".into(),
        input: data,
        ..Default::default()
    });
    let said = page(&world, &person, kind).await;
    let times = |part: &str| said.matches(part).count();
    let by_chain = "<dt>By the token's contract</dt><dd><bdi>1.5 \u{201c}US";
    assert_eq!(times(by_chain), 60, "{said}");
    // And the contract itself, which is called.
    assert_eq!(times("only the first 50 addresses of a page"), 11, "{said}");
}

#[tokio::test]
async fn payment_of_tokens__should_be_the_first_to_its_recipient_whoever_was_paid_by_the_contract()
{
    let (world, person, _, from) = world().await;
    let first =
        "First payment to this address, to which the tokens go: this vault has signed none.";
    let again = "Not paid so far: 1 more request to pay it.";
    for to in [TO, OTHER] {
        let said = page(&world, &person, tokens(&from, TOKEN, to)).await;
        assert!(
            said.contains(first) && !said.contains(again),
            "{to}: {said}"
        );
    }
    let said = page(&world, &person, tokens(&from, TOKEN, TO)).await;
    assert!(said.contains(first) && said.contains(again), "{said}");
    // The contract was paid nothing by that.
    let coins = Kind::EvmSendNative(wire::EvmSendNative {
        chain_id: CHAIN,
        from,
        to: TOKEN.into(),
        value: "5".into(),
        ..Default::default()
    });
    let said = page(&world, &person, coins).await;
    assert!(
        said.contains("First payment to this address: this vault has signed none.")
            && !said.contains(again),
        "{said}"
    );
}
