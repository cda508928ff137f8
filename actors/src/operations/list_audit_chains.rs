use async_trait::async_trait;
use covault_core::{
    audit::{AuditChain, ChainHead},
    fault::Fault,
    schema::admin,
};

use super::{Operation, OperationCall};
use crate::{audit::AuditLog, store::Store};

/// Lists the chains of the audit log, page by page.
pub struct ListAuditChains;

#[async_trait]
impl Operation for ListAuditChains {
    const METHOD: &'static str = "covault.admin.v1.AdminAPI.ListAuditChains";
    type Request = admin::ListAuditChainsRequest;
    type Response = admin::ListAuditChainsResponse;

    async fn run(call: OperationCall<'_>, request: Self::Request) -> Result<Self::Response, Fault> {
        Self::read(&*call.services.store, request).await
    }
}

impl ListAuditChains {
    /// The same, of a store that no orchestrator uses.
    ///
    /// # Errors
    /// [`covault_core::fault::Class::Invalid`] naming `after`, and when the store cannot be read.
    pub async fn read(
        store: &dyn Store,
        request: admin::ListAuditChainsRequest,
    ) -> Result<admin::ListAuditChainsResponse, Fault> {
        let after = request.after.map(|chain| chain.parse::<AuditChain>());
        let after = after
            .transpose()
            .map_err(|_| Fault::field("after", "must be service, or vault: and a uuid"))?;
        let chain = |(chain, head): (AuditChain, Option<ChainHead>)| admin::AuditChain {
            chain: chain.to_string(),
            head: head.map(head_message),
        };
        let found = AuditLog(store).chains(after).await?;
        Ok(admin::ListAuditChainsResponse {
            chains: found.into_iter().map(chain).collect(),
        })
    }
}

pub(super) fn head_message(head: ChainHead) -> admin::AuditHead {
    admin::AuditHead {
        number: head.number,
        hash: hex::encode(head.hash),
    }
}
