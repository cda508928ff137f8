//! What is known beside the bytes that are signed: whom a payment goes to, what the contract of its token says, who has to
//! agree, and how its signers are doing. All of it is this service's word, or that of a chain's nodes: pages say so.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    time::Duration,
};

use covault_actors::{
    chain_rpc::{ChainKey, TokenFacts},
    gateway::{PageReader, RecipientHistory, WordOfToken},
    users::SignedIn,
};
use covault_core::{
    amount::U256,
    fault::Fault,
    ids::{RequestId, VaultId},
    networks::{evm::batch::BatchPart, outflow::Asset},
    schema::wire,
};
use futures::{StreamExt as _, stream};
use parking_lot::Mutex;

use super::{
    ConsoleCall,
    pages::vault_names,
    rule_facts::rule,
    text::{SpendView, Text, Time, TimedText},
    views::RequestView,
};

use crate::{
    approving::check_contract,
    units::{in_decimals, in_units},
};

/// Earlier requests to a recipient that are looked at: on the page of one request, and of several.
const LOOKED_AT: usize = 100;
const LOOKED_AT_TOGETHER: usize = 5;
/// Recipients of a page about whom something is found out.
const RECIPIENTS: usize = 50;
/// Tokens of a page whose contracts are asked.
const MOST_TOKENS: usize = 50;
/// What stands where a contract says nothing of its token.
const SILENT: &str = "no node of its chain says its decimals now: ask whoever issues the token";
const NOT_ASKED: &str = "not asked of such a token: ask whoever issues it";
const LEFT_OUT: &str = "not asked: only the first 50 tokens of a page are";
const NOT_LOOKED_UP: &str = "Whether this address was paid before could not be looked up.";
/// How long a page waits for what contracts say of their tokens.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of them at once.
const AT_ONCE: usize = 8;
/// Tokens that are remembered.
const TOKENS: usize = 1_000;
/// How long it is remembered that a contract says nothing, in milliseconds.
const SILENCE_MS: u64 = 30_000;

/// A chain, and the contract of a token there.
type TokenName = (ChainKey, String);

/// What contracts have said of their tokens. They say the same for ever, or are not worth listening to.
#[derive(Default)]
pub struct KnownTokens(Mutex<HashMap<TokenName, TokenAnswer>>);

struct TokenAnswer {
    word: WordOfToken,
    at_ms: u64,
}

impl KnownTokens {
    fn find(&self, token: &TokenName, now_ms: u64) -> Option<WordOfToken> {
        let all = self.0.lock();
        let TokenAnswer { word, at_ms } = all.get(token)?;
        let holds = *word != WordOfToken::Silent || now_ms.saturating_sub(*at_ms) < SILENCE_MS;
        holds.then(|| word.clone())
    }

    fn remember(&self, token: TokenName, word: WordOfToken, at_ms: u64) {
        let mut all = self.0.lock();
        if all.len() >= TOKENS {
            all.clear();
        }
        all.insert(token, TokenAnswer { word, at_ms });
    }
}

/// What a contract says of its token.
#[derive(Clone, Debug)]
pub struct SaidOfToken(TokenFacts);

impl SaidOfToken {
    /// How many decimals it has.
    pub fn decimals(&self) -> usize {
        self.0.decimals.into()
    }

    /// An amount as the contract would write it. Its symbol is a text of a stranger's: it stands in quotes, and is left out
    /// where it begins like a part of the number.
    pub fn in_units(&self, amount: U256) -> String {
        let TokenFacts { decimals, symbol } = &self.0;
        let amount = in_decimals(amount, usize::from(*decimals));
        match symbol.chars().next() {
            Some(first) if first.is_alphabetic() || first == '$' => {
                format!("{amount} \u{201c}{}\u{201d}", Text::new(symbol))
            }
            Some(_) | None => format!("{amount} tokens"),
        }
    }
}

/// The heading of amounts: those of tokens are what their contract makes of them, as the chain's nodes tell.
pub fn whose_amounts(said: Option<&SaidOfToken>) -> &'static str {
    match said {
        Some(_) => "By the token's contract",
        None => "Amount",
    }
}

/// What the contract of a token says of it, as the nodes of its chain tell.
pub async fn token(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    chain: ChainKey,
    token: &str,
) -> Option<SaidOfToken> {
    match word_of(call, signed_in, (chain, token.to_owned())).await {
        WordOfToken::Said(facts) => Some(SaidOfToken(facts)),
        WordOfToken::Silent | WordOfToken::NotAsked => None,
    }
}

async fn word_of(call: &ConsoleCall<'_>, signed_in: &SignedIn, name: TokenName) -> WordOfToken {
    let known = &call.console.known_tokens;
    if let Some(word) = known.find(&name, call.now_ms()) {
        return word;
    }
    let caller = call.caller(signed_in);
    let pages = call.gateway().pages(&caller);
    let word = pages.token_facts(name.0, &name.1).await;
    known.remember(name, word.clone(), call.now_ms());
    word
}

/// Adds to the pages of requests what is known beside them. Nothing is left out of a page because that is not known.
pub async fn add(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    requests: &mut [(wire::SigningRequest, RequestView)],
) {
    let caller = call.caller(signed_in);
    let pages = call.gateway().pages(&caller);
    let names = vault_names(call, signed_in).await.unwrap_or_default();
    let is_alone = requests.len() == 1;
    let most = if is_alone {
        LOOKED_AT
    } else {
        LOOKED_AT_TOGETHER
    };
    for (request, view) in requests.iter_mut() {
        let Some(part) = &view.batch_part else {
            continue;
        };
        let (chain, _, _) = part;
        let is_of_batch = !request.batch_payment_uuid.is_empty();
        let found = check_contract(part, pages.batch_contract(*chain), is_of_batch);
        // The batch contract does what is listed. The contract of a token may do anything.
        let pays = matches!(part, (_, _, BatchPart::Payment(_)));
        if pays && found.as_ref().is_some_and(|found| !found.is_bad) {
            view.caution = "";
            let rows = std::mem::take(&mut view.batch_spends);
            view.list(&rows);
        }
        view.contract = found;
    }
    // Each recipient of an asset once, in the order of the page.
    let mut questions: Vec<(usize, SpendView)> = Vec::new();
    let mut known: HashMap<(usize, Asset, Option<String>), usize> = HashMap::new();
    for (place, (_, view)) in requests.iter().enumerate() {
        for spend in &view.spends {
            let about = (place, spend.of.clone(), spend.to.clone());
            if let Entry::Vacant(entry) = known.entry(about) {
                entry.insert(questions.len());
                questions.push((place, spend.clone()));
            }
        }
    }
    // Chains may take their time: nobody waits for a page that asks them.
    let tokens = tokens_of(call, signed_in, &questions).await;
    questions.truncate(RECIPIENTS);
    // Places of their own: who decides on a request waits for nobody's search.
    let places = &call.console.recipients;
    let turn = places.wait(signed_in.user.id, PATIENCE).await;
    let mut each = Vec::new();
    for (place, spend) in questions.iter().filter(|_| turn.is_ok()) {
        if let Some((request, _)) = requests.get(*place) {
            each.push(found(&tokens, &pages, &names, request, spend, most));
        }
    }
    let found: Vec<_> = stream::iter(each).buffered(AT_ONCE).collect().await;
    let left_out = TimedText::new(match turn {
        Ok(_) => format!(
            "Not checked whether this address was paid before: only the first {RECIPIENTS} addresses of a page are checked."
        ),
        Err(_) => format!("{NOT_LOOKED_UP} Load this page again."),
    });
    drop(turn);
    for (place, (_, view)) in requests.iter_mut().enumerate() {
        for spend in &mut view.spends {
            if let Some(name) = token_name(spend) {
                spend.tell_by_chain(tokens.get(&name));
            }
            let about = (place, spend.of.clone(), spend.to.clone());
            let Some(found) = known.get(&about).and_then(|place| found.get(*place)) else {
                spend.history.clone_from(&left_out);
                spend.is_new = true;
                continue;
            };
            spend.whose.clone_from(&found.whose);
            spend.history.clone_from(&found.history);
            spend.is_new = found.is_new;
        }
    }
    if let ([(request, view)], true) = (requests, is_alone)
        && let Some((rule, names)) = rule(call, &pages, request).await
    {
        view.rule = Some(rule);
        for said in &mut view.wanted {
            let named = names.iter();
            let named = named.fold(said.to_string(), |said, (key, name)| {
                said.replace(key, name)
            });
            *said = Text::new(named);
        }
    }
}

impl SpendView {
    /// Adds what the contract of the token says; `None` where it was not asked for others.
    fn tell_by_chain(&mut self, word: Option<&WordOfToken>) {
        self.not_by_chain = match word {
            Some(WordOfToken::Said(facts)) => {
                let said = SaidOfToken(facts.clone());
                self.by_chain = Text::new(said.in_units(self.units));
                self.differs = self
                    .named_decimals
                    .is_some_and(|named| named != said.decimals());
                ""
            }
            Some(WordOfToken::Silent) => SILENT,
            Some(WordOfToken::NotAsked) => NOT_ASKED,
            None => LEFT_OUT,
        };
    }
}

/// What is known of one payment.
struct PaymentRecord {
    whose: Text,
    history: TimedText,
    is_new: bool,
}

/// What the contracts of a page's first tokens say of them, each asked once, all of them for [`PATIENCE`] together.
async fn tokens_of(
    call: &ConsoleCall<'_>,
    signed_in: &SignedIn,
    questions: &[(usize, SpendView)],
) -> HashMap<TokenName, WordOfToken> {
    let mut names = BTreeSet::new();
    for (_, spend) in questions {
        if names.len() < MOST_TOKENS {
            names.extend(token_name(spend));
        }
    }
    let end = tokio::time::Instant::now() + PATIENCE;
    let mut each = Vec::new();
    for name in &names {
        each.push(async move { (name, word_of(call, signed_in, name.clone()).await) });
    }
    let mut each = stream::iter(each).buffer_unordered(AT_ONCE);
    let mut found = HashMap::new();
    while let Ok(Some((name, word))) = tokio::time::timeout_at(end, each.next()).await {
        found.insert(name.clone(), word);
    }
    drop(each);
    // The next page does not wait for them again.
    for name in names {
        if let Entry::Vacant(place) = found.entry(name) {
            let known = &call.console.known_tokens;
            known.remember(place.key().clone(), WordOfToken::Silent, call.now_ms());
            place.insert(WordOfToken::Silent);
        }
    }
    found
}

/// The contract of a payment's token, with its chain.
fn token_name(spend: &SpendView) -> Option<TokenName> {
    let contract = spend.of.token.clone()?;
    let network = spend.of.place.network;
    Some((ChainKey::of(network, spend.chain_id), contract))
}

async fn found(
    tokens: &HashMap<TokenName, WordOfToken>,
    pages: &PageReader<'_>,
    names: &HashMap<String, String>,
    request: &wire::SigningRequest,
    spend: &SpendView,
    most: usize,
) -> PaymentRecord {
    let mut found = PaymentRecord {
        whose: Text::default(),
        history: TimedText::default(),
        is_new: false,
    };
    let place = &spend.of.place;
    let Some(address) = &spend.to else {
        return found;
    };
    if let Ok(Some(own)) = pages.own_wallet(place.network, address).await {
        let vault = names.get(&own.vault.to_string());
        let vault = vault.map(String::as_str).unwrap_or_default();
        let name = [&own.name, &own.reference]
            .into_iter()
            .find(|it| !it.is_empty());
        found.whose = Text::new(match name {
            Some(name) => {
                format!("of vault {vault}: the wallet that is called \u{201c}{name}\u{201d}")
            }
            None => format!("of vault {vault}: a wallet without a name"),
        });
    }
    let vault = request.vault_uuid.as_deref().unwrap_or_default();
    let ids = (vault.parse::<VaultId>(), request.uuid.parse::<RequestId>());
    if let (Ok(vault), Ok(id)) = ids {
        let but = (vault, id, request.creation_timestamp);
        let history = pages.history_of(but, address, &spend.of, most).await;
        let word = token_name(spend).and_then(|name| tokens.get(&name));
        let units = |amount| match word {
            Some(WordOfToken::Said(facts)) => SaidOfToken(facts.clone()).in_units(amount),
            Some(WordOfToken::Silent | WordOfToken::NotAsked) | None => units(&spend.of, amount),
        };
        (found.history, found.is_new) = history_line(request, history, &spend.of, units);
    }
    found
}

fn units(asset: &Asset, amount: U256) -> String {
    match in_units(asset, amount) {
        text if text.is_empty() => format!("{amount} in the smallest unit"),
        text => text,
    }
}

/// What is said of a recipient's history, and whether it may be new. A look-up that failed must not make it look known.
fn history_line(
    request: &wire::SigningRequest,
    history: Result<RecipientHistory, Fault>,
    asset: &Asset,
    units: impl Fn(U256) -> String,
) -> (TimedText, bool) {
    match history {
        Ok(history) => (in_words(&history, asset, units), history.signed == 0),
        Err(fault) => {
            let uuid = &request.uuid;
            tracing::error!(
                uuid,
                ?fault,
                "earlier payments to a recipient cannot be looked up"
            );
            (TimedText::new(NOT_LOOKED_UP), true)
        }
    }
}

/// What a vault had to do with a recipient, in a sentence.
fn in_words(
    history: &RecipientHistory,
    asset: &Asset,
    units: impl Fn(U256) -> String,
) -> TimedText {
    let RecipientHistory {
        signed,
        amount,
        last_at_ms,
        others,
        looked,
        is_cut,
    } = history;
    let among = match is_cut {
        true => format!(" among the newest {looked} requests to it"),
        false => String::new(),
    };
    let failed = match others {
        0 => String::new(),
        1 => " Not paid so far: 1 more request to pay it.".to_owned(),
        others => format!(" Not paid so far: {others} more requests to pay it."),
    };
    // Many pay the contract of a token: it is not about that address.
    let to = match asset.token {
        Some(_) => ", to which the tokens go",
        None => "",
    };
    let units = |amount: U256| match (amount.is_zero(), &asset.token) {
        (true, Some(_)) => "none of this token".to_owned(),
        (true, None) => "none of this coin".to_owned(),
        (false, Some(_)) => format!("{} of this token", units(amount)),
        (false, None) => units(amount),
    };
    match (signed, last_at_ms) {
        (0, _) => TimedText::new(format!(
            "First payment to this address{to}: this vault has signed none{among}.{failed}"
        )),
        (1, Some(last)) => TimedText {
            before: format!(
                "One payment to this address was signed before{among}: {}, on ",
                units(*amount)
            ),
            at: Some(Time::new(*last)),
            after: format!(".{failed}"),
        },
        (several, last) => TimedText {
            before: format!(
                "{several} payments to this address were signed before{among}: {} together, the last on ",
                units(*amount)
            ),
            at: Some(Time::new(last.unwrap_or_default())),
            after: format!(".{failed}"),
        },
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use covault_core::networks::{Network, outflow::ChainScope};

    use super::*;

    fn said(signed: usize, others: usize, is_cut: bool) -> String {
        let history = RecipientHistory {
            signed,
            amount: U256::from(15),
            last_at_ms: (signed > 0).then_some(1_764_108_642_999),
            others,
            looked: 100,
            is_cut,
        };
        in_words(&history, &asset(None), |amount| format!("{amount} X")).to_string()
    }

    /// The coin of a chain, or a token there.
    fn asset(token: Option<&str>) -> Asset {
        let place = ChainScope::evm(1);
        Asset {
            token: token.map(str::to_owned),
            ..Asset::coin(place)
        }
    }

    #[test]
    fn history__should_say_whether_it_is_the_first_payment_and_how_far_it_looked() {
        assert_eq!(
            said(0, 0, false),
            "First payment to this address: this vault has signed none."
        );
        assert_eq!(
            said(0, 100, true),
            "First payment to this address: this vault has signed none among the newest 100 requests to it. Not paid so \
             far: 100 more requests to pay it."
        );
        assert_eq!(
            said(1, 0, false),
            "One payment to this address was signed before: 15 X, on 2025-11-25 22:10 UTC."
        );
        assert_eq!(
            said(3, 1, false),
            "3 payments to this address were signed before: 15 X together, the last on 2025-11-25 22:10 \
             UTC. Not paid so far: 1 more request to pay it."
        );
    }

    #[test]
    fn history__should_be_of_who_gets_the_tokens_and_say_where_none_of_them_was_paid() {
        let history = |signed| RecipientHistory {
            signed,
            amount: U256::ZERO,
            last_at_ms: (signed > 0).then_some(1_764_108_642_999),
            others: 0,
            looked: 1,
            is_cut: false,
        };
        let token = asset(Some("0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"));
        let said = |signed| {
            let said = in_words(&history(signed), &token, |amount| format!("{amount} X"));
            said.to_string()
        };
        assert_eq!(
            said(0),
            "First payment to this address, to which the tokens go: this vault has signed none."
        );
        // It was paid before, in coins.
        assert_eq!(
            said(1),
            "One payment to this address was signed before: none of this token, on 2025-11-25 22:10 UTC."
        );
    }

    #[test]
    fn recipient__should_not_look_known_where_its_history_could_not_be_looked_up() {
        let request = wire::SigningRequest::default();
        let units = |amount: U256| amount.to_string();
        let (sentence, is_new) = history_line(
            &request,
            Err(Fault::unavailable("not now")),
            &asset(None),
            units,
        );
        assert!(is_new);
        assert_eq!(
            sentence.to_string(),
            "Whether this address was paid before could not be looked up."
        );
    }

    #[test]
    fn token__should_be_remembered_and_silence_only_for_a_while() {
        let known = KnownTokens::default();
        let token = |name: &str| (ChainKey::of(Network::Evm, Some(1)), name.to_owned());
        let facts = TokenFacts {
            decimals: 6,
            symbol: "USD\u{202e}T".to_owned(),
        };
        let said = WordOfToken::Said(facts);
        known.remember(token("a"), said.clone(), 5);
        known.remember(token("b"), WordOfToken::Silent, 5);
        assert_eq!(known.find(&token("a"), u64::MAX), Some(said));
        assert_eq!(known.find(&token("b"), 6), Some(WordOfToken::Silent));
        assert_eq!(known.find(&token("b"), 5 + SILENCE_MS), None);
        assert_eq!(known.find(&token("c"), 6), None);
        // Its name is a stranger's.
        for (symbol, shown) in [
            ("USD\u{202e}T", "1.5 \u{201c}USD\\u{202e}T\u{201d}"),
            ("$HAT", "1.5 \u{201c}$HAT\u{201d}"),
            // Part of the number, as it would look.
            ("000 000 USDC", "1.5 tokens"),
            (" 0 USDC", "1.5 tokens"),
            (",000 USDC", "1.5 tokens"),
            ("\u{661} USDC", "1.5 tokens"),
            ("", "1.5 tokens"),
        ] {
            let said = SaidOfToken(TokenFacts {
                decimals: 6,
                symbol: symbol.to_owned(),
            });
            assert_eq!(said.in_units(U256::from(1_500_000)), shown);
        }
        for number in 0..=TOKENS {
            known.remember(token(&number.to_string()), WordOfToken::Silent, 7);
        }
        assert!(known.0.lock().len() <= TOKENS);
    }
}
