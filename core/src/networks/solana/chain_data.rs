//! What a Solana node is asked, and what it answers.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, SeqAccess, Visitor},
};

use super::token::{TokenChainData, TokenQueries};

/// What a Solana node must be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queries {
    /// 101 for Solana, 0 for Sonic SVM.
    pub chain_id: u64,
    /// Whether a recent blockhash is wanted.
    pub blockhash: bool,
    /// The token that is sent, if one is.
    pub token: Option<TokenQueries>,
}

/// What a Solana node said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainData {
    /// `getLatestBlockhash` at commitment confirmed, base58.
    pub recent_blockhash: String,
    /// About the token, when it was asked for.
    pub token: Option<TokenChainData>,
}

/// Stands before the blockhash where facts about a token follow. It is no base58.
const WITH_TOKEN: char = '+';

/// ChainData of requests from before there were tokens are a blockhash and nothing else, and must be
/// read for ever: BCS says neither what is there nor how much.
impl Serialize for ChainData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            recent_blockhash,
            token,
        } = self;
        let Some(token) = token else {
            return (recent_blockhash,).serialize(serializer);
        };
        (format!("{WITH_TOKEN}{recent_blockhash}"), token).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ChainData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChainDataVisitor;

        impl<'de> Visitor<'de> for ChainDataVisitor {
            type Value = ChainData;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a blockhash, and facts about a token where it says so")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<ChainData, A::Error> {
                let missing = |place| A::Error::invalid_length(place, &self);
                let text: String = parts.next_element()?.ok_or_else(|| missing(0))?;
                Ok(match text.strip_prefix(WITH_TOKEN) {
                    None => ChainData {
                        recent_blockhash: text,
                        token: None,
                    },
                    Some(blockhash) => ChainData {
                        recent_blockhash: blockhash.to_owned(),
                        token: Some(parts.next_element()?.ok_or_else(|| missing(1))?),
                    },
                })
            }
        }

        deserializer.deserialize_tuple(2, ChainDataVisitor)
    }
}
