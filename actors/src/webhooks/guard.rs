//! Which addresses webhooks may be sent to: anyone who configures one must not reach what only this machine can.
//!
//! A name is looked up by [`GuardedResolver`], which refuses the whole answer when any address of it is refused: what
//! was checked is what is connected to. Literal addresses never get to a resolver, so [`TargetRules::check_url`] looks
//! at them before every request.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};

/// IPv4 networks that are not the public internet (IANA's registry of special purposes).
const NOT_PUBLIC_V4: [(Ipv4Addr, u8); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 31, 196, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Of IPv6 2000::/3 alone is given out, and of that these are something else: Teredo and other protocols,
/// documentation, 6to4.
const NOT_PUBLIC_V6: [(Ipv6Addr, u8); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Where clouds keep the keys of their machines, beside the link-local addresses: of Azure, Alibaba Cloud and Oracle
/// Cloud, then of AWS and Google Cloud. No setting opens them.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Why an address is not sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockedAddress {
    /// It is not public, and configuration does not open it.
    #[error("{0} is not a public address; webhooks.allow opens networks of your own")]
    NotPublic(IpAddr),
    /// Nothing opens it.
    #[error("{0} is an address that webhooks are never sent to")]
    Never(IpAddr),
    /// The name has no address.
    #[error("the name has no address")]
    Nothing,
}

/// Which addresses webhooks may be sent to: public ones, and what configuration opens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetRules {
    /// Networks that are open although they are not public.
    pub allow: Vec<IpNet>,
}

impl TargetRules {
    /// Whether an address may be sent to.
    ///
    /// # Errors
    /// [`BlockedAddress`].
    pub fn check(&self, address: IpAddr) -> Result<(), BlockedAddress> {
        let address = unwrapped(address);
        if is_never(address) {
            return Err(BlockedAddress::Never(address));
        }
        let is_open =
            is_public(address) || self.allow.iter().any(|network| network.contains(&address));
        match is_open {
            true => Ok(()),
            false => Err(BlockedAddress::NotPublic(address)),
        }
    }

    /// Whether a URL may be sent to, as far as it can be told without looking up its name.
    ///
    /// # Errors
    /// [`BlockedAddress`].
    pub fn check_url(&self, url: &Url) -> Result<(), BlockedAddress> {
        let Some(host) = url.host_str() else {
            return Err(BlockedAddress::Nothing);
        };
        // The parser has made one form of all that an IPv4 address has: decimal, octal, hex, short.
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => self.check(address),
            Err(_) if is_local_name(host) => self.check(Ipv4Addr::LOCALHOST.into()),
            Err(_) => Ok(()),
        }
    }

    /// The addresses of a name, if all of them may be sent to.
    ///
    /// # Errors
    /// [`BlockedAddress`]: one of them is enough.
    fn check_all(&self, addresses: &[SocketAddr]) -> Result<(), BlockedAddress> {
        if addresses.is_empty() {
            return Err(BlockedAddress::Nothing);
        }
        addresses
            .iter()
            .try_for_each(|address| self.check(address.ip()))
    }
}

/// `localhost` and what is below it, which resolvers may answer by themselves (RFC 6761).
fn is_local_name(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    let (_, last) = name.rsplit_once('.').unwrap_or(("", name));
    last.eq_ignore_ascii_case("localhost")
}

/// The IPv4 address within one of IPv6: mapped (::ffff:0:0/96), or translated (64:ff9b::/96, RFC 6052).
fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let inner = match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            Some(Ipv4Addr::new(a, b, c, d))
        }
        _ => None,
    };
    inner.map_or(address, IpAddr::V4)
}

/// Where machines and clouds tell secrets to anyone who asks, link-local or not, and what is no single machine.
fn is_never(address: IpAddr) -> bool {
    match address {
        _ if METADATA.contains(&address) => true,
        IpAddr::V4(v4) => {
            v4.is_link_local() || v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast()
        }
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast(),
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !NOT_PUBLIC_V4.iter().any(|(network, bits)| {
            Ipv4Net::new(*network, *bits).is_ok_and(|network| network.contains(&v4))
        }),
        IpAddr::V6(v6) => {
            let is_in = |network: Ipv6Addr, bits: u8| {
                Ipv6Net::new(network, bits).is_ok_and(|network| network.contains(&v6))
            };
            let given_out = is_in(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
            given_out
                && !NOT_PUBLIC_V6
                    .iter()
                    .any(|(network, bits)| is_in(*network, *bits))
        }
    }
}

/// Looks up names, and gives only addresses that may be sent to.
pub struct GuardedResolver {
    rules: TargetRules,
    inner: Arc<dyn Resolve>,
}

impl GuardedResolver {
    /// Over the resolver of the system.
    pub fn new(rules: TargetRules) -> Self {
        Self::over(rules, Arc::new(SystemResolver))
    }

    /// Over another resolver.
    pub fn over(rules: TargetRules, inner: Arc<dyn Resolve>) -> Self {
        Self { rules, inner }
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (rules, found) = (self.rules.clone(), self.inner.resolve(name));
        Box::pin(async move {
            let found: Vec<SocketAddr> = found.await?.collect();
            rules.check_all(&found)?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            // The port is put in by who connects.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(Box::new(found.collect::<Vec<_>>().into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    fn rules(allow: &[&str]) -> TargetRules {
        let allow = allow.iter().map(|network| network.parse().unwrap());
        TargetRules {
            allow: allow.collect(),
        }
    }

    fn url(rules: &TargetRules, text: &str) -> Result<(), BlockedAddress> {
        rules.check_url(&Url::parse(text).unwrap())
    }

    #[test]
    fn literals__should_be_refused_in_every_form() {
        let rules = rules(&[]);
        for host in [
            "169.254.169.254",
            "2852039166",
            "0xa9fea9fe",
            "0251.0376.0251.0376",
            "169.254.43518",
            "[::ffff:169.254.169.254]",
            "[::ffff:a9fe:a9fe]",
            "[64:ff9b::a9fe:a9fe]",
            "[64:ff9b::10.0.0.1]",
            "127.0.0.1",
            "127.1",
            "0",
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "[::]",
            "[::1]",
            "[::127.0.0.1]",
            "[fe80::1]",
            "[fc00::1]",
            "[fd00:ec2::254]",
            "[ff02::1]",
            "[2001:db8::1]",
            "[2001::1]",
            "[2002:7f00:1::]",
            "[3fff::1]",
            "[64:ff9b:1::a00:1]",
            "[100::1]",
            "localhost",
            "LOCALHOST.",
            "a.localhost",
        ] {
            assert!(
                url(&rules, &format!("http://{host}/hook")).is_err(),
                "{host}"
            );
        }
        for host in [
            "8.8.8.8",
            "1.1.1.1",
            "[2606:4700::1111]",
            "[64:ff9b::808:808]",
            "example.com",
        ] {
            assert_eq!(url(&rules, &format!("https://{host}/")), Ok(()), "{host}");
        }
    }

    #[test]
    fn allow__should_open_what_it_names_and_never_link_local() {
        let rules = rules(&[
            "10.0.0.0/8",
            "169.254.0.0/16",
            "fe80::/10",
            "fd00::/8",
            "0.0.0.0/0",
        ]);
        for open in [
            "10.1.2.3",
            "[::ffff:10.1.2.3]",
            "192.168.0.1",
            "[fd00::1]",
            "127.0.0.1",
        ] {
            assert_eq!(url(&rules, &format!("http://{open}/")), Ok(()), "{open}");
        }
        for never in [
            "169.254.169.254",
            "[::ffff:169.254.169.254]",
            "[fe80::1]",
            "[fd00:ec2::254]",
            "224.0.0.1",
        ] {
            let refused = url(&rules, &format!("http://{never}/"));
            assert!(
                matches!(refused, Err(BlockedAddress::Never(_))),
                "{never}: {refused:?}"
            );
        }
        let refused = url(&super::TargetRules::default(), "http://10.0.0.1/").unwrap_err();
        assert!(refused.to_string().contains("webhooks.allow"), "{refused}");
    }

    #[test]
    fn metadata_services__should_never_be_sent_to() {
        let rules = rules(&["0.0.0.0/0", "::/0", "100.64.0.0/10", "192.0.0.192/32"]);
        for never in [
            "168.63.129.16",
            "[::ffff:168.63.129.16]",
            "[64:ff9b::a83f:8110]",
            "100.100.100.200",
            "192.0.0.192",
            "169.254.169.254",
            "[fd00:ec2::254]",
            "[fd20:ce::254]",
        ] {
            let refused = url(&rules, &format!("http://{never}/"));
            assert!(
                matches!(refused, Err(BlockedAddress::Never(_))),
                "{never}: {refused:?}"
            );
        }
        assert_eq!(url(&rules, "http://168.63.129.17/"), Ok(()));
    }

    #[test]
    fn loopback__should_be_open_when_it_is_named() {
        let dev = rules(&["127.0.0.0/8", "::1/128"]);
        for open in ["127.0.0.1:80", "[::1]", "localhost"] {
            assert_eq!(url(&dev, &format!("http://{open}/")), Ok(()), "{open}");
        }
        assert!(url(&dev, "http://10.0.0.1/").is_err());
    }

    struct Answers(Vec<SocketAddr>);

    impl Resolve for Answers {
        fn resolve(&self, _: Name) -> Resolving {
            let found = self.0.clone();
            Box::pin(async move { Ok(Box::new(found.into_iter()) as Addrs) })
        }
    }

    #[tokio::test]
    async fn names__should_be_refused_when_any_address_is() {
        let resolve = async |addresses: &[&str]| {
            let addresses = addresses.iter().map(|address| address.parse().unwrap());
            let inner = Arc::new(Answers(addresses.collect()));
            let resolver = GuardedResolver::over(TargetRules::default(), inner);
            let found = resolver.resolve("hook.example".parse().unwrap()).await;
            found
                .map(Iterator::count)
                .map_err(|error| error.to_string())
        };
        assert_eq!(resolve(&["8.8.8.8:0", "[2606:4700::1111]:0"]).await, Ok(2));
        // One public and one private address: whichever would be connected to, nothing is.
        for private in ["10.0.0.1:0", "[::ffff:127.0.0.1]:0", "169.254.169.254:0"] {
            assert!(resolve(&["8.8.8.8:0", private]).await.is_err(), "{private}");
            assert!(resolve(&[private, "8.8.8.8:0"]).await.is_err(), "{private}");
        }
        assert!(resolve(&[]).await.is_err());
    }
}
