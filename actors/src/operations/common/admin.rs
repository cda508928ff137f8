//! What several operations of the admin API read from requests.

use covault_core::{fault::Fault, order::NodeId};

/// A threshold.
pub fn parse_threshold(threshold: u32) -> Result<u16, Fault> {
    u16::try_from(threshold).map_err(|_| Fault::field("threshold", "is out of range"))
}

/// The nodes of OpenSSH lines.
pub fn parse_lines(field: &str, lines: &[String]) -> Result<Vec<NodeId>, Fault> {
    let parse = |(index, line): (usize, &String)| {
        NodeId::parse_openssh_line(line)
            .map_err(|fault| Fault::field(format_args!("{field}[{index}]"), fault.message()))
    };
    lines.iter().enumerate().map(parse).collect()
}

/// The node of an OpenSSH line.
pub fn parse_line(line: &str) -> Result<NodeId, Fault> {
    NodeId::parse_openssh_line(line).map_err(|fault| Fault::field("publicKey", fault.message()))
}
