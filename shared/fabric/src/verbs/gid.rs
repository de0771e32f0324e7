//! Ports' addresses (GIDs) and which of them to use. The kernel lists them under
//! `/sys/class/infiniband/DEVICE/ports/PORT`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

/// A port's address: 16 bytes. With RoCE it is an IP address of the network interface below.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Gid(pub [u8; 16]);

/// What carries packets from and to a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GidKind {
    /// UDP on port 4791.
    RoceV2,
    /// Ethernet frames, not routable.
    RoceV1,
    InfiniBand,
}

/// An entry of a port's table of GIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    pub index: u8,
    pub gid: Gid,
    pub kind: GidKind,
}

/// No GID of the port can be used. `Display` follows the port's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GidError {
    #[error("has no GID: give its network interface an IP address, and set it up")]
    None,
    #[error("has no GID at gid_index = {index}; it has {}: set gid_index to one that is there, or leave it out", listed(.have))]
    Index { index: u8, have: Vec<GidEntry> },
}

impl Gid {
    /// The IP address it stands for, with RoCE.
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }
}

impl fmt::Display for Gid {
    /// All eight groups, as `ibv_devinfo -v` has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks_exact(2).enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            write!(f, "{colon}{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::RoceV2 => "RoCE v2",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::InfiniBand => "InfiniBand",
        })
    }
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GidEntry { index, gid, kind } = self;
        match kind {
            GidKind::InfiniBand => write!(f, "{kind}, GID {index} {gid}"),
            _ => write!(f, "{kind}, GID {index} {gid} (IP {})", gid.ip()),
        }
    }
}

/// The configured one, or the best: RoCE v2 before v1, an IPv4 address before IPv6, a routable one
/// before a link's own, the first of equals.
pub fn choose(table: &[GidEntry], configured: Option<u8>) -> Result<GidEntry, GidError> {
    if let Some(index) = configured {
        let found = table.iter().find(|e| e.index == index);
        return found.copied().ok_or_else(|| GidError::Index { index, have: table.to_vec() });
    }
    let rank = |e: &&GidEntry| (e.kind, e.gid.ip().is_ipv6(), e.gid.is_link_local(), e.index);
    table.iter().min_by_key(rank).copied().ok_or(GidError::None)
}

/// A port's table, from `/sys/class/infiniband/DEVICE/ports/PORT`.
pub fn table(port: &Path) -> Vec<GidEntry> {
    let read = |name: String| fs::read_to_string(port.join(name)).ok();
    let entries = (0..=u8::MAX).map_while(|index| {
        // An index past the end has no file; one that is not in use has zeros, and its type can't
        // be read.
        let gid = parse_gid(&read(format!("gids/{index}"))?)?;
        let kind = read(format!("gid_attrs/types/{index}")).and_then(|word| parse_kind(&word));
        Some(kind.filter(|_| !gid.is_zero()).map(|kind| GidEntry { index, gid, kind }))
    });
    entries.flatten().collect()
}

fn parse_gid(text: &str) -> Option<Gid> {
    text.trim().parse::<Ipv6Addr>().ok().map(|a| Gid(a.octets()))
}

/// The kernel writes `IB/RoCE v1` for both; which it is depends on the link. See [`on_infiniband`].
fn parse_kind(word: &str) -> Option<GidKind> {
    match word.trim() {
        "RoCE v2" => Some(GidKind::RoceV2),
        "IB/RoCE v1" => Some(GidKind::RoceV1),
        _ => None,
    }
}

/// The table as it is to be read on an InfiniBand link.
pub fn on_infiniband(mut table: Vec<GidEntry>) -> Vec<GidEntry> {
    table.iter_mut().for_each(|e| e.kind = GidKind::InfiniBand);
    table
}

fn listed(have: &[GidEntry]) -> String {
    match have {
        [] => "none".to_owned(),
        _ => have.iter().map(|e| format!("{} ({}, {})", e.index, e.kind, e.gid.ip())).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, kind: GidKind, ip: &str) -> GidEntry {
        let v6 = match ip.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        GidEntry { index, gid: Gid(v6.octets()), kind }
    }

    #[test]
    fn roce_v2_over_ipv4_is_preferred_whatever_the_order() {
        let mut table = vec![
            entry(0, GidKind::RoceV1, "fe80::1"),
            entry(1, GidKind::RoceV2, "fe80::1"),
            entry(2, GidKind::RoceV1, "10.7.0.1"),
            entry(3, GidKind::RoceV2, "10.7.0.1"),
            entry(4, GidKind::RoceV2, "2001:db8::1"),
            entry(5, GidKind::RoceV2, "10.7.0.2"),
        ];
        assert_eq!(choose(&table, None).unwrap().index, 3);
        table.retain(|e| e.gid.ip().is_ipv6());
        assert_eq!(choose(&table, None).unwrap().index, 4);
        table.retain(|e| e.index < 2);
        assert_eq!(choose(&table, None).unwrap().index, 1);
        assert_eq!(choose(&table, Some(0)).unwrap().kind, GidKind::RoceV1);
    }

    #[test]
    fn a_wrong_index_is_answered_with_what_there_is() {
        let table = [entry(1, GidKind::RoceV2, "10.7.0.1")];
        assert_eq!(
            choose(&table, Some(7)).unwrap_err().to_string(),
            "has no GID at gid_index = 7; it has 1 (RoCE v2, 10.7.0.1): set gid_index to one that is there, or leave it out"
        );
        assert_eq!(choose(&[], None), Err(GidError::None));
    }

    #[test]
    fn the_kernels_table_is_read_with_its_holes() {
        let port = tempfile::tempdir().unwrap();
        fs::create_dir_all(port.path().join("gids")).unwrap();
        fs::create_dir_all(port.path().join("gid_attrs/types")).unwrap();
        let write = |name: &str, text: &str| fs::write(port.path().join(name), text).unwrap();
        write("gids/0", "fe80:0000:0000:0000:5054:00ff:fe00:0001\n");
        write("gid_attrs/types/0", "RoCE v2\n");
        write("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n");
        write("gids/2", "0000:0000:0000:0000:0000:ffff:0a07:0001\n");
        write("gid_attrs/types/2", "IB/RoCE v1\n");
        let table = table(port.path());
        assert_eq!(table, [entry(0, GidKind::RoceV2, "fe80::5054:ff:fe00:1"), entry(2, GidKind::RoceV1, "10.7.0.1")]);
        assert_eq!(table[1].to_string(), "RoCE v1, GID 2 0000:0000:0000:0000:0000:ffff:0a07:0001 (IP 10.7.0.1)");
        assert_eq!(on_infiniband(table)[0].kind, GidKind::InfiniBand);
    }
}
