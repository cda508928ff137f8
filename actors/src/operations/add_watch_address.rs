use async_trait::async_trait;
use covault_core::{
    audit::AuditChain,
    deposit::{AddressWatch, WatchCall},
    fault::Fault,
    ids::WatchId,
    port::random_16,
    schema::wire,
};

use super::{Operation, OperationCall};
use crate::{
    audit::AuditNote,
    deposits::route,
    store::{Batch, CommitError, Precondition, rows},
};

/// The watch of (token, address): makes it, or finds it.
pub struct AddWatchAddress;

#[async_trait]
impl Operation for AddWatchAddress {
    const METHOD: &'static str = "mpcvault.platform.v1.SweepAPI.AddWatchAddress";
    type Request = wire::AddWatchAddressRequest;
    type Response = wire::AddWatchAddressResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        let watched = WatchCall::parse(&request)?;
        let services = call.services;
        let key = rows::watch(call.caller.token, watched.network, &watched.address);
        let watch = match services.load::<AddressWatch>(&key).await? {
            Some((watch, _)) => watch,
            None => {
                let route = route(services, call.caller.token, watched.network).await?;
                route.check_webhook()?;
                let watch = AddressWatch {
                    id: WatchId::from_random(random_16(&*services.entropy)),
                    created_at_ms: services.now_ms(),
                };
                let mut batch = Batch::new();
                batch.put(key.clone(), Precondition::Absent, rows::encode(&watch)?);
                let subject = format!("watch:{}", watch.id);
                AuditNote::new(call.command_commit.by(), subject, "WatchAdded")
                    .fact("network", watched.network.name())
                    .fact("address", &watched.address)
                    .add_to(&mut batch, AuditChain::Service, watch.created_at_ms)?;
                call.command_commit.demand(&mut batch);
                match services.store.commit(batch).await {
                    Ok(()) => watch,
                    // Another call was faster.
                    Err(CommitError::Conflict(conflict)) if conflict == key => services
                        .load::<AddressWatch>(&key)
                        .await?
                        .map(|(watch, _)| watch)
                        .ok_or_else(|| Fault::bug("a watch that is there and is not"))?,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        Ok(wire::AddWatchAddressResponse {
            uuid: watch.id.to_string(),
            address: watched.address,
            network: watched.network.name().to_owned(),
        })
    }
}
