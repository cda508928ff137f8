//! What several operations share: this folder has no operation.

pub mod admin;
pub mod batch;
pub mod lookup;
pub mod person;
pub mod several;
