//! Refused transactions whose time is over, of networks without numbers, that nobody has asked for again: what became of
//! them is asked while nodes still know it, beside the requests of the wallet, so that a silent node holds up none of these.

use std::sync::Arc;

use covault_core::fault::Fault;

use super::{
    ASKED, MEMORY_MS, NextRequest, RefusedPayment, forget, looks::RefusedLooks, note_late,
};
use crate::{
    chain_rpc::{ChainClient, TransactionSighting, sightings_of_witnesses},
    requests::account::ChainAccount,
    services::Services,
    store::rows::TransactionRow,
};

/// A look at those of an account.
struct EndedCheck {
    services: Arc<Services>,
    looks: Arc<RefusedLooks>,
    account: ChainAccount,
}

impl Drop for EndedCheck {
    fn drop(&mut self) {
        self.looks.ended.end(&self.account);
    }
}

/// Not always the same ones first, whenever these are asked about: those that are left out never have their turn by a clock
/// that a wallet's payments keep to.
pub fn begin_anywhere(services: &Services, refused: &mut [RefusedPayment]) {
    let mut random = [0; 2];
    services.entropy.fill(&mut random);
    let turn = usize::from(u16::from_le_bytes(random));
    refused.rotate_left(turn.checked_rem(refused.len()).unwrap_or_default());
}

/// Finds out what became of some of these, and forgets those that never come.
pub fn look_at(
    services: &Arc<Services>,
    client: &Arc<dyn ChainClient>,
    next: &NextRequest<'_>,
    mut ended: Vec<RefusedPayment>,
) {
    // One at a time.
    if ended.is_empty() || !next.looks.ended.begin(next.account) {
        return;
    }
    let look = EndedCheck {
        services: Arc::clone(services),
        looks: Arc::clone(next.looks),
        account: next.account.clone(),
    };
    begin_anywhere(services, &mut ended);
    ended.truncate(ASKED);
    let client = Arc::clone(client);
    tokio::spawn(async move {
        if let Err(fault) = settle(&look, &*client, ended).await {
            tracing::warn!(account = ?look.account, ?fault, "what became of refused transactions could not be stored");
        }
    });
}

async fn settle(
    look: &EndedCheck,
    client: &dyn ChainClient,
    ended: Vec<RefusedPayment>,
) -> Result<(), Fault> {
    let EndedCheck {
        services,
        looks,
        account,
    } = look;
    let now_ms = services.now_ms();
    let tracked: Vec<_> = ended.iter().map(|it| it.tracked(account)).collect();
    let said = sightings_of_witnesses(client, &tracked, now_ms).await;
    let mut over = Vec::new();
    for (refused, said) in ended.into_iter().zip(said) {
        match said {
            Ok(TransactionSighting::Replaced(_)) if refused.row.unkept > 0 => {}
            Ok(TransactionSighting::Expired) if refused.may_be_an_older_one() => {}
            Ok(TransactionSighting::Replaced(_) | TransactionSighting::Expired) => {
                if never_comes(services, looks, account, &refused) {
                    over.push(refused);
                }
            }
            Ok(TransactionSighting::Final(inclusion)) if !inclusion.success => over.push(refused),
            Ok(TransactionSighting::Final(inclusion)) => {
                let place = TransactionRow::settled(inclusion, now_ms);
                note_late(services, account, &refused, (None, false), Some(place)).await?;
            }
            Ok(TransactionSighting::Partial(_)) => {
                note_late(services, account, &refused, (None, true), None).await?;
            }
            _ => looks.void.clear(refused.request),
        }
    }
    forget(services, &over).await
}

/// When a refused transaction can no longer come, by this machine's clock; `None` where that never is.
pub fn end_ms(account: &ChainAccount, refused: &RefusedPayment) -> Option<u64> {
    let (rules, signed) = (account.network.rules(), &refused.row.signed);
    let end = rules.valid_until(signed).ok().flatten();
    let life = rules.longest_life_ms(signed).ok().flatten();
    end.map(|end| end.time_ms)
        .or_else(|| Some(refused.row.sent_at_ms.saturating_add(life?)))
}

/// As [`end_ms`], to be compared: what never ends comes last.
pub fn order_of_end(account: &ChainAccount, refused: &RefusedPayment) -> u64 {
    match end_ms(account, refused) {
        None | Some(0) => u64::MAX,
        Some(end_ms) => end_ms,
    }
}

/// Whether its time was over more than a day ago, by the longest that the network gives it.
fn is_long_over(services: &Services, account: &ChainAccount, refused: &RefusedPayment) -> bool {
    let life = account.network.rules().longest_life_ms(&refused.row.signed);
    let end = life.ok().flatten().map(|life| {
        let sent_at_ms = refused.row.sent_at_ms;
        sent_at_ms.saturating_add(life).saturating_add(MEMORY_MS)
    });
    end.is_some_and(|end_ms| end_ms <= services.now_ms())
}

/// Whether it counts that nodes say of a refused transaction that it never comes. They are asked in several calls; behind
/// one address there may be several nodes, and one that is behind says that it is nowhere while another one says that its time
/// is over. Who keeps it may send it in that moment. So they have to say so for some time, or its end be that long ago.
pub fn never_comes(
    services: &Services,
    looks: &RefusedLooks,
    account: &ChainAccount,
    refused: &RefusedPayment,
) -> bool {
    let network = account.network;
    if network.rules().answers_fit_together() {
        return true;
    }
    let settling_ms = services.settings.settling_ms;
    let end = network.rules().valid_until(&refused.row.signed);
    let end_ms = end.ok().flatten().map(|end| end.time_ms);
    let is_past = |end_ms: u64| end_ms.saturating_add(settling_ms) <= services.now_ms();
    // Counted in any case.
    let is_said = looks.void.add(refused.request, settling_ms);
    is_said || end_ms.is_some_and(is_past) || is_long_over(services, account, refused)
}
