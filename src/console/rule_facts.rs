//! Who has to agree to a request, and how its signers are doing.

use covault_actors::{gateway::PageReader, operations::ListNodes};
use covault_core::schema::{admin, wire};

use super::{
    ConsoleCall,
    pages::halt_in_words,
    text::{Text, Time},
    views::RuleView,
};

/// Who has to agree to a request, and whether its signers are there; and the names of these by their keys, as signers are
/// told of.
pub async fn rule(
    call: &ConsoleCall<'_>,
    pages: &PageReader<'_>,
    request: &wire::SigningRequest,
) -> Option<(RuleView, Vec<(String, String)>)> {
    let rule = pages.rule_of(&request.uuid).await.ok()??;
    let vault = request.vault_uuid.as_deref().unwrap_or_default();
    let vault = pages.vault(vault).await.ok()?;
    let nodes = call.look_up::<ListNodes>(&admin::ListNodesRequest {});
    let nodes = nodes.await.unwrap_or_default().nodes;
    let signers = vault.signers.iter().map(|key| {
        let node = nodes.iter().find(|node| node.public_key == *key);
        let state = match node {
            None => "not admitted".to_owned(),
            Some(node) if !node.live => "away".to_owned(),
            Some(node) if node.frozen_vaults.contains(&vault.uuid) => "frozen".to_owned(),
            Some(node) => match node.halted.first() {
                Some(halt) => halt_in_words(halt),
                None => "live".to_owned(),
            },
        };
        let name = node.map(|node| node.name.as_str());
        (Text::new(name.unwrap_or("a node without a name")), state)
    });
    let named = nodes.iter().filter(|node| !node.name.is_empty());
    let names = named.map(|node| {
        let key = node.public_key.split(' ').nth(1);
        (
            key.unwrap_or(&node.public_key).to_owned(),
            node.name.clone(),
        )
    });
    let names = names.filter(|(key, _)| !key.is_empty()).collect();
    let view = RuleView {
        words: Text::new(rule.words),
        missing: Text::new(rule.missing.join(", ")),
        held_until: (rule.held_until_ms > 0).then(|| Time::new(rule.held_until_ms)),
        threshold: vault.threshold,
        signers: signers.collect(),
    };
    Some((view, names))
}
