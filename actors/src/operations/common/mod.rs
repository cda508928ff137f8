//! What several operations share: this folder has no operation.

pub mod admin;
pub mod balances;
pub mod batch;
pub mod fees;
pub mod lookup;
pub mod person;
pub mod several;
