//! How soon a block should include a transaction.

use serde::{Deserialize, Serialize};

use crate::{fault::Fault, schema::wire};

/// How soon a transaction should be included, where the chain's nodes supply its price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FeeLevel {
    /// It may take long.
    Slow,
    /// One of the next blocks. What a request means that names no level.
    #[default]
    Normal,
    /// The next block, if possible.
    Fast,
}

impl FeeLevel {
    /// All levels, the cheapest first.
    pub const ALL: [Self; 3] = [Self::Slow, Self::Normal, Self::Fast];

    /// Reads the field `name`; `None` where the request leaves it out.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] naming the field when the number is not in the schema.
    pub fn parse(name: &str, value: i32) -> Result<Option<Self>, Fault> {
        match wire::FeeLevel::try_from(value) {
            Ok(wire::FeeLevel::Unspecified) => Ok(None),
            Ok(wire::FeeLevel::Slow) => Ok(Some(Self::Slow)),
            Ok(wire::FeeLevel::Normal) => Ok(Some(Self::Normal)),
            Ok(wire::FeeLevel::Fast) => Ok(Some(Self::Fast)),
            Err(_) => Err(Fault::field(
                name,
                "must be FEE_LEVEL_SLOW, FEE_LEVEL_NORMAL or FEE_LEVEL_FAST",
            )),
        }
    }

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Normal => "normal",
            Self::Fast => "fast",
        }
    }

    /// The number of the schema.
    pub fn to_wire(level: Option<Self>) -> i32 {
        let level = match level {
            None => wire::FeeLevel::Unspecified,
            Some(Self::Slow) => wire::FeeLevel::Slow,
            Some(Self::Normal) => wire::FeeLevel::Normal,
            Some(Self::Fast) => wire::FeeLevel::Fast,
        };
        level.into()
    }

    /// The one of three values, in the order of [`FeeLevel::ALL`], that is of this level.
    pub fn of<T>(self, levels: [T; 3]) -> T {
        let [slow, normal, fast] = levels;
        match self {
            Self::Slow => slow,
            Self::Normal => normal,
            Self::Fast => fast,
        }
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn parse__should_return_what_was_written() {
        for level in [
            None,
            Some(FeeLevel::Slow),
            Some(FeeLevel::Normal),
            Some(FeeLevel::Fast),
        ] {
            assert_eq!(
                FeeLevel::parse("feeLevel", FeeLevel::to_wire(level)),
                Ok(level)
            );
        }
        for unknown in [-1, 4] {
            let fault = FeeLevel::parse("gasFee.feeLevel", unknown).unwrap_err();
            assert!(
                fault.message().starts_with("gasFee.feeLevel: must be "),
                "{fault}"
            );
        }
        assert_eq!(FeeLevel::ALL.map(|level| level.of([1, 2, 3])), [1, 2, 3]);
    }
}
