//! Each check of a host on folders with files made up: once as it should be, once as it fails.

use crate::all::checks;
use crate::host::{Host, Role, Subject};
use crate::report::{Check, Outcome};
use crate::userfaultfd::{Answer, FEATURES};
use crate::{kernel, memory, network, process, rdma};
use std::fs;
use tempfile::TempDir;

const CLIENT: Subject = Subject { role: Role::Client, pid: None };
const DONOR: Subject = Subject { role: Role::Donor, pid: None };
/// annexd, running.
const ANNEXD: Subject = Subject { role: Role::Client, pid: Some(7) };

const FIB: &str = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.0\n        /24 link UNICAST\n     |-- 10.0.0.5\n        \
                   /32 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\nLocal:\n     |-- 10.0.0.5\n        \
                   /32 host LOCAL\n";
const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";

/// A good host, with an RDMA device on the second of two nodes.
struct Tree {
    dir: TempDir,
}

impl Tree {
    fn good() -> Tree {
        let tree = Tree { dir: tempfile::tempdir().unwrap() };
        let limits = "Limit  Soft  Hard  Units\nMax locked memory         unlimited   unlimited   bytes\n";
        let status = "Name:\tx\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-7\n";
        for (file, text) in [
            ("proc/sys/kernel/osrelease", "6.12.9-amd64\n"),
            ("proc/self/status", status),
            ("proc/self/limits", limits),
            ("proc/self/cgroup", "0::/user.slice\n"),
            ("proc/7/status", status),
            ("proc/7/limits", limits),
            ("proc/7/cgroup", "0::/system.slice/annexd.service\n"),
            ("sys/fs/cgroup/system.slice/annexd.service/memory.max", "max\n"),
            ("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"),
            ("proc/swaps", "Filename Type Size Used Priority\n"),
            ("proc/sys/vm/swappiness", "60\n"),
            ("proc/sys/vm/overcommit_memory", "0\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("proc/net/fib_trie", FIB),
            ("sys/class/infiniband/mlx5_0/device/numa_node", "1\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node1/cpulist", "4-7\n"),
            ("sys/class/net/eth2/mtu", "9000\n"),
            ("dev/infiniband/uverbs0", ""),
            ("usr/lib64/libibverbs.so.1", ""),
        ] {
            tree.put(file, text);
        }
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("link_layer", "Ethernet\n"),
            ("rate", "100 Gb/sec (4X EDR)\n"),
            ("gids/0", "fe80:0000:0000:0000:0202:c9ff:fe00:0001\n"),
            ("gid_attrs/types/0", "IB/RoCE v1\n"),
            ("gid_attrs/ndevs/0", "eth2\n"),
            ("gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0005\n"),
            ("gid_attrs/types/3", "RoCE v2\n"),
            ("gid_attrs/ndevs/3", "eth2\n"),
            ("hw_counters/np_cnp_sent", "12\n"),
            ("hw_counters/out_of_sequence", "0\n"),
        ] {
            tree.put(&format!("{PORT}/{file}"), text);
        }
        tree
    }

    fn with(self, file: &str, text: &str) -> Tree {
        self.put(file, text);
        self
    }

    fn without(self, file: &str) -> Tree {
        let path = self.dir.path().join(file);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
        self
    }

    fn put(&self, file: &str, text: &str) {
        let path = self.dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn host(&self) -> Host {
        Host::at(self.dir.path())
    }

    fn rdma(&self) -> Vec<Check> {
        rdma::checks(&self.host(), &ANNEXD)
    }
}

#[track_caller]
fn assert_says(check: &Check, outcome: Outcome, part: &str) {
    assert!(check.outcome == outcome && check.message.contains(part), "{check:?}");
    assert_eq!(check.remedy.is_some(), outcome != Outcome::Ok, "{check:?}");
    assert!(check.remedy.as_ref().is_none_or(|remedy| !remedy.is_empty() && !remedy.contains('\n')), "{check:?}");
}

#[track_caller]
fn the<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no {name} in {checks:?}"))
}

#[test]
fn a_good_host_has_nothing_to_look_at() {
    let tree = Tree::good();
    let answer = Answer { device: Ok(()), features: Ok(FEATURES.iter().map(|(bit, ..)| bit).sum()) };
    for subject in [CLIENT, DONOR, ANNEXD] {
        let found = checks(&tree.host(), &subject, Some(&answer));
        let bad: Vec<_> = found.iter().filter(|check| check.outcome != Outcome::Ok).collect();
        assert!(bad.is_empty(), "{bad:?}");
    }
}

#[test]
fn an_empty_root_is_all_unknown_and_breaks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let found = checks(&Host::at(dir.path()), &CLIENT, None);
    assert!(found.iter().all(|check| check.outcome != Outcome::Fail), "{found:?}");
    assert!(the(&found, "kernel").message.contains("failed to read /proc/sys/kernel/osrelease"));
}

#[test]
fn an_old_kernel_will_do_for_a_donor_only() {
    let tree = Tree::good().with("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
    assert_says(&kernel::version(&tree.host(), &CLIENT), Outcome::Fail, "6.1.0-18-amd64 is too old for annexd");
    assert_says(&kernel::version(&tree.host(), &DONOR), Outcome::Ok, "6.1.0");
    let odd = tree.with("proc/sys/kernel/osrelease", "next\n");
    assert_says(&kernel::version(&odd.host(), &CLIENT), Outcome::Warn, "can't be read");
}

#[test]
fn an_ordinary_user_is_told_that_not_all_is_seen() {
    let tree = Tree::good().with("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0\n");
    let check = process::privileges(&tree.host(), &CLIENT);
    assert_says(&check, Outcome::Warn, "user 1000");
    assert!(check.remedy.unwrap().contains("sudo annex doctor"));
    assert_eq!(process::capabilities(&tree.host(), &CLIENT), None);
}

#[test]
fn an_annexd_without_its_capabilities_is_named() {
    let tree = Tree::good().with("proc/7/status", "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\n");
    let check = process::capabilities(&tree.host(), &ANNEXD).unwrap();
    assert_says(&check, Outcome::Fail, "annexd (PID 7) lacks CAP_SYS_PTRACE, CAP_SYS_ADMIN");
    let nice = Tree::good().with("proc/7/status", "CapEff:\t000001ffff7fffff\n");
    assert_says(&process::capabilities(&nice.host(), &ANNEXD).unwrap(), Outcome::Warn, "CAP_SYS_NICE");
}

#[test]
fn a_limit_on_locked_memory_counts_unless_a_capability_lifts_it() {
    let small = "Max locked memory         8388608              8388608              bytes\n";
    let tree = Tree::good().with("proc/7/limits", small).with("proc/self/limits", small);
    assert_says(&process::memlock(&tree.host(), &ANNEXD), Outcome::Ok, "as much memory as it needs");
    let tree = tree.with("proc/7/status", "CapEff:\t0\n").with("proc/self/status", "CapEff:\t0\n");
    assert_says(&process::memlock(&tree.host(), &ANNEXD), Outcome::Fail, "annexd (PID 7) may lock 8 MiB");
    assert_says(&process::memlock(&tree.host(), &DONOR), Outcome::Warn, "this shell may lock 8 MiB");
    assert_eq!(process::lockable(&tree.host(), &ANNEXD).unwrap(), Some(8 << 20));
    let large = tree.with("proc/7/limits", "Max locked memory  1073741824  1073741824 bytes\n");
    assert_says(&process::memlock(&large.host(), &ANNEXD), Outcome::Warn, "1 GiB");
}

#[test]
fn the_tightest_limit_of_the_cgroups_above_counts() {
    let tree = Tree::good()
        .with("sys/fs/cgroup/system.slice/memory.max", "1073741824\n")
        .with("sys/fs/cgroup/system.slice/memory.current", "1060000000\n");
    let check = memory::cgroup(&tree.host(), &ANNEXD);
    assert_says(&check, Outcome::Fail, "limited to 1 GiB by /sys/fs/cgroup/system.slice/memory.max");
    let roomy = tree.with("sys/fs/cgroup/system.slice/memory.current", "1000000\n");
    assert_says(&memory::cgroup(&roomy.host(), &ANNEXD), Outcome::Ok, "limited to 1 GiB");
    let high = roomy.with("sys/fs/cgroup/system.slice/annexd.service/memory.high", "104857600\n");
    let check = memory::cgroup(&high.host(), &ANNEXD);
    assert_says(&check, Outcome::Warn, "100 MiB");
    assert!(check.remedy.unwrap().contains("MemoryHigh=infinity"));
}

#[test]
fn cgroups_of_the_first_version_are_read_too() {
    let tree = Tree::good()
        .with("proc/7/cgroup", "4:memory:/box\n3:cpuset:/\n0::/\n")
        .with("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
        .with("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "67108864\n");
    assert_says(&memory::cgroup(&tree.host(), &ANNEXD), Outcome::Warn, "limited to 64 MiB");
}

#[test]
fn a_host_without_memory_is_said_to_have_none() {
    let with = |available| {
        let tree = Tree::good().with("proc/meminfo", &format!("MemTotal: 16777216 kB\nMemAvailable: {available} kB\n"));
        memory::free(&tree.host(), &CLIENT)
    };
    assert_says(&with(10_240), Outcome::Fail, "10 MiB of 16 GiB");
    assert_says(&with(204_800), Outcome::Warn, "200 MiB");
    let odd = Tree::good().with("proc/meminfo", "MemTotal: 1 kB\n");
    assert_says(&memory::free(&odd.host(), &CLIENT), Outcome::Warn, "unknown");
}

#[test]
fn swapping_that_takes_the_pages_first_is_told() {
    let swaps = |used: u64| format!("Filename Type Size Used Priority\n/dev/sda2 partition 8388608 {used} -2\n");
    let tree = Tree::good().with("proc/swaps", &swaps(0));
    assert_says(&memory::swap(&tree.host(), &CLIENT), Outcome::Ok, "0 B of 8 GiB in use");
    let used = tree.with("proc/swaps", &swaps(1 << 20));
    assert_says(&memory::swap(&used.host(), &CLIENT), Outcome::Warn, "1 GiB of 8 GiB in use");
    assert_says(&memory::swap(&used.host(), &DONOR), Outcome::Warn, "while memory is lent");
    let eager = used.with("proc/swaps", &swaps(0)).with("proc/sys/vm/swappiness", "100\n");
    assert_says(&memory::swap(&eager.host(), &CLIENT), Outcome::Warn, "swappiness 100");
}

#[test]
fn huge_pages_everywhere_are_told_to_a_client() {
    let tree = Tree::good().with("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n");
    assert_says(&memory::huge_pages(&tree.host(), &CLIENT), Outcome::Warn, "always");
    assert_says(&memory::huge_pages(&Tree::good().host(), &CLIENT), Outcome::Ok, "madvise");
    let none = Tree::good().without("sys/kernel/mm/transparent_hugepage/enabled");
    assert_says(&memory::huge_pages(&none.host(), &CLIENT), Outcome::Ok, "none");
}

#[test]
fn strict_overcommit_without_room_fails() {
    let with = |left: u64| {
        let meminfo = format!("CommitLimit: {} kB\nCommitted_AS: 1048576 kB\n", 1_048_576 + left);
        let tree = Tree::good().with("proc/sys/vm/overcommit_memory", "2\n").with("proc/meminfo", &meminfo);
        memory::overcommit(&tree.host(), &CLIENT)
    };
    assert_says(&with(1024), Outcome::Fail, "1 MiB may still be reserved");
    assert_says(&with(8 << 20), Outcome::Warn, "8 GiB");
}

#[test]
fn addresses_are_those_of_the_local_routes() {
    let tree = Tree::good();
    let found = network::addresses(&tree.host()).unwrap();
    assert_eq!(found, ["10.0.0.5".parse::<std::net::Ipv4Addr>().unwrap(), "127.0.0.1".parse().unwrap()]);
    let alone = tree.with("proc/net/fib_trie", "Local:\n |-- 127.0.0.1\n /32 host LOCAL\n");
    assert_says(&network::check(&alone.host(), &CLIENT), Outcome::Warn, "none but loopback");
}

#[test]
fn a_host_without_rdma_uses_tcp() {
    let tree = Tree::good().without("sys/class/infiniband");
    let found = tree.rdma();
    assert!(found.len() == 1 && found[0].outcome == Outcome::Ok && found[0].message.contains("TCP"), "{found:?}");
}

#[test]
fn a_device_without_a_link_fails() {
    let tree = Tree::good().with(&format!("{PORT}/state"), "1: DOWN\n");
    assert_says(the(&tree.rdma(), "RDMA link"), Outcome::Fail, "no port is active: mlx5_0 port 1 DOWN");
    let two = tree.with("sys/class/infiniband/mlx5_0/ports/2/state", "4: ACTIVE\n");
    assert_says(the(&two.rdma(), "RDMA link"), Outcome::Ok, "port 2 ACTIVE");
    assert_says(the(&two.rdma(), "GID of mlx5_0 port 2"), Outcome::Fail, "none");
}

#[test]
fn a_device_that_programs_can_not_reach_fails() {
    let tree = Tree::good().without("dev/infiniband");
    assert_says(the(&tree.rdma(), "RDMA library"), Outcome::Fail, "uverbs");
    let no_library = Tree::good().without("usr/lib64/libibverbs.so.1");
    assert_says(the(&no_library.rdma(), "RDMA library"), Outcome::Warn, "libibverbs");
}

#[test]
fn the_gid_that_annex_would_choose_is_named() {
    let tree = Tree::good();
    assert_says(the(&tree.rdma(), "GID of mlx5_0 port 1"), Outcome::Ok, "RoCE v2, GID 3 (IP 10.0.0.5)");
    let tree = tree.without(&format!("{PORT}/gids/3"));
    let found = tree.rdma();
    let check = the(&found, "GID of mlx5_0 port 1");
    assert_says(check, Outcome::Warn, "no RoCE v2 GID with an IPv4 address");
    assert!(check.remedy.as_ref().unwrap().contains("eth2"));
}

#[test]
fn a_small_mtu_and_lost_packets_are_told() {
    let tree = Tree::good().with("sys/class/net/eth2/mtu", "1500\n");
    assert_says(the(&tree.rdma(), "MTU of mlx5_0 port 1"), Outcome::Warn, "eth2 has 1500");
    assert_says(the(&tree.rdma(), "losses of mlx5_0 port 1"), Outcome::Ok, "ECN: np_cnp_sent 12");
    let tree = tree.with(&format!("{PORT}/hw_counters/out_of_sequence"), "31\n");
    assert_says(the(&tree.rdma(), "losses of mlx5_0 port 1"), Outcome::Warn, "out_of_sequence 31");
}

#[test]
fn an_annexd_that_is_kept_from_its_devices_node_is_told() {
    let tree = Tree::good().with("proc/7/status", "Cpus_allowed_list:\t0-3\n");
    assert_says(the(&tree.rdma(), "NUMA node of mlx5_0"), Outcome::Warn, "1 of 2, and annexd (PID 7)");
    assert_says(the(&Tree::good().rdma(), "NUMA node of mlx5_0"), Outcome::Ok, "1 of 2");
}

#[test]
fn a_gid_index_that_leads_nowhere_is_told_with_those_that_there_are() {
    let of = |device: Option<&str>, port, gid_index| {
        let configured = rdma::Configured { device: device.map(str::to_owned), port, gid_index, table: "[verbs]" };
        rdma::configured(&Tree::good().host(), &configured)
    };
    assert_eq!(of(None, None, None), None);
    let check = of(None, None, Some(99)).unwrap();
    assert_says(&check, Outcome::Fail, "gid_index = 99 of mlx5_0 port 1 is empty");
    assert!(check.remedy.unwrap().contains("there are: 0 (IB/RoCE v1 fe80::"), "no GIDs are named");
    assert_says(&of(None, None, Some(0)).unwrap(), Outcome::Fail, "another link can't reach");
    assert_says(&of(Some("mlx5_0"), Some(1), Some(3)).unwrap(), Outcome::Ok, "RoCE v2 ::ffff:10.0.0.5");
    assert_says(&of(Some("mlx5_9"), None, None).unwrap(), Outcome::Fail, "there are: mlx5_0 port 1");
}
