//! A policy in words: one line for the log, and all of it for `covault policy check`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
};

use covault_core::networks::{Network, outflow::ChainScope};

use super::{AmountLimit, Policy, rules::ScopeRules};

/// One line for the log.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = &self.node;
        let places = |places: &Option<BTreeSet<ChainScope>>, none: &str| match places {
            None => none.to_owned(),
            Some(places) => format!("[{}]", join(places)),
        };
        write!(
            f,
            "networks {}, kinds {}, raw signing {}, messages {}, typed data {}, custom calls {}, \
             {} limits{}, {} recipient lists{}, {} fee limits, {} rules of approval; {} vaults and {} wallets with rules \
             of their own, rules for each other vault {}, for each other wallet {}",
            places(&node.networks, "all"),
            match &node.kinds {
                None => "all".to_owned(),
                Some(kinds) => kinds.len().to_string(),
            },
            on(self.raw_signing()),
            on(node.messages.unwrap_or(true)),
            places(&node.typed_data, UNLIMITED),
            places(&node.custom_calls, UNLIMITED),
            node.limits.len(),
            only(node.only_listed_assets, " and no other assets"),
            node.recipients.len(),
            only(node.only_recipients(), " and no other recipients"),
            node.most_fee.len(),
            self.scopes()
                .map(|rules| rules.approvals.len())
                .sum::<usize>(),
            self.vaults.len(),
            self.wallets.len(),
            on(self.each_vault != ScopeRules::default()),
            on(self.each_wallet != ScopeRules::default()),
        )
    }
}

const UNLIMITED: &str = "where nothing is limited";

impl Policy {
    /// All of it in plain words, one sentence a line: the node's rules, then those of vaults and
    /// wallets.
    pub fn explain(&self) -> Vec<String> {
        let mut lines = vec!["This signer, for all that it signs:".to_owned()];
        lines.extend(self.node.explain(true));
        if !self.batch_contracts.is_empty() {
            let contracts = self.batch_contracts.iter();
            let contracts = contracts.map(|(chain, address)| format!("evm:{chain}:{address}"));
            lines.push(format!(
                "  batch contracts, whose payments count row by row: {}",
                contracts.collect::<Vec<_>>().join(", ")
            ));
        }
        let each = [
            ("vault", &self.each_vault, self.vaults.len()),
            ("wallet", &self.each_wallet, self.wallets.len()),
        ];
        for (what, rules, named) in each {
            if *rules != ScopeRules::default() {
                let others = only(named > 0, " that is not named below");
                lines.push(format!("Each {what}{others}, by itself:"));
                lines.extend(rules.explain(false));
            }
        }
        for (vault, rules) in &self.vaults {
            lines.push(format!("Vault {vault}, by itself:"));
            lines.extend(rules.explain(false));
        }
        for ((network, address), rules) in &self.wallets {
            lines.push(format!("Wallet {address} ({}), by itself:", network.name()));
            lines.extend(rules.explain(false));
        }
        if self.scopes().any(|rules| !rules.approvals.is_empty()) {
            let once = "What people approve is signed once: with keys of more than half of their signers alone, such as \
                        2 of 3. With 2 of 4 this signer makes no key, and signs nothing that has to be approved";
            lines.push(once.to_owned());
        }
        lines
    }

    /// The same, each sentence with the part that it is of: for what one policy says and another one does not.
    pub fn sentences(&self) -> BTreeSet<String> {
        let mut part = String::new();
        let mut sentences = BTreeSet::new();
        for line in self.explain() {
            match line.strip_prefix("  ") {
                Some(rule) => _ = sentences.insert(format!("{part} {rule}")),
                None => part = line,
            }
        }
        sentences
    }
}

impl ScopeRules {
    /// The rules in words. `node`: they are the node's, for which what is left out has a meaning of
    /// its own.
    fn explain(&self, node: bool) -> Vec<String> {
        let mut lines = Vec::new();
        let mut say = |sentence: String| lines.push(format!("  {sentence}"));
        match &self.networks {
            Some(places) => say(format!("networks: {} alone", or_none(places))),
            None if node => say("networks: all".to_owned()),
            None => {}
        }
        match &self.kinds {
            Some(kinds) => {
                let names: BTreeSet<_> = kinds.iter().map(|kind| kind.name()).collect();
                say(format!("kinds: {} alone", or_none(&names)));
            }
            None if node => say("kinds: all".to_owned()),
            None => {}
        }
        let switches = [
            ("raw signing", self.raw_signing, node.then_some(false)),
            ("messages", self.messages, node.then_some(true)),
        ];
        for (what, switch, default) in switches {
            if let Some(switch) = switch.or(default) {
                say(format!("{what}: {}", on(switch)));
            }
        }
        let limited = self.only_listed_assets
            || self.only_recipients()
            || !(self.recipients.is_empty() && self.limits.is_empty());
        let opaque = [
            ("typed data", &self.typed_data),
            ("custom calls", &self.custom_calls),
        ];
        for (what, places) in opaque {
            match places {
                Some(places) => say(format!("{what}: {}", or_none(places))),
                None if limited => say(format!("{what}: only {UNLIMITED} below")),
                None if node => say(format!("{what}: everywhere")),
                None => {}
            }
        }
        let changes = self.account_changes.clone();
        if let Some(changes) = changes.or(node.then(BTreeSet::new)) {
            let names: BTreeSet<_> = changes.iter().map(|change| change.name()).collect();
            say(format!(
                "changes of who signs for an account: {}",
                or_none(&names)
            ));
        }
        self.explain_recipients(node, &mut say);
        self.explain_fees(node, &mut say);
        for (
            asset,
            AmountLimit {
                per_request,
                per_day,
            },
        ) in &self.limits
        {
            let parts = [(per_request, "per request"), (per_day, "in any 24 hours")];
            let parts: Vec<String> = parts
                .iter()
                .filter_map(|(most, per)| most.map(|most| format!("at most {most} {per}")))
                .collect();
            say(format!("{asset}: {}, with fees", parts.join(", ")));
        }
        if self.only_listed_assets {
            say("other assets: none".to_owned());
        } else if node || !self.limits.is_empty() {
            let other = only(!self.limits.is_empty(), "other ");
            say(format!("{other}assets: any amount"));
        }
        for rule in &self.approvals {
            say(rule.explain());
        }
        if lines.is_empty() {
            lines.push("  no rules of its own".to_owned());
        }
        lines
    }

    fn explain_recipients(&self, node: bool, say: &mut impl FnMut(String)) {
        for (place, list) in &self.recipients {
            say(format!("recipients on {place}: {}", or_none(list)));
        }
        if self.own_wallets {
            say("recipients: wallets of the same vault".to_owned());
        }
        let other = only(!self.recipients.is_empty(), " elsewhere");
        if self.own_wallets {
            say(format!("other recipients{other}: none"));
        } else if self.only_listed_recipients {
            say(format!("recipients{other}: none"));
        } else if node || !self.recipients.is_empty() {
            say(format!("recipients{other}: anybody"));
        }
        if !self.unseen_recipients.is_empty() {
            let places = join(&self.unseen_recipients);
            say(format!("recipients that cannot be seen: on {places}"));
        }
    }

    fn explain_fees(&self, node: bool, say: &mut impl FnMut(String)) {
        let mut fees: BTreeMap<ChainScope, _> = self
            .most_fee
            .iter()
            .map(|(place, most)| (*place, most.to_string()))
            .collect();
        if node {
            for network in Network::ALL {
                let most = || format!("{} (default)", network.rules().default_most_fee());
                fees.entry(ChainScope::network(network))
                    .or_insert_with(most);
            }
        }
        for (place, most) in fees {
            say(format!("fee of a transaction on {place}: at most {most}"));
        }
        for (whose, prices) in [
            ("price", &self.most_price),
            ("price that a request names itself", &self.most_own_price),
        ] {
            for (place, most) in prices {
                let unit = place.network.rules().price_unit();
                say(format!("{whose} on {place}: at most {most} {unit}"));
            }
        }
    }
}

fn on(switch: bool) -> &'static str {
    if switch { "on" } else { "off" }
}

fn only(condition: bool, text: &str) -> &str {
    if condition { text } else { "" }
}

fn join<T: Display>(list: &BTreeSet<T>) -> String {
    let names: Vec<String> = list.iter().map(ToString::to_string).collect();
    names.join(", ")
}

fn or_none<T: Display>(list: &BTreeSet<T>) -> String {
    if list.is_empty() {
        "none".to_owned()
    } else {
        join(list)
    }
}
