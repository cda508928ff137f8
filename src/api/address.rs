//! Where a call comes from: the peer, or what trusted proxies say of it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use axum::http::{HeaderMap, HeaderName};

/// What proxies write the address of their client into.
pub const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of the peer of a connection, as an extension of its requests.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// The client's address of a request: [`client`] with its `X-Forwarded-For` lines. A line that is
/// not text keeps its entries: were it left out, the count from the right would end at one that
/// the client wrote.
pub fn of(peer: IpAddr, headers: &HeaderMap, trusted_proxies: usize) -> IpAddr {
    let lines: Vec<_> = headers
        .get_all(FORWARDED_FOR)
        .iter()
        .map(|line| String::from_utf8_lossy(line.as_bytes()))
        .collect();
    let lines: Vec<&str> = lines.iter().map(AsRef::as_ref).collect();
    client(peer, &lines, trusted_proxies)
}

/// The client's address. Behind `trusted_proxies` proxies, of which the peer is one, it is that
/// entry of `X-Forwarded-For` counted from the right: each proxy appends whom it was called by,
/// and what stands further left is the client's own word. `forwarded` holds the header's lines in
/// their order. Too few entries, or one that is no address, give the peer: an allowlist of clients
/// then refuses. An IPv4 address within IPv6 is the IPv4 address.
pub fn client(peer: IpAddr, forwarded: &[&str], trusted_proxies: usize) -> IpAddr {
    let named = trusted_proxies.checked_sub(1).and_then(|before| {
        let mut entries = forwarded.iter().rev().flat_map(|line| line.rsplit(','));
        parse(entries.nth(before)?.trim())
    });
    named.unwrap_or(peer).to_canonical()
}

/// What one client has: an IPv4 address, or the /64 of an IPv6 address.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn parse(entry: &str) -> Option<IpAddr> {
    let bracketed = || entry.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || entry.parse::<SocketAddr>().ok().map(|socket| socket.ip());
    let plain: Option<IpAddr> = entry.parse().ok();
    plain
        .or_else(|| bracketed().map(IpAddr::V6))
        .or_else(with_port)
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const PEER: &str = "198.51.100.7";

    fn ask(forwarded: &[&str], trusted_proxies: usize) -> String {
        client(PEER.parse().unwrap(), forwarded, trusted_proxies).to_string()
    }

    #[test]
    fn client__should_be_the_peer_where_no_proxy_is_trusted() {
        assert_eq!(ask(&[], 0), PEER);
        assert_eq!(ask(&["192.0.2.1"], 0), PEER);
        let mapped = "::ffff:192.0.2.9".parse().unwrap();
        assert_eq!(client(mapped, &[], 0).to_string(), "192.0.2.9");
    }

    #[test]
    fn client__should_be_counted_from_the_right_over_all_lines() {
        let lines = ["6.6.6.6, 192.0.2.1", "192.0.2.2 ,192.0.2.3"];
        for (proxies, expected) in [
            (1, "192.0.2.3"),
            (2, "192.0.2.2"),
            (3, "192.0.2.1"),
            (4, "6.6.6.6"),
            (5, PEER),
            (usize::MAX, PEER),
        ] {
            assert_eq!(ask(&lines, proxies), expected, "{proxies}");
        }
    }

    #[test]
    fn client__should_read_addresses_with_and_without_ports() {
        for (entry, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:8080", "192.0.2.1"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:8080", "2001:db8::1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("[::ffff:192.0.2.1]:80", "192.0.2.1"),
        ] {
            assert_eq!(ask(&[entry], 1), expected, "{entry}");
        }
    }

    #[test]
    fn client__should_be_the_peer_where_the_entry_is_no_address() {
        for entry in [
            "",
            " ",
            "unknown",
            "_hidden",
            "192.0.2",
            "192.0.2.1:",
            "192.0.2.1:99999",
            "[192.0.2.1]",
            "[2001:db8::1",
            "2001:db8::1]",
            "192.0.2.1 192.0.2.2",
            "192.0.2.01",
            "\"192.0.2.1\"",
        ] {
            assert_eq!(ask(&[entry], 1), PEER, "{entry}");
            // Whatever the client wrote before it.
            let line = format!("192.0.2.1, {entry}");
            assert_eq!(ask(&[&line], 1), PEER, "{line}");
        }
    }

    #[test]
    fn addresses__should_be_one_within_a_network_of_ipv6() {
        let of = |text: &str| network(text.parse().expect(text));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn of__should_count_entries_of_lines_that_are_not_text() {
        let mut headers = HeaderMap::new();
        let mut add = |line: &[u8]| {
            headers.append(FORWARDED_FOR, HeaderValue::from_bytes(line).unwrap());
        };
        add(b"10.0.0.1");
        add(b"\xff, 192.0.2.1");
        let of = |proxies| of(PEER.parse().unwrap(), &headers, proxies).to_string();
        assert_eq!(of(1), "192.0.2.1");
        assert_eq!(of(2), PEER);
        assert_eq!(of(3), "10.0.0.1");
    }

    proptest! {
        #[test]
        fn client__should_not_be_moved_by_what_the_client_wrote(
            written in proptest::collection::vec("[ -~]{0,40}", 0..4),
            addresses in proptest::collection::vec(any::<IpAddr>(), 1..5),
        ) {
            // Each proxy appends the one before it.
            let honest: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let honest = honest.join(", ");
            let mut lines: Vec<&str> = written.iter().map(String::as_str).collect();
            lines.push(&honest);
            let peer = PEER.parse().unwrap();
            let client = client(peer, &lines, addresses.len());
            prop_assert_eq!(client, addresses[0].to_canonical());
        }
    }
}
