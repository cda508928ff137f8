//! Non-hardened child keys: BIP-32 on secp256k1, the Edwards scheme of the `hd-wallet` crate
//! on Ed25519.

use std::{fmt, str::FromStr};

use curve25519_dalek::{
    constants::ED25519_BASEPOINT_TABLE, edwards::CompressedEdwardsY, scalar::Scalar as EdScalar,
    traits::IsIdentity as _,
};
use hmac::{Hmac, Mac as _};
use k256::elliptic_curve::{PrimeField as _, group::Group as _, sec1::ToSec1Point as _};
use serde::{Deserialize, Serialize};
use sha2::Sha512;

use crate::{fault::Fault, networks::Network, signature::Curve};

/// The first hardened index (BIP-32). A hardened child needs the whole private key, which
/// exists nowhere.
const HARDENED: u32 = 1 << 31;

/// The most indices a [`KeyPath`] has.
pub const MAX_DEPTH: usize = 8;

/// A path of non-hardened indices below a root key, each under 2^31. Printed as `m/0/5`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub struct KeyPath(Vec<u32>);

/// A vault's root public key on one curve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootKey {
    /// The curve.
    pub curve: Curve,
    /// 33 bytes compressed (secp256k1) or 32 bytes (Ed25519).
    pub public_key: Vec<u8>,
    /// Chain code, 32 bytes.
    pub chain_code: [u8; 32],
}

impl KeyPath {
    /// A path of indices, each under 2^31.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] for a hardened index or more than [`MAX_DEPTH`] of them.
    pub fn new(indices: Vec<u32>) -> Result<Self, Fault> {
        if indices.len() > MAX_DEPTH {
            return Err(Fault::field(
                "keyPath",
                format!("has more than {MAX_DEPTH} indices"),
            ));
        }
        if indices.iter().any(|index| *index >= HARDENED) {
            return Err(Fault::field(
                "keyPath",
                "an index must be below 2147483648 (not hardened)",
            ));
        }
        Ok(Self(indices))
    }

    /// The path of a vault's wallet: `m/<coin type of its network>/<index>`.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`] for a hardened index.
    pub fn of_wallet(network: Network, index: u32) -> Result<Self, Fault> {
        Self::new(vec![network.coin_type(), index])
    }

    /// The network of the wallet that the path belongs to; `None` for any other path.
    pub fn wallet_network(&self) -> Option<Network> {
        let of = |network: &Network| self.wallet_index(*network).is_ok();
        Network::ALL.into_iter().find(of)
    }

    /// The index of the wallet of `network` that the path belongs to. Any other path (of another
    /// network, the root, deeper ones) is refused: with it, one network's signature could be good
    /// on another.
    ///
    /// # Errors
    /// [`crate::fault::Class::Invalid`], field `path`.
    pub fn wallet_index(&self, network: Network) -> Result<u32, Fault> {
        match self.0.as_slice() {
            [coin_type, index] if *coin_type == network.coin_type() => Ok(*index),
            _ => Err(Fault::field(
                "path",
                format_args!(
                    "is {self}; the key paths of {} wallets are m/{}/<index>",
                    network.name(),
                    network.coin_type()
                ),
            )),
        }
    }

    /// The indices below the root, in order.
    pub fn indices(&self) -> &[u32] {
        &self.0
    }
}

impl TryFrom<Vec<u32>> for KeyPath {
    type Error = Fault;

    fn try_from(indices: Vec<u32>) -> Result<Self, Fault> {
        Self::new(indices)
    }
}

impl From<KeyPath> for Vec<u32> {
    fn from(path: KeyPath) -> Self {
        path.0
    }
}

impl RootKey {
    /// The child key at a path; the root itself, with a tweak of zero, for the empty path.
    ///
    /// secp256k1: CKDpub of BIP-32, once per index. Ed25519: the "Edwards" scheme of the
    /// hd-wallet crate, I = HMAC-SHA512(chain code, A || 0x00 || index), child key
    /// A + (I_L mod l) B, child chain code I_R.
    ///
    /// # Errors
    /// [`crate::fault::Class::Bug`] when the root key is not on the curve, and
    /// [`crate::fault::Class::Invalid`] for the one index in 2^127 that gives no key.
    pub fn child(&self, path: &KeyPath) -> Result<ChildKey, Fault> {
        match self.curve {
            Curve::Secp256k1 => self.child_secp256k1(path),
            Curve::Ed25519 => self.child_ed25519(path),
        }
    }

    fn child_secp256k1(&self, path: &KeyPath) -> Result<ChildKey, Fault> {
        if self.public_key.len() != 33 {
            return Err(Fault::bug("a secp256k1 root key has 33 bytes"));
        }
        let mut point = k256::PublicKey::from_sec1_bytes(&self.public_key)
            .map_err(|_| Fault::bug("the root key is not on secp256k1"))?
            .to_projective();
        let mut tweak = k256::Scalar::ZERO;
        let mut public_key = self.public_key.clone();
        let mut chain_code = self.chain_code;
        for index in path.indices() {
            let (left, right) = hmac_halves(&chain_code, &[&public_key, &index.to_be_bytes()])?;
            // BIP-32: an I_L not below the group order gives no key.
            let step = Option::<k256::Scalar>::from(k256::Scalar::from_repr(left.into()))
                .ok_or_else(no_child)?;
            tweak += step;
            point += k256::ProjectivePoint::mul_by_generator(&step);
            if bool::from(point.is_identity()) {
                return Err(no_child());
            }
            public_key = point.to_affine().to_sec1_point(true).as_bytes().to_vec();
            chain_code = right;
        }
        Ok(ChildKey {
            public_key,
            tweak: tweak.to_bytes().into(),
        })
    }

    fn child_ed25519(&self, path: &KeyPath) -> Result<ChildKey, Fault> {
        let mut compressed = CompressedEdwardsY::from_slice(&self.public_key)
            .map_err(|_| Fault::bug("an Ed25519 root key has 32 bytes"))?;
        let mut point = compressed
            .decompress()
            .filter(|point| !point.is_small_order())
            .ok_or_else(|| Fault::bug("the root key is not on Ed25519"))?;
        let mut tweak = EdScalar::ZERO;
        let mut chain_code = self.chain_code;
        for index in path.indices() {
            let (mut left, right) = hmac_halves(
                &chain_code,
                &[compressed.as_bytes(), &[0], &index.to_be_bytes()],
            )?;
            // I_L is read big-endian; the library reads little-endian.
            left.reverse();
            let step = EdScalar::from_bytes_mod_order(left);
            tweak += step;
            point += ED25519_BASEPOINT_TABLE * &step;
            if point.is_identity() {
                return Err(no_child());
            }
            compressed = point.compress();
            chain_code = right;
        }
        Ok(ChildKey {
            public_key: compressed.as_bytes().to_vec(),
            tweak: tweak.to_bytes(),
        })
    }
}

/// The two halves of HMAC-SHA512(key, parts...).
fn hmac_halves(key: &[u8; 32], parts: &[&[u8]]) -> Result<([u8; 32], [u8; 32]), Fault> {
    let mut mac = Hmac::<Sha512>::new_from_slice(key).map_err(Fault::bug)?;
    for part in parts {
        mac.update(part);
    }
    let output: [u8; 64] = mac.finalize().into_bytes().into();
    let (mut left, mut right) = ([0; 32], [0; 32]);
    let halves = output.split_at(32);
    left.copy_from_slice(halves.0);
    right.copy_from_slice(halves.1);
    Ok((left, right))
}

fn no_child() -> Fault {
    Fault::field("keyPath", "no key exists at this index; use the next one")
}

/// A child public key, with what signers add to their shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildKey {
    /// 33 bytes compressed (secp256k1) or 32 bytes (Ed25519).
    pub public_key: Vec<u8>,
    /// The sum of the tweaks along the path, mod the group order: 32 bytes, big-endian for
    /// secp256k1, little-endian for Ed25519. Public, as chain code and root key are.
    pub tweak: [u8; 32],
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("m")?;
        self.0.iter().try_for_each(|index| write!(f, "/{index}"))
    }
}

impl fmt::Debug for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPath({self})")
    }
}

impl FromStr for KeyPath {
    type Err = Fault;

    /// Reads what [`fmt::Display`] prints, and nothing else: `m`, `m/0`, `m/0/5`.
    fn from_str(text: &str) -> Result<Self, Fault> {
        let invalid = || Fault::field("keyPath", "must look like m/0/5");
        let mut parts = text.split('/');
        if parts.next() != Some("m") {
            return Err(invalid());
        }
        let indices = parts
            .map(|part| {
                let plain = part.bytes().all(|byte| byte.is_ascii_digit())
                    && (part == "0" || !part.starts_with('0'));
                part.parse().ok().filter(|_| plain).ok_or_else(invalid)
            })
            .collect::<Result<Vec<u32>, Fault>>()?;
        Self::new(indices)
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use generic_ec::{Point, Scalar, SecretScalar, curves};
    use hd_wallet::{Edwards, ExtendedKeyPair, ExtendedSecretKey, HdWallet, Slip10};
    use proptest::prelude::*;

    use super::*;

    fn pair<E: generic_ec::Curve>(secret: &[u8], chain_code: [u8; 32]) -> ExtendedKeyPair<E> {
        let mut scalar = Scalar::<E>::from_be_bytes_mod_order(secret);
        ExtendedSecretKey {
            secret_key: SecretScalar::new(&mut scalar),
            chain_code,
        }
        .into()
    }

    /// The child by the hd-wallet crate, as (public key, child secret - root secret).
    fn oracle<E: generic_ec::Curve, W: HdWallet<E>>(
        root: &ExtendedKeyPair<E>,
        path: &KeyPath,
    ) -> (Point<E>, Scalar<E>) {
        let child = W::derive_child_key_pair_with_path(root, path.indices().iter().copied());
        let secrets = (
            &child.secret_key().secret_key,
            &root.secret_key().secret_key,
        );
        (
            child.public_key().public_key,
            secrets.0.as_ref() - secrets.1.as_ref(),
        )
    }

    proptest! {
        #[test]
        fn secp256k1_child__should_equal_hd_wallets_bip32(
            secret in prop::array::uniform32(1_u8..),
            chain_code in any::<[u8; 32]>(),
            indices in prop::collection::vec(0..HARDENED, 0..=MAX_DEPTH),
        ) {
            let pair = pair::<curves::Secp256k1>(&secret, chain_code);
            let path = KeyPath::new(indices).unwrap();
            let root = RootKey {
                curve: Curve::Secp256k1,
                public_key: pair.public_key().public_key.to_bytes(true).to_vec(),
                chain_code,
            };
            let child = root.child(&path).unwrap();
            let (point, tweak) = oracle::<_, Slip10>(&pair, &path);
            prop_assert_eq!(child.public_key, point.to_bytes(true).to_vec());
            prop_assert_eq!(child.tweak.to_vec(), tweak.to_be_bytes().to_vec());
        }

        #[test]
        fn ed25519_child__should_equal_hd_wallets_edwards(
            secret in prop::array::uniform32(1_u8..),
            chain_code in any::<[u8; 32]>(),
            indices in prop::collection::vec(0..HARDENED, 0..=MAX_DEPTH),
        ) {
            let pair = pair::<curves::Ed25519>(&secret, chain_code);
            let path = KeyPath::new(indices).unwrap();
            let root = RootKey {
                curve: Curve::Ed25519,
                public_key: pair.public_key().public_key.to_bytes(true).to_vec(),
                chain_code,
            };
            let child = root.child(&path).unwrap();
            let (point, tweak) = oracle::<_, Edwards>(&pair, &path);
            prop_assert_eq!(child.public_key, point.to_bytes(true).to_vec());
            prop_assert_eq!(child.tweak.to_vec(), tweak.to_le_bytes().to_vec());
        }

        #[test]
        fn key_path__should_read_what_it_prints(
            indices in prop::collection::vec(0..HARDENED, 0..=MAX_DEPTH),
        ) {
            let path = KeyPath::new(indices).unwrap();
            prop_assert_eq!(path.to_string().parse::<KeyPath>().unwrap(), path);
        }
    }

    #[test]
    fn key_path__should_refuse_hardened_long_and_odd_forms() {
        assert!(KeyPath::new(vec![HARDENED]).is_err());
        assert!(KeyPath::new(vec![0; MAX_DEPTH + 1]).is_err());
        for text in [
            "",
            "0",
            "m/",
            "m/0'",
            "m/2147483648",
            "m/+1",
            "m/01",
            "m/0/",
            "M/0",
            "m/1 ",
        ] {
            assert!(text.parse::<KeyPath>().is_err(), "{text:?}");
        }
        assert!(serde_json::from_str::<KeyPath>("[2147483648]").is_err());
    }

    #[test]
    fn key_path__should_belong_to_the_wallets_of_one_network() {
        let mut coin_types = std::collections::BTreeSet::new();
        for network in Network::ALL {
            assert!(coin_types.insert(network.coin_type()), "{network:?}");
            let path = KeyPath::of_wallet(network, 5).unwrap();
            assert_eq!(path.to_string(), format!("m/{}/5", network.coin_type()));
            assert_eq!(path.wallet_network(), Some(network));
            for other in Network::ALL {
                match path.wallet_index(other) {
                    Ok(index) => assert_eq!((index, other), (5, network)),
                    Err(fault) => {
                        assert!(fault.message().starts_with("path: is m/"), "{fault:?}");
                        assert_ne!(other, network);
                    }
                }
            }
            let coin_type = network.coin_type();
            for odd in [
                vec![],
                vec![5],
                vec![coin_type],
                vec![5, coin_type],
                vec![coin_type, 5, 0],
                vec![44, coin_type, 5],
            ] {
                let odd = KeyPath::new(odd).unwrap();
                assert!(odd.wallet_index(network).is_err(), "{odd}");
            }
            assert!(KeyPath::of_wallet(network, HARDENED).is_err());
        }
    }

    #[test]
    fn child__should_refuse_a_root_off_the_curve() {
        let path = KeyPath::new(vec![0]).unwrap();
        for (curve, public_key) in [
            (Curve::Secp256k1, vec![2; 32]),
            (Curve::Secp256k1, vec![0xff; 33]),
            (Curve::Ed25519, vec![1; 31]),
            (Curve::Ed25519, [&[1][..], &[0; 31]].concat()),
        ] {
            let root = RootKey {
                curve,
                public_key,
                chain_code: [0; 32],
            };
            assert_eq!(
                root.child(&path).unwrap_err().class(),
                &crate::fault::Class::Bug
            );
        }
    }
}
