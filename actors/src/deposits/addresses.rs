//! Who is told of the transfers of an address. Blocks are matched against these rows one by one, however many there are:
//! a block names some hundred accounts, and the store is asked for exactly these.

use covault_core::{
    deposit::{
        DepositNetwork,
        transfer::{Account, AddressOwner, DepositAddress},
    },
    fault::Fault,
};

use crate::{
    services::Services,
    store::{Batch, Precondition, deposit_rows, rows},
};

/// Has an owner told of an address, with the batch.
///
/// # Errors
/// When the store cannot be read.
pub async fn add(
    services: &Services,
    batch: &mut Batch,
    network: DepositNetwork,
    account: Account,
    owner: AddressOwner,
) -> Result<(), Fault> {
    let key = deposit_rows::deposit_address(network, account);
    let (mut address, expect) = match services.load::<DepositAddress>(&key).await? {
        Some((address, version)) => (address, Precondition::Version(version)),
        None => (DepositAddress::default(), Precondition::Absent),
    };
    if address.add(owner) {
        batch.put(key, expect, rows::encode(&address)?);
    }
    Ok(())
}
