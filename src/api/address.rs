//! Where a call comes from.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;

/// The address of the peer of a connection, as an extension of its requests.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// The client's address of a request.
pub fn of(peer: IpAddr, _headers: &HeaderMap, trusted_proxies: usize) -> IpAddr {
    client(peer, &[], trusted_proxies)
}

/// The client's address: the peer's.
pub fn client(peer: IpAddr, _forwarded: &[&str], _trusted_proxies: usize) -> IpAddr {
    peer.to_canonical()
}
