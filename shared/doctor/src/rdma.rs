//! RDMA devices, as far as sysfs tells: links, GIDs, MTU, counters, NUMA node.
//!
//! A host without a device is no failure: pages go over TCP then. With a device, what keeps it from
//! being used is one.

use crate::host::{Host, Subject};
use crate::report::Check;
use std::net::Ipv6Addr;

const FOLDER: &str = "sys/class/infiniband";
/// RoCE takes the largest of 256 to 4096 bytes that fits into the interface's MTU with headers.
const MTU_OF_4096: i64 = 4200;
/// Counters of lost or repeated packets and of links that failed, in `hw_counters` and `counters`.
/// They count from the start of the driver.
const LOSSES: &[&str] = &[
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "out_of_buffer",
    "link_downed",
    "symbol_error",
    "port_rcv_errors",
    "retry_exceeded_err",
    "completer_retry_err",
];
/// Congestion that was marked (ECN) or answered. It tells that ECN works.
const MARKS: &[&str] = &["np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled"];
const LIBRARIES: &[&str] = &[
    "usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    "usr/lib/aarch64-linux-gnu/libibverbs.so.1",
    "lib/x86_64-linux-gnu/libibverbs.so.1",
    "usr/lib64/libibverbs.so.1",
    "usr/lib/libibverbs.so.1",
];

/// One port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub device: String,
    pub number: String,
    /// `ACTIVE`, `DOWN`, …
    pub state: String,
    pub is_ethernet: bool,
    /// `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// With RoCE, the network interface below.
    pub interface: Option<String>,
    pub gids: Vec<Gid>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    pub index: String,
    pub address: Ipv6Addr,
    /// `RoCE v2`, `IB/RoCE v1`.
    pub kind: String,
}

impl Port {
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    fn folder(&self) -> String {
        format!("{FOLDER}/{}/ports/{}", self.device, self.number)
    }

    fn name(&self) -> String {
        format!("{} port {}", self.device, self.number)
    }
}

/// All ports of all devices.
pub fn ports(host: &Host) -> Vec<Port> {
    let mut found = Vec::new();
    for device in host.list(FOLDER) {
        for number in host.list(&format!("{FOLDER}/{device}/ports")) {
            found.push(port(host, &device, number));
        }
    }
    found
}

fn port(host: &Host, device: &str, number: String) -> Port {
    let folder = format!("{FOLDER}/{device}/ports/{number}");
    let read = |file: &str| host.read(&format!("{folder}/{file}")).unwrap_or_default();
    // `4: ACTIVE`
    let state = read("state").rsplit(' ').next().unwrap_or_default().to_owned();
    let gids = host.list(&format!("{folder}/gids")).into_iter().filter_map(|index| {
        let address: Ipv6Addr = read(&format!("gids/{index}")).parse().ok()?;
        let kind = read(&format!("gid_attrs/types/{index}"));
        (!address.is_unspecified()).then_some(Gid { index, address, kind })
    });
    let gids: Vec<Gid> = gids.collect();
    let interface =
        gids.iter().map(|gid| read(&format!("gid_attrs/ndevs/{}", gid.index))).find(|name| !name.is_empty());
    Port {
        device: device.to_owned(),
        state: if state.is_empty() { "unknown".to_owned() } else { state },
        is_ethernet: read("link_layer") == "Ethernet",
        rate: read("rate"),
        interface,
        gids,
        number,
    }
}

pub fn checks(host: &Host, subject: &Subject) -> Vec<Check> {
    let ports = ports(host);
    if ports.is_empty() {
        return vec![Check::ok("RDMA", "no device: pages go over TCP (docs/rdma.md tells how to set one up)")];
    }
    let mut checks = vec![link(&ports), library(host)];
    for port in ports.iter().filter(|port| port.is_active()) {
        checks.push(gid(port));
        checks.extend(mtu(host, port));
        checks.push(counters(host, port));
    }
    checks.extend(nodes(host, subject, &ports));
    checks
}

fn link(ports: &[Port]) -> Check {
    const NAME: &str = "RDMA link";
    let told: Vec<String> = ports.iter().map(|port| format!("{} {} {}", port.name(), port.state, port.rate)).collect();
    let told = told.join("; ").trim_end().to_owned();
    match ports.iter().any(Port::is_active) {
        true => Check::ok(NAME, told),
        false => Check::fail(
            NAME,
            format!("no port is active: {told}"),
            "check the cable and switch, and set the interface up: ip link set INTERFACE up",
        ),
    }
}

fn library(host: &Host) -> Check {
    const NAME: &str = "RDMA library";
    let has_device = host.list("dev/infiniband").iter().any(|name| name.starts_with("uverbs"));
    match (has_device, LIBRARIES.iter().any(|path| host.exists(path))) {
        (true, true) => Check::ok(NAME, "libibverbs and /dev/infiniband are there"),
        (false, _) => Check::fail(
            NAME,
            "there is a device, and no /dev/infiniband/uverbs*",
            "modprobe ib_uverbs; in a container, pass /dev/infiniband in",
        ),
        (_, false) => Check::warn(
            NAME,
            "there is a device, and no libibverbs.so.1 where it usually is",
            "apt install libibverbs1 ibverbs-providers",
        ),
    }
}

/// annex prefers RoCE v2 with an IPv4 address: routable, and the one that both sides can tell.
fn gid(port: &Port) -> Check {
    let name = format!("GID of {}", port.name());
    let remedy = match &port.interface {
        Some(interface) => format!("give {interface} an IPv4 address, or set gid_index in [verbs]"),
        None => "give the port's network interface an IPv4 address".to_owned(),
    };
    let best = port.gids.iter().find(|gid| gid.kind == "RoCE v2" && gid.address.to_ipv4_mapped().is_some());
    match (port.is_ethernet, best, port.gids.first()) {
        (_, _, None) => Check::fail(name, "none", remedy),
        (true, Some(gid), _) => {
            let ip = gid.address.to_ipv4_mapped().map(|ip| ip.to_string()).unwrap_or_default();
            Check::ok(name, format!("RoCE v2, GID {} (IP {ip})", gid.index))
        }
        (true, None, Some(gid)) => {
            Check::warn(name, format!("no RoCE v2 GID with an IPv4 address; GID {} is {}", gid.index, gid.kind), remedy)
        }
        (false, _, Some(gid)) => Check::ok(name, format!("InfiniBand, GID {} {}", gid.index, gid.address)),
    }
}

/// What the configuration says of the device; what it leaves out is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configured {
    pub device: Option<String>,
    pub port: Option<u8>,
    pub gid_index: Option<u8>,
    /// Where it stands: `[pool.verbs]`, `[verbs]`.
    pub table: &'static str,
}

/// Whether what is configured is there, and a GID that others can reach. `None`: nothing is
/// configured, or there is no device at all, which has been told.
pub fn configured(host: &Host, wanted: &Configured) -> Option<Check> {
    let Configured { device, port, gid_index, table } = wanted;
    if device.is_none() && port.is_none() && gid_index.is_none() {
        return None;
    }
    let all = ports(host);
    let name = format!("RDMA in {table}");
    let have = all.iter().map(Port::name).collect::<Vec<_>>().join(", ");
    let fits = |p: &&Port| {
        device.as_ref().is_none_or(|device| *device == p.device) && port.is_none_or(|port| port.to_string() == p.number)
    };
    if all.is_empty() {
        return None;
    }
    let Some(found) = all.iter().filter(fits).max_by_key(|p| p.is_active()) else {
        let wanted = format!("{} port {}", device.as_deref().unwrap_or("any device"), port.unwrap_or(1));
        let remedy = format!("set device and port in {table} to one of these, or leave them out");
        return Some(Check::fail(name, format!("{wanted} is not there; there are: {have}"), remedy));
    };
    let Some(index) = gid_index else { return Some(Check::ok(name, found.name())) };
    let at = format!("gid_index = {index} of {}", found.name());
    let others = found.gids.iter().map(|gid| format!("{} ({} {})", gid.index, gid.kind, gid.address));
    let others = others.collect::<Vec<_>>().join(", ");
    let remedy =
        format!("set gid_index in {table} to a RoCE v2 GID with an IPv4 address, or leave it out; there are: {others}");
    Some(match found.gids.iter().find(|gid| gid.index == index.to_string()) {
        None => Check::fail(name, format!("{at} is empty: RDMA can't be used with it"), remedy),
        Some(gid) if found.is_ethernet && gid.address.is_unicast_link_local() => Check::fail(
            name,
            format!("{at} is {}, which hosts behind a router or another link can't reach", gid.address),
            remedy,
        ),
        Some(gid) if found.is_ethernet && gid.kind != "RoCE v2" => {
            Check::warn(name, format!("{at} is {}: the other side must choose the same kind", gid.kind), remedy)
        }
        Some(gid) => Check::ok(name, format!("{at} is {} {}", gid.kind, gid.address)),
    })
}

fn mtu(host: &Host, port: &Port) -> Option<Check> {
    let interface = port.interface.as_ref().filter(|_| port.is_ethernet)?;
    let name = format!("MTU of {}", port.name());
    let mtu = host.number(&format!("sys/class/net/{interface}/mtu"))?;
    Some(match mtu >= MTU_OF_4096 {
        true => Check::ok(name, format!("{interface} has {mtu}: a page is one packet")),
        false => Check::warn(
            name,
            format!("{interface} has {mtu}: a page of 4096 bytes takes several packets"),
            format!("ip link set {interface} mtu 9000, on all hosts and switches between, if they can"),
        ),
    })
}

fn counters(host: &Host, port: &Port) -> Check {
    let name = format!("losses of {}", port.name());
    let folder = port.folder();
    let of = |counter: &&str| {
        let files = ["hw_counters", "counters"].map(|kind| format!("{folder}/{kind}/{counter}"));
        files.iter().find_map(|file| host.number(file))
    };
    let told = |names: &[&str]| -> Vec<String> {
        let there = names.iter().filter_map(|name| Some((name, of(name)?)));
        there.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect()
    };
    let (losses, marks) = (told(LOSSES), told(MARKS));
    if losses.is_empty() {
        let marks = if marks.is_empty() { String::new() } else { format!("; ECN: {}", marks.join(", ")) };
        return Check::ok(name, format!("none counted{marks}"));
    }
    Check::warn(
        name,
        format!("{} since the driver started", losses.join(", ")),
        "if they grow, set up PFC or ECN on NIC and switch; PFC: ethtool -S INTERFACE | grep -i -e pause -e prio",
    )
}

/// Whether the daemon's threads may run near each device.
fn nodes(host: &Host, subject: &Subject, ports: &[Port]) -> Vec<Check> {
    let count = host.list("sys/devices/system/node").iter().filter(|name| is_node(name)).count();
    let mut devices: Vec<&str> = ports.iter().map(|port| port.device.as_str()).collect();
    devices.dedup();
    let allowed = host.read(&format!("{}/status", subject.proc())).unwrap_or_default();
    let allowed = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed = cpus(allowed.unwrap_or_default());
    let check = |device: &str| {
        let name = format!("NUMA node of {device}");
        let node = host.number(&format!("{FOLDER}/{device}/device/numa_node")).unwrap_or(-1);
        if count < 2 || node < 0 {
            return Check::ok(name, if count < 2 { "the host has one node" } else { "the device belongs to none" });
        }
        let near = cpus(&host.read(&format!("sys/devices/system/node/node{node}/cpulist")).unwrap_or_default());
        match allowed.iter().any(|cpu| near.contains(cpu)) {
            true => Check::ok(name, format!("{node} of {count}; {} may run there", subject.who())),
            false => Check::warn(
                name,
                format!("{node} of {count}, and {} may run on no CPU of it: each page crosses nodes", subject.who()),
                format!("add CPUs of node {node} to CPUAffinity= of {}'s unit", subject.daemon()),
            ),
        }
    };
    devices.into_iter().map(check).collect()
}

fn is_node(name: &str) -> bool {
    name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok())
}

/// `0-3,8` as numbers.
fn cpus(list: &str) -> Vec<u32> {
    let ranges = list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse::<u32>().ok()?)
    });
    ranges.flatten().collect()
}
