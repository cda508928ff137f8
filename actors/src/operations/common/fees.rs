//! estimateFee: current fees of a chain, according to its nodes.

use covault_core::{
    fault::Fault,
    networks::Network,
    schema::wire::{EstimateFeeRequest, EstimateFeeResponse, FeeEstimate as WireEstimate},
};

use crate::{
    chain_rpc::{ChainError, FeeEstimate},
    operations::common::balances::{chain, client},
    services::Services,
};

/// Prices by level.
///
/// # Errors
/// [`covault_core::fault::Class::Invalid`] naming the field of a chain that is not known, and
/// [`covault_core::fault::Class::Unavailable`] where its nodes do not answer or name a price that is not believed.
pub async fn estimate(
    services: &Services,
    request: &EstimateFeeRequest,
) -> Result<EstimateFeeResponse, Fault> {
    let network = Network::from_wire(request.network_type())
        .ok_or_else(|| Fault::field("networkType", "is required"))?;
    let chain = chain(services, network, request.chain_id)?;
    let client = client(services, chain)?;
    let estimates = match client.fee_estimates().await {
        Ok(estimates) => estimates,
        Err(ChainError::Unknown(reason)) => {
            return Err(Fault::unavailable(format!(
                "no chain node answered; try again: {reason}"
            )));
        }
        Err(ChainError::Refused(refusal) | ChainError::Lacks(refusal)) => {
            return Err(Fault::unavailable(refusal.reason));
        }
    };
    if let Some(problem) = services.chains.estimate_problem(chain, &estimates) {
        return Err(Fault::unavailable(problem));
    }
    let [slow, normal, fast] = estimates.map(|estimate| Some(to_wire(&estimate)));
    Ok(EstimateFeeResponse {
        slow,
        normal,
        fast,
        price_unit: network.rules().price_unit().to_owned(),
        error: None,
    })
}

fn to_wire(estimate: &FeeEstimate) -> WireEstimate {
    let FeeEstimate {
        price,
        most_price,
        priority_price,
        transfer_fee,
    } = estimate;
    WireEstimate {
        price: price.to_string(),
        most_price: most_price.to_string(),
        priority_price: priority_price.map(|price| price.to_string()),
        transfer_fee: transfer_fee.to_string(),
    }
}
